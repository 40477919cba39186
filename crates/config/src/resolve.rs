//! From a valid configuration to profiles that can be built: every plugin is built once to learn
//! where it enters itself, plugin sets are expanded, and what only all profiles together can break
//! is checked.

use std::collections::BTreeMap;

use loadmaster_framework::{FeatureGates, FieldError, Points, Registry};
use serde_json::Value;

use crate::args::ArgsByName;
use crate::defaults;
use crate::expand::{ExpandError, Expanded, expand};
use crate::gates::Gates;
use crate::in_tree;
use crate::not_yet;
use crate::point::{Point, PointSet};
use crate::v1::{Extender, SchedulerConfiguration, SchedulerProfile};

/// The plugin that leaves resources alone which extenders look after.
const FIT: &str = "NodeResourcesFit";

/// A profile as an engine builds it.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Pods say it in `spec.schedulerName`.
    pub scheduler_name: String,
    /// How many of the nodes must be feasible before the search ends, in percent; the profile's own
    /// value or that of all.
    pub percentage_of_nodes_to_score: i32,
    /// The plugins to build, each once: those enabled anywhere that the registry has.
    pub plugins: Vec<String>,
    /// Which of them run at which point, in which order and with which weight.
    pub points: Expanded,
    /// Their arguments, as their `build` wants them.
    pub args: ArgsByName,
    /// Who is asked beside them: the same in every profile.
    pub extenders: Vec<Extender>,
}

impl Profile {
    /// The arguments of a plugin; null for one that takes none.
    pub fn args_of(&self, plugin: &str) -> &Value {
        self.args.get(plugin).unwrap_or(&Value::Null)
    }
}

