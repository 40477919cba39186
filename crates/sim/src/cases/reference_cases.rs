//! Cases in which kube-scheduler has a defect, and equivalent cases in which it has none: what it answers to these is what Loadmaster must
//! answer to the original ones.

use loadmaster_api::storage::BETA_STORAGE_CLASS;
use serde_json::{Value, json};

use super::{OracleCase, full_name};

/// The first host port that [`without_shared_host_ports`] assigns. The generator uses none of these.
const FIRST_FREE_PORT: i64 = 60_000;

/// A start time after that of every other pod, as kube-scheduler assumes for pods that have not started.
const LATEST_START: &str = "2100-01-01T00:00:00Z";

const CONTAINER_LISTS: [&str; 2] = ["containers", "initContainers"];

/// Node, IP, protocol and number of the host ports of an assigned pod.
pub(super) fn host_ports(pod: &Value) -> Vec<Value> {
    let spec = &pod["spec"];
    let containers = CONTAINER_LISTS.map(|list| spec[list].as_array());
    let ports = containers.into_iter().flatten().flatten();
    let ports = ports.filter_map(|container| container["ports"].as_array()).flatten();
    let held = ports.filter(|port| is_host_port(port));
    held.map(|port| {
        let HostPort { ip, protocol, number } = HostPort::new(port);
        json!([spec["nodeName"], ip, protocol, number])
    })
    .collect()
}

/// Whether two assigned pods on one node use the same host port. kube-scheduler then treats the port as free when one of them is
/// removed.
pub fn has_shared_host_ports(case: &OracleCase) -> bool {
    let mut seen: Vec<Value> = Vec::new();
    assigned_pods(case).any(|pod| {
        let own = host_ports(pod);
        let shared = own.iter().any(|port| seen.contains(port));
        seen.extend(own);
        shared
    })
}

/// The case in which no two assigned pods on a node use the same host port. All but the first get a port of their own, which the pod to
/// schedule also needs if it needed the shared one, so that the same pods are in its way.
pub fn without_shared_host_ports(case: &OracleCase) -> OracleCase {
    let mut case = case.clone();
    let target = case.pod.clone();
    let wanted: Vec<HostPort> = case
        .objects
        .iter()
        .filter(|object| is_pod(object) && full_name(object) == target)
        .flat_map(used_host_ports)
        .collect();
    let mut taken: Vec<Value> = Vec::new();
    let mut number = FIRST_FREE_PORT;
    let mut also_wanted: Vec<HostPort> = Vec::new();
    for pod in case.objects.iter_mut().filter(|object| is_assigned(object, &target)) {
        let own = host_ports(pod);
        let mut shared: Vec<&Value> = own.iter().filter(|port| taken.contains(port)).collect();
        // A pod that has a port twice has one new port, as it had one before.
        shared.dedup();
        for shared in shared {
            let old = move_port(pod, shared, number);
            let is_used = old.iter().any(|old| wanted.iter().any(|port| port.conflicts_with(old)));
            also_wanted.extend(old.filter(|_| is_used).map(|old| HostPort { number, ..old }));
            number += 1;
        }
        taken.extend(own);
    }
    let is_target = |object: &&mut Value| is_pod(object) && full_name(object) == target;
    for pod in case.objects.iter_mut().filter(is_target) {
        let ports = &mut pod["spec"]["containers"][0]["ports"];
        if ports.is_null() {
            *ports = json!([]);
        }
        let added = also_wanted.iter().map(|HostPort { ip, protocol, number }| {
            json!({"containerPort": number, "hostPort": number, "hostIP": ip, "protocol": protocol})
        });
        ports.as_array_mut().into_iter().for_each(|ports| ports.extend(added.clone()));
    }
    case
}

/// Changes the number of a host port of an assigned pod. Returns the port as it was, if the pod really uses it.
fn move_port(pod: &mut Value, port: &Value, number: i64) -> Option<HostPort> {
    let node = pod["spec"]["nodeName"].clone();
    let is_it = |one: &HostPort| json!([node, one.ip, one.protocol, one.number]) == *port;
    let old = used_host_ports(pod).into_iter().find(is_it);
    for one in ports_mut(pod).filter(|one| is_host_port(one) && is_it(&HostPort::new(one))) {
        one["hostPort"] = json!(number);
    }
    old
}

/// Whether two pods on one node have the same priority and no start time. kube-scheduler reads the clock for each of them.
pub fn has_equal_unstarted_pods(case: &OracleCase) -> bool {
    let mut seen: Vec<Value> = Vec::new();
    assigned_pods(case).filter(|pod| is_unstarted(pod)).any(|pod| {
        let priority = pod["spec"]["priority"].as_i64().unwrap_or_default();
        let key = json!([pod["spec"]["nodeName"], priority]);
        let again = seen.contains(&key);
        seen.push(key);
        again
    })
}

