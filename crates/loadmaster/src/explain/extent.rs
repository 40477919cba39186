//! How much of long lists is printed.

/// How much of long lists is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Everything, with a row for every node.
    All,
    /// The first entries; the flag --all shows the others.
    WithoutFlagAll,
    /// The first entries; there is no flag.
    Short,
}

impl Extent {
    /// The maximum number of entries of a list that has so many unless everything is printed.
    pub fn n_max(self, of_short_list: usize) -> usize {
        match self {
            Extent::All => usize::MAX,
            Extent::WithoutFlagAll | Extent::Short => of_short_list,
        }
    }

    /// A text for entries that are not printed: `and 3 more (--all shows them)`.
    pub fn and_more(self, what: &str, shown_by_flag: &str) -> String {
        match self {
            Extent::WithoutFlagAll => format!("and {what} (--all shows {shown_by_flag})"),
            Extent::All | Extent::Short => format!("and {what}"),
        }
    }
}
