//! Checks that a recorded history is valid for an API server: the guarantees that etcd's robustness tests check, and the
//! additional guarantees of Kubernetes.
//!
//! | guarantee | here |
//! | --- | --- |
//! | durable | an acknowledged write is in the history |
//! | no spurious events | every event is a write that was made and not rejected |
//! | unique, ordered | the revisions of a watch increase |
//! | reliable, resumable | a watch omits no event between its start and its last event |
//! | bookmarkable | no older event follows a bookmark |
//! | lists | a list at a revision has exactly the objects of that revision |
//! | real time | a write that ended before another began has the smaller revision, and lists do not go back in time |

use std::collections::{BTreeMap, BTreeSet};

/// All requests of clients and their results. Times are positions in one order of all beginnings and ends.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub writes: Vec<Write>,
    pub watches: Vec<Watch>,
    pub lists: Vec<List>,
}

/// A write of a key: a value that no other write has, or none for a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub key: String,
    pub value: Option<u64>,
    pub began: u64,
    pub ended: u64,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The write succeeded; the response of a deletion has no revision.
    Acknowledged {
        revision: Option<u64>,
    },
    Rejected,
    /// There was no response, or one after which the write may or may not have been executed.
    Unknown,
}

/// The events of a watch that started after a revision.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    pub after: u64,
    pub events: Vec<Event>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Upsert {
        revision: u64,
        key: String,
        value: u64,
        is_new: bool,
    },
    /// A deletion, with the last value.
    Delete {
        revision: u64,
        key: String,
        value: u64,
    },
    Bookmark {
        revision: u64,
    },
}

impl Event {
    fn revision(&self) -> u64 {
        match self {
            Event::Upsert { revision, .. }
            | Event::Delete { revision, .. }
            | Event::Bookmark { revision } => *revision,
        }
    }
}

/// All objects at a revision: value and revision by key.
#[derive(Clone, Debug, Default)]
pub struct List {
    pub revision: u64,
    pub objects: BTreeMap<String, (u64, u64)>,
    pub began: u64,
    pub ended: u64,
}

/// The violations in a history; empty if it is valid. At least one of its watches must have received all events.
pub fn violations(history: &History) -> Vec<String> {
    let mut found = Vec::new();
    let all = union(history, &mut found);
    check_watches(history, &all, &mut found);
    check_writes(history, &all, &mut found);
    check_states(history, &all, &mut found);
    check_real_time(history, &mut found);
    found
}

/// Every event of any watch, by revision: all watches must agree.
fn union(history: &History, found: &mut Vec<String>) -> BTreeMap<u64, Event> {
    let mut all = BTreeMap::new();
    let events = history.watches.iter().flat_map(|watch| &watch.events);
    for event in events.filter(|it| !matches!(it, Event::Bookmark { .. })) {
        let known = all.entry(event.revision()).or_insert_with(|| event.clone());
        if known != event {
            found.push(format!("two watches disagree: {known:?}, {event:?}"));
        }
    }
    all
}

fn check_watches(history: &History, all: &BTreeMap<u64, Event>, found: &mut Vec<String>) {
    for (nth, watch) in history.watches.iter().enumerate() {
        let mut last = watch.after;
        for event in &watch.events {
            let revision = event.revision();
            let is_bookmark = matches!(event, Event::Bookmark { .. });
            if revision < last || (revision == last && !is_bookmark) {
                found.push(format!("watch {nth}: {event:?} after revision {last}"));
            }
            last = last.max(revision);
        }
        let seen: BTreeSet<u64> = watch.events.iter().map(Event::revision).collect();
        let expected = all.range(watch.after + 1..last.max(watch.after) + 1);
        for (_, missed) in expected.filter(|(revision, _)| !seen.contains(revision)) {
            found.push(format!("watch {nth} from {} to {last} misses {missed:?}", watch.after));
        }
    }
}

