//! The part of a pod that equal pods share: everything a decision depends on except the pod's name, its node and its status.
//!
//! Pods of one controller are usually equal except for their names. They share one [`PodTemplate`], parsed once, so that a
//! running pod needs little memory and equal pods can share a cached evaluation.

use std::ops::Deref;
use std::sync::Arc;

use loadmaster_api::pod::PodStatus;
use loadmaster_api::selector::SelectorError;
use loadmaster_api::{
    InternedPodSpec, Labels, OwnerReference, Pod, PodAffinityTerm, Selector, SharedPodSpec, Str,
};
use smallvec::SmallVec;

use crate::feature_gates::FeatureGates;
use crate::pod_requests::{self, PodRequests};

/// A template's id in its world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TemplateId {
    /// Dense, and reused when no pod has the template.
    pub(crate) index: u32,
    /// Distinguishes templates that had the same index at different times.
    pub(crate) serial: u32,
}

/// The id of a spec that templates share, in its world; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpecId(pub(crate) u64);

/// The id of a namespace, in its world; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceId(pub(crate) u32);

/// The spec of all templates that differ only in labels, namespace or owner.
#[derive(Clone, Debug)]
pub struct SharedSpec {
    id: SpecId,
    spec: InternedPodSpec,
}

impl SharedSpec {
    pub(crate) fn new(id: SpecId, spec: InternedPodSpec) -> SharedSpec {
        SharedSpec { id, spec }
    }

    /// Equal ids in one world mean equal specs.
    pub fn id(&self) -> SpecId {
        self.id
    }
}

impl Deref for SharedSpec {
    type Target = InternedPodSpec;

    fn deref(&self) -> &InternedPodSpec {
        &self.spec
    }
}

impl TemplateId {
    /// The id of a template that is in no world yet.
    const NONE: TemplateId = TemplateId { index: u32::MAX, serial: 0 };

    /// A number below the number of templates that existed at the same time, given again when no pod has the template.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// The shared part of equal pods: their labels and, as fields of [`SharedTemplate`], all that pods with other labels may share.
#[derive(Debug)]
pub struct PodTemplate {
    /// Equal ids in one world mean equal templates.
    pub id: TemplateId,
    /// `metadata.labels`.
    pub labels: Labels,
    /// The part without labels.
    shared: Arc<SharedTemplate>,
}

/// The id of a [`SharedTemplate`], in its world; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SharedTemplateId(pub(crate) u64);

/// The id of all templates that differ in nothing but labels, requests and limits, in their world; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WithoutResourcesId(pub(crate) u64);

/// What pods share whose labels differ, such as those of a StatefulSet, each of which has labels of its own.
#[derive(Debug)]
pub struct SharedTemplate {
    /// Equal ids in one world mean equal templates but for the labels.
    pub shared_id: SharedTemplateId,
    /// Equal ids in one world mean equal templates but for the labels, and for the requests and limits of the pod and its containers.
    pub without_resources_id: WithoutResourcesId,
    /// `metadata.namespace`.
    pub namespace: Str,
    /// Equal ids in one world mean equal namespaces.
    pub namespace_id: NamespaceId,
    /// The controlling owner, if there is one.
    pub controller: Option<OwnerReference>,
    /// Without `nodeName`, which belongs to the single pod.
    pub spec: SharedSpec,
    /// Requests according to the spec, without the pod's status.
    pub requests: PodRequests,
    /// Host ports of containers and sidecars.
    pub host_ports: Box<[HostPort]>,
    /// `podAffinity.requiredDuringSchedulingIgnoredDuringExecution`.
    pub required_affinity: Box<[AffinityTerm]>,
    /// `podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution`.
    pub required_anti_affinity: Box<[AffinityTerm]>,
    /// `podAffinity.preferredDuringSchedulingIgnoredDuringExecution`.
    pub preferred_affinity: Box<[WeightedAffinityTerm]>,
    /// `podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution`.
    pub preferred_anti_affinity: Box<[WeightedAffinityTerm]>,
}

/// A host port of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// `0.0.0.0` (all addresses) when not set.
    pub ip: Str,
    /// `TCP` when not set.
    pub protocol: Str,
    /// The port number.
    pub port: i32,
}

impl HostPort {
    /// Whether two pods with these ports cannot run on one node.
    pub fn conflicts(&self, other: &HostPort) -> bool {
        let any = |port: &HostPort| port.ip == "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (any(self) || any(other) || self.ip == other.ip)
    }
}

