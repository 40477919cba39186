//! Restricts a workload to certain nodes: pods whose name contains the workload's name are scheduled only to nodes with a label; other
//! pods are not affected.
//!
//! The scheduler is called `sample-scheduler-framework` and takes kube-scheduler's flags: `sample-scheduler-framework --config=scheduler.yaml --v=3`.

use std::sync::Arc;

use loadmaster::SchedulerCommand;
use loadmaster::api::Str;
use loadmaster::framework::api_calls::{PluginStep, PluginStepInput};
use loadmaster::framework::extension_points::PreBindPreFlight;
use loadmaster::framework::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const NAME: &str = "sample-plugin";
/// The plugin's definition, to be registered with `SchedulerCommand::with_plugin`.
pub const DEF: PluginDef =
    PluginDef { name: NAME, build, args: Some(plugin_args::default_and_validate_args::<Args>) };

/// The scheduler with this plugin, for `main`.
pub fn command() -> SchedulerCommand {
    SchedulerCommand::new()
        .with_name("sample-scheduler-framework", env!("CARGO_PKG_VERSION"))
        .with_plugin(DEF)
}

/// Both arguments are optional, and an empty text means the same as none: unless both are set, no pod is restricted.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Args {
    /// `key/value` of the required node label; the key may have a prefix, as in `example.com/pool/gold`.
    #[serde(skip_serializing_if = "String::is_empty")]
    node_label: String,
    /// Pods whose name contains this text are restricted.
    #[serde(skip_serializing_if = "String::is_empty")]
    workload_name: String,
}

impl plugin_args::PluginArgs for Args {
    fn validate(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let label = &self.node_label;
        let has_key = label.rsplit_once('/').is_some_and(|(key, _)| !key.is_empty());
        if !label.is_empty() && !has_key {
            errors.push(FieldError::invalid("node_label", label, "expected key/value"));
        }
        errors
    }
}

struct SamplePlugin {
    /// Names and values of labels are [`Str`]s, and comparing two of these is mostly comparing two pointers.
    key: Str,
    value: Str,
    workload: String,
    /// Built once, because Filter may reject thousands of nodes per pod.
    reason: Str,
    /// Whether the pod is restricted: written by PreFilter, once per pod, and read by Filter for every node.
    restricted: CycleStateSlot<bool>,
}

fn build(points: &mut ExtensionPoints, given: &Value) -> Result<(), PluginError> {
    let args: Args = plugin_args::decode_plugin_args(NAME, given)?;
    let plugin = Arc::new(SamplePlugin::new(&args, points.cycle_state_slot()));
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.pre_bind = Some(plugin);
    for action in [ActionType::ADD, ActionType::UPDATE_NODE_LABEL] {
        points.register_event(ClusterEvent::new(EventResource::Node, action), None);
    }
    Ok(())
}

impl SamplePlugin {
    fn new(args: &Args, restricted: CycleStateSlot<bool>) -> SamplePlugin {
        let (key, value) = args.node_label.rsplit_once('/').unwrap_or((&args.node_label, ""));
        let workload = args.workload_name.clone();
        let reason = Str::from(format!("node(s) didn't have {key}={value} for {workload}"));
        SamplePlugin { key: key.into(), value: value.into(), workload, reason, restricted }
    }

    fn is_restricted(&self, pod: &PodInfo) -> bool {
        !self.key.is_empty() && !self.workload.is_empty() && pod.name.contains(&self.workload)
    }

    /// What PreFilter found; the configuration may enable Filter without it.
    fn restricts(&self, cx: Cx<'_>, pod: &PodInfo) -> bool {
        let written = cx.cycle.get(self.restricted).copied();
        written.unwrap_or_else(|| self.is_restricted(pod))
    }

    fn has_label(&self, node: NodeInfo<'_>) -> bool {
        node.labels().get(&self.key) == Some(&self.value)
    }

    fn rejection(&self) -> Rejection {
        Rejection::unresolvable(self.reason.clone())
    }
}

impl PreFilter for SamplePlugin {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        if !self.is_restricted(pod) {
            return Ok(PreFilterResult::Skip);
        }
        cx.cycle.set(self.restricted, true);
        Ok(PreFilterResult::All)
    }
}

impl Filter for SamplePlugin {
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let passes = !self.restricts(cx, pod) || self.has_label(node);
        if passes { Ok(()) } else { Err(self.rejection()) }
    }

    /// For thousands of nodes per pod: reads the state once, and makes no reasons.
    fn filter_nodes(
        &self,
        cx: Cx<'_>,
        pod: &PodInfo,
        nodes: &mut NodesToFilter<'_>,
    ) -> Result<(), Failure> {
        if self.restricts(cx, pod) {
            nodes.retain(|node| self.has_label(node));
        }
        Ok(())
    }
}

