//! Plugin sets of versions without `multiPoint`, as v1 lists: every extension point with all its plugins.

use loadmaster_framework::FieldError;
use loadmaster_framework::plugin_args::decode_with_all_errors;
use serde_json::{Map, Value, json};

use super::default_plugins::{added_extension_points, added_plugins, default_plugins_at};
use super::{Converter, Profile};
use crate::annotated::{comment, comment_on};
use crate::extension_point::ExtensionPoint;
use crate::gates::AllFeatureGates;
use crate::in_tree_plugins::REMOVED_IN_V1BETA2;
use crate::merge::{MergeRule, merge_plugin_set};
use crate::origins::Origins;
use crate::v1::{Plugin, PluginSet};
use crate::version::ConfigVersion;

/// The plugins of all extension points of a profile, every one with the path of its entry in the file.
#[derive(Debug, Default)]
pub(crate) struct PluginLists([Vec<Entry>; ExtensionPoint::ALL.len()]);

/// A plugin in a list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    pub name: String,
    /// 0 if it has none.
    pub weight: i32,
    /// The path of the entry in the file; `None` for a default plugin.
    pub origin: Option<String>,
    /// Why the plugin is here, for `config convert`.
    pub comment: Option<String>,
}

impl PluginLists {
    /// The plugins of one extension point.
    pub fn at(&mut self, point: ExtensionPoint) -> &mut Vec<Entry> {
        &mut self.0[point as usize]
    }

    /// Adds a plugin to an extension point unless it is there.
    pub fn add(&mut self, point: ExtensionPoint, entry: Entry) {
        let list = self.at(point);
        if !list.iter().any(|known| known.name == entry.name) {
            list.push(entry);
        }
    }

    /// Adds plugins at extension points at which they run since a later release.
    pub fn add_extension_points(&mut self, version: ConfigVersion) {
        for (plugin, enabled_at, also_at) in added_extension_points(version) {
            let names = self.at(*enabled_at);
            if names.iter().any(|entry| entry.name == *plugin) {
                let comment = Some(format!("runs at {} as well today", also_at.field_name()));
                let name = (*plugin).to_owned();
                self.add(*also_at, Entry { name, comment, ..Entry::default() });
            }
        }
    }

    /// `plugins` of a v1 profile. `path` is that of `plugins`, for the origins.
    pub fn into_v1(self, path: &str, gates: &AllFeatureGates, origins: &mut Origins) -> Value {
        let added: Vec<Value> =
            added_plugins(gates).into_iter().map(|name| json!({"name": name})).collect();
        let mut plugins = Map::new();
        plugins.insert(
            "multiPoint".to_owned(),
            json!({"enabled": added, "disabled": [{"name": "*"}]}),
        );
        comment_on(
            &mut plugins,
            "multiPoint",
            "The default plugins of v1 are disabled: those of the older version stand below. The enabled ones are newer than it, and \
             without them pods would be scheduled that must wait.",
        );
        let lists = ExtensionPoint::ALL.into_iter().zip(self.0);
        for (point, entries) in lists.filter(|(_, entries)| !entries.is_empty()) {
            let field = point.field_name();
            let enabled = entries.into_iter().enumerate().map(|(idx, entry)| {
                if let Some(origin) = entry.origin {
                    origins.insert(format!("{path}.{field}.enabled[{idx}]"), origin);
                }
                let mut plugin = Map::new();
                plugin.insert("name".to_owned(), entry.name.into());
                if entry.weight != 0 {
                    plugin.insert("weight".to_owned(), entry.weight.into());
                }
                if let Some(text) = entry.comment {
                    comment(&mut plugin, text);
                }
                Value::Object(plugin)
            });
            plugins.insert(field.to_owned(), json!({"enabled": enabled.collect::<Vec<_>>()}));
        }
        Value::Object(plugins)
    }
}

/// The fields of `plugins` in a version without `multiPoint`, with the extension point that each stands for today.
fn fields_of_plugins(version: ConfigVersion) -> Vec<(&'static str, ExtensionPoint)> {
    use ExtensionPoint::{PostBind, PostFilter, PreScore, QueueSort, Reserve};
    let is_alpha = version <= ConfigVersion::V1Alpha2;
    let mut fields = Vec::new();
    for point in ExtensionPoint::ALL {
        match point {
            // Preemption was not a plugin yet, and PreScore was called PostFilter first.
            PostFilter if is_alpha => {}
            PreScore if version == ConfigVersion::V1Alpha1 => fields.push(("postFilter", PreScore)),
            _ if (QueueSort..=PostBind).contains(&point) => {
                fields.push((point.field_name(), point));
            }
            _ => {}
        }
        // Unreserve was an extension point of its own.
        if point == Reserve && is_alpha {
            fields.push(("unreserve", Reserve));
        }
    }
    fields
}

