//! Plugin definitions, the registry, and the extension points that a plugin registers when it is built.

use std::fmt;
use std::hash::Hash;
use std::ops::Range;
use std::sync::Arc;

use loadmaster_api::{ExtraFieldsByKind, Str};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cluster_event::{ClusterEvent, ClusterEventWithHint, QueueingHintFn};
use crate::errors::FieldError;
use crate::extension_points::{
    Bind, Explain, Filter, NodeEventHandler, ObjectEventHandler, Permit, PodEventHandler, PostBind,
    PostFilter, PreBind, PreEnqueue, PreFilter, PreScore, QueueSort, Reserve, Score, Sign,
};
use crate::feature_gates::FeatureGates;
use crate::incremental::AnyIncremental;
use crate::plugin_log::PluginLogger;
use crate::plugin_metrics::{
    MetricDef, MetricError, PluginCounter, PluginGauge, PluginHistogram, PluginMetric,
};
use crate::pod_index::{PodIndex, PodIndexKey};
use crate::pod_info::PodInfo;
use crate::pod_sums::{NamespaceSums, PodSums, PodSumsDef};
use crate::rbac::PolicyRule;
use crate::resources::Resources;
use crate::state::{
    CycleStateSlot, NodeStateSlot, PluginStateSlot, PluginStates, PublishedValueHandler,
    PublishedValueSlot,
};
use crate::watched_objects::{Gvr, ObjectSlot, ObjectWatch, WatchRequirement};

pub use crate::errors::PluginError;

/// A plugin that can be enabled in a profile.
#[derive(Clone)]
pub struct PluginDef {
    /// Its name in configurations.
    pub name: &'static str,
    /// Builds the plugin and registers its extension points; called once for each profile that enables the plugin. The arguments are
    /// complete and valid: [`PluginDef::args`] returned them.
    pub build: fn(&mut ExtensionPoints, &Value) -> Result<(), PluginError>,
    /// Decodes strictly, fills in defaults and validates; `None` when the plugin takes no arguments.
    pub args: Option<CompleteArgsFn>,
}

/// Makes complete arguments from those in the configuration (`{}` when there are none). Paths in errors are relative to the
/// arguments.
pub type CompleteArgsFn = fn(&Value, &FeatureGates) -> Result<Value, Vec<FieldError>>;

/// One plugin of a profile, built.
pub struct BuiltPlugin {
    /// The plugin's name.
    pub name: &'static str,
    /// The extension points that it registered.
    pub points: ExtensionPoints,
    /// The range of its states in [`BuiltPlugins::initial_states`].
    pub states: Range<usize>,
}

/// The plugins of one profile. [`PluginDef::build`] has run once for each; a clone shares the plugins, which have no state of their
/// own.
#[derive(Clone, Default)]
pub struct BuiltPlugins(Arc<(Vec<BuiltPlugin>, PluginStates)>);

impl BuiltPlugins {
    /// Builds these plugins of a profile, in this order, with their arguments.
    ///
    /// # Errors
    ///
    /// All plugins that cannot be built, with the reasons.
    pub fn build<'a>(
        profile: &str,
        plugins: impl IntoIterator<Item = (&'a PluginDef, &'a Value)>,
        gates: &FeatureGates,
    ) -> Result<BuiltPlugins, Vec<(&'static str, PluginError)>> {
        let (mut built, mut errors) = (Vec::new(), Vec::new());
        let (mut n_slots, mut states) = (0, PluginStates::default());
        for (def, args) in plugins {
            let n_states = states.len();
            let points = ExtensionPoints::for_next_plugin(gates.clone(), n_slots, states);
            let mut points = points.named(def.name, profile);
            if let Err(error) = (def.build)(&mut points, args) {
                errors.push((def.name, error));
            }
            (n_slots, states) = points.take_initial_states();
            built.push(BuiltPlugin { name: def.name, points, states: n_states..states.len() });
        }
        if errors.is_empty() { Ok(BuiltPlugins(Arc::new((built, states)))) } else { Err(errors) }
    }

    /// The plugins, in the order in which they were built.
    pub fn as_slice(&self) -> &[BuiltPlugin] {
        &self.0.0
    }

    /// The initial states of all plugins.
    pub fn initial_states(&self) -> &PluginStates {
        &self.0.1
    }
}

/// Equal if the same plugins were built, whatever their arguments.
impl PartialEq for BuiltPlugins {
    fn eq(&self, other: &Self) -> bool {
        let names = self.as_slice().iter().map(|plugin| plugin.name);
        names.eq(other.as_slice().iter().map(|plugin| plugin.name))
    }
}

