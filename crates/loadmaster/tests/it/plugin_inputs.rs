//! Plugins that use custom objects, Events and published values, in a simulated cluster.

use std::sync::Arc;
use std::time::Duration;

use loadmaster::framework::*;
use loadmaster::testkit::{PluginTestBenchError, TestCluster, node, pod};
use serde::Deserialize;
use serde_json::{Value, json};

const NAME: &str = "Quota";
const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

fn quotas() -> Gvr {
    Gvr::new("example.com", "v1", "quotas")
}

#[derive(Deserialize)]
struct Quota {
    open: bool,
}

/// Rejects pods in namespaces whose quota is closed; a service may close all namespaces.
struct Plugin {
    quotas: ObjectSlot<Quota>,
    n_changes: PluginStateSlot<u32>,
    all_closed: PublishedValueSlot<bool>,
}

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(Plugin {
        quotas: points.watch(quotas(), WatchRequirement::Optional),
        n_changes: points.plugin_state_slot(0),
        all_closed: points.published_value_slot(),
    });
    points.pre_filter = Some(plugin.clone());
    points.object_event_handler = Some(plugin);
    let changed = ClusterEvent::new(quotas().event_resource(), ActionType::ALL);
    points.register_event(changed, Some(Arc::new(hint_for_quota_event)));
    points.register_event(ClusterEvent::published_to_plugin(NAME), None);
    Ok(())
}

fn hint_for_quota_event(
    args: &cluster_event::QueueingHintArgs<'_>,
) -> Result<QueueingHint, Failure> {
    let is_open = args.new.is_none_or(|new| new.watched_object().is_some_and(|it: &Quota| it.open));
    let Some(EventObject::Other(info)) = args.new.or(args.old) else {
        return Err(Failure::new("expected a quota"));
    };
    let is_own_namespace = info.namespace == args.pod.template.namespace;
    Ok(if is_own_namespace && is_open { QueueingHint::Queue } else { QueueingHint::Skip })
}

impl PreFilter for Plugin {
    fn pre_filter(
        &self,
        mut cx: SerialCx<'_>,
        pod: &PodInfo,
    ) -> Result<PreFilterResult, Rejection> {
        if cx.published_value(self.all_closed) == Some(&true) {
            return Err(Rejection::unschedulable("everything is closed"));
        }
        let quotas = cx.objects(&self.quotas);
        let n_open = quotas.iter().filter(|(_, quota)| quota.open).count();
        let closed = quotas.in_namespace(&pod.template.namespace).find(|(_, quota)| !quota.open);
        let has_synced = quotas.has_synced();
        if let Some((info, _)) = closed {
            let changes = cx.states.get(self.n_changes).copied().unwrap_or_default();
            let text = format!("quota {} is closed, {n_open} open, {changes} changes", info.name);
            return Err(Rejection::unschedulable(text));
        }
        if !has_synced {
            let event = PodEventRecord {
                pod: Arc::new(pod.clone()),
                is_warning: true,
                reason: "NoQuotas",
                action: "Scheduling",
                note: "the cluster has no quotas".to_owned(),
            };
            cx.record_event(event);
        }
        Ok(PreFilterResult::Skip)
    }
}

impl ObjectEventHandler for Plugin {
    fn on_object_change(&self, cx: SerialCx<'_>, change: &ObjectChange) {
        assert_eq!(change.kind, quotas());
        assert!(change.old.is_some() || change.new.is_some());
        if let Some(n_changes) = cx.states.get_mut(self.n_changes) {
            *n_changes += 1;
        }
    }
}

fn cluster(seed: u64) -> Result<TestCluster, PluginTestBenchError> {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": NAME}]}}});
    let mut cluster = TestCluster::with_seed([DEF], profile, seed)?;
    cluster.upsert_node(node("a"))?;
    Ok(cluster)
}

fn quota(namespace: &str, name: &str, open: impl Into<Value>) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace}, "open": open.into()})
}

const BACKOFF: Duration = Duration::from_secs(12);

