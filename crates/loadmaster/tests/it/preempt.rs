//! A PostFilter from outside the tree: what preemption is made of, the nominator, and Filters asked about nodes as they could be.

use std::sync::Arc;
use std::time::Duration;

use loadmaster::framework::preemption::{
    Budgets, DryRun, Preemptor, Sample, Victims, best, helpable,
};
use loadmaster::framework::request::{Input, Step};
use loadmaster::framework::*;
use loadmaster::serde_json::{Value, json};
use loadmaster::testkit::{BenchError, Cluster, PodBuilder, node, pod};

const NAME: &str = "SpotFirst";
const DEF: PluginDef = PluginDef { name: NAME, build, args: None };
const SPOT: &str = "example.com/spot";

/// Makes room by evicting pods that said that they may go, and no others, whatever their priority.
struct SpotFirst;

fn build(points: &mut Points, _: &Value) -> Result<(), PluginError> {
    points.post_filter = Some(Arc::new(SpotFirst));
    Ok(())
}

impl PostFilter for SpotFirst {
    fn post_filter(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        unfit: Unfit<'_>,
        rng: &mut Rng,
        _: Input<'_>,
    ) -> Step<PostFiltered> {
        let preemptor = Preemptor { cx: cx.cx(), feasibility: unfit.feasibility, pod };
        let budgets = Budgets::new(cx.world.cluster());
        let spot = |run: &mut DryRun<'_>| -> Result<Victims, Rejection> {
            let on_node = run.node();
            let may_go = on_node.pods().filter(|it| it.template.labels.get(SPOT).is_some());
            let may_go = may_go.cloned().collect();
            run.select_victims(may_go, &budgets)
        };
        let found = preemptor.search(&helpable(unfit.verdicts), Sample::ALL, spot);
        if found.candidates.is_empty() {
            return Step::Fail(Rejection::unschedulable("no spot pods are in the way"));
        }
        let chosen = &found.candidates[*rng.pick(&best(&found.candidates))];
        let node = cx.world.node(chosen.row).map(|node| node.name().into());
        // Who was promised this node must look for another one.
        let denominated =
            node.iter().flat_map(|name: &loadmaster::api::Str| cx.world.nominated(name));
        Step::Done(PostFiltered {
            denominated: denominated.cloned().collect(),
            nominated_node: node,
            victims: chosen.victims.pods.clone(),
            rejection: None,
        })
    }
}

fn spot(name: &str, node: &str) -> PodBuilder {
    pod(name).label(SPOT, "true").priority(1_000).request("cpu", "1").set("/spec/nodeName", node)
}

#[test]
fn a_pod_gets_the_room_of_those_that_may_go() -> Result<(), BenchError> {
    let profile = json!({"plugins": {"postFilter": {
        "enabled": [{"name": NAME}], "disabled": [{"name": "*"}],
    }}});
    let mut cluster = Cluster::new([DEF], profile)?;
    for (name, cpu) in [("a", "2"), ("b", "2"), ("small", "1")] {
        cluster.node(node(name).allocatable("cpu", cpu))?;
    }
    for (name, node) in [("a-1", "a"), ("b-1", "b"), ("b-2", "b")] {
        cluster.pod(spot(name, node))?;
    }
    cluster.pod(pod("stays").request("cpu", "1").set("/spec/nodeName", "a"))?;
    cluster.pod(pod("web").request("cpu", "2"))?;
    cluster.settle()?;
    // On node a there is another pod, node small is too small for it at any rate.
    let mut gone = cluster.take_events();
    gone.retain(|event| event.starts_with("Preempted "));
    assert_eq!(gone.len(), 2, "{gone:?}");
    assert!(gone.iter().all(|event| event.starts_with("Preempted b-")), "{gone:?}");
    cluster.pass(Duration::from_secs(12))?;
    assert_eq!(cluster.node_of("web"), Some("b".to_owned()));

    cluster.pod(pod("more").request("cpu", "2"))?;
    cluster.settle()?;
    let why = cluster.why("more").unwrap_or_default();
    assert!(why.ends_with("no spot pods are in the way"), "{why}");
    assert_eq!(cluster.node_of("a-1"), Some("a".to_owned()));
    Ok(())
}