impl Converter<'_> {
    /// Merges the plugin sets of a profile with the default plugins of the version.
    pub(super) fn plugin_lists(
        &mut self,
        profile: &Profile<'_>,
        written: Option<Value>,
    ) -> PluginLists {
        let path = profile.origin("plugins");
        let mut written = self.object(&path, written);
        let fields = fields_of_plugins(self.version);
        let names: Vec<&str> = fields.iter().map(|(field, _)| *field).collect();
        self.retain_known_fields(&path, &mut written, &names);
        self.check_removed_plugins(&path, &written);
        let mut lists = PluginLists::default();
        for point in ExtensionPoint::ALL {
            // A set without a field of its own has the defaults.
            if !fields.iter().any(|(_, known)| *known == point) {
                let defaults = profile.default_plugins(self.version, point);
                lists.at(point).extend(defaults.into_iter().map(default_entry));
            }
        }
        for (field, point) in fields {
            let set_path = format!("{path}.{field}");
            let written = written.remove(field).unwrap_or_default();
            let (mut set, errors) = decode_with_all_errors::<PluginSet>(written);
            let errors = errors.into_iter().map(|error| error.with_path_prefix(&set_path));
            self.findings.errors.extend(errors);
            let set = set.get_or_insert_default();
            let is_unreserve = field == "unreserve";
            let defaults = if is_unreserve {
                Vec::new()
            } else {
                profile.default_plugins(self.version, point)
            };
            let renamed = if self.version <= ConfigVersion::V1Alpha2 {
                rename_plugins(set)
            } else {
                Vec::new()
            };
            let rule = if self.version >= ConfigVersion::V1Beta2 {
                MergeRule::ReplaceInPlace
            } else {
                MergeRule::Append
            };
            for (plugin, idx) in merge_plugin_set(defaults, set, rule) {
                let mut entry = default_entry(plugin);
                entry.origin = idx.map(|idx| format!("{set_path}.enabled[{idx}]"));
                if idx.is_some_and(|idx| renamed.contains(&idx)) {
                    entry.comment = Some(format!("was called {OLD_SELECTOR_SPREAD} then"));
                }
                if is_unreserve {
                    entry.comment = Some("Unreserve belongs to reserve today".to_owned());
                    lists.add(point, entry);
                } else {
                    lists.at(point).push(entry);
                }
            }
        }
        self.check_score_conflicts(&mut lists);
        lists.add_extension_points(self.version);
        lists
    }

    /// Reports the enabled plugins of `plugins` that were removed in this version or before.
    pub(super) fn check_removed_plugins(&mut self, path: &str, plugins: &Map<String, Value>) {
        for (field, set) in plugins {
            for (idx, plugin) in set["enabled"].as_array().into_iter().flatten().enumerate() {
                let path = format!("{path}.{field}.enabled[{idx}]");
                self.check_removed_plugin(&path, plugin["name"].as_str().unwrap_or_default());
            }
        }
    }

    /// Reports the plugin if it was removed in this version or before.
    pub(super) fn check_removed_plugin(&mut self, path: &str, name: &str) {
        if self.version >= ConfigVersion::V1Beta2 && REMOVED_IN_V1BETA2.contains(&name) {
            let why = format!(
                "was removed in version {:?} (KubeSchedulerConfiguration is version {:?})",
                ConfigVersion::V1Beta2.api_version(),
                self.version.api_version(),
            );
            self.findings.errors.push(FieldError::invalid(path, format_args!("{name:?}"), why));
        }
    }

    /// In v1beta1, NodeResourcesFit scores only without the plugins that do so alone (upstream's `isScorePluginConflict`).
    fn check_score_conflicts(&mut self, lists: &mut PluginLists) {
        if self.version != ConfigVersion::V1Beta1 {
            return;
        }
        let score = lists.at(ExtensionPoint::Score);
        let conflicts: Vec<String> = score
            .iter()
            .map(|entry| entry.name.clone())
            .filter(|name| super::RESOURCE_SCORES.contains(&name.as_str()))
            .collect();
        let fit = score.iter().find(|entry| entry.name == super::NODE_RESOURCES_FIT);
        if let Some(fit) = fit.filter(|_| !conflicts.is_empty()) {
            let api_version = self.version.api_version();
            let why = format!(
                "was conflict with {conflicts:?} in version {api_version:?} (KubeSchedulerConfiguration is version {api_version:?})"
            );
            let path = fit.origin.clone().unwrap_or_default();
            self.findings.errors.push(FieldError::invalid(
                path,
                format_args!("{:?}", fit.name),
                why,
            ));
        }
    }
}

fn default_entry(plugin: Plugin) -> Entry {
    Entry { name: plugin.name, weight: plugin.weight, ..Entry::default() }
}

/// The name of SelectorSpread in 1.18.
pub(super) const OLD_SELECTOR_SPREAD: &str = "DefaultPodTopologySpread";
/// Its name since 1.19.
pub(super) const SELECTOR_SPREAD: &str = "SelectorSpread";

/// Gives plugins their later names; returns which of the enabled ones had another name.
fn rename_plugins(set: &mut PluginSet) -> Vec<usize> {
    let mut renamed = Vec::new();
    for (idx, plugin) in set.enabled.iter_mut().enumerate() {
        if plugin.name == OLD_SELECTOR_SPREAD {
            SELECTOR_SPREAD.clone_into(&mut plugin.name);
            renamed.push(idx);
        }
    }
    for plugin in &mut set.disabled {
        if plugin.name == OLD_SELECTOR_SPREAD {
            SELECTOR_SPREAD.clone_into(&mut plugin.name);
        }
    }
    renamed
}

impl Profile<'_> {
    /// The default plugins of an extension point, as the fields outside of `plugins` change them.
    fn default_plugins(&self, version: ConfigVersion, point: ExtensionPoint) -> Vec<Plugin> {
        let mut plugins = default_plugins_at(version, point);
        if self.is_preemption_disabled {
            plugins.retain(|plugin| plugin.name != "DefaultPreemption");
        }
        if self.prefers_used_nodes {
            for plugin in &mut plugins {
                if plugin.name == "NodeResourcesLeastAllocated" {
                    "NodeResourcesMostAllocated".clone_into(&mut plugin.name);
                }
            }
        }
        plugins
    }
}
