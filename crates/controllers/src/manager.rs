//! All controllers of a cluster, as kube-controller-manager runs them.

use crate::controller::Controller;
use crate::cron_job::CronJobController;
use crate::csi::{CsiDriver, VolumeAttachmentController, VolumeProvisioner};
use crate::daemon_set::DaemonSetController;
use crate::deployment::DeploymentController;
use crate::disruption::DisruptionController;
use crate::elastic_quota::ElasticQuotaController;
use crate::endpoint_slice::EndpointSliceController;
use crate::ephemeral_volume::EphemeralVolumeController;
use crate::garbage_collector::GarbageCollector;
use crate::job::JobController;
use crate::namespace::NamespaceController;
use crate::node_lifecycle::NodeLifecycleController;
use crate::persistent_volume::PersistentVolumeController;
use crate::pod_group::PodGroupController;
use crate::replica_set::ReplicaSetController;
use crate::resource_quota::ResourceQuotaController;
use crate::service_account::ServiceAccountController;
use crate::stateful_set::StatefulSetController;
use crate::storage_protection::{
    VolumeAttributesClassProtectionController, VolumeProtectionController,
};
use crate::taint_eviction::TaintEvictionController;

/// Options of the controllers.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ControllerOptions {
    /// The CA certificate of the API server, in PEM. If set, it is published in every namespace in the ConfigMap `kube-root-ca.crt`.
    pub root_ca: Option<String>,
    /// The driver whose CSIStorageCapacities are published and limit its volumes.
    pub csi_driver: Option<CsiDriver>,
}

/// All controllers: Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs, CronJobs, PersistentVolumes with their provisioning,
/// attachment and protection, disruption budgets, EndpointSlices, node lifecycle, taint eviction, garbage collection, namespaces, resource quotas, service accounts.
pub fn all_controllers(options: ControllerOptions) -> Vec<Box<dyn Controller>> {
    vec![
        Box::<DeploymentController>::default(),
        Box::<ReplicaSetController>::default(),
        Box::<StatefulSetController>::default(),
        Box::<DaemonSetController>::default(),
        Box::<JobController>::default(),
        Box::<CronJobController>::default(),
        Box::<PersistentVolumeController>::default(),
        Box::new(VolumeProvisioner::new(options.csi_driver)),
        Box::<VolumeAttachmentController>::default(),
        Box::<EphemeralVolumeController>::default(),
        Box::new(VolumeProtectionController),
        Box::new(VolumeAttributesClassProtectionController),
        Box::<DisruptionController>::default(),
        Box::<EndpointSliceController>::default(),
        Box::<NodeLifecycleController>::default(),
        Box::<TaintEvictionController>::default(),
        Box::<GarbageCollector>::default(),
        Box::<NamespaceController>::default(),
        Box::<ResourceQuotaController>::default(),
        Box::new(ServiceAccountController { root_ca: options.root_ca }),
    ]
}

