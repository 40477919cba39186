//! Which extenders are called, in which order, and what a response or an error means (upstream's `findNodesThatPassExtenders`,
//! `prioritizeNodes`, `extendersBinding` and `callExtenders`, 1.36).
//!
//! Nothing here does I/O: the caller takes the next extender from a chain, calls it, and passes the response to the chain.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::pod::Container;
use loadmaster_api::{SharedPodSpec, Str};
use loadmaster_config::{redact_password, v1};

use crate::messages::{
    ExtenderFilterResult, ExtenderPreemptionResult, HostPriorityList, MAX_EXTENDER_PRIORITY,
    MetaVictims, NamedObject,
};
use crate::node_names::{NodeNames, RemainingNodes};
use crate::request::Verb;

/// Upper end of a node's score (upstream's `MaxNodeScore`).
const MAX_NODE_SCORE: i64 = 100;

/// The configuration of an extender. Its `Debug` form has no password.
#[derive(Clone, PartialEq, Eq)]
pub struct Extender {
    /// `urlPrefix`.
    pub url_prefix: String,
    /// `urlPrefix` without a password: the name in errors, logs and metrics.
    pub name: String,
    filter_verb: String,
    prioritize_verb: String,
    preempt_verb: String,
    bind_verb: String,
    /// `weight`: the factor of its scores.
    pub weight: i64,
    /// `httpTimeout`: the timeout of a call.
    pub timeout: Duration,
    /// `nodeCacheCapable`: requests have node names and pod uids instead of whole objects.
    pub node_cache_capable: bool,
    /// `ignorable`: its errors do not fail the scheduling of a pod.
    pub ignorable: bool,
    /// `managedResources`: it is called for pods that use one of these resources; for all pods when empty.
    managed_resources: Vec<String>,
    /// Its index in the configuration.
    pub config_index: usize,
}

impl fmt::Debug for Extender {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Extender").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Extender {
    fn new(configured_at: usize, config: &v1::Extender) -> Extender {
        // A negative timeout has expired before the call begins, as in Go's client.
        let timeout = config.http_timeout.to_std().unwrap_or_default();
        Extender {
            url_prefix: config.url_prefix.clone(),
            name: redact_password(&config.url_prefix),
            filter_verb: config.filter_verb.clone(),
            prioritize_verb: config.prioritize_verb.clone(),
            preempt_verb: config.preempt_verb.clone(),
            bind_verb: config.bind_verb.clone(),
            weight: config.weight,
            timeout,
            node_cache_capable: config.node_cache_capable,
            ignorable: config.ignorable,
            managed_resources: config.managed_resources.iter().map(|it| it.name.clone()).collect(),
            config_index: configured_at,
        }
    }

    /// The configured verb, which is appended to the URL; empty when the extender does not support it.
    pub fn verb(&self, verb: Verb) -> &str {
        match verb {
            Verb::Filter => &self.filter_verb,
            Verb::Prioritize => &self.prioritize_verb,
            Verb::Preempt => &self.preempt_verb,
            Verb::Bind => &self.bind_verb,
        }
    }

    /// Whether the extender supports this verb.
    pub fn supports(&self, verb: Verb) -> bool {
        !self.verb(verb).is_empty()
    }

    /// The URL of a call.
    pub fn url(&self, verb: Verb) -> String {
        format!("{}/{}", self.url_prefix.trim_end_matches('/'), self.verb(verb))
    }

    /// Whether it is called for this pod (upstream's `IsInterested`): it has no managed resources, or a container requests or
    /// limits one.
    pub fn is_interested(&self, pod: &SharedPodSpec) -> bool {
        let names_one = |container: &Container| {
            let resources = &container.resources;
            let is_named = |managed: &String| {
                resources.requests.contains_key(managed) || resources.limits.contains_key(managed)
            };
            self.managed_resources.iter().any(is_named)
        };
        self.managed_resources.is_empty()
            || pod.containers.iter().chain(&pod.init_containers).any(names_one)
    }
}

/// All extenders in the order in which they are called: ignorable ones last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extenders(Vec<Extender>);

