//! Rules of upstream's queue, one test per rule, in virtual time.

use std::time::Duration;

use loadmaster_api::Node;
use loadmaster_framework::{ActionType, ClusterEvent, EventResource, FeatureGates};
use serde_json::{Value, json};

use super::testkit::*;
use super::*;

fn kit() -> QueueTestBench {
    QueueTestBench::new(QueueOptions::default())
}

fn without_pop_from_backoff() -> QueueTestBench {
    QueueTestBench::new(QueueOptions { pop_from_backoff: false, ..QueueOptions::default() })
}

#[test]
fn pops_by_priority_then_time_then_arrival() {
    let mut kit = kit();
    kit.wait_until(5);
    for (name, priority) in [("a", 0), ("b", 7), ("c", 0), ("d", 7), ("e", -1)] {
        kit.add(name, json!({}), json!({"priority": priority}));
    }
    kit.wait_until(6);
    kit.add("f", json!({}), json!({"priority": 7}));
    assert_eq!(kit.pop_all(), "b d f a c e");
    assert_eq!(kit.queue.counts(), PendingCounts::default());
    assert!(!kit.queue.can_pop());
}

#[test]
fn backoff_doubles_up_to_its_maximum() {
    #[track_caller]
    fn check(initial_s: u64, max_s: u64, rejections: u32, errors: u32, want_s: Option<u64>) {
        let [initial_backoff, max_backoff] = [initial_s, max_s].map(Duration::from_secs);
        let options = QueueOptions { initial_backoff, max_backoff, ..QueueOptions::default() };
        let pod = FakePlugins::default().pod("a", json!({}), json!({}));
        let mut pod = QueuedPod::new(now_at_millis(1_700), TEST_PROFILES[0], pod, 1);
        (pod.unschedulable_count, pod.consecutive_errors) = (rejections, errors);
        let want = want_s.map(|seconds| MonoTime(Duration::from_secs(seconds).as_nanos() as u64));
        assert_eq!(options.backoff_until(&pod), want);
    }
    // Queued at 1.7 s; the end is cut to whole seconds.
    check(1, 10, 0, 0, None);
    check(1, 10, 1, 0, Some(2));
    check(1, 10, 2, 0, Some(3));
    check(1, 10, 4, 0, Some(9));
    check(1, 10, 5, 0, Some(11));
    check(1, 10, 500, 0, Some(11));
    // Errors count instead of rejections while there are any.
    check(1, 10, 4, 1, Some(2));
    check(1, 10, 0, 3, Some(5));
    check(20, 10, 1, 0, Some(11));
    check(0, 10, 3, 0, Some(1));
    check(1, 0, 3, 3, None);
}

#[test]
fn a_backoff_ends_after_its_window() {
    for mut kit in [kit(), without_pop_from_backoff()] {
        kit.wait_until(500);
        kit.add_rejected("a", json!({}), &[], &[]);
        assert_eq!(kit.sub_queue("a"), "Backoff");
        // 0.5 s + 1 s lies in the second window.
        assert_eq!(kit.queue.next_flush(), Some(now_at_millis(2_000).mono));
        kit.wait_until(1_999);
        assert_eq!(kit.sub_queue("a"), "Backoff");
        kit.wait_until(2_000);
        assert_eq!(kit.sub_queue("a"), "Active");
        assert_eq!(kit.queue.next_flush(), None);
        assert!(kit.incoming().contains(&"active BackoffComplete 1".to_string()));
    }
}

#[test]
fn errors_and_rejections_are_counted_separately() {
    let mut kit = kit();
    kit.add("a", json!({}), json!({}));
    /// The plugins that reject it, with Unschedulable and with Pending; the expected numbers of rejections and errors.
    type Attempt = (&'static [u32], &'static [u32], (u32, u32));
    let attempts: [Attempt; 6] = [
        (&[], &[], (0, 1)),
        (&[], &[], (0, 2)),
        (&[0], &[], (1, 0)),
        (&[], &[], (1, 1)),
        (&[], &[1], (2, 0)),
        (&[0], &[1], (3, 0)),
    ];
    for (nth, (unschedulable, pending, want)) in attempts.into_iter().enumerate() {
        kit.activate(&["a"]);
        let pod = kit.pop().unwrap();
        assert_eq!(pod.info.attempts as usize, nth + 1);
        kit.requeue(pod, unschedulable, pending);
        let (pod, _) = kit.queue.get("a").unwrap();
        assert_eq!((pod.unschedulable_count, pod.consecutive_errors), want);
    }
}

