//! Compares the queue with its reference model over random histories.

mod reference_queue;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use loadmaster_framework::{ActionType, ClusterEvent, EventResource, PodInfo};
use proptest::prelude::*;
use serde_json::json;

use super::testkit::*;
use super::{
    ClusterEventOccurrence, EnqueueCause, OwnedEventObject, PendingCounts, PluginIdx, PluginIdxSet,
    Queue, QueueOptions, QueuedPod, SubQueue,
};
use reference_queue::{EventListEntry, PodLocation, ReferencePod, ReferenceQueue};

#[derive(Clone, Debug)]
enum Step {
    Add {
        pod: usize,
        looks: usize,
        profile_idx: usize,
    },
    Update {
        pod: usize,
        looks: usize,
        profile_idx: usize,
    },
    Delete {
        pod: usize,
    },
    Pop,
    /// The attempt of the nth popped pod fails: rejected by these plugins, or by none.
    Requeue {
        nth: usize,
        unschedulable: BTreeSet<u32>,
        pending: BTreeSet<u32>,
    },
    /// The nth popped pod is being bound; it can still be requeued.
    Done {
        nth: usize,
    },
    /// The nth popped pod is bound.
    Bound {
        nth: usize,
    },
    OnClusterEvent {
        nth: usize,
        max_priority: Option<i32>,
        except: Option<usize>,
    },
    Activate {
        pods: Vec<usize>,
    },
    Wait {
        millis: u64,
    },
    Flush,
    /// QueueSort reverses its order.
    Reverse,
    /// A PreEnqueue plugin starts or stops gating pods.
    Switch {
        plugin: u32,
    },
}

const N_PODS: usize = 6;

/// Variants of pods: labels and spec.
fn looks() -> Vec<(serde_json::Value, serde_json::Value)> {
    let plain = json!({});
    let tolerant = json!({"tolerations": [{"operator": "Exists"}]});
    let urgent = json!({"priority": 5});
    vec![
        (json!({"likes": "x"}), plain.clone()),
        (json!({"likes": "x"}), tolerant),
        (json!({"likes": "x", "wakes": "x"}), urgent.clone()),
        (json!({"likes": "y", "wakes": "x"}), plain.clone()),
        (json!({"likes": "y", "wakes": "broken"}), urgent.clone()),
        (json!({"likes": "x", "gated-by": "4", "wakes": "x"}), plain.clone()),
        (json!({"likes": "x", "gated-by": "45"}), urgent),
        (json!({"likes": "y", "gated-by": "5", "wakes": "y"}), plain),
    ]
}