impl Extenders {
    /// The extenders of a valid configuration.
    pub fn new(config: &[v1::Extender]) -> Extenders {
        let mut all: Vec<Extender> =
            config.iter().enumerate().map(|(at, it)| Extender::new(at, it)).collect();
        all.sort_by_key(|extender| extender.ignorable);
        Extenders(all)
    }

    /// Whether there are no extenders.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All extenders in order.
    pub fn iter(&self) -> impl Iterator<Item = &Extender> {
        self.0.iter()
    }

    /// An extender by its index in the order.
    pub fn get(&self, at: usize) -> Option<&Extender> {
        self.0.get(at)
    }

    /// Indices of the extenders that support the verb and are interested in the pod.
    pub fn interested_in(&self, verb: Verb, pod: &SharedPodSpec) -> Vec<usize> {
        let all = self.0.iter().enumerate();
        let interested =
            all.filter(|(_, extender)| extender.supports(verb) && extender.is_interested(pod));
        interested.map(|(at, _)| at).collect()
    }

    /// Whether an interested extender does not support prioritize: upstream then counts 0 for every node.
    pub fn any_interested_without_prioritize(&self, pod: &SharedPodSpec) -> bool {
        self.0.iter().any(|it| !it.supports(Verb::Prioritize) && it.is_interested(pod))
    }
}

/// Why an extender rejected a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFailure {
    /// Whether preemption would not help (`FailedAndUnresolvableNodes`).
    pub is_unresolvable: bool,
    /// The extender's message.
    pub message: String,
}

/// Finds the index of a node of the request by its name: fast while names are looked up in the order of the request, with a map
/// from
/// the first one that is not.
struct NodeIndex<'a> {
    nodes: &'a [Str],
    /// The index of the next node if names are in order.
    next: usize,
    index: Option<BTreeMap<&'a str, usize>>,
}

impl<'a> NodeIndex<'a> {
    fn new(nodes: &'a [Str]) -> NodeIndex<'a> {
        NodeIndex { nodes, next: 0, index: None }
    }

    fn find(&mut self, name: &str) -> Option<usize> {
        if self.index.is_none() {
            let position = self.nodes[self.next..].iter().position(|node| node.as_str() == name);
            if let Some(ahead) = position {
                self.next += ahead + 1;
                return Some(self.next - 1);
            }
        }
        let all = || self.nodes.iter().enumerate().map(|(at, name)| (name.as_str(), at)).collect();
        self.index.get_or_insert_with(all).get(name).copied()
    }
}

/// The extenders called at filter, one after the other, each with the nodes that the one before it left.
#[derive(Clone, Debug)]
pub struct FilterChain {
    /// The remaining nodes.
    nodes: Arc<NodeNames>,
    /// Their indices in the initial nodes.
    remaining: RemainingNodes,
    /// Extenders that have not been called, the next one last.
    remaining_extenders: Vec<usize>,
    /// Why nodes were rejected, whether they were in the request or not.
    failures: BTreeMap<String, NodeFailure>,
}

impl FilterChain {
    /// The initial nodes, and the indices of the extenders to call.
    pub fn new(nodes: Arc<NodeNames>, mut extenders: Vec<usize>) -> FilterChain {
        extenders.reverse();
        FilterChain {
            nodes,
            remaining: RemainingNodes::All,
            remaining_extenders: extenders,
            failures: BTreeMap::new(),
        }
    }

    /// The index of the next extender to call; None when no node remains.
    pub fn next_extender(&mut self) -> Option<usize> {
        if self.nodes.is_empty() { None } else { self.remaining_extenders.pop() }
    }

    /// The remaining nodes.
    pub fn nodes(&self) -> &Arc<NodeNames> {
        &self.nodes
    }

    /// The result: the remaining nodes among the initial ones, and why the others were rejected.
    pub fn finish(self) -> (RemainingNodes, BTreeMap<String, NodeFailure>) {
        (self.remaining, self.failures)
    }

