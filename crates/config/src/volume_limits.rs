//! The limits of in-tree volumes, which NodeVolumeLimits replaced when these volumes moved to CSI drivers. v1 does not have them.

use serde_json::{Map, Value};

use crate::annotated::comment;
use crate::v1::{Plugin, Plugins};

/// The plugins that v1 rejects (upstream's `invalidPluginsByVersion`).
pub const PLUGINS: &[&str] = &["AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits"];

const NODE_VOLUME_LIMITS: &str = "NodeVolumeLimits";

/// Replaces them by NodeVolumeLimits.
pub(crate) fn replace(plugins: &mut Plugins) {
    for set in plugins.sets_mut() {
        let is_limit = |plugin: &Plugin| PLUGINS.contains(&plugin.name.as_str());
        let mut has_other = set.enabled.iter().any(|plugin| plugin.name == NODE_VOLUME_LIMITS);
        set.enabled.retain_mut(|plugin| {
            if is_limit(plugin) && !has_other {
                NODE_VOLUME_LIMITS.clone_into(&mut plugin.name);
                has_other = true;
            }
            !is_limit(plugin)
        });
        set.disabled.retain(|plugin| !is_limit(plugin));
    }
}

/// The same in the JSON form of `plugins`, with a comment where NodeVolumeLimits stands.
pub(crate) fn replace_in_value(plugins: &mut Map<String, Value>) {
    for set in plugins.values_mut().filter_map(Value::as_object_mut) {
        if let Some(Value::Array(enabled)) = set.get_mut("enabled") {
            let names: Vec<String> = enabled.iter().filter_map(limit_name).collect();
            if !names.is_empty() {
                replace_entries(enabled, &names);
            }
        }
        if let Some(Value::Array(disabled)) = set.get_mut("disabled") {
            disabled.retain(|plugin| limit_name(plugin).is_none());
        }
    }
}

fn limit_name(plugin: &Value) -> Option<String> {
    let name = plugin["name"].as_str()?;
    PLUGINS.contains(&name).then(|| name.to_owned())
}

fn replace_entries(enabled: &mut Vec<Value>, names: &[String]) {
    let mut has_other = enabled.iter().any(|plugin| plugin["name"] == NODE_VOLUME_LIMITS);
    enabled.retain_mut(|plugin| {
        if limit_name(plugin).is_none() {
            return true;
        }
        if has_other {
            return false;
        }
        has_other = true;
        plugin["name"] = NODE_VOLUME_LIMITS.into();
        true
    });
    let entry = enabled.iter_mut().find(|plugin| plugin["name"] == NODE_VOLUME_LIMITS);
    if let Some(Value::Object(entry)) = entry {
        let text = format!(
            "instead of {}: in-tree volumes count for their CSI drivers today",
            names.join(", ")
        );
        comment(entry, text);
    }
}