#[test]
fn pops_early_from_backoff_after_a_rejection_but_not_after_an_error() {
    let story = |mut kit: QueueTestBench| {
        kit.add("failed", json!({}), json!({}));
        let failed = kit.pop().unwrap();
        for (name, priority) in [("low", 0), ("high", 5), ("late", 9)] {
            kit.add(name, json!({"likes": "x"}), json!({"priority": priority}));
        }
        let [late, high, low] = [(); 3].map(|()| kit.pop().unwrap());
        kit.on_cluster_event(node_added("x"));
        kit.requeue(failed, &[], &[]);
        kit.requeue(low, &[0], &[]);
        kit.wait_until(400);
        kit.requeue(high, &[0], &[]);
        kit.wait_until(1_300);
        kit.requeue(late, &[0], &[]);
        kit
    };
    let mut kit = story(kit());
    // The first two end in the same window, so the higher priority goes first; the last one ends later.
    assert_eq!(kit.pop_all(), "high low late");
    assert_eq!(kit.sub_queue("failed"), "Backoff");
    assert!(kit.incoming().contains(&"active PopFromBackoffQ 3".to_string()));

    let mut kit = story(without_pop_from_backoff());
    assert!(!kit.queue.can_pop());
    assert_eq!(kit.pop_all(), "");
    assert_eq!(kit.queue.counts().backoff, 4);
}

#[test]
fn pre_enqueue_runs_once_per_requeue() {
    let calls = |mut kit: QueueTestBench| {
        kit.add_rejected("a", json!({}), &[], &[]);
        let at_backoff = kit.plugins.pre_enqueue_calls.borrow().len();
        kit.wait_until(10_000);
        assert_eq!(kit.sub_queue("a"), "Active");
        (at_backoff, kit.plugins.pre_enqueue_calls.borrow().len())
    };
    assert_eq!(calls(kit()), (2, 2));
    assert_eq!(calls(without_pop_from_backoff()), (1, 2));
}

#[test]
fn pre_enqueue_can_gate_a_pod_before_its_backoff() {
    let mut kit = kit();
    kit.add("a", json!({}), json!({}));
    let pod = kit.pop().unwrap();
    kit.update("a", json!({"gated-by": "4"}));
    kit.requeue(pod, &[], &[]);
    assert_eq!(kit.sub_queue("a"), "Gated");
    assert_eq!(
        kit.incoming(),
        ["active UnschedulablePodAdd 1", "unschedulable ScheduleAttemptFailure 1"]
    );
}

/// The sub-queue of a pod after an event, both when the pod is unschedulable and when it is in flight at that time.
#[track_caller]
fn check_hint(
    unschedulable: &[u32],
    pending: &[u32],
    occurrence: ClusterEventOccurrence,
    want: &str,
) {
    let mut waits = kit();
    waits.add_rejected("a", json!({"likes": "x"}), unschedulable, pending);
    assert_eq!(waits.sub_queue("a"), "Unschedulable");
    waits.on_cluster_event(occurrence.clone());
    assert_eq!(waits.sub_queue("a"), want, "while it waits");

    let mut flies = kit();
    flies.add("a", json!({"likes": "x"}), json!({}));
    let pod = flies.pop().unwrap();
    flies.on_cluster_event(occurrence);
    flies.requeue(pod, unschedulable, pending);
    assert_eq!(flies.sub_queue("a"), want, "while it is in flight");
}

