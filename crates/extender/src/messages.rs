//! What goes over the wire, as Go's `encoding/json` writes and reads upstream's types.
//!
//! Those types have no tags, so every field is there under its Go name, a nil list, map or pointer is `null`, and map keys are
//! sorted. Reading is as lenient as Go's: names in any case (many extenders answer `nodenames`), unknown fields skipped, `null` or
//! nothing for the zero value. Pods and nodes are whatever the user of a type wants to hold: by default their JSON as it came.
//!
//! [`read`] also takes what only Go's reader takes: `null` for a whole message, and more text after it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// The best score an extender can give; a node's score is scaled from this to 100.
pub const MAX_EXTENDER_PRIORITY: i64 = 10;

/// Why nodes were refused, by node name.
pub type FailedNodesMap = BTreeMap<String, String>;

/// The answer to prioritize.
pub type HostPriorityList = Vec<HostPriority>;

/// Defines a message: its fields with their names on the wire, written in this order.
macro_rules! message {
    ($(#[$about:meta])* $visible:vis struct $name:ident $(<$($parameter:ident),+>)? {
        $($(#[$field_about:meta])* $field:ident: $kind:ty = $wire:literal,)+
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        $visible struct $name $(<$($parameter = Box<RawValue>),+>)? {
            $($(#[$field_about])* #[serde(rename = $wire)] pub $field: $kind,)+
        }

        impl $(<$($parameter),+>)? Default for $name $(<$($parameter),+>)? {
            fn default() -> Self {
                $name { $($field: Default::default(),)+ }
            }
        }

        impl<'de, $($($parameter: Deserialize<'de>),+)?> Deserialize<'de> for $name $(<$($parameter),+>)? {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Fields<T>(PhantomData<T>);

                impl<'de, $($($parameter: Deserialize<'de>),+)?> Visitor<'de>
                    for Fields<$name $(<$($parameter),+>)?>
                {
                    type Value = $name $(<$($parameter),+>)?;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(concat!("an object, ", stringify!($name)))
                    }

                    fn visit_unit<E>(self) -> Result<Self::Value, E> {
                        Ok(Default::default())
                    }

                    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                        let mut message = Self::Value::default();
                        while let Some(Key(key)) = map.next_key()? {
                            $(if is_called(&key, $wire) {
                                message.$field = map.next_value::<Option<_>>()?.unwrap_or_default();
                                continue;
                            })+
                            map.next_value::<IgnoredAny>()?;
                        }
                        Ok(message)
                    }
                }
                deserializer.deserialize_any(Fields(PhantomData))
            }
        }
    };
}

message! {
    /// The question of filter and of prioritize.
    pub struct ExtenderArgs<Pod, Node> {
        /// The pod being scheduled.
        pod: Option<Pod> = "Pod",
        /// The nodes asked about, unless the extender is node-cache capable.
        nodes: Option<NodeList<Node>> = "Nodes",
        /// The names of the nodes asked about, if the extender is node-cache capable.
        node_names: Option<Vec<String>> = "NodeNames",
    }
}

message! {
    /// The answer to filter.
    pub struct ExtenderFilterResult<Node> {
        /// The nodes that remain, from an extender that is not node-cache capable.
        nodes: Option<NodeList<Node>> = "Nodes",
        /// The names of the nodes that remain, from an extender that is node-cache capable.
        node_names: Option<Vec<String>> = "NodeNames",
        /// Nodes on which the pod does not fit, and why. Preemption may help there.
        #[serde(serialize_with = "null_if_empty")]
        failed_nodes: FailedNodesMap = "FailedNodes",
        /// Nodes on which the pod does not fit whatever is evicted, and why. Goes before `failed_nodes`.
        #[serde(serialize_with = "null_if_empty")]
        failed_and_unresolvable_nodes: FailedNodesMap = "FailedAndUnresolvableNodes",
        /// Not empty: the extender could not answer.
        error: String = "Error",
    }
}

message! {
    /// One node's score.
    pub struct HostPriority {
        /// The node's name.
        host: String = "Host",
        /// 0 to [`MAX_EXTENDER_PRIORITY`]; nobody checks.
        score: i64 = "Score",
    }
}

message! {
    /// The question of preempt: the victims that were found on each candidate node.
    pub struct ExtenderPreemptionArgs<Pod> {
        /// The pod being scheduled.
        pod: Option<Pod> = "Pod",
        /// By node name, unless the extender is node-cache capable.
        #[serde(serialize_with = "null_if_empty")]
        node_name_to_victims: BTreeMap<String, Victims<Pod>> = "NodeNameToVictims",
        /// By node name, if the extender is node-cache capable.
        #[serde(serialize_with = "null_if_empty")]
        node_name_to_meta_victims: BTreeMap<String, MetaVictims> = "NodeNameToMetaVictims",
    }
}

