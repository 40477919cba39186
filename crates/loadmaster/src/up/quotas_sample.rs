//! The sample of quotas: three tenants with ElasticQuotas.
//!
//! `research` borrows what `batch` and `shop` do not use. When they need it, they reclaim it, until each tenant has its minimum.

use loadmaster_api::document::{Document, LocatedError};

use super::sample_workload::{Millis, SampleWorkload};

/// The number of nodes without `--nodes`: a little more than all minimums together, so that only quotas limit the tenants.
pub(super) const N_NODES: u32 = 8;

/// When the workloads of the tenants are created; other objects are created at once.
const ARRIVALS_MS: [(&str, Millis); 4] =
    [("sweep", 0), ("training", 1_000), ("encode", 4_000), ("web", 11_000)];

/// The workload. An error would be a mistake in `quotas_sample.yaml`.
pub(super) fn workload() -> Result<SampleWorkload, LocatedError> {
    let document = Document::new("quotas_sample.yaml", include_str!("quotas_sample.yaml"));
    Ok(SampleWorkload::with_times(document.decode_values()?, &ARRIVALS_MS))
}

/// The default profile, with CapacityScheduling in place of DefaultPreemption.
pub(super) fn scheduler_configuration() -> Document {
    Document::new("quotas_scheduler.yaml", include_str!("quotas_scheduler.yaml"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_has_its_time_and_every_tenant_a_quota() {
        let sample = workload().unwrap();
        assert_eq!(sample.arrivals.len(), ARRIVALS_MS.len());
        let of_kind = |kind: &str| sample.objects.iter().filter(|it| it["kind"] == kind).count();
        assert_eq!((of_kind("Namespace"), of_kind("ElasticQuota")), (3, 3));
        assert_eq!(sample.objects.len(), 6);
    }
}