    /// Handles the response of the extender called last. An error of an ignorable extender changes nothing.
    ///
    /// # Errors
    ///
    /// An error that fails the scheduling cycle of the pod.
    pub fn handle_response(
        &mut self,
        extender: &Extender,
        response: Result<(Option<RemainingNodes>, ExtenderFilterResult<NamedObject>), String>,
    ) -> Result<(), String> {
        let handled = response.and_then(|(remaining, response)| {
            match (response.error.is_empty(), remaining) {
                (true, Some(remaining)) => Ok((remaining, response)),
                (true, None) => {
                    self.remaining_by(extender, &response).map(|remaining| (remaining, response))
                }
                (false, _) => Err(response.error),
            }
        });
        let (remaining, response) = match handled {
            Ok(handled) => handled,
            Err(_) if extender.ignorable => return Ok(()),
            Err(error) => return Err(error),
        };
        let failure = |is_unresolvable| {
            move |(name, message)| (name, NodeFailure { is_unresolvable, message })
        };
        // Unresolvable failures have precedence.
        self.failures.extend(response.failed_nodes.into_iter().map(failure(false)));
        let unresolvable = response.failed_and_unresolvable_nodes.into_iter();
        self.failures.extend(unresolvable.map(failure(true)));
        let RemainingNodes::Indices(mut indices) = remaining else { return Ok(()) };
        // A recorded response may be invalid.
        indices.retain(|at| *at < self.nodes.len());
        self.nodes = Arc::new(indices.iter().map(|at| self.nodes[*at].clone()).collect());
        if let RemainingNodes::Indices(before) = &self.remaining {
            indices.iter_mut().for_each(|at| *at = before[*at]);
        }
        self.remaining = RemainingNodes::Indices(indices);
        Ok(())
    }

    /// The nodes that remain by a response. Names count only from node-cache capable extenders; without nodes or names none remain.
    fn remaining_by(
        &self,
        extender: &Extender,
        response: &ExtenderFilterResult<NamedObject>,
    ) -> Result<RemainingNodes, String> {
        let by_name = response.node_names.as_ref().filter(|_| extender.node_cache_capable);
        let names: Vec<&str> = match (by_name, &response.nodes) {
            (Some(names), _) => names.iter().map(String::as_str).collect(),
            (None, Some(nodes)) => {
                nodes.items.iter().map(|node| node.metadata.name.as_str()).collect()
            }
            (None, None) => Vec::new(),
        };
        let mut index = NodeIndex::new(&self.nodes);
        let mut is_remaining = vec![false; self.nodes.len()];
        for name in names {
            let Some(at) = index.find(name) else {
                return Err(format!(
                    "extender {:?} claims a filtered node {name:?} which is not found in the input node list",
                    extender.name
                ));
            };
            is_remaining[at] = true;
        }
        if is_remaining.iter().all(|is_remaining| *is_remaining) {
            return Ok(RemainingNodes::All);
        }
        Ok(RemainingNodes::Indices(
            (0..is_remaining.len()).filter(|at| is_remaining[*at]).collect(),
        ))
    }
}

/// The sums of extenders' scores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtenderScores {
    nodes: Arc<NodeNames>,
    /// By node.
    sums: Vec<i64>,
    /// By node: whether an extender scored it.
    is_named: Vec<bool>,
}

impl ExtenderScores {
    /// No scores yet for these nodes.
    pub fn new(nodes: Arc<NodeNames>) -> ExtenderScores {
        let (sums, is_named) = (vec![0; nodes.len()], vec![false; nodes.len()]);
        ExtenderScores { nodes, sums, is_named }
    }

    /// Adds an extender's scores, scaled to those of plugins. Sums wrap around, as in Go; the range is not checked.
    pub fn add(&mut self, extender: &Extender, response: &HostPriorityList) {
        let factor = score_factor(extender);
        let mut index = NodeIndex::new(&self.nodes);
        for host in response {
            if let Some(at) = index.find(&host.host) {
                self.sums[at] = self.sums[at].wrapping_add(host.score.wrapping_mul(factor));
                self.is_named[at] = true;
            }
        }
    }

