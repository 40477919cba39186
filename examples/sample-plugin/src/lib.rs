//! Reserves nodes for a workload: pods whose name contains it go only to nodes with a label, all other pods go where they like.
//!
//! The whole of kube-scheduler's command line comes with it: `sample-plugin run --config scheduler.yaml`.

use std::sync::Arc;

use loadmaster::api::Str;
use loadmaster::framework::points::PreFlight;
use loadmaster::framework::request::{Input, Step};
use loadmaster::framework::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const NAME: &str = "sample-plugin";
/// What a program is given to have the plugin.
pub const DEF: PluginDef = PluginDef { name: NAME, build, args: Some(args::complete::<Args>) };

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Args {
    /// `key/value`; the key may have a prefix of its own, as in `example.com/pool/gold`.
    node_label: String,
    /// A part of the names of the pods that are meant.
    workload_name: String,
}

impl args::PluginArgs for Args {
    fn validate(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if self.node_label.rsplit_once('/').is_none() {
            errors.push(FieldError::invalid("node_label", &self.node_label, "expected key/value"));
        }
        if self.workload_name.is_empty() {
            errors.push(FieldError::invalid(
                "workload_name",
                "",
                "expected a part of a pod's name",
            ));
        }
        errors
    }
}

struct Sample {
    key: String,
    value: String,
    workload: String,
    /// Made once, because a Filter may refuse thousands of nodes a pod.
    reason: Str,
}

fn build(points: &mut Points, given: &Value) -> Result<(), PluginError> {
    let args: Args = args::read(NAME, given)?;
    let plugin = Arc::new(Sample::new(&args));
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.pre_bind = Some(plugin);
    for action in [Action::ADD, Action::UPDATE_NODE_LABEL] {
        points.wake_on(ClusterEvent::new(EventResource::Node, action), None);
    }
    Ok(())
}

impl Sample {
    fn new(args: &Args) -> Sample {
        let (key, value) = args.node_label.rsplit_once('/').unwrap_or((&args.node_label, ""));
        let workload = args.workload_name.clone();
        let reason = Str::from(format!("node(s) didn't have {key}={value} for {workload}"));
        Sample { key: key.to_owned(), value: value.to_owned(), workload, reason }
    }

    fn is_meant(&self, pod: &PodInfo) -> bool {
        pod.name.contains(&self.workload)
    }

    fn check(&self, node: NodeInfo<'_>) -> Result<(), Rejection> {
        if node.labels().get(&self.key).is_some_and(|value| *value == self.value.as_str()) {
            return Ok(());
        }
        Err(Rejection::unresolvable(self.reason.clone()))
    }
}

impl PreFilter for Sample {
    fn pre_filter(&self, _: SerialCx<'_>, pod: &PodInfo) -> Result<PreFiltered, Rejection> {
        Ok(if self.is_meant(pod) { PreFiltered::All } else { PreFiltered::Skip })
    }
}

impl Filter for Sample {
    fn filter(&self, _: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        self.check(node)
    }
}

/// The label may have gone since the pod was decided.
impl PreBind for Sample {
    fn pre_flight(&self, _: Cx<'_>, pod: &PodInfo, _: &str) -> Result<PreFlight, Rejection> {
        let work = PreFlight::Work { parallel: true };
        Ok(if self.is_meant(pod) { work } else { PreFlight::Skip })
    }

    fn pre_bind(&self, cx: SerialCx<'_>, _: &Arc<PodInfo>, node: &str, _: Input<'_>) -> Step<()> {
        let node = cx.world.nodes().row(node).and_then(|row| cx.world.node(row));
        match node.map(|node| self.check(node)) {
            Some(Ok(())) => Step::Done(()),
            Some(Err(rejection)) => Step::Fail(rejection),
            None => Step::Fail(Failure::new("the node is gone").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use loadmaster::SchedulerCommand;
    use loadmaster::framework::testkit::{Bench, BenchError};
    use serde_json::json;

    use super::*;

    fn bench() -> Result<Bench, BenchError> {
        let mut bench =
            Bench::new(&DEF, json!({"node_label": "pool/gold", "workload_name": "train"}))?;
        bench.node(json!({"metadata": {"name": "gold", "labels": {"pool": "gold"}}}))?;
        bench.node(json!({"metadata": {"name": "plain"}}))?;
        Ok(bench)
    }

    #[test]
    fn the_workload_goes_to_its_nodes_and_others_where_they_like() -> Result<(), BenchError> {
        let mut bench = bench()?;
        let refused = "UnschedulableAndUnresolvable node(s) didn't have pool=gold for train";
        assert_eq!(
            bench.filter(json!({"metadata": {"name": "train-7"}}))?,
            ["gold Success".to_owned(), format!("plain {refused}")]
        );
        assert_eq!(
            bench.filter(json!({"metadata": {"name": "web"}}))?,
            ["gold Success", "plain Success"]
        );
        Ok(())
    }

    #[test]
    fn a_label_that_is_gone_stops_the_binding() -> Result<(), BenchError> {
        let mut bench = bench()?;
        let args = Args { node_label: "pool/gold".into(), workload_name: "train".into() };
        let plugin = Sample::new(&args);
        let pod = Arc::new(bench.pod(json!({"metadata": {"name": "train-7"}}))?);
        let (mut cycle, mut states) = (CycleState::default(), PluginStates::default());
        let mut bind = |node: &str| {
            let cx = SerialCx { world: &bench.world, cycle: &mut cycle, states: &mut states };
            match plugin.pre_bind(cx, &pod, node, Input::Start) {
                Step::Fail(rejection) => rejection.message(),
                step => format!("{step:?}"),
            }
        };
        assert_eq!(bind("gold"), "Done(())");
        assert_eq!(bind("plain"), "node(s) didn't have pool=gold for train");
        assert_eq!(bind("lost"), "the node is gone");
        Ok(())
    }

    #[test]
    fn bad_arguments_say_what_was_expected() {
        for (args, want) in [
            (json!({"node_label": "pool", "workload_name": "train"}), "expected key/value"),
            (json!({"node_label": "a/b", "workload_name": ""}), "expected a part of a pod's name"),
            (json!({"node_label": "a/b", "workload": "x"}), "unknown field"),
        ] {
            let error = Bench::new(&DEF, args).err().expect("refused").to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn the_configuration_beside_it_is_right() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/scheduler.yaml");
        let command = SchedulerCommand::new().with_plugin(DEF);
        let code = command.run_from(["sample-plugin", "config", "check", file]);
        assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
    }

    #[test]
    fn the_manifests_carry_the_same_configuration() {
        let config =
            include_str!("../scheduler.yaml").lines().filter(|line| !line.starts_with('#'));
        let wanted: String = config.map(|line| format!("    {line}\n")).collect();
        assert!(include_str!("../deploy/sample-plugin.yaml").contains(&wanted), "{wanted}");
    }
}
