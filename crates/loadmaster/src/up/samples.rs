//! The samples of `up`: nodes, a workload and a configuration of the scheduler, each for one feature.

use clap::ValueEnum;
use loadmaster_api::document::{Document, LocatedError};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::sample_workload::{self, Churn, SampleWorkload};
use super::{gangs_sample, quotas_sample};

/// A sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Sample {
    /// Services, databases and Jobs with constraints of many kinds, and changes all the time.
    #[default]
    Default,
    /// Jobs with PodGroups, whose pods are scheduled together or not at all.
    Gangs,
    /// Three tenants with ElasticQuotas, which borrow from each other and reclaim what they lent.
    Quotas,
}

impl Sample {
    /// The number of nodes without `--nodes`.
    pub fn n_nodes(self) -> u32 {
        match self {
            Sample::Default => sample_workload::N_NODES,
            Sample::Gangs => gangs_sample::N_NODES,
            Sample::Quotas => quotas_sample::N_NODES,
        }
    }

    /// Its nodes.
    pub fn nodes(self, n: u32) -> Vec<Value> {
        match self {
            Sample::Default => sample_workload::nodes(n).collect(),
            Sample::Gangs | Sample::Quotas => (0..n).map(plain_node).collect(),
        }
    }

    /// Its workload for this many nodes. An error would be a mistake in the sample's file.
    pub fn workload(self, n_nodes: u32) -> Result<SampleWorkload, LocatedError> {
        match self {
            Sample::Default => sample_workload::workload(n_nodes),
            Sample::Gangs => gangs_sample::workload(),
            Sample::Quotas => quotas_sample::workload(),
        }
    }

    /// Changes that never end, if the sample has them.
    pub fn churn(self, rng: Rng, n_nodes: u32, workload: &SampleWorkload) -> Option<Churn> {
        (self == Sample::Default).then(|| Churn::new(rng, n_nodes, workload))
    }

    /// The configuration of the scheduler without `--config`, if it is not the default one.
    pub fn scheduler_configuration(self) -> Option<Document> {
        match self {
            Sample::Default => None,
            Sample::Gangs => Some(gangs_sample::scheduler_configuration()),
            Sample::Quotas => Some(quotas_sample::scheduler_configuration()),
        }
    }
}

/// A node with 8 CPUs and 32 GiB, in one of three zones.
fn plain_node(nth: u32) -> Value {
    let name = format!("node-{nth:03}");
    let zone = ["zone-a", "zone-b", "zone-c"][nth as usize % 3];
    let resources =
        json!({"cpu": "8", "memory": "32Gi", "ephemeral-storage": "90Gi", "pods": "110"});
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "topology.kubernetes.io/zone": zone,
        }},
        "status": {"capacity": resources, "allocatable": resources},
    })
}
