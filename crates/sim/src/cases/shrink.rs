//! Making a case smaller while something about it stays.

use serde_json::Value;

use super::{Ask, Case};

/// The smallest case that still has the property, found by leaving out objects, then list items and fields, then
/// simplifying texts and numbers. `is_still` is asked at most `tries_max` times.
pub fn shrink(case: &Case, tries_max: usize, mut is_still: impl FnMut(&Case) -> bool) -> Case {
    let mut best = case.clone();
    let mut left = tries_max;
    let mut try_it = |candidate: Case, best: &mut Case| {
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
        progress = drop_objects(&mut best, &mut try_it);
        progress |= drop_parts(&mut best, &mut try_it);
    }
    best
}

fn drop_objects(best: &mut Case, try_it: &mut impl FnMut(Case, &mut Case) -> bool) -> bool {
    let mut progress = false;
    let mut at = best.objects.len();
    while at > 0 {
        at -= 1;
        let mut candidate = best.clone();
        candidate.objects.remove(at);
        progress |= try_it(candidate, best);
    }
    if best.config.is_some() {
        let candidate = Case { config: None, ..best.clone() };
        progress |= try_it(candidate, best);
    }
    progress
}

/// Tries every field and item of every object, deepest last: a field that is not needed goes with all that is in it.
fn drop_parts(best: &mut Case, try_it: &mut impl FnMut(Case, &mut Case) -> bool) -> bool {
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

/// A value that can be made smaller on its own.
#[derive(Clone, Copy)]
enum Root {
    Object(usize),
    Config,
    Old,
    New,
}

fn roots(case: &Case) -> Vec<Root> {
    let mut roots: Vec<Root> = (0..case.objects.len()).map(Root::Object).collect();
    roots.extend(case.config.as_ref().map(|_| Root::Config));
    if let Ask::Hint(_) = case.ask {
        roots.extend([Root::Old, Root::New]);
    }
    roots
}

impl Root {
    fn get(self, case: &Case) -> Option<&Value> {
        match (self, &case.ask) {
            (Root::Object(at), _) => case.objects.get(at),
            (Root::Config, _) => case.config.as_ref(),
            (Root::Old, Ask::Hint(event)) => Some(&event.old),
            (Root::New, Ask::Hint(event)) => Some(&event.new),
            _ => None,
        }
    }

    fn get_mut(self, case: &mut Case) -> Option<&mut Value> {
        match (self, &mut case.ask) {
            (Root::Object(at), _) => case.objects.get_mut(at),
            (Root::Config, _) => case.config.as_mut(),
            (Root::Old, Ask::Hint(event)) => Some(&mut event.old),
            (Root::New, Ask::Hint(event)) => Some(&mut event.new),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Field(String),
    Item(usize),
}

/// All paths below a value, parents before their parts, later items of a list before earlier ones.
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

/// What makes an object an object stays.
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

    use super::super::Generator;
    use super::*;

    #[test]
    fn what_is_not_needed_goes() {
        let node = |name: &str, taint: &str| json!({"kind": "Node", "metadata": {"name": name, "labels": {"a": "b"}}, "spec": {"taints": [{"key": "x"}, {"key": taint}]}});
        let case = Case {
            objects: vec![node("a", "y"), node("b", "z")],
            ..Generator::new(1, ["x"]).case(0)
        };
        let has_taint =
            |case: &Case| case.objects.iter().any(|o| o.to_string().contains(r#""key":"z""#));
        let small = shrink(&case, 1_000, has_taint);
        assert_eq!(
            small.objects,
            [
                json!({"kind": "Node", "metadata": {"name": "b"}, "spec": {"taints": [{"key": "z"}]}})
            ]
        );
    }

    #[test]
    fn tries_are_limited() {
        let case = Generator::new(3, ["x"]).case(1);
        let mut tries = 0;
        shrink(&case, 10, |_| {
            tries += 1;
            true
        });
        assert!(tries <= 10);
    }
}
