//! An explanation as JSON and YAML: a contract, fields in this order.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::{Evictions, Explanation, Node, Preemption, Status};

/// The whole.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shown<'a> {
    pod: &'a str,
    profile: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pre_filter: Option<ShownStatus<'a>>,
    nodes: Vec<ShownNode<'a>>,
    best: &'a [String],
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    preemption: Option<ShownPreemption<'a>>,
}

#[derive(Serialize)]
struct ShownPreemption<'a> {
    candidates: Candidates<'a>,
    best: &'a [String],
    message: &'a str,
}

/// Evictions by node.
struct Candidates<'a>(&'a [Evictions]);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownEvictions<'a> {
    victims: &'a [String],
    pdb_violations: usize,
}

impl Serialize for Candidates<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|candidate| {
            let pdb_violations = candidate.n_pdb_violations;
            (&candidate.node, ShownEvictions { victims: &candidate.victims, pdb_violations })
        }))
    }
}

#[derive(Serialize)]
struct ShownNode<'a> {
    name: &'a str,
    filter: ShownStatus<'a>,
    scores: Scores<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<i64>,
}

#[derive(Serialize)]
struct ShownStatus<'a> {
    code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    plugin: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    reasons: &'a [String],
}

/// Scores by plugin, in the order in which plugins score.
struct Scores<'a>(&'a [(&'static str, i64)]);

impl Serialize for Scores<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (plugin, score) in self.0 {
            map.serialize_entry(plugin, score)?;
        }
        map.end()
    }
}

impl<'a> From<&'a Explanation> for Shown<'a> {
    fn from(explanation: &'a Explanation) -> Shown<'a> {
        Shown {
            pod: &explanation.pod,
            profile: &explanation.profile,
            pre_filter: explanation.pre_filter.as_ref().map(status),
            nodes: explanation.nodes.iter().map(node).collect(),
            best: &explanation.best,
            message: &explanation.message,
            preemption: explanation.preemption.as_ref().map(preemption),
        }
    }
}

fn preemption(preemption: &Preemption) -> ShownPreemption<'_> {
    let Preemption { candidates, best, message } = preemption;
    ShownPreemption { candidates: Candidates(candidates), best, message }
}

fn node(node: &Node) -> ShownNode<'_> {
    ShownNode {
        name: &node.name,
        filter: status(&node.filter),
        scores: Scores(&node.scores),
        total: node.total,
    }
}

fn status(status: &Status) -> ShownStatus<'_> {
    ShownStatus { code: status.code, plugin: status.plugin, reasons: &status.reasons }
}