#[test]
fn custom_objects_are_visible_and_requeue_their_pods() -> Result<(), PluginTestBenchError> {
    let mut cluster = cluster(1)?;
    cluster.upsert_object(&quotas(), quota("default", "q", false));
    cluster.upsert_object(&quotas(), quota("other", "q", true));
    cluster.run_until_idle()?;
    cluster.create_pod(pod("web"))?;
    cluster.run_until_idle()?;
    let why = |cluster: &TestCluster| cluster.pending_message("web").unwrap_or_default();
    assert!(why(&cluster).contains("quota q is closed, 1 open, 2 changes"), "{}", why(&cluster));
    // A quota of another namespace does not requeue the pod, so that the message is unchanged.
    cluster.upsert_object(&quotas(), quota("other", "more", true));
    cluster.advance_time(BACKOFF)?;
    assert!(why(&cluster).contains("2 changes"), "{}", why(&cluster));
    cluster.upsert_object(&quotas(), quota("default", "q", true));
    cluster.advance_time(BACKOFF)?;
    assert_eq!(cluster.node_of("web"), Some("a".to_owned()));
    Ok(())
}

#[test]
fn deleted_and_invalid_objects_are_removed() -> Result<(), PluginTestBenchError> {
    for is_deleted in [true, false] {
        let mut cluster = cluster(2)?;
        cluster.upsert_object(&quotas(), quota("default", "q", false));
        cluster.run_until_idle()?;
        cluster.create_pod(pod("web"))?;
        cluster.run_until_idle()?;
        assert_eq!(cluster.node_of("web"), None);
        if is_deleted {
            cluster.delete_object(&quotas(), "default", "q");
        } else {
            cluster.upsert_object(&quotas(), quota("default", "q", "perhaps"));
        }
        cluster.advance_time(BACKOFF)?;
        assert_eq!(cluster.node_of("web"), Some("a".to_owned()));
        assert_eq!(cluster.take_errors().len(), usize::from(!is_deleted));
    }
    Ok(())
}

#[test]
fn a_plugin_can_see_whether_a_kind_is_synced() -> Result<(), PluginTestBenchError> {
    let mut cluster = cluster(3)?;
    let mut has_no_quotas_event = |name: &str,
                                   has_synced: Option<bool>|
     -> Result<bool, PluginTestBenchError> {
        if let Some(has_synced) = has_synced {
            cluster.set_kind_synced(&quotas(), has_synced);
            cluster.run_until_idle()?;
        }
        cluster.create_pod(pod(name))?;
        cluster.run_until_idle()?;
        Ok(cluster.take_events().contains(&format!("NoQuotas {name}: the cluster has no quotas")))
    };
    assert!(has_no_quotas_event("early", None)?);
    assert!(!has_no_quotas_event("there", Some(true))?);
    assert!(has_no_quotas_event("gone", Some(false))?);
    Ok(())
}

#[test]
fn published_values_expire_and_requeue_pods() -> Result<(), PluginTestBenchError> {
    let mut cluster = cluster(4)?;
    cluster.publish_to_plugin(NAME, &true, Duration::from_secs(60))?;
    cluster.run_until_idle()?;
    cluster.create_pod(pod("web"))?;
    cluster.advance_time(Duration::from_secs(59))?;
    assert!(cluster.pending_message("web").is_some_and(|why| why.contains("everything is closed")));
    // The published value has expired.
    cluster.advance_time(Duration::from_secs(3))?;
    assert_eq!(cluster.node_of("web"), Some("a".to_owned()));
    for (plugin, value, want) in [
        (NAME, json!("yes"), "ignored a value published to plugin \"Quota\": invalid type"),
        ("NodeName", json!(true), "no plugin \"NodeName\" accepts published values"),
    ] {
        cluster.publish_to_plugin(plugin, &value, Duration::from_secs(60))?;
        cluster.run_until_idle()?;
        let errors = cluster.take_errors();
        assert!(errors.len() == 1 && errors[0].starts_with(want), "{errors:?}");
    }
    Ok(())
}

#[test]
fn the_testkit_rejects_invalid_configurations() {
    let refusal = |plugins: Vec<PluginDef>, profile| {
        TestCluster::new(plugins, profile).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let twice = refusal(vec![DEF, DEF], json!({}));
    assert!(twice.starts_with("a plugin named \"Quota\" already exists"), "{twice}");
    let enabled = json!({"plugins": {"multiPoint": {"enabled": [{"name": NAME}]}}});
    let unknown = refusal(vec![], enabled);
    assert!(unknown.contains(NAME), "{unknown}");
}
