//! The members of groups that hold a reserved node, and what must hold of them after every call of the engine.

use std::collections::{BTreeMap, BTreeSet};

use loadmaster_engine::{Engine, MonoTime};
use loadmaster_scheduler_plugins::pod_group::GroupKey;

use super::{GroupSpec, MemberCounts, group_of, kind};
use crate::simulate::invariants::CheckResult;
use crate::simulate::reference_model::ReferenceModel;

/// What the reference model knows of gangs.
#[derive(Default)]
pub(in crate::simulate) struct GangModel {
    /// Members for which a node was reserved, and that are not bound yet, by uid.
    members: BTreeMap<Box<str>, ReservedMember>,
    /// Groups of which enough members had a node, before the current call of the engine or at some time in it.
    complete: BTreeSet<GroupKey>,
    /// Groups that were not complete when a waiting member was rejected in the current call.
    failed: BTreeSet<GroupKey>,
    /// Members that fitted on no node while no other one held one, and have had none since.
    fit_nowhere: BTreeSet<Box<str>>,
    /// How often a member began to wait, and how often a group was rejected while members waited.
    pub n_waits: u64,
    pub n_failed: u64,
}

/// Why PreFilter rejects members without asking whether they fit.
const NOT_TRIED: [&str; 3] = ["failed recently", "pre-filter pod", "resource gap"];

struct ReservedMember {
    group: GroupKey,
    state: MemberState,
}

#[derive(Clone, Copy, PartialEq)]
enum MemberState {
    /// A node was reserved in the current call.
    Reserved,
    /// At Permit, at most until then.
    Waiting(MonoTime),
    /// Permit is over.
    Allowed,
}

impl GangModel {
    /// Another engine starts.
    pub fn forget(&mut self) {
        self.members.clear();
        self.fit_nowhere.clear();
    }

    /// The engine is about to be called; the model has what it will receive.
    pub fn begin_call(&mut self, model: &ReferenceModel) {
        self.complete.clear();
        self.failed.clear();
        let groups = self.members.values().filter(|it| it.state != MemberState::Allowed);
        let groups: BTreeSet<GroupKey> = groups.map(|it| it.group.clone()).collect();
        self.complete.extend(groups.into_iter().filter(|group| is_complete(model, group)));
    }

    /// A node was reserved for a pod, which the model has.
    pub fn handle_reserved(&mut self, model: &ReferenceModel, uid: &str) {
        let Some(group) = model.pods.get(uid).and_then(group_of) else { return };
        if is_complete(model, &group) {
            self.complete.insert(group.clone());
        }
        self.fit_nowhere.remove(uid);
        self.members.insert(uid.into(), ReservedMember { group, state: MemberState::Reserved });
    }

    /// The node of a pod is free again.
    pub fn handle_unreserved(&mut self, uid: &str) {
        let Some(member) = self.members.remove(uid) else { return };
        let has_waited = matches!(member.state, MemberState::Waiting(_));
        if has_waited && !self.complete.contains(&member.group) {
            self.n_failed += u64::from(self.failed.insert(member.group));
        }
    }

    /// The call is over.
    pub fn end_call(
        &mut self,
        now: MonoTime,
        model: &ReferenceModel,
        engine: &Engine,
    ) -> CheckResult {
        // Others are bound, or gone, or belong to another group now.
        let is_reserved = |uid: &str, group: &GroupKey| {
            let pod = model.pods.get(uid).filter(|pod| pod.spec.node_name.is_empty());
            pod.and_then(group_of).as_ref() == Some(group)
        };
        self.members.retain(|uid, member| is_reserved(uid, &member.group));
        let waiting = engine.world().waiting_pods();
        for (uid, member) in &mut self.members {
            let group = &member.group;
            let spec = spec(model, group);
            if matches!(member.state, MemberState::Waiting(_)) && self.failed.contains(group) {
                return Err(format!(
                    "pod {uid} holds a node although the attempt of PodGroup {group} failed"
                ));
            }
            if waiting.get(uid).is_some() {
                let spec =
                    spec.ok_or_else(|| format!("pod {uid} waits, but PodGroup {group} is gone"))?;
                let counts = counts(model, group);
                if counts.placed >= spec.n_min || !counts.is_enough(spec.n_min) {
                    return Err(format!(
                        "pod {uid} waits for PodGroup {group}, of which {} members are needed and there are {counts:?}",
                        spec.n_min
                    ));
                }
                if member.state == MemberState::Reserved {
                    self.n_waits += 1;
                    member.state = MemberState::Waiting(now.after(spec.timeout));
                }
            } else if member.state != MemberState::Allowed {
                if !self.complete.contains(group) {
                    let counts = counts(model, group);
                    let problem = match spec {
                        None => "is gone".to_owned(),
                        Some(spec) => format!("needs {} members and has {counts:?}", spec.n_min),
                    };
                    return Err(format!("pod {uid} is allowed, but PodGroup {group} {problem}"));
                }
                member.state = MemberState::Allowed;
            }
        }
        Ok(())
    }

