//! The messages as they go over the wire: upstream's field numbers, of which only those are named that a lean
//! type holds; prost passes over the others.
//!
//! Upstream writes in proto2 with optional fields. Where absent and default mean different things here, the
//! field is an `Option`, too. Maps are lists of entries: that is their form on the wire, and it saves a tree.

use prost::Message;

pub(super) use super::text_messages::{Amount, NamedTime, OwnerReference, Pair, Toleration};

#[derive(Clone, PartialEq, Message)]
pub(super) struct Quantity {
    #[prost(string, tag = "1")]
    pub(super) string: String,
}

/// Without seconds this is Go's zero time, which JSON writes as null.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Time {
    #[prost(int64, optional, tag = "1")]
    pub(super) seconds: Option<i64>,
}

// apimachinery: meta/v1

#[derive(Clone, PartialEq, Message)]
pub(super) struct ObjectMeta {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "3")]
    pub(super) namespace: String,
    #[prost(string, tag = "5")]
    pub(super) uid: String,
    #[prost(int64, tag = "7")]
    pub(super) generation: i64,
    #[prost(message, optional, tag = "8")]
    pub(super) creation_timestamp: Option<Time>,
    #[prost(message, optional, tag = "9")]
    pub(super) deletion_timestamp: Option<Time>,
    #[prost(message, repeated, tag = "11")]
    pub(super) labels: Vec<Pair>,
    #[prost(message, repeated, tag = "13")]
    pub(super) owner_references: Vec<OwnerReference>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LabelSelector {
    #[prost(message, repeated, tag = "1")]
    pub(super) match_labels: Vec<Pair>,
    #[prost(message, repeated, tag = "2")]
    pub(super) match_expressions: Vec<Requirement>,
}

/// LabelSelectorRequirement and NodeSelectorRequirement, which have the same form.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Requirement {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) operator: String,
    #[prost(string, repeated, tag = "3")]
    pub(super) values: Vec<String>,
}

// core/v1: Node

