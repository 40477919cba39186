//! "Did you mean" for names that are not known.

/// Names that are less similar than this are not suggested (Jaro-Winkler, 0 to 1).
const SIMILARITY_MIN: f64 = 0.85;

/// `; did you mean "NodeName"?` for the most similar of the known names; empty if none is similar.
pub(crate) fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let lower = name.to_lowercase();
    let similar = known
        .into_iter()
        .filter(|known| *known != name)
        .map(|known| (strsim::jaro_winkler(&lower, &known.to_lowercase()), known))
        .filter(|(similarity, _)| *similarity >= SIMILARITY_MIN)
        .max_by(|(a, _), (b, _)| a.total_cmp(b));
    similar.map_or_else(String::new, |(_, known)| format!("; did you mean {known:?}?"))
}

#[cfg(test)]
mod tests {
    use super::did_you_mean;

    #[test]
    fn only_similar_names_are_suggested() {
        let known = ["NodeName", "NodePorts", "NodeResourcesFit"];
        for (name, want) in [
            ("nodename", "; did you mean \"NodeName\"?"),
            ("NodeResourceFit", "; did you mean \"NodeResourcesFit\"?"),
            ("NodePort", "; did you mean \"NodePorts\"?"),
            ("Coscheduling", ""),
            ("", ""),
        ] {
            assert_eq!(did_you_mean(name, known), want, "{name}");
        }
    }
}