#[test]
fn hints_of_rejecters_decide_whether_a_pod_is_requeued() {
    let node_event = |action, wakes| {
        let event = ClusterEvent::new(EventResource::Node, action);
        ClusterEventOccurrence::new(event, Some(node("")), Some(node(wakes)))
    };
    // The hint returns Queue, Skip, or fails.
    check_hint(&[0], &[], node_added("x"), "Backoff");
    check_hint(&[0], &[], node_added("y"), "Unschedulable");
    check_hint(&[0], &[], node_added("broken"), "Backoff");
    // Pending skips the backoff, even if plugins of both kinds return Queue.
    check_hint(&[], &[0], node_added("x"), "Active");
    check_hint(&[2], &[0], node_added("x"), "Active");
    check_hint(&[2], &[0], node_added("y"), "Backoff");
    check_hint(&[0], &[0], node_added("x"), "Active");
    check_hint(&[0], &[2], node_added("y"), "Active");
    // Without a hint every such event requeues the pod.
    check_hint(&[0], &[], node_event(ActionType::UPDATE_NODE_TAINT, "y"), "Backoff");
    check_hint(&[], &[0], node_event(ActionType::UPDATE_NODE_TAINT, "y"), "Active");
    // No rejecter registered the event.
    check_hint(&[0], &[], node_event(ActionType::DELETE, "x"), "Unschedulable");
    check_hint(&[1, 3], &[], node_added("x"), "Unschedulable");
    // The rejecter registered all events.
    check_hint(&[3, 2], &[], node_event(ActionType::DELETE, "y"), "Backoff");
    check_hint(
        &[2],
        &[],
        ClusterEventOccurrence::new(unregistered_event(), None, None),
        "Unschedulable",
    );
    // The wildcard calls no hints, and concerns all pods or one.
    check_hint(
        &[3],
        &[],
        ClusterEventOccurrence::new(ClusterEvent::wildcard(), None, None),
        "Backoff",
    );
    check_hint(
        &[3],
        &[3],
        ClusterEventOccurrence::new(ClusterEvent::wildcard(), None, None),
        "Backoff",
    );
    check_hint(
        &[2],
        &[],
        ClusterEventOccurrence::new(ClusterEvent::wildcard(), None, Some(node("x"))),
        "Unschedulable",
    );
    let other = FakePlugins::default().pod("b", json!({}), json!({}));
    let about_b = ClusterEventOccurrence::new(
        ClusterEvent::wildcard(),
        None,
        Some(OwnedEventObject::Pod(other)),
    );
    check_hint(&[2], &[], about_b, "Unschedulable");
}

#[test]
fn pods_requeued_after_their_backoff_go_to_active_q() {
    let mut kit = kit();
    kit.add_rejected("a", json!({"likes": "x"}), &[0], &[]);
    kit.wait_until(2_000);
    kit.on_cluster_event(node_added("x"));
    assert_eq!(kit.sub_queue("a"), "Active");
    assert_eq!(
        kit.incoming(),
        [
            "active NodeAdd 1",
            "active UnschedulablePodAdd 1",
            "unschedulable ScheduleAttemptFailure 1"
        ]
    );
}

#[test]
fn only_pods_of_at_most_that_priority_are_requeued() {
    let mut kit = kit();
    // Plugin 4 registered the event for pods of every priority.
    for (name, priority, plugin) in [("low", 1, 1), ("same", 5, 1), ("high", 6, 1), ("quota", 6, 4)]
    {
        kit.add(name, json!({"likes": "x"}), json!({"priority": priority}));
        let pod = kit.pop().unwrap();
        kit.requeue(pod, &[plugin], &[]);
    }
    let deleted = kit.plugins.pod("deleted", json!({"wakes": "x"}), json!({"priority": 5}));
    kit.on_cluster_event(ClusterEventOccurrence::assigned_pod_deleted(deleted).up_to_priority(5));
    assert_eq!(
        ["low", "same", "high", "quota"].map(|name| kit.sub_queue(name)),
        ["Backoff", "Backoff", "Unschedulable", "Backoff"]
    );
}

#[test]
fn only_events_after_its_pop_count_for_a_pod_in_flight() {
    let mut kit = kit();
    kit.add("first", json!({"likes": "x"}), json!({"priority": 1}));
    kit.add("second", json!({"likes": "x"}), json!({}));
    let first = kit.pop().unwrap();
    kit.on_cluster_event(node_added("x"));
    let second = kit.pop().unwrap();
    kit.on_cluster_event(node_added("y"));
    kit.on_cluster_event(ClusterEventOccurrence::new(unregistered_event(), None, None));
    assert_eq!(kit.queue.in_flight_events().count(), 2);
    // Events before the second pod's pop are dropped with the first pod.
    kit.requeue(first, &[0], &[]);
    assert_eq!(kit.queue.in_flight_events().count(), 1);
    kit.requeue(second, &[0], &[]);
    assert_eq!(kit.queue.in_flight_events().count(), 0);
    assert_eq!(["first", "second"].map(|pod| kit.sub_queue(pod)), ["Backoff", "Unschedulable"]);
    kit.on_cluster_event(node_added("y"));
    assert_eq!(kit.queue.in_flight_events().count(), 0);
}

