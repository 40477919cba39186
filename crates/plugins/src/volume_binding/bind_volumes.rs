//! Reserve, Unreserve and PreBind: assumes what Filter found on the selected node, writes it to the API server, and waits until the claims
//! are bound (upstream's `AssumePodVolumes`, `RevertAssumedPodVolumes` and `BindPodVolumes`).

use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::selector::CompiledNodeSelector;
use loadmaster_api::storage::{BOUND_BY_CONTROLLER, ClaimReference, SELECTED_NODE};
use loadmaster_api::{CsiNode, Node, PersistentVolume, PersistentVolumeClaim, Str};
use loadmaster_framework::api_calls::{ApiRequest, ObjectRef, PluginStep, PluginStepInput, Verb};
use loadmaster_framework::extension_points::PreBindPreFlight;
use loadmaster_framework::{
    Cx, Failure, MonoTime, NodeInfo, PodInfo, PreBind, Rejection, Reserve, SerialCx,
};
use serde_json::{Value, json};

use super::VolumeBinding;
use super::node_volumes::NodeVolumes;
use crate::csi_migration::{migrated_plugin, translated_node_affinity};

/// How often the conditions of a binding are checked when nothing is reported (upstream's poll interval). The times are multiples of it, so
/// that pods that wait are checked together: thousands of timers of their own would wake the engine all the time.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// What Filter found on a node, of claims by their index in [`super::PodState::delayed`].
#[derive(Clone, Debug)]
pub(super) struct PodVolumes {
    /// Volumes to bind, with their claims.
    bindings: Vec<(usize, Str)>,
    /// Claims to provision a volume for.
    provisions: Vec<usize>,
}

impl PodVolumes {
    pub fn new(found: NodeVolumes) -> PodVolumes {
        let bindings = found.bindings.into_iter();
        PodVolumes {
            bindings: bindings.map(|(at, volume)| (at, volume.name.clone())).collect(),
            provisions: found.provisions.into_iter().map(|(at, _)| at).collect(),
        }
    }
}

/// How far the binding of a pod's volumes is.
#[derive(Clone, Debug, Default)]
pub(super) struct BindingState {
    /// Volumes first, as upstream.
    updates: Vec<Update>,
    /// Number of updates that were made.
    n_made: usize,
    /// When the wait for the claims ends.
    deadline: Option<MonoTime>,
}

/// An object to update.
#[derive(Clone, Debug)]
struct Update {
    target: Target,
    /// The object; `None` if it is already as it should be, and too old to be stored.
    object: Option<Arc<str>>,
    /// The version before the update, then the one after it.
    resource_version: Box<str>,
}

#[derive(Clone, Debug)]
enum Target {
    /// The volume is bound to the claim.
    Volume {
        volume: Str,
        claim: Str,
        /// The claim reference to write, unless the volume has it.
        reference: Option<Value>,
        /// Whether to write that the user did not bind the volume.
        mark: bool,
    },
    /// A volume is to be provisioned for the claim.
    Claim { claim: Str },
}

impl Reserve for VolumeBinding {
    fn reserve(
        &self,
        mut cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        let Some(state) = cx.cycle.get(self.pod) else { return Ok(()) };
        let Some(volumes) = cx.cycle.get_for_selected_node(self.volumes) else { return Ok(()) };
        let (delayed, volumes) = (state.delayed.clone(), volumes.clone());
        let mut updates = Vec::with_capacity(volumes.bindings.len() + volumes.provisions.len());
        for (at, volume) in &volumes.bindings {
            updates.push(self.assume_volume(&mut cx, pod, &delayed[*at], volume)?);
        }
        for at in &volumes.provisions {
            let selected_node = Str::new(node.name());
            updates.push(self.assume_claim(&mut cx, pod, &delayed[*at], selected_node)?);
        }
        cx.invalidate_keys(&pod.template.namespace);
        if let Some(state) = cx.cycle.get_mut(self.pod) {
            state.binding = BindingState { updates, ..BindingState::default() };
        }
        Ok(())
    }

