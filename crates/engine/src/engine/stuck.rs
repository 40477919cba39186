//! Stuck plugins: PreBind, Bind and PostFilter may wait for API calls and objects without a timeout, as in kube-scheduler, because only the
//! plugin knows what would be left half done. They are reported after a while, and they block no other pod: a pod with a stuck PreBind
//! plugin does not count against the bind window.
//!
//! Permit and extenders have timeouts of their own.

use std::time::Duration;

use loadmaster_framework::PodInfo;

use super::Engine;
use super::assumed_pod::{Binding, Stage};
use super::attempt_failure::AttemptFailure;
use super::effect::{Effect, Effects, EventRecord, Observation};
use crate::guard::ExtensionPoint;
use crate::queue::ProfileIdx;
use crate::time::{MonoTime, Now};

pub use super::observation::StuckPlugin;

/// A plugin that has been running for this long is stuck.
pub(super) const STUCK_AFTER: Duration = Duration::from_secs(60);

impl Binding {
    /// When a Permit wait times out, or the running plugins will be reported as stuck.
    pub fn deadline(&self) -> Option<MonoTime> {
        match &self.stage {
            _ if self.is_failing => None,
            Stage::Permit { waits, .. } => waits.iter().map(|wait| wait.until).min(),
            _ => self.stuck_deadline(),
        }
    }

    /// When the running plugins will be reported as stuck; `None` if they have been.
    fn stuck_deadline(&self) -> Option<MonoTime> {
        let works = match &self.stage {
            Stage::Permit { .. } | Stage::Bind { member: None } => false,
            Stage::PreBind { running, .. } => !running.is_empty(),
            Stage::Bind { member: Some(_) } => true,
        };
        (works && !self.is_stuck).then(|| self.started.after(STUCK_AFTER))
    }

    /// The running plugins, as indices into the plugins of the extension point.
    pub fn running_plugins(&self) -> (ExtensionPoint, Vec<usize>) {
        match &self.stage {
            Stage::Permit { .. } => (ExtensionPoint::Permit, Vec::new()),
            Stage::PreBind { running, .. } => (ExtensionPoint::PreBind, running.clone()),
            Stage::Bind { member } => (ExtensionPoint::Bind, member.iter().copied().collect()),
        }
    }
}

impl Engine {
    pub(super) fn post_filter_stuck_at(&self) -> Option<MonoTime> {
        #[expect(clippy::disallowed_methods, reason = "the least is the same in any order")]
        let run = self.post_filter_runs.values().filter(|run| !run.is_stuck);
        run.map(|run| run.started.after(STUCK_AFTER)).min()
    }

    /// Reports PreBind and Bind plugins that have become stuck.
    pub(super) fn report_stuck_bindings(&mut self, now: Now, effects: &mut Effects) {
        #[expect(clippy::disallowed_methods, reason = "sorted below")]
        let binding = self.assumed.iter().filter_map(|(uid, assumed)| {
            let at = assumed.binding.as_ref()?.stuck_deadline()?;
            (at <= now.mono).then(|| uid.clone())
        });
        let mut binding: Vec<Box<str>> = binding.collect();
        binding.sort_unstable();
        for uid in binding {
            self.report_stuck_binding(now, &uid, effects);
        }
    }

    /// Reports PostFilter plugins that have become stuck.
    pub(super) fn report_stuck_post_filters(&mut self, now: Now, effects: &mut Effects) {
        #[expect(clippy::disallowed_methods, reason = "sorted below")]
        let run = self
            .post_filter_runs
            .iter()
            .filter(|(_, run)| !run.is_stuck && run.started.after(STUCK_AFTER) <= now.mono);
        let mut run: Vec<Box<str>> = run.map(|(uid, _)| uid.clone()).collect();
        run.sort_unstable();
        for uid in run {
            let Some(run) = self.post_filter_runs.get_mut(&uid) else { continue };
            run.is_stuck = true;
            let (pod, profile_idx, member) =
                (run.queued.info.pod.clone(), run.queued.profile_idx, run.member);
            let profile = &self.profile_scheduler(profile_idx).profile;
            let names = profile.post_filter.get(member).map(|member| member.name);
            let names: Vec<_> = names.into_iter().collect();
            self.report_stuck(profile_idx, &pod, ExtensionPoint::PostFilter, &names, effects);
        }
    }

    fn report_stuck_binding(&mut self, now: Now, uid: &str, effects: &mut Effects) {
        let is_deleted = self.assigned_pod(uid).is_none();
        let Some(assumed) = self.assumed.get_mut(uid) else { return };
        let Some(binding) = &mut assumed.binding else { return };
        binding.is_stuck = true;
        let (extension_point, members) = binding.running_plugins();
        // Pods in Bind still count: their calls load the API server.
        if extension_point == ExtensionPoint::PreBind && std::mem::take(&mut binding.in_window) {
            self.n_binding -= 1;
        }
        let (pod, profile_idx) = (assumed.pod.clone(), assumed.profile_idx);
        let profile = &self.profile_scheduler(profile_idx).profile;
        let name = |at: usize| match extension_point {
            ExtensionPoint::PreBind => profile.pre_bind.get(at).map(|member| member.name),
            _ => profile.bind.get(at).map(|member| member.name),
        };
        let names: Vec<&'static str> = members.into_iter().filter_map(name).collect();
        self.report_stuck(profile_idx, &pod, extension_point, &names, effects);
        if is_deleted {
            self.cancel_stuck_binding(now, uid, effects);
        }
    }

    /// Cancels the binding cycle of a deleted pod whose PreBind plugin is stuck.
    pub(super) fn cancel_stuck_binding(&mut self, now: Now, uid: &str, effects: &mut Effects) {
        let Some(binding) = self.binding_mut(uid) else { return };
        if binding.is_stuck && matches!(binding.stage, Stage::PreBind { .. }) {
            self.cancel_pre_bind(uid);
            let failure = AttemptFailure::error("the pod was deleted while it was being bound");
            self.handle_binding_error(now, uid, failure, effects);
        }
    }

    fn report_stuck(
        &self,
        profile_idx: ProfileIdx,
        pod: &PodInfo,
        extension_point: ExtensionPoint,
        names: &[&'static str],
        effects: &mut Effects,
    ) {
        let profile = &self.profile_scheduler(profile_idx).profile;
        let node = &pod.node_name;
        for name in names {
            effects.push(Effect::Observe(Observation::PluginStuck(Box::new(StuckPlugin {
                plugin: profile.plugin_ref(name),
                extension_point,
                pod: pod.full_name(),
                node: node.clone(),
            }))));
        }
        let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        let consequence = match extension_point {
            ExtensionPoint::PostFilter => "the pod is not retried until it finishes".to_owned(),
            _ => {
                format!("the pod stays assumed on node {node:?} and is not bound until it finishes")
            }
        };
        effects.push(Effect::RecordEvent(EventRecord {
            is_warning: true,
            reason: "PluginStuck",
            action: "Scheduling",
            note: format!(
                "plugin {} has been running {} for {} s: {consequence}",
                quoted.join(", "),
                extension_point.name(),
                STUCK_AFTER.as_secs(),
            ),
            regarding: pod.into(),
            related: None,
            controller: self.scheduler_name(profile_idx),
        }));
    }
}
