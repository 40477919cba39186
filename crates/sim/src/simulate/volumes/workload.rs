//! Users and administrators: the claims of pods, static volumes, classes, limits and capacities.

use loadmaster_api::pod::{ClaimSource, EphemeralSource, Volume};
use loadmaster_api::{Pod, Str};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::controllers::{VolumeControllers, csi_node, request_deletion, set_claim_ref};
use super::{
    BOUND_BY_CONTROLLER, DRIVER, NO_PROVISIONER, RESERVED_BY_USER, SELECTED_NODE, Storage,
    VolumeKind, ZONE, ZONES, annotate, annotation, claim_ref, gi, is_for, is_terminating, size,
    text,
};
use crate::fake_api_server::FakeApiServer;

/// Bound with their first consumer: provisioned; static; both.
const WAIT: &str = "wait";
const LOCAL: &str = "local";
const MIXED: &str = "mixed";
/// Bound immediately: provisioned; static.
const NOW: &str = "now";
const NET: &str = "net";

const CLASSES: [(&str, &str, &str); 5] = [
    (WAIT, DRIVER, "WaitForFirstConsumer"),
    (LOCAL, NO_PROVISIONER, "WaitForFirstConsumer"),
    (MIXED, DRIVER, "WaitForFirstConsumer"),
    (NOW, DRIVER, "Immediate"),
    (NET, NO_PROVISIONER, "Immediate"),
];

/// The classes of claims, the more frequent ones repeated.
const CLASSES_OF_CLAIMS: [&str; 8] = [WAIT, WAIT, LOCAL, LOCAL, MIXED, MIXED, NOW, NET];

const N_VOLUMES_MAX: usize = 30;
/// A template has at most so many claims of its own; then they are used again.
const N_OWN_CLAIMS_MAX: usize = 10;

/// The volumes of the pods of a template.
#[derive(Clone, Debug)]
enum TemplateVolumes {
    None,
    /// Each pod has claims of its own, as the pods of a StatefulSet: the first that no pod uses.
    Own(Vec<OwnClaim>),
    /// All pods share claims.
    Shared(Vec<SharedClaim>),
    /// An ephemeral volume of this class.
    Ephemeral(&'static str),
}

#[derive(Clone, Debug)]
struct OwnClaim {
    class: &'static str,
    size: i64,
}

/// A claim that several templates may use.
#[derive(Clone, Debug)]
struct SharedClaim {
    name: String,
    class: &'static str,
    mode: &'static str,
}

pub(in crate::simulate) struct VolumeWorkload {
    rng: Rng,
    /// By pod template.
    templates: Vec<TemplateVolumes>,
    /// Claims that are created later than their pods.
    late: Vec<Value>,
    deletions: bool,
    changes: bool,
    /// Another scheduler binds claims.
    other_scheduler: bool,
    n_volumes: u64,
    pub n_claims: u64,
    pub controllers: VolumeControllers,
}

impl VolumeWorkload {
    pub fn new(mut rng: Rng, api_server: &mut FakeApiServer) -> VolumeWorkload {
        VolumeKind::ALL.into_iter().for_each(|kind| api_server.serve_kind(kind.gvr()));
        let templates = (0..8).map(|_| TemplateVolumes::random(&mut rng)).collect();
        let [deletions, changes] = [0, 0].map(|_| !rng.one_in(3));
        let other_scheduler = rng.one_in(3);
        let controllers = VolumeControllers::new(rng.split("controllers"), api_server);
        let late = Vec::new();
        let mut workload = VolumeWorkload {
            rng,
            templates,
            late,
            deletions,
            changes,
            other_scheduler,
            n_volumes: 0,
            n_claims: 0,
            controllers,
        };
        let storage = &mut Storage(api_server);
        for class in CLASSES {
            if !workload.rng.one_in(10) {
                workload.put_class(storage, class);
            }
        }
        for _ in 0..workload.rng.below(16) {
            workload.create_volume(storage);
        }
        workload
    }