#[test]
fn an_update_of_a_pod_in_flight_is_preserved_and_checked_by_hints() {
    let mut kit = kit();
    kit.add("a", json!({"likes": "x"}), json!({}));
    let pod = kit.pop().unwrap();
    kit.update("a", json!({"likes": "x", "wakes": "x"}));
    assert_eq!(kit.sub_queue("a"), "InFlight");
    kit.requeue(pod, &[1], &[]);
    let (pod, sub_queue) = kit.queue.get("a").unwrap();
    assert_eq!((pod.info.pod.template.labels.len(), sub_queue), (2, SubQueue::Backoff));
}

#[test]
fn a_pod_requeued_after_done_goes_to_backoff() {
    let mut kit = kit();
    kit.add("a", json!({"likes": "x"}), json!({}));
    let pod = kit.pop().unwrap();
    kit.queue.done("a");
    assert_eq!(kit.sub_queue("a"), "-");
    kit.requeue(pod, &[0], &[]);
    assert_eq!(kit.sub_queue("a"), "Backoff");
}

#[test]
fn a_pod_that_is_queued_again_already_is_not_queued_twice() {
    let mut kit = kit();
    kit.add("a", json!({}), json!({}));
    let pod = kit.pop().unwrap();
    kit.queue.done("a");
    kit.update("a", json!({"new": ""}));
    kit.requeue(pod, &[0], &[]);
    assert_eq!(kit.sub_queue("a"), "Active");
    assert_eq!(kit.queue.iter().count(), 1);
    assert_eq!(kit.queue.get("a").unwrap().0.info.attempts, 0);
}

#[test]
fn zero_max_backoff_disables_backoff() {
    let mut kit = QueueTestBench::new(QueueOptions {
        max_backoff: Duration::ZERO,
        ..QueueOptions::default()
    });
    kit.add_rejected("a", json!({}), &[], &[]);
    assert_eq!(kit.sub_queue("a"), "Active");
}

#[test]
fn only_events_of_the_gating_plugin_ungate_a_pod() {
    let mut kit = kit();
    kit.add("a", json!({"gated-by": "4"}), json!({}));
    assert_eq!(kit.sub_queue("a"), "Gated");
    assert_eq!(kit.queue.counts(), PendingCounts { gated: 1, ..PendingCounts::default() });
    kit.plugins.ungated.insert(4);
    kit.plugins.pre_enqueue_calls.borrow_mut().clear();
    kit.on_cluster_event(node_added("x"));
    kit.on_cluster_event(ClusterEventOccurrence::new(ClusterEvent::wildcard(), None, None));
    assert_eq!(kit.plugins.pre_enqueue_calls.borrow().len(), 0);
    // Its own update calls the hints of its rejecters, which include the gating plugin.
    kit.update("a", json!({"gated-by": "4", "likes": "x", "wakes": "x"}));
    assert_eq!(*kit.plugins.pre_enqueue_calls.borrow(), [("a".to_string(), Some(4))]);
    assert_eq!(kit.sub_queue("a"), "Active");
    let (pod, _) = kit.queue.get("a").unwrap();
    assert_eq!((pod.gating.is_none(), &pod.unschedulable_plugins), (true, &plugin_idx_set(&[4])));
    assert_eq!(
        kit.incoming(),
        ["active UnschedulablePodUpdatePodLabel 1", "unschedulable UnschedulablePodAdd 1"]
    );
}

