//! Random pods.

use std::collections::BTreeMap;

use loadmaster_api::Quantity;
use serde_json::{Map, Value, json};

use super::cluster::{CONTROLLERS, N_CLAIMS, TOPOLOGY_KEYS, Topics, api_version, uid};
use super::dice::Dice;

pub fn pod(dice: &mut Dice, topics: Topics, name: &str) -> Value {
    let app = dice.pick(&["web", "web", "db", "cache"]);
    let mut labels = json!({"app": app});
    dice.put(&mut labels, 50, "tier", |it| it.pick(&["front", "back"]).into());
    let mut metadata = json!({"name": name, "namespace": "default", "labels": labels});
    let owners: Vec<_> = CONTROLLERS.iter().copied().filter(|(_, name)| *name == app).collect();
    if !owners.is_empty() {
        let percent = if topics.always_has_owner { 100 } else { 60 };
        dice.put(&mut metadata, percent, "ownerReferences", |it| owner(it.pick(&owners)));
    }
    let n_containers = dice.range(1, 2);
    let containers: Vec<Value> =
        (0..n_containers).map(|at| container(dice, topics, &format!("c{at}"))).collect();
    let mut spec = json!({"containers": containers});
    if topics.init_containers {
        dice.put(&mut spec, 50, "initContainers", |it| {
            let n = it.range(1, 2);
            (0..n).map(|at| container(it, topics, &format!("init{at}"))).collect()
        });
    }
    if topics.overhead {
        dice.put(&mut spec, 50, "overhead", overhead);
    }
    if topics.node_affinity {
        dice.put(&mut spec, 40, "nodeSelector", |it| match it.range(0, 2) {
            0 => json!({"disk": "ssd"}),
            1 => json!({"rack": it.pick(&["1", "2"])}),
            _ => json!({"topology.kubernetes.io/zone": it.pick(&["a", "b"])}),
        });
    }
    let mut affinity = json!({});
    if topics.node_affinity {
        dice.put(&mut affinity, 60, "nodeAffinity", node_affinity);
    }
    if topics.pod_affinity {
        dice.put(&mut affinity, 40, "podAffinity", pod_affinity);
        dice.put(&mut affinity, 40, "podAntiAffinity", pod_affinity);
    }
    if affinity != json!({}) {
        spec["affinity"] = affinity;
    }
    if topics.taints {
        dice.put(&mut spec, 60, "tolerations", tolerations);
    }
    if topics.spread {
        dice.put(&mut spec, 70, "topologySpreadConstraints", |it| {
            spread_constraints(it, topics, app)
        });
    }
    if topics.volumes {
        dice.put(&mut spec, 70, "volumes", |it| volumes(it, topics));
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

fn owner((kind, name): (&str, &str)) -> Value {
    json!([{
        "apiVersion": api_version(kind), "kind": kind, "name": name, "uid": uid(kind, name),
        "controller": true,
    }])
}

fn container(dice: &mut Dice, topics: Topics, name: &str) -> Value {
    let image = dice.pick(&["web:v1", "db:v1", "tool", "large:v1", "unknown"]);
    let mut container = json!({"name": name, "image": format!("registry.example/{image}")});
    let mut requests = json!({});
    dice.put(&mut requests, 75, "cpu", |it| {
        it.pick(&["100m", "250m", "500m", "1", "2", "0"]).into()
    });
    dice.put(&mut requests, 75, "memory", |it| {
        it.pick(&["100Mi", "512Mi", "1Gi", "3Gi", "1000000"]).into()
    });
    dice.put(&mut requests, 15, "ephemeral-storage", |it| it.pick(&["1Gi", "10Gi"]).into());
    if topics.scalar_resources {
        dice.put(&mut requests, 35, "example.com/gpu", |it| it.pick(&["1", "1", "2"]).into());
    }
    if requests != json!({}) {
        container["resources"] = json!({"requests": requests});
    }
    if topics.ports {
        dice.put(&mut container, 50, "ports", |it| {
            let port = it.pick(&[80, 8080]);
            let mut port =
                json!({"containerPort": port, "hostPort": port, "protocol": it.pick(&["TCP", "TCP", "UDP"])});
            it.put(&mut port, 30, "hostIP", |it| it.pick(&["127.0.0.1", "0.0.0.0"]).into());
            json!([port])
        });
    }
    container
}

/// What a runtime class adds to the requests of the containers.
fn overhead(dice: &mut Dice) -> Value {
    let mut overhead = json!({});
    dice.put(&mut overhead, 40, "cpu", |it| it.pick(&["50m", "250m", "1"]).into());
    dice.put(&mut overhead, 70, "memory", |it| it.pick(&["120Mi", "1Gi"]).into());
    overhead
}

/// What the scheduler counts for a pod, by resource and in thousandths: the sum over its containers, or an init container if that requests
/// more, and the overhead.
pub fn requests(pod: &Value) -> BTreeMap<String, i64> {
    let of_containers = |field: &str| {
        let containers = pod["spec"][field].as_array().into_iter().flatten();
        let lists = containers.map(|container| amounts(&container["resources"]["requests"]));
        lists.flatten().collect::<Vec<_>>()
    };
    let mut requests: BTreeMap<String, i64> = BTreeMap::new();
    for (name, amount) in of_containers("containers") {
        *requests.entry(name).or_default() += amount;
    }
    for (name, amount) in of_containers("initContainers") {
        let sum = requests.entry(name).or_default();
        *sum = amount.max(*sum);
    }
    for (name, amount) in amounts(&pod["spec"]["overhead"]) {
        *requests.entry(name).or_default() += amount;
    }
    requests
}

/// The amounts of a list of resources, in thousandths.
pub fn amounts(list: &Value) -> BTreeMap<String, i64> {
    let amounts = list.as_object().into_iter().flatten();
    let amounts = amounts.filter_map(|(name, amount)| {
        Some((name.clone(), Quantity::parse(amount.as_str()?).ok()?.milli_value()))
    });
    amounts.collect()
}

fn node_requirements(dice: &mut Dice) -> Value {
    let requirement = match dice.range(0, 4) {
        0 => json!({"key": "disk", "operator": "In", "values": ["ssd", "hdd"]}),
        1 => json!({"key": "rack", "operator": "NotIn", "values": [dice.pick(&["1", "2"])]}),
        2 => json!({"key": "retiring", "operator": "DoesNotExist"}),
        3 => json!({"key": "rack", "operator": "Gt", "values": ["1"]}),
        _ => json!({"key": "disk", "operator": "Exists"}),
    };
    json!({"matchExpressions": [requirement]})
}

fn node_affinity(dice: &mut Dice) -> Value {
    let mut affinity = json!({});
    dice.put(&mut affinity, 50, "requiredDuringSchedulingIgnoredDuringExecution", |it| {
        let n = it.range(1, 2);
        json!({"nodeSelectorTerms": (0..n).map(|_| node_requirements(it)).collect::<Value>()})
    });
    dice.put(&mut affinity, 70, "preferredDuringSchedulingIgnoredDuringExecution", |it| {
        let n = it.range(1, 2);
        let term = |it: &mut Dice| json!({"weight": it.pick(&[1, 10, 100]), "preference": node_requirements(it)});
        (0..n).map(|_| term(it)).collect()
    });
    affinity
}

fn pod_term(dice: &mut Dice) -> Value {
    let selector = match dice.range(0, 3) {
        0 => json!({"matchLabels": {"app": "web"}}),
        1 => json!({"matchLabels": {"app": "db"}}),
        2 => json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["front"]}]}),
        _ => json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}),
    };
    let mut term = json!({"labelSelector": selector, "topologyKey": dice.pick(TOPOLOGY_KEYS)});
    dice.put(&mut term, 15, "namespaces", |it| {
        it.pick(&[&["other"][..], &["default", "other"]]).to_vec().into()
    });
    term
}

