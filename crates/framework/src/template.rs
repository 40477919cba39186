//! What pods of one kind share: everything a decision depends on except the pod's name, its node and its status.
//!
//! Pods made by one controller are equal up to their names. They share one [`PodTemplate`], parsed once, so that a running
//! pod costs little memory and equal pods can be decided as one question.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use loadmaster_api::pod::PodStatus;
use loadmaster_api::selector::SelectorError;
use loadmaster_api::{Labels, OwnerReference, Pod, PodAffinityTerm, PodSpec, Selector, Str};
use smallvec::SmallVec;

use crate::gates::FeatureGates;
use crate::requests::{self, PodRequests};

/// A template's number in its world: dense, and reused once no pod has the template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TemplateId(pub u32);

/// The shared part of equal pods.
#[derive(Debug)]
pub struct PodTemplate {
    /// Equal ids in one world mean equal templates.
    pub id: TemplateId,
    /// `metadata.namespace`.
    pub namespace: Str,
    /// `metadata.labels`.
    pub labels: Labels,
    /// The controlling owner, if there is one.
    pub controller: Option<OwnerReference>,
    /// `nodeName` is left empty here: it belongs to the single pod.
    pub spec: PodSpec,
    /// Requests according to the spec alone.
    pub requests: PodRequests,
    /// Host ports of containers and sidecars.
    pub host_ports: Box<[HostPort]>,
    /// `podAffinity.requiredDuringSchedulingIgnoredDuringExecution`.
    pub required_affinity: Box<[AffinityTerm]>,
    /// `podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution`.
    pub required_anti_affinity: Box<[AffinityTerm]>,
    /// `podAffinity.preferredDuringSchedulingIgnoredDuringExecution`.
    pub preferred_affinity: Box<[WeightedTerm]>,
    /// `podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution`.
    pub preferred_anti_affinity: Box<[WeightedTerm]>,
}

/// A port of the node that a pod wants for itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// `0.0.0.0` (every address) when not given.
    pub ip: Str,
    /// `TCP` when not given.
    pub protocol: Str,
    /// The number.
    pub port: i32,
}

impl HostPort {
    /// Whether two pods cannot both have their port on one node.
    pub fn conflicts(&self, other: &HostPort) -> bool {
        let any = |port: &HostPort| port.ip == "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (any(self) || any(other) || self.ip == other.ip)
    }
}

/// A term of affinity between pods, compiled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AffinityTerm {
    /// Namespaces by name; the pod's own when the term names none and has no namespace selector.
    pub namespaces: Box<[Str]>,
    /// Matches nothing when the term has none.
    pub namespace_selector: Selector,
    /// Of the labels of pods.
    pub selector: Selector,
    /// The node label whose values are the domains.
    pub topology_key: Str,
}

impl AffinityTerm {
    /// Whether the term speaks of a pod with these labels in a namespace with those.
    pub fn matches(&self, namespace: &Str, namespace_labels: &Labels, labels: &Labels) -> bool {
        (self.namespaces.contains(namespace) || self.namespace_selector.matches(namespace_labels))
            && self.selector.matches(labels)
    }
}

/// A preferred term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightedTerm {
    /// In `1..=100`.
    pub weight: i64,
    /// What is preferred.
    pub term: AffinityTerm,
}

/// A selector inside a pod that does not parse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid selector at {path}")]
pub struct TemplateError {
    /// Where in the pod, such as `spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector`.
    pub path: String,
    /// What is wrong with it.
    #[source]
    pub source: SelectorError,
}

impl PodTemplate {
    /// Parses what equal pods share. [`crate::world::World::parse`] gives each template its number.
    pub fn new(pod: &Pod, gates: &FeatureGates) -> Result<PodTemplate, TemplateError> {
        let mut spec = pod.spec.clone();
        spec.node_name = Str::default();
        let namespace = pod.metadata.namespace.clone();
        let affinity = spec.affinity.as_deref();
        let near = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
        let apart = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
        let parse = Parse { namespace: &namespace };
        Ok(PodTemplate {
            id: TemplateId(u32::MAX),
            required_affinity: parse.required("podAffinity", near)?,
            required_anti_affinity: parse.required("podAntiAffinity", apart)?,
            preferred_affinity: parse.preferred("podAffinity", near)?,
            preferred_anti_affinity: parse.preferred("podAntiAffinity", apart)?,
            requests: PodRequests::new(&spec, &PodStatus::default(), gates),
            host_ports: host_ports(&spec),
            labels: pod.metadata.labels.clone(),
            controller: controller(pod).cloned(),
            namespace,
            spec,
        })
    }

    /// Upstream's `PodPriority`: 0 when not set.
    pub fn priority(&self) -> i32 {
        self.spec.priority.unwrap_or(0)
    }

    /// The profile that decides this pod.
    pub fn scheduler_name(&self) -> &str {
        if self.spec.scheduler_name.is_empty() {
            "default-scheduler"
        } else {
            &self.spec.scheduler_name
        }
    }

