//! The index of pods, wherever the scheduler has them.

use loadmaster_framework::{
    ActionType, EventResource, PodIndex, PodIndexKey, PreEnqueue, PreFilter, PreFilterResult,
};

use super::*;
use crate::queue::SubQueue;

/// Pods with the label `gang` are scheduled when three of them exist, and bound when three of them have a node.
struct Gang {
    members: PodIndex,
}

const GANG: PluginDef = PluginDef { name: "Gang", build: build_gang, args: None };

fn build_gang(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let members = points.pod_index(PodIndexKey::Label(Str::new("gang")));
    let plugin = Arc::new(Gang { members });
    points.pre_enqueue = Some(plugin.clone());
    points.pre_filter = Some(plugin.clone());
    points.reserve = Some(plugin.clone());
    points.permit = Some(plugin);
    points
        .register_event(ClusterEvent::new(EventResource::UnschedulablePod, ActionType::ADD), None);
    points.register_event(ClusterEvent::new(EventResource::Node, ActionType::ADD), None);
    Ok(())
}

impl PreEnqueue for Gang {
    fn pre_enqueue(&self, _: Cx<'_>, pod: &PodInfo) -> Result<(), Rejection> {
        match label_of(pod, "gated") {
            "" => Ok(()),
            _ => Err(Rejection::unschedulable("gated")),
        }
    }
}

impl PreFilter for Gang {
    fn pre_filter(
        &self,
        mut cx: SerialCx<'_>,
        pod: &PodInfo,
    ) -> Result<PreFilterResult, Rejection> {
        let siblings = cx.sibling_pods(&self.members, pod);
        if label_of(pod, "gang").is_empty() {
            assert_eq!((siblings.n_pending(), siblings.n_assigned()), (0, 0));
            return Ok(PreFilterResult::Skip);
        }
        assert!(siblings.pending().any(|it| it.uid == pod.uid), "the pod in flight is pending");
        if siblings.n_pending() + siblings.n_assigned() < 3 {
            return Err(Rejection::unschedulable("too few members"));
        }
        let others: Vec<_> = siblings.pending().map(|it| it.uid.clone()).collect();
        cx.activate(others.iter().map(|uid| &**uid));
        Ok(PreFilterResult::Skip)
    }
}

impl Reserve for Gang {
    fn reserve(&self, _: SerialCx<'_>, _: &Arc<PodInfo>, _: NodeInfo<'_>) -> Result<(), Rejection> {
        Ok(())
    }
    fn unreserve(&self, mut cx: SerialCx<'_>, pod: &Arc<PodInfo>, _: &str) {
        let waiting = cx.sibling_pods(&self.members, pod).waiting();
        for uid in waiting.map(|it| it.pod.uid.clone()).collect::<Vec<_>>() {
            cx.reject_waiting_pod("Gang", &uid, "a member failed");
        }
    }
}

impl Permit for Gang {
    fn permit(
        &self,
        mut cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<PermitResult, Rejection> {
        let siblings = cx.sibling_pods(&self.members, pod);
        if label_of(pod, "gang").is_empty() {
            return Ok(PermitResult::Allow);
        }
        if siblings.n_assigned() < 3 {
            return Ok(PermitResult::Wait(Duration::from_secs(30)));
        }
        let waiting: Vec<_> = siblings.waiting().map(|it| it.pod.uid.clone()).collect();
        waiting.iter().for_each(|uid| cx.allow_waiting_pod("Gang", uid));
        Ok(PermitResult::Allow)
    }
}

fn gang_bench() -> Bench {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": "Gang"}]}}});
    Bench::of(EngineOptions::default(), GANG, &profile, json!([]))
}

/// Pending, assigned and waiting members of gang `x`.
fn members(bench: &Bench) -> [Vec<String>; 3] {
    let Gang { members } = Gang {
        members: ExtensionPoints::default().pod_index(PodIndexKey::Label(Str::new("gang"))),
    };
    let found = bench.engine.world().pods_by_index(&members, "default", "x");
    let names = |pods: Vec<&Arc<PodInfo>>| pods.iter().map(|pod| pod.name.to_string()).collect();
    [
        names(found.pending().collect()),
        names(found.assigned().collect()),
        names(found.waiting().map(|it| &it.pod).collect()),
    ]
}

#[test]
fn pending_pods_are_found_wherever_they_are() {
    let mut bench = gang_bench();
    let member = json!({"gang": "x"});
    bench.pod("backoff", member.clone());
    bench.cycle();
    bench.node("b", "0");
    bench.pod("unschedulable", member.clone());
    bench.cycle();
    bench.pod("gated", json!({"gang": "x", "gated": "yes"}));
    bench.pod("active", member);
    bench.pod("other", json!({"gang": "y"}));
    bench.pod("alone", json!({}));
    for (name, want) in [
        ("backoff", SubQueue::Backoff),
        ("unschedulable", SubQueue::Unschedulable),
        ("gated", SubQueue::Gated),
        ("active", SubQueue::Active),
    ] {
        let at = bench.engine.queue().get(name).map(|(_, at)| at);
        assert_eq!(at, Some(want), "{name}");
    }
    let pending = ["active", "backoff", "gated", "unschedulable"].map(str::to_owned).to_vec();
    assert_eq!(members(&bench), [pending, vec![], vec![]]);
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Pod("gated".into())));
    bench.pod("backoff", json!({"gang": "y"}));
    let pending = ["active", "unschedulable"].map(str::to_owned).to_vec();
    assert_eq!(members(&bench), [pending, vec![], vec![]], "deleted, and moved to another gang");
}

#[test]
fn members_move_between_pending_and_assigned() {
    let mut bench = gang_bench();
    let all = ["m0", "m1", "m2"].map(str::to_owned);
    for name in &all {
        bench.pod(name, json!({"gang": "x"}));
    }
    bench.cycle();
    bench.cycle();
    let [m0, m1, m2] = all.clone();
    let two = vec![m0.clone(), m1.clone()];
    assert_eq!(members(&bench), [vec![m2.clone()], two.clone(), two]);
    // The node has room for two: the third one does not fit, and the wait at Permit ends.
    bench.cycle();
    bench.advance(30);
    assert_eq!(members(&bench), [all.to_vec(), vec![], vec![]], "all are pending again");
    bench.node("a", "3");
    bench.apply(EngineEvent::Activate(all.iter().map(|name| name.as_str().into()).collect()));
    while bench.cycle() == CycleResult::Ran {}
    assert_eq!(members(&bench), [vec![], all.to_vec(), vec![]], "all are assumed and allowed");
    bench.set_pod("m0", json!({"gang": "x"}), json!({"nodeName": "a"}), json!({}));
    bench.set_pod("m1", json!({"gang": "y"}), json!({"nodeName": "a"}), json!({}));
    assert_eq!(members(&bench), [vec![], vec![m0, m2], vec![]], "a label changed with the binding");
    bench.set_pod("m0", json!({"gang": "x"}), json!({"nodeName": "a"}), json!({"phase": "Failed"}));
    assert_eq!(members(&bench)[1].len(), 1, "finished");
}

#[test]
fn without_an_index_nothing_is_stored() {
    let mut bench = Bench::new();
    bench.pod("web", json!({"gang": "x"}));
    assert!(!bench.engine.world().indexes_pods());
    assert_eq!(members(&bench), [vec![], vec![], vec![]] as [Vec<String>; 3]);
}
