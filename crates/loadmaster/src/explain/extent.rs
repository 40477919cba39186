//! How much of long lists is printed.

/// How much of long lists is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Everything, with a row for every node.
    All,
    /// The first entries. Where there is a flag --all, the text says that it shows the others.
    First { has_flag: bool },
}

impl Extent {
    /// The maximum number of entries of a list that has so many unless everything is printed.
    pub fn n_max(self, of_short_list: usize) -> usize {
        match self {
            Extent::All => usize::MAX,
            Extent::First { .. } => of_short_list,
        }
    }

    /// A text for entries that are not printed: `and 3 more (--all shows them)`.
    pub fn and_more(self, what: &str, shown_by_flag: &str) -> String {
        match self {
            Extent::First { has_flag: true } => format!("and {what} (--all shows {shown_by_flag})"),
            Extent::First { has_flag: false } | Extent::All => format!("and {what}"),
        }
    }
}