    /// What was written to the API server stays assumed until it is reported.
    fn unreserve(&self, mut cx: SerialCx<'_>, pod: &Arc<PodInfo>, _: &str) {
        let Some(state) = cx.cycle.get_mut(self.pod) else { return };
        let binding = std::mem::take(&mut state.binding);
        for update in binding.updates.into_iter().skip(binding.n_made) {
            self.restore(&mut cx, pod, &update);
        }
        cx.invalidate_keys(&pod.template.namespace);
    }
}

impl VolumeBinding {
    /// Upstream's `GetBindVolumeToClaim`, and `Assume`.
    fn assume_volume(
        &self,
        cx: &mut SerialCx<'_>,
        pod: &PodInfo,
        claim: &Str,
        volume: &Str,
    ) -> Result<Update, Failure> {
        let slots = &self.slots;
        let claims = cx.world.watched_objects().lister(&slots.claims.claims);
        let volumes = cx.world.watched_objects().lister(&slots.claims.volumes);
        let claim = claims.get(&pod.template.namespace, claim).ok_or_else(|| is_gone(claim))?;
        let known = volumes.get("", volume).ok_or_else(|| is_gone(volume))?;
        let cache = cx.states.get_mut(self.cache).ok_or_else(|| is_gone(volume))?;
        // What the API server has, not what is assumed for another pod with this claim, whose update may not be made.
        let (meta, own) = (&claim.metadata, known.spec.claim_ref.as_deref());
        let is_same_name =
            |it: &&ClaimReference| it.namespace == meta.namespace && it.name == meta.name;
        let own = own.filter(is_same_name);
        let is_bound = own.is_some_and(|it| it.uid.is_empty() || it.uid == meta.uid);
        let has_reference = own.is_some_and(|it| it.uid == meta.uid);
        let mark = !is_bound && !known.metadata.annotations.contains_key(BOUND_BY_CONTROLLER);
        let reference = (!has_reference).then(|| claim_reference(claim));
        let object = cx.world.watched_objects().lister(&slots.unbound_volumes).get("", volume);
        let object = object.and_then(|object| object.json().cloned());
        if mark || reference.is_some() {
            if object.is_none() {
                return Err(Failure::new(format!("persistentvolume {volume:?} is bound already")));
            }
            let (namespace, name) = (meta.namespace.clone(), meta.name.clone());
            let assumed = ClaimReference { namespace, name, uid: meta.uid.clone() };
            let concerned = cache.assume_volume(known, assumed);
            self.announce(cx, concerned);
        }
        let (volume, claim) = (volume.clone(), meta.name.clone());
        let target = Target::Volume { volume, claim, reference, mark };
        let resource_version = known.metadata.resource_version.clone();
        Ok(Update { target, object, resource_version })
    }

    fn assume_claim(
        &self,
        cx: &mut SerialCx<'_>,
        pod: &PodInfo,
        claim: &Str,
        selected_node: Str,
    ) -> Result<Update, Failure> {
        let (objects, namespace) = (cx.world.watched_objects(), &pod.template.namespace);
        let known = objects.lister(&self.slots.claims.claims).get(namespace, claim);
        let known = known.ok_or_else(|| is_gone(claim))?;
        let object = objects.lister(&self.slots.unbound_claims).get(namespace, claim);
        let object = object.and_then(|object| object.json().cloned());
        let object = object.ok_or_else(|| {
            Failure::new(format!("persistentvolumeclaim {claim:?} is bound already"))
        })?;
        if let Some(cache) = cx.states.get_mut(self.cache) {
            cache.assume_claim(known, selected_node);
        }
        let resource_version = known.metadata.resource_version.clone();
        let target = Target::Claim { claim: claim.clone() };
        Ok(Update { target, object: Some(object), resource_version })
    }

