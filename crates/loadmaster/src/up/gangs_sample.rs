//! The sample of gangs: Jobs whose pods are scheduled together or not at all.
//!
//! Some fit beside each other, some only one after the other, and one does not fit at all.

use loadmaster_api::document::{Document, LocatedError};

use super::sample_workload::{Millis, SampleWorkload};

/// The number of nodes without `--nodes`.
pub(super) const N_NODES: u32 = 8;

/// When the Jobs are created; other objects are created at once.
const ARRIVALS_MS: [(&str, Millis); 6] = [
    ("resnet", 0),
    ("bert", 0),
    ("llama", 3_000),
    ("mistral", 3_000),
    ("tuning", 5_000),
    ("giant", 6_000),
];

/// The workload. An error would be a mistake in `gangs_sample.yaml`.
pub(super) fn workload() -> Result<SampleWorkload, LocatedError> {
    let document = Document::new("gangs_sample.yaml", include_str!("gangs_sample.yaml"));
    Ok(SampleWorkload::with_times(document.decode_values()?, &ARRIVALS_MS))
}

/// The default profile, with Coscheduling.
pub(super) fn scheduler_configuration() -> Document {
    Document::new("gangs_scheduler.yaml", include_str!("gangs_scheduler.yaml"))
}

#[cfg(test)]
mod tests {
    use super::super::sample_workload::Action;
    use super::*;

    /// CPUs of a node of the sample.
    const NODE_CPUS: u64 = 8;

    #[test]
    fn gangs_fit_together_one_after_the_other_or_not_at_all() {
        let sample = workload().unwrap();
        assert_eq!(sample.arrivals.len(), ARRIVALS_MS.len());
        let min_cpus = |name: &str| {
            let spec_of = |kind: &str| {
                let jobs = sample.arrivals.iter().filter_map(|(_, action)| match action {
                    Action::Create(object) => Some(&**object),
                    _ => None,
                });
                let mut all = sample.objects.iter().chain(jobs);
                all.find(|it| it["kind"] == kind && it["metadata"]["name"] == name).unwrap()["spec"]
                    .clone()
            };
            let (group, template) = (spec_of("PodGroup"), &spec_of("Job")["template"]);
            assert_eq!(template["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"], name);
            let requests = &template["spec"]["containers"][0]["resources"]["requests"];
            let cpus: u64 = requests["cpu"].as_str().unwrap().parse().unwrap();
            cpus * group["minMember"].as_u64().unwrap()
        };
        let all = NODE_CPUS * u64::from(N_NODES);
        assert_eq!(min_cpus("resnet") + min_cpus("bert"), all);
        assert!(min_cpus("llama") <= all && min_cpus("mistral") <= all);
        assert!(min_cpus("llama") + min_cpus("mistral") > all);
        assert!(min_cpus("giant") > all);
    }
}