fn occurrences(other: &Arc<PodInfo>) -> Vec<ClusterEventOccurrence> {
    let event = ClusterEvent::new;
    let pod = || Some(OwnedEventObject::Pod(other.clone()));
    vec![
        node_added("x"),
        node_added("y"),
        node_added("broken"),
        ClusterEventOccurrence::new(
            event(EventResource::Node, ActionType::UPDATE_NODE_TAINT),
            None,
            Some(node("x")),
        ),
        ClusterEventOccurrence::new(
            event(EventResource::Node, ActionType::DELETE),
            Some(node("x")),
            None,
        ),
        ClusterEventOccurrence::assigned_pod_added(other.clone()),
        ClusterEventOccurrence::assigned_pod_deleted(other.clone()),
        ClusterEventOccurrence::new(
            event(EventResource::AssignedPod, ActionType::UPDATE_POD_LABEL),
            pod(),
            pod(),
        ),
        ClusterEventOccurrence::new(unregistered_event(), None, None),
        ClusterEventOccurrence::new(ClusterEvent::wildcard(), None, None),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pod = 0..N_PODS;
    let look = 0..looks().len();
    let few = || prop::collection::btree_set(0u32..5, 0..3);
    let step = prop_oneof![
        4 => (pod.clone(), look.clone(), 0usize..2).prop_map(|(pod, looks, profile_idx)| Step::Add { pod, looks, profile_idx }),
        3 => (pod.clone(), look, 0usize..2).prop_map(|(pod, looks, profile_idx)| Step::Update { pod, looks, profile_idx }),
        1 => pod.clone().prop_map(|pod| Step::Delete { pod }),
        8 => Just(Step::Pop),
        6 => (0usize..3, few(), few()).prop_map(|(nth, unschedulable, pending)| {
            Step::Requeue { nth, unschedulable, pending }
        }),
        1 => (0usize..3).prop_map(|nth| Step::Done { nth }),
        1 => (0usize..3).prop_map(|nth| Step::Bound { nth }),
        5 => (0usize..10, prop::option::weighted(0.2, 0..6), prop::option::weighted(0.2, pod.clone()))
            .prop_map(|(nth, max_priority, except)| Step::OnClusterEvent { nth, max_priority, except }),
        1 => prop::collection::vec(pod, 1..4).prop_map(|pods| Step::Activate { pods }),
        4 => (0usize..5).prop_map(|nth| Step::Wait { millis: [1, 400, 1_000, 4_500, 61_000][nth] }),
        4 => Just(Step::Flush),
        1 => Just(Step::Reverse),
        1 => (4u32..6).prop_map(|plugin| Step::Switch { plugin }),
    ];
    prop::collection::vec(step, 1..120)
}

/// QueueComparison queues, and the popped pods, as each of them returned them.
struct QueueComparison {
    queue: Queue,
    reference: ReferenceQueue,
    plugins: FakePlugins,
    /// The PreEnqueue calls of the real queue.
    pre_enqueue_calls: Vec<(String, Option<u32>)>,
    popped: Vec<(QueuedPod, ReferencePod)>,
    now: u64,
    incoming: BTreeMap<(&'static str, String), u64>,
}

impl QueueComparison {
    fn new(options: &QueueOptions) -> QueueComparison {
        let reference = ReferenceQueue {
            options: options.clone(),
            pods: Vec::new(),
            events: Vec::new(),
            incoming: BTreeMap::new(),
            n_added: 0,
            last_tick: 0,
        };
        QueueComparison {
            queue: Queue::new(options.clone()),
            reference,
            plugins: FakePlugins::default(),
            pre_enqueue_calls: Vec::new(),
            popped: Vec::new(),
            now: 0,
            incoming: BTreeMap::new(),
        }
    }

    /// Saves the PreEnqueue calls of the real queue, before the reference model makes the same step.
    fn switch(&mut self) {
        self.pre_enqueue_calls = self.plugins.pre_enqueue_calls.take();
        self.pre_enqueue_calls.sort();
    }

    fn step(&mut self, step: Step) {
        let now = now_at_millis(self.now);
        let name = |pod: usize| format!("pod-{pod}");
        self.pre_enqueue_calls.clear();
        match step {
            Step::Add { pod, looks: nth, profile_idx } => {
                let (labels, spec) = looks().swap_remove(nth);
                let pod = self.plugins.pod(&name(pod), labels, spec);
                self.queue.add(now, &self.plugins, TEST_PROFILES[profile_idx], pod.clone());
                self.switch();
                self.reference.add(now, &self.plugins, TEST_PROFILES[profile_idx], pod);
            }
            Step::Update { pod, looks: nth, profile_idx } => {
                let (labels, spec) = looks().swap_remove(nth);
                let pod = self.plugins.pod(&name(pod), labels, spec);
                self.queue.update(now, &self.plugins, TEST_PROFILES[profile_idx], pod.clone());
                self.switch();
                self.reference.update(now, &self.plugins, TEST_PROFILES[profile_idx], pod);
            }
            Step::Delete { pod } => {
                let deleted = self.queue.delete(&self.plugins, &name(pod));
                assert_eq!(
                    deleted.is_some(),
                    { self.reference.pod_location(&name(pod)) }.is_some_and(|at| {
                        !matches!(at, PodLocation::InFlight | PodLocation::Done)
                    })
                );
                self.reference.delete(&name(pod));
            }
            Step::Pop => self.pop(),
            Step::Requeue { nth, unschedulable, pending } => {
                let Some((mut pod, reference)) = self.take(nth) else { return };
                let set =
                    |plugins: &BTreeSet<u32>| plugins.iter().copied().map(PluginIdx).collect();
                pod.set_rejecters(set(&unschedulable), set(&pending));
                self.queue.requeue(now, &self.plugins, pod);
                self.switch();
                self.reference.requeue(now, &self.plugins, reference, &unschedulable, &pending);
            }
            Step::Done { nth } => {
                if let Some((pod, _)) = self.popped.get(nth) {
                    self.queue.done(&pod.info.pod.uid);
                    self.reference.done(&pod.info.pod.uid);
                }
            }
            Step::Bound { nth } => {
                if let Some((pod, _)) = self.take(nth) {
                    self.queue.done(&pod.info.pod.uid);
                    self.reference.done(&pod.info.pod.uid);
                }
            }
            Step::OnClusterEvent { nth, max_priority, except } => {
                let (labels, spec) = looks().swap_remove(3);
                let other = self.plugins.pod("other", labels, spec);
                let except = except.map(|pod| name(pod).into()).into_iter().collect();
                let occurrence = ClusterEventOccurrence {
                    max_priority,
                    except,
                    ..occurrences(&other).swap_remove(nth)
                };
                self.queue.on_cluster_event(now, &self.plugins, occurrence.clone());
                self.switch();
                self.reference.on_cluster_event(now, &self.plugins, occurrence);
            }
            Step::Activate { pods } => {
                let uids: Vec<String> = pods.into_iter().map(name).collect();
                let all: Vec<&str> = uids.iter().map(String::as_str).collect();
                self.queue.activate(now, &self.plugins, &all);
                self.switch();
                uids.iter().for_each(|uid| self.reference.activate(now, &self.plugins, uid));
            }
            Step::Wait { millis } => self.now += millis,
            Step::Flush => {
                self.queue.flush(now, &self.plugins);
                self.switch();
                self.reference.flush(now, &self.plugins);
            }
            Step::Reverse => {
                self.plugins.is_sort_reversed = !self.plugins.is_sort_reversed;
                self.queue.sort(&self.plugins);
            }
            Step::Switch { plugin } => {
                if !self.plugins.ungated.remove(&plugin) {
                    self.plugins.ungated.insert(plugin);
                }
            }
        }
        let mut calls = self.plugins.pre_enqueue_calls.take();
        calls.sort();
        assert_eq!(self.pre_enqueue_calls, calls, "calls of PreEnqueue");
    }

    fn pop(&mut self) {
        let is_ready = self.queue.can_pop();
        let real = self.queue.pop(&self.plugins);
        let reference = self.reference.pop(&self.plugins);
        assert_eq!(real.as_ref().map(|pod| pod.info.pod.uid.to_string()), reference);
        assert_eq!(real.is_some(), is_ready);
        let reference = reference.and_then(|uid| self.reference.find(&uid).map(|pod| pod.clone()));
        self.popped.extend(real.zip(reference));
        // A pod that was done, added again and popped again: the older attempt is over.
        let uids: Vec<Box<str>> =
            self.popped.iter().map(|(pod, _)| pod.info.pod.uid.clone()).collect();
        let mut nth = 0;
        self.popped.retain(|(pod, _)| {
            nth += 1;
            !uids[nth..].contains(&pod.info.pod.uid)
        });
    }

    fn take(&mut self, nth: usize) -> Option<(QueuedPod, ReferencePod)> {
        (nth < self.popped.len()).then(|| self.popped.remove(nth))
    }

    fn check(&mut self) {
        let mut counts = PendingCounts::default();
        for nth in 0..N_PODS {
            let uid = format!("pod-{nth}");
            let reference =
                self.reference.pods.iter().filter(|pod| pod.uid() == uid).collect::<Vec<_>>();
            assert!(reference.len() <= 1);
            let reference = reference.first().filter(|pod| pod.at != PodLocation::Done);
            assert_eq!(
                self.queue.is_in_flight(&uid),
                reference.is_some_and(|pod| pod.at == PodLocation::InFlight)
            );
            let queued = reference.filter(|pod| pod.at != PodLocation::InFlight);
            let (Some((real, sub_queue)), Some(reference)) = (self.queue.get(&uid), queued) else {
                assert!(self.queue.get(&uid).is_none() && queued.is_none(), "{uid}");
                continue;
            };
            let (want, counted) = match (reference.at, reference.gating) {
                (PodLocation::Active, _) => (SubQueue::Active, &mut counts.active),
                (PodLocation::Backoff, _) => (SubQueue::Backoff, &mut counts.backoff),
                (_, None) => (SubQueue::Unschedulable, &mut counts.unschedulable),
                (_, Some(_)) => (SubQueue::Gated, &mut counts.gated),
            };
            *counted += 1;
            assert_eq!(sub_queue, want, "{uid}");
            self.same(real, reference);
        }
        assert_eq!(self.queue.counts(), counts);
        let mut uids: Vec<&str> = self.queue.iter().map(|(pod, _)| &*pod.info.pod.uid).collect();
        uids.sort_unstable();
        let total = counts.active + counts.backoff + counts.unschedulable + counts.gated;
        uids.dedup();
        assert_eq!(uids.len(), total, "each pod once");
        self.check_in_flight();
        for line in self.queue.take_incoming_counts() {
            *self.incoming.entry((line.queue.name(), line.cause.to_string())).or_default() +=
                line.n;
        }
        assert_eq!(self.incoming, self.reference.incoming);
        assert_eq!(self.queue.next_flush().map(|deadline| deadline.0), self.reference.next_flush());
    }

    fn same(&self, real: &QueuedPod, reference: &ReferencePod) {
        let ids =
            |plugins: &PluginIdxSet| plugins.iter().map(|plugin| plugin.0).collect::<BTreeSet<_>>();
        assert!(Arc::ptr_eq(&real.info.pod, &reference.info.pod), "the newest version");
        assert_eq!(
            (real.info.queued, real.info.attempts),
            (reference.info.queued, reference.info.attempts)
        );
        assert_eq!(real.profile_idx, reference.profile_idx);
        assert_eq!(real.queued_at.0, reference.since);
        assert_eq!(real.unschedulable_count, reference.unschedulable_count);
        assert_eq!(real.consecutive_errors, reference.consecutive_errors);
        assert_eq!(ids(&real.unschedulable_plugins), reference.unschedulable);
        assert_eq!(ids(&real.pending_plugins), reference.pending);
        assert_eq!(real.gating_plugin().map(|plugin| plugin.0), reference.gating);
        assert_eq!(real.flushed_by_timeout, reference.flushed);
        assert_eq!(real.info.initial_attempt.map(|first| first.mono.0), reference.initial_attempt);
        assert_eq!(real.backoff_until.map(|end| end.0), self.reference.backoff_end(reference));
    }

    fn check_in_flight(&self) {
        let popped = |entry: &EventListEntry| match entry {
            EventListEntry::Popped(uid) => Some(uid.clone()),
            EventListEntry::Event { .. } => None,
        };
        let label = |entry: &EventListEntry| match entry {
            EventListEntry::Popped(_) => None,
            EventListEntry::Event { label, .. } => Some(label.clone()),
        };
        let uids: Vec<String> = self.reference.events.iter().filter_map(popped).collect();
        let real: Vec<String> =
            self.queue.in_flight_pods().map(|pod| pod.uid.to_string()).collect();
        assert_eq!(real, uids);
        let labels: Vec<String> = self.reference.events.iter().filter_map(label).collect();
        let real: Vec<String> =
            self.queue.in_flight_events().map(EnqueueCause::to_string).collect();
        assert_eq!(real, labels);
    }
}

fn agree(options: &QueueOptions, steps: Vec<Step>) {
    let mut both = QueueComparison::new(options);
    for step in steps {
        both.step(step);
        both.check();
    }
    // The remaining pods are popped in the same order.
    for _ in 0..N_PODS {
        both.pop();
        both.check();
    }
}

proptest! {
    #[test]
    fn queue_agrees_with_the_reference_over_random_histories(
        steps in steps(),
        pop_from_backoff in any::<bool>(),
        max_backoff_s in prop_oneof![4 => Just(10u64), 1 => Just(0u64)],
    ) {
        let max_backoff = Duration::from_secs(max_backoff_s);
        agree(&QueueOptions { pop_from_backoff, max_backoff, ..QueueOptions::default() }, steps);
    }
}
