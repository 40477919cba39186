//! Pods that time alone requeues: those whose backoff is completed, and those that stay too long in unschedulablePods.

use loadmaster_framework::Rejection;

use super::*;

impl Queue {
    /// Moves pods whose backoff is completed, and pods that stay too long in unschedulablePods (upstream's `flushBackoffQCompleted` and
    /// `flushUnschedulablePodsLeftover`). To be called at [`Queue::next_flush`]; calls at other times are harmless.
    pub fn flush(&mut self, now: Now, plugins: &dyn QueuePlugins) {
        let tick = now.mono.floor(WINDOW);
        let mut over = Vec::new();
        while let Some(slot) = self.first_backoff_completed(tick) {
            self.detach(slot, plugins);
            over.push(slot);
        }
        let cause = &EnqueueCause::BackoffComplete;
        for slot in over {
            self.move_to_active(slot, MoveContext { now, plugins, cause, origin: Origin::Backoff });
        }
        let tick = now.mono.floor(TIMEOUT_TICK);
        if tick > self.timeout_tick {
            self.timeout_tick = tick;
            self.flush_unschedulable(now, plugins, tick);
        }
    }

    /// When [`Queue::flush`] has something to do next.
    pub fn next_flush(&self) -> Option<MonoTime> {
        let heads = [&self.backoff, &self.error_backoff].map(Heap::peek);
        let ends = heads.into_iter().flatten().filter_map(|slot| self.pods[slot].pod.backoff_until);
        let over = ends.map(|end| end.floor(WINDOW).after(WINDOW)).min();
        let too_long = self.unschedulable.oldest().map(|since| {
            let tick = since.after(self.options.max_in_unschedulable).floor(TIMEOUT_TICK);
            tick.max(self.timeout_tick).after(TIMEOUT_TICK)
        });
        over.into_iter().chain(too_long).min()
    }

    /// Requeues pods that have been in unschedulablePods for too long at this tick. Gated pods are only marked, unless their gating plugin
    /// registered all events or failed.
    fn flush_unschedulable(&mut self, now: Now, plugins: &dyn QueuePlugins, tick: MonoTime) {
        let timed_out =
            self.unschedulable.older_than(tick.before(self.options.max_in_unschedulable));
        if timed_out.is_empty() {
            return;
        }
        let (cause, event) = (EnqueueCause::UnschedulableTimeout, ClusterEvent::wildcard());
        for (_, slot) in timed_out {
            let pod = &mut self.pods[slot].pod;
            pod.flushed_by_timeout = true;
            // A plugin that failed must not gate a pod for ever: its registered events may never occur.
            let has_failed = |rejection: &PreEnqueueRejection| {
                matches!(rejection.rejection, Rejection::Failed(_))
            };
            if may_ungate(plugins, &RejecterGroup::of_pod(pod), &event)
                || pod.gating.as_ref().is_some_and(has_failed)
            {
                self.detach(slot, plugins);
                let step = MoveContext { now, plugins, cause: &cause, origin: Origin::Anywhere };
                self.requeue_with_strategy(slot, QueueingStrategy::AfterBackoff, step);
            }
        }
        self.in_flight.record(InFlightEvent { cause, event, old: None, new: None });
    }

    /// The first pod whose backoff is completed at this tick.
    fn first_backoff_completed(&self, tick: MonoTime) -> Option<Slot> {
        let heads = [&self.backoff, &self.error_backoff].map(Heap::peek);
        let over = |slot: &Slot| self.pods[*slot].pod.backoff_until.is_none_or(|end| end < tick);
        heads.into_iter().flatten().find(over)
    }
}
