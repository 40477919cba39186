//! Another configuration: other profiles, another order, other backoffs.

use super::*;

impl Queue {
    /// Moves all queued pods to other profiles (each must have one; one without is dropped), restores the order, and tries again what was rejected or gated. Pods
    /// in backoff after an error stay there.
    pub fn reconfigure(
        &mut self,
        now: Now,
        plugins: &dyn QueuePlugins,
        (initial_backoff, max_backoff): (Duration, Duration),
        profile_of: &dyn Fn(&PodInfo) -> Option<ProfileIdx>,
    ) {
        self.options.initial_backoff = initial_backoff;
        self.options.max_backoff = max_backoff;
        self.active = Heap::default();
        self.backoff = Heap::default();
        self.error_backoff = Heap::default();
        self.unschedulable = UnschedulablePods::default();
        #[expect(clippy::disallowed_methods, reason = "sorted below")]
        let mut slots: Vec<Slot> = self.slots.values().copied().collect();
        slots.sort_unstable_by_key(|slot| self.pods[*slot].pod.nth);
        let cause = &EnqueueCause::ConfigurationChange;
        let step = MoveContext { now, plugins, cause, origin: Origin::UnschedulablePods };
        for slot in slots {
            let entry = &mut self.pods[slot];
            let Some(profile_idx) = profile_of(&entry.pod.info.pod) else {
                let pod = self.pods.remove(slot);
                self.slots.remove(&*pod.info.pod.uid);
                continue;
            };
            let has_failed = entry.sub_queue == SubQueue::Backoff && !entry.pod.has_rejecters();
            entry.pod.profile_idx = profile_idx;
            entry.pod.set_rejecters(PluginIdxSet::default(), PluginIdxSet::default());
            if has_failed {
                self.move_to_backoff(slot, step);
            } else {
                self.move_to_active(slot, step);
            }
        }
    }

    /// Requeues a pod after an attempt under an earlier configuration in which it was rejected: it is tried again at once.
    pub fn retry(&mut self, now: Now, plugins: &dyn QueuePlugins, mut pod: QueuedPod) {
        if let Some(newest) = self.in_flight.pod(&pod.info.pod.uid) {
            pod.info.pod = newest.clone();
        }
        let uid = pod.info.pod.uid.clone();
        if self.slots.contains_key(&uid) {
            return self.done(&uid);
        }
        pod.info.queued = now.wall;
        pod.queued_at = now.mono;
        pod.flushed_by_timeout = false;
        let uid = self.in_flight.remove(&uid).unwrap_or(uid);
        // The sub-queue is set by the move.
        let slot = self.pods.insert(pod);
        self.slots.insert(uid, slot);
        let cause = &EnqueueCause::ConfigurationChange;
        let step = MoveContext { now, plugins, cause, origin: Origin::Anywhere };
        self.move_to_active(slot, step);
    }
}
