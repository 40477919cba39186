//! From messages to lean types. Only quantities and times can be wrong in a message that is well-formed.

use super::ProtoError;
use super::messages as wire;
use crate::ResourceList;
use crate::disk_source::{
    AzureDisk, AzureFile, Csi, DiskSource, GcePersistentDisk, Iscsi, Rbd, VolumeId, VsphereVolume,
};
use crate::interned_str::Str;
use crate::meta::{Labels, ObjectMeta, OwnerReference, Timestamp};
use crate::node::{ContainerImage, Node, NodeSpec, NodeStatus, Taint};
use crate::pod::{
    Affinity, ClaimSource, Container, ContainerPort, ContainerResources, ContainerRestartRule,
    ContainerStatus, EphemeralSource, ImageSource, NamedItem, NodeAffinity, Pod, PodAffinity,
    PodAffinityTerm, PodCondition, PodStatus, PreferredSchedulingTerm, Toleration,
    TopologySpreadConstraint, Volume, WeightedPodAffinityTerm,
};
use crate::pod_spec::{PodSpec, SharedPodSpec};
use crate::quantity::Quantity;
use crate::selector::{LabelSelector, NodeSelector, NodeSelectorTerm, Requirement};
use crate::workload::{
    MapSelectorSpec, PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus,
    PodTemplateSpec, PriorityClass, ReplicasSpec,
};

type Result<T> = std::result::Result<T, ProtoError>;

/// Every item, converted.
fn each<A, B>(items: Vec<A>, convert: impl Fn(A) -> B) -> Vec<B> {
    items.into_iter().map(convert).collect()
}

/// Every item, converted, or the first failure.
fn try_each<A, B>(items: Vec<A>, convert: impl Fn(A) -> Result<B>) -> Result<Vec<B>> {
    items.into_iter().map(convert).collect()
}

/// The item converted, or the default.
fn or_default<A, B: Default>(item: Option<A>, convert: impl Fn(A) -> Result<B>) -> Result<B> {
    item.map(convert).transpose().map(Option::unwrap_or_default)
}

fn str(text: String) -> Str {
    Str::new(&text)
}

fn strs(texts: Vec<String>) -> Vec<Str> {
    each(texts, str)
}

fn labels(pairs: Vec<wire::Pair>) -> Labels {
    pairs.into_iter().map(|pair| (pair.key, pair.value)).collect()
}

fn amounts(amounts: Vec<wire::Amount>) -> Result<ResourceList> {
    let amount = |amount: wire::Amount| {
        // Upstream writes the empty quantity as an empty text.
        let text = amount.value.unwrap_or_default().string;
        let quantity = match &*text {
            "" => Quantity::ZERO,
            text => Quantity::parse(text).map_err(|source| ProtoError::Quantity {
                resource: amount.key.to_string(),
                source,
            })?,
        };
        Ok((amount.key, quantity))
    };
    amounts.into_iter().map(amount).collect()
}

pub(super) fn time(time: Option<wire::Time>) -> Result<Option<Timestamp>> {
    let Some(seconds) = time.and_then(|time| time.seconds) else { return Ok(None) };
    match seconds.checked_mul(1_000_000_000) {
        Some(nanos) => Ok(Some(Timestamp(nanos))),
        None => Err(ProtoError::Time { seconds }),
    }
}

pub(super) fn metadata(meta: Option<wire::ObjectMeta>) -> Result<ObjectMeta> {
    or_default(meta, |meta| {
        Ok(ObjectMeta {
            name: meta.name.into(),
            namespace: str(meta.namespace),
            uid: meta.uid.into(),
            labels: labels(meta.labels),
            generation: meta.generation,
            creation_timestamp: time(meta.creation_timestamp)?,
            deletion_timestamp: time(meta.deletion_timestamp)?,
            owner_references: each(meta.owner_references, |owner| OwnerReference {
                api_version: owner.api_version,
                kind: owner.kind,
                name: owner.name,
                uid: owner.uid,
                controller: owner.controller,
            }),
        })
    })
}

