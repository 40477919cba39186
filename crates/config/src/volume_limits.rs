//! The limits of in-tree volumes, which NodeVolumeLimits replaced when these volumes moved to CSI drivers. v1 does not have them.

use serde_json::{Map, Value};

use crate::annotated::comment;
use crate::v1::Plugins;

/// The plugins that v1 rejects (upstream's `invalidPluginsByVersion`).
pub const PLUGINS: &[&str] = &["AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits"];

const NODE_VOLUME_LIMITS: &str = "NodeVolumeLimits";

/// Replaces them by NodeVolumeLimits.
pub(crate) fn replace(plugins: &mut Plugins) {
    for set in plugins.sets_mut() {
        replace_entries(&mut set.enabled, |plugin| Some(&mut plugin.name));
        set.disabled.retain(|plugin| !is_limit(&plugin.name));
    }
}

/// The same in the JSON form of `plugins`, with a comment where NodeVolumeLimits stands.
pub(crate) fn replace_in_value(plugins: &mut Map<String, Value>) {
    for set in plugins.values_mut().filter_map(Value::as_object_mut) {
        if let Some(Value::Array(enabled)) = set.get_mut("enabled") {
            let replaced = replace_entries(enabled, |plugin| match plugin.get_mut("name") {
                Some(Value::String(name)) => Some(name),
                _ => None,
            });
            if !replaced.is_empty() {
                comment_on_replacement(enabled, &replaced);
            }
        }
        if let Some(Value::Array(disabled)) = set.get_mut("disabled") {
            disabled.retain(|plugin| !plugin["name"].as_str().is_some_and(is_limit));
        }
    }
}

fn is_limit(name: &str) -> bool {
    PLUGINS.contains(&name)
}

/// Replaces the first limit of a list by NodeVolumeLimits, unless that is enabled as well, and removes the others; returns their names.
fn replace_entries<T>(
    enabled: &mut Vec<T>,
    name_of: impl Fn(&mut T) -> Option<&mut String>,
) -> Vec<String> {
    let is_other = |plugin: &mut T| name_of(plugin).is_some_and(|name| name == NODE_VOLUME_LIMITS);
    let mut has_other = enabled.iter_mut().any(is_other);
    let mut replaced = Vec::new();
    enabled.retain_mut(|plugin| {
        let Some(name) = name_of(plugin).filter(|name| is_limit(name)) else { return true };
        replaced.push(std::mem::replace(name, NODE_VOLUME_LIMITS.to_owned()));
        !std::mem::replace(&mut has_other, true)
    });
    replaced
}

fn comment_on_replacement(enabled: &mut [Value], replaced: &[String]) {
    let entry = enabled.iter_mut().find(|plugin| plugin["name"] == NODE_VOLUME_LIMITS);
    if let Some(Value::Object(entry)) = entry {
        let text = format!(
            "instead of {}: in-tree volumes count for their CSI drivers today",
            replaced.join(", ")
        );
        comment(entry, text);
    }
}