#[derive(Clone, PartialEq, Message)]
pub(super) struct Node {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    pub(super) spec: Option<NodeSpec>,
    #[prost(message, optional, tag = "3")]
    pub(super) status: Option<NodeStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeSpec {
    #[prost(bool, tag = "4")]
    pub(super) unschedulable: bool,
    #[prost(message, repeated, tag = "5")]
    pub(super) taints: Vec<Taint>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Taint {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
    #[prost(string, tag = "3")]
    pub(super) effect: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeStatus {
    #[prost(message, repeated, tag = "1")]
    pub(super) capacity: Vec<Amount>,
    #[prost(message, repeated, tag = "2")]
    pub(super) allocatable: Vec<Amount>,
    #[prost(message, repeated, tag = "8")]
    pub(super) images: Vec<ContainerImage>,
    #[prost(string, repeated, tag = "14")]
    pub(super) declared_features: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerImage {
    #[prost(string, repeated, tag = "1")]
    pub(super) names: Vec<String>,
    #[prost(int64, tag = "2")]
    pub(super) size_bytes: i64,
}

// core/v1: Pod

#[derive(Clone, PartialEq, Message)]
pub(super) struct Pod {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    pub(super) spec: Option<PodSpec>,
    #[prost(message, optional, tag = "3")]
    pub(super) status: Option<PodStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodSpec {
    #[prost(message, repeated, tag = "1")]
    pub(super) volumes: Vec<Volume>,
    #[prost(message, repeated, tag = "2")]
    pub(super) containers: Vec<Container>,
    #[prost(message, repeated, tag = "7")]
    pub(super) node_selector: Vec<Pair>,
    #[prost(string, tag = "10")]
    pub(super) node_name: String,
    #[prost(bool, tag = "11")]
    pub(super) host_network: bool,
    #[prost(message, optional, tag = "18")]
    pub(super) affinity: Option<Affinity>,
    #[prost(string, tag = "19")]
    pub(super) scheduler_name: String,
    #[prost(message, repeated, tag = "20")]
    pub(super) init_containers: Vec<Container>,
    #[prost(message, repeated, tag = "22")]
    pub(super) tolerations: Vec<Toleration>,
    #[prost(string, tag = "24")]
    pub(super) priority_class_name: String,
    #[prost(int32, optional, tag = "25")]
    pub(super) priority: Option<i32>,
    #[prost(string, optional, tag = "31")]
    pub(super) preemption_policy: Option<String>,
    #[prost(message, repeated, tag = "32")]
    pub(super) overhead: Vec<Amount>,
    #[prost(message, repeated, tag = "33")]
    pub(super) topology_spread_constraints: Vec<TopologySpreadConstraint>,
    #[prost(bool, optional, tag = "37")]
    pub(super) host_users: Option<bool>,
    #[prost(message, repeated, tag = "38")]
    pub(super) scheduling_gates: Vec<Named>,
    #[prost(message, repeated, tag = "39")]
    pub(super) resource_claims: Vec<Named>,
    #[prost(message, optional, tag = "40")]
    pub(super) resources: Option<ResourceRequirements>,
}

/// PodSchedulingGate and PodResourceClaim.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Named {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Container {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) image: String,
    #[prost(message, repeated, tag = "6")]
    pub(super) ports: Vec<ContainerPort>,
    #[prost(message, optional, tag = "8")]
    pub(super) resources: Option<ResourceRequirements>,
    #[prost(string, optional, tag = "24")]
    pub(super) restart_policy: Option<String>,
    #[prost(message, repeated, tag = "25")]
    pub(super) restart_policy_rules: Vec<ContainerRestartRule>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerRestartRule {
    #[prost(string, tag = "1")]
    pub(super) action: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceRequirements {
    #[prost(message, repeated, tag = "1")]
    pub(super) limits: Vec<Amount>,
    #[prost(message, repeated, tag = "2")]
    pub(super) requests: Vec<Amount>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerPort {
    #[prost(int32, tag = "2")]
    pub(super) host_port: i32,
    #[prost(int32, tag = "3")]
    pub(super) container_port: i32,
    #[prost(string, tag = "4")]
    pub(super) protocol: String,
    #[prost(string, tag = "5")]
    pub(super) host_ip: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Volume {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    pub(super) source: Option<VolumeSource>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct VolumeSource {
    #[prost(message, optional, tag = "3")]
    pub(super) gce_persistent_disk: Option<GcePersistentDisk>,
    #[prost(message, optional, tag = "4")]
    pub(super) aws_elastic_block_store: Option<VolumeId>,
    #[prost(message, optional, tag = "8")]
    pub(super) iscsi: Option<Iscsi>,
    #[prost(message, optional, tag = "10")]
    pub(super) persistent_volume_claim: Option<ClaimSource>,
    #[prost(message, optional, tag = "11")]
    pub(super) rbd: Option<Rbd>,
    #[prost(message, optional, tag = "13")]
    pub(super) cinder: Option<VolumeId>,
    #[prost(message, optional, tag = "18")]
    pub(super) azure_file: Option<AzureFile>,
    #[prost(message, optional, tag = "20")]
    pub(super) vsphere_volume: Option<VsphereVolume>,
    #[prost(message, optional, tag = "22")]
    pub(super) azure_disk: Option<AzureDisk>,
    #[prost(message, optional, tag = "24")]
    pub(super) portworx_volume: Option<VolumeId>,
    #[prost(message, optional, tag = "28")]
    pub(super) csi: Option<Csi>,
    #[prost(message, optional, tag = "29")]
    pub(super) ephemeral: Option<EphemeralSource>,
    #[prost(message, optional, tag = "30")]
    pub(super) image: Option<ImageSource>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GcePersistentDisk {
    #[prost(string, tag = "1")]
    pub(super) pd_name: String,
    #[prost(bool, tag = "4")]
    pub(super) read_only: bool,
}

/// AWS EBS, Cinder, Portworx.
#[derive(Clone, PartialEq, Message)]
pub(super) struct VolumeId {
    #[prost(string, tag = "1")]
    pub(super) volume_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Iscsi {
    #[prost(string, tag = "2")]
    pub(super) iqn: String,
    #[prost(bool, tag = "6")]
    pub(super) read_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Rbd {
    #[prost(string, repeated, tag = "1")]
    pub(super) monitors: Vec<String>,
    #[prost(string, tag = "2")]
    pub(super) image: String,
    #[prost(string, tag = "4")]
    pub(super) pool: String,
    #[prost(bool, tag = "8")]
    pub(super) read_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AzureFile {
    #[prost(string, tag = "2")]
    pub(super) share_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct VsphereVolume {
    #[prost(string, tag = "1")]
    pub(super) volume_path: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AzureDisk {
    #[prost(string, tag = "2")]
    pub(super) disk_uri: String,
    #[prost(string, optional, tag = "6")]
    pub(super) kind: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Csi {
    #[prost(string, tag = "1")]
    pub(super) driver: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ClaimSource {
    #[prost(string, tag = "1")]
    pub(super) claim_name: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct EphemeralSource {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ImageSource {
    #[prost(string, tag = "1")]
    pub(super) reference: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Affinity {
    #[prost(message, optional, tag = "1")]
    pub(super) node_affinity: Option<NodeAffinity>,
    #[prost(message, optional, tag = "2")]
    pub(super) pod_affinity: Option<PodAffinity>,
    #[prost(message, optional, tag = "3")]
    pub(super) pod_anti_affinity: Option<PodAffinity>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeAffinity {
    #[prost(message, optional, tag = "1")]
    pub(super) required: Option<NodeSelector>,
    #[prost(message, repeated, tag = "2")]
    pub(super) preferred: Vec<PreferredSchedulingTerm>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PreferredSchedulingTerm {
    #[prost(int32, tag = "1")]
    pub(super) weight: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) preference: Option<NodeSelectorTerm>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeSelector {
    #[prost(message, repeated, tag = "1")]
    pub(super) node_selector_terms: Vec<NodeSelectorTerm>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeSelectorTerm {
    #[prost(message, repeated, tag = "1")]
    pub(super) match_expressions: Vec<Requirement>,
    #[prost(message, repeated, tag = "2")]
    pub(super) match_fields: Vec<Requirement>,
}

/// PodAffinity and PodAntiAffinity.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PodAffinity {
    #[prost(message, repeated, tag = "1")]
    pub(super) required: Vec<PodAffinityTerm>,
    #[prost(message, repeated, tag = "2")]
    pub(super) preferred: Vec<WeightedPodAffinityTerm>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WeightedPodAffinityTerm {
    #[prost(int32, tag = "1")]
    pub(super) weight: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) pod_affinity_term: Option<PodAffinityTerm>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodAffinityTerm {
    #[prost(message, optional, tag = "1")]
    pub(super) label_selector: Option<LabelSelector>,
    #[prost(string, repeated, tag = "2")]
    pub(super) namespaces: Vec<String>,
    #[prost(string, tag = "3")]
    pub(super) topology_key: String,
    #[prost(message, optional, tag = "4")]
    pub(super) namespace_selector: Option<LabelSelector>,
    #[prost(string, repeated, tag = "5")]
    pub(super) match_label_keys: Vec<String>,
    #[prost(string, repeated, tag = "6")]
    pub(super) mismatch_label_keys: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TopologySpreadConstraint {
    #[prost(int32, tag = "1")]
    pub(super) max_skew: i32,
    #[prost(string, tag = "2")]
    pub(super) topology_key: String,
    #[prost(string, tag = "3")]
    pub(super) when_unsatisfiable: String,
    #[prost(message, optional, tag = "4")]
    pub(super) label_selector: Option<LabelSelector>,
    #[prost(int32, optional, tag = "5")]
    pub(super) min_domains: Option<i32>,
    #[prost(string, optional, tag = "6")]
    pub(super) node_affinity_policy: Option<String>,
    #[prost(string, optional, tag = "7")]
    pub(super) node_taints_policy: Option<String>,
    #[prost(string, repeated, tag = "8")]
    pub(super) match_label_keys: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodStatus {
    #[prost(string, tag = "1")]
    pub(super) phase: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) conditions: Vec<PodCondition>,
    #[prost(message, optional, tag = "7")]
    pub(super) start_time: Option<Time>,
    #[prost(message, repeated, tag = "8")]
    pub(super) container_statuses: Vec<ContainerStatus>,
    #[prost(message, repeated, tag = "10")]
    pub(super) init_container_statuses: Vec<ContainerStatus>,
    #[prost(string, tag = "11")]
    pub(super) nominated_node_name: String,
    #[prost(message, repeated, tag = "19")]
    pub(super) allocated_resources: Vec<Amount>,
    #[prost(message, optional, tag = "20")]
    pub(super) resources: Option<ResourceRequirements>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodCondition {
    #[prost(string, tag = "1")]
    pub(super) kind: String,
    #[prost(string, tag = "2")]
    pub(super) status: String,
    #[prost(message, optional, tag = "4")]
    pub(super) last_transition_time: Option<Time>,
    #[prost(string, tag = "5")]
    pub(super) reason: String,
    #[prost(string, tag = "6")]
    pub(super) message: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerStatus {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, repeated, tag = "10")]
    pub(super) allocated_resources: Vec<Amount>,
    #[prost(message, optional, tag = "11")]
    pub(super) resources: Option<ResourceRequirements>,
}

// The kinds around pods

#[derive(Clone, PartialEq, Message)]
pub(super) struct Namespace {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ObjectMeta>,
}

/// Service and ReplicationController.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ObjectWithMapSelector {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    pub(super) spec: Option<MapSelectorSpec>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MapSelectorSpec {
    #[prost(message, repeated, tag = "2")]
    pub(super) selector: Vec<Pair>,
}

/// ReplicaSet, StatefulSet and Deployment.
#[derive(Clone, PartialEq, Message)]
pub(super) struct WorkloadWithReplicas {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    pub(super) spec: Option<ReplicasSpec>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ReplicasSpec {
    #[prost(int32, optional, tag = "1")]
    pub(super) replicas: Option<i32>,
    #[prost(message, optional, tag = "2")]
    pub(super) selector: Option<LabelSelector>,
    #[prost(message, optional, tag = "3")]
    pub(super) template: Option<PodTemplateSpec>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodTemplateSpec {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    pub(super) spec: Option<PodSpec>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodDisruptionBudget {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    pub(super) spec: Option<PodDisruptionBudgetSpec>,
    #[prost(message, optional, tag = "3")]
    pub(super) status: Option<PodDisruptionBudgetStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodDisruptionBudgetSpec {
    #[prost(message, optional, tag = "2")]
    pub(super) selector: Option<LabelSelector>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodDisruptionBudgetStatus {
    #[prost(message, repeated, tag = "2")]
    pub(super) disrupted_pods: Vec<NamedTime>,
    #[prost(int32, tag = "3")]
    pub(super) disruptions_allowed: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PriorityClass {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ObjectMeta>,
    #[prost(int32, tag = "2")]
    pub(super) value: i32,
    #[prost(bool, tag = "3")]
    pub(super) global_default: bool,
    #[prost(string, optional, tag = "5")]
    pub(super) preemption_policy: Option<String>,
}