impl fmt::Debug for BuiltPlugins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice().iter().map(|plugin| plugin.name)).finish()
    }
}

/// The plugins that profiles can enable, in the order in which they were added.
#[derive(Clone, Default)]
pub struct Registry {
    plugins: Vec<PluginDef>,
    ignored_arguments: Vec<IgnoredArgument>,
}

/// An argument that a plugin had in older versions of the configuration and that has no effect any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IgnoredArgument {
    /// The plugin's name.
    pub plugin: &'static str,
    /// The argument's name.
    pub argument: &'static str,
    /// Why it has no effect; the end of a sentence.
    pub reason: &'static str,
}

impl Registry {
    /// A registry of these plugins.
    pub fn new(plugins: impl IntoIterator<Item = PluginDef>) -> Self {
        plugins.into_iter().fold(Registry::default(), Registry::with)
    }

    /// Adds a plugin. Its name must be new: [`Registry::validate`].
    #[must_use]
    pub fn with(mut self, plugin: PluginDef) -> Self {
        self.plugins.push(plugin);
        self
    }

    /// Adds arguments of older versions that have no effect: a file of such a version may have them and gets a note.
    #[must_use]
    pub fn with_ignored_arguments(mut self, arguments: &[IgnoredArgument]) -> Self {
        self.ignored_arguments.extend_from_slice(arguments);
        self
    }

    /// The arguments of a plugin's older versions that have no effect.
    pub fn ignored_arguments(&self, plugin: &str) -> impl Iterator<Item = &IgnoredArgument> {
        self.ignored_arguments.iter().filter(move |ignored| ignored.plugin == plugin)
    }

    /// Checks that plugin names are unique.
    ///
    /// # Errors
    ///
    /// [`PluginError::Duplicate`] for the first duplicate name.
    pub fn validate(&self) -> Result<(), PluginError> {
        let mut rest = self.plugins.iter().enumerate();
        let twice =
            rest.find(|(at, it)| self.plugins[..*at].iter().any(|known| known.name == it.name));
        match twice {
            Some((_, again)) => Err(PluginError::Duplicate { plugin: again.name }),
            None => Ok(()),
        }
    }

    /// The plugin with this name.
    pub fn get(&self, name: &str) -> Option<&PluginDef> {
        self.plugins.iter().find(|plugin| plugin.name == name)
    }

    /// All plugins.
    pub fn iter(&self) -> impl Iterator<Item = &PluginDef> {
        self.plugins.iter()
    }
}

/// Fields of pods and nodes that a plugin needs and the scheduler does not read itself ([`ExtensionPoints::request_field`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraField {
    /// [`PodInfo::annotation`](crate::PodInfo::annotation). Needs memory for the annotations of all pods.
    PodAnnotations,
    /// [`NodeInfo::annotation`](crate::NodeInfo::annotation), and events
    /// [`ActionType::UPDATE_NODE_ANNOTATION`](crate::ActionType).
    NodeAnnotations,
    /// [`PodInfo::object`](crate::PodInfo::object), annotations included. Pods are then read as JSON, and each pod needs about
    /// ten kilobytes of memory.
    FullPods,
    /// [`NodeInfo::object`](crate::NodeInfo::object), annotations included. Nodes are then read as JSON, and every status update
    /// by a kubelet is a node update.
    FullNodes,
}

