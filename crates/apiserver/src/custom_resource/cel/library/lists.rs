//! Functions of lists and sets.

use std::cmp::Ordering;

use super::super::eval::{Failure, Outcome};
use super::super::value::Val;
use super::numbers;
use loadmaster_stdx::SortCompactly as _;

pub fn call(name: &str, args: &[Val]) -> Option<Outcome> {
    match (name, args) {
        ("sets.contains", [Val::List(a), Val::List(b)]) => {
            Some(Ok(Val::Bool(b.entries.iter().all(|it| a.entries.contains(it)))))
        }
        ("sets.equivalent", [Val::List(a), Val::List(b)]) => {
            let holds = a.entries.iter().all(|it| b.entries.contains(it))
                && b.entries.iter().all(|it| a.entries.contains(it));
            Some(Ok(Val::Bool(holds)))
        }
        ("sets.intersects", [Val::List(a), Val::List(b)]) => {
            Some(Ok(Val::Bool(a.entries.iter().any(|it| b.entries.contains(it)))))
        }
        ("lists.range", [Val::Int(n)]) => Some(range(*n)),
        (_, [Val::List(list), rest @ ..]) => of_list(name, &list.entries, rest),
        _ => None,
    }
}

/// More entries than any budget pays for.
const N_RANGE_MAX: i64 = 1_000_000;

fn range(n: i64) -> Outcome {
    if n > N_RANGE_MAX {
        return Err(Failure::TooExpensive);
    }
    Ok(Val::list((0..n).map(Val::Int).collect()))
}

fn of_list(name: &str, list: &[Val], rest: &[Val]) -> Option<Outcome> {
    Some(match (name, rest) {
        ("isSorted", []) => {
            let is_sorted = |pair: &[Val]| pair[0].compare(&pair[1]).is_none_or(Ordering::is_le);
            Ok(Val::Bool(list.windows(2).all(is_sorted)))
        }
        ("sum", []) => sum(list),
        ("min", []) => extreme(list, "min", Ordering::Less),
        ("max", []) => extreme(list, "max", Ordering::Greater),
        ("indexOf", [it]) => Ok(place(list.iter().position(|entry| entry == it))),
        ("lastIndexOf", [it]) => Ok(place(list.iter().rposition(|entry| entry == it))),
        ("first", []) => Ok(Val::Optional(list.first().cloned().map(Into::into))),
        ("last", []) => Ok(Val::Optional(list.last().cloned().map(Into::into))),
        ("reverse", []) => Ok(Val::list(list.iter().rev().cloned().collect())),
        ("distinct", []) => {
            let is_first = |(at, it): &(usize, &Val)| !list[..*at].contains(it);
            let retained = list.iter().enumerate().filter(is_first);
            Ok(Val::list(retained.map(|(_, it)| it.clone()).collect()))
        }
        ("sort", []) => sort_by_key(list.iter().map(|it| (it.clone(), it.clone())).collect()),
        ("flatten", []) => Ok(Val::list(flattened(list, 1))),
        ("flatten", [Val::Int(depth)]) if *depth >= 0 => Ok(Val::list(flattened(list, *depth))),
        ("slice", [Val::Int(from), Val::Int(to)]) => slice(list, *from, *to),
        _ => return None,
    })
}

fn place(found: Option<usize>) -> Val {
    Val::Int(found.map_or(-1, |at| at as i64))
}

fn sum(list: &[Val]) -> Outcome {
    let Some((first, rest)) = list.split_first() else { return Ok(Val::Int(0)) };
    rest.iter().try_fold(first.clone(), |sum, it| {
        let args = [sum, it.clone()];
        let added = super::moved("_+_", &args).or_else(|| numbers::arithmetic("_+_", &args));
        added.unwrap_or_else(|| Err(Failure::no_overload()))
    })
}

fn extreme(list: &[Val], name: &str, wanted: Ordering) -> Outcome {
    let best =
        list.iter().reduce(|best, it| if it.compare(best) == Some(wanted) { it } else { best });
    best.cloned().ok_or_else(|| Failure::new(format!("{name} called on empty list")))
}

/// The second of each pair, in the order of the first ones.
pub fn sort_by_key(mut keyed: Vec<(Val, Val)>) -> Outcome {
    let is_comparable = |pair: &[(Val, Val)]| pair[0].0.compare(&pair[1].0).is_some();
    if !keyed.windows(2).all(is_comparable) {
        return Err(Failure::new("list elements must have the same type"));
    }
    keyed.sort_compactly_by(|a, b| a.0.compare(&b.0).unwrap_or(Ordering::Equal));
    Ok(Val::list(keyed.into_iter().map(|(_, value)| value).collect()))
}

fn flattened(list: &[Val], depth: i64) -> Vec<Val> {
    let inner = |it: &Val| match it {
        Val::List(inner) if depth > 0 => flattened(&inner.entries, depth - 1),
        other => vec![other.clone()],
    };
    list.iter().flat_map(inner).collect()
}

fn slice(list: &[Val], from: i64, to: i64) -> Outcome {
    let n = list.len() as i64;
    if from < 0 || to < 0 {
        return Err(Failure::new("cannot slice with negative indices"));
    }
    if from > to {
        return Err(Failure::new("start index must be less than or equal to end index"));
    }
    if to > n {
        return Err(Failure::new(format!("cannot slice({from}, {to}), list is length {n}")));
    }
    Ok(Val::list(list[from as usize..to as usize].to_vec()))
}
