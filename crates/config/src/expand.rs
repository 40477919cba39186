//! Which plugins run at which extension point: `multiPoint` expanded, overrides applied.

use crate::extension_point::{ExtensionPoint, ExtensionPointSet};
use crate::v1::{Plugin, PluginSet, Plugins};

/// The total score of a node has 64 bits (upstream's `MaxTotalScore`).
const TOTAL_SCORE_MAX: i64 = i64::MAX;

/// A plugin enabled at an extension point, with its weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedPlugin {
    /// Its name.
    pub name: String,
    /// Weight of its score at Score and PlacementScore; 0 at other extension points.
    pub weight: i32,
}

/// The plugins of every extension point, in the order in which they run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpandedPlugins([Vec<WeightedPlugin>; ExtensionPoint::ALL.len()]);

impl ExpandedPlugins {
    /// The plugins of one extension point.
    pub fn at_extension_point(&self, point: ExtensionPoint) -> &[WeightedPlugin] {
        &self.0[point as usize]
    }

    /// The extension points that have plugins, with their plugins.
    pub fn iter(&self) -> impl Iterator<Item = (ExtensionPoint, &[WeightedPlugin])> {
        ExtensionPoint::ALL
            .into_iter()
            .map(|point| (point, self.at_extension_point(point)))
            .filter(|(_, plugins)| !plugins.is_empty())
    }

    /// Retains the plugins for which `keep` returns true.
    pub(crate) fn retain(&mut self, keep: impl Fn(ExtensionPoint, &str) -> bool) {
        for (point, plugins) in ExtensionPoint::ALL.into_iter().zip(&mut self.0) {
            plugins.retain(|plugin| keep(point, &plugin.name));
        }
    }
}

/// A plugin set that cannot be expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpandError {
    /// The plugin set with the error, by its name in `plugins`: `filter`, `multiPoint`.
    pub at: &'static str,
    /// The plugin with the error, if it is a single one.
    pub plugin: Option<String>,
    /// The error.
    pub kind: ExpandErrorKind,
}

/// The error of a plugin set, with upstream's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExpandErrorKind {
    /// No plugin has this name.
    #[error("{point} {name:?} does not exist")]
    Unknown { point: ExtensionPoint, name: String },
    /// The same, in `multiPoint`.
    #[error("plugin {name:?} does not exist")]
    UnknownInMultiPoint { name: String },
    /// Enabled at an extension point that it does not implement.
    #[error("plugin {name:?} does not extend {point} plugin")]
    DoesNotExtend { point: ExtensionPoint, name: String },
    /// Enabled twice.
    #[error("plugin {name:?} already registered as {:?}", point.to_string())]
    AlreadyRegistered { point: ExtensionPoint, name: String },
    /// No queue sort plugin, or several.
    #[error(
        "only one queue sort plugin required for profile with scheduler name {profile:?}, but got {n_plugins}"
    )]
    QueueSortCount { profile: String, n_plugins: usize },
    /// No bind plugin.
    #[error("at least one bind plugin is needed for profile with scheduler name {profile:?}")]
    NoBindPlugin { profile: String },
    /// Several placement generate plugins.
    #[error(
        "at most one placement generate plugin is allowed for profile with scheduler name {profile:?}"
    )]
    PlacementGenerate { profile: String },
    /// Weights that are too large or have a negative sum.
    #[error("{what}: total score of Score plugins could overflow")]
    ScoreOverflow { what: &'static str },
}

/// Expands a profile's plugin sets. `implements` returns the extension points that a plugin implements,
/// and `None` for an unknown plugin.
pub fn expand_plugin_sets(
    profile: &str,
    plugins: &Plugins,
    implements: impl Fn(&str) -> Option<ExtensionPointSet>,
) -> Result<ExpandedPlugins, Vec<ExpandError>> {
    let mut errors = Vec::new();
    let mut expanded = ExpandedPlugins::default();
    for plugin in &plugins.multi_point.enabled {
        let name = &plugin.name;
        if implements(name).is_none() {
            errors.push(error(
                "multiPoint",
                name,
                ExpandErrorKind::UnknownInMultiPoint { name: name.clone() },
            ));
        }
    }
    for point in ExtensionPoint::ALL {
        let set = plugins.at_extension_point(point);
        check_enabled(point, set, &implements, &mut errors);
        let names = ordered_names(point, set, &plugins.multi_point, &implements, &mut errors);
        let weights = if point.is_weighted() {
            weights(point, plugins, &implements, &mut errors)
        } else {
            Vec::new()
        };
        let enabled = names.into_iter().map(|name| {
            let weight =
                weights.iter().find(|(known, _)| *known == name).map_or(0, |(_, weight)| *weight);
            WeightedPlugin { name: name.to_owned(), weight }
        });
        expanded.0[point as usize] = enabled.collect();
    }
    if errors.is_empty() {
        check_counts(profile, &expanded, &mut errors);
    }
    if errors.is_empty() { Ok(expanded) } else { Err(errors) }
}

fn error(at: &'static str, plugin: &str, kind: ExpandErrorKind) -> ExpandError {
    ExpandError { at, plugin: Some(plugin.to_owned()), kind }
}