/// Affinity or anti-affinity to pods.
fn pod_affinity(dice: &mut Dice) -> Value {
    let mut affinity = json!({});
    dice.put(&mut affinity, 40, "requiredDuringSchedulingIgnoredDuringExecution", |it| {
        let n = it.pick(&[1, 1, 1, 2]);
        (0..n).map(|_| pod_term(it)).collect()
    });
    dice.put(&mut affinity, 70, "preferredDuringSchedulingIgnoredDuringExecution", |it| {
        let n = it.range(1, 2);
        let term = |it: &mut Dice| json!({"weight": it.pick(&[1, 10, 100]), "podAffinityTerm": pod_term(it)});
        (0..n).map(|_| term(it)).collect()
    });
    affinity
}

fn tolerations(dice: &mut Dice) -> Value {
    let n = dice.range(1, 2);
    let toleration = |dice: &mut Dice| {
        let mut toleration = json!({"key": dice.pick(&["dedicated", "maintenance", "slow"])});
        match dice.percent(50) {
            true => toleration["operator"] = "Exists".into(),
            false => {
                toleration["operator"] = "Equal".into();
                toleration["value"] = dice.pick(&["x", "y"]).into();
            }
        }
        dice.put(&mut toleration, 50, "effect", |it| {
            it.pick(&["NoSchedule", "PreferNoSchedule"]).into()
        });
        toleration
    };
    (0..n).map(|_| toleration(dice)).collect()
}