    fn restore(&self, cx: &mut SerialCx<'_>, pod: &PodInfo, update: &Update) {
        let Some(cache) = cx.states.get_mut(self.cache) else { return };
        match &update.target {
            Target::Claim { claim } => {
                let id = (pod.template.namespace.clone(), claim.clone());
                cache.restore_claim(&id, &update.resource_version);
            }
            Target::Volume { volume, .. } => {
                let volumes = cx.world.watched_objects().lister(&self.slots.claims.volumes);
                let known = volumes.get("", volume);
                let is_same = |it: &&PersistentVolume| {
                    it.metadata.resource_version == update.resource_version
                };
                let concerned = known.filter(is_same).and_then(|it| cache.restore_volume(it));
                self.announce(cx, concerned);
            }
        }
    }
}

/// An object that PreFilter found no longer exists: the engine keeps the world constant in a scheduling cycle.
fn is_gone(name: &Str) -> Failure {
    Failure::new(format!("{name:?} was deleted in the scheduling cycle"))
}

/// Upstream's `GetReference`.
fn claim_reference(claim: &PersistentVolumeClaim) -> Value {
    let meta = &claim.metadata;
    let mut reference = json!({"kind": "PersistentVolumeClaim", "apiVersion": "v1",
        "namespace": meta.namespace, "name": meta.name});
    for (field, value) in [("uid", &meta.uid), ("resourceVersion", &meta.resource_version)] {
        if !value.is_empty() {
            reference[field] = json!(value);
        }
    }
    reference
}

impl Update {
    /// The request, unless there is nothing to write.
    fn request(&self, pod: &PodInfo) -> Result<Option<ApiRequest>, Failure> {
        let Some(object) = &self.object else { return Ok(None) };
        let mut object: Value = serde_json::from_str(object)
            .map_err(|error| Failure::new(format!("reading the object to update: {error}")))?;
        let (resource, namespace, name) = match &self.target {
            Target::Volume { volume, reference, mark, .. } => {
                if let Some(reference) = reference {
                    object["spec"]["claimRef"] = reference.clone();
                }
                if *mark {
                    object["metadata"]["annotations"][BOUND_BY_CONTROLLER] = "yes".into();
                }
                ("persistentvolumes", Str::default(), volume)
            }
            Target::Claim { claim } => {
                object["metadata"]["annotations"][SELECTED_NODE] = pod.node_name.as_str().into();
                ("persistentvolumeclaims", pod.template.namespace.clone(), claim)
            }
        };
        Ok(Some(ApiRequest {
            verb: Verb::Update,
            group: Str::default(),
            version: Str::new("v1"),
            resource: Str::new(resource),
            namespace,
            name: name.clone(),
            subresource: Str::default(),
            body: Some(object),
        }))
    }
}

impl PreBind for VolumeBinding {
    fn pre_flight(&self, cx: Cx<'_>, _: &PodInfo, _: &str) -> Result<PreBindPreFlight, Rejection> {
        let has_updates = |state: &super::PodState| !state.binding.updates.is_empty();
        Ok(match cx.cycle.get(self.pod).is_some_and(has_updates) {
            true => PreBindPreFlight::Work { parallel: true },
            false => PreBindPreFlight::Skip,
        })
    }

    fn pre_bind(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: &str,
        input: PluginStepInput<'_>,
    ) -> PluginStep<()> {
        let now = cx.now().mono;
        let (world, Some(state)) = (cx.world, cx.cycle.get_mut(self.pod)) else {
            return PluginStep::Done(());
        };
        let binding = &mut state.binding;
        match input {
            PluginStepInput::Reply(Ok(object)) => binding.on_updated(object),
            PluginStepInput::Reply(Err((_, message))) => {
                return PluginStep::Fail(Failure::new(message.to_owned()).into());
            }
            PluginStepInput::Cancelled => return PluginStep::Done(()),
            _ => {}
        }
        match binding.next_request(pod) {
            Ok(Some(request)) => return PluginStep::Call(request),
            Ok(None) => {}
            Err(failure) => return PluginStep::Fail(failure.into()),
        }
        let failed = |text: String| {
            PluginStep::Fail(Failure::new(format!("binding volumes: {text}")).into())
        };
        let deadline = *binding.deadline.get_or_insert_with(|| now.after(self.bind_timeout));
        if now >= deadline {
            return failed("context deadline exceeded".to_owned());
        }
        let check = BindingCheck { plugin: self, world, pod };
        match check.are_bound(&binding.updates) {
            Ok(true) => PluginStep::Done(()),
            Ok(false) => PluginStep::Wait {
                on: check.objects(&binding.updates),
                until: deadline.min(now.floor(POLL_INTERVAL).after(POLL_INTERVAL)),
            },
            Err(text) => failed(text),
        }
    }
}

