//! Who is asked, in which order, and what an answer or an error means (upstream's `findNodesThatPassExtenders`,
//! `prioritizeNodes`, `extendersBinding` and `callExtenders`, 1.36).
//!
//! Nothing here waits: whoever runs a cycle asks a chain for the next extender, carries the question out, and hands in the answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::pod::Container;
use loadmaster_api::{PodSpec, Str};
use loadmaster_config::v1;

use crate::ask::Verb;
use crate::messages::{
    ExtenderFilterResult, ExtenderPreemptionResult, HostPriorityList, MAX_EXTENDER_PRIORITY,
    MetaVictims, Named,
};
use crate::names::{Left, NodeNames};

/// Upstream's `DefaultExtenderTimeout`.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// Upper end of a node's score (upstream's `MaxNodeScore`).
const MAX_NODE_SCORE: i64 = 100;

/// An extender, as far as it matters to who is asked what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extender {
    /// `urlPrefix`: where it is reached.
    pub url_prefix: String,
    /// The same without a password: its name in errors, logs and metrics.
    pub name: String,
    filter_verb: String,
    prioritize_verb: String,
    preempt_verb: String,
    bind_verb: String,
    /// Factor of its scores.
    pub weight: i64,
    /// How long a call may take.
    pub timeout: Duration,
    /// It is sent names of nodes and uids of pods instead of whole objects.
    pub node_cache_capable: bool,
    /// Its errors fail no pod.
    pub ignorable: bool,
    /// It is asked about pods that name one of these resources; about all when empty.
    managed_resources: Vec<String>,
    /// Its place in the configuration.
    pub configured_at: usize,
}

impl Extender {
    fn new(configured_at: usize, config: &v1::Extender) -> Extender {
        // A negative time is over before the call begins, as with Go's client.
        let timeout = match config.http_timeout.as_nanos() {
            0 => TIMEOUT_DEFAULT,
            _ => config.http_timeout.to_std().unwrap_or_default(),
        };
        Extender {
            url_prefix: config.url_prefix.clone(),
            name: without_password(&config.url_prefix),
            filter_verb: config.filter_verb.clone(),
            prioritize_verb: config.prioritize_verb.clone(),
            preempt_verb: config.preempt_verb.clone(),
            bind_verb: config.bind_verb.clone(),
            weight: config.weight,
            timeout,
            node_cache_capable: config.node_cache_capable,
            ignorable: config.ignorable,
            managed_resources: config.managed_resources.iter().map(|it| it.name.clone()).collect(),
            configured_at,
        }
    }

    /// What is appended to the URL; empty when it does not take part.
    pub fn verb(&self, verb: Verb) -> &str {
        match verb {
            Verb::Filter => &self.filter_verb,
            Verb::Prioritize => &self.prioritize_verb,
            Verb::Preempt => &self.preempt_verb,
            Verb::Bind => &self.bind_verb,
        }
    }

    /// Whether it takes part in this.
    pub fn has(&self, verb: Verb) -> bool {
        !self.verb(verb).is_empty()
    }

    /// Where a call goes.
    pub fn url(&self, verb: Verb) -> String {
        format!("{}/{}", self.url_prefix.trim_end_matches('/'), self.verb(verb))
    }

