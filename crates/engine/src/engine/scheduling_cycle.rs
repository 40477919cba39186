//! One attempt: the scheduling cycle, from the queue to Permit (upstream's `schedulingCycle`).

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::extension_points::SerialCx;
use loadmaster_framework::{Code, CycleState, NodeRow, PermitResult, PodInfo};

use super::assumed_pod::{AssumedPod, Binding, PermitWait, Stage};
use super::attempt_failure::AttemptFailure;
use super::binding_cycle::PERMIT_WAIT_MAX;
use super::effect::{AttemptOutcome, Effect, Effects, EventRecord, Observation};
use super::extender_cycle::has_interested_extenders;
use super::nominator::Nomination;
use super::{CycleResult, Engine, PluginHandle};
use crate::evaluate::ExtenderResults;
use crate::guard::{self, ExtensionPoint};
use crate::queue::{ProfileIdx, QueuedPod};
use crate::scheduler::Decision;
use crate::time::Now;

impl Engine {
    /// Runs at most one scheduling cycle.
    pub fn cycle(&mut self, now: Now, effects: &mut Effects) -> CycleResult {
        let _entered = self.options.hash_seed.enter();
        if self.has_suspended_attempt() || self.n_binding >= self.options.bind_window {
            return CycleResult::Waiting;
        }
        self.world.set_now(now);
        self.recording_plugin_calls(effects, |engine, effects| engine.try_next(now, effects))
    }

    fn try_next(&mut self, now: Now, effects: &mut Effects) -> CycleResult {
        let handle = PluginHandle::new(&self.profiles, &self.registrations, &self.world);
        let Some(queued) = self.queue.pop(&handle) else { return CycleResult::Idle };
        if self.skip_pod(&queued, effects) {
            self.queue.done(&queued.info.pod.uid);
        } else {
            self.attempt(now, queued, effects);
        }
        self.run_plugin_actions(now, effects);
        CycleResult::Ran
    }

    /// Skips pods that are being deleted, and pods that have a node and were queued again by an update (upstream's `skipPodSchedule`).
    fn skip_pod(&self, queued: &QueuedPod, effects: &mut Effects) -> bool {
        let pod = &queued.info.pod;
        if pod.terminating {
            let note = format!("skip schedule deleting pod: {}", pod.full_name());
            effects.push(Effect::RecordEvent(EventRecord {
                is_warning: true,
                reason: "FailedScheduling",
                action: "Scheduling",
                note,
                regarding: (&**pod).into(),
                related: None,
                controller: self.scheduler_name(queued.profile_idx),
            }));
            return true;
        }
        self.assumed.contains_key(&pod.uid) || self.world.row_of_pod(&pod.uid).is_some()
    }

    fn attempt(&mut self, now: Now, queued: QueuedPod, effects: &mut Effects) {
        let began = (self.options.stopwatch)();
        let profile_scheduler = &mut self.profiles[queued.profile_idx.0 as usize];
        if has_interested_extenders(&profile_scheduler.profile.extenders, &queued.info.pod) {
            return self.attempt_with_extenders(now, queued, began, effects);
        }
        profile_scheduler.scheduler.set_next_start_node_index(self.search_start);
        let decision = profile_scheduler.scheduler.schedule_pod(&mut self.world, &queued.info.pod);
        self.search_start = profile_scheduler.scheduler.next_start_node_index();
        let code = if let Decision::Failed(_) = decision { Code::Error } else { Code::Success };
        // All plugins together: filtering and scoring is one pass over the nodes.
        guard::record_execution(
            || profile_scheduler.profile.plugin_ref(guard::ALL_PLUGINS),
            ExtensionPoint::Filter,
            code,
            began,
        );
        match decision {
            Decision::Selected { row, .. } => self.place(now, queued, row, began, effects),
            Decision::Unschedulable => {
                self.handle_fit_error(now, queued, began, &ExtenderResults::default(), effects);
            }
            Decision::Failed(text) => self.handle_attempt_error(now, queued, text, began, effects),
        }
    }

    /// A node was found.
    pub(super) fn place(
        &mut self,
        now: Now,
        queued: QueuedPod,
        row: NodeRow,
        began: u64,
        effects: &mut Effects,
    ) {
        let pod = queued.info.pod.clone();
        let profile_scheduler = &mut self.profiles[queued.profile_idx.0 as usize];
        let cycle = profile_scheduler.scheduler.take_cycle_state(&self.world, &pod, row);
        self.observe_algorithm(began, effects);
        let failed = match cycle {
            Ok(cycle) => match self.assume(now, &queued, row, cycle) {
                Ok(()) => return self.start_binding_cycle(now, &pod.uid, effects),
                Err(failed) => failed,
            },
            Err(rejected) => AttemptFailure::rejected_on_rerun(
                &self.profile_scheduler(queued.profile_idx).profile,
                &rejected,
            ),
        };
        self.handle_scheduling_failure(now, queued, failed, &Nomination::clear(), began, effects);
    }

    /// An error before a node was found.
    pub(super) fn handle_attempt_error(
        &mut self,
        now: Now,
        queued: QueuedPod,
        text: String,
        began: u64,
        effects: &mut Effects,
    ) {
        self.observe_algorithm(began, effects);
        self.handle_scheduling_failure(
            now,
            queued,
            AttemptFailure::error(text),
            &Nomination::clear(),
            began,
            effects,
        );
    }

