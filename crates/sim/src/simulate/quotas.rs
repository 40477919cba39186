//! Quotas in a simulation: ElasticQuotas, their users, and what the plugin CapacityScheduling promises about them.
//!
//! | module | |
//! | --- | --- |
//! | `workload` | users and administrators: pods in several namespaces, ElasticQuotas that come, change and go |
//! | `bounds` | what the quotas allow, by adding up all pods |

mod bounds;
mod workload;

use std::sync::LazyLock;

use loadmaster_engine::engine::EngineEvent;
use loadmaster_framework::Gvr;

use super::InjectedBug;
use crate::fake_api_server::WatchedKind;

pub(super) use bounds::{Quotas, check_reserved, check_victim};
pub(super) use workload::QuotaWorkload;

/// The kind of ElasticQuotas.
pub(super) fn kind() -> &'static WatchedKind {
    static KIND: LazyLock<WatchedKind> = LazyLock::new(|| {
        WatchedKind::Other(Gvr::new("scheduling.x-k8s.io", "v1alpha1", "elasticquotas"))
    });
    &KIND
}

/// Whether the injected bug drops an event of an ElasticQuota.
pub(super) fn is_lost(bug: Option<InjectedBug>, event: &EngineEvent) -> bool {
    bug == Some(InjectedBug::LostElasticQuota)
        && matches!(event, EngineEvent::ObjectChanged { object, .. } if object.resource == "elasticquotas")
}
