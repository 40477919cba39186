//! The users of PodGroups: some pod templates make members of groups.

use loadmaster_api::{Pod, Str, Timestamp};
use loadmaster_scheduler_plugins::pod_group::{GROUP, LABEL, OLD_GROUP, OLD_LABEL};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::kind;
use crate::fake_api_server::FakeApiServer;

const N_LINES: usize = 4;
const TIMEOUTS: [i64; 5] = [0, 1, 5, 20, 120];

/// One or several groups, one after the other. Templates that share a line make groups of unequal pods.
struct Line {
    /// Its PodGroups are of the older API group.
    is_old: bool,
    /// All pods belong to one group, which is never full.
    is_endless: bool,
    n_members_max: i64,
    /// By namespace: the name of the group that the next pod belongs to, and how many more members it gets.
    current: Vec<(Str, Str, i64)>,
}

/// A PodGroup, by kind and `namespace/name`.
type GroupName = (bool, Str);

pub(in crate::simulate) struct GangWorkload {
    rng: Rng,
    lines: Vec<Line>,
    /// By pod template: the line of its pods.
    templates: Vec<Option<usize>>,
    /// PodGroups that are created later than their pods.
    late: Vec<(GroupName, Value)>,
    deletions: bool,
    changes: bool,
    pub n_groups: u64,
}

impl GangWorkload {
    pub fn new(mut rng: Rng) -> GangWorkload {
        let line = |rng: &mut Rng| Line {
            is_old: rng.one_in(6),
            is_endless: rng.one_in(4),
            n_members_max: *rng.pick(&[2, 3, 4, 8]),
            current: Vec::new(),
        };
        let lines = (0..N_LINES).map(|_| line(&mut rng)).collect();
        let template = |rng: &mut Rng| {
            let line = rng.below(N_LINES as u64) as usize;
            (!rng.one_in(3)).then_some(line)
        };
        let templates = (0..8).map(|_| template(&mut rng)).collect();
        let [deletions, changes] = [0, 0].map(|_| !rng.one_in(3));
        let late = Vec::new();
        GangWorkload { rng, lines, templates, late, deletions, changes, n_groups: 0 }
    }

    /// Gives a new pod of a template the label of its group, and creates the PodGroup with the first pod.
    pub fn add_to_pod(
        &mut self,
        template: usize,
        pod: &mut Pod,
        api_server: &mut FakeApiServer,
        now: Timestamp,
    ) {
        let Some(at) = self.templates[template % self.templates.len()] else { return };
        let namespace = pod.metadata.namespace.clone();
        let is_old = self.lines[at].is_old;
        let known = self.lines[at].current.iter().position(|(known, ..)| *known == namespace);
        let (name, left) = match known {
            Some(known) => {
                let (_, name, left) = self.lines[at].current.swap_remove(known);
                (name, left)
            }
            None => self.start_group(at, &namespace, api_server, now),
        };
        let left = if self.lines[at].is_endless { left } else { left - 1 };
        if left > 0 {
            self.lines[at].current.push((namespace, name.clone(), left));
        }
        let label = if is_old { OLD_LABEL } else { LABEL };
        let labels = std::mem::take(&mut pod.metadata.labels);
        pod.metadata.labels = labels.with(label, name);
    }

    fn start_group(
        &mut self,
        at: usize,
        namespace: &str,
        api_server: &mut FakeApiServer,
        now: Timestamp,
    ) -> (Str, i64) {
        let Line { is_old, n_members_max, .. } = self.lines[at];
        let n_members = self.rng.range(1, n_members_max);
        let n_min = match self.rng.below(8) {
            0 => n_members + 1,
            1 => self.rng.range(0, n_members),
            _ => n_members,
        };
        let name = Str::new(&format!("g{}", self.n_groups));
        self.n_groups += 1;
        let mut spec = json!({"minMember": n_min});
        self.set_timeout(&mut spec);
        if self.rng.one_in(6) {
            self.set_min_resources(&mut spec, n_min);
        }
        let group = if is_old { OLD_GROUP } else { GROUP };
        let object = json!({
            "apiVersion": format!("{group}/v1alpha1"),
            "kind": "PodGroup",
            "metadata": {
                "namespace": namespace,
                "name": name.as_str(),
                "creationTimestamp": now.to_string(),
            },
            "spec": spec,
        });
        let key = (is_old, Str::new(&format!("{namespace}/{name}")));
        match self.rng.below(5) {
            0 => self.late.push((key, object)),
            _ => put(api_server, &key, object),
        }
        (name, n_members)
    }

