//! The queue against its naive twin over random histories.

mod naive;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use loadmaster_framework::{Action, ClusterEvent, EventResource, PodInfo};
use proptest::prelude::*;
use serde_json::json;

use super::testkit::*;
use super::{
    Cause, Counts, Happened, Object, Options, Place, PluginIdx, PluginSet, Queue, QueuedPod,
};
use naive::{At, Entry, Twin, TwinPod};

#[derive(Clone, Debug)]
enum Step {
    Add {
        pod: usize,
        looks: usize,
        seat: usize,
    },
    Update {
        pod: usize,
        looks: usize,
        seat: usize,
    },
    Delete {
        pod: usize,
    },
    Pop,
    /// An attempt ends: the nth pod that was popped was rejected by these plugins, or by none.
    Requeue {
        nth: usize,
        unschedulable: BTreeSet<u32>,
        pending: BTreeSet<u32>,
    },
    /// The nth pod that was popped is going to be bound; it can still be requeued.
    Done {
        nth: usize,
    },
    /// Nothing is heard of it any more.
    Bound {
        nth: usize,
    },
    Happened {
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
    /// A plugin begins or ceases to hold pods.
    Switch {
        plugin: u32,
    },
}

const N_PODS: usize = 6;

/// What pods look like: labels and spec.
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
        (json!({"likes": "x", "held": "4", "wakes": "x"}), plain.clone()),
        (json!({"likes": "x", "held": "45"}), urgent),
        (json!({"likes": "y", "held": "5", "wakes": "y"}), plain),
    ]
}