/// The controllers of scheduler-plugins: PodGroups and ElasticQuotas. They do nothing while the definitions of their kinds are not installed.
pub fn scheduler_plugins_controllers() -> Vec<Box<dyn Controller>> {
    vec![Box::new(PodGroupController), Box::<ElasticQuotaController>::default()]
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Namespace, Pod};
    use serde_json::{Value, json};

    use super::*;
    use crate::kind::{Key, Kind};
    use crate::request::{ControllerRequest, DeleteOptions};
    use crate::test_kubelet::bench;

    /// A namespace with one of each, all controllers at once.
    #[test]
    fn all_controllers_work_together_and_become_idle() {
        let mut bench = bench(all_controllers(ControllerOptions {
            root_ca: Some("PEM".into()),
            csi_driver: Some(CsiDriver::default()),
        }));
        bench.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}));
        bench.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
        let template = json!({"metadata": {"labels": {"app": "a"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let selector = json!({"matchLabels": {"app": "a"}});
        for (version, kind, spec) in [
            (
                "apps/v1",
                "Deployment",
                json!({"replicas": 3, "selector": selector, "template": template}),
            ),
            (
                "apps/v1",
                "StatefulSet",
                json!({"replicas": 2, "selector": selector, "template": template, "serviceName": "s"}),
            ),
            ("apps/v1", "DaemonSet", json!({"selector": selector, "template": template})),
            (
                "batch/v1",
                "Job",
                json!({"parallelism": 2, "template": {"spec":
                {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}),
            ),
        ] {
            let name = kind.to_lowercase();
            bench.create(json!({"apiVersion": version, "kind": kind,
                "metadata": {"name": name, "namespace": "x"}, "spec": spec}));
        }
        bench.run_until_idle();
        assert_eq!(bench.list::<Pod>().len(), 8);
        bench.wait(10);
        let n_sent = bench.sent.len();
        bench.wait(20);
        assert_eq!(bench.sent.len(), n_sent);

        let options = DeleteOptions { propagation: Some("Foreground"), ..Default::default() };
        let key = Key::new(Kind::Deployment, "x", "deployment");
        bench.send_as_client(&ControllerRequest::Delete { key, options });
        bench.wait(1);
        assert_eq!(bench.list::<Pod>().len(), 5);
        bench.send_as_client(&ControllerRequest::Delete {
            key: Key::new(Kind::Job, "x", "job"),
            options: Default::default(),
        });
        bench.wait(1);
        assert_eq!(bench.list::<Pod>().len(), 3);
        bench.send_as_client(&ControllerRequest::Delete {
            key: Key::new(Kind::Namespace, "", "x"),
            options: Default::default(),
        });
        bench.wait(20);
        assert_eq!(bench.list::<Pod>().len(), 0);
        assert!(bench.get::<Namespace>("", "x").is_none());
    }

    /// The largest numbers that the API server takes.
    #[test]
    fn the_largest_numbers_do_not_panic() {
        let mut bench = bench(all_controllers(ControllerOptions::default()));
        let (int, long) = (i32::MAX, i64::MAX);
        let labels = json!({"app": "a"});
        let pod = |policy: &str| {
            json!({"metadata": {"labels": labels}, "spec": {"restartPolicy": policy,
            "terminationGracePeriodSeconds": long, "containers": [{"name": "c", "image": "i"}]}})
        };
        let set = |more: Value| {
            let mut spec = json!({"replicas": 1, "minReadySeconds": int - 1, "revisionHistoryLimit": int,
                "selector": {"matchLabels": labels}, "template": pod("Always")});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            spec
        };
        let job = json!({"activeDeadlineSeconds": long, "backoffLimit": int, "parallelism": 1, "completions": int,
            "ttlSecondsAfterFinished": int, "template": pod("Never")});
        bench.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
            "spec": {"taints": [{"key": "k", "effect": "NoExecute"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
        let tolerations = json!([{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": long}]);
        let patient = json!({"nodeName": "n", "tolerations": tolerations,
            "terminationGracePeriodSeconds": long, "containers": [{"name": "c", "image": "i"}]});
        for (version, kind, spec) in [
            ("v1", "Pod", patient),
            ("apps/v1", "Deployment", set(json!({"progressDeadlineSeconds": int}))),
            (
                "apps/v1",
                "ReplicaSet",
                json!({"replicas": 0, "minReadySeconds": int,
                "selector": {"matchLabels": labels}, "template": pod("Always")}),
            ),
            (
                "apps/v1",
                "StatefulSet",
                set(json!({"ordinals": {"start": int}, "serviceName": "s"})),
            ),
            ("batch/v1", "Job", job.clone()),
            (
                "batch/v1",
                "CronJob",
                json!({"schedule": "* * * * *", "startingDeadlineSeconds": long,
                "successfulJobsHistoryLimit": int, "jobTemplate": {"spec": job}}),
            ),
            (
                "policy/v1",
                "PodDisruptionBudget",
                json!({"minAvailable": int, "selector": {"matchLabels": labels}}),
            ),
        ] {
            let name = kind.to_lowercase();
            bench.create(json!({"apiVersion": version, "kind": kind,
                "metadata": {"name": name, "namespace": "default"}, "spec": spec}));
        }
        bench.wait(200);
        for kind in [Kind::Pod, Kind::Deployment, Kind::Job, Kind::CronJob, Kind::StatefulSet] {
            bench.delete(kind, &format!("{kind:?}").to_lowercase());
        }
        bench.wait(60);
        assert_eq!(bench.stats().n_panics(), 0);
    }
}
