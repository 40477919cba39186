//! The manifests that are run, and what each of them needs and does.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::e2e::manifest;
use crate::e2e::manifests::rendered;

/// The folder of the manifests that others have written.
const FOLDER: &str = "xtask/src/e2e/deployments";

/// What is done besides binding pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    Nothing,
    /// The controllers write the status of a PodGroup.
    PodGroup,
    /// The extender beside the scheduler keeps pods from nodes without a tier.
    Tiers,
    /// The extender chooses a device for pods with GPU memory, and binds them.
    Gpus,
    /// The plugin keeps pods called `nginx` from nodes without a label.
    SamplePlugin,
}

/// A manifest.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// A variant of `deploy/`, or a file of [`FOLDER`].
    pub name: &'static str,
    /// What its images are called, and which of ours it gets under this name, as with `docker tag`.
    pub tags: &'static [(&'static str, &'static str)],
    /// A taint of the nodes that it runs on.
    pub taint: Option<(&'static str, &'static str)>,
    pub more: More,
    /// Kinds that its own roles do not allow to read, and without which it works; the log names each once.
    pub unread: &'static [&'static str],
    /// Among the few of `--quick`.
    pub is_quick: bool,
}

const CONTROL_PLANE: Option<(&str, &str)> = Some(("node-role.kubernetes.io/control-plane", ""));

/// A variant of `deploy/` with our own names of images.
const fn variant(
    name: &'static str,
    taint: Option<(&'static str, &'static str)>,
    more: More,
) -> Case {
    Case { name, tags: &[], taint, more, unread: &[], is_quick: false }
}

pub const CASES: &[Case] = &[
    variant("kustomize-replace-kube-scheduler", CONTROL_PLANE, More::Nothing),
    variant("kustomize-second-scheduler", None, More::Nothing),
    Case { is_quick: true, ..variant("kustomize-with-controllers", None, More::PodGroup) },
    variant("kustomize-with-extender", None, More::Tiers),
    Case { is_quick: true, ..variant("kustomize-gpushare", CONTROL_PLANE, More::Gpus) },
    variant("helm-replace-kube-scheduler", CONTROL_PLANE, More::Nothing),
    variant("helm-second-scheduler", None, More::Nothing),
    variant("helm-configuration", None, More::Nothing),
    variant("helm-with-controllers", None, More::PodGroup),
    variant("helm-with-extender", None, More::Tiers),
    variant("helm-gpushare", CONTROL_PLANE, More::Gpus),
    variant("helm-scheduler-plugins-defaults", None, More::PodGroup),
    Case {
        tags: &[
            ("example.com/scheduler:v1", "loadmaster"),
            ("example.com/controller:v1", "loadmaster-controllers"),
        ],
        ..variant("helm-scheduler-plugins", Some(("dedicated", "control")), More::PodGroup)
    },
    Case {
        name: "scheduler-plugins-deployment",
        tags: &[("localhost:5000/scheduler-plugins/kube-scheduler:latest", "loadmaster")],
        taint: None,
        more: More::Nothing,
        unread: &[],
        is_quick: false,
    },
    Case {
        name: "sample-plugin",
        tags: &[("sample-scheduler:v1", "sample-scheduler")],
        taint: None,
        more: More::SamplePlugin,
        unread: &[
            "namespaces",
            "poddisruptionbudgets",
            "replicasets",
            "replicationcontrollers",
            "services",
            "statefulsets",
            "volumeattachments",
        ],
        is_quick: true,
    },
];

impl Case {
    /// Whether it works without this request, such as `403 list services`.
    pub fn works_without(&self, request: &str) -> bool {
        // Of leader election, and for certificates of clients.
        const OTHERS: [&str; 2] = ["create events in kube-system", "get configmaps in kube-system"];
        let is_unread = |kind: &&str| {
            ["list", "watch"].iter().any(|verb| request.ends_with(&format!("{verb} {kind}")))
        };
        self.unread.iter().any(is_unread)
            || !self.unread.is_empty() && OTHERS.iter().any(|other| request.ends_with(other))
    }

    /// The objects of the manifest, as they are written there.
    pub fn objects(&self) -> Result<Vec<Value>> {
        let file = format!("{FOLDER}/{}.yaml", self.name);
        if crate::root()?.join(&file).exists() {
            return manifest::read(&file);
        }
        let variants = rendered::variants()?;
        let variant = variants.iter().find(|variant| variant.name == self.name);
        let variant = variant.with_context(|| format!("there is no variant {}", self.name))?;
        // That it is what helm and kustomize make of the sources is checked elsewhere.
        let objects = rendered::documents(&variant.recorded()?)?;
        ensure!(!objects.is_empty(), "{} is not recorded", self.name);
        Ok(objects)
    }

    /// The reference of an image of ours under which a manifest looks for it.
    pub fn reference(&self, image: &str) -> String {
        let tag = self.tags.iter().find(|(_, name)| *name == image);
        match tag {
            Some((reference, _)) => (*reference).to_owned(),
            None => format!("{image}:{}", env!("CARGO_PKG_VERSION")),
        }
    }

    /// The names of the images in its Deployments.
    pub fn images(&self, objects: &[Value]) -> Vec<String> {
        let deployments = objects.iter().filter(|object| object["kind"] == "Deployment");
        let specs = deployments.map(|object| &object["spec"]["template"]["spec"]);
        specs
            .flat_map(|spec| [&spec["initContainers"], &spec["containers"]])
            .flat_map(|containers| containers.as_array().into_iter().flatten())
            .filter_map(|container| container["image"].as_str().map(str::to_owned))
            .collect()
    }

    /// The scheduler's configuration: in a ConfigMap, or else in a file of the node.
    pub fn configuration(&self, objects: &[Value]) -> Result<Value> {
        let maps = objects.iter().filter(|object| object["kind"] == "ConfigMap");
        let mut texts = maps
            .flat_map(|map| map["data"].as_object().into_iter().flatten())
            .filter_map(|(_, text)| text.as_str());
        match texts.find(|text| text.contains("KubeSchedulerConfiguration")) {
            Some(text) => serde_saphyr::from_str(text).context("reading the configuration"),
            None => Ok(node_configuration()),
        }
    }
}

/// The configuration in a file of the node, for the manifest that reads it there.
pub fn node_configuration() -> Value {
    json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": true},
        "clientConnection": {"kubeconfig": "/etc/kubernetes/scheduler.conf"},
        "profiles": [{"schedulerName": "default-scheduler", "plugins": {
            "multiPoint": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "PrioritySort"}]}}}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image;

    /// Each manifest's images are ours, by its tags.
    #[test]
    fn manifests_name_images_that_they_get() {
        for case in CASES {
            let objects = case.objects().unwrap();
            let known: Vec<String> =
                image::names().into_iter().map(|name| case.reference(name)).collect();
            let images = case.images(&objects);
            assert!(!images.is_empty(), "{}", case.name);
            for name in images {
                assert!(known.contains(&name), "{}: {name}", case.name);
            }
            assert!(case.configuration(&objects).unwrap()["profiles"].is_array(), "{}", case.name);
        }
    }

    /// Every variant is run, except those with only more objects for Prometheus.
    #[test]
    fn all_variants_are_run() {
        for variant in rendered::variants().unwrap() {
            let is_run = CASES.iter().any(|case| case.name == variant.name);
            assert!(is_run || variant.name.ends_with("-monitoring"), "{}", variant.name);
        }
    }
}