    /// Gives a new pod of a template its volumes, and creates their claims.
    pub fn add_to_pod(&mut self, template: usize, pod: &mut Pod, api_server: &mut FakeApiServer) {
        let storage = &mut Storage(api_server);
        let volumes = self.templates[template % self.templates.len()].clone();
        let claims: Vec<Value> = match &volumes {
            TemplateVolumes::None => return,
            TemplateVolumes::Ephemeral(class) => {
                let volume = Volume {
                    name: Str::new(&format!("scratch-{class}")),
                    ephemeral: Some(EphemeralSource {}),
                    ..Volume::default()
                };
                pod.spec.change(|spec| spec.volumes.push(volume));
                return;
            }
            TemplateVolumes::Own(claims) => {
                let ordinal = first_unused(storage, template);
                let name = |at: usize| format!("data{at}-{template}-{ordinal}");
                let claims = claims.iter().enumerate();
                claims
                    .map(|(at, it)| claim(&name(at), it.class, it.size, "ReadWriteOnce"))
                    .collect()
            }
            TemplateVolumes::Shared(claims) => {
                claims.iter().map(|it| claim(&it.name, it.class, 1, it.mode)).collect()
            }
        };
        for claim in claims {
            let claim_name = Str::new(text(&claim, "/metadata/name"));
            let volume = Volume {
                name: claim_name.clone(),
                persistent_volume_claim: Some(ClaimSource { claim_name }),
                ..Volume::default()
            };
            pod.spec.change(|spec| spec.volumes.push(volume));
            match self.rng.below(8) {
                0 | 1 => self.late.push(claim),
                _ => self.create_claim(storage, claim),
            }
        }
    }

    fn create_claim(&mut self, storage: &mut Storage<'_>, claim: Value) {
        if storage.get(VolumeKind::Claim, &super::full_name(&claim)).is_none() {
            self.n_claims += 1;
            storage.put(VolumeKind::Claim, claim);
        }
    }

    /// Does one random operation, or none.
    pub fn random_operation(&mut self, api_server: &mut FakeApiServer) {
        let storage = &mut Storage(api_server);
        match self.rng.below(40) {
            0..=3 => self.create_volume(storage),
            4..=7 => {
                if let Some(claim) = self.late.pop() {
                    self.create_claim(storage, claim);
                }
            }
            8 | 9 if self.deletions => self.delete_any(storage, VolumeKind::Claim),
            10 if self.deletions => self.delete_any(storage, VolumeKind::Volume),
            11 if self.deletions && self.rng.one_in(4) => self.lose_volume(storage),
            12 | 13 if self.changes => self.label_any(storage, VolumeKind::Volume),
            14 | 15 if self.changes => self.label_any(storage, VolumeKind::Claim),
            16 if self.changes => {
                let class = *self.rng.pick(&CLASSES);
                match self.rng.one_in(6) {
                    true => storage.delete(VolumeKind::Class, class.0),
                    false => self.put_class(storage, class),
                }
            }
            17 if self.changes => self.change_limit(storage),
            18 if self.changes => self.controllers.provisioner.resize(),
            19 => self.reclaim_volume(storage),
            20 | 21 if self.other_scheduler => self.bind_by_other_scheduler(storage),
            _ => {}
        }
    }

    /// The faults have ended: everything that pods need is created.
    pub fn create_missing(&mut self, api_server: &mut FakeApiServer) {
        let storage = &mut Storage(api_server);
        for claim in std::mem::take(&mut self.late) {
            self.create_claim(storage, claim);
        }
        for class in CLASSES {
            if storage.get(VolumeKind::Class, class.0).is_none() {
                self.put_class(storage, class);
            }
        }
    }

    fn put_class(
        &mut self,
        storage: &mut Storage<'_>,
        (name, provisioner, mode): (&str, &str, &str),
    ) {
        let mut class = json!({
            "metadata": {"name": name},
            "provisioner": provisioner,
            "volumeBindingMode": mode,
            "reclaimPolicy": "Delete",
        });
        if provisioner == DRIVER && self.rng.one_in(4) {
            let values: Vec<&str> = ZONES[..self.rng.range(1, 2) as usize].into();
            class["allowedTopologies"] =
                json!([{"matchLabelExpressions": [{"key": ZONE, "values": values}]}]);
        }
        storage.put(VolumeKind::Class, class);
    }

