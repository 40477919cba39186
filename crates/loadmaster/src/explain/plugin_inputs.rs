//! Additional inputs of plugins, inputs the objects that the scheduler reads: objects of watched kinds, annotations, full pods and nodes.
//!
//! They are read from the live cluster or from the saved objects. If a kind is missing in saved objects, it is unknown whether the
//! cluster has no such objects or they were not saved, so a note is printed.

use std::collections::BTreeMap;

use loadmaster_api::document::Document;
use loadmaster_api::snapshot::{ObjectWithOrigin, Snapshot};
use loadmaster_api::{ExtraFields, ExtraFieldsByKind, Node, ObjectMeta, Pod, Str};
use loadmaster_client::kinds::UnreadCause;
use loadmaster_client::{ClusterReadOptions, Kind};
use loadmaster_engine::Profile;
use loadmaster_framework::api_calls::ObjectRef;
use loadmaster_framework::{Gvr, PodInfo, WatchRequirement, World};
use serde_json::Value;

use crate::exit::print_to_stderr;

/// The additional inputs of the plugins of some profiles.
pub(super) struct PluginInputs {
    needs: ExtraFieldsByKind,
    watched: Vec<(Gvr, WatchRequirement)>,
    /// Objects by kind. A kind is present if there are objects or it was read from the cluster.
    objects: BTreeMap<Gvr, Vec<Value>>,
    /// Kinds that could not be read from the cluster.
    unread: BTreeMap<Gvr, UnreadCause>,
    pods: BTreeMap<(String, String), Value>,
    nodes: BTreeMap<String, Value>,
}

impl PluginInputs {
    pub fn for_profiles(profiles: &[Profile]) -> PluginInputs {
        let needs =
            profiles.iter().fold(ExtraFieldsByKind::default(), |all, it| all.union(it.needs));
        let watches = profiles.iter().flat_map(|profile| &profile.watches);
        let mut watched: Vec<_> =
            watches.map(|watch| (watch.kind.clone(), watch.requirement)).collect();
        // If a kind is watched twice, the stricter requirement is used.
        watched.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        watched.dedup_by(|next, first| first.0 == next.0);
        PluginInputs {
            needs,
            watched,
            objects: BTreeMap::new(),
            unread: BTreeMap::new(),
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
        }
    }

    /// What has to be read from a live cluster.
    pub fn cluster_read_options(&self) -> ClusterReadOptions {
        // A missing kind is only a warning here, even if a scheduler would wait for it.
        let kind = |gvr: &Gvr| Kind::dynamic(&gvr.group, &gvr.version, &gvr.resource, false);
        let kinds = self.watched.iter().map(|(gvr, _)| kind(gvr)).collect();
        ClusterReadOptions {
            extra_kinds: kinds,
            raw_nodes_and_pods: self.needs != ExtraFieldsByKind::default(),
        }
    }

    pub fn read_live_objects(
        &mut self,
        documents: &[(Kind, Document)],
        unread: &[(Kind, UnreadCause)],
    ) {
        for (kind, pages) in documents {
            let items = values(pages).into_iter().flat_map(items);
            match kind {
                Kind::Pod => items.for_each(|pod| self.take_pod(pod)),
                Kind::Node => items.for_each(|node| self.take_node(node)),
                _ => self.objects.entry(gvr_of(*kind)).or_default().extend(items),
            }
        }
        self.unread.extend(unread.iter().map(|(kind, cause)| (gvr_of(*kind), *cause)));
    }

    pub fn read_saved_objects(&mut self, documents: &[Document]) {
        if self.watched.is_empty() && self.needs == ExtraFieldsByKind::default() {
            return;
        }
        for object in documents.iter().flat_map(values).flat_map(items) {
            let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
            let (version, kind) = (text("apiVersion"), text("kind"));
            match (&*version, &*kind) {
                ("v1", "Pod") => self.take_pod(object),
                ("v1", "Node") => self.take_node(object),
                _ => {
                    let is_it = |gvr: &&(Gvr, WatchRequirement)| is_of(&gvr.0, &version, &kind);
                    if let Some((gvr, _)) = self.watched.iter().find(is_it) {
                        self.objects.entry(gvr.clone()).or_default().push(object);
                    }
                }
            }
        }
    }

    fn take_pod(&mut self, pod: Value) {
        let mut namespace = name(&pod, "namespace");
        if namespace.is_empty() {
            namespace = "default".to_owned();
        }
        self.pods.insert((namespace, name(&pod, "name")), pod);
    }

    fn take_node(&mut self, node: Value) {
        self.nodes.insert(name(&node, "name"), node);
    }

