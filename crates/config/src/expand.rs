//! Which plugins run at which extension point: `multiPoint` expanded, overrides applied.

use crate::point::{Point, PointSet};
use crate::v1::{Plugin, PluginSet, Plugins};

/// Scores of a node add up in 64 bits; upstream's `MaxTotalScore`.
const TOTAL_SCORE_MAX: i64 = i64::MAX;

/// A plugin as it runs at a point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its name.
    pub name: String,
    /// Factor of its score, at points that have one (Score, PlacementScore); else 0.
    pub weight: i32,
}

/// Every point's plugins in the order in which they run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expanded([Vec<Placed>; Point::ALL.len()]);

impl Expanded {
    /// The plugins of one point.
    pub fn at(&self, point: Point) -> &[Placed] {
        &self.0[point as usize]
    }

    /// Points and their plugins, points without plugins left out.
    pub fn iter(&self) -> impl Iterator<Item = (Point, &[Placed])> {
        Point::ALL
            .into_iter()
            .map(|point| (point, self.at(point)))
            .filter(|(_, plugins)| !plugins.is_empty())
    }

    /// Only the plugins of which `keep` says so.
    pub(crate) fn retain(&mut self, keep: impl Fn(Point, &str) -> bool) {
        for (point, plugins) in Point::ALL.into_iter().zip(&mut self.0) {
            plugins.retain(|plugin| keep(point, &plugin.name));
        }
    }
}

/// A plugin set that cannot be expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpandError {
    /// The set at fault, by its name in `plugins`: `filter`, `multiPoint`.
    pub at: &'static str,
    /// The plugin at fault, if it is a single one.
    pub plugin: Option<String>,
    /// What is wrong.
    pub kind: ExpandErrorKind,
}

/// What is wrong with a plugin set, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExpandErrorKind {
    /// No plugin has this name.
    #[error("{point} {name:?} does not exist")]
    Unknown { point: Point, name: String },
    /// The same, in `multiPoint`.
    #[error("plugin {name:?} does not exist")]
    UnknownAnywhere { name: String },
    /// Enabled at a point at which it does nothing.
    #[error("plugin {name:?} does not extend {point} plugin")]
    NotImplemented { point: Point, name: String },
    /// Enabled twice.
    #[error("plugin {name:?} already registered as {:?}", point.to_string())]
    Twice { point: Point, name: String },
    /// Nothing orders the queue, or several plugins want to.
    #[error(
        "only one queue sort plugin required for profile with scheduler name {profile:?}, but got {n_plugins}"
    )]
    QueueSort { profile: String, n_plugins: usize },
    /// Nothing binds.
    #[error("at least one bind plugin is needed for profile with scheduler name {profile:?}")]
    NoBind { profile: String },
    /// Several plugins generate placements.
    #[error(
        "at most one placement generate plugin is allowed for profile with scheduler name {profile:?}"
    )]
    PlacementGenerate { profile: String },
    /// Weights too large, or a negative sum of them.
    #[error("{what}: total score of Score plugins could overflow")]
    Weights { what: &'static str },
}

/// Expands a profile's plugin sets. `implements` says at which points a plugin of this name entered
/// itself, and `None` for a name that no plugin has.
pub fn expand(
    profile: &str,
    plugins: &Plugins,
    implements: impl Fn(&str) -> Option<PointSet>,
) -> Result<Expanded, Vec<ExpandError>> {
    let mut errors = Vec::new();
    let mut expanded = Expanded::default();
    for plugin in &plugins.multi_point.enabled {
        let name = &plugin.name;
        if implements(name).is_none() {
            errors.push(error(
                "multiPoint",
                name,
                ExpandErrorKind::UnknownAnywhere { name: name.clone() },
            ));
        }
    }
    for point in Point::ALL {
        let set = plugins.at(point);
        check_specific(point, set, &implements, &mut errors);
        let names = order(point, set, &plugins.multi_point, &implements, &mut errors);
        let weights = if point.is_weighted() {
            weights(point, plugins, &implements, &mut errors)
        } else {
            Vec::new()
        };
        let placed = names.into_iter().map(|name| {
            let weight =
                weights.iter().find(|(known, _)| *known == name).map_or(0, |(_, weight)| *weight);
            Placed { name: name.to_owned(), weight }
        });
        expanded.0[point as usize] = placed.collect();
    }
    if errors.is_empty() {
        check_counts(profile, &expanded, &mut errors);
    }
    if errors.is_empty() { Ok(expanded) } else { Err(errors) }
}