/// A parsed pod affinity or anti-affinity term (upstream's `AffinityTerm`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AffinityTerm {
    /// Names of namespaces; the pod's own if the term has neither namespaces nor a namespace selector.
    pub namespaces: Box<[Str]>,
    /// Matches nothing if the term has none.
    pub namespace_selector: Selector,
    /// Selects pods by their labels.
    pub selector: Selector,
    /// The node label whose values are the domains.
    pub topology_key: Str,
}

impl AffinityTerm {
    /// Whether the term matches a pod with these labels in this namespace.
    pub fn matches(&self, namespace: &Str, namespace_labels: &Labels, labels: &Labels) -> bool {
        (self.namespaces.contains(namespace) || self.namespace_selector.matches(namespace_labels))
            && self.selector.matches(labels)
    }
}

/// A preferred affinity term with its weight (upstream's `WeightedAffinityTerm`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightedAffinityTerm {
    /// In `1..=100`.
    pub weight: i64,
    /// The term.
    pub term: AffinityTerm,
}

/// A selector in a pod is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid selector at {path}")]
pub struct TemplateError {
    /// Path in the pod, such as `spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector`.
    pub path: String,
    /// What is wrong with it.
    #[source]
    pub source: SelectorError,
}

impl Deref for PodTemplate {
    type Target = SharedTemplate;

    fn deref(&self) -> &SharedTemplate {
        &self.shared
    }
}

impl PodTemplate {
    /// The template of pods with these labels. [`crate::world::World::parse_pod`] assigns its id.
    pub(crate) fn new(labels: Labels, shared: Arc<SharedTemplate>) -> PodTemplate {
        PodTemplate { id: TemplateId::NONE, labels, shared }
    }
}

impl SharedTemplate {
    /// Parses what pods with this spec, and the namespace and owner of this pod, share.
    ///
    /// # Errors
    ///
    /// When a selector is invalid.
    pub(crate) fn new(
        shared_id: SharedTemplateId,
        without_resources_id: WithoutResourcesId,
        namespace_id: NamespaceId,
        pod: &Pod,
        spec: SharedSpec,
        gates: &FeatureGates,
    ) -> Result<SharedTemplate, TemplateError> {
        let namespace = pod.metadata.namespace.clone();
        let affinity = spec.affinity.as_deref();
        let pod_affinity = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
        let pod_anti_affinity = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
        let parse = AffinityParser { namespace: &namespace };
        Ok(SharedTemplate {
            shared_id,
            without_resources_id,
            required_affinity: parse.required("podAffinity", pod_affinity)?,
            required_anti_affinity: parse.required("podAntiAffinity", pod_anti_affinity)?,
            preferred_affinity: parse.preferred("podAffinity", pod_affinity)?,
            preferred_anti_affinity: parse.preferred("podAntiAffinity", pod_anti_affinity)?,
            requests: PodRequests::new(&spec, &PodStatus::default(), gates),
            host_ports: host_ports(&spec),
            controller: controller(pod).cloned(),
            namespace,
            namespace_id,
            spec,
        })
    }

    /// Upstream's `PodPriority`: 0 when not set.
    pub fn priority(&self) -> i32 {
        self.spec.priority.unwrap_or(0)
    }

    /// Whether its `preemptionPolicy` is `Never`: it evicts no pods.
    pub fn never_preempts(&self) -> bool {
        self.spec.preemption_policy.as_deref() == Some("Never")
    }

    /// The name of the profile that schedules the pod.
    pub fn scheduler_name(&self) -> &str {
        if self.spec.scheduler_name.is_empty() {
            "default-scheduler"
        } else {
            &self.spec.scheduler_name
        }
    }

    /// Whether pods with this template have claims that are named after the pod: their keys may differ.
    pub fn has_ephemeral_volumes(&self) -> bool {
        self.spec.volumes.iter().any(|volume| volume.ephemeral.is_some())
    }

    /// Whether the pod has any affinity or anti-affinity to other pods.
    pub fn has_pod_affinity(&self) -> bool {
        self.has_required_anti_affinity()
            || !(self.required_affinity.is_empty()
                && self.preferred_affinity.is_empty()
                && self.preferred_anti_affinity.is_empty())
    }

    /// Whether the pod has required anti-affinity terms.
    pub fn has_required_anti_affinity(&self) -> bool {
        !self.required_anti_affinity.is_empty()
    }