fn check_writes(history: &History, all: &BTreeMap<u64, Event>, found: &mut Vec<String>) {
    let mut made: BTreeMap<(&str, u64), &Write> = BTreeMap::new();
    let mut deleted: BTreeSet<&str> = BTreeSet::new();
    for write in &history.writes {
        match (write.value, write.outcome) {
            (Some(value), outcome) => {
                made.insert((&write.key, value), write);
                let Outcome::Acknowledged { revision: Some(revision) } = outcome else { continue };
                match all.get(&revision) {
                    Some(Event::Upsert { key, value: set, .. })
                        if *key == write.key && *set == value => {}
                    other => {
                        found.push(format!("lost: {write:?}; revision {revision} is {other:?}"))
                    }
                }
            }
            (None, Outcome::Rejected) => {}
            (None, _) => drop(deleted.insert(&write.key)),
        }
    }
    for event in all.values() {
        match event {
            Event::Upsert { key, value, .. } => match made.get(&(key.as_str(), *value)) {
                None => found.push(format!("no write for {event:?}")),
                Some(write) if write.outcome == Outcome::Rejected => {
                    found.push(format!("rejected write, but {event:?}"));
                }
                Some(_) => {}
            },
            Event::Delete { key, .. } if !deleted.contains(key.as_str()) => {
                found.push(format!("no deletion for {event:?}"));
            }
            _ => {}
        }
    }
}

/// Replays the events: each event must be consistent with the previous state, and lists must show the state at their revision.
fn check_states(history: &History, all: &BTreeMap<u64, Event>, found: &mut Vec<String>) {
    let mut state: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut lists: Vec<&List> = history.lists.iter().collect();
    lists.sort_by_key(|list| list.revision);
    let mut lists = lists.into_iter().peekable();
    let mut n_deletions = 0;
    for (revision, event) in all {
        while let Some(list) = lists.next_if(|list| list.revision < *revision) {
            check_list(list, &state, found);
        }
        match event {
            Event::Upsert { key, value, is_new, .. } => {
                let before = state.insert(key.clone(), (*value, *revision));
                if before.is_none() != *is_new {
                    found.push(format!("{event:?} after the state {before:?}"));
                }
            }
            Event::Delete { key, value, .. } => {
                n_deletions += 1;
                let before = state.remove(key);
                if before.is_none_or(|(known, _)| known != *value) {
                    found.push(format!("{event:?} after the state {before:?}"));
                }
            }
            Event::Bookmark { .. } => {}
        }
    }
    lists.for_each(|list| check_list(list, &state, found));
    let acknowledged = history.writes.iter().filter(|write| write.value.is_none());
    let n_acknowledged =
        acknowledged.filter(|it| matches!(it.outcome, Outcome::Acknowledged { .. })).count();
    if n_deletions < n_acknowledged {
        found.push(format!("{n_acknowledged} deletions were acknowledged, but there are {n_deletions} delete events"));
    }
}

fn check_list(list: &List, state: &BTreeMap<String, (u64, u64)>, found: &mut Vec<String>) {
    if list.objects != *state {
        let revision = list.revision;
        found.push(format!("a list at {revision} shows {:?} instead of {state:?}", list.objects));
    }
}

