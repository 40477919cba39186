//! From a valid configuration to profiles: every plugin of a profile is built, once, which also shows which
//! extension points it implements, plugin sets are expanded, and the rules across profiles are checked.

use std::collections::BTreeMap;

use loadmaster_framework::{BuiltPlugin, BuiltPlugins, FeatureGates, FieldError, Registry};
use serde_json::Value;

use crate::args::ArgsByPlugin;
use crate::defaults;
use crate::expand::{ExpandError, ExpandErrorKind, ExpandedPlugins, expand_plugin_sets};
use crate::extension_point::{ExtensionPoint, ExtensionPointSet};
use crate::gates::AllFeatureGates;
use crate::in_tree_plugins;
use crate::unsupported;
use crate::v1::{Extender, PluginSet, SchedulerConfiguration, SchedulerProfile};
use crate::volume_limits;
use loadmaster_stdx::CollectByInsertion as _;
use loadmaster_stdx::SortCompactly as _;
use loadmaster_stdx::did_you_mean;

/// The plugin that ignores resources managed by extenders.
const NODE_RESOURCES_FIT: &str = "NodeResourcesFit";

/// A scheduling profile, ready to be built by the engine.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedProfile {
    /// The `spec.schedulerName` of its pods.
    pub scheduler_name: String,
    /// Percentage of nodes that must be feasible before the search ends: the profile's own value or the
    /// global one.
    pub percentage_of_nodes_to_score: i32,
    /// The plugins of the registry that are enabled at any extension point, built.
    pub plugins: BuiltPlugins,
    /// The plugins of every extension point, in order and with their weights.
    pub extension_points: ExpandedPlugins,
    /// The arguments of the plugins, as passed to their `build`.
    pub args: ArgsByPlugin,
    /// The extenders, the same for every profile.
    pub extenders: Vec<Extender>,
}

impl ResolvedProfile {
    /// The arguments of a plugin; null for one that takes none.
    pub fn args_of(&self, plugin: &str) -> &Value {
        self.args.get(plugin).unwrap_or(&Value::Null)
    }
}

/// Replaces `ignoredResources` of NodeResourcesFit by the resources that extenders manage and the scheduler ignores
/// (upstream's `buildExtenders`).
fn ignore_managed_resources(
    extenders: &[Extender],
    profile: &SchedulerProfile,
    args: &mut ArgsByPlugin,
) -> Option<FieldError> {
    let managed = extenders.iter().enumerate().flat_map(|(i, extender)| {
        let all = extender.managed_resources.iter().enumerate();
        all.filter(|(_, it)| it.ignored_by_scheduler).map(move |(j, it)| (i, j, it.name.as_str()))
    });
    let ignored: Vec<(usize, usize, &str)> = managed.collect();
    let (i, j, _) = *ignored.first()?;
    let names: Vec<&str> = ignored.iter().map(|(_, _, name)| *name).collect();
    match args.get_mut(NODE_RESOURCES_FIT) {
        Some(Value::Object(args)) => {
            args.insert("ignoredResources".to_owned(), names.into());
            None
        }
        _ => Some(FieldError {
            path: format!("extenders[{i}].managedResources[{j}].ignoredByScheduler"),
            text: format!(
                "can't find NodeResourcesFitArgs in plugin config of profile {:?}",
                profile.scheduler_name
            ),
        }),
    }
}

/// Resolves the profiles of one configuration. `written` is the file's content, used to find the path of
/// a plugin for error messages.
pub(crate) struct Resolver<'a> {
    pub registry: &'a Registry,
    pub gates: &'a AllFeatureGates,
    pub features: &'a FeatureGates,
    pub written: &'a Value,
    /// The file is of an older version, in which the limits of in-tree volumes are plugins.
    pub is_old: bool,
}

