//! What the audit log shows about gangs.
//!
//! That nodes were reserved for all members before one was bound is not in the log, but what follows from it is: all members existed by
//! then, there was room for all of them, and all were bound at about the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::super::audit::AuditEntry;
use super::objects::gang_of;

/// How long the bindings of a gang may take together, on a busy machine.
pub const BINDING_TIME_MAX: Duration = Duration::from_secs(5);

/// The gangs of a test: all have the same size, which is also their `minMember`.
#[derive(Clone, Copy, Debug)]
pub struct GangLimits {
    pub size: usize,
    /// How many pods fit on the nodes.
    pub n_room: usize,
}

/// The requests about the pods of a gang that succeeded, in order.
#[derive(Debug, Default)]
struct Gang {
    created: Vec<Timestamp>,
    /// When the requests were received.
    bound: Vec<Timestamp>,
    deleted: Vec<Timestamp>,
}

impl Gang {
    fn n_deleted(&self, at: Timestamp) -> usize {
        self.deleted.iter().filter(|deleted| **deleted <= at).count()
    }
}

/// One message for each way in which a gang was not bound as a whole.
pub fn gang_faults(entries: &[AuditEntry], namespace: &str, limits: GangLimits) -> Vec<String> {
    let gangs = gangs(entries, namespace);
    let mut faults = Vec::new();
    for (name, gang) in &gangs {
        let Some(&first) = gang.bound.first() else { continue };
        let Some(&complete) = gang.bound.get(limits.size - 1) else {
            faults.push(format!(
                "{name}: {} of {} members were bound",
                gang.bound.len(),
                limits.size
            ));
            continue;
        };
        if gang.created.get(limits.size - 1).is_none_or(|created| *created > first) {
            faults.push(format!("{name}: a member was bound before {} existed", limits.size));
        }
        let took = complete.duration_since(first).unsigned_abs();
        if took > BINDING_TIME_MAX {
            faults
                .push(format!("{name}: the members were bound within {:.1} s", took.as_secs_f64()));
        }
        let n_used = n_used_by_others(&gangs, name, first);
        if n_used + limits.size > limits.n_room {
            faults.push(format!(
                "{name}: a member was bound when there was room for {} of {}",
                limits.n_room.saturating_sub(n_used),
                limits.size
            ));
        }
    }
    faults
}

/// How many pods of gangs that were begun earlier use room, including their members that are not bound yet.
fn n_used_by_others(gangs: &BTreeMap<&str, Gang>, name: &str, at: Timestamp) -> usize {
    let others = gangs.iter().filter(|(other, gang)| {
        **other != name && gang.bound.first().is_some_and(|first| *first <= at)
    });
    others.map(|(_, gang)| gang.bound.len().saturating_sub(gang.n_deleted(at))).sum()
}

fn gangs<'a>(entries: &'a [AuditEntry], namespace: &str) -> BTreeMap<&'a str, Gang> {
    let mut gangs: BTreeMap<&str, Gang> = BTreeMap::new();
    // Pods of which no binding succeeded, but one may have been executed.
    let (mut perhaps_bound, mut bound) = (BTreeMap::new(), BTreeSet::new());
    for entry in entries.iter().filter(|entry| entry.namespace == namespace) {
        let Some(name) = gang_of(&entry.name) else { continue };
        let gang = gangs.entry(name).or_default();
        match (entry.verb.as_str(), entry.resource.as_str()) {
            ("create", "pods/binding") if entry.is_success() => {
                gang.bound.push(entry.received);
                bound.insert(entry.name.as_str());
            }
            ("create", "pods/binding") if entry.is_outcome_unknown() => {
                perhaps_bound.insert(entry.name.as_str(), (name, entry.received));
            }
            ("create", "pods") if entry.is_success() => gang.created.push(entry.received),
            ("delete", "pods") if entry.is_success() => gang.deleted.push(entry.received),
            _ => {}
        }
    }
    perhaps_bound.retain(|pod, _| !bound.contains(pod));
    for (gang, received) in perhaps_bound.into_values() {
        gangs.entry(gang).or_default().bound.push(received);
    }
    for gang in gangs.values_mut() {
        for times in [&mut gang.created, &mut gang.bound, &mut gang.deleted] {
            times.sort_unstable();
        }
    }
    gangs
}

