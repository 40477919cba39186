//! What plugins remember: typed slots within one cycle, and typed state of a profile across cycles.
//!
//! A slot is an index taken at build time, not a string looked up at run time.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::args::{self, FieldError};
use crate::waiting::Intervention;

/// A place in the [`CycleState`] for values of one type.
pub struct Slot<T>(u32, PhantomData<fn() -> T>);

impl<T> Slot<T> {
    pub(crate) fn new(index: u32) -> Self {
        Slot(index, PhantomData)
    }
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Slot<T> {}

/// The place of a plugin's own state in the [`PluginStates`] of its profile.
pub struct StateSlot<T>(u32, PhantomData<fn() -> T>);

impl<T> StateSlot<T> {
    pub(crate) fn new(index: u32) -> Self {
        StateSlot(index, PhantomData)
    }
}

impl<T> Clone for StateSlot<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for StateSlot<T> {}

/// The place of what a service publishes to a plugin.
pub struct Published<T>(StateSlot<Option<Arc<T>>>);

impl<T> Clone for Published<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Published<T> {}

/// Takes what was published; `None` forgets it.
pub type Receiver = Arc<
    dyn Fn(&mut PluginStates, Option<&serde_json::Value>) -> Result<(), FieldError> + Send + Sync,
>;

trait Value: Any + Send + Sync {
    fn boxed_clone(&self) -> Box<dyn Value>;
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

impl<T: Any + Clone + Send + Sync> Value for T {
    fn boxed_clone(&self) -> Box<dyn Value> {
        Box::new(self.clone())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// What plugins remember within one cycle. It is cloned for dry runs and for the pass with nominated pods.
#[derive(Default)]
pub struct CycleState {
    slots: Vec<Option<Box<dyn Value>>>,
}

impl CycleState {
    /// The value in the slot, if one was set in this cycle.
    pub fn get<T: Any>(&self, slot: Slot<T>) -> Option<&T> {
        let value = self.slots.get(slot.0 as usize)?.as_ref()?;
        (**value).as_any().downcast_ref()
    }

    /// The value in the slot, to change it.
    pub fn get_mut<T: Any>(&mut self, slot: Slot<T>) -> Option<&mut T> {
        let value = self.slots.get_mut(slot.0 as usize)?.as_mut()?;
        (**value).as_any_mut().downcast_mut()
    }

    /// Sets the value in the slot.
    pub fn set<T: Any + Clone + Send + Sync>(&mut self, slot: Slot<T>, value: T) {
        let at = slot.0 as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        self.slots[at] = Some(Box::new(value));
    }

    /// Forgets everything, keeping the allocation.
    pub fn clear(&mut self) {
        self.slots.clear();
    }
}

impl Clone for CycleState {
    fn clone(&self) -> Self {
        let slots =
            self.slots.iter().map(|slot| slot.as_ref().map(|value| (**value).boxed_clone()));
        CycleState { slots: slots.collect() }
    }
}

impl fmt::Debug for CycleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CycleState({} set)", self.slots.iter().flatten().count())
    }
}

/// The states of a profile's plugins across cycles, and what they ask for other pods: owned by the engine, cloned for `explain`,
/// recorded for replay.
#[derive(Default)]
pub struct PluginStates {
    states: Vec<Box<dyn Value>>,
    /// In the order in which they were asked for. A copy begins without any.
    interventions: Vec<Intervention>,
}

impl PluginStates {
    /// Adds a plugin's first state.
    pub fn add<T: Any + Clone + Send + Sync>(&mut self, first: T) -> StateSlot<T> {
        self.states.push(Box::new(first));
        StateSlot::new(self.states.len() as u32 - 1)
    }

    /// A plugin's state. `None` only for a slot of another profile.
    pub fn get<T: Any>(&self, slot: StateSlot<T>) -> Option<&T> {
        (**self.states.get(slot.0 as usize)?).as_any().downcast_ref()
    }

    /// Number of states.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether no plugin has a state.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Sets these states back to what they are in `first`, which is of the same profile.
    pub fn reset(&mut self, which: std::ops::Range<usize>, first: &PluginStates) {
        let states = self.states.iter_mut().zip(&first.states);
        for (state, first) in states.skip(which.start).take(which.len()) {
            *state = (**first).boxed_clone();
        }
    }

    /// A plugin's state, to change it at a serial point.
    pub fn get_mut<T: Any>(&mut self, slot: StateSlot<T>) -> Option<&mut T> {
        (**self.states.get_mut(slot.0 as usize)?).as_any_mut().downcast_mut()
    }

    /// What was published last.
    pub fn published<T: Send + Sync + 'static>(&self, slot: Published<T>) -> Option<&T> {
        self.get(slot.0)?.as_deref()
    }

    /// Asks for something to be done to other pods.
    pub fn intervene(&mut self, intervention: Intervention) {
        self.interventions.push(intervention);
    }

    /// What was asked for since this was called last.
    pub fn take_interventions(&mut self) -> Vec<Intervention> {
        std::mem::take(&mut self.interventions)
    }

    pub(crate) fn add_published<T>(&mut self) -> (Published<T>, Receiver)
    where
        T: DeserializeOwned + Send + Sync + 'static,
    {
        let slot = self.add::<Option<Arc<T>>>(None);
        let receive = move |states: &mut PluginStates, value: Option<&serde_json::Value>| {
            let value = value.map(args::decode::<T>).transpose()?.map(Arc::new);
            if let Some(place) = states.get_mut(slot) {
                *place = value;
            }
            Ok(())
        };
        (Published(slot), Arc::new(receive))
    }
}

impl Clone for PluginStates {
    fn clone(&self) -> Self {
        let states = self.states.iter().map(|state| (**state).boxed_clone());
        PluginStates { states: states.collect(), interventions: Vec::new() }
    }
}
