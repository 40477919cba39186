//! One attempt: the scheduling cycle, from the queue to Permit (upstream's `schedulingCycle`).

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::points::SerialCx;
use loadmaster_framework::{Code, CycleState, Permitted, PodInfo, Row};

use super::binding::{Assumed, Binding, PERMIT_WAIT_MAX, PermitWait, Stage};
use super::effect::{Effect, Effects, Observation, Outcome, Tell};
use super::extending::takes_part;
use super::failure::Failed;
use super::nominations::Nomination;
use super::{Cycled, Engine};
use crate::evaluate::Extended;
use crate::guard::{self, Site};
use crate::queue::{QueuedPod, SeatIdx};
use crate::scheduler::Decision;
use crate::time::Now;

impl Engine {
    /// Runs at most one scheduling cycle.
    pub fn cycle(&mut self, now: Now, effects: &mut Effects) -> Cycled {
        if self.is_suspended() || self.n_binding >= self.options.bind_window {
            return Cycled::Waiting;
        }
        self.listening(effects, |engine, effects| engine.try_next(now, effects))
    }

    fn try_next(&mut self, now: Now, effects: &mut Effects) -> Cycled {
        let Some(queued) = self.queue.pop() else { return Cycled::Idle };
        if self.is_skipped(&queued, effects) {
            self.queue.done(&queued.info.pod.uid);
        } else {
            self.attempt(now, queued, effects);
        }
        self.intervene(now, effects);
        Cycled::Ran
    }

    /// Pods that are being deleted, and pods that have their node and came into the queue once more by an update in between.
    fn is_skipped(&self, queued: &QueuedPod, effects: &mut Effects) -> bool {
        let pod = &queued.info.pod;
        if pod.terminating {
            let note = format!("skip schedule deleting pod: {}", pod.full_name());
            effects.push(Effect::Tell(Tell {
                is_warning: true,
                reason: "FailedScheduling",
                action: "Scheduling",
                note,
                regarding: (&**pod).into(),
                related: None,
                controller: self.scheduler_name(queued.seat),
            }));
            return true;
        }
        self.assumed.contains_key(&pod.uid) || self.world.row_of_pod(&pod.uid).is_some()
    }

    fn attempt(&mut self, now: Now, queued: QueuedPod, effects: &mut Effects) {
        let began = (self.options.ticks)();
        let seat = &mut self.seats[queued.seat.0 as usize];
        if takes_part(&seat.profile.extenders, &queued.info.pod) {
            return self.attempt_extended(now, queued, began, effects);
        }
        seat.scheduler.search_from(self.search_start);
        let decision = seat.scheduler.decide(&mut self.world, &queued.info.pod);
        self.search_start = seat.scheduler.search_start();
        let code = if let Decision::Failed(_) = decision { Code::Error } else { Code::Success };
        // All plugins together; filtering and scoring is one pass over them.
        guard::timed(|| seat.profile.who(guard::ALL), Site::Filter, code, began);
        match decision {
            Decision::Place { row, .. } => self.place(now, queued, row, began, effects),
            Decision::Unschedulable => {
                self.nothing_fits(now, queued, began, &Extended::default(), effects);
            }
            Decision::Failed(text) => self.attempt_failed(now, queued, text, began, effects),
        }
    }

    /// A node was found.
    pub(super) fn place(
        &mut self,
        now: Now,
        queued: QueuedPod,
        row: Row,
        began: u64,
        effects: &mut Effects,
    ) {
        let pod = queued.info.pod.clone();
        let seat = &mut self.seats[queued.seat.0 as usize];
        let cycle = seat.scheduler.take_cycle(&self.world, &pod, row);
        self.observe_algorithm(began, effects);
        let failed = match cycle {
            Ok(cycle) => match self.assume(now, &queued, row, cycle) {
                Ok(()) => return self.begin_binding(now, &pod.uid, effects),
                Err(failed) => failed,
            },
            Err(rejected) => Failed::again(&self.seat(queued.seat).profile, &rejected),
        };
        self.fail(now, queued, failed, &Nomination::clear(), began, effects);
    }

    /// Something went wrong before a node was found.
    pub(super) fn attempt_failed(
        &mut self,
        now: Now,
        queued: QueuedPod,
        text: String,
        began: u64,
        effects: &mut Effects,
    ) {
        self.observe_algorithm(began, effects);
        self.fail(now, queued, Failed::error(text), &Nomination::clear(), began, effects);
    }

    pub(super) fn observe_algorithm(&self, began: u64, effects: &mut Effects) {
        let nanos = (self.options.ticks)().saturating_sub(began);
        effects.push(Effect::Observe(Observation::Algorithm { nanos }));
    }

