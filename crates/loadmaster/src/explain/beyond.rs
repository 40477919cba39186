//! What plugins read beyond the objects that a scheduler reads: objects of kinds that they watch, annotations, whole pods and nodes.
//!
//! A live cluster is asked for it. Saved objects have what was saved; of a kind that is not there at all nobody knows whether the
//! cluster has none or it was not saved, so that this is said.

use std::collections::BTreeMap;

use loadmaster_api::document::Document;
use loadmaster_api::snapshot::{Snapshot, Sourced};
use loadmaster_api::{Extra, Needs, Node, ObjectMeta, Pod, Str};
use loadmaster_client::{Also, Kind};
use loadmaster_engine::Profile;
use loadmaster_framework::request::ObjectRef;
use loadmaster_framework::{Gvr, Presence, World};
use serde_json::Value;

use crate::exit::complain;

/// What the plugins of some profiles read beyond.
pub(super) struct Beyond {
    needs: Needs,
    watched: Vec<(Gvr, Presence)>,
    /// By kind, where there are any or the cluster was asked.
    objects: BTreeMap<Gvr, Vec<Value>>,
    pods: BTreeMap<(String, String), Value>,
    nodes: BTreeMap<String, Value>,
    is_live: bool,
}

impl Beyond {
    pub fn of(profiles: &[Profile]) -> Beyond {
        let needs = profiles.iter().fold(Needs::default(), |all, it| all.or(it.needs));
        let watches = profiles.iter().flat_map(|profile| &profile.watches);
        let mut watched: Vec<_> =
            watches.map(|watch| (watch.kind.clone(), watch.presence)).collect();
        // Of two ways in which a kind is watched the stricter one comes first.
        watched.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        watched.dedup_by(|next, first| first.0 == next.0);
        Beyond {
            needs,
            watched,
            objects: BTreeMap::new(),
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            is_live: false,
        }
    }

    /// What a live cluster is asked for.
    pub fn also(&self) -> Also {
        // One that is missing costs a warning here, even where a scheduler would wait for it.
        let kind = |gvr: &Gvr| Kind::other(&gvr.group, &gvr.version, &gvr.resource, false);
        let kinds = self.watched.iter().map(|(gvr, _)| kind(gvr)).collect();
        Also { kinds, whole: self.needs != Needs::default() }
    }

    pub fn read_live(&mut self, documents: &[(Kind, Document)]) {
        self.is_live = true;
        for (kind, pages) in documents {
            let items = values(pages).into_iter().flat_map(items);
            match kind {
                Kind::Pod => items.for_each(|pod| self.take_pod(pod)),
                Kind::Node => items.for_each(|node| self.take_node(node)),
                _ => {
                    let resource = kind.resource();
                    let gvr = Gvr::new(resource.group, resource.version, resource.resource);
                    self.objects.entry(gvr).or_default().extend(items);
                }
            }
        }
    }

