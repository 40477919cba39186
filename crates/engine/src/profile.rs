//! A profile: the plugins of one schedulerName, built and put in order at every extension point.

use std::ops::Range;
use std::sync::Arc;

use loadmaster_api::Needs;
use loadmaster_config::{self as config, Point};
use loadmaster_extender::Extenders;
use loadmaster_framework::event::EventWithHint;
use loadmaster_framework::objects::Watch;
use loadmaster_framework::points::{
    Bind, Filter, ObjectEvents, Permit, PostBind, PostFilter, PreBind, PreEnqueue, PreFilter,
    PreScore, QueueSort, Reserve, Score, Sign,
};
use loadmaster_framework::prepare::Prepare;
use loadmaster_framework::state::Receiver;
use loadmaster_framework::{
    Action, ClusterEvent, EventResource, FeatureGates, Gvr, PluginError, PluginStates, Points,
    Registry,
};

use crate::guard::Who;
use crate::guard::points::{self as guard, Guard};
use crate::search::Search;

/// A plugin at one extension point.
pub struct Member<T: ?Sized> {
    /// Index into [`Profile::plugins`].
    pub plugin: usize,
    pub name: &'static str,
    /// Factor of its scores; 1 at points that do not score.
    pub weight: i64,
    pub point: Arc<T>,
}

/// A plugin as built for one profile.
pub struct Plugin {
    pub name: &'static str,
    /// The incremental form, if it has one.
    pub prepare: Option<Arc<dyn Prepare>>,
    /// Whether it implements these points, enabled or not.
    pub has_pre_filter: bool,
    pub has_filter: bool,
    pub has_pre_score: bool,
    /// What may wake pods it rejected; `None` means everything.
    pub events: Option<Vec<EventWithHint>>,
    /// Which of [`Profile::states`] are its own.
    pub states: Range<usize>,
    /// Kinds whose changes it is told.
    pub watched: Vec<Gvr>,
    pub object_events: Option<Arc<dyn ObjectEvents>>,
    /// Takes what a service publishes to it.
    pub receiver: Option<Receiver>,
}

/// The plugins of one schedulerName.
pub struct Profile {
    pub scheduler_name: String,
    /// How many feasible nodes are enough.
    pub search: Search,
    pub plugins: Vec<Plugin>,
    pub pre_enqueue: Vec<Member<dyn PreEnqueue>>,
    pub queue_sort: Vec<Member<dyn QueueSort>>,
    pub pre_filter: Vec<Member<dyn PreFilter>>,
    pub filter: Vec<Member<dyn Filter>>,
    pub post_filter: Vec<Member<dyn PostFilter>>,
    pub pre_score: Vec<Member<dyn PreScore>>,
    pub score: Vec<Member<dyn Score>>,
    pub reserve: Vec<Member<dyn Reserve>>,
    pub permit: Vec<Member<dyn Permit>>,
    pub pre_bind: Vec<Member<dyn PreBind>>,
    pub bind: Vec<Member<dyn Bind>>,
    pub post_bind: Vec<Member<dyn PostBind>>,
    pub sign: Vec<Member<dyn Sign>>,
    /// Plugins (by index) that look at the pod in PreFilter or Filter and go on with it in Reserve or later: they find their
    /// cycle state as they left it.
    pub late: Vec<usize>,
    /// What they need of pods and nodes beyond what the scheduler reads.
    pub needs: Needs,
    /// Kinds that only plugins know.
    pub watches: Vec<Watch>,
    /// The plugins' first states; whoever decides keeps a copy of its own.
    pub states: PluginStates,
    /// Who is asked by HTTP beside them. When there are any, the last of `plugins` stands for all of them.
    pub extenders: Extenders,
}

/// What upstream calls all extenders together where it names plugins that turned a pod down (`framework.ExtenderName`).
pub const EXTENDER: &str = "Extender";

/// A profile could not be made.
#[derive(Debug, thiserror::Error)]
#[error("building profile {profile:?}")]
pub struct ProfileError {
    pub profile: String,
    #[source]
    pub source: PluginError,
}

impl Profile {
    /// Builds every plugin that the configuration enables and enters it where the configuration says.
    pub fn new(
        spec: &config::Profile,
        registry: &Registry,
        gates: &FeatureGates,
    ) -> Result<Profile, ProfileError> {
        let (built, states) = build_all(spec, registry, gates)
            .map_err(|source| ProfileError { profile: spec.scheduler_name.clone(), source })?;
        let name = spec.scheduler_name.as_str().into();
        let order = Order { profile: name, built: &built, expanded: &spec.points };
        let extenders = Extenders::new(&spec.extenders);
        let mut plugins: Vec<Plugin> = built.iter().map(|built| order.plugin(built)).collect();
        if !extenders.is_empty() {
            // They name no events, so that any may help pods that they turned down.
            plugins.push(Plugin {
                name: EXTENDER,
                prepare: None,
                has_pre_filter: false,
                has_filter: false,
                has_pre_score: false,
                events: None,
                states: 0..0,
                watched: Vec::new(),
                object_events: None,
                receiver: None,
            });
        }
        Ok(Profile {
            scheduler_name: spec.scheduler_name.clone(),
            search: Search::new(spec.percentage_of_nodes_to_score, gates),
            pre_enqueue: order.members(Point::PreEnqueue, |points| points.pre_enqueue.clone()),
            queue_sort: order.members(Point::QueueSort, |points| points.queue_sort.clone()),
            pre_filter: order.members(Point::PreFilter, |points| points.pre_filter.clone()),
            filter: order.members(Point::Filter, |points| points.filter.clone()),
            post_filter: order.members(Point::PostFilter, |points| points.post_filter.clone()),
            pre_score: order.members(Point::PreScore, |points| points.pre_score.clone()),
            score: order.members(Point::Score, |points| points.score.clone()),
            reserve: order.members(Point::Reserve, |points| points.reserve.clone()),
            permit: order.members(Point::Permit, |points| points.permit.clone()),
            pre_bind: order.members(Point::PreBind, |points| points.pre_bind.clone()),
            bind: order.members(Point::Bind, |points| points.bind.clone()),
            post_bind: order.members(Point::PostBind, |points| points.post_bind.clone()),
            sign: order.signers(),
            late: order.late(),
            needs: built.iter().fold(Needs::default(), |all, it| all.or(it.points.needs())),
            watches: built.iter().flat_map(|it| it.points.watches()).collect(),
            plugins,
            states,
            extenders,
        })
    }