fn check_real_time(history: &History, found: &mut Vec<String>) {
    // The newest revision of all requests that had ended when a request began.
    let mut ended: Vec<(u64, u64)> = Vec::new();
    let mut began: Vec<(u64, u64, bool)> = Vec::new();
    for write in &history.writes {
        if let Outcome::Acknowledged { revision: Some(revision) } = write.outcome {
            ended.push((write.ended, revision));
            began.push((write.began, revision, true));
        }
    }
    for list in &history.lists {
        ended.push((list.ended, list.revision));
        began.push((list.began, list.revision, false));
    }
    ended.sort_unstable();
    began.sort_unstable();
    let (mut newest, mut at) = (0, 0);
    for (time, revision, is_write) in began {
        while let Some((_, done)) = ended.get(at).filter(|(end, _)| *end < time) {
            newest = newest.max(*done);
            at += 1;
        }
        if revision < newest || (is_write && revision == newest) {
            found.push(format!(
                "revision {revision} was written after revision {newest} was returned"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upsert(revision: u64, key: &str, value: u64, is_new: bool) -> Event {
        Event::Upsert { revision, key: key.into(), value, is_new }
    }

    fn delete(revision: u64, key: &str, value: u64) -> Event {
        Event::Delete { revision, key: key.into(), value }
    }

    fn acknowledged_write(
        key: &str,
        value: Option<u64>,
        revision: Option<u64>,
        times: (u64, u64),
    ) -> Write {
        let outcome = Outcome::Acknowledged { revision };
        Write { key: key.into(), value, began: times.0, ended: times.1, outcome }
    }

    fn list(revision: u64, objects: &[(&str, u64, u64)], times: (u64, u64)) -> List {
        let objects = objects.iter().map(|(key, value, at)| ((*key).into(), (*value, *at)));
        List { revision, objects: objects.collect(), began: times.0, ended: times.1 }
    }

    /// a is created (2), updated (3) and deleted (5), b is created (4).
    fn valid_history() -> History {
        let all = vec![
            upsert(2, "a", 1, true),
            upsert(3, "a", 2, false),
            upsert(4, "b", 3, true),
            delete(5, "a", 2),
            Event::Bookmark { revision: 7 },
        ];
        History {
            writes: vec![
                acknowledged_write("a", Some(1), Some(2), (1, 2)),
                acknowledged_write("a", Some(2), Some(3), (3, 4)),
                acknowledged_write("b", Some(3), Some(4), (5, 6)),
                acknowledged_write("a", None, None, (7, 8)),
            ],
            watches: vec![
                Watch { after: 1, events: all.clone() },
                Watch { after: 3, events: all[2..4].to_vec() },
                Watch { after: 9, events: Vec::new() },
            ],
            lists: vec![list(3, &[("a", 2, 3)], (4, 5)), list(5, &[("b", 3, 4)], (9, 10))],
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut History), want: &str) {
        let mut history = valid_history();
        change(&mut history);
        let found = violations(&history);
        let is_found = found.iter().any(|it| it.contains(want));
        assert!(is_found, "{want:?} is not in {found:#?}");
    }

    #[test]
    fn a_valid_history_has_no_violations() {
        assert_eq!(violations(&valid_history()), [""; 0]);
        let mut unknown = valid_history();
        unknown.writes[1].outcome = Outcome::Unknown;
        unknown.writes.push(Write { outcome: Outcome::Unknown, ..unknown.writes[0].clone() });
        assert_eq!(violations(&unknown), [""; 0]);
    }

    #[test]
    fn violations_are_reported() {
        check(|it| drop(it.watches[0].events.remove(1)), "lost: Write { key: \"a\"");
        // Another watch has received that event.
        check(|it| drop(it.watches[0].events.remove(2)), "watch 0 from 1 to 7 misses");
        check(|it| it.watches[0].events.swap(0, 1), "after revision 3");
        check(|it| it.watches[1].events.insert(0, upsert(3, "a", 2, false)), "after revision 3");
        check(
            |it| {
                let event = it.watches[0].events[2].clone();
                it.watches[0].events.insert(3, event);
            },
            "after revision 4",
        );
        check(|it| it.watches[1].events[0] = upsert(4, "b", 9, true), "two watches disagree");
        check(|it| it.watches[0].events.push(upsert(6, "c", 9, true)), "after revision 7");
        check(
            |it| it.watches[1].events.push(upsert(6, "c", 9, true)),
            "no write for Upsert { revision: 6",
        );
        check(|it| it.watches[1].events.push(delete(6, "b", 3)), "no deletion for Delete");
        check(|it| it.writes[2].outcome = Outcome::Rejected, "rejected write, but");
        check(
            |it| it.writes.push(acknowledged_write("c", Some(8), Some(8), (9, 10))),
            "lost: Write { key: \"c\"",
        );
        check(
            |it| it.writes.push(acknowledged_write("b", None, None, (9, 10))),
            "2 deletions were acknowledged",
        );
        check(|it| it.lists[0].objects.clear(), "a list at 3 shows {} instead of");
        check(|it| it.lists[1].revision = 3, "a list at 3 shows");
        check(|it| it.writes[0].began = 5, "was written after revision");
        check(
            |it| it.lists.push(list(3, &[("a", 2, 3)], (20, 21))),
            "revision 3 was written after revision 5 was returned",
        );
        check(
            |it| it.watches[0].events[1] = upsert(3, "a", 2, true),
            "after the state Some((1, 2))",
        );
    }
}