    /// All topology keys in the pod's affinity terms and topology spread constraints.
    pub fn topology_keys(&self) -> impl Iterator<Item = &Str> {
        let required = self.required_affinity.iter().chain(self.required_anti_affinity.iter());
        let preferred = self.preferred_affinity.iter().chain(self.preferred_anti_affinity.iter());
        let terms =
            required.chain(preferred.map(|weighted| &weighted.term)).map(|term| &term.topology_key);
        terms.chain(
            self.spec.topology_spread_constraints.iter().map(|constraint| &constraint.topology_key),
        )
    }
}

/// The fields that determine a [`SharedTemplate`].
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct SharedTemplateKey<'a> {
    namespace: &'a Str,
    controller: Option<&'a OwnerReference>,
    spec: &'a InternedPodSpec,
}

impl<'a> SharedTemplateKey<'a> {
    pub(crate) fn of(pod: &'a Pod) -> Self {
        let (namespace, controller) = (&pod.metadata.namespace, controller(pod));
        SharedTemplateKey { namespace, controller, spec: &pod.spec.shared }
    }

    pub(crate) fn of_template(template: &'a SharedTemplate) -> Self {
        let SharedTemplate { namespace, controller, spec, .. } = template;
        SharedTemplateKey { namespace, controller: controller.as_ref(), spec }
    }
}

pub(crate) fn controller(pod: &Pod) -> Option<&OwnerReference> {
    pod.metadata.owner_references.iter().find(|owner| owner.controller == Some(true))
}

struct AffinityParser<'a> {
    namespace: &'a Str,
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

impl AffinityParser<'_> {
    fn required(
        &self,
        kind: &str,
        affinity: Option<&loadmaster_api::PodAffinity>,
    ) -> Result<Box<[AffinityTerm]>, TemplateError> {
        let terms = affinity.map_or(&[][..], |affinity| &affinity.required);
        let parsed = terms.iter().enumerate().map(|(at, term)| {
            self.term(term).map_err(|error| error_at(error, kind, &format!("{REQUIRED}[{at}]")))
        });
        parsed.collect()
    }

    fn preferred(
        &self,
        kind: &str,
        affinity: Option<&loadmaster_api::PodAffinity>,
    ) -> Result<Box<[WeightedAffinityTerm]>, TemplateError> {
        let terms = affinity.map_or(&[][..], |affinity| &affinity.preferred);
        let parsed = terms.iter().enumerate().map(|(at, weighted)| {
            let term = self.term(&weighted.pod_affinity_term);
            let at = format!("{PREFERRED}[{at}].podAffinityTerm");
            let term = term.map_err(|error| error_at(error, kind, &at))?;
            Ok(WeightedAffinityTerm { weight: i64::from(weighted.weight), term })
        });
        parsed.collect()
    }

    fn term(&self, term: &PodAffinityTerm) -> Result<AffinityTerm, (&'static str, SelectorError)> {
        let selector =
            Selector::new(term.label_selector.as_ref()).map_err(|e| ("labelSelector", e))?;
        let namespace_selector = Selector::new(term.namespace_selector.as_ref());
        let namespace_selector = namespace_selector.map_err(|e| ("namespaceSelector", e))?;
        let own = term.namespaces.is_empty() && term.namespace_selector.is_none();
        let namespaces = if own {
            [self.namespace.clone()].into()
        } else {
            term.namespaces.clone().into_boxed_slice()
        };
        Ok(AffinityTerm {
            namespaces,
            namespace_selector,
            selector,
            topology_key: term.topology_key.clone(),
        })
    }
}

fn error_at((field, source): (&str, SelectorError), kind: &str, at: &str) -> TemplateError {
    TemplateError { path: format!("spec.affinity.{kind}.{at}.{field}"), source }
}

fn host_ports(spec: &SharedPodSpec) -> Box<[HostPort]> {
    let sidecars =
        spec.init_containers.iter().filter(|container| pod_requests::is_sidecar(container));
    let or =
        |text: &Str, default: &str| if text.is_empty() { Str::new(default) } else { text.clone() };
    let ports = sidecars.chain(&spec.containers).flat_map(|container| &container.ports);
    let wanted: SmallVec<[HostPort; 2]> = ports
        .filter(|port| port.host_port > 0)
        .map(|port| HostPort {
            ip: or(&port.host_ip, "0.0.0.0"),
            protocol: or(&port.protocol, "TCP"),
            port: port.host_port,
        })
        .collect();
    wanted.into_vec().into_boxed_slice()
}