#[test]
fn the_plugin_that_gated_a_pod_last_runs_first() {
    let mut kit = kit();
    kit.add("a", json!({"gated-by": "45"}), json!({}));
    kit.plugins.ungated.insert(4);
    kit.activate(&["a"]);
    let (pod, sub_queue) = kit.queue.get("a").unwrap();
    assert_eq!((pod.gating_plugin(), sub_queue), (Some(PluginIdx(5)), SubQueue::Gated));
    assert_eq!(pod.unschedulable_plugins, plugin_idx_set(&[4, 5]));
    // This does not count as incoming.
    assert_eq!(kit.incoming(), ["unschedulable UnschedulablePodAdd 1"]);
    // The plugin registered all events and gates the pod again: this counts as incoming.
    kit.on_cluster_event(node_added("y"));
    assert_eq!(kit.sub_queue("a"), "Gated");
    assert_eq!(kit.incoming(), ["unschedulable NodeAdd 1"]);
    kit.plugins.ungated.insert(5);
    kit.on_cluster_event(node_added("y"));
    assert_eq!(kit.sub_queue("a"), "Active");
    let first =
        kit.plugins.pre_enqueue_calls.borrow().iter().map(|(_, first)| *first).collect::<Vec<_>>();
    assert_eq!(first, [None, Some(4), Some(5), Some(5)]);
}

#[test]
fn updates_reorder_pods_within_their_sub_queue() {
    let mut kit = kit();
    kit.add_rejected("backs-off", json!({}), &[], &[]);
    kit.add_rejected("waits", json!({"likes": "x"}), &[1], &[]);
    kit.add("one", json!({}), json!({"priority": 1}));
    kit.add("two", json!({}), json!({"priority": 2}));
    let pod = kit.plugins.pod("one", json!({}), json!({"priority": 3}));
    kit.queue.update(kit.now, &kit.plugins, TEST_PROFILES[0], pod);
    kit.update("backs-off", json!({"likes": "x"}));
    kit.update("waits", json!({"likes": "x", "wakes": "y"}));
    assert_eq!(["backs-off", "waits"].map(|pod| kit.sub_queue(pod)), ["Backoff", "Unschedulable"]);
    assert_eq!(kit.queue.get("backs-off").unwrap().0.info.pod.template.labels.len(), 1);
    kit.update("waits", json!({"likes": "x", "wakes": "x"}));
    kit.update("unknown", json!({}));
    assert_eq!(["waits", "unknown"].map(|pod| kit.sub_queue(pod)), ["Backoff", "Active"]);
    assert_eq!(kit.pop_all(), "one two unknown waits");
    assert!(kit.incoming().contains(&"active UnschedulablePodUpdate 1".to_string()));
}

#[test]
fn a_pod_added_twice_starts_from_the_beginning() {
    let mut kit = kit();
    kit.add_rejected("a", json!({}), &[0], &[]);
    kit.add("a", json!({}), json!({}));
    let (pod, sub_queue) = kit.queue.get("a").unwrap();
    assert_eq!((pod.info.attempts, sub_queue), (0, SubQueue::Active));
    assert_eq!(kit.pop_all(), "a");
    // In flight it is an update.
    kit.add("a", json!({}), json!({}));
    assert_eq!(kit.sub_queue("a"), "InFlight");
    assert_eq!(kit.queue.in_flight_events().count(), 1);
}

#[test]
fn delete_removes_pods_except_those_in_flight() {
    let mut kit = kit();
    kit.add_rejected("backs-off", json!({}), &[], &[]);
    kit.add_rejected("waits", json!({}), &[0], &[]);
    kit.add("gated", json!({"gated-by": "4"}), json!({}));
    kit.add("flies", json!({}), json!({}));
    let flies = kit.pop().unwrap();
    kit.add("active", json!({}), json!({}));
    for uid in ["backs-off", "waits", "gated", "active"] {
        assert!(kit.queue.delete(&kit.plugins, uid).is_some());
        assert_eq!(kit.sub_queue(uid), "-");
        assert!(kit.queue.delete(&kit.plugins, uid).is_none());
    }
    assert!(kit.queue.delete(&kit.plugins, "flies").is_none());
    assert_eq!(kit.sub_queue("flies"), "InFlight");
    assert_eq!(kit.queue.counts(), PendingCounts::default());
    assert_eq!(kit.queue.next_flush(), None);
    kit.requeue(flies, &[], &[]);
    assert_eq!(kit.sub_queue("flies"), "Backoff");
}