/// Plugins enabled at the extension point itself must exist, implement it, and be enabled once.
fn check_enabled(
    point: ExtensionPoint,
    set: &PluginSet,
    implements: &impl Fn(&str) -> Option<ExtensionPointSet>,
    errors: &mut Vec<ExpandError>,
) {
    for (i, plugin) in set.enabled.iter().enumerate() {
        let name = plugin.name.clone();
        let kind = match implements(&name) {
            None => ExpandErrorKind::Unknown { point, name },
            Some(points) if !points.contains(point) => {
                ExpandErrorKind::DoesNotExtend { point, name }
            }
            Some(_) if set.enabled[..i].iter().any(|other| other.name == name) => {
                ExpandErrorKind::AlreadyRegistered { point, name }
            }
            Some(_) => continue,
        };
        errors.push(error(point.field_name(), &plugin.name, kind));
    }
}

/// The names of the plugins of an extension point, in order: those enabled both there and in
/// `multiPoint`, in the order of the former; those only in `multiPoint`; those only there. With
/// `disabled: "*"` the plugins of `multiPoint` are left out.
fn ordered_names<'a>(
    point: ExtensionPoint,
    set: &'a PluginSet,
    multi_point: &'a PluginSet,
    implements: &impl Fn(&str) -> Option<ExtensionPointSet>,
    errors: &mut Vec<ExpandError>,
) -> Vec<&'a str> {
    let specific: Vec<&str> = set.enabled.iter().map(|plugin| plugin.name.as_str()).collect();
    if set.disabled.iter().any(|plugin| plugin.name == "*") {
        return specific;
    }
    let mut overriding: Vec<&str> = Vec::new();
    let mut expanded: Vec<&str> = Vec::new();
    for Plugin { name, .. } in &multi_point.enabled {
        if !implements(name).is_some_and(|points| points.contains(point)) || set.disables(name) {
            continue;
        }
        if specific.contains(&name.as_str()) {
            overriding.push(name);
        } else if expanded.contains(&name.as_str()) {
            let kind = ExpandErrorKind::AlreadyRegistered { point, name: name.clone() };
            // Reported once per plugin, however many extension points it implements.
            if !errors
                .iter()
                .any(|error| error.at == "multiPoint" && error.plugin.as_ref() == Some(name))
            {
                errors.push(error("multiPoint", name, kind));
            }
        } else {
            expanded.push(name);
        }
    }
    let (first, last): (Vec<&str>, Vec<&str>) =
        specific.iter().partition(|name| overriding.contains(name));
    first.into_iter().chain(expanded).chain(last).collect()
}

/// Weights by name, of the plugins enabled at the extension point, then of those in `multiPoint`; the
/// first entry of a name counts, and 0 means 1.
fn weights<'a>(
    point: ExtensionPoint,
    plugins: &'a Plugins,
    implements: &impl Fn(&str) -> Option<ExtensionPointSet>,
    errors: &mut Vec<ExpandError>,
) -> Vec<(&'a str, i32)> {
    let mut weights: Vec<(&str, i32)> = Vec::new();
    let mut total: i64 = 0;
    for Plugin { name, weight } in
        plugins.at_extension_point(point).enabled.iter().chain(&plugins.multi_point.enabled)
    {
        let extends = implements(name).is_some_and(|points| points.contains(point));
        if !extends || weights.iter().any(|(known, _)| known == name) {
            continue;
        }
        let weight = if *weight == 0 { 1 } else { *weight };
        let largest = i64::from(weight) * loadmaster_framework::MAX_NODE_SCORE;
        // Upstream's subtraction wraps when the total so far is negative, and so negative weights are
        // rejected.
        if largest > TOTAL_SCORE_MAX.wrapping_sub(total) {
            let what = if point == ExtensionPoint::Score {
                "score plugins"
            } else {
                "placement score plugins"
            };
            errors.push(error(point.field_name(), name, ExpandErrorKind::ScoreOverflow { what }));
            break;
        }
        total += largest;
        weights.push((name, weight));
    }
    weights
}

fn check_counts(profile: &str, expanded: &ExpandedPlugins, errors: &mut Vec<ExpandError>) {
    let mut fail = |point: ExtensionPoint, kind| {
        errors.push(ExpandError { at: point.field_name(), plugin: None, kind })
    };
    let profile = profile.to_owned();
    match expanded.at_extension_point(ExtensionPoint::QueueSort).len() {
        1 => {}
        n_plugins => fail(
            ExtensionPoint::QueueSort,
            ExpandErrorKind::QueueSortCount { profile: profile.clone(), n_plugins },
        ),
    }
    if expanded.at_extension_point(ExtensionPoint::Bind).is_empty() {
        fail(ExtensionPoint::Bind, ExpandErrorKind::NoBindPlugin { profile: profile.clone() });
    }
    if expanded.at_extension_point(ExtensionPoint::PlacementGenerate).len() > 1 {
        fail(ExtensionPoint::PlacementGenerate, ExpandErrorKind::PlacementGenerate { profile });
    }
}
