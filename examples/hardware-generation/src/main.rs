//! Filters out nodes with old hardware and prefers new hardware, by a node label with the hardware generation.

use std::sync::Arc;

use loadmaster::SchedulerCommand;
use loadmaster::framework::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const NAME: &str = "HardwareGeneration";
const DEF: PluginDef = PluginDef {
    name: NAME,
    build,
    args: Some(plugin_args::default_and_validate_args::<Generation>),
};

/// Nodes below `minimum` are rejected; each generation above it adds 10 to the score.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Generation {
    label: String,
    minimum: i64,
}
impl plugin_args::PluginArgs for Generation {}

fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(plugin_args::decode_plugin_args::<Generation>(NAME, args)?);
    points.filter = Some(plugin.clone());
    points.score = Some(plugin);
    Ok(())
}

impl Filter for Generation {
    fn filter(&self, _: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let old = || Rejection::unresolvable("node(s) had too old hardware");
        self.above_minimum(node).filter(|above| *above >= 0).map(|_| ()).ok_or_else(old)
    }
}

impl Score for Generation {
    fn score(&self, _: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        Ok((10 * self.above_minimum(node).unwrap_or(0)).clamp(0, MAX_NODE_SCORE))
    }
}

impl Generation {
    fn above_minimum(&self, node: NodeInfo<'_>) -> Option<i64> {
        Some(node.labels().get(&self.label)?.parse::<i64>().ok()? - self.minimum)
    }
}

fn main() -> std::process::ExitCode {
    SchedulerCommand::new()
        .with_name(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
        .with_plugin(DEF)
        .run()
}

#[test]
fn old_hardware_is_rejected_and_new_hardware_preferred() -> Result<(), testkit::PluginTestBenchError>
{
    let json = |text| serde_json::from_str::<Value>(text).expect("JSON");
    let mut bench = testkit::PluginTestBench::new(&DEF, json(r#"{"label": "gen", "minimum": 2}"#))?;
    bench.node(json(r#"{"metadata": {"name": "old", "labels": {"gen": "1"}}}"#))?;
    bench.node(json(r#"{"metadata": {"name": "new", "labels": {"gen": "5"}}}"#))?;
    assert_eq!(bench.score(json(r#"{"metadata": {"name": "web"}}"#))?, [("new".into(), 30)]);
    Ok(())
}
