//! The state of plugins: typed slots in the cycle state, and typed states of a profile across cycles.
//!
//! A slot is an index that is allocated when the plugin is built; nothing is looked up by string at run time.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, PoisonError};

use serde::de::DeserializeOwned;

use crate::node_table::NodeRow;
use crate::plugin_args::{self, FieldError};
use crate::waiting_pods::PluginAction;

/// A typed slot in the [`CycleState`] (upstream's `StateKey`).
pub struct CycleStateSlot<T>(u32, PhantomData<fn() -> T>);

impl<T> CycleStateSlot<T> {
    pub(crate) fn new(index: u32) -> Self {
        CycleStateSlot(index, PhantomData)
    }
}

impl<T> Clone for CycleStateSlot<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for CycleStateSlot<T> {}

/// A typed slot in the [`CycleState`] with one value per node.
pub struct NodeStateSlot<T>(u32, PhantomData<fn() -> T>);

impl<T> NodeStateSlot<T> {
    pub(crate) fn new(index: u32) -> Self {
        NodeStateSlot(index, PhantomData)
    }
}

impl<T> Clone for NodeStateSlot<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for NodeStateSlot<T> {}

/// The slot of a plugin's state in the [`PluginStates`] of its profile.
pub struct PluginStateSlot<T>(u32, PhantomData<fn() -> T>);

impl<T> PluginStateSlot<T> {
    pub(crate) fn new(index: u32) -> Self {
        PluginStateSlot(index, PhantomData)
    }
}

impl<T> Clone for PluginStateSlot<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for PluginStateSlot<T> {}

/// The slot of the value that a service publishes to a plugin.
pub struct PublishedValueSlot<T>(PluginStateSlot<Option<Arc<T>>>);

impl<T> Clone for PublishedValueSlot<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for PublishedValueSlot<T> {}

/// Stores a published value in the plugin's slot; `None` removes it.
///
/// # Errors
///
/// When the value does not decode into the slot's type.
pub type PublishedValueHandler = Arc<
    dyn Fn(&mut PluginStates, Option<&serde_json::Value>) -> Result<(), FieldError> + Send + Sync,
>;

trait Value: Any + Send + Sync {
    fn boxed_clone(&self) -> Box<dyn Value>;
}

impl<T: Any + Clone + Send + Sync> Value for T {
    fn boxed_clone(&self) -> Box<dyn Value> {
        Box::new(self.clone())
    }
}

/// The plugins' state in one scheduling and binding cycle. It is cloned for dry runs and for filtering with nominated pods; a clone has
/// no values of nodes, and those that are set in it are lost with it.
#[derive(Default)]
pub struct CycleState {
    slots: Vec<Option<Box<dyn Value>>>,
    nodes: NodeValues,
    /// The values of the selected node.
    selected: Vec<(u32, AnyArc)>,
}

type AnyArc = Arc<dyn Any + Send + Sync>;

/// Values of nodes, by row and slot.
#[expect(
    clippy::disallowed_types,
    reason = "Filter may run in parallel and has only read access; each node has its own key, so the order of writes does not matter"
)]
#[derive(Default)]
struct NodeValues(std::sync::Mutex<BTreeMap<(NodeRow, u32), AnyArc>>);

impl NodeValues {
    fn with<R>(&self, work: impl FnOnce(&mut BTreeMap<(NodeRow, u32), AnyArc>) -> R) -> R {
        // No plugin runs while it is locked, so a panic leaves nothing partly changed.
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl CycleState {
    /// The value of a slot, if it was set in this cycle.
    pub fn get<T: Any>(&self, slot: CycleStateSlot<T>) -> Option<&T> {
        let value: &dyn Any = &**self.slots.get(slot.0 as usize)?.as_ref()?;
        value.downcast_ref()
    }

    /// Mutable access to the value of a slot.
    pub fn get_mut<T: Any>(&mut self, slot: CycleStateSlot<T>) -> Option<&mut T> {
        let value: &mut dyn Any = &mut **self.slots.get_mut(slot.0 as usize)?.as_mut()?;
        value.downcast_mut()
    }

    /// Sets the value of a slot.
    pub fn set<T: Any + Clone + Send + Sync>(&mut self, slot: CycleStateSlot<T>, value: T) {
        let at = slot.0 as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        self.slots[at] = Some(Box::new(value));
    }

    /// Removes all values; keeps the allocation.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.nodes.with(BTreeMap::clear);
        self.selected.clear();
    }

    /// Sets the value of a slot for a node: what Filter found there, such as the devices that it would use. Replaces an earlier
    /// value.
    pub fn set_for_node<T: Any + Send + Sync>(
        &self,
        slot: NodeStateSlot<T>,
        node: NodeRow,
        value: T,
    ) {
        self.nodes.with(|values| values.insert((node, slot.0), Arc::new(value)));
    }

    /// The value that Filter set for a node. `None` if the node has not been filtered one by one in this cycle, or the plugin set
    /// none.
    pub fn get_for_node<T: Any + Send + Sync>(
        &self,
        slot: NodeStateSlot<T>,
        node: NodeRow,
    ) -> Option<Arc<T>> {
        self.nodes.with(|values| values.get(&(node, slot.0)).cloned())?.downcast().ok()
    }

    /// The value that Filter set for the selected node: for Reserve and all later extension points. Filter has run on that node even
    /// if it was selected with the plugin's incremental form. `None` if the plugin set none, or PreFilter returned `Skip`.
    pub fn get_for_selected_node<T: Any>(&self, slot: NodeStateSlot<T>) -> Option<&T> {
        let (_, value) = self.selected.iter().find(|(known, _)| *known == slot.0)?;
        value.downcast_ref()
    }

    /// Keeps only the values of the selected node.
    pub fn select_node(&mut self, node: NodeRow) {
        let values = self.nodes.with(std::mem::take).into_iter();
        let own = values.filter(|((row, _), _)| *row == node);
        self.selected = own.map(|((_, slot), value)| (slot, value)).collect();
    }
}

impl Clone for CycleState {
    fn clone(&self) -> Self {
        let slots =
            self.slots.iter().map(|slot| slot.as_ref().map(|value| (**value).boxed_clone()));
        CycleState {
            slots: slots.collect(),
            nodes: NodeValues::default(),
            selected: self.selected.clone(),
        }
    }
}

impl fmt::Debug for CycleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CycleState({} set)", self.slots.iter().flatten().count())
    }
}