    /// Adds the parts of pods and nodes that plugins need.
    pub fn add_needed_parts(&self, snapshot: &mut Snapshot) {
        let name = |metadata: &ObjectMeta| metadata.name.to_string();
        for ObjectWithOrigin { object: Pod { metadata, extra, .. }, .. } in &mut snapshot.pods {
            let found = self.pods.get(&(metadata.namespace.to_string(), name(metadata)));
            *extra = found.and_then(|pod| ExtraFields::from_value(pod, self.needs.pods));
        }
        for ObjectWithOrigin { object: Node { metadata, extra, .. }, .. } in &mut snapshot.nodes {
            let found = self.nodes.get(&name(metadata));
            *extra = found.and_then(|node| ExtraFields::from_value(node, self.needs.nodes));
        }
    }

    /// Adds the watched objects of a profile's plugins to the world. Returns notes about missing inputs that matter for the pod.
    pub fn add_to_world(&self, profile: &Profile, world: &mut World, pod: &PodInfo) -> Vec<String> {
        for watch in &profile.watches {
            world.watch_objects(watch);
        }
        let is_watched = |gvr: &Gvr| profile.watches.iter().any(|watch| watch.kind == *gvr);
        let mut missing = Vec::new();
        for (gvr, presence) in self.watched.iter().filter(|(gvr, _)| is_watched(gvr)) {
            match self.objects.get(gvr) {
                Some(objects) => {
                    world.set_synced(&gvr.group, &gvr.resource, true);
                    let update = |object: &Value| {
                        let result =
                            world.update_watched_object(&object_ref(gvr, object), Some(object));
                        result.decode_error
                    };
                    let errors = objects.iter().filter_map(update);
                    errors.for_each(|error| print_to_stderr(&format!("warning: {error}")));
                }
                None if is_about_volumes(gvr) && !has_volumes(pod) => {}
                None => missing.push((gvr, *presence)),
            }
        }
        let mut notes = self.notes_on_missing_kinds(&missing);
        let publishing = profile.plugins.iter().filter(|plugin| plugin.publish_handler.is_some());
        notes.extend(publishing.map(|plugin| {
            format!(
                "plugin {} may use values published by a service, which are not available here; use --server to query a running scheduler",
                plugin.name
            )
        }));
        notes
    }

    /// One sentence for all kinds with the same cause and consequence, in which a missing rule is one of an API group.
    fn notes_on_missing_kinds(&self, missing: &[(&Gvr, WatchRequirement)]) -> Vec<String> {
        let mut groups: BTreeMap<_, Vec<&Gvr>> = BTreeMap::new();
        for (gvr, presence) in missing {
            let cause = self.unread.get(gvr).copied();
            // That there are none among saved objects does not mean that the cluster does not serve the kind.
            let presence = cause.map_or(WatchRequirement::Optional, |_| *presence);
            let group = gvr.group.as_str();
            let api_group = if cause == Some(UnreadCause::Forbidden) { group } else { "" };
            groups.entry((cause, presence, api_group)).or_default().push(gvr);
        }
        let notes = groups.into_iter().map(|((cause, presence, api_group), kinds)| {
            let why = match cause {
                Some(cause) => {
                    let names: Vec<&str> = kinds.iter().map(|gvr| gvr.resource.as_str()).collect();
                    cause.text(api_group, &names)
                }
                None => {
                    let names: Vec<String> = kinds.into_iter().map(resource_name).collect();
                    format!("there are no {} among the saved objects", names.join(", "))
                }
            };
            let instead = match presence {
                WatchRequirement::Required => {
                    "a scheduler does not schedule pods before it has read them"
                }
                WatchRequirement::Optional => "plugins that watch them see none",
            };
            format!("{why}: {instead}")
        });
        notes.collect()
    }
}

/// A resource as kubectl accepts it, such as `csinodes.storage.k8s.io`.
fn resource_name(gvr: &Gvr) -> String {
    let dot = if gvr.group.is_empty() { "" } else { "." };
    format!("{}{dot}{}", gvr.resource, gvr.group)
}

/// The resource of a kind that plugins watch.
fn gvr_of(kind: Kind) -> Gvr {
    let resource = kind.resource();
    Gvr::new(resource.group, resource.version, resource.resource)
}

/// Whether the in-tree volume plugins read the kind; it matters only to pods with volumes.
fn is_about_volumes(gvr: &Gvr) -> bool {
    let is_core = gvr.group.is_empty() && gvr.resource.starts_with("persistentvolume");
    is_core || gvr.group == "storage.k8s.io"
}

/// Whether a pod has volumes that a volume plugin reads.
fn has_volumes(pod: &PodInfo) -> bool {
    pod.template.spec.volumes.iter().any(|volume| {
        volume.persistent_volume_claim.is_some()
            || volume.ephemeral.is_some()
            || volume.disk.is_some()
    })
}