    /// A plugin's name with the profile's.
    pub(crate) fn who(&self, plugin: &'static str) -> Who {
        Who { profile: self.scheduler_name.as_str().into(), plugin }
    }
}

/// A plugin, where it entered itself, and which states it took.
struct Entered {
    name: &'static str,
    points: Points,
    states: Range<usize>,
}

type Built = Vec<Entered>;

fn build_all(
    spec: &config::Profile,
    registry: &Registry,
    gates: &FeatureGates,
) -> Result<(Built, PluginStates), PluginError> {
    let mut built = Built::new();
    let mut slots = (0, PluginStates::default());
    for name in &spec.plugins {
        let Some(def) = registry.get(name) else { continue };
        let n_states = slots.1.len();
        let mut points = Points::following(gates.clone(), slots.0, slots.1);
        (def.build)(&mut points, spec.args_of(name))?;
        slots = points.take_slots();
        built.push(Entered { name: def.name, points, states: n_states..slots.1.len() });
    }
    Ok((built, slots.1))
}

struct Order<'a> {
    profile: Arc<str>,
    built: &'a Built,
    expanded: &'a config::Expanded,
}

impl Order<'_> {
    fn members<T: ?Sized + Guard>(
        &self,
        point: Point,
        get: impl Fn(&Points) -> Option<Arc<T>>,
    ) -> Vec<Member<T>> {
        let listed = self.expanded.at(point).iter();
        let members = listed.filter_map(|placed| {
            let plugin = self.built.iter().position(|known| known.name == placed.name)?;
            let Entered { name, points, .. } = &self.built[plugin];
            // Upstream takes a weight of 0 as 1 (`framework.go`, score weights).
            let weight = i64::from(if placed.weight == 0 { 1 } else { placed.weight });
            let point = T::guarded(self.who(name), get(points)?);
            Some(Member { plugin, name, weight, point })
        });
        members.collect()
    }

    fn who(&self, plugin: &'static str) -> Who {
        Who { profile: self.profile.clone(), plugin }
    }

    /// Sign is not configured: a plugin signs where it filters or scores.
    fn signers(&self) -> Vec<Member<dyn Sign>> {
        let asked = [Point::PreFilter, Point::Filter, Point::PreScore, Point::Score];
        let signers = self.built.iter().enumerate().filter_map(|(plugin, built)| {
            let Entered { name, points, .. } = built;
            let takes_part =
                |point| self.expanded.at(point).iter().any(|placed| placed.name == *name);
            let point = points.sign.clone().filter(|_| asked.into_iter().any(takes_part))?;
            Some(Member { plugin, name, weight: 1, point })
        });
        signers.collect()
    }

    fn late(&self) -> Vec<usize> {
        let points = [Point::Reserve, Point::Permit, Point::PreBind, Point::Bind, Point::PostBind];
        let listed = |name: &str| {
            points.iter().any(|at| self.expanded.at(*at).iter().any(|placed| placed.name == name))
        };
        let late = self.built.iter().enumerate().filter(|(_, Entered { name, points, .. })| {
            (points.pre_filter.is_some() || points.filter.is_some()) && listed(name)
        });
        late.map(|(at, _)| at).collect()
    }

    fn plugin(&self, Entered { name, points, states }: &Entered) -> Plugin {
        let rejects = points.pre_enqueue.is_some()
            || points.pre_filter.is_some()
            || points.filter.is_some()
            || points.reserve.is_some()
            || points.permit.is_some();
        let events = match &points.events {
            Some(events) => {
                let guarded = |known: &EventWithHint| guard::event(self.who(name), known.clone());
                Some(with_taint_updates(events.iter().map(guarded).collect()))
            }
            // A plugin that can reject but names no event is asked about all of them.
            None if rejects => None,
            None => Some(Vec::new()),
        };
        Plugin {
            name,
            prepare: points.prepare.clone(),
            has_pre_filter: points.pre_filter.is_some(),
            has_filter: points.filter.is_some(),
            has_pre_score: points.pre_score.is_some(),
            events,
            states: states.clone(),
            watched: points.watches().map(|watch| watch.kind).collect(),
            object_events: points.object_events.clone(),
            receiver: points.receiver().cloned(),
        }
    }
}

/// Upstream wakes pods on taint updates for every plugin that registers new nodes but no taint update, because a new node
/// often becomes usable only when its first taints go.
fn with_taint_updates(mut events: Vec<EventWithHint>) -> Vec<EventWithHint> {
    let node = |action: Action| {
        move |known: &EventWithHint| {
            known.event.resource == EventResource::Node && known.event.action.intersects(action)
        }
    };
    if events.iter().any(node(Action::ADD)) && !events.iter().any(node(Action::UPDATE_NODE_TAINT)) {
        let event = ClusterEvent::new(EventResource::Node, Action::UPDATE_NODE_TAINT);
        events.push(EventWithHint { event, hint: None });
    }
    events
}