    pub fn read_saved(&mut self, documents: &[Document]) {
        if self.watched.is_empty() && self.needs == Needs::default() {
            return;
        }
        for object in documents.iter().flat_map(values).flat_map(items) {
            let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
            let (version, kind) = (text("apiVersion"), text("kind"));
            match (&*version, &*kind) {
                ("v1", "Pod") => self.take_pod(object),
                ("v1", "Node") => self.take_node(object),
                _ => {
                    let is_it = |gvr: &&(Gvr, Presence)| is_of(&gvr.0, &version, &kind);
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

    /// Gives pods and nodes the parts that plugins need.
    pub fn fill(&self, snapshot: &mut Snapshot) {
        let name = |metadata: &ObjectMeta| metadata.name.to_string();
        for Sourced { object: Pod { metadata, extra, .. }, .. } in &mut snapshot.pods {
            let found = self.pods.get(&(metadata.namespace.to_string(), name(metadata)));
            *extra = found.and_then(|pod| Extra::of_value(pod, self.needs.pods));
        }
        for Sourced { object: Node { metadata, extra, .. }, .. } in &mut snapshot.nodes {
            let found = self.nodes.get(&name(metadata));
            *extra = found.and_then(|node| Extra::of_value(node, self.needs.nodes));
        }
    }

    /// Shows the plugins of a profile what they watch, and says what nobody can show them here.
    pub fn show(&self, profile: &Profile, world: &mut World) {
        for watch in &profile.watches {
            world.watch(watch);
        }
        let is_watched = |gvr: &Gvr| profile.watches.iter().any(|watch| watch.kind == *gvr);
        for (gvr, presence) in self.watched.iter().filter(|(gvr, _)| is_watched(gvr)) {
            match self.objects.get(gvr) {
                Some(objects) => {
                    world.set_there(&gvr.group, &gvr.resource, true);
                    let tell = |object: &Value| {
                        let told = world.change_object(&object_ref(gvr, object), Some(object));
                        told.trouble
                    };
                    let troubles = objects.iter().filter_map(tell);
                    troubles.for_each(|trouble| complain(&format!("warning: {trouble}")));
                }
                None => self.note_missing(gvr, *presence),
            }
        }
        for plugin in &profile.plugins {
            let unknown = match (&plugin.receiver, &plugin.object_events) {
                (Some(_), _) => "what a service publishes to it",
                (None, Some(_)) => "what it has made of changes while it ran",
                (None, None) => continue,
            };
            let name = plugin.name;
            complain(&format!(
                "note: plugin {name} may know {unknown}, which is not known here; --server asks a running scheduler"
            ));
        }
    }

    fn note_missing(&self, gvr: &Gvr, presence: Presence) {
        let where_ = if self.is_live { "could not be read" } else { "are not among the objects" };
        let instead = match presence {
            Presence::Required => "a scheduler places no pod before it has read them",
            Presence::Optional => "plugins that watch them are asked as if there were none",
        };
        complain(&format!("note: objects of {gvr} {where_}: {instead}"));
    }
}

/// The items of a list, with the type that the list gives them; anything else is itself.
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

/// Whether saved objects of this kind are of that resource, by what a plural is called nearly always.
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

/// What is not well-formed has been complained about before.
fn values(document: &Document) -> Vec<Value> {
    document.decode_values().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use loadmaster_config::{Gates, check_value};
    use loadmaster_engine::explain::explain;
    use loadmaster_framework::{
        Need, ObjectSlot, PluginDef, PodInfo, PreFilter, PreFiltered, Rejection, SerialCx,
    };
    use loadmaster_sim::load;
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
    fn kinds_are_known_by_their_plural() {
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

    /// Turns a pod down unless there is the team that its annotation names.
    struct Teams(ObjectSlot<Value>);

    const TEAMS: PluginDef = PluginDef {
        name: "Teams",
        build: |points, _| {
            let teams = points.watch(Gvr::new("example.com", "v1", "teams"), Presence::Required);
            points.need(Need::PodAnnotations);
            points.pre_filter = Some(Arc::new(Teams(teams)));
            Ok(())
        },
        args: None,
    };

    impl PreFilter for Teams {
        fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFiltered, Rejection> {
            let teams = cx.objects(&self.0);
            let team = pod.annotation("team").unwrap_or("(none)");
            match (teams.is_there(), teams.get("shop", team)) {
                (true, Some(_)) => Ok(PreFiltered::Skip),
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

    /// What becomes of the pod `web`.
    #[track_caller]
    fn check(is_live: bool, team: Option<&str>, want: &str) {
        let registry = loadmaster_plugins::in_tree().with(TEAMS);
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Teams"}]}}}],
        });
        let gates = Gates::default();
        let checked = check_value(config, &registry, &gates).unwrap();
        let gates = gates.framework();
        let profiles = load::profiles(&checked, &registry, &gates).unwrap();
        let mut documents = vec![Document::new("cluster.yaml", CLUSTER)];
        let mut snapshot = Snapshot::read(&documents).unwrap();
        let mut beyond = Beyond::of(&profiles);
        if is_live {
            let also = beyond.also();
            assert!(also.whole);
            let pages = |kind: Kind, text: &str| (kind, Document::new("pages", text));
            let parts: Vec<&str> = CLUSTER.split("---").collect();
            let mut all = vec![pages(Kind::Node, parts[0]), pages(Kind::Pod, parts[1])];
            all.extend(team.map(|team| pages(also.kinds[0], team)));
            beyond.read_live(&all);
        } else {
            documents.extend(team.map(|team| Document::new("team.yaml", team)));
            beyond.read_saved(&documents);
        }
        beyond.fill(&mut snapshot);
        let mut loaded = load::load(&snapshot, &profiles, &gates, "shop/web").unwrap();
        beyond.show(loaded.profile, &mut loaded.world);
        let states = &loaded.profile.states;
        let said = explain(loaded.profile, &loaded.world, states, &loaded.pod);
        let why = said.pre_filter.map(|status| status.reasons.join(", ")).unwrap_or_default();
        assert_eq!(format!("{}{why}", said.best.join(" ")), want);
    }

    #[test]
    fn plugins_see_what_was_saved_or_read() {
        for is_live in [false, true] {
            check(is_live, Some(TEAM), "a");
            check(is_live, None, "no team red, known: false");
        }
        let none = "{kind: TeamList, apiVersion: example.com/v1, items: []}";
        check(true, Some(none), "no team red, known: true");
    }
}