/// The states of a profile's plugins across cycles, and the actions that plugins requested. Owned by the engine, cloned for
/// `explain`.
#[derive(Default)]
pub struct PluginStates {
    states: Vec<Box<dyn Value>>,
    version: u64,
    /// In the order in which they were requested. A clone has none.
    requested_actions: Vec<PluginAction>,
}

impl PluginStates {
    /// Adds a plugin's initial state.
    pub fn add_state<T: Any + Clone + Send + Sync>(&mut self, first: T) -> PluginStateSlot<T> {
        self.states.push(Box::new(first));
        PluginStateSlot::new(self.states.len() as u32 - 1)
    }

    /// A plugin's state. `None` only for a slot of another profile.
    pub fn get<T: Any>(&self, slot: PluginStateSlot<T>) -> Option<&T> {
        let state: &dyn Any = &**self.states.get(slot.0 as usize)?;
        state.downcast_ref()
    }

    /// Grows whenever a state may have changed.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The first state of this type, for tests that do not have its slot.
    pub fn find<T: Any>(&self) -> Option<&T> {
        self.states.iter().map(|state| &**state as &dyn Any).find_map(<dyn Any>::downcast_ref)
    }

    /// Number of states.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether no plugin has a state.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Resets these states to their values in `first`, which belongs to the same profile.
    pub fn reset(&mut self, which: std::ops::Range<usize>, first: &PluginStates) {
        self.version += 1;
        let states = self.states.iter_mut().zip(&first.states);
        for (state, first) in states.skip(which.start).take(which.len()) {
            *state = (**first).boxed_clone();
        }
    }

    /// Swaps the states of a plugin in two profiles that build it in the same way.
    pub fn swap(
        &mut self,
        own: std::ops::Range<usize>,
        other: &mut PluginStates,
        theirs: std::ops::Range<usize>,
    ) {
        self.version += 1;
        other.version += 1;
        let mine = self.states.iter_mut().skip(own.start).take(own.len());
        let others = other.states.iter_mut().skip(theirs.start).take(theirs.len());
        mine.zip(others).for_each(|(mine, other)| std::mem::swap(mine, other));
    }

    /// Mutable access to a plugin's state.
    pub fn get_mut<T: Any>(&mut self, slot: PluginStateSlot<T>) -> Option<&mut T> {
        self.version += 1;
        let state: &mut dyn Any = &mut **self.states.get_mut(slot.0 as usize)?;
        state.downcast_mut()
    }

    /// The value that was published last.
    pub fn published_value<T: Send + Sync + 'static>(
        &self,
        slot: PublishedValueSlot<T>,
    ) -> Option<&T> {
        self.get(slot.0)?.as_deref()
    }

    /// Requests an action on other pods. The engine performs it after the current step.
    pub fn request_action(&mut self, intervention: PluginAction) {
        self.requested_actions.push(intervention);
    }

    /// Takes the actions requested since the last call.
    pub fn take_requested_actions(&mut self) -> Vec<PluginAction> {
        std::mem::take(&mut self.requested_actions)
    }

    pub(crate) fn add_published_slot<T>(&mut self) -> (PublishedValueSlot<T>, PublishedValueHandler)
    where
        T: DeserializeOwned + Send + Sync + 'static,
    {
        let slot = self.add_state::<Option<Arc<T>>>(None);
        let receive = move |states: &mut PluginStates, value: Option<&serde_json::Value>| {
            let value = value.map(plugin_args::decode_json_value::<T>).transpose()?.map(Arc::new);
            if let Some(published) = states.get_mut(slot) {
                *published = value;
            }
            Ok(())
        };
        (PublishedValueSlot(slot), Arc::new(receive))
    }
}

impl Clone for PluginStates {
    fn clone(&self) -> Self {
        let states = self.states.iter().map(|state| (**state).boxed_clone());
        let requested_actions = Vec::new();
        PluginStates { states: states.collect(), version: self.version, requested_actions }
    }
}