    /// A static volume: of one node or of a zone, sometimes reserved for a claim by its user.
    fn create_volume(&mut self, storage: &mut Storage<'_>) {
        if storage.all(VolumeKind::Volume).count() > N_VOLUMES_MAX {
            return;
        }
        let rng = &mut self.rng;
        let nodes: Vec<String> = storage.0.nodes().map(|node| node.name().to_owned()).collect();
        let class = *rng.pick(&[LOCAL, LOCAL, MIXED, NET]);
        let name = format!("{class}-{}", self.n_volumes);
        self.n_volumes += 1;
        let requirement = match class {
            LOCAL if nodes.is_empty() => return,
            LOCAL => {
                json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [rng.pick(&nodes)]})
            }
            _ => json!({"key": ZONE, "operator": "In", "values": [rng.pick(&ZONES)]}),
        };
        let source = match class {
            LOCAL => json!({"local": {"path": "/mnt"}}),
            _ => json!({"csi": {"driver": DRIVER, "volumeHandle": name}}),
        };
        let mut spec = json!({
            "capacity": {"storage": gi(*rng.pick(&[1, 2, 5, 10]))},
            "accessModes": ["ReadWriteOnce", "ReadWriteOncePod"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": class,
            "volumeMode": "Filesystem",
        });
        for (field, value) in source.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        if !rng.one_in(8) {
            spec["nodeAffinity"] =
                json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}});
        }
        let claims: Vec<Str> = storage.names(VolumeKind::Claim);
        if rng.one_in(10) && !claims.is_empty() {
            let claim = rng.pick(&claims).rsplit('/').next().unwrap_or_default().to_owned();
            spec["claimRef"] = json!({"namespace": "default", "name": claim});
        }
        let mut object =
            json!({"metadata": {"name": name}, "spec": spec, "status": {"phase": "Pending"}});
        if object["spec"]["claimRef"].is_object() {
            object["metadata"]["labels"] = json!({RESERVED_BY_USER: ""});
        }
        storage.put(VolumeKind::Volume, object);
    }

    fn any(&mut self, names: &[Str]) -> Option<Str> {
        if names.is_empty() { None } else { Some(self.rng.pick(names).clone()) }
    }

    fn delete_any(&mut self, storage: &mut Storage<'_>, kind: VolumeKind) {
        if let Some(name) = self.any(&storage.names(kind)) {
            request_deletion(storage, kind, &name);
        }
    }

    /// A volume is removed although its claim is bound.
    fn lose_volume(&mut self, storage: &mut Storage<'_>) {
        if let Some(name) = self.any(&storage.names(VolumeKind::Volume)) {
            storage.delete(VolumeKind::Volume, &name);
        }
    }

    /// A new version of an object, so that updates of the old one are conflicts.
    fn label_any(&mut self, storage: &mut Storage<'_>, kind: VolumeKind) {
        if let Some(name) = self.any(&storage.names(kind)) {
            let value = self.rng.below(1_000).to_string();
            storage.edit(kind, &name, |object| object["metadata"]["labels"]["x"] = value.into());
        }
    }

    fn change_limit(&mut self, storage: &mut Storage<'_>) {
        if let Some(name) = self.any(&storage.names(VolumeKind::CsiNode)) {
            let limit = (!self.rng.one_in(4)).then(|| self.rng.range(0, 6));
            storage.edit(VolumeKind::CsiNode, &name, |node| {
                node["spec"] = csi_node(&name, limit)["spec"].take();
            });
        }
    }

    /// An administrator makes a released volume available again.
    fn reclaim_volume(&mut self, storage: &mut Storage<'_>) {
        let released = storage.all(VolumeKind::Volume);
        let released = released.filter(|(_, volume)| {
            text(volume, "/status/phase") == "Released" && !is_terminating(volume)
        });
        let released: Vec<Str> = released.map(|(name, _)| name.clone()).collect();
        if let Some(name) = self.any(&released) {
            storage.edit(VolumeKind::Volume, &name, |volume| {
                volume["spec"]["claimRef"] = Value::Null;
                volume["metadata"]["labels"] = json!({});
                let annotations = volume["metadata"]["annotations"].as_object_mut();
                annotations.map(|all| all.remove(BOUND_BY_CONTROLLER));
            });
        }
    }

    /// Another scheduler selects a free volume, or a node, for a claim.
    fn bind_by_other_scheduler(&mut self, storage: &mut Storage<'_>) {
        let is_open = |claim: &Value| {
            let class = text(claim, "/spec/storageClassName");
            [WAIT, LOCAL, MIXED].contains(&class)
                && text(claim, "/spec/volumeName").is_empty()
                && annotation(claim, SELECTED_NODE).is_none()
                && !is_terminating(claim)
        };
        let open = storage.all(VolumeKind::Claim).filter(|(_, claim)| is_open(claim));
        let open: Vec<Str> = open.map(|(name, _)| name.clone()).collect();
        // Preferably one that we are binding, too.
        let contested = open.iter().filter(|name| {
            let claim = storage.get(VolumeKind::Claim, name);
            let mut volumes = storage.all(VolumeKind::Volume);
            volumes.any(|(_, volume)| claim.is_some_and(|claim| is_for(volume, claim)))
        });
        let contested: Vec<Str> = contested.cloned().collect();
        let Some(name) = self.any(if contested.is_empty() { &open } else { &contested }) else {
            return;
        };
        let Some(claim) = storage.get(VolumeKind::Claim, &name).cloned() else { return };
        let is_free = |volume: &Value| {
            claim_ref(volume).is_none()
                && text(volume, "/status/phase") == "Available"
                && volume["spec"]["storageClassName"] == claim["spec"]["storageClassName"]
                && size(volume) >= size(&claim)
        };
        let free = storage.all(VolumeKind::Volume).find(|(_, volume)| is_free(volume));
        if let Some(volume) = free.map(|(_, volume)| volume.clone()) {
            return set_claim_ref(storage, &claim, volume);
        }
        let nodes: Vec<Str> = storage.0.nodes().map(|node| Str::new(node.name())).collect();
        if let Some(node) = self.any(&nodes) {
            storage.edit(VolumeKind::Claim, &name, |claim| annotate(claim, SELECTED_NODE, &node));
        }
    }
}