/// The extension points of one plugin; filled in by [`PluginDef::build`]. One plugin instance may implement several points.
#[derive(Default)]
pub struct ExtensionPoints {
    /// The feature gates.
    pub gates: FeatureGates,
    /// Set by a plugin that implements PreEnqueue.
    pub pre_enqueue: Option<Arc<dyn PreEnqueue>>,
    /// Set by a plugin that implements QueueSort.
    pub queue_sort: Option<Arc<dyn QueueSort>>,
    /// Set by a plugin that implements PreFilter.
    pub pre_filter: Option<Arc<dyn PreFilter>>,
    /// Set by a plugin that implements Filter.
    pub filter: Option<Arc<dyn Filter>>,
    /// Set by a plugin that implements PostFilter.
    pub post_filter: Option<Arc<dyn PostFilter>>,
    /// Set by a plugin that implements PreScore.
    pub pre_score: Option<Arc<dyn PreScore>>,
    /// Set by a plugin that implements Score.
    pub score: Option<Arc<dyn Score>>,
    /// Set by a plugin that implements Reserve.
    pub reserve: Option<Arc<dyn Reserve>>,
    /// Set by a plugin that implements Permit.
    pub permit: Option<Arc<dyn Permit>>,
    /// Set by a plugin that implements PreBind.
    pub pre_bind: Option<Arc<dyn PreBind>>,
    /// Set by a plugin that implements Bind.
    pub bind: Option<Arc<dyn Bind>>,
    /// Set by a plugin that implements PostBind.
    pub post_bind: Option<Arc<dyn PostBind>>,
    /// Set by a plugin that implements Sign.
    pub sign: Option<Arc<dyn Sign>>,
    /// The incremental form of the plugin's Filter and Score, if it has one.
    pub incremental: Option<Arc<dyn AnyIncremental>>,
    /// Adds details to the output of `explain`.
    pub explain: Option<Arc<dyn Explain>>,
    /// Handles changes of the objects that the plugin watches.
    pub object_event_handler: Option<Arc<dyn ObjectEventHandler>>,
    /// Handles changes of pods.
    pub pod_event_handler: Option<Arc<dyn PodEventHandler>>,
    /// Handles changes of nodes.
    pub node_event_handler: Option<Arc<dyn NodeEventHandler>>,
    /// Events that may make pods schedulable that this plugin rejected; `None` means all events (upstream's `EventsToRegister`).
    pub events: Option<Vec<ClusterEventWithHint>>,
    watches: Vec<ObjectWatch>,
    pod_indexes: Vec<PodIndexKey>,
    pod_sums: Vec<PodSumsDef>,
    needs: ExtraFieldsByKind,
    publish_handler: Option<PublishedValueHandler>,
    n_slots: u32,
    states: PluginStates,
    plugin: &'static str,
    profile: String,
    metrics: Vec<PluginMetric>,
    policy_rules: Vec<PolicyRule>,
}

impl ExtensionPoints {
    /// For the next plugin of a profile, whose slots follow the `taken` slots of the plugins before it.
    pub fn for_next_plugin(gates: FeatureGates, taken: u32, states: PluginStates) -> Self {
        ExtensionPoints { gates, n_slots: taken, states, ..ExtensionPoints::default() }
    }

    /// With the names of the plugin and of its profile, which are shown with log lines and metrics.
    #[must_use]
    pub fn named(self, plugin: &'static str, profile: &str) -> Self {
        ExtensionPoints { plugin, profile: profile.to_owned(), ..self }
    }

    /// The plugin's log lines. Store it in the plugin.
    pub fn logger(&self) -> PluginLogger {
        PluginLogger::new(self.plugin)
    }