fn spread_constraints(dice: &mut Dice, topics: Topics, app: &str) -> Value {
    let keys = dice.some(TOPOLOGY_KEYS, 1, 2);
    let when = required_or_not(dice, keys.len(), topics.many_required_constraints);
    let constraint = |(key, when): (&str, &str)| {
        json!({
            "maxSkew": dice.range(1, 3),
            "topologyKey": key,
            "whenUnsatisfiable": when,
            "labelSelector": {"matchLabels": {"app": app}},
        })
    };
    keys.into_iter().zip(when).map(constraint).collect()
}

/// For so many constraints, whether they must be satisfied.
pub fn required_or_not(dice: &mut Dice, n: usize, many_required: bool) -> Vec<&'static str> {
    let mut when = Vec::new();
    for _ in 0..n {
        let has_required = when.contains(&"DoNotSchedule");
        let may_be_required = many_required || !has_required;
        when.push(match may_be_required && dice.percent(40) {
            true => "DoNotSchedule",
            false => "ScheduleAnyway",
        });
    }
    when
}

/// Kinds of disks that are limited per node.
pub const DISKS: &[&str] = &["awsElasticBlockStore", "gcePersistentDisk", "azureDisk", "cinder"];

/// A disk with its source, as in a pod or in a PersistentVolume.
pub fn disk(dice: &mut Dice, topics: Topics, at: i64) -> Value {
    let kind = dice.pick(&topics.disks);
    let id = format!("{kind}-{at}");
    let source = match kind {
        "awsElasticBlockStore" | "cinder" => json!({"volumeID": id}),
        "gcePersistentDisk" => json!({"pdName": id, "readOnly": true}),
        _ => json!({"diskName": id, "diskURI": format!("https://disks.example/{id}")}),
    };
    Value::Object(Map::from_iter([(kind.to_owned(), source)]))
}

fn volumes(dice: &mut Dice, topics: Topics) -> Value {
    let n = dice.range(1, 3);
    let volume = |at: i64| {
        let mut volume = if topics.claims && dice.percent(50) {
            let claim = format!("claim-{}", dice.range(0, N_CLAIMS - 1));
            json!({"persistentVolumeClaim": {"claimName": claim}})
        } else {
            let number = dice.range(0, 5);
            disk(dice, topics, number)
        };
        volume["name"] = format!("v{at}").into();
        volume
    };
    (0..n).map(volume).collect()
}
