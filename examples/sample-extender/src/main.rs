//! Filters out nodes without a tier and prefers high tiers. The tier is a node label with a number from 0 to 10.
//!
//! `sample-extender [ADDRESS]` serves `/filter` and `/prioritize`, on 127.0.0.1:8888 when no address is given.

use loadmaster_extender_server::messages::HostPriorityList;
use loadmaster_extender_server::{
    Error, ExtenderServer, FilteredNodes, NodeRejection, NodesRequest, ServeError,
};

const LABEL: &str = "example.com/tier";

/// Unresolvable: preemption cannot help, because evicting pods does not give a node a tier.
fn filter(request: NodesRequest) -> Result<FilteredNodes, Error> {
    request.filter_nodes(|_pod, node| match node.label(LABEL) {
        Some(_) => Ok(()),
        None => Err(NodeRejection::unresolvable("node(s) had no tier")),
    })
}

/// The score of an invalid tier is 0.
fn prioritize(request: NodesRequest) -> Result<HostPriorityList, Error> {
    request.score_nodes(|_pod, node| node.label(LABEL)?.parse().ok())
}

fn extender() -> ExtenderServer {
    let version = env!("CARGO_PKG_VERSION");
    ExtenderServer::new().version(version).filter(filter).prioritize(prioritize)
}

#[tokio::main]
async fn main() -> Result<(), ServeError> {
    let address = std::env::args().nth(1);
    extender().serve(address.as_deref().unwrap_or("127.0.0.1:8888")).await
}

#[cfg(test)]
mod tests;
