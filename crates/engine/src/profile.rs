//! A profile: the plugins of one schedulerName, built, and ordered at every extension point.

use std::ops::Range;
use std::sync::Arc;

use loadmaster_api::ExtraFieldsByKind;
use loadmaster_config::{self as config, ExtensionPoint};
use loadmaster_extender::Extenders;
use loadmaster_framework::cluster_event::ClusterEventWithHint;
use loadmaster_framework::extension_points::{
    Bind, Explain, Filter, NodeEventHandler, ObjectEventHandler, Permit, PodEventHandler, PostBind,
    PostFilter, PreBind, PreEnqueue, PreFilter, PreScore, QueueSort, Reserve, Score, Sign,
};
use loadmaster_framework::incremental::AnyIncremental;
use loadmaster_framework::plugin_metrics::PluginMetric;
use loadmaster_framework::pod_sums::PodSumsDef;
use loadmaster_framework::state::PublishedValueHandler;
use loadmaster_framework::watched_objects::ObjectWatch;
use loadmaster_framework::{
    ActionType, BuiltPlugin, ClusterEvent, EventResource, ExtensionPoints, Failure, FeatureGates,
    Gvr, PluginStates, PodIndexKey, PolicyRule,
};
use serde_json::Value;

use crate::guard::guarded_points::{self as guard, Guard};
use crate::guard::{CaughtPanic, PluginRef};
use crate::node_sampling::NodeSampling;

/// A plugin that is enabled at one extension point.
pub struct EnabledPlugin<T: ?Sized> {
    /// Index into [`Profile::plugins`].
    pub plugin: usize,
    pub name: &'static str,
    /// Weight of its scores; 1 at points other than Score.
    pub weight: i64,
    pub point: Arc<T>,
}

/// A plugin as built for one profile.
pub struct ProfilePlugin {
    pub name: &'static str,
    /// The arguments that it was built with.
    pub args: Value,
    /// The incremental form, if it has one.
    pub incremental: Option<Arc<dyn AnyIncremental>>,
    /// Whether it implements these extension points, enabled or not.
    pub has_pre_filter: bool,
    pub has_filter: bool,
    pub has_pre_score: bool,
    /// Events that may make pods schedulable that it rejected; `None` means all events.
    pub events: Option<Vec<ClusterEventWithHint>>,
    /// The range of its states in [`Profile::states`].
    pub states: Range<usize>,
    /// Kinds that it watches.
    pub watched_kinds: Vec<Gvr>,
    pub explain: Option<Arc<dyn Explain>>,
    pub object_event_handler: Option<Arc<dyn ObjectEventHandler>>,
    pub pod_event_handler: Option<Arc<dyn PodEventHandler>>,
    pub node_event_handler: Option<Arc<dyn NodeEventHandler>>,
    /// Stores the value that a service publishes to it.
    pub publish_handler: Option<PublishedValueHandler>,
    /// The metrics that it declares.
    pub metrics: Vec<PluginMetric>,
    /// The permissions that it requires, besides those to list and watch the kinds that it watches.
    pub policy_rules: Vec<PolicyRule>,
}

/// The plugins of one schedulerName.
pub struct Profile {
    pub scheduler_name: String,
    /// How many feasible nodes to find.
    pub sampling: NodeSampling,
    /// The same for kube-scheduler with this configuration, for comparisons with it.
    pub upstream_sampling: NodeSampling,
    /// Gate OpportunisticBatching: evaluations are kept for later pods. Without it every pod is evaluated from scratch.
    pub reuses_results: bool,
    pub plugins: Vec<ProfilePlugin>,
    pub pre_enqueue: Vec<EnabledPlugin<dyn PreEnqueue>>,
    pub queue_sort: Vec<EnabledPlugin<dyn QueueSort>>,
    pub pre_filter: Vec<EnabledPlugin<dyn PreFilter>>,
    pub filter: Vec<EnabledPlugin<dyn Filter>>,
    pub post_filter: Vec<EnabledPlugin<dyn PostFilter>>,
    pub pre_score: Vec<EnabledPlugin<dyn PreScore>>,
    pub score: Vec<EnabledPlugin<dyn Score>>,
    pub reserve: Vec<EnabledPlugin<dyn Reserve>>,
    pub permit: Vec<EnabledPlugin<dyn Permit>>,
    pub pre_bind: Vec<EnabledPlugin<dyn PreBind>>,
    pub bind: Vec<EnabledPlugin<dyn Bind>>,
    pub post_bind: Vec<EnabledPlugin<dyn PostBind>>,
    pub sign: Vec<EnabledPlugin<dyn Sign>>,
    /// Plugins (by index) that run in PreFilter or Filter and also in Reserve or later, and may therefore read their cycle state
    /// again.
    pub cycle_state_users: Vec<usize>,
    /// Fields of pods and nodes that only plugins need.
    pub needs: ExtraFieldsByKind,
    /// Kinds that plugins watch.
    pub watches: Vec<ObjectWatch>,
    /// The indexes of pods that plugins declared.
    pub pod_indexes: Vec<PodIndexKey>,
    /// The sums of pods that plugins declared.
    pub pod_sums: Vec<PodSumsDef>,
    /// The plugins' initial states; every [`Scheduler`](crate::Scheduler) has its own copy.
    pub states: PluginStates,
    /// The HTTP extenders. If there are any, the last entry of `plugins` stands for all of them.
    pub extenders: Extenders,
}