    /// Whether the pod has any affinity or anti-affinity to other pods.
    pub fn has_pod_affinity(&self) -> bool {
        self.has_required_anti_affinity()
            || !(self.required_affinity.is_empty()
                && self.preferred_affinity.is_empty()
                && self.preferred_anti_affinity.is_empty())
    }

    /// Whether other pods can be kept away by this one.
    pub fn has_required_anti_affinity(&self) -> bool {
        !self.required_anti_affinity.is_empty()
    }

    /// Every node label key that a decision about this pod may read as a topology.
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

impl PartialEq for PodTemplate {
    fn eq(&self, other: &Self) -> bool {
        Shared::of_template(self) == Shared::of_template(other)
    }
}

impl Eq for PodTemplate {}

impl Hash for PodTemplate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Shared::of_template(self).hash(state);
    }
}

/// What makes pods equal; everything else in a template follows from it.
pub(crate) struct Shared<'a> {
    namespace: &'a Str,
    labels: &'a Labels,
    controller: Option<&'a OwnerReference>,
    /// `nodeName` does not count.
    spec: &'a PodSpec,
}

impl<'a> Shared<'a> {
    pub(crate) fn of(pod: &'a Pod) -> Self {
        let meta = &pod.metadata;
        let controller = controller(pod);
        Shared { namespace: &meta.namespace, labels: &meta.labels, controller, spec: &pod.spec }
    }

    fn of_template(template: &'a PodTemplate) -> Self {
        let controller = template.controller.as_ref();
        let PodTemplate { namespace, labels, spec, .. } = template;
        Shared { namespace, labels, controller, spec }
    }
}

impl PartialEq for Shared<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.namespace == other.namespace
            && self.labels == other.labels
            && self.controller == other.controller
            && same_spec(self.spec, other.spec)
    }
}

impl Hash for Shared<'_> {
    /// Over what mostly differs; equality looks at the rest.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.namespace.hash(state);
        self.labels.hash(state);
        for container in &self.spec.containers {
            container.image.hash(state);
            container.resources.requests.hash(state);
        }
        self.spec.node_selector.hash(state);
        self.spec.affinity.hash(state);
        self.spec.topology_spread_constraints.hash(state);
    }
}

impl hashbrown::Equivalent<Arc<PodTemplate>> for Shared<'_> {
    fn equivalent(&self, template: &Arc<PodTemplate>) -> bool {
        *self == Shared::of_template(template)
    }
}

/// Equality but for `nodeName`. The pattern names every field, so that a new one cannot be forgotten.
fn same_spec(a: &PodSpec, b: &PodSpec) -> bool {
    let PodSpec {
        node_name: _,
        scheduler_name,
        priority,
        priority_class_name,
        preemption_policy,
        node_selector,
        affinity,
        tolerations,
        topology_spread_constraints,
        init_containers,
        containers,
        overhead,
        resources,
        scheduling_gates,
        volumes,
        resource_claims,
        host_network,
    } = a;
    *scheduler_name == b.scheduler_name
        && *priority == b.priority
        && *priority_class_name == b.priority_class_name
        && *preemption_policy == b.preemption_policy
        && *node_selector == b.node_selector
        && *affinity == b.affinity
        && *tolerations == b.tolerations
        && *topology_spread_constraints == b.topology_spread_constraints
        && *init_containers == b.init_containers
        && *containers == b.containers
        && *overhead == b.overhead
        && *resources == b.resources
        && *scheduling_gates == b.scheduling_gates
        && *volumes == b.volumes
        && *resource_claims == b.resource_claims
        && *host_network == b.host_network
}

fn controller(pod: &Pod) -> Option<&OwnerReference> {
    pod.metadata.owner_references.iter().find(|owner| owner.controller == Some(true))
}

struct Parse<'a> {
    namespace: &'a Str,
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

impl Parse<'_> {
    fn required(
        &self,
        kind: &str,
        affinity: Option<&loadmaster_api::PodAffinity>,
    ) -> Result<Box<[AffinityTerm]>, TemplateError> {
        let terms = affinity.map_or(&[][..], |affinity| &affinity.required);
        let parsed = terms.iter().enumerate().map(|(at, term)| {
            self.term(term).map_err(|error| located(error, kind, &format!("{REQUIRED}[{at}]")))
        });
        parsed.collect()
    }

    fn preferred(
        &self,
        kind: &str,
        affinity: Option<&loadmaster_api::PodAffinity>,
    ) -> Result<Box<[WeightedTerm]>, TemplateError> {
        let terms = affinity.map_or(&[][..], |affinity| &affinity.preferred);
        let parsed = terms.iter().enumerate().map(|(at, weighted)| {
            let term = self.term(&weighted.pod_affinity_term);
            let at = format!("{PREFERRED}[{at}].podAffinityTerm");
            let term = term.map_err(|error| located(error, kind, &at))?;
            Ok(WeightedTerm { weight: i64::from(weighted.weight), term })
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

fn located((field, source): (&str, SelectorError), kind: &str, at: &str) -> TemplateError {
    TemplateError { path: format!("spec.affinity.{kind}.{at}.{field}"), source }
}

fn host_ports(spec: &PodSpec) -> Box<[HostPort]> {
    let sidecars = spec.init_containers.iter().filter(|container| requests::is_sidecar(container));
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
