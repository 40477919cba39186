//! The types of extender/v1, encoded and decoded as by Go's `encoding/json`.
//!
//! These types have no JSON tags, so every field is present under its Go name, a nil list, map or pointer is `null`, and map keys
//! are
//! sorted. Decoding is as lenient as in Go: field names in any case (many extenders respond with `nodenames`), unknown fields are
//! skipped, `null` or an absent field is the zero value. The types of pods and nodes are generic: by default their raw JSON.
//!
//! [`decode_message`] also accepts what only Go's decoder accepts: `null` for a whole message, and more text after it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// The highest score of an extender (upstream's `MaxExtenderPriority`); scores are scaled from it to 100.
pub const MAX_EXTENDER_PRIORITY: i64 = 10;

/// Why nodes were rejected, by node name.
pub type FailedNodesMap = BTreeMap<String, String>;

/// The response to prioritize.
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
                            $(if matches_field_name(&key, $wire) {
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
    /// The request of filter and of prioritize.
    pub struct ExtenderArgs<Pod, Node> {
        /// The pod being scheduled.
        pod: Option<Pod> = "Pod",
        /// The nodes, unless the extender is node-cache capable.
        nodes: Option<NodeList<Node>> = "Nodes",
        /// The names of the nodes, if the extender is node-cache capable.
        node_names: Option<Vec<String>> = "NodeNames",
    }
}

message! {
    /// The response to filter.
    pub struct ExtenderFilterResult<Node> {
        /// The nodes that remain, from an extender that is not node-cache capable.
        nodes: Option<NodeList<Node>> = "Nodes",
        /// The names of the nodes that remain, from an extender that is node-cache capable.
        node_names: Option<Vec<String>> = "NodeNames",
        /// Rejected nodes where preemption may help, with the reasons.
        #[serde(serialize_with = "null_if_empty")]
        failed_nodes: FailedNodesMap = "FailedNodes",
        /// Rejected nodes where preemption cannot help, with the reasons. Has precedence over `failed_nodes`.
        #[serde(serialize_with = "null_if_empty")]
        failed_and_unresolvable_nodes: FailedNodesMap = "FailedAndUnresolvableNodes",
        /// The error of the extender, if not empty.
        error: String = "Error",
    }
}

message! {
    /// One node's score.
    pub struct HostPriority {
        /// The node's name.
        host: String = "Host",
        /// 0 to [`MAX_EXTENDER_PRIORITY`]; not validated.
        score: i64 = "Score",
    }
}

message! {
    /// The request of preempt: the candidate nodes with their victims.
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
    /// The response to preempt: the remaining candidates with their victims.
    pub struct ExtenderPreemptionResult {
        /// By node name.
        #[serde(serialize_with = "null_if_empty")]
        node_name_to_meta_victims: BTreeMap<String, MetaVictims> = "NodeNameToMetaVictims",
    }
}

message! {
    /// The victims on a node.
    pub struct Victims<Pod> {
        /// The pods.
        pods: Vec<Pod> = "Pods",
        /// How many of these evictions violate a PodDisruptionBudget.
        num_pdb_violations: i64 = "NumPDBViolations",
    }
}

message! {
    /// [`Victims`] with uids instead of pods.
    pub struct MetaVictims {
        /// The uids of the pods.
        pods: Vec<MetaPod> = "Pods",
        /// How many of these evictions violate a PodDisruptionBudget.
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
    /// The request of bind.
    pub struct ExtenderBindingArgs {
        /// `metadata.name` of the pod.
        pod_name: String = "PodName",
        /// `metadata.namespace` of the pod.
        pod_namespace: String = "PodNamespace",
        /// `metadata.uid` of the pod.
        pod_uid: String = "PodUID",
        /// The name of the selected node.
        node: String = "Node",
    }
}

message! {
    /// The response to bind.
    pub struct ExtenderBindingResult {
        /// The error of the extender, if not empty: the pod was not bound.
        error: String = "Error",
    }
}

message! {
    /// An object of which only the name is decoded.
    pub struct NamedObject {
        /// The decoded part of `metadata`.
        metadata: NamedObjectMetadata = "metadata",
    }
}

message! {
    /// `metadata` of a [`NamedObject`].
    pub struct NamedObjectMetadata {
        /// The name; empty when there is none.
        name: String = "name",
    }
}

message! {
    /// The decoded part of `v1.NodeList`.
    struct NodeListFields<Node> {
        /// The nodes.
        items: Vec<Node> = "items",
    }
}

/// A `v1.NodeList` with its items. `metadata` is encoded empty and not decoded.
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

/// A message cannot be decoded. The texts are Go's where possible.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The text is empty.
    #[error("EOF")]
    Empty,
    /// The text ends in the middle of a value.
    #[error("unexpected EOF")]
    Cut,
    /// The text is not valid JSON, or not of this type.
    #[error("{0}")]
    Shape(serde_json::Error),
}

/// Decodes one message as Go's `json.Decoder`: `null` is the zero value, text after the message is ignored, and invalid UTF-8
/// becomes
/// U+FFFD.
pub fn decode_message<T: Default + for<'de> Deserialize<'de>>(
    body: &[u8],
) -> Result<T, DecodeError> {
    // Validating UTF-8 is fast; only invalid UTF-8 is converted.
    let text = str::from_utf8(body).map_or_else(|_| String::from_utf8_lossy(body), Cow::Borrowed);
    match serde_json::Deserializer::from_str(&text).into_iter::<Option<T>>().next() {
        None => Err(DecodeError::Empty),
        Some(Ok(message)) => Ok(message.unwrap_or_default()),
        Some(Err(error)) if error.is_eof() => Err(DecodeError::Cut),
        Some(Err(error)) => Err(DecodeError::Shape(error)),
    }
}

/// A field name. It is copied only if it contains escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// Whether Go matches a key with this field name.
pub(crate) fn matches_field_name(key: &str, wire: &str) -> bool {
    key.eq_ignore_ascii_case(wire) || !key.is_ascii() && fold_case(key) == fold_case(wire)
}

/// A field name in lower case, with the two non-ASCII letters that Unicode folds to ASCII ones.
fn fold_case(name: &str) -> String {
    let fold = |c| match c {
        'ſ' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    name.chars().map(fold).collect()
}

/// Encodes an empty list or map as `null`, as Go encodes a nil slice or map.
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