fn news(other: &Arc<PodInfo>) -> Vec<Happened> {
    let event = ClusterEvent::new;
    let pod = || Some(Object::Pod(other.clone()));
    vec![
        node_added("x"),
        node_added("y"),
        node_added("broken"),
        Happened::new(event(EventResource::Node, Action::UPDATE_NODE_TAINT), None, Some(node("x"))),
        Happened::new(event(EventResource::Node, Action::DELETE), Some(node("x")), None),
        Happened::assigned_pod_added(other.clone()),
        Happened::assigned_pod_deleted(other.clone()),
        Happened::new(event(EventResource::AssignedPod, Action::UPDATE_POD_LABEL), pod(), pod()),
        Happened::new(boring(), None, None),
        Happened::new(ClusterEvent::wildcard(), None, None),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pod = 0..N_PODS;
    let look = 0..looks().len();
    let few = || prop::collection::btree_set(0u32..4, 0..3);
    let step = prop_oneof![
        4 => (pod.clone(), look.clone(), 0usize..2).prop_map(|(pod, looks, seat)| Step::Add { pod, looks, seat }),
        3 => (pod.clone(), look, 0usize..2).prop_map(|(pod, looks, seat)| Step::Update { pod, looks, seat }),
        1 => pod.clone().prop_map(|pod| Step::Delete { pod }),
        8 => Just(Step::Pop),
        6 => (0usize..3, few(), few()).prop_map(|(nth, unschedulable, pending)| {
            Step::Requeue { nth, unschedulable, pending }
        }),
        1 => (0usize..3).prop_map(|nth| Step::Done { nth }),
        1 => (0usize..3).prop_map(|nth| Step::Bound { nth }),
        5 => (0usize..10, prop::option::weighted(0.2, 0..6), prop::option::weighted(0.2, pod.clone()))
            .prop_map(|(nth, max_priority, except)| Step::Happened { nth, max_priority, except }),
        1 => prop::collection::vec(pod, 1..4).prop_map(|pods| Step::Activate { pods }),
        4 => (0usize..5).prop_map(|nth| Step::Wait { millis: [1, 400, 1_000, 4_500, 61_000][nth] }),
        4 => Just(Step::Flush),
        1 => (4u32..6).prop_map(|plugin| Step::Switch { plugin }),
    ];
    prop::collection::vec(step, 1..120)
}

/// Both, and the pods that were popped, as each of them gave them.
struct Both {
    queue: Queue,
    twin: Twin,
    plugins: FakePlugins,
    /// How often the real one asked PreEnqueue.
    asked: Vec<(String, Option<u32>)>,
    popped: Vec<(QueuedPod, TwinPod)>,
    now: u64,
    incoming: BTreeMap<(&'static str, String), u64>,
}

impl Both {
    fn new(options: &Options) -> Both {
        let twin = Twin {
            options: options.clone(),
            sort: priority_sort(),
            pods: Vec::new(),
            happened: Vec::new(),
            incoming: BTreeMap::new(),
            n_came: 0,
            last_tick: 0,
        };
        Both {
            queue: Queue::new(options.clone(), priority_sort()),
            twin,
            plugins: FakePlugins::default(),
            asked: Vec::new(),
            popped: Vec::new(),
            now: 0,
            incoming: BTreeMap::new(),
        }
    }

    /// The real one is done with its step; what it asked is put aside.
    fn switch(&mut self) {
        self.asked = self.plugins.asked.take();
        self.asked.sort();
    }

    fn step(&mut self, step: Step) {
        let now = at(self.now);
        let name = |pod: usize| format!("pod-{pod}");
        self.asked.clear();
        match step {
            Step::Add { pod, looks: nth, seat } => {
                let (labels, spec) = looks().swap_remove(nth);
                let pod = self.plugins.pod(&name(pod), labels, spec);
                self.queue.add(now, &self.plugins, SEATS[seat], pod.clone());
                self.switch();
                self.twin.add(now, &self.plugins, SEATS[seat], pod);
            }
            Step::Update { pod, looks: nth, seat } => {
                let (labels, spec) = looks().swap_remove(nth);
                let pod = self.plugins.pod(&name(pod), labels, spec);
                self.queue.update(now, &self.plugins, SEATS[seat], pod.clone());
                self.switch();
                self.twin.update(now, &self.plugins, SEATS[seat], pod);
            }
            Step::Delete { pod } => {
                let gone = self.queue.delete(&name(pod));
                assert_eq!(
                    gone.is_some(),
                    { self.twin.at(&name(pod)) }
                        .is_some_and(|at| { !matches!(at, At::InFlight | At::Gone) })
                );
                self.twin.delete(&name(pod));
            }
            Step::Pop => self.pop(),
            Step::Requeue { nth, unschedulable, pending } => {
                let Some((mut pod, twin)) = self.take(nth) else { return };
                let set =
                    |plugins: &BTreeSet<u32>| plugins.iter().copied().map(PluginIdx).collect();
                pod.set_rejecters(set(&unschedulable), set(&pending));
                self.queue.requeue(now, &self.plugins, pod);
                self.switch();
                self.twin.requeue(now, &self.plugins, twin, &unschedulable, &pending);
            }
            Step::Done { nth } => {
                if let Some((pod, _)) = self.popped.get(nth) {
                    self.queue.done(&pod.info.pod.uid);
                    self.twin.done(&pod.info.pod.uid);
                }
            }
            Step::Bound { nth } => {
                if let Some((pod, _)) = self.take(nth) {
                    self.queue.done(&pod.info.pod.uid);
                    self.twin.done(&pod.info.pod.uid);
                }
            }
            Step::Happened { nth, max_priority, except } => {
                let (labels, spec) = looks().swap_remove(3);
                let other = self.plugins.pod("other", labels, spec);
                let except = except.map(|pod| name(pod).into());
                let happened = Happened { max_priority, except, ..news(&other).swap_remove(nth) };
                self.queue.happened(now, &self.plugins, happened.clone());
                self.switch();
                self.twin.happened(now, &self.plugins, happened);
            }
            Step::Activate { pods } => {
                let uids: Vec<String> = pods.into_iter().map(name).collect();
                let all: Vec<&str> = uids.iter().map(String::as_str).collect();
                self.queue.activate(now, &self.plugins, &all);
                self.switch();
                uids.iter().for_each(|uid| self.twin.activate(now, &self.plugins, uid));
            }
            Step::Wait { millis } => self.now += millis,
            Step::Flush => {
                self.queue.flush(now, &self.plugins);
                self.switch();
                self.twin.flush(now, &self.plugins);
            }
            Step::Switch { plugin } => {
                if !self.plugins.opened.remove(&plugin) {
                    self.plugins.opened.insert(plugin);
                }
            }
        }
        let mut asked = self.plugins.asked.take();
        asked.sort();
        assert_eq!(self.asked, asked, "questions to PreEnqueue");
    }

    fn pop(&mut self) {
        let is_ready = self.queue.is_ready();
        let real = self.queue.pop();
        let twin = self.twin.pop();
        assert_eq!(real.as_ref().map(|pod| pod.info.pod.uid.to_string()), twin);
        assert_eq!(real.is_some(), is_ready);
        let twin = twin.and_then(|uid| self.twin.find(&uid).map(|pod| pod.clone()));
        self.popped.extend(real.zip(twin));
        // A pod that was done, came again and was popped again: the older attempt is over.
        let uids: Vec<Box<str>> =
            self.popped.iter().map(|(pod, _)| pod.info.pod.uid.clone()).collect();
        let mut nth = 0;
        self.popped.retain(|(pod, _)| {
            nth += 1;
            !uids[nth..].contains(&pod.info.pod.uid)
        });
    }

    fn take(&mut self, nth: usize) -> Option<(QueuedPod, TwinPod)> {
        (nth < self.popped.len()).then(|| self.popped.remove(nth))
    }

    fn check(&mut self) {
        let mut counts = Counts::default();
        for nth in 0..N_PODS {
            let uid = format!("pod-{nth}");
            let twin = self.twin.pods.iter().filter(|pod| pod.uid() == uid).collect::<Vec<_>>();
            assert!(twin.len() <= 1);
            let twin = twin.first().filter(|pod| pod.at != At::Gone);
            assert_eq!(
                self.queue.is_in_flight(&uid),
                twin.is_some_and(|pod| pod.at == At::InFlight)
            );
            let queued = twin.filter(|pod| pod.at != At::InFlight);
            let (Some((real, place)), Some(twin)) = (self.queue.get(&uid), queued) else {
                assert!(self.queue.get(&uid).is_none() && queued.is_none(), "{uid}");
                continue;
            };
            let (want, counted) = match (twin.at, twin.gating) {
                (At::Active, _) => (Place::Active, &mut counts.active),
                (At::Backoff, _) => (Place::Backoff, &mut counts.backoff),
                (_, None) => (Place::Unschedulable, &mut counts.unschedulable),
                (_, Some(_)) => (Place::Gated, &mut counts.gated),
            };
            *counted += 1;
            assert_eq!(place, want, "{uid}");
            self.same(real, twin);
        }
        assert_eq!(self.queue.counts(), counts);
        let mut uids: Vec<&str> = self.queue.iter().map(|(pod, _)| &*pod.info.pod.uid).collect();
        uids.sort_unstable();
        let total = counts.active + counts.backoff + counts.unschedulable + counts.gated;
        uids.dedup();
        assert_eq!(uids.len(), total, "each pod once");
        self.check_in_flight();
        for line in self.queue.take_incoming() {
            *self.incoming.entry((line.queue.name(), line.cause.to_string())).or_default() +=
                line.n;
        }
        assert_eq!(self.incoming, self.twin.incoming);
        assert_eq!(self.queue.deadline().map(|deadline| deadline.0), self.twin.deadline());
    }

    fn same(&self, real: &QueuedPod, twin: &TwinPod) {
        let ids =
            |plugins: &PluginSet| plugins.iter().map(|plugin| plugin.0).collect::<BTreeSet<_>>();
        assert!(Arc::ptr_eq(&real.info.pod, &twin.info.pod), "the newest version");
        assert_eq!((real.info.queued, real.info.attempts), (twin.info.queued, twin.info.attempts));
        assert_eq!(real.seat, twin.seat);
        assert_eq!(real.queued_at.0, twin.since);
        assert_eq!(real.unschedulable_count, twin.unschedulable_count);
        assert_eq!(real.consecutive_errors, twin.consecutive_errors);
        assert_eq!(ids(&real.unschedulable_plugins), twin.unschedulable);
        assert_eq!(ids(&real.pending_plugins), twin.pending);
        assert_eq!(real.gating_plugin().map(|plugin| plugin.0), twin.gating);
        assert_eq!(real.flushed_by_timeout, twin.flushed);
        assert_eq!(real.initial_attempt.map(|moment| moment.0), twin.initial_attempt);
        assert_eq!(real.backoff_until.map(|end| end.0), self.twin.backoff_end(twin));
    }

    fn check_in_flight(&self) {
        let popped = |entry: &Entry| match entry {
            Entry::Popped(uid) => Some(uid.clone()),
            Entry::Event { .. } => None,
        };
        let label = |entry: &Entry| match entry {
            Entry::Popped(_) => None,
            Entry::Event { label, .. } => Some(label.clone()),
        };
        let uids: Vec<String> = self.twin.happened.iter().filter_map(popped).collect();
        let real: Vec<String> = self.queue.in_flight().map(|pod| pod.uid.to_string()).collect();
        assert_eq!(real, uids);
        let labels: Vec<String> = self.twin.happened.iter().filter_map(label).collect();
        let real: Vec<String> = self.queue.in_flight_events().map(Cause::to_string).collect();
        assert_eq!(real, labels);
    }
}

fn agree(options: &Options, steps: Vec<Step>) {
    let mut both = Both::new(options);
    for step in steps {
        both.step(step);
        both.check();
    }
    // Whoever is left is popped in the same order.
    for _ in 0..N_PODS {
        both.pop();
        both.check();
    }
}

proptest! {
    #[test]
    fn agrees_over_random_histories(
        steps in steps(),
        pop_from_backoff in any::<bool>(),
        max_backoff_s in prop_oneof![4 => Just(10u64), 1 => Just(0u64)],
    ) {
        let max_backoff = Duration::from_secs(max_backoff_s);
        agree(&Options { pop_from_backoff, max_backoff, ..Options::default() }, steps);
    }
}
