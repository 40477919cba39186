//! What plugins request for other pods. The requests are executed at the end of the engine call in which they were made.

use std::collections::BTreeMap;

use loadmaster_framework::waiting_pods::PluginAction;

use super::effect::{Effect, Effects, EventRecord};
use super::event::PermitDecision;
use super::{Engine, PluginHandle};
use crate::queue::{ProfileIdx, SubQueue};
use crate::time::{MonoTime, Now};

/// Pods about which plugins requested something at a time.
#[derive(Default)]
pub(super) struct TimedPods(BTreeMap<MonoTime, Vec<Box<str>>>);

impl TimedPods {
    fn add(&mut self, at: MonoTime, uids: Vec<Box<str>>) {
        self.0.entry(at).or_default().extend(uids);
    }

    /// When the next ones are due.
    pub fn next_due(&self) -> Option<MonoTime> {
        self.0.first_key_value().map(|(at, _)| *at)
    }

    fn take_due(&mut self, now: MonoTime) -> Vec<Box<str>> {
        let mut due = Vec::new();
        while let Some(entry) = self.0.first_entry().filter(|entry| *entry.key() <= now) {
            due.extend(entry.remove());
        }
        due
    }
}

impl Engine {
    /// Executes the requests, and those that result from them. This terminates: a decision that has an effect removes a pod from those that
    /// wait on Permit, and no other request calls a plugin that can make requests.
    pub(super) fn run_plugin_actions(&mut self, now: Now, effects: &mut Effects) {
        loop {
            let mut is_done = true;
            for at in self.profiles.indices() {
                for wanted in
                    self.profiles[at].scheduler.plugin_states_mut().take_requested_actions()
                {
                    is_done = false;
                    self.run_plugin_action(now, ProfileIdx(at as u32), wanted, effects);
                }
            }
            if is_done {
                return;
            }
        }
    }

    fn run_plugin_action(
        &mut self,
        now: Now,
        profile_idx: ProfileIdx,
        wanted: PluginAction,
        effects: &mut Effects,
    ) {
        match wanted {
            PluginAction::Allow { uid, plugin } => {
                self.handle_permit_decision(
                    now,
                    &uid,
                    Some(plugin),
                    &PermitDecision::Allow,
                    effects,
                );
            }
            PluginAction::Reject { uid, plugin, message, except } => {
                let message = message.into_owned();
                self.reject_waiting_pod(now, &uid, Some(plugin), message, except, effects);
            }
            PluginAction::Activate(uids) => self.activate(now, &uids),
            PluginAction::ActivateAt(at, uids) => self.timed_activations.add(at, uids),
            PluginAction::CheckGatesAt(at, uids) => self.timed_gate_checks.add(at, uids),
            PluginAction::InvalidateNode(name) => {
                if let Some(row) = self.world.nodes().row(&name) {
                    self.world.invalidate_node(row);
                }
            }
            PluginAction::InvalidateKeys(namespace) => self.world.invalidate_keys(&namespace),
            PluginAction::InvalidateEvaluators { plugin } => {
                let profile_idx =
                    ProfileIdx(self.profiles.holder_of(profile_idx.0 as usize, plugin) as u32);
                let profile = self.profiles[profile_idx.0 as usize].profile.clone();
                let index = profile.plugins.iter().position(|known| known.name == plugin);
                if let Some(index) = index {
                    self.forget_plugin(profile_idx, index);
                }
            }
            PluginAction::SortQueue => self.sort_queue(),
            PluginAction::RecordEvent(event) => effects.push(Effect::RecordEvent(EventRecord {
                is_warning: event.is_warning,
                reason: event.reason,
                action: event.action,
                note: event.note,
                regarding: (&*event.pod).into(),
                related: None,
                controller: self.scheduler_name(profile_idx),
            })),
        }
    }

    /// Activates the pods that are due.
    pub(super) fn run_timed_activations(&mut self, now: Now) {
        let mut due = self.timed_activations.take_due(now.mono);
        let mut gated = self.timed_gate_checks.take_due(now.mono);
        gated.retain(|uid| self.queue.get(uid).is_some_and(|(_, at)| at == SubQueue::Gated));
        due.append(&mut gated);
        if !due.is_empty() {
            self.activate(now, &due);
        }
    }

    /// Drops what a plugin prepared, and what was decided with it.
    pub(super) fn forget_plugin(&mut self, profile_idx: ProfileIdx, plugin: usize) {
        self.forget_diagnoses();
        let scheduler = &mut self.profiles[profile_idx.0 as usize].scheduler;
        scheduler.forget_plugin(plugin, &mut self.world);
    }

    /// Sorts the queue again after the order of QueueSort has changed.
    pub(super) fn sort_queue(&mut self) {
        let handle = PluginHandle::new(&self.profiles, &self.registrations, &self.world);
        self.queue.sort(&handle);
    }

    pub(super) fn activate(&mut self, now: Now, uids: &[Box<str>]) {
        let handle = PluginHandle::new(&self.profiles, &self.registrations, &self.world);
        let uids: Vec<&str> = uids.iter().map(|uid| &**uid).collect();
        self.queue.activate(now, &handle, &uids);
    }
}
