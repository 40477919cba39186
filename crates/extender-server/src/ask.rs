//! The question of filter and of prioritize, and their answers.

use loadmaster_extender::messages::{
    ExtenderArgs, ExtenderFilterResult, FailedNodesMap, HostPriority, HostPriorityList,
    MAX_EXTENDER_PRIORITY, NodeList,
};

use crate::{Error, Object};

/// A pod, and the nodes that are left for it.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The pod that is being scheduled.
    pub pod: Object,
    /// The nodes asked about.
    pub nodes: Nodes,
}

/// Nodes as the scheduler's configuration has them sent.
#[derive(Clone, Debug)]
pub enum Nodes {
    /// Whole: `nodeCacheCapable: false`.
    Whole(Vec<Object>),
    /// By name: `nodeCacheCapable: true`, for extenders that know the nodes themselves.
    Names(Vec<String>),
}

/// Why a pod does not fit on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// Evicting pods could help.
    Unschedulable(String),
    /// Evicting pods cannot help: the scheduler does not try.
    Unresolvable(String),
}

impl Rejection {
    /// Evicting pods could help. The reason is shown to users after a count of nodes: `3 node(s) had ...`.
    pub fn unschedulable(reason: impl Into<String>) -> Rejection {
        Rejection::Unschedulable(reason.into())
    }

    /// Evicting pods cannot help.
    pub fn unresolvable(reason: impl Into<String>) -> Rejection {
        Rejection::Unresolvable(reason.into())
    }
}

/// The answer to filter: the nodes that remain, in the form and the order they came, and why the others do not.
#[derive(Clone, Debug)]
pub struct Filtered {
    /// What remains.
    pub nodes: Nodes,
    /// Reasons by node name, where evicting pods could help.
    pub failed: FailedNodesMap,
    /// Reasons by node name, where it cannot.
    pub failed_and_unresolvable: FailedNodesMap,
}

impl Nodes {
    /// Their names.
    pub fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        match self {
            Nodes::Whole(nodes) => Box::new(nodes.iter().map(Object::name)),
            Nodes::Names(names) => Box::new(names.iter().map(String::as_str)),
        }
    }

    fn whole(&self) -> Result<&[Object], Error> {
        match self {
            Nodes::Whole(nodes) => Ok(nodes),
            Nodes::Names(_) => Err(Error::new(
                "this extender needs whole nodes and got names: set nodeCacheCapable: false for it",
            )),
        }
    }
}

impl Ask {
    /// Asks `fits` about every node.
    ///
    /// # Errors
    ///
    /// When only names came.
    pub fn filter_nodes(
        self,
        mut fits: impl FnMut(&Object, &Object) -> Result<(), Rejection>,
    ) -> Result<Filtered, Error> {
        let Ask { pod, nodes } = self;
        let verdicts: Vec<_> = nodes.whole()?.iter().map(|node| fits(&pod, node)).collect();
        Ok(nodes.judged(verdicts))
    }

    /// Asks `fits` about every node's name, in whichever form the nodes came.
    pub fn filter_names(
        self,
        mut fits: impl FnMut(&Object, &str) -> Result<(), Rejection>,
    ) -> Filtered {
        let Ask { pod, nodes } = self;
        let verdicts: Vec<_> = nodes.names().map(|name| fits(&pod, name)).collect();
        nodes.judged(verdicts)
    }

    /// Asks `score` about every node: 0 to 10, what is beyond counts as the nearest of them, and `None` as 0.
    ///
    /// # Errors
    ///
    /// When only names came.
    pub fn score_nodes(
        self,
        mut score: impl FnMut(&Object, &Object) -> Option<i64>,
    ) -> Result<HostPriorityList, Error> {
        let nodes = self.nodes.whole()?.iter();
        Ok(nodes.map(|node| scored(node.name(), score(&self.pod, node))).collect())
    }

    /// As [`Ask::score_nodes`], about names, in whichever form the nodes came.
    pub fn score_names(
        self,
        mut score: impl FnMut(&Object, &str) -> Option<i64>,
    ) -> HostPriorityList {
        self.nodes.names().map(|name| scored(name, score(&self.pod, name))).collect()
    }
}

fn scored(name: &str, score: Option<i64>) -> HostPriority {
    let score = score.unwrap_or_default().clamp(0, MAX_EXTENDER_PRIORITY);
    HostPriority { host: name.to_owned(), score }
}

impl Nodes {
    /// One verdict a node, in their order.
    fn judged(self, verdicts: Vec<Result<(), Rejection>>) -> Filtered {
        let mut failed = FailedNodesMap::new();
        let mut failed_and_unresolvable = FailedNodesMap::new();
        let mut remains = |name: &str, verdict| {
            let (map, reason) = match verdict {
                Ok(()) => return true,
                Err(Rejection::Unschedulable(reason)) => (&mut failed, reason),
                Err(Rejection::Unresolvable(reason)) => (&mut failed_and_unresolvable, reason),
            };
            map.insert(name.to_owned(), reason);
            false
        };
        let nodes = match self {
            Nodes::Whole(nodes) => {
                let judged = nodes.into_iter().zip(verdicts);
                let left = judged.filter_map(|(node, it)| remains(node.name(), it).then_some(node));
                Nodes::Whole(left.collect())
            }
            Nodes::Names(names) => {
                let judged = names.into_iter().zip(verdicts);
                let left = judged.filter_map(|(name, it)| remains(&name, it).then_some(name));
                Nodes::Names(left.collect())
            }
        };
        Filtered { nodes, failed, failed_and_unresolvable }
    }
}

impl TryFrom<ExtenderArgs<Object, Object>> for Ask {
    type Error = Error;

    // In the words that users of extenders in Go know.
    fn try_from(args: ExtenderArgs<Object, Object>) -> Result<Ask, Error> {
        let pod = args.pod.ok_or_else(|| Error::new("arg or pod is nil"))?;
        let nodes = match (args.nodes, args.node_names) {
            (Some(list), _) => Nodes::Whole(list.items),
            (None, Some(names)) => Nodes::Names(names),
            (None, None) => return Err(Error::new("cannot get node names")),
        };
        Ok(Ask { pod, nodes })
    }
}

impl From<Filtered> for ExtenderFilterResult<Object> {
    fn from(filtered: Filtered) -> Self {
        let (nodes, node_names) = match filtered.nodes {
            Nodes::Whole(items) => (Some(NodeList { items }), None),
            Nodes::Names(names) => (None, Some(names)),
        };
        ExtenderFilterResult {
            nodes,
            node_names,
            failed_nodes: filtered.failed,
            failed_and_unresolvable_nodes: filtered.failed_and_unresolvable,
            error: String::new(),
        }
    }
}