/// Resources that an extender looks after alone take the place of those that NodeResourcesFit was told to ignore (upstream's
/// `buildExtenders`).
fn ignore_managed(
    extenders: &[Extender],
    profile: &SchedulerProfile,
    args: &mut ArgsByName,
) -> Option<FieldError> {
    let managed = extenders.iter().enumerate().flat_map(|(i, extender)| {
        let all = extender.managed_resources.iter().enumerate();
        all.filter(|(_, it)| it.ignored_by_scheduler).map(move |(j, it)| (i, j, it.name.as_str()))
    });
    let ignored: Vec<(usize, usize, &str)> = managed.collect();
    let (i, j, _) = *ignored.first()?;
    let names: Vec<&str> = ignored.iter().map(|(_, _, name)| *name).collect();
    match args.get_mut(FIT) {
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

/// What all profiles are resolved against. `written` is the file, where it is looked up at which
/// place a plugin was named.
pub(crate) struct Resolver<'a> {
    pub registry: &'a Registry,
    pub gates: &'a Gates,
    pub features: &'a FeatureGates,
    pub written: &'a Value,
}

impl Resolver<'_> {
    /// All profiles, or everything that keeps them from being built.
    pub fn resolve(
        &self,
        config: &SchedulerConfiguration,
        args: Vec<ArgsByName>,
    ) -> Result<Vec<Profile>, Vec<FieldError>> {
        let mut profiles = Vec::new();
        let mut errors = Vec::new();
        for (idx, (profile, mut args)) in config.profiles.iter().zip(args).enumerate() {
            errors.extend(ignore_managed(&config.extenders, profile, &mut args));
            match self.profile(idx, profile, args) {
                Ok((points, plugins, args)) => profiles.push(Profile {
                    scheduler_name: profile.scheduler_name.clone(),
                    percentage_of_nodes_to_score: profile
                        .percentage_of_nodes_to_score
                        .unwrap_or(config.percentage_of_nodes_to_score),
                    plugins,
                    points,
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
        mut args: ArgsByName,
    ) -> Result<(Expanded, Vec<String>, ArgsByName), Vec<FieldError>> {
        let mut errors = self.unbuilt(idx, profile);
        let (entered, found) = self.build(idx, profile, &args);
        if !found.is_empty() {
            // What a plugin that cannot be built would have entered itself at is not known.
            errors.extend(found);
            return Err(errors);
        }
        // For an in-tree plugin upstream's table holds, beside what the plugin of that name enters
        // itself at.
        let implements = |name: &str| match (entered.get(name).copied(), in_tree::points(name)) {
            (None, None) => None,
            (entered, known) => Some(entered.unwrap_or_default().or(known.unwrap_or_default())),
        };
        let expanded = expand(&profile.scheduler_name, &profile.plugins, implements);
        let mut points = match expanded {
            Ok(points) if errors.is_empty() => points,
            Ok(_) => return Err(errors),
            Err(found) => {
                errors.extend(found.iter().map(|error| self.expand_error(idx, error)));
                return Err(errors);
            }
        };
        points.retain(|point, name| entered.get(name).is_some_and(|points| points.contains(point)));
        args.retain(|name, _| entered.contains_key(name));
        let plugins = self
            .registry
            .iter()
            .map(|plugin| plugin.name)
            .filter(|name| entered.contains_key(*name));
        let plugins = plugins.map(str::to_owned).collect();
        Ok((points, plugins, args))
    }

    /// Plugins of kube-scheduler that are not built here and that do not run by default either.
    fn unbuilt(&self, idx: usize, profile: &SchedulerProfile) -> Vec<FieldError> {
        let defaults = defaults::plugins(self.gates);
        let is_default = |name: &str| defaults.iter().any(|plugin| plugin.name == name);
        let mut errors = Vec::new();
        for (at, set) in profile.plugins.sets() {
            for plugin in &set.enabled {
                let name = &plugin.name;
                if not_yet::is_unbuilt(name, self.registry) && !is_default(name) {
                    errors.push(not_yet::refused_plugin(self.path_of(idx, at, Some(name)), name));
                }
            }
        }
        errors
    }

    /// Builds the plugins a profile enables; where each entered itself.
    fn build(
        &self,
        idx: usize,
        profile: &SchedulerProfile,
        args: &ArgsByName,
    ) -> (BTreeMap<String, PointSet>, Vec<FieldError>) {
        let mut entered = BTreeMap::new();
        let mut errors = Vec::new();
        for name in profile.plugins.enabled_names() {
            let Some(plugin) = self.registry.get(name) else { continue };
            let mut points = Points::default();
            points.gates = self.features.clone();
            match (plugin.build)(&mut points, args.get(name).unwrap_or(&Value::Null)) {
                Ok(()) => drop(entered.insert(name.to_owned(), PointSet::entered(&points))),
                Err(error) => {
                    let configured =
                        profile.plugin_config.iter().position(|config| config.name == name);
                    let path = match configured {
                        Some(config_idx) => {
                            format!("profiles[{idx}].pluginConfig[{config_idx}].args")
                        }
                        None => format!("profiles[{idx}]"),
                    };
                    errors.push(FieldError { path, text: error.to_string() });
                }
            }
        }
        (entered, errors)
    }

    fn expand_error(&self, idx: usize, error: &ExpandError) -> FieldError {
        let path = self.path_of(idx, error.at, error.plugin.as_deref());
        FieldError { path, text: error.kind.to_string() }
    }

    /// Where a plugin is enabled in the file: its last mention counts. The set itself when it
    /// stands there by default.
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

/// One queue serves all profiles: after expansion, too, they must name the same plugin and give it
/// the same arguments.
fn different_queue_sorts(profiles: &[Profile]) -> Vec<FieldError> {
    let queue_sort = |profile: &Profile| {
        let name =
            profile.points.at(Point::QueueSort).first().map_or("", |plugin| plugin.name.as_str());
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

/// Leaves the arguments of plugins that run, sorted by name: the rest is not shown, as upstream
/// does not show it.
pub(crate) fn trim_args(profile: &mut SchedulerProfile, registry: &Registry) {
    let enabled: Vec<String> =
        profile.plugins.enabled_names().into_iter().map(str::to_owned).collect();
    profile.plugin_config.retain(|config| {
        let is_known =
            registry.get(&config.name).is_some() || not_yet::is_unbuilt(&config.name, registry);
        is_known && enabled.contains(&config.name) && !config.args.is_null()
    });
    profile.plugin_config.sort_by(|a, b| a.name.cmp(&b.name));
}
