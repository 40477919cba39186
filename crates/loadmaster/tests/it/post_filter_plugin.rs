//! An out-of-tree PostFilter plugin that uses the preemption API, the nominator, and Filters on dry-run nodes.

use std::sync::Arc;
use std::time::Duration;

use loadmaster::framework::api_calls::{PluginStep, PluginStepInput};
use loadmaster::framework::preemption::{
    CandidateSampling, DisruptionBudgets, NodeDryRun, Preemptor, Victims,
    nodes_where_preemption_might_help, pick_best_candidates,
};
use loadmaster::framework::*;
use loadmaster::serde_json::{Value, json};
use loadmaster::testkit::{PluginTestBenchError, PodBuilder, TestCluster, node, pod};

const NAME: &str = "SpotFirst";
const DEF: PluginDef = PluginDef { name: NAME, build, args: None };
const SPOT: &str = "example.com/spot";

/// Evicts only pods with the spot label, whatever their priority.
struct SpotFirst;

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    points.post_filter = Some(Arc::new(SpotFirst));
    Ok(())
}

impl PostFilter for SpotFirst {
    fn post_filter(
        &self,
        mut cx: PostFilterCx<'_>,
        pod: &Arc<PodInfo>,
        fit_error: FitError<'_>,
        rng: &mut Rng,
        _: PluginStepInput<'_>,
    ) -> PluginStep<PostFilterResult> {
        let budgets = DisruptionBudgets::new(cx.world().cluster_objects());
        let filter_runner = fit_error.filter_runner;
        let mut preemptor = Preemptor { cx: cx.dry_run_cx(), filter_runner, pod };
        let spot = |run: &mut NodeDryRun<'_>| -> Result<Victims, Rejection> {
            let may_go = run.pods().iter().filter(|it| it.template.labels.get(SPOT).is_some());
            let may_go = may_go.cloned().collect();
            run.select_victims_on_node(may_go, &budgets)
        };
        let found = preemptor.dry_run_preemption(
            &nodes_where_preemption_might_help(fit_error.node_codes),
            CandidateSampling::ALL,
            spot,
        );
        if found.candidates.is_empty() {
            return PluginStep::Fail(Rejection::unschedulable("no spot pods are in the way"));
        }
        let chosen = &found.candidates[*rng.pick(&pick_best_candidates(&found.candidates))];
        let node = cx.world().node(chosen.row).map(|node| node.name().into());
        // Other pods that are nominated to this node lose their nomination.
        let cleared_nominations = node
            .iter()
            .flat_map(|name: &loadmaster::api::Str| cx.world().nominated_pods_for_node(name));
        PluginStep::Done(PostFilterResult {
            cleared_nominations: cleared_nominations.cloned().collect(),
            nominated_node: node,
            victims: chosen.victims.pods.clone(),
            rejection: None,
        })
    }
}

fn spot(name: &str, node: &str) -> PodBuilder {
    pod(name)
        .label(SPOT, "true")
        .priority(1_000)
        .request("cpu", "1")
        .set_field("/spec/nodeName", node)
}

#[test]
fn only_spot_pods_are_preempted() -> Result<(), PluginTestBenchError> {
    let profile = json!({"plugins": {"postFilter": {
        "enabled": [{"name": NAME}], "disabled": [{"name": "*"}],
    }}});
    let mut cluster = TestCluster::new([DEF], profile)?;
    for (name, cpu) in [("a", "2"), ("b", "2"), ("small", "1")] {
        cluster.upsert_node(node(name).allocatable("cpu", cpu))?;
    }
    for (name, node) in [("a-1", "a"), ("b-1", "b"), ("b-2", "b")] {
        cluster.create_pod(spot(name, node))?;
    }
    cluster.create_pod(pod("stays").request("cpu", "1").set_field("/spec/nodeName", "a"))?;
    cluster.create_pod(pod("web").request("cpu", "2"))?;
    cluster.run_until_idle()?;
    // Node a has another pod, and node small is too small.
    let mut preempted = cluster.take_events();
    preempted.retain(|event| event.starts_with("Preempted "));
    assert_eq!(preempted.len(), 2, "{preempted:?}");
    assert!(preempted.iter().all(|event| event.starts_with("Preempted b-")), "{preempted:?}");
    cluster.advance_time(Duration::from_secs(12))?;
    assert_eq!(cluster.node_of("web"), Some("b".to_owned()));

    cluster.create_pod(pod("more").request("cpu", "2"))?;
    cluster.run_until_idle()?;
    let why = cluster.pending_message("more").unwrap_or_default();
    assert!(why.ends_with("no spot pods are in the way"), "{why}");
    assert_eq!(cluster.node_of("a-1"), Some("a".to_owned()));
    Ok(())
}
