//! {{plugin}}: pods with a certain label run only on nodes with the same value of this label, and prefer the node with the fewest pods.
//! Replace it by a plugin of your own.

use std::sync::Arc;

use loadmaster::framework::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The plugin's name in the configuration.
const NAME: &str = "{{plugin}}";

/// The plugin's definition, to be registered with `SchedulerCommand::with_plugin`.
pub const DEF: PluginDef = PluginDef {
    name: NAME,
    build,
    args: Some(plugin_args::default_and_validate_args::<Args>),
};

/// The plugin's arguments, `pluginConfig[].args` in the configuration.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Args {
    /// The key of the label.
    label: String,
}

impl plugin_args::PluginArgs for Args {
    fn validate(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if self.label.is_empty() {
            errors.push(FieldError::required("label", "expected the key of a label"));
        }
        errors
    }
}

struct Plugin {
    args: Args,
}

/// Creates the plugin once per profile, and registers it for its extension points.
fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    let args = plugin_args::decode_plugin_args(NAME, args)?;
    let plugin = Arc::new(Plugin { args });
    points.filter = Some(plugin.clone());
    points.score = Some(plugin);
    // A rejected pod is tried again when a node is added or its labels change.
    let action = ActionType::ADD | ActionType::UPDATE_NODE_LABEL;
    points.register_event(ClusterEvent::new(EventResource::Node, action), None);
    Ok(())
}

impl Filter for Plugin {
    fn filter(&self, _: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let wanted = pod.template.labels.get(&self.args.label);
        if wanted.is_none() || wanted == node.labels().get(&self.args.label) {
            return Ok(());
        }
        Err(Rejection::unresolvable(
            "node(s) had another value of the pod's label",
        ))
    }
}

impl Score for Plugin {
    fn score(&self, _: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        Ok((MAX_NODE_SCORE - node.n_pods()).clamp(0, MAX_NODE_SCORE))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use loadmaster::testkit::{PluginTestBench, PluginTestBenchError, TestCluster, node, pod};
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_run_on_nodes_with_their_label() -> Result<(), PluginTestBenchError> {
        let profile = json!({
            "plugins": {"multiPoint": {"enabled": [{"name": NAME}]}},
            "pluginConfig": [{"name": NAME, "args": {"label": "pool"}}],
        });
        let mut cluster = TestCluster::new([DEF], profile)?;
        cluster.upsert_node(node("plain"))?;
        cluster.create_pod(pod("train").label("pool", "gold"))?;
        cluster.create_pod(pod("web"))?;
        cluster.run_until_idle()?;
        assert_eq!(cluster.node_of("web"), Some("plain".to_owned()));
        let message = cluster.pending_message("train").unwrap_or_default();
        assert!(
            message.contains("had another value of the pod's label"),
            "{message}"
        );
        cluster.upsert_node(node("gold").label("pool", "gold"))?;
        cluster.advance_time(Duration::from_secs(10))?;
        assert_eq!(cluster.node_of("train"), Some("gold".to_owned()));
        Ok(())
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        for (args, want) in [
            (json!({}), "missing field"),
            (json!({"label": ""}), "expected the key of a label"),
            (json!({"label": "a", "value": "b"}), "unknown field"),
        ] {
            let error = PluginTestBench::new(&DEF, args)
                .err()
                .expect("an error")
                .to_string();
            assert!(error.contains(want), "{error}");
        }
    }
}