    /// Whether it is asked about such pods: it manages everything, or a resource that a container names.
    pub fn is_interested(&self, pod: &PodSpec) -> bool {
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

/// A URL as it may be shown: with three stars for its password, as Go's client shows it.
pub fn without_password(url: &str) -> String {
    let begin = url.find("://").map_or(0, |at| at + 3);
    let authority = url[begin..].split(['/', '?', '#']).next().unwrap_or_default();
    let user = authority.rsplit_once('@').and_then(|(user, _)| user.split_once(':'));
    match user {
        Some((user, password)) => {
            let from = begin + user.len() + 1;
            format!("{}***{}", &url[..from], &url[from + password.len()..])
        }
        None => url.to_owned(),
    }
}

/// All extenders in the order in which they are asked: those whose errors count first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extenders(Vec<Extender>);

impl Extenders {
    /// Those of a valid configuration.
    pub fn new(config: &[v1::Extender]) -> Extenders {
        let mut all: Vec<Extender> =
            config.iter().enumerate().map(|(at, it)| Extender::new(at, it)).collect();
        all.sort_by_key(|extender| extender.ignorable);
        Extenders(all)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = &Extender> {
        self.0.iter()
    }

    /// By its place in the order.
    pub fn get(&self, at: usize) -> Option<&Extender> {
        self.0.get(at)
    }

    /// Places of those that are asked this about such a pod.
    pub fn asked(&self, verb: Verb, pod: &PodSpec) -> Vec<usize> {
        let all = self.0.iter().enumerate();
        let asked = all.filter(|(_, extender)| extender.has(verb) && extender.is_interested(pod));
        asked.map(|(at, _)| at).collect()
    }

    /// Whether an interested extender gives no scores: upstream then takes it as giving 0 to every node.
    pub fn any_without_scores(&self, pod: &PodSpec) -> bool {
        self.0.iter().any(|it| !it.has(Verb::Prioritize) && it.is_interested(pod))
    }
}

/// Why an extender turned a node down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFailure {
    /// Whether evicting pods would not help.
    pub is_unresolvable: bool,
    /// The extender's words.
    pub message: String,
}

/// Finds the nodes of an answer among those that were asked about: at once where they come in the order of the question, through an
/// index from the first one on that does not.
struct Places<'a> {
    asked: &'a [Str],
    /// Where the next one is if it comes in order.
    next: usize,
    index: Option<BTreeMap<&'a str, usize>>,
}

impl<'a> Places<'a> {
    fn new(asked: &'a [Str]) -> Places<'a> {
        Places { asked, next: 0, index: None }
    }

    fn find(&mut self, name: &str) -> Option<usize> {
        if self.index.is_none() {
            let rest = self.asked[self.next..].iter().position(|asked| asked.as_str() == name);
            if let Some(ahead) = rest {
                self.next += ahead + 1;
                return Some(self.next - 1);
            }
        }
        let all = || self.asked.iter().enumerate().map(|(at, name)| (name.as_str(), at)).collect();
        self.index.get_or_insert_with(all).get(name).copied()
    }
}

/// Filter: one extender after the other, each about what the one before it left.
#[derive(Clone, Debug)]
pub struct Filtering {
    /// Nodes that are left.
    nodes: Arc<NodeNames>,
    /// Their places among the nodes that it began with.
    left: Left,
    /// Extenders that have not been asked, the next one last.
    rest: Vec<usize>,
    /// Why nodes were turned down, whether they were asked about or not.
    failures: BTreeMap<String, NodeFailure>,
}

impl Filtering {
    /// These nodes, and the extenders that will be asked, by place.
    pub fn new(nodes: Arc<NodeNames>, mut asked: Vec<usize>) -> Filtering {
        asked.reverse();
        Filtering { nodes, left: Left::All, rest: asked, failures: BTreeMap::new() }
    }

    /// Whom to ask next; nobody once no node is left.
    pub fn ask_next(&mut self) -> Option<usize> {
        if self.nodes.is_empty() { None } else { self.rest.pop() }
    }

    /// Nodes that are left.
    pub fn nodes(&self) -> &Arc<NodeNames> {
        &self.nodes
    }

    /// What became of it: which of the nodes that it began with are left, and why the others are not.
    pub fn finish(self) -> (Left, BTreeMap<String, NodeFailure>) {
        (self.left, self.failures)
    }

    /// Takes the answer of the extender asked last. An error of one whose errors do not count leaves everything as it was.
    ///
    /// # Errors
    ///
    /// What fails the pod.
    pub fn answered(
        &mut self,
        extender: &Extender,
        answer: Result<(Option<Left>, ExtenderFilterResult<Named>), String>,
    ) -> Result<(), String> {
        let taken = answer.and_then(|(left, answer)| match (answer.error.is_empty(), left) {
            (true, Some(left)) => Ok((left, answer)),
            (true, None) => self.kept(extender, &answer).map(|kept| (kept, answer)),
            (false, _) => Err(answer.error),
        });
        let (kept, answer) = match taken {
            Ok(taken) => taken,
            Err(_) if extender.ignorable => return Ok(()),
            Err(error) => return Err(error),
        };
        let failure = |is_unresolvable| {
            move |(name, message)| (name, NodeFailure { is_unresolvable, message })
        };
        // What is beyond help goes before what is not.
        self.failures.extend(answer.failed_nodes.into_iter().map(failure(false)));
        let beyond_help = answer.failed_and_unresolvable_nodes.into_iter();
        self.failures.extend(beyond_help.map(failure(true)));
        let Left::At(mut kept) = kept else { return Ok(()) };
        // A recorded answer may be anything.
        kept.retain(|at| *at < self.nodes.len());
        self.nodes = Arc::new(kept.iter().map(|at| self.nodes[*at].clone()).collect());
        if let Left::At(places) = &self.left {
            kept.iter_mut().for_each(|at| *at = places[*at]);
        }
        self.left = Left::At(kept);
        Ok(())
    }

