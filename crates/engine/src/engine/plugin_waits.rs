//! The plugins that wait for objects or deadlines. Many pods may wait for volumes at the same time, so the waits are indexed by both.

use std::collections::{BTreeMap, BTreeSet};

use loadmaster_framework::api_calls::ObjectRef;
use loadmaster_stdx::Map;
use smallvec::SmallVec;

use super::call_owner::CallOwner;
use crate::time::MonoTime;

/// A plugin waits for one of these objects to change, or for a deadline.
pub(super) struct PluginWait {
    pub owner: CallOwner,
    pub on: Vec<ObjectRef>,
    pub until: MonoTime,
}

/// All waits, in the order in which they began.
#[derive(Default)]
pub(super) struct PluginWaits {
    waits: BTreeMap<u64, PluginWait>,
    by_object: Map<ObjectRef, SmallVec<[u64; 1]>>,
    by_deadline: BTreeSet<(MonoTime, u64)>,
    last_id: u64,
}

impl PluginWaits {
    pub fn push(&mut self, wait: PluginWait) {
        self.last_id += 1;
        let id = self.last_id;
        for object in &wait.on {
            self.by_object.entry(object.clone()).or_default().push(id);
        }
        self.by_deadline.insert((wait.until, id));
        self.waits.insert(id, wait);
    }

    /// The first deadline of those that `is_relevant` accepts.
    pub fn first_deadline(&self, is_relevant: impl Fn(&CallOwner) -> bool) -> Option<MonoTime> {
        let mut all = self.by_deadline.iter();
        let is_relevant = |id: &u64| self.waits.get(id).is_some_and(|it| is_relevant(&it.owner));
        all.find(|(_, id)| is_relevant(id)).map(|(until, _)| *until)
    }

    /// Removes the waits whose deadline has passed and that `is_relevant` accepts.
    pub fn take_due(
        &mut self,
        now: MonoTime,
        is_relevant: impl Fn(&CallOwner) -> bool,
    ) -> Vec<PluginWait> {
        let due = self.by_deadline.range(..=(now, u64::MAX)).map(|(_, id)| *id);
        let mut due: Vec<u64> =
            due.filter(|id| self.waits.get(id).is_some_and(|it| is_relevant(&it.owner))).collect();
        due.sort_unstable();
        self.remove_all(due)
    }

    /// Removes the waits for an object.
    pub fn take_for_object(&mut self, object: &ObjectRef) -> Vec<PluginWait> {
        let ids = self.by_object.get(object).cloned().unwrap_or_default();
        self.remove_all(ids)
    }

    /// Removes the waits of some owners.
    pub fn forget(&mut self, is_theirs: impl Fn(&CallOwner) -> bool) {
        let theirs = self.waits.iter().filter(|(_, wait)| is_theirs(&wait.owner));
        let theirs: Vec<u64> = theirs.map(|(id, _)| *id).collect();
        self.remove_all(theirs);
    }

    fn remove_all(&mut self, ids: impl IntoIterator<Item = u64>) -> Vec<PluginWait> {
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    fn remove(&mut self, id: u64) -> Option<PluginWait> {
        let wait = self.waits.remove(&id)?;
        self.by_deadline.remove(&(wait.until, id));
        for object in &wait.on {
            if let Some(ids) = self.by_object.get_mut(object) {
                ids.retain(|known| *known != id);
                if ids.is_empty() {
                    self.by_object.remove(object);
                }
            }
        }
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> ObjectRef {
        let (group, resource, namespace) = ("".into(), "claims".into(), "".into());
        ObjectRef { group, resource, namespace, name: name.into() }
    }

    fn wait(uid: &str, on: &[&str], until: u64) -> PluginWait {
        let owner = CallOwner::Status { uid: uid.into() };
        PluginWait {
            owner,
            on: on.iter().map(|name| object(name)).collect(),
            until: MonoTime(until),
        }
    }

    fn uids(waits: Vec<PluginWait>) -> String {
        let uid = |wait: PluginWait| match wait.owner {
            CallOwner::Status { uid } => uid.to_string(),
            other => format!("{other:?}"),
        };
        waits.into_iter().map(uid).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn waits_end_by_object_or_deadline_in_the_order_in_which_they_began() {
        let mut waits = PluginWaits::default();
        waits.push(wait("a", &["x", "y", "x"], 9));
        waits.push(wait("b", &["y"], 5));
        waits.push(wait("c", &[], 5));
        waits.push(wait("d", &["x"], 7));
        assert_eq!(waits.first_deadline(|_| true), Some(MonoTime(5)));
        let not_of = |uid: &'static str| {
            move |owner: &CallOwner| *owner != CallOwner::Status { uid: uid.into() }
        };
        assert_eq!(uids(waits.take_for_object(&object("x"))), "a d");
        assert_eq!(uids(waits.take_for_object(&object("x"))), "");
        assert_eq!(uids(waits.take_due(MonoTime(4), |_| true)), "");
        assert_eq!(uids(waits.take_due(MonoTime(5), not_of("b"))), "c");
        waits.push(wait("e", &["y"], 3));
        assert_eq!(waits.first_deadline(not_of("e")), Some(MonoTime(5)));
        assert_eq!(uids(waits.take_for_object(&object("y"))), "b e");
        waits.push(wait("f", &["z"], 3));
        waits.push(wait("g", &["z"], 3));
        waits.forget(|owner| *owner == CallOwner::Status { uid: "f".into() });
        assert_eq!(uids(waits.take_due(MonoTime(3), |_| true)), "g");
        assert!(
            waits.waits.is_empty() && waits.by_object.is_empty() && waits.by_deadline.is_empty()
        );
    }
}