/// The plugin name that stands for all extenders where rejecting plugins are listed (upstream's `framework.ExtenderName`).
pub const EXTENDER_NAME: &str = "Extender";

impl Profile {
    /// Orders the plugins, which are already built, at every extension point.
    pub fn new(spec: &config::ResolvedProfile, gates: &FeatureGates) -> Profile {
        let built = spec.plugins.as_slice();
        let name = spec.scheduler_name.as_str().into();
        let order = ProfileBuilder { profile: name, built, enabled: &spec.extension_points };
        let extenders = Extenders::new(&spec.extenders);
        let mut plugins: Vec<ProfilePlugin> =
            built.iter().map(|built| order.plugin(built, spec.args_of(built.name))).collect();
        if !extenders.is_empty() {
            // They register no events, so that any event may make pods schedulable that they rejected.
            plugins.push(ProfilePlugin {
                name: EXTENDER_NAME,
                args: Value::Null,
                incremental: None,
                has_pre_filter: false,
                has_filter: false,
                has_pre_score: false,
                events: None,
                states: 0..0,
                watched_kinds: Vec::new(),
                explain: None,
                object_event_handler: None,
                pod_event_handler: None,
                node_event_handler: None,
                publish_handler: None,
                metrics: Vec::new(),
                policy_rules: Vec::new(),
            });
        }
        Profile {
            scheduler_name: spec.scheduler_name.clone(),
            sampling: NodeSampling::new(spec.percentage_of_nodes_to_score, gates),
            upstream_sampling: NodeSampling::of_upstream(spec.percentage_of_nodes_to_score),
            reuses_results: gates.opportunistic_batching,
            pre_enqueue: order
                .enabled_at(ExtensionPoint::PreEnqueue, |points| points.pre_enqueue.clone()),
            queue_sort: order
                .enabled_at(ExtensionPoint::QueueSort, |points| points.queue_sort.clone()),
            pre_filter: order
                .enabled_at(ExtensionPoint::PreFilter, |points| points.pre_filter.clone()),
            filter: order.enabled_at(ExtensionPoint::Filter, |points| points.filter.clone()),
            post_filter: order
                .enabled_at(ExtensionPoint::PostFilter, |points| points.post_filter.clone()),
            pre_score: order
                .enabled_at(ExtensionPoint::PreScore, |points| points.pre_score.clone()),
            score: order.enabled_at(ExtensionPoint::Score, |points| points.score.clone()),
            reserve: order.enabled_at(ExtensionPoint::Reserve, |points| points.reserve.clone()),
            permit: order.enabled_at(ExtensionPoint::Permit, |points| points.permit.clone()),
            pre_bind: order.enabled_at(ExtensionPoint::PreBind, |points| points.pre_bind.clone()),
            bind: order.enabled_at(ExtensionPoint::Bind, |points| points.bind.clone()),
            post_bind: order
                .enabled_at(ExtensionPoint::PostBind, |points| points.post_bind.clone()),
            sign: order.enabled_sign_plugins(),
            cycle_state_users: order.cycle_state_users(),
            needs: built
                .iter()
                .fold(ExtraFieldsByKind::default(), |all, it| all.union(it.points.extra_fields())),
            watches: built.iter().flat_map(|it| it.points.watched_kinds()).collect(),
            pod_indexes: built.iter().flat_map(|it| it.points.pod_indexes()).cloned().collect(),
            pod_sums: built.iter().flat_map(|it| order.pod_sums(it)).collect(),
            plugins,
            states: spec.plugins.initial_states().clone(),
            extenders,
        }
    }

    /// A plugin's name together with the profile's name.
    pub(crate) fn plugin_ref(&self, name: &'static str) -> PluginRef {
        PluginRef { profile: self.scheduler_name.as_str().into(), name }
    }
}

impl CaughtPanic {
    /// Records it. The name is that of the running plugin.
    pub(crate) fn record(self, profile: &Profile) -> (Option<&'static str>, Failure) {
        let name = profile.plugins.get(self.plugin_idx()).map(|plugin| plugin.name);
        let plugin = profile.plugin_ref(name.unwrap_or("(none)"));
        (name, self.record_as(plugin))
    }
}

struct ProfileBuilder<'a> {
    profile: Arc<str>,
    built: &'a [BuiltPlugin],
    enabled: &'a config::ExpandedPlugins,
}