    fn set_timeout(&mut self, spec: &mut Value) {
        spec["scheduleTimeoutSeconds"] = match *self.rng.pick(&TIMEOUTS) {
            0 => Value::Null,
            seconds => seconds.into(),
        };
    }

    fn set_min_resources(&mut self, spec: &mut Value, n_min: i64) {
        let cpus = self.rng.range(0, n_min.max(0) + 1);
        spec["minResources"] = json!({"cpu": cpus.to_string(), "memory": "1Gi"});
    }

    /// Does one random operation, or none.
    pub fn random_operation(&mut self, api_server: &mut FakeApiServer, now: Timestamp) {
        match self.rng.below(30) {
            0..=3 => {
                if let Some((key, object)) = self.late.pop() {
                    put(api_server, &key, object);
                }
            }
            4 if self.deletions => self.delete_group(api_server),
            5 | 6 if self.changes => {
                let by = *self.rng.pick(&[-2, -1, 1, 2]);
                self.edit_any(api_server, |_, object| {
                    let n_min = object["spec"]["minMember"].as_i64().unwrap_or_default();
                    object["spec"]["minMember"] = (n_min + by).into();
                });
            }
            7 if self.changes => {
                self.edit_any(api_server, |it, object| it.set_timeout(&mut object["spec"]));
            }
            8 if self.changes => self.edit_any(api_server, |it, object| {
                let n_min = object["spec"]["minMember"].as_i64().unwrap_or_default();
                match it.rng.one_in(2) {
                    true => object["spec"]["minResources"] = Value::Null,
                    false => it.set_min_resources(&mut object["spec"], n_min),
                }
            }),
            9 | 10 => self.edit_any(api_server, |it, object| {
                let phase = *it.rng.pick(&["Pending", "Scheduling", "Running"]);
                object["status"] = json!({"phase": phase});
            }),
            11..=13 if self.deletions => self.delete_members(api_server, now),
            _ => {}
        }
    }

    /// The job of a group is deleted.
    fn delete_members(&mut self, api_server: &mut FakeApiServer, now: Timestamp) {
        let Some((is_old, name)) = self.any_group(api_server) else { return };
        let is_member = |pod: &Pod| {
            let key = super::group_of(pod);
            key.is_some_and(|key| key.is_old == is_old && *key.to_string() == *name.as_str())
        };
        for pod in api_server.pod_names_matching(is_member) {
            api_server.delete_pod_gracefully(&pod, now);
        }
    }

    /// The PodGroup goes, and often comes again.
    fn delete_group(&mut self, api_server: &mut FakeApiServer) {
        let Some(key) = self.any_group(api_server) else { return };
        let kind = kind(key.0);
        let known = api_server.custom_object(kind, &key.1).cloned();
        api_server.delete_custom_object(kind.clone(), &key.1);
        let again = known.filter(|_| !self.rng.one_in(3));
        self.late.extend(again.map(|object| (key, object)));
    }

    fn edit_any(
        &mut self,
        api_server: &mut FakeApiServer,
        change: impl FnOnce(&mut GangWorkload, &mut Value),
    ) {
        let Some(key) = self.any_group(api_server) else { return };
        if let Some(mut object) = api_server.custom_object(kind(key.0), &key.1).cloned() {
            change(self, &mut object);
            put(api_server, &key, object);
        }
    }

    /// A PodGroup, usually one whose members are pending.
    fn any_group(&mut self, api_server: &FakeApiServer) -> Option<GroupName> {
        let names = [false, true].into_iter().flat_map(|is_old| {
            let objects = api_server.custom_objects(kind(is_old));
            objects.map(move |(name, _)| (is_old, name.clone()))
        });
        let all: Vec<GroupName> = names.collect();
        let pending = api_server.pods().filter(|pod| pod.spec.node_name.is_empty());
        let pending = pending.filter_map(super::group_of);
        let pending: Vec<GroupName> =
            pending.map(|key| (key.is_old, Str::new(&key.to_string()))).collect();
        let active: Vec<GroupName> =
            all.iter().filter(|name| pending.contains(name)).cloned().collect();
        let names = if active.is_empty() || self.rng.one_in(5) { &all } else { &active };
        if names.is_empty() { None } else { Some(self.rng.pick(names).clone()) }
    }

    /// The faults have ended: every PodGroup that was to come is created.
    pub fn create_missing(&mut self, api_server: &mut FakeApiServer) {
        for (key, object) in std::mem::take(&mut self.late) {
            put(api_server, &key, object);
        }
    }
}

fn put(api_server: &mut FakeApiServer, (is_old, name): &GroupName, object: Value) {
    api_server.upsert_custom_object(kind(*is_old).clone(), name, object);
}
