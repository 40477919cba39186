//! What plugins can do beyond a pod and a node: objects of any kind, other pods, what services publish. In a cluster in memory.

use std::sync::Arc;
use std::time::Duration;

use loadmaster::framework::*;
use loadmaster::testkit::{BenchError, Cluster, node, pod};
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

/// Turns pods down in namespaces whose quota is closed; a service may close all.
struct Plugin {
    quotas: ObjectSlot<Quota>,
    n_changes: StateSlot<u32>,
    all_closed: Published<bool>,
}

fn build(points: &mut Points, _: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(Plugin {
        quotas: points.watch(quotas(), Presence::Optional),
        n_changes: points.state(0),
        all_closed: points.published(),
    });
    points.pre_filter = Some(plugin.clone());
    points.object_events = Some(plugin);
    let changed = ClusterEvent::new(quotas().event_resource(), Action::ALL);
    points.wake_on(changed, Some(Arc::new(of_its_namespace)));
    points.wake_on(ClusterEvent::published(NAME), None);
    Ok(())
}

fn of_its_namespace(question: &event::HintQuestion<'_>) -> Result<Hint, Failure> {
    let is_open = question.new.is_none_or(|new| new.object().is_some_and(|it: &Quota| it.open));
    let Some(EventObject::Other(info)) = question.new.or(question.old) else {
        return Err(Failure::new("expected a quota"));
    };
    let is_its = info.namespace == question.pod.template.namespace;
    Ok(if is_its && is_open { Hint::Queue } else { Hint::Skip })
}

impl PreFilter for Plugin {
    fn pre_filter(&self, mut cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFiltered, Rejection> {
        if cx.published(self.all_closed) == Some(&true) {
            return Err(Rejection::unschedulable("everything is closed"));
        }
        let quotas = cx.objects(&self.quotas);
        let n_open = quotas.iter().filter(|(_, quota)| quota.open).count();
        let closed = quotas.in_namespace(&pod.template.namespace).find(|(_, quota)| !quota.open);
        let is_there = quotas.is_there();
        if let Some((info, _)) = closed {
            let changes = cx.states.get(self.n_changes).copied().unwrap_or_default();
            let text = format!("quota {} is closed, {n_open} open, {changes} changes", info.name);
            return Err(Rejection::unschedulable(text));
        }
        if !is_there {
            let event = PodEvent {
                pod: Arc::new(pod.clone()),
                is_warning: true,
                reason: "NoQuotas",
                action: "Scheduling",
                note: "the cluster has no quotas".to_owned(),
            };
            cx.tell(event);
        }
        Ok(PreFiltered::Skip)
    }
}

impl ObjectEvents for Plugin {
    fn object_changed(&self, cx: SerialCx<'_>, change: &ObjectChange) {
        assert_eq!(change.kind, quotas());
        assert!(change.old.is_some() || change.new.is_some());
        if let Some(n_changes) = cx.states.get_mut(self.n_changes) {
            *n_changes += 1;
        }
    }
}

fn cluster(seed: u64) -> Result<Cluster, BenchError> {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": NAME}]}}});
    let mut cluster = Cluster::with_seed([DEF], profile, seed)?;
    cluster.node(node("a"))?;
    Ok(cluster)
}

fn quota(namespace: &str, name: &str, open: impl Into<Value>) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace}, "open": open.into()})
}

const BACKOFF: Duration = Duration::from_secs(12);

#[test]
fn objects_are_seen_and_wake_the_pods_they_concern() -> Result<(), BenchError> {
    let mut cluster = cluster(1)?;
    cluster.object(&quotas(), quota("default", "q", false));
    cluster.object(&quotas(), quota("other", "q", true));
    cluster.settle()?;
    cluster.pod(pod("web"))?;
    cluster.settle()?;
    let why = |cluster: &Cluster| cluster.why("web").unwrap_or_default();
    assert!(why(&cluster).contains("quota q is closed, 1 open, 2 changes"), "{}", why(&cluster));
    // Another namespace's: nobody is asked again, so that the text stays.
    cluster.object(&quotas(), quota("other", "more", true));
    cluster.pass(BACKOFF)?;
    assert!(why(&cluster).contains("2 changes"), "{}", why(&cluster));
    cluster.object(&quotas(), quota("default", "q", true));
    cluster.pass(BACKOFF)?;
    assert_eq!(cluster.node_of("web"), Some("a".to_owned()));
    Ok(())
}

#[test]
fn an_object_that_goes_or_cannot_be_read_is_gone() -> Result<(), BenchError> {
    for is_deleted in [true, false] {
        let mut cluster = cluster(2)?;
        cluster.object(&quotas(), quota("default", "q", false));
        cluster.settle()?;
        cluster.pod(pod("web"))?;
        cluster.settle()?;
        assert_eq!(cluster.node_of("web"), None);
        if is_deleted {
            cluster.remove_object(&quotas(), "default", "q");
        } else {
            cluster.object(&quotas(), quota("default", "q", "perhaps"));
        }
        cluster.pass(BACKOFF)?;
        assert_eq!(cluster.node_of("web"), Some("a".to_owned()));
        assert_eq!(cluster.take_troubles().len(), usize::from(!is_deleted));
    }
    Ok(())
}

#[test]
fn a_plugin_knows_when_the_server_has_no_such_kind() -> Result<(), BenchError> {
    let mut cluster = cluster(3)?;
    let mut told = |name: &str, is_there: Option<bool>| -> Result<bool, BenchError> {
        if let Some(is_there) = is_there {
            cluster.listed(&quotas(), is_there);
            cluster.settle()?;
        }
        cluster.pod(pod(name))?;
        cluster.settle()?;
        Ok(cluster.take_events().contains(&format!("NoQuotas {name}: the cluster has no quotas")))
    };
    assert!(told("early", None)?);
    assert!(!told("there", Some(true))?);
    assert!(told("gone", Some(false))?);
    Ok(())
}

#[test]
fn what_is_published_holds_for_its_time_and_then_wakes() -> Result<(), BenchError> {
    let mut cluster = cluster(4)?;
    cluster.publish(NAME, &true, Duration::from_secs(60))?;
    cluster.settle()?;
    cluster.pod(pod("web"))?;
    cluster.pass(Duration::from_secs(59))?;
    assert!(cluster.why("web").is_some_and(|why| why.contains("everything is closed")));
    // Nobody says anything any more.
    cluster.pass(Duration::from_secs(3))?;
    assert_eq!(cluster.node_of("web"), Some("a".to_owned()));
    for (plugin, value, want) in [
        (NAME, json!("yes"), "what was published to plugin \"Quota\" is left out: invalid type"),
        ("NodeName", json!(true), "no plugin \"NodeName\" takes what is published to it"),
    ] {
        cluster.publish(plugin, &value, Duration::from_secs(60))?;
        cluster.settle()?;
        let troubles = cluster.take_troubles();
        assert!(troubles.len() == 1 && troubles[0].starts_with(want), "{troubles:?}");
    }
    Ok(())
}

#[test]
fn the_test_kit_refuses_what_a_scheduler_would() {
    let refusal = |plugins: Vec<PluginDef>, profile| {
        Cluster::new(plugins, profile).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let twice = refusal(vec![DEF, DEF], json!({}));
    assert!(twice.starts_with("a plugin named \"Quota\" already exists"), "{twice}");
    let enabled = json!({"plugins": {"multiPoint": {"enabled": [{"name": NAME}]}}});
    let unknown = refusal(vec![], enabled);
    assert!(unknown.contains(NAME), "{unknown}");
}
