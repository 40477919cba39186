//! One call on an extender as a value: what is asked, the message that asks it, and the answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use loadmaster_api::Str;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::chain::Extender;
use crate::messages::{
    self, ExtenderArgs, ExtenderBindingArgs, ExtenderBindingResult, ExtenderFilterResult,
    ExtenderPreemptionArgs, ExtenderPreemptionResult, HostPriorityList, MetaVictims, Named,
    NodeList, Victims,
};
use crate::names::{Left, NodeNames};

/// What extenders can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    /// Leave nodes out.
    Filter,
    /// Give scores.
    Prioritize,
    /// Have a say in who is evicted.
    Preempt,
    /// Write the binding.
    Bind,
}

impl Verb {
    /// `filter`, `prioritize`, `preempt` or `bind`, whatever the configuration calls it.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Filter => "filter",
            Verb::Prioritize => "prioritize",
            Verb::Preempt => "preempt",
            Verb::Bind => "bind",
        }
    }
}

/// A call.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// Place of the extender among [`crate::Extenders`].
    pub extender: usize,
    /// `metadata.namespace` of the pod.
    pub namespace: Str,
    /// `metadata.name` of the pod.
    pub name: Box<str>,
    /// `metadata.uid` of the pod.
    pub uid: Box<str>,
    /// About what.
    pub question: Question,
}

/// What is asked about the pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// Which of these nodes are left?
    Filter(Arc<NodeNames>),
    /// How good are these nodes?
    Prioritize(Arc<NodeNames>),
    /// On which of these nodes, and of whom, may room be made?
    Preempt(BTreeMap<String, MetaVictims>),
    /// Bind it to this node.
    Bind(Str),
}

/// What came back, where anything did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To filter.
    Filter(ExtenderFilterResult<Named>),
    /// To filter, where names of the question are left in its order: which, and what else the answer says.
    Left(Left, ExtenderFilterResult<Named>),
    /// To prioritize.
    Prioritize(HostPriorityList),
    /// To prioritize, with a score for each node of the question, in its order.
    Scores(Vec<i64>),
    /// To preempt.
    Preempt(ExtenderPreemptionResult),
    /// To bind.
    Bind(ExtenderBindingResult),
}

/// The objects that a message needs.
#[derive(Clone, Debug, Default)]
pub struct Objects<'a> {
    /// The pod; for every question but bind.
    pub pod: Option<&'a RawValue>,
    /// The nodes asked about, unless the extender is node-cache capable.
    pub nodes: Vec<&'a RawValue>,
    /// The victims by uid, unless it is node-cache capable.
    pub victims: BTreeMap<&'a str, &'a RawValue>,
}

impl Question {
    /// What is done with it.
    pub fn verb(&self) -> Verb {
        match self {
            Question::Filter(_) => Verb::Filter,
            Question::Prioritize(_) => Verb::Prioritize,
            Question::Preempt(_) => Verb::Preempt,
            Question::Bind(_) => Verb::Bind,
        }
    }
}

impl Ask {
    /// The message, in pieces: names of nodes are most of it, and the same for many questions. A node or victim without an object
    /// is left out of it.
    pub fn body(&self, extender: &Extender, objects: &Objects<'_>) -> Vec<Bytes> {
        let names = extender.node_cache_capable;
        let written = match &self.question {
            Question::Filter(nodes) | Question::Prioritize(nodes) if names => {
                let pod = objects.pod.map_or("null", RawValue::get);
                let before = [r#"{"Pod":"#, pod, r#","Nodes":null,"NodeNames":"#].concat();
                return vec![before.into(), nodes.json(), Bytes::from_static(b"}")];
            }
            Question::Filter(_) | Question::Prioritize(_) => {
                let list = NodeList { items: objects.nodes.clone() };
                let args = ExtenderArgs { pod: objects.pod, nodes: Some(list), node_names: None };
                serde_json::to_vec(&args)
            }
            Question::Preempt(victims) => serde_json::to_vec(&ExtenderPreemptionArgs {
                pod: objects.pod,
                node_name_to_victims: match names {
                    true => BTreeMap::new(),
                    false => victims
                        .iter()
                        .map(|(node, it)| (node.clone(), whole(it, objects)))
                        .collect(),
                },
                node_name_to_meta_victims: if names { victims.clone() } else { BTreeMap::new() },
            }),
            Question::Bind(node) => serde_json::to_vec(&ExtenderBindingArgs {
                pod_name: self.name.to_string(),
                pod_namespace: self.namespace.to_string(),
                pod_uid: self.uid.to_string(),
                node: node.to_string(),
            }),
        };
        // Writing strings, numbers and JSON that was read before into memory cannot fail.
        vec![written.unwrap_or_default().into()]
    }
}

fn whole<'a>(victims: &MetaVictims, objects: &Objects<'a>) -> Victims<&'a RawValue> {
    let pods = victims.pods.iter().filter_map(|pod| objects.victims.get(pod.uid.as_str()).copied());
    Victims { pods: pods.collect(), num_pdb_violations: victims.num_pdb_violations }
}

impl Answer {
    /// Reads the body of an answer. `by_name`: the extender was sent names.
    ///
    /// # Errors
    ///
    /// When it is no such message.
    pub fn read(
        question: &Question,
        by_name: bool,
        body: &[u8],
    ) -> Result<Answer, messages::ReadError> {
        Ok(match question {
            Question::Filter(nodes) => {
                let in_order = if by_name { nodes.filtered(body) } else { None };
                match in_order {
                    Some((left, result)) => Answer::Left(left, result),
                    None => Answer::Filter(messages::read(body)?),
                }
            }
            Question::Prioritize(nodes) => match nodes.scores(body) {
                Some(scores) => Answer::Scores(scores),
                None => Answer::Prioritize(messages::read(body)?),
            },
            Question::Preempt(_) => Answer::Preempt(messages::read(body)?),
            Question::Bind(_) => Answer::Bind(messages::read(body)?),
        })
    }
}