/// The items of a list, with apiVersion and kind of a typed list; any other object is returned as it is.
fn items(mut value: Value) -> Vec<Value> {
    let kind = value["kind"].as_str().unwrap_or_default().to_owned();
    let version = value["apiVersion"].clone();
    let Some(item_kind) = kind.strip_suffix("List") else { return vec![value] };
    let Some(Value::Array(items)) = value.get_mut("items").map(Value::take) else {
        return Vec::new();
    };
    let typed = items.into_iter().map(|mut item| {
        if let Some(fields) = item.as_object_mut().filter(|_| !item_kind.is_empty()) {
            fields.entry("kind").or_insert_with(|| item_kind.into());
            fields.entry("apiVersion").or_insert_with(|| version.clone());
        }
        item
    });
    typed.collect()
}

/// Whether a kind belongs to a resource, by the usual rules for plurals.
fn is_of(gvr: &Gvr, api_version: &str, kind: &str) -> bool {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let singular = kind.to_ascii_lowercase();
    let plural = match singular.as_bytes() {
        [.., b's' | b'x'] => format!("{singular}es"),
        [stem @ .., b'y'] => format!("{}ies", String::from_utf8_lossy(stem)),
        _ => format!("{singular}s"),
    };
    gvr.group == group && (gvr.resource == plural.as_str() || gvr.resource == singular.as_str())
}

fn name(object: &Value, field: &str) -> String {
    object["metadata"][field].as_str().unwrap_or_default().to_owned()
}

fn object_ref(gvr: &Gvr, object: &Value) -> ObjectRef {
    ObjectRef {
        group: gvr.group.clone(),
        resource: gvr.resource.clone(),
        namespace: Str::new(&name(object, "namespace")),
        name: Str::new(&name(object, "name")),
    }
}