impl Resolver<'_> {
    /// All profiles, or all errors.
    pub fn resolve(
        &self,
        config: &SchedulerConfiguration,
        args: Vec<ArgsByPlugin>,
    ) -> Result<Vec<ResolvedProfile>, Vec<FieldError>> {
        let mut profiles = Vec::new();
        let mut errors = Vec::new();
        for (idx, (profile, mut args)) in config.profiles.iter().zip(args).enumerate() {
            errors.extend(ignore_managed_resources(&config.extenders, profile, &mut args));
            match self.profile(idx, profile, args) {
                Ok((points, plugins, args)) => profiles.push(ResolvedProfile {
                    scheduler_name: profile.scheduler_name.clone(),
                    percentage_of_nodes_to_score: profile
                        .percentage_of_nodes_to_score
                        .unwrap_or(config.percentage_of_nodes_to_score),
                    plugins,
                    extension_points: points,
                    args,
                    extenders: config.extenders.clone(),
                }),
                Err(found) => errors.extend(found),
            }
        }
        if errors.is_empty() {
            errors = different_queue_sorts(&profiles);
        }
        if errors.is_empty() { Ok(profiles) } else { Err(errors) }
    }

    fn profile(
        &self,
        idx: usize,
        profile: &SchedulerProfile,
        mut args: ArgsByPlugin,
    ) -> Result<(ExpandedPlugins, BuiltPlugins, ArgsByPlugin), Vec<FieldError>> {
        let mut errors = self.unimplemented_plugins(idx, profile);
        let built = match self.build(idx, profile, &args) {
            Ok(built) => built,
            Err(found) => {
                // The extension points of a plugin that cannot be built are unknown.
                errors.extend(found);
                return Err(errors);
            }
        };
        let enabled = profile.plugins.enabled_names();
        if enabled.iter().any(|name| unsupported::has_unknown_points(name, self.registry)) {
            return Err(errors);
        }
        let points_of = |it: &BuiltPlugin| ExtensionPointSet::implemented_by(&it.points);
        let implemented: BTreeMap<&str, ExtensionPointSet> =
            built.as_slice().iter().map(|it| (it.name, points_of(it))).collect_by_insertion();
        // An in-tree plugin has upstream's extension points, and those that the plugin of that name has
        // registered for.
        let implements = |name: &str| match (
            implemented
                .get(name)
                .copied()
                .filter(|_| self.is_old || !volume_limits::PLUGINS.contains(&name)),
            in_tree_plugins::in_tree_extension_points(name),
        ) {
            (None, None) => None,
            (implemented, known) => {
                Some(implemented.unwrap_or_default().union(known.unwrap_or_default()))
            }
        };
        let expanded = expand_plugin_sets(&profile.scheduler_name, &profile.plugins, implements);
        let mut points = match expanded {
            Ok(points) if errors.is_empty() => points,
            Ok(_) => return Err(errors),
            Err(found) => {
                errors.extend(found.iter().map(|error| self.expand_error(idx, error)));
                return Err(errors);
            }
        };
        points.retain(|point, name| {
            implemented.get(name).is_some_and(|points| points.contains(point))
        });
        args.retain(|name, _| implemented.contains_key(name.as_str()));
        Ok((points, built, args))
    }

    /// Errors for enabled plugins that do not exist; for a configuration with other errors, whose plugins cannot be built.
    pub fn unknown_plugins(&self, config: &SchedulerConfiguration) -> Vec<FieldError> {
        let mut errors = Vec::new();
        for (idx, profile) in config.profiles.iter().enumerate() {
            let mut check = |at, set, kind: &dyn Fn(String) -> ExpandErrorKind| {
                for name in self.unknown_names(set) {
                    let error = ExpandError { at, plugin: Some(name.clone()), kind: kind(name) };
                    errors.push(self.expand_error(idx, &error));
                }
            };
            for point in ExtensionPoint::ALL {
                let set = profile.plugins.at_extension_point(point);
                check(point.field_name(), set, &|name| ExpandErrorKind::Unknown { point, name });
            }
            let set = &profile.plugins.multi_point;
            check("multiPoint", set, &|name| ExpandErrorKind::UnknownInMultiPoint { name });
        }
        errors
    }

    /// The names of enabled plugins that do not exist.
    fn unknown_names(&self, set: &PluginSet) -> impl Iterator<Item = String> {
        set.enabled.iter().map(|plugin| plugin.name.clone()).filter(|name| {
            let is_known = self.registry.get(name).is_some()
                || in_tree_plugins::in_tree_extension_points(name).is_some()
                || unsupported::has_unknown_points(name, self.registry);
            !is_known && !name.is_empty()
        })
    }

    /// Errors for plugins that are not implemented and not enabled by default.
    fn unimplemented_plugins(&self, idx: usize, profile: &SchedulerProfile) -> Vec<FieldError> {
        let defaults = defaults::default_plugins(self.gates);
        let is_default = |name: &str| defaults.iter().any(|plugin| plugin.name == name);
        let mut errors = Vec::new();
        for (at, set) in profile.plugins.plugin_sets() {
            for plugin in &set.enabled {
                let name = &plugin.name;
                if unsupported::is_unimplemented(name, self.registry) && !is_default(name) {
                    errors.push(unsupported::unsupported_plugin(
                        self.path_of(idx, at, Some(name)),
                        name,
                    ));
                }
            }
        }
        errors
    }

    /// Builds the plugins that a profile enables, in the order of the registry.
    fn build(
        &self,
        idx: usize,
        profile: &SchedulerProfile,
        args: &ArgsByPlugin,
    ) -> Result<BuiltPlugins, Vec<FieldError>> {
        let enabled = profile.plugins.enabled_names();
        let position = |name: &str| enabled.iter().position(|known| *known == name);
        let plugins = self.registry.iter().filter(|plugin| position(plugin.name).is_some());
        let with_args =
            plugins.map(|plugin| (plugin, args.get(plugin.name).unwrap_or(&Value::Null)));
        BuiltPlugins::build(&profile.scheduler_name, with_args, self.features).map_err(
            |mut errors| {
                errors.sort_compactly_by_key(|(name, _)| position(name));
                let located = errors.into_iter().map(|(name, error)| {
                    let configured = profile.plugin_config.iter().position(|it| it.name == name);
                    let path = match configured {
                        Some(config_idx) => {
                            format!("profiles[{idx}].pluginConfig[{config_idx}].args")
                        }
                        None => format!("profiles[{idx}]"),
                    };
                    FieldError { path, text: error.to_string() }
                });
                located.collect()
            },
        )
    }

    fn expand_error(&self, idx: usize, error: &ExpandError) -> FieldError {
        let path = self.path_of(idx, error.at, error.plugin.as_deref());
        let mut text = error.kind.to_string();
        if let ExpandErrorKind::Unknown { name, .. }
        | ExpandErrorKind::UnknownInMultiPoint { name } = &error.kind
        {
            let known = self.registry.iter().map(|plugin| plugin.name);
            text += &did_you_mean(name, known.chain(in_tree_plugins::in_tree_plugin_names()));
        }
        FieldError { path, text }
    }

    /// The path of a plugin in the file, of its last entry; the path of the set when the plugin is enabled
    /// by default.
    fn path_of(&self, idx: usize, at: &str, plugin: Option<&str>) -> String {
        let set = format!("profiles[{idx}].plugins.{at}");
        let Some(plugin) = plugin else { return set };
        let enabled = self.written["profiles"][idx]["plugins"][at]["enabled"].as_array();
        match enabled.and_then(|enabled| enabled.iter().rposition(|entry| entry["name"] == plugin))
        {
            Some(plugin_idx) => format!("{set}.enabled[{plugin_idx}].name"),
            None => set,
        }
    }
}