/// The case in which all assigned pods that have not started have the same start time, later than that of all others.
pub fn with_equal_start_times(case: &OracleCase) -> OracleCase {
    let mut case = case.clone();
    let target = case.pod.clone();
    let pods = case.objects.iter_mut().filter(|object| is_assigned(object, &target));
    for pod in pods.filter(|pod| is_unstarted(pod)) {
        if !pod["status"].is_object() {
            pod["status"] = json!({});
        }
        pod["status"]["startTime"] = json!(LATEST_START);
    }
    case
}

/// Whether a claim has its class in the old annotation only. With StorageCapacityScoring, kube-scheduler panics when it scores a node where
/// such a claim's volume would be provisioned.
pub fn has_scored_annotated_claims(case: &OracleCase) -> bool {
    case.feature_gates.get("StorageCapacityScoring") == Some(&true)
        && case.objects.iter().any(|object| annotated_class(object).is_some())
}

/// The case in which all claims have their class in the spec.
pub fn with_classes_in_spec(case: &OracleCase) -> OracleCase {
    let mut case = case.clone();
    for claim in &mut case.objects {
        if let Some(class) = annotated_class(claim).cloned() {
            claim["spec"]["storageClassName"] = class;
        }
    }
    case
}

/// The class of a claim that has it in the annotation only.
fn annotated_class(object: &Value) -> Option<&Value> {
    let has_none = object["spec"]["storageClassName"].is_null();
    let class = object["metadata"]["annotations"].get(BETA_STORAGE_CLASS)?;
    (object["kind"] == "PersistentVolumeClaim" && has_none).then_some(class)
}

/// A host port with upstream's defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HostPort {
    ip: String,
    protocol: String,
    number: i64,
}

const ANY_IP: &str = "0.0.0.0";

impl HostPort {
    fn new(port: &Value) -> HostPort {
        let or = |value: &Value, default: &str| match value.as_str() {
            Some(text) if !text.is_empty() => text.to_owned(),
            _ => default.to_owned(),
        };
        HostPort {
            ip: or(&port["hostIP"], ANY_IP),
            protocol: or(&port["protocol"], "TCP"),
            number: port["hostPort"].as_i64().unwrap_or_default(),
        }
    }

    fn conflicts_with(&self, other: &HostPort) -> bool {
        (self.number, &self.protocol) == (other.number, &other.protocol)
            && (self.ip == other.ip || self.ip == ANY_IP || other.ip == ANY_IP)
    }
}

fn is_host_port(port: &Value) -> bool {
    port["hostPort"].as_i64().unwrap_or_default() > 0
}

/// The host ports of containers and sidecars; those of other init containers are never used.
fn used_host_ports(pod: &Value) -> Vec<HostPort> {
    let containers = CONTAINER_LISTS.into_iter().flat_map(|list| {
        let containers = pod["spec"][list].as_array().into_iter().flatten();
        containers.filter(move |one| list == "containers" || one["restartPolicy"] == "Always")
    });
    let ports =
        containers.flat_map(|container| container["ports"].as_array().into_iter().flatten());
    ports.filter(|port| is_host_port(port)).map(HostPort::new).collect()
}

fn ports_mut(pod: &mut Value) -> impl Iterator<Item = &mut Value> {
    let spec = pod["spec"].as_object_mut().into_iter().flat_map(|spec| spec.iter_mut());
    let lists = spec.filter(|(field, _)| CONTAINER_LISTS.contains(&field.as_str()));
    let containers = lists.flat_map(|(_, list)| list.as_array_mut().into_iter().flatten());
    containers.flat_map(|container| {
        container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten()
    })
}

fn is_pod(object: &Value) -> bool {
    object["kind"] == "Pod"
}

fn is_assigned(object: &Value, target: &str) -> bool {
    is_pod(object) && object["spec"].get("nodeName").is_some() && full_name(object) != target
}

fn assigned_pods(case: &OracleCase) -> impl Iterator<Item = &Value> {
    case.objects.iter().filter(|object| is_assigned(object, &case.pod))
}

fn is_unstarted(pod: &Value) -> bool {
    pod["status"].get("startTime").is_none_or(Value::is_null)
}

#[cfg(test)]
mod tests {
    use super::super::OracleCaseKind;
    use super::*;

