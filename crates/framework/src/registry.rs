//! How plugins become known and enter themselves at their extension points.

use std::sync::Arc;

use loadmaster_api::Needs;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::args::FieldError;
use crate::event::{ClusterEvent, EventWithHint, HintFn};
use crate::gates::FeatureGates;
use crate::objects::{Gvr, ObjectSlot, Presence, Watch};
use crate::points::{
    Bind, Filter, ObjectEvents, Permit, PostBind, PostFilter, PreBind, PreEnqueue, PreFilter,
    PreScore, QueueSort, Reserve, Score, Sign,
};
use crate::prepare::Prepare;
use crate::state::{PluginStates, Published, Receiver, Slot, StateSlot};

/// A plugin that a scheduler knows.
#[derive(Clone)]
pub struct PluginDef {
    /// What configurations call it.
    pub name: &'static str,
    /// Makes the plugin and enters it. The arguments are complete and valid when [`PluginDef::args`] made them.
    pub build: fn(&mut Points, &Value) -> Result<(), PluginError>,
    /// Decodes strictly, fills in defaults and validates; `None` when the plugin takes no arguments.
    pub args: Option<ArgsFn>,
}

/// Makes complete arguments from given ones (`{}` when the configuration gives none). Paths are relative to the arguments.
pub type ArgsFn = fn(&Value, &FeatureGates) -> Result<Value, Vec<FieldError>>;

/// A plugin could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PluginError {
    /// Its arguments do not fit.
    #[error("initializing plugin {plugin:?}: {error}")]
    Args {
        /// Its name.
        plugin: &'static str,
        /// Which one, and why.
        error: FieldError,
    },
    /// Two plugins go by one name.
    #[error(
        "a plugin named {plugin:?} already exists: every plugin needs a name of its own, that of an in-tree one cannot be taken"
    )]
    Duplicate {
        /// The name.
        plugin: &'static str,
    },
}

/// The plugins that a scheduler knows, in the order in which they were added.
#[derive(Clone, Default)]
pub struct Registry(Vec<PluginDef>);

impl Registry {
    /// A registry of these plugins.
    pub fn new(plugins: impl IntoIterator<Item = PluginDef>) -> Self {
        plugins.into_iter().fold(Registry::default(), Registry::with)
    }

    /// With one more. Its name must be new: [`Registry::check`].
    #[must_use]
    pub fn with(mut self, plugin: PluginDef) -> Self {
        self.0.push(plugin);
        self
    }

    /// Whether every plugin has a name of its own.
    pub fn check(&self) -> Result<(), PluginError> {
        let mut rest = self.0.iter().enumerate();
        let twice = rest.find(|(at, it)| self.0[..*at].iter().any(|known| known.name == it.name));
        match twice {
            Some((_, again)) => Err(PluginError::Duplicate { plugin: again.name }),
            None => Ok(()),
        }
    }

    /// The plugin of this name.
    pub fn get(&self, name: &str) -> Option<&PluginDef> {
        self.0.iter().find(|plugin| plugin.name == name)
    }

    /// All plugins.
    pub fn iter(&self) -> impl Iterator<Item = &PluginDef> {
        self.0.iter()
    }
}

/// What a plugin may need of pods and nodes beyond what the scheduler reads itself ([`Points::need`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// [`PodInfo::annotation`](crate::PodInfo::annotation). About as much more memory as the annotations take.
    PodAnnotations,
    /// [`NodeInfo::annotation`](crate::NodeInfo::annotation), and events [`Action::UPDATE_NODE_ANNOTATION`](crate::Action).
    NodeAnnotations,
    /// [`PodInfo::object`](crate::PodInfo::object), annotations included. Pods are then read in JSON, and a pod takes some
    /// ten kilobytes.
    FullPods,
    /// [`NodeInfo::object`](crate::NodeInfo::object), annotations included. Nodes are then read in JSON, and each heartbeat of a
    /// kubelet that writes the node's status is a change of it.
    FullNodes,
}