    /// What an answer keeps. Names count only from extenders that are asked by name; without either there are none.
    fn kept(
        &self,
        extender: &Extender,
        answer: &ExtenderFilterResult<Named>,
    ) -> Result<Left, String> {
        let by_name = answer.node_names.as_ref().filter(|_| extender.node_cache_capable);
        let names: Vec<&str> = match (by_name, &answer.nodes) {
            (Some(names), _) => names.iter().map(String::as_str).collect(),
            (None, Some(nodes)) => {
                nodes.items.iter().map(|node| node.metadata.name.as_str()).collect()
            }
            (None, None) => Vec::new(),
        };
        let mut places = Places::new(&self.nodes);
        let mut is_kept = vec![false; self.nodes.len()];
        for name in names {
            let Some(at) = places.find(name) else {
                return Err(format!(
                    "extender {:?} claims a filtered node {name:?} which is not found in the input node list",
                    extender.name
                ));
            };
            is_kept[at] = true;
        }
        if is_kept.iter().all(|is_kept| *is_kept) {
            return Ok(Left::All);
        }
        Ok(Left::At((0..is_kept.len()).filter(|at| is_kept[*at]).collect()))
    }
}

/// What extenders' scores add to the nodes that they were asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scores {
    nodes: Arc<NodeNames>,
    /// By place.
    sums: Vec<i64>,
    /// By place: whether an extender named the node.
    is_named: Vec<bool>,
}

impl Scores {
    /// Of these nodes.
    pub fn new(nodes: Arc<NodeNames>) -> Scores {
        let (sums, is_named) = (vec![0; nodes.len()], vec![false; nodes.len()]);
        Scores { nodes, sums, is_named }
    }

    /// Adds an extender's scores, scaled to those of plugins. Sums wrap around, as Go's do; nobody checks the range.
    pub fn add(&mut self, extender: &Extender, answer: &HostPriorityList) {
        let factor = factor(extender);
        let mut places = Places::new(&self.nodes);
        for host in answer {
            if let Some(at) = places.find(&host.host) {
                self.sums[at] = self.sums[at].wrapping_add(host.score.wrapping_mul(factor));
                self.is_named[at] = true;
            }
        }
    }

    /// The same, with a score for each node in order.
    pub fn add_in_order(&mut self, extender: &Extender, scores: &[i64]) {
        let factor = factor(extender);
        for (score, sum) in scores.iter().zip(&mut self.sums) {
            *sum = sum.wrapping_add(score.wrapping_mul(factor));
        }
        self.is_named.iter_mut().take(scores.len()).for_each(|is_named| *is_named = true);
    }

    /// For each node in order, what is added to its total, and whether an extender named it; nothing is added to one that none did.
    pub fn by_place(&self) -> impl Iterator<Item = (i64, bool)> + Clone {
        self.sums.iter().copied().zip(self.is_named.iter().copied())
    }
}

fn factor(extender: &Extender) -> i64 {
    extender.weight.wrapping_mul(MAX_NODE_SCORE / MAX_EXTENDER_PRIORITY)
}

/// Preempt: one extender after the other, each about the candidates that the one before it left.
#[derive(Clone, Debug, Default)]
pub struct Preempting {
    victims: BTreeMap<String, MetaVictims>,
    rest: Vec<usize>,
}

/// What is known about the nodes that an answer speaks of.
pub trait Nodes {
    /// Whether a pod with this uid is on the node; `None` when there is no such node.
    fn has_pod(&self, node: &str, uid: &str) -> Option<bool>;
}

impl Preempting {
    /// These candidates, and the extenders that will be asked, by place.
    pub fn new(victims: BTreeMap<String, MetaVictims>, mut asked: Vec<usize>) -> Preempting {
        asked.reverse();
        Preempting { victims, rest: asked }
    }

    /// Whom to ask next; nobody once no candidate is left.
    pub fn ask_next(&mut self) -> Option<usize> {
        if self.victims.is_empty() { None } else { self.rest.pop() }
    }

    /// The candidates that are left.
    pub fn victims(&self) -> &BTreeMap<String, MetaVictims> {
        &self.victims
    }

    /// Takes the answer of the extender asked last. Of one whose errors do not count, an error changes nothing, and a node
    /// without victims is left out.
    ///
    /// # Errors
    ///
    /// What ends the search for room.
    pub fn answered(
        &mut self,
        extender: &Extender,
        answer: Result<ExtenderPreemptionResult, String>,
        nodes: &dyn Nodes,
    ) -> Result<(), String> {
        let known = answer.and_then(|answer| {
            let victims = answer.node_name_to_meta_victims;
            check_victims(extender, &victims, nodes).map(|()| victims)
        });
        let mut victims = match known {
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
}

fn check_victims(
    extender: &Extender,
    victims: &BTreeMap<String, MetaVictims>,
    nodes: &dyn Nodes,
) -> Result<(), String> {
    for (node, victims) in victims {
        if nodes.has_pod(node, "").is_none() {
            return Err(format!("nodeinfo not found for node name {node:?}"));
        }
        for pod in &victims.pods {
            if nodes.has_pod(node, &pod.uid) != Some(true) {
                return Err(format!(
                    "extender: {} claims to preempt pod (UID: &{{{}}}) on node: {node}, but the pod is not found on that node",
                    extender.name, pod.uid
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