/// All profiles share one queue: also after expansion they must have the same queue sort plugin with the
/// same arguments.
fn different_queue_sorts(profiles: &[ResolvedProfile]) -> Vec<FieldError> {
    let queue_sort = |profile: &ResolvedProfile| {
        let name = profile
            .extension_points
            .at_extension_point(ExtensionPoint::QueueSort)
            .first()
            .map_or("", |plugin| plugin.name.as_str());
        (name.to_owned(), profile.args_of(name).clone())
    };
    let mut errors = Vec::new();
    let Some((first, first_args)) = profiles.first().map(queue_sort) else { return errors };
    for (idx, profile) in profiles.iter().enumerate().skip(1) {
        let scheduler_name = &profile.scheduler_name;
        let (name, args) = queue_sort(profile);
        let text = if name != first {
            format!(
                "different queue sort plugins for profile {scheduler_name:?}: {name:?}, first: {first:?}"
            )
        } else if args != first_args {
            format!("different queue sort plugin args for profile {scheduler_name:?}")
        } else {
            continue;
        };
        errors.push(FieldError { path: format!("profiles[{idx}]"), text });
    }
    errors
}

/// Removes the arguments of plugins that are not enabled and sorts the rest by name, as upstream does
/// for `--write-config-to`.
pub(crate) fn trim_args(profile: &mut SchedulerProfile, registry: &Registry) {
    let enabled: Vec<String> =
        profile.plugins.enabled_names().into_iter().map(str::to_owned).collect();
    profile.plugin_config.retain(|config| {
        let is_known = registry.get(&config.name).is_some()
            || unsupported::is_unimplemented(&config.name, registry);
        is_known && enabled.contains(&config.name) && !config.args.is_null()
    });
    profile.plugin_config.sort_compactly_by(|a, b| a.name.cmp(&b.name));
}