    /// Declares a counter. Store it in the plugin.
    ///
    /// # Errors
    ///
    /// If the name or a label is invalid, or the name is kube-scheduler's or already declared.
    pub fn counter<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
    ) -> Result<PluginCounter<N>, PluginError> {
        let made = self.metric_def(name, help, labels).counter();
        self.add_metric(made)
    }

    /// Declares a gauge. Store it in the plugin.
    ///
    /// # Errors
    ///
    /// As [`ExtensionPoints::counter`].
    pub fn gauge<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
    ) -> Result<PluginGauge<N>, PluginError> {
        let made = self.metric_def(name, help, labels).gauge();
        self.add_metric(made)
    }

    /// Declares a histogram with these upper bounds of its buckets. Store it in the plugin.
    ///
    /// # Errors
    ///
    /// As [`ExtensionPoints::counter`], or if the bounds are not in ascending order.
    pub fn histogram<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
        buckets: &[f64],
    ) -> Result<PluginHistogram<N>, PluginError> {
        let made = self.metric_def(name, help, labels).histogram(buckets);
        self.add_metric(made)
    }

    fn metric_def<'a, const N: usize>(
        &'a self,
        name: &'a str,
        help: &'a str,
        labels: [&'a str; N],
    ) -> MetricDef<'a, N> {
        MetricDef { name, help, labels, constant: Some(("profile", &self.profile)) }
    }

    fn add_metric<T>(
        &mut self,
        made: Result<(T, PluginMetric), MetricError>,
    ) -> Result<T, PluginError> {
        let plugin = self.plugin;
        let (value, metric) = made.map_err(|error| PluginError::Metric { plugin, error })?;
        if self.metrics.iter().any(|known| known.name() == metric.name()) {
            let error = MetricError::new(metric.name(), "it is declared twice");
            return Err(PluginError::Metric { plugin, error });
        }
        self.metrics.push(metric);
        Ok(value)
    }

    /// The declared metrics.
    pub fn metrics(&self) -> &[PluginMetric] {
        &self.metrics
    }

    /// Requires permissions for the plugin and its service, besides those to list and watch the kinds that it watches. `loadmaster config
    /// rbac` prints them; a scheduler that lacks one reports it when it starts.
    ///
    /// # Errors
    ///
    /// If a list of the rule is empty.
    pub fn require_permissions(&mut self, rule: PolicyRule) -> Result<(), PluginError> {
        rule.check().map_err(|text| PluginError::Permission { plugin: self.plugin, text })?;
        self.policy_rules.push(rule);
        Ok(())
    }

    /// The required permissions.
    pub fn policy_rules(&self) -> &[PolicyRule] {
        &self.policy_rules
    }

    /// Allocates a slot in the cycle state.
    pub fn cycle_state_slot<T>(&mut self) -> CycleStateSlot<T> {
        self.n_slots += 1;
        CycleStateSlot::new(self.n_slots - 1)
    }

    /// Allocates a slot in the cycle state with one value per node: Filter sets it with
    /// [`CycleState::set_for_node`](crate::CycleState::set_for_node), and Reserve reads that of the selected node with
    /// [`CycleState::get_for_selected_node`](crate::CycleState::get_for_selected_node).
    pub fn node_state_slot<T>(&mut self) -> NodeStateSlot<T> {
        self.n_slots += 1;
        NodeStateSlot::new(self.n_slots - 1)
    }

    /// Allocates a state of the plugin across cycles, with this initial value.
    pub fn plugin_state_slot<T: Clone + Send + Sync + 'static>(
        &mut self,
        first: T,
    ) -> PluginStateSlot<T> {
        self.states.add_state(first)
    }

    /// Watches all objects of a kind, decoded into one type: a struct with the fields that matter, or `serde_json::Value`.
    /// Register events of the kind with [`Gvr::event_resource`].
    pub fn watch<T>(&mut self, kind: Gvr, presence: WatchRequirement) -> ObjectSlot<T>
    where
        T: DeserializeOwned + Send + Sync + 'static,
    {
        self.watches.push(ObjectWatch::new::<T>(kind.clone(), presence));
        ObjectSlot::new(kind)
    }

    /// Watches all objects of a kind that only the plugin's [keys](crate::Incremental::key) read, and its other extension points, but not
    /// its evaluators. A change then makes keys be computed again, and evaluators stay valid. If the kind has namespaces, a key may
    /// depend on the objects in the pod's namespace only.
    pub fn watch_in_keys<T>(&mut self, kind: Gvr, presence: WatchRequirement) -> ObjectSlot<T>
    where
        T: DeserializeOwned + Send + Sync + 'static,
    {
        self.watches.push(ObjectWatch::in_keys::<T>(kind.clone(), presence));
        ObjectSlot::new(kind)
    }

    /// Watches all objects of a kind of which each concerns some nodes, which `nodes` names, such as one object per node with its NUMA
    /// zones. A change then invalidates what the plugin's incremental form computed for these nodes, and for no other.
    pub fn watch_per_node<T>(
        &mut self,
        kind: Gvr,
        presence: WatchRequirement,
        nodes: fn(&T) -> Vec<Str>,
    ) -> ObjectSlot<T>
    where
        T: DeserializeOwned + Send + Sync + 'static,
    {
        self.watches.push(ObjectWatch::per_node::<T>(kind.clone(), presence, nodes));
        ObjectSlot::new(kind)
    }

    /// Declares an index of pods, which the plugin reads with [`crate::Cx::sibling_pods`] and [`crate::Cx::pods_by_index`].
    pub fn pod_index(&mut self, key: PodIndexKey) -> PodIndex {
        self.pod_indexes.push(key.clone());
        PodIndex::new(key)
    }

    /// The declared indexes of pods.
    pub fn pod_indexes(&self) -> &[PodIndexKey] {
        &self.pod_indexes
    }

    /// Declares sums of the requests of assigned pods with equal keys ([`crate::pod_sums`]), which the plugin reads with
    /// [`crate::Cx::pod_sum`]. Pods without a key do not count. The key must be a pure function of the pod's template, requests,
    /// annotations and deletion timestamp: other fields may change while the pod is assigned.
    pub fn sum_pods<K: Eq + Hash + Send + Sync + 'static>(
        &mut self,
        key: impl Fn(&PodInfo) -> Option<K> + Send + Sync + 'static,
    ) -> PodSums<K> {
        self.sum_pods_by(key, |pod| pod.requests().resources.clone())
    }

    /// The same with other amounts than the pods' requests, for example of an annotation.
    pub fn sum_pods_by<K: Eq + Hash + Send + Sync + 'static>(
        &mut self,
        key: impl Fn(&PodInfo) -> Option<K> + Send + Sync + 'static,
        amounts: impl Fn(&PodInfo) -> Resources + Send + Sync + 'static,
    ) -> PodSums<K> {
        let (sums, def) = PodSumsDef::new(key, amounts);
        self.pod_sums.push(def);
        sums
    }

    /// Declares sums of the requests of assigned pods by namespace, and their total over the namespaces that have an object of a watched
    /// kind, such as a quota, which the plugin reads with [`crate::Cx::namespace_total`]. Reading it costs the same however many objects
    /// there are. `amounts` are also summed, of the first object by name in each of these namespaces.
    pub fn sum_pods_by_namespace<T: 'static>(
        &mut self,
        objects: &ObjectSlot<T>,
        amounts: impl Fn(&T) -> Resources + Send + Sync + 'static,
    ) -> NamespaceSums {
        let (sums, def) = PodSumsDef::by_namespace(objects, amounts);
        self.pod_sums.push(def);
        sums
    }

    /// The declared sums of pods.
    pub fn pod_sums(&self) -> &[PodSumsDef] {
        &self.pod_sums
    }

    /// Requests fields of pods or nodes that the scheduler does not read itself. They are stored if any enabled plugin needs
    /// them.
    pub fn request_field(&mut self, need: ExtraField) {
        let ExtraFieldsByKind { pods, nodes } = &mut self.needs;
        match need {
            ExtraField::PodAnnotations => pods.annotations = true,
            ExtraField::NodeAnnotations => nodes.annotations = true,
            ExtraField::FullPods => pods.object = true,
            ExtraField::FullNodes => nodes.object = true,
        }
    }

    /// The requested fields.
    pub fn extra_fields(&self) -> ExtraFieldsByKind {
        self.needs
    }

    /// Allocates the slot for the value that a service publishes to this plugin; at most one per plugin. Each published value is
    /// the event [`ClusterEvent::published_to_plugin`].
    pub fn published_value_slot<T>(&mut self) -> PublishedValueSlot<T>
    where
        T: DeserializeOwned + Send + Sync + 'static,
    {
        let (slot, receiver) = self.states.add_published_slot();
        self.publish_handler = Some(receiver);
        slot
    }

    /// The kinds that the plugin watches.
    pub fn watched_kinds(&self) -> impl Iterator<Item = ObjectWatch> {
        let is_kept = self.incremental.is_some();
        self.watches.iter().cloned().map(move |mut watch| {
            watch.used_by_incremental = is_kept;
            watch
        })
    }

    /// Stores a published value in the plugin's slot.
    pub fn published_value_handler(&self) -> Option<&PublishedValueHandler> {
        self.publish_handler.as_ref()
    }

    /// Registers an event that may make pods schedulable that this plugin rejected. Without a hint every such event requeues
    /// them.
    pub fn register_event(&mut self, event: ClusterEvent, hint: Option<QueueingHintFn>) {
        let registered = ClusterEventWithHint { event, hint, ignores_priority: false };
        self.events.get_or_insert_default().push(registered);
    }

    /// The plugin counts nominated pods even for pods of a higher priority, as a quota does: those that it rejected are requeued as well
    /// when a pod loses its nominated node. They are requeued by the same events as with [`ExtensionPoints::register_event`] otherwise.
    pub fn register_event_ignoring_priority(
        &mut self,
        event: ClusterEvent,
        hint: Option<QueueingHintFn>,
    ) {
        let registered = ClusterEventWithHint { event, hint, ignores_priority: true };
        self.events.get_or_insert_default().push(registered);
    }

    /// [`ExtensionPoints::register_event`] for several events with the same hint.
    pub fn register_events(
        &mut self,
        events: impl IntoIterator<Item = ClusterEvent>,
        hint: Option<QueueingHintFn>,
    ) {
        events.into_iter().for_each(|event| self.register_event(event, hint.clone()));
    }

    /// Registers that no event can make pods schedulable that this plugin rejected, or that it rejects none. A plugin that
    /// registers nothing is treated as if it had registered all events.
    pub fn register_no_events(&mut self) {
        self.events = Some(Vec::new());
    }

    /// Number of cycle state slots so far, and the plugins' initial states, which move to the profile.
    pub fn take_initial_states(&mut self) -> (u32, PluginStates) {
        (self.n_slots, std::mem::take(&mut self.states))
    }
}