impl BindingState {
    fn on_updated(&mut self, object: &Value) {
        if let Some(update) = self.updates.get_mut(self.n_made) {
            let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            update.resource_version = version.into();
            self.n_made += 1;
        }
    }

    /// The next request; `None` when all updates were made.
    fn next_request(&mut self, pod: &PodInfo) -> Result<Option<ApiRequest>, Failure> {
        while let Some(update) = self.updates.get(self.n_made) {
            let request = update.request(pod)?;
            if request.is_some() {
                return Ok(request);
            }
            self.n_made += 1;
        }
        Ok(None)
    }
}

/// Checks whether a pod's claims are bound (upstream's `checkBindings`), on the objects as the API server has them.
struct BindingCheck<'a> {
    plugin: &'a VolumeBinding,
    world: &'a loadmaster_framework::World,
    pod: &'a PodInfo,
}

impl<'a> BindingCheck<'a> {
    fn volume(&self, name: &str) -> Option<&'a PersistentVolume> {
        self.world.watched_objects().lister(&self.plugin.slots.claims.volumes).get("", name)
    }

    fn claim(&self, name: &str) -> Option<&'a PersistentVolumeClaim> {
        let claims = self.world.watched_objects().lister(&self.plugin.slots.claims.claims);
        claims.get(&self.pod.template.namespace, name)
    }

    fn claim_not_found(&self, name: &str) -> String {
        format!("persistentvolumeclaims \"{}/{name}\" not found", self.pod.template.namespace)
    }

    /// Whether all claims are bound.
    ///
    /// # Errors
    ///
    /// Upstream's text if the pod must be scheduled again.
    fn are_bound(&self, updates: &[Update]) -> Result<bool, String> {
        let name = &self.pod.node_name;
        let nodes = self.world.nodes();
        let node = nodes.row(name).and_then(|row| nodes.node(row));
        let node =
            node.ok_or_else(|| format!("failed to get node {name:?}: node {name:?} not found"))?;
        let csi_nodes = self.world.watched_objects().lister(&self.plugin.slots.csi_nodes);
        let csi_node = csi_nodes.get("", name);
        for Update { target, resource_version, .. } in updates {
            let is_bound = match target {
                Target::Volume { volume, claim, .. } => {
                    self.is_volume_bound(volume, claim, resource_version, node, csi_node)?
                }
                Target::Claim { claim } => {
                    self.is_provisioned(claim, resource_version, node, csi_node)?
                }
            };
            if !is_bound {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_volume_bound(
        &self,
        volume: &str,
        claim: &str,
        written: &str,
        node: &Node,
        csi_node: Option<&CsiNode>,
    ) -> Result<bool, String> {
        let failed = |why: String| format!("failed to check binding: {why}");
        let known = self
            .volume(volume)
            .ok_or_else(|| failed(format!("persistentvolumes {volume:?} not found")))?;
        let claim = self.claim(claim).ok_or_else(|| failed(self.claim_not_found(claim)))?;
        if is_older(&known.metadata.resource_version, written) {
            return Ok(false);
        }
        let affinity = node_affinity(known, csi_node)
            .map_err(|error| format!("failed to translate pv to csi: {error}"))?;
        check_node_affinity(affinity, volume, node)?;
        let reference = known.spec.claim_ref.as_deref();
        if reference.is_none_or(|reference| reference.uid.is_empty()) {
            return Err(format!("ClaimRef got reset for pv {volume:?}"));
        }
        // Upstream does not see that the claim was bound to another volume, and binds the pod even if its node cannot access that one.
        match claim.spec.volume_name == volume {
            true => Ok(claim.is_fully_bound()),
            false => self.is_bound_to_accessible_volume(claim, node, csi_node),
        }
    }

    fn is_provisioned(
        &self,
        claim: &str,
        written: &str,
        node: &Node,
        csi_node: Option<&CsiNode>,
    ) -> Result<bool, String> {
        let known = self.claim(claim).ok_or_else(|| {
            format!("failed to check provisioning pvc: {}", self.claim_not_found(claim))
        })?;
        if is_older(&known.metadata.resource_version, written) {
            return Ok(false);
        }
        if known.metadata.annotations.is_empty() {
            return Err(format!("selectedNode annotation reset for PVC {claim:?}"));
        }
        // The provisioner removes the annotation to have the pod scheduled again.
        if known.metadata.annotations.get(SELECTED_NODE) != Some(&self.pod.node_name) {
            return Err(format!("provisioning failed for PVC {claim:?}"));
        }
        self.is_bound_to_accessible_volume(known, node, csi_node)
    }

    fn is_bound_to_accessible_volume(
        &self,
        claim: &PersistentVolumeClaim,
        node: &Node,
        csi_node: Option<&CsiNode>,
    ) -> Result<bool, String> {
        let name = &claim.spec.volume_name;
        if !name.is_empty() {
            // The volume may be reported later than the claim.
            let Some(volume) = self.volume(name) else { return Ok(false) };
            check_node_affinity(node_affinity(volume, csi_node)?, name, node)?;
        }
        Ok(claim.is_fully_bound())
    }

    /// The objects that the result depends on.
    fn objects(&self, updates: &[Update]) -> Vec<ObjectRef> {
        let object = |resource: &str, namespace: &Str, name: &Str| ObjectRef {
            group: Str::default(),
            resource: Str::new(resource),
            namespace: namespace.clone(),
            name: name.clone(),
        };
        let volume = |name: &Str| object("persistentvolumes", &Str::default(), name);
        let mut all = Vec::with_capacity(2 * updates.len());
        for Update { target, .. } in updates {
            let claim = match target {
                Target::Volume { volume: name, claim, .. } => {
                    all.push(volume(name));
                    claim
                }
                Target::Claim { claim } => {
                    let name = self.claim(claim).map(|claim| &claim.spec.volume_name);
                    all.extend(name.filter(|name| !name.is_empty()).map(volume));
                    claim
                }
            };
            all.push(object("persistentvolumeclaims", &self.pod.template.namespace, claim));
        }
        all
    }
}

/// Whether an object is older than what was written. Versions that are no numbers are never older.
fn is_older(known: &str, written: &str) -> bool {
    let versions = known.parse::<u64>().ok().zip(written.parse::<u64>().ok());
    versions.is_some_and(|(known, written)| known < written)
}

/// The volume's required node affinity on this node: the translated one if a CSI driver serves it there.
fn node_affinity(
    volume: &PersistentVolume,
    csi_node: Option<&CsiNode>,
) -> Result<Option<CompiledNodeSelector>, String> {
    let plugin = volume.spec.disk.as_deref().and_then(migrated_plugin);
    let is_migrated =
        plugin.is_some_and(|plugin| csi_node.is_some_and(|node| node.is_migrated(plugin)));
    if is_migrated {
        let translated = translated_node_affinity(volume);
        let translated = translated.map_err(|error| format!("could not translate pv: {error}"))?;
        return Ok(translated.as_ref().map(CompiledNodeSelector::new));
    }
    Ok(volume.spec.required_node_affinity.as_deref().map(CompiledNodeSelector::new))
}

fn check_node_affinity(
    affinity: Option<CompiledNodeSelector>,
    volume: &str,
    node: &Node,
) -> Result<(), String> {
    let Some(affinity) = affinity else { return Ok(()) };
    let why = match affinity.matches(&node.metadata.labels, "") {
        Ok(true) => return Ok(()),
        Ok(false) => "no matching NodeSelectorTerms".to_owned(),
        Err(error) => error.to_string(),
    };
    let node = node.name();
    Err(format!("pv {volume:?} node affinity doesn't match node {node:?}: {why}"))
}