message! {
    /// The answer to preempt, from any extender: the candidates that remain, with their victims.
    pub struct ExtenderPreemptionResult {
        /// By node name.
        #[serde(serialize_with = "null_if_empty")]
        node_name_to_meta_victims: BTreeMap<String, MetaVictims> = "NodeNameToMetaVictims",
    }
}

message! {
    /// The pods that would be evicted from a node.
    pub struct Victims<Pod> {
        /// Whole pods.
        pods: Vec<Pod> = "Pods",
        /// How many of these evictions break a PodDisruptionBudget.
        num_pdb_violations: i64 = "NumPDBViolations",
    }
}

message! {
    /// [`Victims`] without the pods themselves.
    pub struct MetaVictims {
        /// Who they are.
        pods: Vec<MetaPod> = "Pods",
        /// How many of these evictions break a PodDisruptionBudget.
        num_pdb_violations: i64 = "NumPDBViolations",
    }
}

message! {
    /// A pod by its uid.
    pub struct MetaPod {
        /// `metadata.uid`.
        uid: String = "UID",
    }
}

message! {
    /// The question of bind.
    pub struct ExtenderBindingArgs {
        /// `metadata.name` of the pod.
        pod_name: String = "PodName",
        /// `metadata.namespace` of the pod.
        pod_namespace: String = "PodNamespace",
        /// `metadata.uid` of the pod.
        pod_uid: String = "PodUID",
        /// The node that was chosen.
        node: String = "Node",
    }
}

message! {
    /// The answer to bind.
    pub struct ExtenderBindingResult {
        /// Not empty: the pod was not bound.
        error: String = "Error",
    }
}

message! {
    /// An object of which only the name is read.
    pub struct Named {
        /// The part of `metadata` that is read.
        metadata: Metadata = "metadata",
    }
}

message! {
    /// `metadata` of a [`Named`].
    pub struct Metadata {
        /// Empty when there is none.
        name: String = "name",
    }
}

message! {
    /// The part of `v1.NodeList` that means something here.
    struct NodeListFields<Node> {
        /// The nodes.
        items: Vec<Node> = "items",
    }
}

/// A `v1.NodeList`: its items. `metadata` is written empty and not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeList<Node = Box<RawValue>> {
    /// The nodes.
    pub items: Vec<Node>,
}

impl<Node: Serialize> Serialize for NodeList<Node> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_struct("NodeList", 2)?;
        list.serialize_field("metadata", &BTreeMap::<(), ()>::new())?;
        list.serialize_field("items", &NullIfEmpty(&self.items))?;
        list.end()
    }
}

impl<'de, Node: Deserialize<'de>> Deserialize<'de> for NodeList<Node> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let NodeListFields { items } = NodeListFields::deserialize(deserializer)?;
        Ok(NodeList { items })
    }
}

/// A message that cannot be read, in Go's words where they are known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// There is nothing but white space.
    #[error("EOF")]
    Empty,
    /// It ends in the middle.
    #[error("unexpected EOF")]
    Cut,
    /// It is no JSON, or not of this shape.
    #[error("{0}")]
    Shape(serde_json::Error),
}

/// Reads one message as Go's `json.Decoder` does: `null` is the zero value, text behind the message is left alone, and bytes that
/// are no UTF-8 become U+FFFD.
pub fn read<T: Default + for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, ReadError> {
    // Nearly all are UTF-8, which is told many bytes at a time; what may not be is read byte by byte.
    let text = str::from_utf8(body).map_or_else(|_| String::from_utf8_lossy(body), Cow::Borrowed);
    match serde_json::Deserializer::from_str(&text).into_iter::<Option<T>>().next() {
        None => Err(ReadError::Empty),
        Some(Ok(message)) => Ok(message.unwrap_or_default()),
        Some(Err(error)) if error.is_eof() => Err(ReadError::Cut),
        Some(Err(error)) => Err(ReadError::Shape(error)),
    }
}

/// A field name as it came. It is copied only where it is written with escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// Whether Go takes a field name for this one.
pub(crate) fn is_called(key: &str, wire: &str) -> bool {
    key.eq_ignore_ascii_case(wire) || !key.is_ascii() && folded(key) == folded(wire)
}

/// A field name in one case, with the two letters beyond ASCII that Unicode folds to ASCII ones.
fn folded(name: &str) -> String {
    let fold = |c| match c {
        'ſ' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    name.chars().map(fold).collect()
}

/// Writes what is empty as Go writes a list or map that was never made.
struct NullIfEmpty<'a, T>(&'a T);

impl<T: IsEmpty + Serialize> Serialize for NullIfEmpty<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        null_if_empty(self.0, serializer)
    }
}

fn null_if_empty<T: IsEmpty + Serialize, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    if value.is_empty() { serializer.serialize_unit() } else { value.serialize(serializer) }
}

trait IsEmpty {
    fn is_empty(&self) -> bool;
}

impl<T> IsEmpty for Vec<T> {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

impl<K, V> IsEmpty for BTreeMap<K, V> {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

#[cfg(test)]
mod tests;
