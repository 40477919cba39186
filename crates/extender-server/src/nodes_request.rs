//! The request of filter and prioritize, and the response of filter.

use loadmaster_extender::messages::{
    ExtenderArgs, ExtenderFilterResult, FailedNodesMap, HostPriority, HostPriorityList,
    MAX_EXTENDER_PRIORITY, NodeList,
};

use crate::{Error, Object};

/// The request of filter and prioritize: a pod and the nodes that are feasible so far.
#[derive(Clone, Debug)]
pub struct NodesRequest {
    /// The pod being scheduled.
    pub pod: Object,
    /// The nodes.
    pub nodes: RequestNodes,
}

/// The nodes of a request, as objects or as names.
#[derive(Clone, Debug)]
pub enum RequestNodes {
    /// Node objects: `nodeCacheCapable: false`.
    Objects(Vec<Object>),
    /// Node names: `nodeCacheCapable: true`, for extenders with a node cache of their own.
    Names(Vec<String>),
}

/// Why a node is rejected for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeRejection {
    /// Preemption may help.
    Unschedulable(String),
    /// Preemption cannot help: the scheduler does not try it on this node.
    Unresolvable(String),
}

impl NodeRejection {
    /// Preemption may help. Users see the reason after a count of nodes: `3 node(s) had ...`.
    pub fn unschedulable(reason: impl Into<String>) -> NodeRejection {
        NodeRejection::Unschedulable(reason.into())
    }

    /// Preemption cannot help.
    pub fn unresolvable(reason: impl Into<String>) -> NodeRejection {
        NodeRejection::Unresolvable(reason.into())
    }
}

/// The response to filter: the remaining nodes, as objects or names as in the request and in the same order, and the reasons for
/// the others.
#[derive(Clone, Debug)]
pub struct FilteredNodes {
    /// The remaining nodes.
    pub nodes: RequestNodes,
    /// Reasons by node name, where preemption may help.
    pub failed: FailedNodesMap,
    /// Reasons by node name, where preemption cannot help.
    pub failed_and_unresolvable: FailedNodesMap,
}

impl RequestNodes {
    /// The names of the nodes.
    pub fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        match self {
            RequestNodes::Objects(nodes) => Box::new(nodes.iter().map(Object::name)),
            RequestNodes::Names(names) => Box::new(names.iter().map(String::as_str)),
        }
    }

    fn objects(&self) -> Result<&[Object], Error> {
        match self {
            RequestNodes::Objects(nodes) => Ok(nodes),
            RequestNodes::Names(_) => Err(Error::new(
                "this extender needs node objects but received node names: set nodeCacheCapable: false for it",
            )),
        }
    }
}

impl NodesRequest {
    /// Filters the nodes with `fits`.
    ///
    /// # Errors
    ///
    /// When the request has only node names.
    pub fn filter_nodes(
        self,
        mut fits: impl FnMut(&Object, &Object) -> Result<(), NodeRejection>,
    ) -> Result<FilteredNodes, Error> {
        let NodesRequest { pod, nodes } = self;
        let results: Vec<_> = nodes.objects()?.iter().map(|node| fits(&pod, node)).collect();
        Ok(nodes.partition(results))
    }

    /// Filters the nodes by name with `fits`; the request may have objects or names.
    pub fn filter_node_names(
        self,
        mut fits: impl FnMut(&Object, &str) -> Result<(), NodeRejection>,
    ) -> FilteredNodes {
        let NodesRequest { pod, nodes } = self;
        let results: Vec<_> = nodes.names().map(|name| fits(&pod, name)).collect();
        nodes.partition(results)
    }

    /// Scores the nodes with `score`. Scores are clamped to 0 to 10; `None` is 0.
    ///
    /// # Errors
    ///
    /// When the request has only node names.
    pub fn score_nodes(
        self,
        mut score: impl FnMut(&Object, &Object) -> Option<i64>,
    ) -> Result<HostPriorityList, Error> {
        let nodes = self.nodes.objects()?.iter();
        Ok(nodes.map(|node| host_priority(node.name(), score(&self.pod, node))).collect())
    }

    /// Scores the nodes by name with `score`, as [`NodesRequest::score_nodes`]; the request may have objects or names.
    pub fn score_node_names(
        self,
        mut score: impl FnMut(&Object, &str) -> Option<i64>,
    ) -> HostPriorityList {
        self.nodes.names().map(|name| host_priority(name, score(&self.pod, name))).collect()
    }
}

fn host_priority(name: &str, score: Option<i64>) -> HostPriority {
    let score = score.unwrap_or_default().clamp(0, MAX_EXTENDER_PRIORITY);
    HostPriority { host: name.to_owned(), score }
}

impl RequestNodes {
    /// The remaining and the rejected nodes, by one result per node.
    fn partition(self, results: Vec<Result<(), NodeRejection>>) -> FilteredNodes {
        let mut failed = FailedNodesMap::new();
        let mut failed_and_unresolvable = FailedNodesMap::new();
        let mut remains = |name: &str, result| {
            let (map, reason) = match result {
                Ok(()) => return true,
                Err(NodeRejection::Unschedulable(reason)) => (&mut failed, reason),
                Err(NodeRejection::Unresolvable(reason)) => (&mut failed_and_unresolvable, reason),
            };
            map.insert(name.to_owned(), reason);
            false
        };
        let nodes = match self {
            RequestNodes::Objects(nodes) => {
                let zipped = nodes.into_iter().zip(results);
                let remaining =
                    zipped.filter_map(|(node, it)| remains(node.name(), it).then_some(node));
                RequestNodes::Objects(remaining.collect())
            }
            RequestNodes::Names(names) => {
                let zipped = names.into_iter().zip(results);
                let remaining = zipped.filter_map(|(name, it)| remains(&name, it).then_some(name));
                RequestNodes::Names(remaining.collect())
            }
        };
        FilteredNodes { nodes, failed, failed_and_unresolvable }
    }
}

impl TryFrom<ExtenderArgs<Object, Object>> for NodesRequest {
    type Error = Error;

    // The error texts are those of common extenders in Go.
    fn try_from(args: ExtenderArgs<Object, Object>) -> Result<NodesRequest, Error> {
        let pod = args.pod.ok_or_else(|| Error::new("arg or pod is nil"))?;
        let nodes = match (args.nodes, args.node_names) {
            (Some(list), _) => RequestNodes::Objects(list.items),
            (None, Some(names)) => RequestNodes::Names(names),
            (None, None) => return Err(Error::new("cannot get node names")),
        };
        Ok(NodesRequest { pod, nodes })
    }
}

impl From<FilteredNodes> for ExtenderFilterResult<Object> {
    fn from(filtered: FilteredNodes) -> Self {
        let (nodes, node_names) = match filtered.nodes {
            RequestNodes::Objects(items) => (Some(NodeList { items }), None),
            RequestNodes::Names(names) => (None, Some(names)),
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