    /// Adds an extender's scores, one for each node in order.
    pub fn add_in_order(&mut self, extender: &Extender, scores: &[i64]) {
        let factor = score_factor(extender);
        for (score, sum) in scores.iter().zip(&mut self.sums) {
            *sum = sum.wrapping_add(score.wrapping_mul(factor));
        }
        self.is_named.iter_mut().take(scores.len()).for_each(|is_named| *is_named = true);
    }

    /// For each node in order the sum of its scores, and whether an extender scored it; without a score the sum is 0.
    pub fn iter(&self) -> impl Iterator<Item = (i64, bool)> + Clone {
        self.sums.iter().copied().zip(self.is_named.iter().copied())
    }
}

fn score_factor(extender: &Extender) -> i64 {
    extender.weight.wrapping_mul(MAX_NODE_SCORE / MAX_EXTENDER_PRIORITY)
}

/// The extenders called at preempt, one after the other, each with the candidates that the one before it left.
#[derive(Clone, Debug, Default)]
pub struct PreemptChain {
    victims: BTreeMap<String, MetaVictims>,
    remaining_extenders: Vec<usize>,
}

/// Looks up the nodes and pods of a response in the snapshot.
pub trait NodeLookup {
    /// Whether a pod with this uid is on the node; `None` when there is no such node.
    fn has_pod(&self, node: &str, uid: &str) -> Option<bool>;
}

impl PreemptChain {
    /// The initial candidates, and the indices of the extenders to call.
    pub fn new(victims: BTreeMap<String, MetaVictims>, mut extenders: Vec<usize>) -> PreemptChain {
        extenders.reverse();
        PreemptChain { victims, remaining_extenders: extenders }
    }

    /// The index of the next extender to call; None when no candidate remains.
    pub fn next_extender(&mut self) -> Option<usize> {
        if self.victims.is_empty() { None } else { self.remaining_extenders.pop() }
    }

    /// The remaining candidates.
    pub fn victims(&self) -> &BTreeMap<String, MetaVictims> {
        &self.victims
    }

    /// Handles the response of the extender called last. An error of an ignorable extender changes nothing; of its response, nodes
    /// without victims are ignored.
    ///
    /// # Errors
    ///
    /// An error that ends the preemption attempt.
    pub fn handle_response(
        &mut self,
        extender: &Extender,
        response: Result<ExtenderPreemptionResult, String>,
        nodes: &dyn NodeLookup,
    ) -> Result<(), String> {
        let checked = response.and_then(|response| {
            let victims = response.node_name_to_meta_victims;
            self.check_victims(extender, &victims, nodes).map(|()| victims)
        });
        let mut victims = match checked {
            Ok(victims) => victims,
            Err(_) if extender.ignorable => return Ok(()),
            Err(error) => return Err(error),
        };
        if extender.ignorable {
            victims.retain(|_, victims| !victims.pods.is_empty());
        } else if let Some((node, _)) = victims.iter().find(|(_, it)| it.pods.is_empty()) {
            return Err(format!("expected at least one victim pod on node {node:?}"));
        }
        self.victims = victims;
        Ok(())
    }

    /// The victims of a node are on it, or were already proposed for it: a plugin may also evict pods of other nodes.
    fn check_victims(
        &self,
        extender: &Extender,
        victims: &BTreeMap<String, MetaVictims>,
        nodes: &dyn NodeLookup,
    ) -> Result<(), String> {
        for (node, victims) in victims {
            if nodes.has_pod(node, "").is_none() {
                return Err(format!("nodeinfo not found for node name {node:?}"));
            }
            let proposed = self.victims.get(node).map_or(&[][..], |proposed| &proposed.pods);
            for pod in &victims.pods {
                let is_known =
                    proposed.contains(pod) || nodes.has_pod(node, &pod.uid) == Some(true);
                if !is_known {
                    return Err(format!(
                        "extender: {} claims to preempt pod (UID: &{{{}}}) on node: {node}, but the pod is not found on that node",
                        extender.name, pod.uid
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
