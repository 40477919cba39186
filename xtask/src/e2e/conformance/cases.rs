//! All cases, by subject. A case is a name and a script: see [`super::case`].

mod apply;
mod authorization;
mod conflicts;
mod custom_resources;
mod deletes;
mod kinds;
mod lists;
mod patches;
mod quotas;
mod services;
mod subresources;
mod verbs;
mod watches;

use super::case::{Case, case};

/// The cases of one subject.
type Table = &'static [(&'static str, &'static str)];

/// All cases.
pub fn all() -> Vec<Case> {
    let subjects: [(&str, Table); 11] = [
        ("verbs", verbs::CASES),
        ("conflicts", conflicts::CASES),
        ("lists", lists::CASES),
        ("patches", patches::CASES),
        ("deletes", deletes::CASES),
        ("subresources", subresources::CASES),
        ("watches", watches::CASES),
        ("apply", apply::CASES),
        ("access", authorization::CASES),
        ("services", services::CASES),
        ("quotas", quotas::CASES),
    ];
    let tables = subjects.into_iter().flat_map(|(subject, table)| {
        table.iter().map(move |(name, script)| case(&format!("{subject}: {name}"), script))
    });
    tables.chain(custom_resources::cases()).chain(kinds::cases()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_script_is_valid_and_has_a_unique_name() {
        let all = all();
        for case in &all {
            let steps = case.steps().unwrap_or_else(|error| panic!("{error:#}"));
            assert!(!steps.is_empty(), "{}", case.name);
        }
        let names: BTreeSet<&String> = all.iter().map(|case| &case.name).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.len() > 500, "{} cases", all.len());
    }
}