/// How many pods of a namespace a user has deleted.
pub fn n_deleted_by(entries: &[AuditEntry], namespace: &str, user: &str) -> usize {
    let is_deletion = |entry: &&AuditEntry| {
        (entry.verb.as_str(), entry.resource.as_str()) == ("delete", "pods")
            && (entry.namespace.as_str(), entry.user.as_str()) == (namespace, user)
            && entry.is_success()
    };
    entries.iter().filter(is_deletion).count()
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use serde_json::Value;

    use super::*;

    /// `second verb name`, with `bind` for a binding.
    fn entries(lines: &[&str]) -> Vec<AuditEntry> {
        let entries = lines.iter().map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let received =
                Timestamp::UNIX_EPOCH + SignedDuration::from_secs(words[0].parse().unwrap());
            let (verb, resource) = match words[1] {
                "bind" | "bind-504" => ("create", "pods/binding"),
                verb => (verb, "pods"),
            };
            AuditEntry {
                user: "scheduler".to_owned(),
                user_agent: String::new(),
                verb: verb.to_owned(),
                resource: resource.to_owned(),
                namespace: "x".to_owned(),
                name: words[2].to_owned(),
                uid: String::new(),
                body: Value::Null,
                code: match words[1] {
                    "bind-504" => 504,
                    "delete" => 200,
                    _ => 201,
                },
                received,
                answered: received,
            }
        });
        entries.collect()
    }

    const CREATED: [&str; 4] = ["1 create a-0", "1 create b-0", "2 create a-1", "2 create b-1"];

    #[track_caller]
    fn check(more: &[&str], want: &[&str]) {
        let lines: Vec<&str> = CREATED.iter().chain(more).copied().collect();
        let limits = GangLimits { size: 2, n_room: 3 };
        assert_eq!(gang_faults(&entries(&lines), "x", limits), want, "{more:?}");
        assert!(gang_faults(&entries(&lines), "y", limits).is_empty());
    }

    #[test]
    fn gangs_that_are_not_bound_as_a_whole_are_reported() {
        check(&[], &[]);
        check(&["3 bind a-0", "4 bind a-1"], &[]);
        check(&["3 bind a-0", "4 bind-504 a-1"], &[]);
        check(&["3 bind-504 a-0", "4 bind a-0"], &["a: 1 of 2 members were bound"]);
        check(&["3 bind a-0"], &["a: 1 of 2 members were bound"]);
        check(&["1 bind a-0", "3 bind a-1"], &["a: a member was bound before 2 existed"]);
        check(&["3 bind a-0", "9 bind a-1"], &["a: the members were bound within 6.0 s"]);
    }

    #[test]
    fn a_gang_needs_room_for_all_members_when_the_first_is_bound() {
        let first = ["3 bind a-0", "3 bind a-1"];
        let then = |more: &[&'static str]| [first.as_slice(), more].concat();
        let deleted = ["5 delete a-0", "5 delete a-1"];
        check(&then(&[deleted.as_slice(), &["6 bind b-0", "6 bind b-1"]].concat()), &[]);
        let early = "b: a member was bound when there was room for 1 of 2";
        check(&then(&[deleted.as_slice(), &["4 bind b-0", "6 bind b-1"]].concat()), &[early]);
        // One member of the other gang is enough to make room for two.
        check(&then(&["5 delete a-0", "6 bind b-0", "6 bind b-1"]), &[]);
    }

    #[test]
    fn deletions_are_counted_by_user_and_namespace() {
        let entries = entries(&["1 create a-0", "2 delete a-0", "3 delete a-1"]);
        assert_eq!(n_deleted_by(&entries, "x", "scheduler"), 2);
        assert_eq!(n_deleted_by(&entries, "y", "scheduler"), 0);
        assert_eq!(n_deleted_by(&entries, "x", "admin"), 0);
    }
}
