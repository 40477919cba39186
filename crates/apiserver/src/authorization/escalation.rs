//! The privilege escalation check: whether a user has the rights that they are about to grant.

use std::collections::{BTreeMap, BTreeSet};

use super::rule::{PolicyRule, fits, has_or_all};

/// The rights in `wanted` that `owned` does not cover, as upstream's message lists them: sorted, without duplicates.
pub fn missing_rights(owned: &[PolicyRule], wanted: &[PolicyRule]) -> Vec<String> {
    let atoms = wanted.iter().flat_map(atoms);
    let left = atoms.filter(|atom| !owned.iter().any(|rule| covers(rule, atom)));
    let texts: BTreeSet<String> = merged(left).iter().map(PolicyRule::compact).collect();
    texts.into_iter().collect()
}

/// A rule as rules with one verb each, and one path or one group, resource and name.
fn atoms(rule: &PolicyRule) -> Vec<PolicyRule> {
    let mut atoms = Vec::new();
    let one = |text: &String| vec![text.clone()];
    let names: Vec<Vec<String>> = match rule.resource_names.as_slice() {
        [] => vec![Vec::new()],
        names => names.iter().map(one).collect(),
    };
    for group in &rule.api_groups {
        for resource in &rule.resources {
            for verb in &rule.verbs {
                atoms.extend(names.iter().map(|name| PolicyRule {
                    verbs: one(verb),
                    api_groups: one(group),
                    resources: one(resource),
                    resource_names: name.clone(),
                    non_resource_urls: Vec::new(),
                }));
            }
        }
    }
    for path in &rule.non_resource_urls {
        atoms.extend(rule.verbs.iter().map(|verb| PolicyRule {
            verbs: one(verb),
            non_resource_urls: one(path),
            ..PolicyRule::default()
        }));
    }
    atoms
}

fn covers(rule: &PolicyRule, atom: &PolicyRule) -> bool {
    let all = |list: &[String], wanted: &[String]| wanted.iter().all(|it| has_or_all(list, it));
    let names = &rule.resource_names;
    let names_fit = match atom.resource_names.as_slice() {
        [] => names.is_empty(),
        wanted => names.is_empty() || wanted.iter().all(|it| names.contains(it)),
    };
    let has_path = |path: &String| rule.non_resource_urls.iter().any(|it| fits(it, path));
    names_fit
        && all(&rule.verbs, &atom.verbs)
        && all(&rule.api_groups, &atom.api_groups)
        && atom.resources.iter().all(|it| has_resource(&rule.resources, it))
        && atom.non_resource_urls.iter().all(has_path)
}

fn has_resource(owned: &[String], wanted: &str) -> bool {
    let of_any = wanted.split_once('/').map(|(_, subresource)| format!("*/{subresource}"));
    has_or_all(owned, wanted) || of_any.is_some_and(|it| owned.contains(&it))
}

/// Joins the atoms that differ in their verb only.
fn merged(atoms: impl Iterator<Item = PolicyRule>) -> Vec<PolicyRule> {
    let mut by_rest: BTreeMap<PolicyRule, Vec<String>> = BTreeMap::new();
    let mut paths = Vec::new();
    for mut atom in atoms {
        if !atom.non_resource_urls.is_empty() {
            paths.push(atom);
            continue;
        }
        let verbs = std::mem::take(&mut atom.verbs);
        by_rest.entry(atom).or_default().extend(verbs);
    }
    paths.extend(by_rest.into_iter().map(|(rest, verbs)| PolicyRule { verbs, ..rest }));
    paths
}