pub(super) fn label_selector(selector: wire::LabelSelector) -> LabelSelector {
    LabelSelector {
        match_labels: labels(selector.match_labels),
        match_expressions: each(selector.match_expressions, requirement),
    }
}

fn requirement(requirement: wire::Requirement) -> Requirement {
    Requirement {
        key: str(requirement.key),
        operator: str(requirement.operator),
        values: strs(requirement.values),
    }
}

pub(super) fn node(node: wire::Node) -> Result<Node> {
    let spec = node.spec.unwrap_or_default();
    let taint = |taint: wire::Taint| Taint {
        key: str(taint.key),
        value: str(taint.value),
        effect: str(taint.effect),
    };
    let status = node.status.unwrap_or_default();
    let image = |image: wire::ContainerImage| ContainerImage {
        names: strs(image.names),
        size_bytes: image.size_bytes,
    };
    Ok(Node {
        metadata: metadata(node.metadata)?,
        spec: NodeSpec { unschedulable: spec.unschedulable, taints: each(spec.taints, taint) },
        status: NodeStatus {
            capacity: amounts(status.capacity)?,
            allocatable: amounts(status.allocatable)?,
            images: each(status.images, image),
            declared_features: strs(status.declared_features),
        },
        extra: None,
    })
}

pub(super) fn pod(pod: wire::Pod) -> Result<Pod> {
    Ok(Pod {
        metadata: metadata(pod.metadata)?,
        spec: or_default(pod.spec, pod_spec)?,
        status: pod_status(pod.status)?,
        extra: None,
    })
}

pub(super) fn pod_spec(spec: wire::PodSpec) -> Result<PodSpec> {
    let named = |item: wire::Named| NamedItem { name: str(item.name) };
    Ok(PodSpec::from(SharedPodSpec {
        node_name: str(spec.node_name),
        scheduler_name: str(spec.scheduler_name),
        priority: spec.priority,
        priority_class_name: str(spec.priority_class_name),
        preemption_policy: spec.preemption_policy.map(str),
        node_selector: labels(spec.node_selector),
        affinity: spec.affinity.map(|given| Box::new(affinity(given))),
        tolerations: each(spec.tolerations, toleration),
        topology_spread_constraints: each(spec.topology_spread_constraints, spread_constraint),
        init_containers: try_each(spec.init_containers, container)?,
        containers: try_each(spec.containers, container)?,
        overhead: amounts(spec.overhead)?,
        resources: spec.resources.map(resources).transpose()?,
        scheduling_gates: each(spec.scheduling_gates, named),
        volumes: each(spec.volumes, volume),
        resource_claims: each(spec.resource_claims, named),
        host_network: spec.host_network,
        host_users: spec.host_users,
    }))
}

fn container(container: wire::Container) -> Result<Container> {
    let restart_rule =
        |rule: wire::ContainerRestartRule| ContainerRestartRule { action: str(rule.action) };
    let port = |port: wire::ContainerPort| ContainerPort {
        container_port: port.container_port,
        host_port: port.host_port,
        host_ip: str(port.host_ip),
        protocol: str(port.protocol),
    };
    Ok(Container {
        name: str(container.name),
        image: str(container.image),
        resources: or_default(container.resources, resources)?,
        ports: each(container.ports, port),
        restart_policy: container.restart_policy.map(str),
        restart_policy_rules: each(container.restart_policy_rules, restart_rule),
    })
}

fn resources(given: wire::ResourceRequirements) -> Result<ContainerResources> {
    Ok(ContainerResources { limits: amounts(given.limits)?, requests: amounts(given.requests)? })
}

fn volume(volume: wire::Volume) -> Volume {
    let mut source = volume.source.unwrap_or_default();
    let claim = |claim: wire::ClaimSource| ClaimSource { claim_name: str(claim.claim_name) };
    let image = |image: wire::ImageSource| ImageSource { reference: str(image.reference) };
    Volume {
        name: str(volume.name),
        persistent_volume_claim: source.persistent_volume_claim.take().map(claim),
        ephemeral: source.ephemeral.take().map(|_| EphemeralSource {}),
        image: source.image.take().map(image),
        disk: disk(source).map(Box::new),
    }
}