#[test]
fn activation_moves_pods_to_active_q_at_once() {
    let mut kit = kit();
    kit.add_rejected("backs-off", json!({}), &[], &[]);
    kit.add_rejected("waits", json!({}), &[3], &[]);
    kit.add("gated", json!({"gated-by": "4"}), json!({}));
    for name in ["flies", "other"] {
        kit.add(name, json!({}), json!({}));
    }
    let [flies, other] = [(); 2].map(|()| kit.pop().unwrap());
    kit.incoming();
    kit.activate(&["waits", "backs-off", "gated", "flies", "unknown", "waits"]);
    assert_eq!(
        ["backs-off", "waits", "gated", "flies", "unknown"].map(|pod| kit.sub_queue(pod)),
        ["Active", "Active", "Gated", "InFlight", "-"]
    );
    assert_eq!(kit.incoming(), ["active ForceActivate 2"]);
    // The activated pod is retried after its backoff, whichever plugin rejected it; other pods in flight are not affected.
    kit.requeue(flies, &[3], &[]);
    kit.requeue(other, &[3], &[]);
    assert_eq!(["flies", "other"].map(|pod| kit.sub_queue(pod)), ["Backoff", "Unschedulable"]);
}

#[test]
fn pods_too_long_in_unschedulable_pods_are_requeued() {
    let mut kit = kit();
    kit.wait_until(1_000);
    kit.add_rejected("waits", json!({}), &[3], &[]);
    kit.add("gated", json!({"gated-by": "4"}), json!({}));
    kit.add("flies", json!({}), json!({}));
    let flies = kit.pop().unwrap();
    kit.incoming();
    // Five minutes after 1 s have passed at 301 s; the tick after that is at 330 s.
    assert_eq!(kit.queue.next_flush(), Some(now_at_millis(330_000).mono));
    kit.wait_until(329_999);
    assert_eq!(kit.sub_queue("waits"), "Unschedulable");
    assert_eq!(kit.queue.in_flight_events().count(), 0);
    kit.wait_until(330_000);
    assert_eq!(["waits", "gated"].map(|pod| kit.sub_queue(pod)), ["Active", "Gated"]);
    assert_eq!(kit.incoming(), ["active UnschedulableTimeout 1"]);
    assert_eq!(kit.queue.next_flush(), Some(now_at_millis(360_000).mono));
    let flushed = kit.pop().unwrap();
    assert!(flushed.flushed_by_timeout);
    // A pod that is in flight at the flush is requeued too.
    kit.requeue(flies, &[3], &[]);
    assert_eq!(kit.sub_queue("flies"), "Backoff");
    kit.requeue(flushed, &[3], &[]);
    assert!(!kit.queue.get("waits").unwrap().0.flushed_by_timeout);
}

#[test]
fn a_pod_at_exactly_the_maximum_is_not_flushed() {
    let mut kit = kit();
    kit.add_rejected("waits", json!({}), &[3], &[]);
    kit.wait_until(300_000);
    assert_eq!(kit.sub_queue("waits"), "Unschedulable");
    assert_eq!(kit.queue.next_flush(), Some(now_at_millis(330_000).mono));
}

#[test]
fn initial_attempt_is_when_the_pod_first_entered_active_q() {
    let mut kit = kit();
    kit.add("a", json!({"gated-by": "4"}), json!({}));
    assert_eq!(kit.queue.get("a").unwrap().0.info.initial_attempt, None);
    kit.wait_until(3_000);
    kit.plugins.ungated.insert(4);
    kit.activate(&["a"]);
    let pod = kit.pop().unwrap();
    kit.requeue(pod, &[], &[]);
    kit.wait_until(9_000);
    assert_eq!(kit.pop().unwrap().info.initial_attempt, Some(now_at_millis(3_000)));
}