    /// Puts the pod on the node in our books, and asks Reserve and Permit. On failure nothing remains of it.
    fn assume(
        &mut self,
        now: Now,
        queued: &QueuedPod,
        row: Row,
        cycle: CycleState,
    ) -> Result<(), Failed> {
        let Some(node) = self.world.nodes().node(row) else {
            return Err(Failed::error("the chosen node is gone"));
        };
        let node = Str::new(node.name());
        let pod = &queued.info.pod;
        let assumed = Arc::new(PodInfo { node_name: node.clone(), ..(**pod).clone() });
        self.world.add_pod(row, assumed.clone());
        let promised = self.world.nomination(&pod.uid).cloned();
        self.world.forget_nomination(&pod.uid);
        self.n_bindings += 1;
        let mut binding = Binding {
            serial: self.n_bindings,
            queued: queued.clone(),
            node,
            cycle,
            stage: Stage::Permit { waits: Vec::new(), since: now.mono },
            flights: Vec::new(),
            is_failing: false,
            in_window: false,
            is_overdue: false,
            lost: false,
            began: now.mono,
            asked: now.mono,
        };
        let asked = self.reserve(&mut binding, &assumed, row).and_then(|()| {
            binding.stage = Stage::Permit {
                waits: self.permit(now, &mut binding, &assumed, row)?,
                since: now.mono,
            };
            Ok(())
        });
        if let Err(failed) = asked {
            self.unreserve(&mut binding, &assumed);
            self.world.remove_pod(&pod.uid);
            if let Some(node) = promised {
                self.world.nominate(node, pod.clone());
            }
            return Err(failed);
        }
        let record = Assumed {
            pod: assumed,
            seat: queued.seat,
            serial: binding.serial,
            binding: Some(Box::new(binding)),
            confirmed: false,
            forgotten: false,
            lost_room: false,
        };
        self.assumed.insert(pod.uid.clone(), record);
        self.show_wait(&pod.uid);
        Ok(())
    }

    fn reserve(
        &mut self,
        binding: &mut Binding,
        pod: &Arc<PodInfo>,
        row: Row,
    ) -> Result<(), Failed> {
        let seat = &mut self.seats[binding.queued.seat.0 as usize];
        let profile = seat.profile.clone();
        for member in &profile.reserve {
            let Some(node) = self.world.node(row) else { continue };
            let states = seat.scheduler.states_mut();
            let cx = SerialCx { world: &self.world, cycle: &mut binding.cycle, states };
            if let Err(rejection) = member.point.reserve(cx, pod, node) {
                return Err(Failed::at("Reserve", member.name, member.plugin, &rejection));
            }
        }
        Ok(())
    }

    /// Undoes Reserve: all plugins, the last one first.
    pub(super) fn unreserve(&mut self, binding: &mut Binding, pod: &Arc<PodInfo>) {
        let seat = &mut self.seats[binding.queued.seat.0 as usize];
        let profile = seat.profile.clone();
        for member in profile.reserve.iter().rev() {
            let states = seat.scheduler.states_mut();
            let cx = SerialCx { world: &self.world, cycle: &mut binding.cycle, states };
            member.point.unreserve(cx, pod, &binding.node);
        }
    }

    /// Asks all Permit plugins; those that want to wait are waited for together.
    fn permit(
        &mut self,
        now: Now,
        binding: &mut Binding,
        pod: &Arc<PodInfo>,
        row: Row,
    ) -> Result<Vec<PermitWait>, Failed> {
        let mut waits = Vec::new();
        let seat = &mut self.seats[binding.queued.seat.0 as usize];
        let profile = seat.profile.clone();
        for member in &profile.permit {
            let Some(node) = self.world.node(row) else { continue };
            let states = seat.scheduler.states_mut();
            let cx = SerialCx { world: &self.world, cycle: &mut binding.cycle, states };
            match member.point.permit(cx, pod, node) {
                Ok(Permitted::Allow) => {}
                Ok(Permitted::Wait(time)) => {
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
                    return Err(Failed::at("Permit", member.name, member.plugin, &rejection));
                }
            }
        }
        Ok(waits)
    }

    pub(super) fn observe_attempt(
        &self,
        queued: &QueuedPod,
        outcome: Outcome,
        nanos: u64,
        effects: &mut Effects,
    ) {
        let seat = queued.seat;
        effects.push(Effect::Observe(Observation::Attempt { seat, outcome, nanos }));
    }

    pub(super) fn scheduler_name(&self, seat: SeatIdx) -> Str {
        Str::new(&self.seat(seat).profile.scheduler_name)
    }
}