/// The first of the disks, in the order in which JSON is searched.
fn disk(source: wire::VolumeSource) -> Option<DiskSource> {
    let id = |it: wire::VolumeId| VolumeId { volume_id: str(it.volume_id) };
    let gce = source.gce_persistent_disk.map(|it| {
        let disk = GcePersistentDisk { pd_name: str(it.pd_name), read_only: it.read_only };
        DiskSource::GcePersistentDisk(disk)
    });
    let ebs = source.aws_elastic_block_store.map(|it| DiskSource::AwsElasticBlockStore(id(it)));
    let azure_disk = source.azure_disk.map(|it| {
        DiskSource::AzureDisk(AzureDisk { disk_uri: str(it.disk_uri), kind: it.kind.map(str) })
    });
    let azure_file = source
        .azure_file
        .map(|it| DiskSource::AzureFile(AzureFile { share_name: str(it.share_name) }));
    let cinder = source.cinder.map(|it| DiskSource::Cinder(id(it)));
    let vsphere = source
        .vsphere_volume
        .map(|it| DiskSource::VsphereVolume(VsphereVolume { volume_path: str(it.volume_path) }));
    let portworx = source.portworx_volume.map(|it| DiskSource::PortworxVolume(id(it)));
    let iscsi = source
        .iscsi
        .map(|it| DiskSource::Iscsi(Iscsi { iqn: str(it.iqn), read_only: it.read_only }));
    let rbd = source.rbd.map(|it| {
        let (monitors, pool, image) = (strs(it.monitors), str(it.pool), str(it.image));
        DiskSource::Rbd(Rbd { monitors, pool, image, read_only: it.read_only })
    });
    let csi = source
        .csi
        .map(|it| DiskSource::Csi(Csi { driver: str(it.driver), volume_handle: Str::default() }));
    let disks = [gce, ebs, azure_disk, azure_file, cinder, vsphere, portworx, iscsi, rbd, csi];
    disks.into_iter().flatten().next()
}

fn toleration(toleration: wire::Toleration) -> Toleration {
    Toleration {
        key: toleration.key,
        operator: toleration.operator,
        value: toleration.value,
        effect: toleration.effect,
        toleration_seconds: toleration.toleration_seconds,
    }
}

fn affinity(affinity: wire::Affinity) -> Affinity {
    Affinity {
        node_affinity: affinity.node_affinity.map(|given| NodeAffinity {
            required: given.required.map(|given| NodeSelector {
                node_selector_terms: each(given.node_selector_terms, node_selector_term),
            }),
            preferred: each(given.preferred, |given| PreferredSchedulingTerm {
                weight: given.weight,
                preference: node_selector_term(given.preference.unwrap_or_default()),
            }),
        }),
        pod_affinity: affinity.pod_affinity.map(pod_affinity),
        pod_anti_affinity: affinity.pod_anti_affinity.map(pod_affinity),
    }
}

fn node_selector_term(term: wire::NodeSelectorTerm) -> NodeSelectorTerm {
    NodeSelectorTerm {
        match_expressions: each(term.match_expressions, requirement),
        match_fields: each(term.match_fields, requirement),
    }
}

fn pod_affinity(affinity: wire::PodAffinity) -> PodAffinity {
    PodAffinity {
        required: each(affinity.required, pod_affinity_term),
        preferred: each(affinity.preferred, |given| WeightedPodAffinityTerm {
            weight: given.weight,
            pod_affinity_term: pod_affinity_term(given.pod_affinity_term.unwrap_or_default()),
        }),
    }
}

fn pod_affinity_term(term: wire::PodAffinityTerm) -> PodAffinityTerm {
    PodAffinityTerm {
        label_selector: term.label_selector.map(label_selector),
        namespaces: strs(term.namespaces),
        topology_key: str(term.topology_key),
        namespace_selector: term.namespace_selector.map(label_selector),
        match_label_keys: strs(term.match_label_keys),
        mismatch_label_keys: strs(term.mismatch_label_keys),
    }
}