    /// A member fitted on no node in this cycle: unless few members are missing, or it waits for its victims, no other one holds a node. Others
    /// may if it fitted on none before they held theirs, and enough others are pending.
    pub fn check_unschedulable(
        &mut self,
        model: &ReferenceModel,
        engine: &Engine,
        (uid, message): (&str, &str),
    ) -> CheckResult {
        let Some(group) = model.pods.get(uid).and_then(group_of) else { return Ok(()) };
        let Some(spec) = spec(model, &group) else { return Ok(()) };
        let counts = counts(model, &group);
        let n_missing = spec.n_min.saturating_sub(counts.placed);
        let is_nominated = engine.world().nominated_node(uid).is_some();
        // As upstream, PostFilter does not run if there is no node at all: the members wait until their timeout.
        if engine.world().nodes().is_empty() {
            return Ok(());
        }
        if is_nominated || spec.tolerates_missing(n_missing) {
            return Ok(());
        }
        let is_held = |member: &ReservedMember| {
            member.group == group && matches!(member.state, MemberState::Waiting(_))
        };
        match self.members.iter().find(|(_, member)| is_held(member)) {
            None => {
                if !NOT_TRIED.iter().any(|why| message.contains(why)) {
                    self.fit_nowhere.insert(uid.into());
                }
                Ok(())
            }
            Some(_) if self.fit_nowhere.contains(uid) && counts.pending() > n_missing => Ok(()),
            Some((other, _)) => Err(format!(
                "pod {other} holds a node although {uid} of the same PodGroup {group} fits on none"
            )),
        }
    }

    /// A pod is bound only when Permit is over.
    pub fn check_bind(&self, uid: &str) -> CheckResult {
        match self.members.get(uid).map(|member| member.state) {
            Some(MemberState::Waiting(_)) => {
                Err(format!("pod {uid} is bound while it waits for its PodGroup"))
            }
            _ => Ok(()),
        }
    }

    /// No member waits for longer than the timeout of its PodGroup.
    pub fn check_timeouts(&self, now: MonoTime) -> CheckResult {
        for (uid, member) in &self.members {
            if let MemberState::Waiting(until) = member.state
                && until <= now
            {
                let (group, late) = (&member.group, now.since(until));
                return Err(format!(
                    "pod {uid} waits for PodGroup {group} {late:?} longer than its timeout"
                ));
            }
        }
        Ok(())
    }

    /// Whether a member waits at Permit.
    pub fn has_waiting_members(&self) -> bool {
        self.members.values().any(|it| matches!(it.state, MemberState::Waiting(_)))
    }
}

fn spec(model: &ReferenceModel, group: &GroupKey) -> Option<GroupSpec> {
    let name = group.to_string();
    model.plugins.objects.get(kind(group.is_old), &name).map(GroupSpec::of)
}

fn counts(model: &ReferenceModel, group: &GroupKey) -> MemberCounts {
    let has_node = |pod: &loadmaster_api::Pod| {
        !pod.spec.node_name.is_empty() || model.assumed.contains_key(&pod.metadata.uid)
    };
    MemberCounts::of(group, model.pods.values(), has_node)
}

/// Whether the PodGroup exists and enough members have a node.
fn is_complete(model: &ReferenceModel, group: &GroupKey) -> bool {
    spec(model, group).is_some_and(|spec| counts(model, group).placed >= spec.n_min)
}
