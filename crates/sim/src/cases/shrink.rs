//! Shrinks a case while a property holds.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{OracleCase, OracleCaseKind};

/// The smallest case found that still has the property, by removing objects, then list items and fields. `is_still` is called at
/// most `tries_max` times.
pub fn shrink_case(
    case: &OracleCase,
    tries_max: usize,
    mut is_still: impl FnMut(&OracleCase) -> bool,
) -> OracleCase {
    let mut best = case.clone();
    let mut left = tries_max;
    let mut try_it = |candidate: OracleCase, best: &mut OracleCase| {
        if left == 0 || candidate == *best {
            return false;
        }
        left -= 1;
        let good = is_still(&candidate);
        if good {
            *best = candidate;
        }
        good
    };
    let mut progress = true;
    while progress {
        progress = drop_steps(&mut best, &mut try_it);
        progress |= drop_objects(&mut best, &mut try_it);
        progress |= drop_fields(&mut best, &mut try_it);
    }
    best
}

fn drop_steps(
    best: &mut OracleCase,
    try_it: &mut impl FnMut(OracleCase, &mut OracleCase) -> bool,
) -> bool {
    let (mut progress, mut at) = (false, 0);
    while let OracleCaseKind::Gangs(gangs) = &best.kind
        && at < gangs.steps.len()
    {
        let mut fewer = gangs.clone();
        fewer.steps.remove(at);
        let candidate = OracleCase { kind: OracleCaseKind::Gangs(fewer), ..best.clone() };
        match try_it(candidate, best) {
            true => progress = true,
            false => at += 1,
        }
    }
    progress
}

fn drop_objects(
    best: &mut OracleCase,
    try_it: &mut impl FnMut(OracleCase, &mut OracleCase) -> bool,
) -> bool {
    let mut progress = false;
    let mut at = best.objects.len();
    while at > 0 {
        at -= 1;
        let mut candidate = best.clone();
        candidate.objects.remove(at);
        progress |= try_it(candidate, best);
    }
    if best.config.is_some() {
        let candidate = OracleCase { config: None, ..best.clone() };
        progress |= try_it(candidate, best);
    }
    if !best.feature_gates.is_empty() {
        let candidate = OracleCase { feature_gates: BTreeMap::new(), ..best.clone() };
        progress |= try_it(candidate, best);
    }
    progress
}

/// Tries to remove every field and item of every object, parents first: an unneeded field is removed with all that is in it.
fn drop_fields(
    best: &mut OracleCase,
    try_it: &mut impl FnMut(OracleCase, &mut OracleCase) -> bool,
) -> bool {
    let mut progress = false;
    for root in roots(best) {
        let mut paths = Vec::new();
        if let Some(value) = root.get(best) {
            list_paths(value, &mut Vec::new(), &mut paths);
        }
        for path in paths {
            let mut candidate = best.clone();
            let removed = root.get_mut(&mut candidate).is_some_and(|value| remove(value, &path));
            if removed && may_drop(&path) {
                progress |= try_it(candidate, best);
            }
        }
    }
    progress
}

/// A part of the case that can be shrunk.
#[derive(Clone, Copy)]
enum ShrinkTarget {
    Object(usize),
    Config,
    Old,
    New,
}

fn roots(case: &OracleCase) -> Vec<ShrinkTarget> {
    let mut roots: Vec<ShrinkTarget> = (0..case.objects.len()).map(ShrinkTarget::Object).collect();
    roots.extend(case.config.as_ref().map(|_| ShrinkTarget::Config));
    if let OracleCaseKind::Hint(_) = case.kind {
        roots.extend([ShrinkTarget::Old, ShrinkTarget::New]);
    }
    roots
}

impl ShrinkTarget {
    fn get(self, case: &OracleCase) -> Option<&Value> {
        match (self, &case.kind) {
            (ShrinkTarget::Object(at), _) => case.objects.get(at),
            (ShrinkTarget::Config, _) => case.config.as_ref(),
            (ShrinkTarget::Old, OracleCaseKind::Hint(event)) => Some(&event.old),
            (ShrinkTarget::New, OracleCaseKind::Hint(event)) => Some(&event.new),
            _ => None,
        }
    }

    fn get_mut(self, case: &mut OracleCase) -> Option<&mut Value> {
        match (self, &mut case.kind) {
            (ShrinkTarget::Object(at), _) => case.objects.get_mut(at),
            (ShrinkTarget::Config, _) => case.config.as_mut(),
            (ShrinkTarget::Old, OracleCaseKind::Hint(event)) => Some(&mut event.old),
            (ShrinkTarget::New, OracleCaseKind::Hint(event)) => Some(&mut event.new),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Field(String),
    Item(usize),
}

/// All paths below a value, parents before children, later items of a list before earlier ones.
fn list_paths(value: &Value, at: &mut Vec<Step>, paths: &mut Vec<Vec<Step>>) {
    let steps: Vec<(Step, &Value)> = match value {
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (Step::Field(name.clone()), value)).collect()
        }
        Value::Array(items) => {
            items.iter().enumerate().rev().map(|(at, value)| (Step::Item(at), value)).collect()
        }
        _ => return,
    };
    for (step, below) in steps {
        at.push(step);
        paths.push(at.clone());
        list_paths(below, at, paths);
        at.pop();
    }
}

/// Whether this field may be removed: apiVersion, kind, metadata and the name must stay.
fn may_drop(path: &[Step]) -> bool {
    match path {
        [Step::Field(name)] => !["apiVersion", "kind", "metadata"].contains(&name.as_str()),
        [Step::Field(metadata), Step::Field(name)] => metadata != "metadata" || name != "name",
        _ => true,
    }
}

fn remove(value: &mut Value, path: &[Step]) -> bool {
    match (path, value) {
        ([Step::Field(name)], Value::Object(fields)) => fields.remove(name).is_some(),
        ([Step::Item(at)], Value::Array(items)) if *at < items.len() => {
            items.remove(*at);
            true
        }
        ([Step::Field(name), rest @ ..], Value::Object(fields)) => {
            fields.get_mut(name).is_some_and(|below| remove(below, rest))
        }
        ([Step::Item(at), rest @ ..], Value::Array(items)) => {
            items.get_mut(*at).is_some_and(|below| remove(below, rest))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::CaseGenerator;
    use super::*;

    #[test]
    fn unneeded_fields_are_removed() {
        let node = |name: &str, taint: &str| json!({"kind": "Node", "metadata": {"name": name, "labels": {"a": "b"}}, "spec": {"taints": [{"key": "x"}, {"key": taint}]}});
        let case = OracleCase {
            objects: vec![node("a", "y"), node("b", "z")],
            ..CaseGenerator::new(1, ["x"]).generate_case(0)
        };
        let has_taint =
            |case: &OracleCase| case.objects.iter().any(|o| o.to_string().contains(r#""key":"z""#));
        let small = shrink_case(&case, 1_000, has_taint);
        assert_eq!(
            small.objects,
            [
                json!({"kind": "Node", "metadata": {"name": "b"}, "spec": {"taints": [{"key": "z"}]}})
            ]
        );
    }

    #[test]
    fn tries_are_limited() {
        let case = CaseGenerator::new(3, ["x"]).generate_case(1);
        let mut tries = 0;
        shrink_case(&case, 10, |_| {
            tries += 1;
            true
        });
        assert!(tries <= 10);
    }
}