impl TemplateVolumes {
    fn random(rng: &mut Rng) -> TemplateVolumes {
        let class = |rng: &mut Rng| *rng.pick(&CLASSES_OF_CLAIMS);
        let own = |rng: &mut Rng| OwnClaim { class: class(rng), size: rng.range(1, 5) };
        match rng.below(10) {
            0 | 1 => TemplateVolumes::None,
            2..=4 => TemplateVolumes::Own(vec![own(rng)]),
            5 => TemplateVolumes::Own(vec![own(rng), own(rng)]),
            6 | 7 => {
                let at = rng.below(4) as usize;
                TemplateVolumes::Shared(vec![shared(rng, at)])
            }
            8 => {
                let at = rng.below(3) as usize;
                TemplateVolumes::Shared(vec![shared(rng, at), shared(rng, at + 1)])
            }
            _ => TemplateVolumes::Ephemeral(class(rng)),
        }
    }
}

/// One of few claims, so that templates share them.
fn shared(rng: &mut Rng, at: usize) -> SharedClaim {
    let class = [WAIT, LOCAL, NOW, MIXED][at];
    match rng.one_in(2) {
        true => SharedClaim { name: format!("one-{at}"), class, mode: "ReadWriteOncePod" },
        false => SharedClaim { name: format!("shared-{at}"), class, mode: "ReadWriteOnce" },
    }
}

/// The first ordinal of a template whose claims no pod uses.
fn first_unused(storage: &Storage<'_>, template: usize) -> usize {
    let is_used = |ordinal: usize| {
        let name = format!("data0-{template}-{ordinal}");
        let mut volumes = storage.0.pods().flat_map(|pod| &pod.spec.volumes);
        volumes.any(|volume| volume.name == name.as_str())
    };
    (0..N_OWN_CLAIMS_MAX).find(|ordinal| !is_used(*ordinal)).unwrap_or(0)
}

/// A claim for so many GiB.
pub(super) fn claim(name: &str, class: &str, size: i64, mode: &str) -> Value {
    json!({
        "metadata": {"namespace": "default", "name": name},
        "spec": {
            "accessModes": [mode],
            "resources": {"requests": {"storage": gi(size)}},
            "storageClassName": class,
            "volumeMode": "Filesystem",
        },
        "status": {"phase": "Pending"},
    })
}
