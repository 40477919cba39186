//! "Did you mean" for names that are not known.

/// Names that are less similar than this are suggested only if one letter differs (Jaro-Winkler, 0 to 1).
const SIMILARITY_MIN: f64 = 0.85;

/// In shorter names one letter makes another word.
const ONE_LETTER_LEN_MIN: usize = 3;

/// `; did you mean "NodeName"?` for the most similar of the known names; empty if none is similar.
pub fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let lower = name.to_lowercase();
    let similar = known
        .into_iter()
        .filter(|known| *known != name)
        .filter_map(|known| {
            let other = known.to_lowercase();
            let similarity = strsim::jaro_winkler(&lower, &other);
            let is_one_letter =
                || lower.len() >= ONE_LETTER_LEN_MIN && strsim::osa_distance(&lower, &other) <= 1;
            (similarity >= SIMILARITY_MIN || is_one_letter()).then_some((similarity, known))
        })
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
        let known = ["Pod", "Node", "cpu"];
        for (name, want) in [
            ("Pot", "; did you mean \"Pod\"?"),
            ("pod", "; did you mean \"Pod\"?"),
            ("Ndoe", "; did you mean \"Node\"?"),
            ("gpus", ""),
            ("ab", ""),
        ] {
            assert_eq!(did_you_mean(name, known), want, "{name}");
        }
    }
}
