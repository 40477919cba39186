//! A call to an extender: the request, its body, and the response.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use loadmaster_api::Str;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::chain::Extender;
use crate::messages::{
    self, ExtenderArgs, ExtenderBindingArgs, ExtenderBindingResult, ExtenderFilterResult,
    ExtenderPreemptionArgs, ExtenderPreemptionResult, HostPriorityList, MetaVictims, NamedObject,
    NodeList, Victims,
};
use crate::node_names::{NodeNames, RemainingNodes};

/// The verbs of extenders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    /// Filters nodes.
    Filter,
    /// Scores nodes.
    Prioritize,
    /// Filters the candidates of a preemption.
    Preempt,
    /// Binds the pod.
    Bind,
}

impl Verb {
    /// `filter`, `prioritize`, `preempt` or `bind`; the configured verb may be another.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Filter => "filter",
            Verb::Prioritize => "prioritize",
            Verb::Preempt => "preempt",
            Verb::Bind => "bind",
        }
    }
}

/// A call to an extender.
#[derive(Clone, Debug, PartialEq)]
pub struct ExtenderRequest {
    /// Index of the extender in [`crate::Extenders`].
    pub extender: usize,
    /// `metadata.namespace` of the pod.
    pub namespace: Str,
    /// `metadata.name` of the pod.
    pub name: Box<str>,
    /// `metadata.uid` of the pod.
    pub uid: Box<str>,
    /// The verb with its arguments.
    pub operation: ExtenderOperation,
}

/// A verb with its arguments.
#[derive(Clone, Debug, PartialEq)]
pub enum ExtenderOperation {
    /// Filter these nodes.
    Filter(Arc<NodeNames>),
    /// Score these nodes.
    Prioritize(Arc<NodeNames>),
    /// Filter these candidate nodes with their victims.
    Preempt(BTreeMap<String, MetaVictims>),
    /// Bind the pod to this node.
    Bind(Str),
}

/// The response of an extender. Its serialized form is part of recordings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExtenderResponse {
    /// The response to filter.
    Filter(ExtenderFilterResult<NamedObject>),
    /// The response to filter when it repeats names of the request in their order: the remaining nodes, and its other fields.
    #[serde(rename = "Left")]
    FilterInOrder(RemainingNodes, ExtenderFilterResult<NamedObject>),
    /// The response to prioritize.
    Prioritize(HostPriorityList),
    /// The response to prioritize when it has a score for each node of the request, in their order.
    #[serde(rename = "Scores")]
    PrioritizeInOrder(Vec<i64>),
    /// The response to preempt.
    Preempt(ExtenderPreemptionResult),
    /// The response to bind.
    Bind(ExtenderBindingResult),
}

/// The objects of a request body.
#[derive(Clone, Debug, Default)]
pub struct RequestObjects<'a> {
    /// The pod; for every verb but bind.
    pub pod: Option<&'a RawValue>,
    /// The nodes, unless the extender is node-cache capable.
    pub nodes: Vec<&'a RawValue>,
    /// The victims by uid, unless the extender is node-cache capable.
    pub victims: BTreeMap<&'a str, &'a RawValue>,
}

impl ExtenderOperation {
    /// The verb.
    pub fn verb(&self) -> Verb {
        match self {
            ExtenderOperation::Filter(_) => Verb::Filter,
            ExtenderOperation::Prioritize(_) => Verb::Prioritize,
            ExtenderOperation::Preempt(_) => Verb::Preempt,
            ExtenderOperation::Bind(_) => Verb::Bind,
        }
    }
}

impl ExtenderRequest {
    /// The request body, in chunks: most of it are node names, which many requests share. A node or victim that is not among the
    /// objects is left out.
    pub fn body(&self, extender: &Extender, objects: &RequestObjects<'_>) -> Vec<Bytes> {
        let names = extender.node_cache_capable;
        let written = match &self.operation {
            ExtenderOperation::Filter(nodes) | ExtenderOperation::Prioritize(nodes) if names => {
                let pod = objects.pod.map_or("null", RawValue::get);
                let before = [r#"{"Pod":"#, pod, r#","Nodes":null,"NodeNames":"#].concat();
                return vec![before.into(), nodes.to_json(), Bytes::from_static(b"}")];
            }
            ExtenderOperation::Filter(_) | ExtenderOperation::Prioritize(_) => {
                let list = NodeList { items: objects.nodes.clone() };
                let args = ExtenderArgs { pod: objects.pod, nodes: Some(list), node_names: None };
                serde_json::to_vec(&args)
            }
            ExtenderOperation::Preempt(victims) => serde_json::to_vec(&ExtenderPreemptionArgs {
                pod: objects.pod,
                node_name_to_victims: match names {
                    true => BTreeMap::new(),
                    false => victims
                        .iter()
                        .map(|(node, it)| (node.clone(), full_victims(it, objects)))
                        .collect(),
                },
                node_name_to_meta_victims: if names { victims.clone() } else { BTreeMap::new() },
            }),
            ExtenderOperation::Bind(node) => serde_json::to_vec(&ExtenderBindingArgs {
                pod_name: self.name.to_string(),
                pod_namespace: self.namespace.to_string(),
                pod_uid: self.uid.to_string(),
                node: node.to_string(),
            }),
        };
        // Serializing strings, numbers and valid JSON cannot fail.
        vec![written.unwrap_or_default().into()]
    }
}

fn full_victims<'a>(victims: &MetaVictims, objects: &RequestObjects<'a>) -> Victims<&'a RawValue> {
    let pods = victims.pods.iter().filter_map(|pod| objects.victims.get(pod.uid.as_str()).copied());
    Victims { pods: pods.collect(), num_pdb_violations: victims.num_pdb_violations }
}

impl ExtenderResponse {
    /// Decodes the body of a response. `by_name`: the request had node names instead of nodes.
    ///
    /// # Errors
    ///
    /// When the body is not a valid response.
    pub fn decode(
        operation: &ExtenderOperation,
        by_name: bool,
        body: &[u8],
    ) -> Result<ExtenderResponse, messages::DecodeError> {
        Ok(match operation {
            ExtenderOperation::Filter(nodes) => {
                let in_order = if by_name { nodes.decode_filter_response(body) } else { None };
                match in_order {
                    Some((remaining, result)) => ExtenderResponse::FilterInOrder(remaining, result),
                    None => ExtenderResponse::Filter(messages::decode_message(body)?),
                }
            }
            ExtenderOperation::Prioritize(nodes) => match nodes.decode_prioritize_response(body) {
                Some(scores) => ExtenderResponse::PrioritizeInOrder(scores),
                None => ExtenderResponse::Prioritize(messages::decode_message(body)?),
            },
            ExtenderOperation::Preempt(_) => {
                ExtenderResponse::Preempt(messages::decode_message(body)?)
            }
            ExtenderOperation::Bind(_) => ExtenderResponse::Bind(messages::decode_message(body)?),
        })
    }
}