/// The objects of a document; invalid documents were reported before.
fn values(document: &Document) -> Vec<Value> {
    document.decode_values().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use loadmaster_config::{AllFeatureGates, check_configuration_value};
    use loadmaster_engine::explain::explain_pod;
    use loadmaster_engine::world_loader;
    use loadmaster_framework::{
        ExtraField, ObjectSlot, PluginDef, PodInfo, PreFilter, PreFilterResult, Rejection, SerialCx,
    };
    use serde_json::json;

    use super::*;

    #[test]
    fn items_have_the_type_of_their_list() {
        let typed = json!({"kind": "Gang", "apiVersion": "example.com/v1", "metadata": {}});
        let list = json!({
            "kind": "GangList", "apiVersion": "example.com/v1", "items": [{"metadata": {}}],
        });
        assert_eq!(items(list), std::slice::from_ref(&typed));
        let list = json!({"kind": "List", "apiVersion": "v1", "items": [typed]});
        assert_eq!(items(list), std::slice::from_ref(&typed));
        assert_eq!(items(typed.clone()), [typed]);
        assert!(items(json!({"kind": "GangList", "items": null})).is_empty());
    }

    #[test]
    fn kinds_are_matched_by_plural() {
        let check = |resource: &str, version: &str, kind: &str, want: bool| {
            assert_eq!(is_of(&Gvr::new("example.com", "v1", resource), version, kind), want);
        };
        check("gangs", "example.com/v1", "Gang", true);
        check("gangs", "example.com/v2", "Gang", true);
        check("gangs", "other.com/v1", "Gang", false);
        check("gangs", "v1", "Gang", false);
        check("policies", "example.com/v1", "Policy", true);
        check("classes", "example.com/v1", "Class", true);
        check("hordes", "example.com/v1", "Gang", false);
    }

    /// Rejects a pod unless the team in its annotation exists.
    struct Teams(ObjectSlot<Value>);

    const TEAMS: PluginDef = PluginDef {
        name: "Teams",
        build: |points, _| {
            let teams =
                points.watch(Gvr::new("example.com", "v1", "teams"), WatchRequirement::Required);
            points.request_field(ExtraField::PodAnnotations);
            points.pre_filter = Some(Arc::new(Teams(teams)));
            Ok(())
        },
        args: None,
    };

    impl PreFilter for Teams {
        fn pre_filter(
            &self,
            cx: SerialCx<'_>,
            pod: &PodInfo,
        ) -> Result<PreFilterResult, Rejection> {
            let teams = cx.objects(&self.0);
            let team = pod.annotation("team").unwrap_or("(none)");
            match (teams.has_synced(), teams.get("shop", team)) {
                (true, Some(_)) => Ok(PreFilterResult::Skip),
                (is_there, _) => {
                    Err(Rejection::unresolvable(format!("no team {team}, known: {is_there}")))
                }
            }
        }
    }

    const CLUSTER: &str = "
kind: Node
apiVersion: v1
metadata: {name: a}
status: {allocatable: {cpu: 2, memory: 8Gi, pods: 10}}
---
kind: Pod
apiVersion: v1
metadata: {name: web, namespace: shop, annotations: {team: red}}
spec: {containers: [{name: main}]}
";

    const TEAM: &str =
        "kind: Team\napiVersion: example.com/v1\nmetadata: {name: red, namespace: shop}\n";

    /// Explains the pod `web`.
    #[track_caller]
    fn check(is_live: bool, team: Option<&str>, want: &str) {
        let registry = loadmaster_plugins::in_tree_registry().with(TEAMS);
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Teams"}]}}}],
        });
        let gates = AllFeatureGates::default();
        let checked = check_configuration_value(config, &registry, &gates).unwrap();
        let gates = gates.framework_gates();
        let profiles = world_loader::build_profiles(&checked, &gates);
        let mut documents = vec![Document::new("cluster.yaml", CLUSTER)];
        let mut snapshot = Snapshot::read(&documents).unwrap();
        let mut inputs = PluginInputs::for_profiles(&profiles);
        if is_live {
            let options = inputs.cluster_read_options();
            assert!(options.raw_nodes_and_pods);
            let pages = |kind: Kind, text: &str| (kind, Document::new("pages", text));
            let parts: Vec<&str> = CLUSTER.split("---").collect();
            let mut all = vec![pages(Kind::Node, parts[0]), pages(Kind::Pod, parts[1])];
            let mut kinds = options.extra_kinds.into_iter();
            let teams = kinds.find(|kind| kind.resource().resource == "teams").unwrap();
            all.extend(team.map(|team| pages(teams, team)));
            inputs.read_live_objects(&all, &[]);
        } else {
            documents.extend(team.map(|team| Document::new("team.yaml", team)));
            inputs.read_saved_objects(&documents);
        }
        inputs.add_needed_parts(&mut snapshot);
        let mut loaded =
            world_loader::load_scheduling_input(&snapshot, &profiles, &gates, "shop/web").unwrap();
        inputs.add_to_world(loaded.profile, &mut loaded.world, &loaded.pod);
        let states = &loaded.profile.states;
        let explanation = explain_pod(loaded.profile, &mut loaded.world, states, &loaded.pod);
        let why =
            explanation.pre_filter.map(|status| status.reasons.join(", ")).unwrap_or_default();
        assert_eq!(format!("{}{why}", explanation.best.join(" ")), want);
    }

    #[test]
    fn missing_kinds_are_noted_in_few_sentences() {
        let [claims, nodes, classes, teams] = [
            Gvr::new("", "v1", "persistentvolumeclaims"),
            Gvr::new("storage.k8s.io", "v1", "csinodes"),
            Gvr::new("storage.k8s.io", "v1", "storageclasses"),
            Gvr::new("example.com", "v1", "teams"),
        ];
        let (optional, required) = (WatchRequirement::Optional, WatchRequirement::Required);
        let missing =
            [(&claims, optional), (&nodes, optional), (&classes, optional), (&teams, required)];
        let check = |unread: &[(&Gvr, UnreadCause)], want: &[&str]| {
            let mut inputs = PluginInputs::for_profiles(&[]);
            inputs.unread.extend(unread.iter().map(|(gvr, cause)| ((*gvr).clone(), *cause)));
            assert_eq!(inputs.notes_on_missing_kinds(&missing), want);
        };
        check(
            &[],
            &[
                "there are no persistentvolumeclaims, csinodes.storage.k8s.io, storageclasses.storage.k8s.io, teams.example.com among the saved objects: plugins that watch them see none",
            ],
        );
        let wait = "a scheduler does not schedule pods before it has read them";
        let forbidden = [&claims, &nodes, &classes].map(|gvr| (gvr, UnreadCause::Forbidden));
        let unread = [&forbidden[..], &[(&teams, UnreadCause::NotServed)]].concat();
        check(
            &unread,
            &[
                &format!("this cluster has no teams: {wait}"),
                r#"not allowed to list persistentvolumeclaims (missing rule: {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [list]}): plugins that watch them see none"#,
                r#"not allowed to list csinodes, storageclasses (missing rule: {apiGroups: ["storage.k8s.io"], resources: [csinodes, storageclasses], verbs: [list]}): plugins that watch them see none"#,
            ],
        );
    }

    #[test]
    fn plugins_see_saved_and_live_objects() {
        for is_live in [false, true] {
            check(is_live, Some(TEAM), "a");
            check(is_live, None, "no team red, known: false");
        }
        let none = "{kind: TeamList, apiVersion: example.com/v1, items: []}";
        check(true, Some(none), "no team red, known: true");
    }
}