    fn pod(name: &str, node: Option<&str>, ports: Value) -> Value {
        let containers = json!([{"name": "c", "ports": ports}]);
        let mut pod =
            json!({"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers}});
        if let Some(node) = node {
            pod["spec"]["nodeName"] = json!(node);
        }
        pod
    }

    fn case(objects: Vec<Value>) -> OracleCase {
        let kind = OracleCaseKind::Preemption;
        OracleCase {
            id: 0,
            pod: "default/web".to_owned(),
            config: None,
            feature_gates: Default::default(),
            objects,
            kind,
        }
    }

    /// The host ports of a pod as `ip/protocol/number`.
    fn ports(case: &OracleCase, name: &str) -> Vec<String> {
        let pod = case.objects.iter().find(|object| object["metadata"]["name"] == name).unwrap();
        let shown = |port: HostPort| format!("{}/{}/{}", port.ip, port.protocol, port.number);
        used_host_ports(pod).into_iter().map(shown).collect()
    }

    #[track_caller]
    fn check(web: Value, second: Value, want_web: &[&str], want_second: &[&str]) {
        let objects = vec![
            pod("first", Some("a"), json!([{"hostPort": 80}, {"hostPort": 90}])),
            pod("elsewhere", Some("b"), json!([{"hostPort": 80}])),
            pod("second", Some("a"), second),
            pod("web", None, web),
        ];
        let case = case(objects);
        let separate = without_shared_host_ports(&case);
        assert_eq!(ports(&separate, "web"), want_web);
        assert_eq!(ports(&separate, "second"), want_second);
        assert_eq!(ports(&separate, "first"), ports(&case, "first"));
        assert_eq!(ports(&separate, "elsewhere"), ports(&case, "elsewhere"));
        assert!(!has_shared_host_ports(&separate));
        assert_eq!(has_shared_host_ports(&case), separate != case);
    }

    #[test]
    fn shared_host_ports_are_separated() {
        let port = |number: i64| json!([{"hostPort": number}]);
        let (web, new) = ("0.0.0.0/TCP/80", "0.0.0.0/TCP/60000");
        check(port(80), port(80), &[web, new], &[new]);
        // The shared port is not in the way of the pod.
        check(port(81), port(80), &["0.0.0.0/TCP/81"], &[new]);
        check(json!([]), port(80), &[], &[new]);
        // Nothing is shared.
        check(port(80), port(81), &[web], &["0.0.0.0/TCP/81"]);
        let udp = json!([{"hostPort": 80, "protocol": "UDP"}]);
        check(port(80), udp, &[web], &["0.0.0.0/UDP/80"]);
        // Another address conflicts with the pod, but is not shared.
        let local = || json!([{"hostPort": 80, "hostIP": "127.0.0.1"}]);
        check(port(80), local(), &[web], &["127.0.0.1/TCP/80"]);
        // The pod's own address conflicts with the shared port of all addresses.
        check(local(), port(80), &["127.0.0.1/TCP/80", new], &[new]);
        // Two shared ports.
        let both = || json!([{"hostPort": 80}, {"hostPort": 90}]);
        let other = "0.0.0.0/TCP/60001";
        check(both(), both(), &[web, "0.0.0.0/TCP/90", new, other], &[new, other]);
    }

    #[test]
    fn annotated_classes_move_to_the_spec() {
        let claim = |class: Value| {
            let annotations = json!({BETA_STORAGE_CLASS: "fast"});
            json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "data", "annotations": annotations},
                "spec": {"storageClassName": class}})
        };
        let mut case = case(vec![claim(Value::Null), claim(json!("slow"))]);
        assert!(!has_scored_annotated_claims(&case));
        case.feature_gates.insert("StorageCapacityScoring".to_owned(), true);
        assert!(has_scored_annotated_claims(&case));
        let moved = with_classes_in_spec(&case);
        assert_eq!(moved.objects, [claim(json!("fast")), claim(json!("slow"))]);
        assert!(!has_scored_annotated_claims(&moved));
    }

    #[test]
    fn unstarted_pods_get_one_start_time() {
        let started = |name: &str, time: Value| {
            let mut pod = pod(name, Some("a"), json!([]));
            pod["status"] = json!({"startTime": time});
            pod
        };
        let first = started("first", json!("2024-05-01T10:00:00Z"));
        let two = vec![first.clone(), started("p", Value::Null), pod("q", Some("a"), json!([]))];
        let case = case(two);
        assert!(has_equal_unstarted_pods(&case));
        let equal = with_equal_start_times(&case);
        assert!(!has_equal_unstarted_pods(&equal));
        assert_eq!(equal.objects[0], first);
        assert_eq!(equal.objects[1]["status"]["startTime"], LATEST_START);
        assert_eq!(equal.objects[2]["status"]["startTime"], LATEST_START);
    }
}