/// Checks again, because the label may have been removed since the scheduling cycle.
impl PreBind for SamplePlugin {
    fn pre_flight(&self, _: Cx<'_>, pod: &PodInfo, _: &str) -> Result<PreBindPreFlight, Rejection> {
        let work = PreBindPreFlight::Work { parallel: true };
        Ok(if self.is_restricted(pod) { work } else { PreBindPreFlight::Skip })
    }

    fn pre_bind(
        &self,
        cx: SerialCx<'_>,
        _: &Arc<PodInfo>,
        node: &str,
        _: PluginStepInput<'_>,
    ) -> PluginStep<()> {
        let node = cx.world.nodes().row(node).and_then(|row| cx.world.node(row));
        match node.map(|node| self.has_label(node)) {
            Some(true) => PluginStep::Done(()),
            Some(false) => PluginStep::Fail(self.rejection()),
            None => PluginStep::Fail(Failure::new("node not found").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use loadmaster::framework::testkit::{PluginTestBench, PluginTestBenchError};
    use serde_json::json;

    use super::*;

    fn bench() -> Result<PluginTestBench, PluginTestBenchError> {
        let mut bench = PluginTestBench::new(
            &DEF,
            json!({"node_label": "pool/gold", "workload_name": "train"}),
        )?;
        bench.node(json!({"metadata": {"name": "gold", "labels": {"pool": "gold"}}}))?;
        bench.node(json!({"metadata": {"name": "plain"}}))?;
        Ok(bench)
    }

    #[test]
    fn only_the_workload_is_restricted_to_labeled_nodes() -> Result<(), PluginTestBenchError> {
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
    fn unless_both_arguments_are_set_no_pod_is_restricted() -> Result<(), PluginTestBenchError> {
        for args in [
            json!({}),
            json!({"node_label": "pool/gold"}),
            json!({"workload_name": "train"}),
            json!({"node_label": "pool/gold", "workload_name": ""}),
            json!({"node_label": "", "workload_name": "train"}),
        ] {
            let mut bench = PluginTestBench::new(&DEF, args)?;
            bench.node(json!({"metadata": {"name": "plain"}}))?;
            assert_eq!(bench.filter(json!({"metadata": {"name": "train-7"}}))?, ["plain Success"]);
        }
        Ok(())
    }

    #[test]
    fn a_removed_label_fails_pre_bind() -> Result<(), PluginTestBenchError> {
        let mut bench = bench()?;
        let args = Args { node_label: "pool/gold".into(), workload_name: "train".into() };
        let plugin = SamplePlugin::new(&args, ExtensionPoints::default().cycle_state_slot());
        let pod = Arc::new(bench.parse_pod(json!({"metadata": {"name": "train-7"}}))?);
        let (mut cycle, mut states) = (CycleState::default(), PluginStates::default());
        let mut bind = |node: &str| {
            let cx = SerialCx { world: &bench.world, cycle: &mut cycle, states: &mut states };
            match plugin.pre_bind(cx, &pod, node, PluginStepInput::Start) {
                PluginStep::Fail(rejection) => rejection.message(),
                step => format!("{step:?}"),
            }
        };
        assert_eq!(bind("gold"), "Done(())");
        assert_eq!(bind("plain"), "node(s) didn't have pool=gold for train");
        assert_eq!(bind("lost"), "node not found");
        Ok(())
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        for (args, want) in [
            (json!({"node_label": "pool", "workload_name": "train"}), "expected key/value"),
            (json!({"node_label": "pool"}), "expected key/value"),
            (json!({"node_label": "/gold"}), "expected key/value"),
            (json!({"workload_name": 7}), "invalid type"),
            (json!({"node_label": "a/b", "workload": "x"}), "unknown field"),
        ] {
            let error = PluginTestBench::new(&DEF, args).err().expect("refused").to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn the_sample_configuration_is_valid() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/scheduler.yaml");
        let code = command().run_from(["sample-plugin", "config", "check", file]);
        assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
    }

    #[test]
    fn the_manifests_contain_the_sample_configuration() {
        let config =
            include_str!("../scheduler.yaml").lines().filter(|line| !line.starts_with('#'));
        let wanted: String = config.map(|line| format!("    {line}\n")).collect();
        assert!(include_str!("../deploy/sample-plugin.yaml").contains(&wanted), "{wanted}");
    }
}