impl ProfileBuilder<'_> {
    fn enabled_at<T: ?Sized + Guard>(
        &self,
        point: ExtensionPoint,
        get: impl Fn(&ExtensionPoints) -> Option<Arc<T>>,
    ) -> Vec<EnabledPlugin<T>> {
        let listed = self.enabled.at_extension_point(point).iter();
        let members = listed.filter_map(|placed| {
            let plugin = self.built.iter().position(|known| known.name == placed.name)?;
            let BuiltPlugin { name, points, .. } = &self.built[plugin];
            // Upstream takes a weight of 0 as 1 (`framework.go`, score weights).
            let weight = i64::from(if placed.weight == 0 { 1 } else { placed.weight });
            let point = T::guarded(self.plugin_ref(name), get(points)?);
            Some(EnabledPlugin { plugin, name, weight, point })
        });
        members.collect()
    }

    fn plugin_ref(&self, name: &'static str) -> PluginRef {
        PluginRef { profile: self.profile.clone(), name }
    }

    fn pod_sums(&self, built: &BuiltPlugin) -> impl Iterator<Item = PodSumsDef> {
        let plugin = self.plugin_ref(built.name);
        built.points.pod_sums().iter().map(move |it| guard::guard_pod_sums(plugin.clone(), it))
    }

    /// Sign is not configurable: a plugin signs if it is enabled at a point that filters or scores.
    fn enabled_sign_plugins(&self) -> Vec<EnabledPlugin<dyn Sign>> {
        let signing_points = [
            ExtensionPoint::PreFilter,
            ExtensionPoint::Filter,
            ExtensionPoint::PreScore,
            ExtensionPoint::Score,
        ];
        let signers = self.built.iter().enumerate().filter_map(|(plugin, built)| {
            let BuiltPlugin { name, points, .. } = built;
            let is_enabled = |point| {
                self.enabled.at_extension_point(point).iter().any(|placed| placed.name == *name)
            };
            let point =
                points.sign.clone().filter(|_| signing_points.into_iter().any(is_enabled))?;
            Some(EnabledPlugin { plugin, name, weight: 1, point })
        });
        signers.collect()
    }

    fn cycle_state_users(&self) -> Vec<usize> {
        let points = [
            ExtensionPoint::Reserve,
            ExtensionPoint::Permit,
            ExtensionPoint::PreBind,
            ExtensionPoint::Bind,
            ExtensionPoint::PostBind,
        ];
        let listed = |name: &str| {
            points.iter().any(|at| {
                self.enabled.at_extension_point(*at).iter().any(|placed| placed.name == name)
            })
        };
        let late = self.built.iter().enumerate().filter(|(_, BuiltPlugin { name, points, .. })| {
            (points.pre_filter.is_some() || points.filter.is_some()) && listed(name)
        });
        late.map(|(at, _)| at).collect()
    }

    fn plugin(
        &self,
        BuiltPlugin { name, points, states }: &BuiltPlugin,
        args: &Value,
    ) -> ProfilePlugin {
        let rejects = points.pre_enqueue.is_some()
            || points.pre_filter.is_some()
            || points.filter.is_some()
            || points.reserve.is_some()
            || points.permit.is_some();
        let events = match &points.events {
            Some(events) => {
                let guarded = |known: &ClusterEventWithHint| {
                    guard::guard_hint(self.plugin_ref(name), known.clone())
                };
                Some(with_taint_updates(events.iter().map(guarded).collect()))
            }
            // A plugin that can reject pods but registers no events gets all of them.
            None if rejects => None,
            None => Some(Vec::new()),
        };
        ProfilePlugin {
            name,
            args: args.clone(),
            incremental: points.incremental.clone(),
            has_pre_filter: points.pre_filter.is_some(),
            has_filter: points.filter.is_some(),
            has_pre_score: points.pre_score.is_some(),
            events,
            states: states.clone(),
            watched_kinds: points.watched_kinds().map(|watch| watch.kind).collect(),
            explain: points.explain.clone(),
            object_event_handler: points.object_event_handler.clone(),
            pod_event_handler: points.pod_event_handler.clone(),
            node_event_handler: points.node_event_handler.clone(),
            publish_handler: points.published_value_handler().cloned(),
            metrics: points.metrics().to_vec(),
            policy_rules: points.policy_rules().to_vec(),
        }
    }
}

/// Upstream also registers taint updates for every plugin that registers added nodes but no taint updates, because a new node
/// often becomes usable only when its initial taints are removed.
fn with_taint_updates(mut events: Vec<ClusterEventWithHint>) -> Vec<ClusterEventWithHint> {
    let node = |action: ActionType| {
        move |known: &ClusterEventWithHint| {
            known.event.resource == EventResource::Node && known.event.action.intersects(action)
        }
    };
    if events.iter().any(node(ActionType::ADD))
        && !events.iter().any(node(ActionType::UPDATE_NODE_TAINT))
    {
        let event = ClusterEvent::new(EventResource::Node, ActionType::UPDATE_NODE_TAINT);
        events.push(ClusterEventWithHint { event, hint: None, ignores_priority: false });
    }
    events
}