fn error(at: &'static str, plugin: &str, kind: ExpandErrorKind) -> ExpandError {
    ExpandError { at, plugin: Some(plugin.to_owned()), kind }
}

/// Plugins enabled at the point itself must exist, do something there, and be named once.
fn check_specific(
    point: Point,
    set: &PluginSet,
    implements: &impl Fn(&str) -> Option<PointSet>,
    errors: &mut Vec<ExpandError>,
) {
    for (i, plugin) in set.enabled.iter().enumerate() {
        let name = plugin.name.clone();
        let kind = match implements(&name) {
            None => ExpandErrorKind::Unknown { point, name },
            Some(points) if !points.contains(point) => {
                ExpandErrorKind::NotImplemented { point, name }
            }
            Some(_) if set.enabled[..i].iter().any(|other| other.name == name) => {
                ExpandErrorKind::Twice { point, name }
            }
            Some(_) => continue,
        };
        errors.push(error(point.field(), &plugin.name, kind));
    }
}

/// The names that run at a point, in this order: enabled there and by `multiPoint`, as ordered
/// there; by `multiPoint` alone; enabled there alone. `disabled: "*"` keeps `multiPoint` out
/// altogether.
fn order<'a>(
    point: Point,
    set: &'a PluginSet,
    multi_point: &'a PluginSet,
    implements: &impl Fn(&str) -> Option<PointSet>,
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
            let kind = ExpandErrorKind::Twice { point, name: name.clone() };
            // The plugin is named twice once, however many points it extends.
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

/// Weights by name: of the plugins enabled at the point, then of those in `multiPoint`; the first
/// entry of a name counts, 0 is 1.
fn weights<'a>(
    point: Point,
    plugins: &'a Plugins,
    implements: &impl Fn(&str) -> Option<PointSet>,
    errors: &mut Vec<ExpandError>,
) -> Vec<(&'a str, i32)> {
    let mut weights: Vec<(&str, i32)> = Vec::new();
    let mut total: i64 = 0;
    for Plugin { name, weight } in
        plugins.at(point).enabled.iter().chain(&plugins.multi_point.enabled)
    {
        let extends = implements(name).is_some_and(|points| points.contains(point));
        if !extends || weights.iter().any(|(known, _)| known == name) {
            continue;
        }
        let weight = if *weight == 0 { 1 } else { *weight };
        let largest = i64::from(weight) * loadmaster_framework::MAX_NODE_SCORE;
        // Upstream's subtraction wraps when weights so far add up to less than zero, and refuses
        // them by that.
        if largest > TOTAL_SCORE_MAX.wrapping_sub(total) {
            let what =
                if point == Point::Score { "score plugins" } else { "placement score plugins" };
            errors.push(error(point.field(), name, ExpandErrorKind::Weights { what }));
            break;
        }
        total += largest;
        weights.push((name, weight));
    }
    weights
}

fn check_counts(profile: &str, expanded: &Expanded, errors: &mut Vec<ExpandError>) {
    let mut fail =
        |point: Point, kind| errors.push(ExpandError { at: point.field(), plugin: None, kind });
    let profile = profile.to_owned();
    match expanded.at(Point::QueueSort).len() {
        1 => {}
        n_plugins => fail(
            Point::QueueSort,
            ExpandErrorKind::QueueSort { profile: profile.clone(), n_plugins },
        ),
    }
    if expanded.at(Point::Bind).is_empty() {
        fail(Point::Bind, ExpandErrorKind::NoBind { profile: profile.clone() });
    }
    if expanded.at(Point::PlacementGenerate).len() > 1 {
        fail(Point::PlacementGenerate, ExpandErrorKind::PlacementGenerate { profile });
    }
}