    pub(super) fn observe_algorithm(&self, began: u64, effects: &mut Effects) {
        let nanos = (self.options.stopwatch)().saturating_sub(began);
        effects.push(Effect::Observe(Observation::Algorithm { nanos }));
    }

    /// Assumes the pod on the node, and runs Reserve and Permit. Undoes everything on failure.
    fn assume(
        &mut self,
        now: Now,
        queued: &QueuedPod,
        row: NodeRow,
        cycle: CycleState,
    ) -> Result<(), AttemptFailure> {
        let Some(node) = self.world.nodes().node(row) else {
            return Err(AttemptFailure::error("the chosen node no longer exists"));
        };
        let node = Str::new(node.name());
        let pod = &queued.info.pod;
        let assumed = Arc::new(PodInfo { node_name: node.clone(), ..(**pod).clone() });
        self.world.add_pod(row, assumed.clone());
        let nominated = self.world.nominated_node(&pod.uid).cloned();
        self.world.delete_nominated_pod(&pod.uid);
        self.n_bindings += 1;
        let mut binding = Binding {
            serial: self.n_bindings,
            queued: queued.clone(),
            node,
            cycle,
            stage: Stage::Permit { waits: Vec::new(), since: now.mono },
            pre_flights: Vec::new(),
            is_failing: false,
            in_window: false,
            is_stuck: false,
            conflict_reported: false,
            began: now.mono,
            started: now.mono,
        };
        let result = self.reserve(&mut binding, &assumed, row).and_then(|()| {
            binding.stage = Stage::Permit {
                waits: self.permit(now, &mut binding, &assumed, row)?,
                since: now.mono,
            };
            Ok(())
        });
        if let Err(failed) = result {
            self.unreserve(&mut binding, &assumed);
            self.world.remove_pod(&pod.uid);
            if let Some(node) = nominated {
                self.world.add_nominated_pod(node, pod.clone());
            }
            return Err(failed);
        }
        let record = AssumedPod {
            pod: assumed,
            profile_idx: queued.profile_idx,
            serial: binding.serial,
            binding: Some(Box::new(binding)),
            confirmed: false,
            forgotten: false,
            conflict_reported: false,
        };
        self.assumed.insert(pod.uid.clone(), record);
        self.add_binding_deadline(&pod.uid);
        self.update_waiting_pod(&pod.uid);
        Ok(())
    }

    fn reserve(
        &mut self,
        binding: &mut Binding,
        pod: &Arc<PodInfo>,
        row: NodeRow,
    ) -> Result<(), AttemptFailure> {
        let profile_scheduler = &mut self.profiles[binding.queued.profile_idx.0 as usize];
        let profile = profile_scheduler.profile.clone();
        for member in &profile.reserve {
            let Some(node) = self.world.node(row) else { continue };
            let states = profile_scheduler.scheduler.plugin_states_mut();
            let cx = SerialCx { world: &self.world, cycle: &mut binding.cycle, states };
            if let Err(rejection) = member.point.reserve(cx, pod, node) {
                return Err(AttemptFailure::rejected_by_reserve_or_permit(
                    "Reserve",
                    member.name,
                    member.plugin,
                    &rejection,
                ));
            }
        }
        Ok(())
    }

    /// Runs Unreserve of all Reserve plugins, the last one first.
    pub(super) fn unreserve(&mut self, binding: &mut Binding, pod: &Arc<PodInfo>) {
        let world = &self.world;
        self.profiles.with_states(binding.queued.profile_idx, |profile, states| {
            for member in profile.reserve.iter().rev() {
                let cx = SerialCx { world, cycle: &mut binding.cycle, states };
                member.point.unreserve(cx, pod, &binding.node);
            }
        });
    }

    /// Runs all Permit plugins. The waits of several plugins run at the same time.
    fn permit(
        &mut self,
        now: Now,
        binding: &mut Binding,
        pod: &Arc<PodInfo>,
        row: NodeRow,
    ) -> Result<Vec<PermitWait>, AttemptFailure> {
        let mut waits = Vec::new();
        let profile_scheduler = &mut self.profiles[binding.queued.profile_idx.0 as usize];
        let profile = profile_scheduler.profile.clone();
        for member in &profile.permit {
            let Some(node) = self.world.node(row) else { continue };
            let states = profile_scheduler.scheduler.plugin_states_mut();
            let cx = SerialCx { world: &self.world, cycle: &mut binding.cycle, states };
            match member.point.permit(cx, pod, node) {
                Ok(PermitResult::Allow) => {}
                Ok(PermitResult::Wait(time)) => {
                    let time = time.min(PERMIT_WAIT_MAX);
                    let plugin = member.plugin;
                    waits.push(PermitWait {
                        plugin,
                        name: member.name,
                        time,
                        until: now.mono.after(time),
                    });
                }
                Err(rejection) => {
                    return Err(AttemptFailure::rejected_by_reserve_or_permit(
                        "Permit",
                        member.name,
                        member.plugin,
                        &rejection,
                    ));
                }
            }
        }
        Ok(waits)
    }

    pub(super) fn observe_attempt(
        &self,
        queued: &QueuedPod,
        outcome: AttemptOutcome,
        nanos: u64,
        effects: &mut Effects,
    ) {
        let profile_idx = queued.profile_idx;
        effects.push(Effect::Observe(Observation::Attempt { profile_idx, outcome, nanos }));
    }

    pub(super) fn scheduler_name(&self, profile_idx: ProfileIdx) -> Str {
        Str::new(self.profile_name(profile_idx))
    }
}