#[test]
fn pod_updates_are_split_into_events() {
    #[track_caller]
    fn check(old: (Value, Value), new: (Value, Value), want: &[&str]) {
        let mut plugins = FakePlugins::default();
        let old = plugins.pod("a", old.0, old.1);
        let new = plugins.pod("a", new.0, new.1);
        let labels = pod_update_events(&old, &new)
            .into_iter()
            .map(|event| EnqueueCause::Event(event).to_string());
        assert_eq!(labels.collect::<Vec<_>>(), want);
    }
    let asks = |requests: Value| {
        (json!({}), json!({"containers": [{"name": "c", "resources": {"requests": requests}}]}))
    };
    let spec = |spec: Value| (json!({}), spec);
    let gates = |names: &[&str]| {
        let gates: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        spec(json!({"schedulingGates": gates}))
    };
    check(spec(json!({})), spec(json!({})), &["UnschedulablePodUpdate"]);
    check(
        (json!({"a": "1"}), json!({})),
        (json!({"a": "2"}), json!({})),
        &["UnschedulablePodUpdatePodLabel"],
    );
    let down = ["UnschedulablePodUpdatePodScaleDown"];
    check(asks(json!({"cpu": "2"})), asks(json!({"cpu": "1"})), &down);
    check(asks(json!({"cpu": "1"})), asks(json!({"cpu": "2"})), &["UnschedulablePodUpdate"]);
    check(
        asks(json!({"cpu": "1", "memory": "2"})),
        asks(json!({"cpu": "2", "memory": "1"})),
        &down,
    );
    check(asks(json!({"ephemeral-storage": "2"})), asks(json!({"ephemeral-storage": "1"})), &down);
    check(asks(json!({"x/y": "2"})), asks(json!({"x/y": "1"})), &down);
    check(asks(json!({"x/y": "2"})), asks(json!({})), &down);
    check(gates(&["a", "b"]), gates(&["a"]), &["UnschedulablePodUpdate"]);
    check(gates(&["a"]), gates(&[]), &["UnschedulablePodUpdatePodSchedulingGatesEliminated"]);
    check(gates(&[]), gates(&["a"]), &["UnschedulablePodUpdate"]);
    let tolerates = spec(json!({"tolerations": [{"operator": "Exists"}]}));
    check(spec(json!({})), tolerates.clone(), &["UnschedulablePodUpdatePodToleration"]);
    check(
        (json!({"a": "1"}), json!({})),
        tolerates,
        &["UnschedulablePodUpdatePodLabel", "UnschedulablePodUpdatePodToleration"],
    );
    let assigned = |labels| (labels, json!({"nodeName": "n"}));
    check(assigned(json!({})), assigned(json!({})), &["AssignedPodUpdate"]);
    check(assigned(json!({"a": "1"})), assigned(json!({})), &["AssignedPodUpdatePodLabel"]);
}

#[test]
fn node_updates_are_split_into_events() {
    #[track_caller]
    fn check(old: Value, new: Value, want: &[&str]) {
        let [old, new] = [old, new].map(|node| serde_json::from_value::<Node>(node).unwrap());
        let labels = node_update_events(&old, &new, &FeatureGates::default())
            .into_iter()
            .map(|event| EnqueueCause::Event(event).to_string());
        assert_eq!(labels.collect::<Vec<_>>(), want);
    }
    let cordoned = json!({"spec": {"unschedulable": true}});
    let tainted = json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}});
    let labelled =
        json!({"metadata": {"labels": {"a": "1"}}, "status": {"allocatable": {"cpu": "1"}}});
    check(json!({}), json!({}), &[]);
    check(cordoned.clone(), json!({}), &["NodeUpdateNodeTaint"]);
    check(json!({}), cordoned.clone(), &[]);
    check(tainted.clone(), json!({}), &["NodeUpdateNodeTaint"]);
    check(cordoned.clone(), tainted.clone(), &["NodeUpdateNodeTaint"]);
    check(tainted, cordoned, &["NodeUpdateNodeTaint"]);
    check(json!({}), labelled, &["NodeUpdateNodeAllocatable", "NodeUpdateNodeLabel"]);
    let capacity = json!({"status": {"capacity": {"cpu": "1"}}});
    check(json!({}), capacity, &[]);
    let declares = || json!({"status": {"declaredFeatures": ["a"]}});
    check(json!({}), declares(), &["NodeUpdateNodeDeclaredFeature"]);
    let gates = FeatureGates { node_declared_features: false, ..FeatureGates::default() };
    let [old, new] = [json!({}), declares()].map(|node| serde_json::from_value(node).unwrap());
    assert!(node_update_events(&old, &new, &gates).is_empty());
}