/// Where one plugin enters itself. One instance serves all points.
#[derive(Default)]
pub struct Points {
    /// The gates to build by.
    pub gates: FeatureGates,
    /// Entered at PreEnqueue.
    pub pre_enqueue: Option<Arc<dyn PreEnqueue>>,
    /// Entered at QueueSort.
    pub queue_sort: Option<Arc<dyn QueueSort>>,
    /// Entered at PreFilter.
    pub pre_filter: Option<Arc<dyn PreFilter>>,
    /// Entered at Filter.
    pub filter: Option<Arc<dyn Filter>>,
    /// Entered at PostFilter.
    pub post_filter: Option<Arc<dyn PostFilter>>,
    /// Entered at PreScore.
    pub pre_score: Option<Arc<dyn PreScore>>,
    /// Entered at Score.
    pub score: Option<Arc<dyn Score>>,
    /// Entered at Reserve.
    pub reserve: Option<Arc<dyn Reserve>>,
    /// Entered at Permit.
    pub permit: Option<Arc<dyn Permit>>,
    /// Entered at PreBind.
    pub pre_bind: Option<Arc<dyn PreBind>>,
    /// Entered at Bind.
    pub bind: Option<Arc<dyn Bind>>,
    /// Entered at PostBind.
    pub post_bind: Option<Arc<dyn PostBind>>,
    /// Entered at Sign.
    pub sign: Option<Arc<dyn Sign>>,
    /// The incremental form of the plugin's Filter and Score.
    pub prepare: Option<Arc<dyn Prepare>>,
    /// Told of changes of the objects that the plugin watches.
    pub object_events: Option<Arc<dyn ObjectEvents>>,
    /// What may wake pods that this plugin rejected; `None` means that everything may.
    pub events: Option<Vec<EventWithHint>>,
    watches: Vec<Watch>,
    needs: Needs,
    receiver: Option<Receiver>,
    n_slots: u32,
    states: PluginStates,
}

impl Points {
    /// Points of the next plugin of a profile, whose slots follow those taken so far.
    pub fn following(gates: FeatureGates, taken: u32, states: PluginStates) -> Self {
        Points { gates, n_slots: taken, states, ..Points::default() }
    }

    /// A place in the cycle state.
    pub fn slot<T>(&mut self) -> Slot<T> {
        self.n_slots += 1;
        Slot::new(self.n_slots - 1)
    }

    /// A state of the plugin's own across cycles.
    pub fn state<T: Clone + Send + Sync + 'static>(&mut self, first: T) -> StateSlot<T> {
        self.states.add(first)
    }

    /// Watches all objects of a kind, read as values of one type: a struct with the fields that matter, or `serde_json::Value`.
    /// Register what wakes pods with [`Gvr::event_resource`].
    pub fn watch<T>(&mut self, kind: Gvr, presence: Presence) -> ObjectSlot<T>
    where
        T: DeserializeOwned + Send + Sync + 'static,
    {
        self.watches.push(Watch::new::<T>(kind.clone(), presence));
        ObjectSlot::new(kind)
    }

    /// Something of pods or nodes that the scheduler does not read itself. It is kept as long as some enabled plugin needs it.
    pub fn need(&mut self, need: Need) {
        let Needs { pods, nodes } = &mut self.needs;
        match need {
            Need::PodAnnotations => pods.annotations = true,
            Need::NodeAnnotations => nodes.annotations = true,
            Need::FullPods => pods.object = true,
            Need::FullNodes => nodes.object = true,
        }
    }

    /// What the plugin needs.
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// A place for what a service publishes to this plugin; it takes one. [`ClusterEvent::published`] wakes pods.
    pub fn published<T>(&mut self) -> Published<T>
    where
        T: DeserializeOwned + Send + Sync + 'static,
    {
        let (slot, receiver) = self.states.add_published();
        self.receiver = Some(receiver);
        slot
    }

    /// The kinds that the plugin watches.
    pub fn watches(&self) -> impl Iterator<Item = Watch> {
        let is_kept = self.prepare.is_some();
        self.watches.iter().cloned().map(move |mut watch| {
            watch.is_kept = is_kept;
            watch
        })
    }

    /// What takes values that a service published.
    pub fn receiver(&self) -> Option<&Receiver> {
        self.receiver.as_ref()
    }

    /// Registers an event that may wake pods this plugin rejected. Without a hint it always does.
    pub fn wake_on(&mut self, event: ClusterEvent, hint: Option<HintFn>) {
        self.events.get_or_insert_default().push(EventWithHint { event, hint });
    }

    /// Nothing that happens can help pods this plugin rejected, or it rejects none. Without this, or any event, everything wakes
    /// them.
    pub fn wake_on_nothing(&mut self) {
        self.events = Some(Vec::new());
    }

    /// Hands the states over to the profile.
    pub fn take_slots(&mut self) -> (u32, PluginStates) {
        (self.n_slots, std::mem::take(&mut self.states))
    }
}