fn spread_constraint(constraint: wire::TopologySpreadConstraint) -> TopologySpreadConstraint {
    TopologySpreadConstraint {
        max_skew: constraint.max_skew,
        topology_key: str(constraint.topology_key),
        when_unsatisfiable: str(constraint.when_unsatisfiable),
        label_selector: constraint.label_selector.map(label_selector),
        min_domains: constraint.min_domains,
        node_affinity_policy: constraint.node_affinity_policy.map(str),
        node_taints_policy: constraint.node_taints_policy.map(str),
        match_label_keys: strs(constraint.match_label_keys),
    }
}

pub(super) fn pod_status(status: Option<wire::PodStatus>) -> Result<PodStatus> {
    let Some(status) = status else { return Ok(PodStatus::default()) };
    let condition = |condition: wire::PodCondition| -> Result<PodCondition> {
        Ok(PodCondition {
            kind: str(condition.kind),
            status: str(condition.status),
            reason: str(condition.reason),
            message: condition.message.into(),
            last_transition_time: time(condition.last_transition_time)?,
        })
    };
    Ok(PodStatus {
        phase: str(status.phase),
        nominated_node_name: str(status.nominated_node_name),
        start_time: time(status.start_time)?,
        conditions: try_each(status.conditions, condition)?,
        container_statuses: try_each(status.container_statuses, container_status)?,
        init_container_statuses: try_each(status.init_container_statuses, container_status)?,
        resources: status.resources.map(resources).transpose()?,
        allocated_resources: amounts(status.allocated_resources)?,
    })
}

fn container_status(status: wire::ContainerStatus) -> Result<ContainerStatus> {
    Ok(ContainerStatus {
        name: str(status.name),
        resources: status.resources.map(resources).transpose()?,
        allocated_resources: amounts(status.allocated_resources)?,
    })
}

pub(super) fn map_selector(spec: Option<wire::MapSelectorSpec>) -> MapSelectorSpec {
    MapSelectorSpec { selector: labels(spec.unwrap_or_default().selector) }
}

pub(super) fn replicas_spec(spec: Option<wire::ReplicasSpec>) -> Result<ReplicasSpec> {
    or_default(spec, |spec| {
        Ok(ReplicasSpec {
            replicas: spec.replicas,
            selector: spec.selector.map(label_selector),
            template: or_default(spec.template, |template| {
                Ok(PodTemplateSpec {
                    metadata: metadata(template.metadata)?,
                    spec: or_default(template.spec, pod_spec)?,
                })
            })?,
        })
    })
}

pub(super) fn disruption_budget(budget: wire::PodDisruptionBudget) -> Result<PodDisruptionBudget> {
    let status = budget.status.unwrap_or_default();
    let moment = |moment: wire::NamedTime| {
        let text = match moment.value.and_then(|time| time.seconds) {
            None => String::new(),
            Some(seconds) => match jiff::Timestamp::from_second(seconds) {
                Ok(time) => time.to_string(),
                Err(_) => return Err(ProtoError::Time { seconds }),
            },
        };
        Ok((moment.key, str(text)))
    };
    let spec = budget.spec.unwrap_or_default();
    Ok(PodDisruptionBudget {
        metadata: metadata(budget.metadata)?,
        spec: PodDisruptionBudgetSpec { selector: spec.selector.map(label_selector) },
        status: PodDisruptionBudgetStatus {
            disruptions_allowed: status.disruptions_allowed,
            disrupted_pods: status.disrupted_pods.into_iter().map(moment).collect::<Result<_>>()?,
        },
    })
}

pub(super) fn priority_class(class: wire::PriorityClass) -> Result<PriorityClass> {
    Ok(PriorityClass {
        metadata: metadata(class.metadata)?,
        value: class.value,
        global_default: class.global_default,
        preemption_policy: class.preemption_policy.map(str),
    })
}
