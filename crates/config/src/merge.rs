//! Merges the plugins of a file with the default ones.

use crate::v1::{Plugin, PluginSet};

/// What happens to a default plugin that the file enables as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MergeRule {
    /// The file's entry is appended: the plugin stands twice, which is rejected later, unless the default one is disabled.
    Append,
    /// The file's entry replaces the default one in its place; since v1beta2.
    ReplaceInPlace,
}

/// The default plugins that are not disabled, then the plugins of the file in order, each with its index in `written.enabled`
/// (upstream's `mergePluginSet`). A name that occurs twice stays twice and is rejected when the set is expanded.
pub(crate) fn merge_plugin_set(
    defaults: Vec<Plugin>,
    written: &PluginSet,
    rule: MergeRule,
) -> Vec<(Plugin, Option<usize>)> {
    let mut replacing = vec![false; written.enabled.len()];
    let mut merged = Vec::with_capacity(defaults.len() + written.enabled.len());
    for default in defaults {
        if written.disables(&default.name) {
            continue;
        }
        let same_name = |plugin: &Plugin| plugin.name == default.name;
        match written.enabled.iter().rposition(same_name) {
            Some(idx) if rule == MergeRule::ReplaceInPlace => {
                replacing[idx] = true;
                merged.push((written.enabled[idx].clone(), Some(idx)));
            }
            _ => merged.push((default, None)),
        }
    }
    let rest = written.enabled.iter().enumerate().filter(|(idx, _)| !replacing[*idx]);
    merged.extend(rest.map(|(idx, plugin)| (plugin.clone(), Some(idx))));
    merged
}
