//! Plugins that do not come to an end. PreBind, Bind and PostFilter may wait for what happens outside, and nothing takes a pod from
//! them, as in kube-scheduler: only the plugin knows what would be left half done. But they are named after a while, and it
//! costs nobody else anything: a pod whose PreBind is overdue has no place in the bind window.
//!
//! What Permit holds has a deadline of its own, and so has an extender.

use std::time::Duration;

use loadmaster_framework::PodInfo;

use super::Engine;
use super::binding::{Binding, Stage};
use super::effect::{Effect, Effects, Observation, Tell};
use super::failure::Failed;
use crate::guard::{Site, Who};
use crate::queue::SeatIdx;
use crate::time::{Mono, Now};

/// After so long without an end a plugin is named.
pub(super) const OVERDUE: Duration = Duration::from_secs(60);

/// A plugin that has been at work for one pod for [a minute](OVERDUE).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overdue {
    pub who: Who,
    pub site: Site,
    /// `namespace/name`.
    pub pod: String,
    /// The node that the pod keeps; empty if it has none.
    pub node: loadmaster_api::Str,
}

impl Binding {
    /// When somebody is to be named, unless they were.
    pub fn overdue_at(&self) -> Option<Mono> {
        let works = match &self.stage {
            Stage::Permit { .. } | Stage::Bind { member: None } => false,
            Stage::PreBind { running, .. } => !running.is_empty(),
            Stage::Bind { member: Some(_) } => true,
        };
        (works && !self.is_overdue).then(|| self.asked.after(OVERDUE))
    }

    /// The members that are at work.
    pub fn at_work(&self) -> (Site, Vec<usize>) {
        match &self.stage {
            Stage::Permit { .. } => (Site::Permit, Vec::new()),
            Stage::PreBind { running, .. } => (Site::PreBind, running.clone()),
            Stage::Bind { member } => (Site::Bind, member.iter().copied().collect()),
        }
    }
}

impl Engine {
    pub(super) fn post_filter_overdue_at(&self) -> Option<Mono> {
        #[expect(clippy::disallowed_methods, reason = "the least is the same in any order")]
        let asked = self.post_filtering.values().filter(|asked| !asked.is_overdue);
        asked.map(|asked| asked.asked.after(OVERDUE)).min()
    }

    /// Names those who have become overdue.
    pub(super) fn name_overdue(&mut self, now: Now, effects: &mut Effects) {
        #[expect(clippy::disallowed_methods, reason = "sorted below")]
        let binding = self.assumed.iter().filter_map(|(uid, assumed)| {
            let at = assumed.binding.as_ref()?.overdue_at()?;
            (at <= now.mono).then(|| uid.clone())
        });
        let mut binding: Vec<Box<str>> = binding.collect();
        binding.sort_unstable();
        for uid in binding {
            self.binding_overdue(now, &uid, effects);
        }
        #[expect(clippy::disallowed_methods, reason = "sorted below")]
        let asked = self
            .post_filtering
            .iter()
            .filter(|(_, asked)| !asked.is_overdue && asked.asked.after(OVERDUE) <= now.mono);
        let mut asked: Vec<Box<str>> = asked.map(|(uid, _)| uid.clone()).collect();
        asked.sort_unstable();
        for uid in asked {
            let Some(asked) = self.post_filtering.get_mut(&uid) else { continue };
            asked.is_overdue = true;
            let (pod, seat, member) =
                (asked.queued.info.pod.clone(), asked.queued.seat, asked.member);
            let profile = &self.seat(seat).profile;
            let names = profile.post_filter.get(member).map(|member| member.name);
            let names: Vec<_> = names.into_iter().collect();
            self.tell_overdue(seat, &pod, Site::PostFilter, &names, effects);
        }
    }

    fn binding_overdue(&mut self, now: Now, uid: &str, effects: &mut Effects) {
        let is_gone = self.assigned_pod(uid).is_none();
        let Some(assumed) = self.assumed.get_mut(uid) else { return };
        let Some(binding) = &mut assumed.binding else { return };
        binding.is_overdue = true;
        let (site, members) = binding.at_work();
        // Calls of Bind load the API server all the while.
        if site == Site::PreBind && std::mem::take(&mut binding.in_window) {
            self.n_binding -= 1;
        }
        let (pod, seat) = (assumed.pod.clone(), assumed.seat);
        let profile = &self.seat(seat).profile;
        let name = |at: usize| match site {
            Site::PreBind => profile.pre_bind.get(at).map(|member| member.name),
            _ => profile.bind.get(at).map(|member| member.name),
        };
        let names: Vec<&'static str> = members.into_iter().filter_map(name).collect();
        self.tell_overdue(seat, &pod, site, &names, effects);
        if is_gone {
            self.give_up_overdue(now, uid, effects);
        }
    }

    /// Nobody waits for a plugin that is overdue with a pod that is gone.
    pub(super) fn give_up_overdue(&mut self, now: Now, uid: &str, effects: &mut Effects) {
        let Some(binding) = self.binding_mut(uid) else { return };
        if binding.is_overdue && matches!(binding.stage, Stage::PreBind { .. }) {
            self.cancel_pre_bind(uid);
            let gone = Failed::error("the pod was deleted while it was being bound");
            self.binding_failed(now, uid, gone, effects);
        }
    }

    fn tell_overdue(
        &self,
        seat: SeatIdx,
        pod: &PodInfo,
        site: Site,
        names: &[&'static str],
        effects: &mut Effects,
    ) {
        let profile = &self.seat(seat).profile;
        let node = &pod.node_name;
        for name in names {
            effects.push(Effect::Observe(Observation::Overdue(Box::new(Overdue {
                who: profile.who(name),
                site,
                pod: pod.full_name(),
                node: node.clone(),
            }))));
        }
        let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        let meanwhile = match site {
            Site::PostFilter => "the pod is not tried again until it has".to_owned(),
            _ => format!("the pod keeps node {node:?} until it has, and is not bound before"),
        };
        effects.push(Effect::Tell(Tell {
            is_warning: true,
            reason: "PluginOverdue",
            action: "Scheduling",
            note: format!(
                "plugin {} has not finished {} for {} s: {meanwhile}",
                quoted.join(", "),
                site.name(),
                OVERDUE.as_secs(),
            ),
            regarding: pod.into(),
            related: None,
            controller: self.scheduler_name(seat),
        }));
    }
}
