//! The EndpointSlice controller: the addresses of the pods that a Service selects.
//!
//! | | |
//! | --- | --- |
//! | writes | EndpointSlices, owned by their Service |
//! | upstream | `pkg/controller/endpointslice`, 1.36 |
//! | deviations | no topology hints and no annotation `last-change-trigger-time`; a changed zone label of a node shows with the next change of a pod |

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind};
use crate::meta::{Labels, controller_reference, is_terminating, label_value};
use crate::result_builder::ReconcileResultBuilder;
use crate::workload::{controller_key, is_ready, is_terminal, node_of};

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const HEADLESS: &str = "service.kubernetes.io/headless";
const CONTROLLER: &str = "endpointslice-controller.k8s.io";
const ZONE: &str = "topology.kubernetes.io/zone";

/// Endpoints per slice (upstream's `--max-endpoints-per-slice`).
const N_ENDPOINTS_MAX: usize = 100;

/// The controller of EndpointSlices.
#[derive(Debug, Default)]
pub(crate) struct EndpointSliceController;

impl Controller for EndpointSliceController {
    fn name(&self) -> &'static str {
        "endpointslice-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::Service, Kind::Pod, Kind::Node, Kind::EndpointSlice]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, cache: &Cache) -> Vec<Key> {
        let Some(object) = change.new_or_old() else { return Vec::new() };
        match object.kind() {
            Kind::Service => vec![object.key()],
            Kind::EndpointSlice => {
                controller_key(object.metadata(), Kind::Service).into_iter().collect()
            }
            Kind::Pod => {
                let namespace = object.metadata().namespace.as_deref().unwrap_or_default();
                let services = cache.store::<Service>().in_namespace(namespace);
                let versions = [change.old, change.new];
                let is_selected = |service: &Service| {
                    versions.iter().flatten().any(|pod| selects(service, pod.metadata()))
                };
                services.filter(|it| is_selected(it)).map(|it| Key::from_object(&**it)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let Some(service) = cache.get::<Service>(&key.namespace, &key.name) else {
            return ReconcileResult::none();
        };
        let Some(spec) = &service.spec else { return ReconcileResult::none() };
        let is_external = spec.type_.as_deref() == Some("ExternalName");
        if spec.selector.is_none() || is_external || is_terminating(&service.metadata) {
            return ReconcileResult::none();
        }
        let mut writes = ReconcileResultBuilder::new("endpoint-slice-controller", now);
        let uid = service.metadata.uid.as_deref().unwrap_or_default();
        let mut current: BTreeMap<Group, Vec<&EndpointSlice>> = BTreeMap::new();
        for slice in cache.store::<EndpointSlice>().owned_by(uid) {
            current.entry(Group::of_slice(slice)).or_default().push(slice);
        }
        let labels = labels(service, spec);
        for (group, endpoints) in endpoints(service, spec, cache) {
            let slices = current.remove(&group).unwrap_or_default();
            fill(service, &group, &labels, &slices, endpoints, &mut writes);
        }
        current.values().flatten().for_each(|slice| writes.delete(*slice));
        writes.build()
    }
}

/// What the endpoints of a slice have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    /// `IPv4` or `IPv6`.
    address_type: String,
    ports: Vec<Port>,
}

/// Name, protocol, number and application protocol.
type Port = (String, String, Option<i32>, Option<String>);

impl Group {
    fn of_slice(slice: &EndpointSlice) -> Group {
        let ports = slice.ports.iter().flatten().map(|port| {
            let EndpointPort { app_protocol, name, port, protocol } = port.clone();
            (name.unwrap_or_default(), protocol.unwrap_or_default(), port, app_protocol)
        });
        Group { address_type: slice.address_type.clone(), ports: ports.collect() }
    }

    fn endpoint_ports(&self) -> Vec<EndpointPort> {
        let ports = self.ports.iter().cloned().map(|(name, protocol, port, app_protocol)| {
            EndpointPort { app_protocol, name: Some(name), port, protocol: Some(protocol) }
        });
        ports.collect()
    }
}

/// The endpoints of a service by their pods.
type Endpoints = BTreeMap<String, Endpoint>;

/// Whether the selector of a service selects a pod. One without a selector selects none.
fn selects(service: &Service, pod: &ObjectMeta) -> bool {
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector.is_some_and(|all| {
        !all.is_empty() && all.iter().all(|(name, value)| label_value(pod, name) == Some(value))
    })
}

fn is_headless(spec: &ServiceSpec) -> bool {
    spec.cluster_ip.as_deref() == Some("None")
}

/// The labels of the slices: those of the service, and their own.
fn labels(service: &Service, spec: &ServiceSpec) -> Labels {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    if is_headless(spec) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    let name = service.metadata.name.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), name);
    labels.insert(MANAGED_BY.to_owned(), CONTROLLER.to_owned());
    labels
}

/// The endpoints that there should be. A service without pods has a group without ports.
fn endpoints(service: &Service, spec: &ServiceSpec, cache: &Cache) -> BTreeMap<Group, Endpoints> {
    let mut groups: BTreeMap<Group, Endpoints> = BTreeMap::new();
    let families = spec.ip_families.clone().unwrap_or_else(|| vec!["IPv4".to_owned()]);
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    for pod in cache.store::<Pod>().in_namespace(namespace) {
        if is_terminal(pod) || !selects(service, &pod.metadata) {
            continue;
        }
        for family in &families {
            let Some(endpoint) = endpoint(service, spec, pod, family, cache) else { continue };
            let group = Group { address_type: family.clone(), ports: ports(spec, pod) };
            let name = pod.metadata.name.clone().unwrap_or_default();
            groups.entry(group).or_default().insert(name, endpoint);
        }
    }
    for family in families {
        if !groups.keys().any(|group| group.address_type == family) {
            groups.insert(Group { address_type: family, ports: Vec::new() }, Endpoints::new());
        }
    }
    groups
}

/// The ports of a pod that the service names. A name that no container of the pod has is left out.
fn ports(spec: &ServiceSpec, pod: &Pod) -> Vec<Port> {
    let ports = spec.ports.iter().flatten().filter_map(|port| {
        let number = target_port(port, pod)?;
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
        let name = port.name.clone().unwrap_or_default();
        Some((name, protocol, Some(number), port.app_protocol.clone()))
    });
    ports.collect()
}

fn target_port(port: &ServicePort, pod: &Pod) -> Option<i32> {
    let name = match &port.target_port {
        None => return Some(port.port),
        Some(IntOrString::Int(number)) => return Some(*number),
        Some(IntOrString::String(name)) => name,
    };
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    let spec = pod.spec.as_ref()?;
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|it| it.restart_policy.as_deref() == Some("Always"));
    let mut all = spec.containers.iter().chain(sidecars).flat_map(|it| it.ports.iter().flatten());
    let is_wanted = |it: &&k8s_openapi::api::core::v1::ContainerPort| {
        it.name.as_ref() == Some(name) && it.protocol.as_deref().unwrap_or("TCP") == protocol
    };
    all.find(is_wanted).map(|it| it.container_port)
}

/// The endpoint of a pod, if it has an address of this family.
fn endpoint(
    service: &Service,
    spec: &ServiceSpec,
    pod: &Pod,
    family: &str,
    cache: &Cache,
) -> Option<Endpoint> {
    let addresses = pod.status.as_ref()?.pod_ips.iter().flatten().map(|it| it.ip.clone());
    let addresses = addresses.filter(|ip| ip.contains(':') == (family == "IPv6")).take(1);
    let addresses: Vec<String> = addresses.collect();
    if addresses.is_empty() {
        return None;
    }
    let (is_serving, is_going) = (is_ready(pod), is_terminating(&pod.metadata));
    let is_published = spec.publish_not_ready_addresses == Some(true);
    let node = cache.get::<Node>("", node_of(pod));
    let pod_spec = pod.spec.as_ref()?;
    let is_in_subdomain = pod_spec.subdomain == service.metadata.name;
    let ObjectMeta { name, namespace, uid, .. } = pod.metadata.clone();
    Some(Endpoint {
        addresses,
        conditions: Some(EndpointConditions {
            ready: Some(is_published || is_serving && !is_going),
            serving: Some(is_serving),
            terminating: Some(is_going),
        }),
        hostname: pod_spec.hostname.clone().filter(|_| is_in_subdomain),
        node_name: Some(node_of(pod).to_owned()),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            name,
            namespace,
            uid,
            ..ObjectReference::default()
        }),
        zone: node.and_then(|node| label_value(&node.metadata, ZONE)).map(str::to_owned),
        ..Endpoint::default()
    })
}

/// Distributes endpoints over slices: each stays in the slice that has it, others go where there is space. Empty slices are deleted, except
/// that of a service without endpoints.
fn fill(
    service: &Service,
    group: &Group,
    labels: &Labels,
    slices: &[&EndpointSlice],
    mut endpoints: Endpoints,
    writes: &mut ReconcileResultBuilder,
) {
    let n_endpoints = endpoints.len();
    let mut kept: Vec<Vec<Endpoint>> = Vec::new();
    for slice in slices {
        let pods = slice.endpoints.iter().flatten().filter_map(|it| it.target_ref.as_ref());
        let pods = pods.filter_map(|it| it.name.as_ref());
        kept.push(pods.filter_map(|pod| endpoints.remove(pod)).collect());
    }
    let mut others = endpoints.into_values();
    for entries in &mut kept {
        let n_free = N_ENDPOINTS_MAX.saturating_sub(entries.len());
        entries.extend(others.by_ref().take(n_free));
    }
    for (nth, (slice, entries)) in slices.iter().zip(kept).enumerate() {
        let is_placeholder = n_endpoints == 0 && nth == 0;
        if entries.is_empty() && !is_placeholder {
            writes.delete(*slice);
            continue;
        }
        let is_same = slice.endpoints.as_deref().unwrap_or_default() == entries
            && slice.metadata.labels.as_ref() == Some(labels);
        if !is_same {
            let mut changed = (*slice).clone();
            changed.endpoints = Some(entries);
            changed.metadata.labels = Some(labels.clone());
            writes.update(&changed);
        }
    }
    let others: Vec<Endpoint> = others.collect();
    let is_new_placeholder = n_endpoints == 0 && slices.is_empty();
    let placeholder: &[Endpoint] = &[];
    for entries in others.chunks(N_ENDPOINTS_MAX).chain(is_new_placeholder.then_some(placeholder)) {
        let ObjectMeta { name, namespace, .. } = &service.metadata;
        writes.create(&EndpointSlice {
            address_type: group.address_type.clone(),
            endpoints: Some(entries.to_vec()),
            ports: Some(group.endpoint_ports()),
            metadata: ObjectMeta {
                generate_name: Some(format!("{}-", name.as_deref().unwrap_or_default())),
                namespace: namespace.clone(),
                labels: Some(labels.clone()),
                owner_references: Some(vec![controller_reference(service)]),
                ..ObjectMeta::default()
            },
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::request::{ControllerRequest, Patch};
    use crate::testkit::ControllerBench;

    fn start(spec: Value) -> ControllerBench {
        let mut bench = ControllerBench::new(vec![Box::<EndpointSliceController>::default()]);
        bench.create(json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n", "labels": {ZONE: "a"}}}));
        bench.create(json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "default", "labels": {"team": "x"}}, "spec": spec}));
        bench
    }

    fn web() -> Value {
        json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]})
    }

    fn add_pod(bench: &mut ControllerBench, name: &str, app: &str, port: i32) {
        bench.create(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": {"app": app}},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i",
                "ports": [{"name": "http", "containerPort": port}]}]}}));
    }

    fn set_status(bench: &mut ControllerBench, name: &str, ip: &str, phase: &str, is_ready: bool) {
        let ready = if is_ready { "True" } else { "False" };
        let status = json!({"status": {"phase": phase, "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": ready}]}});
        let key = Key::new(Kind::Pod, "default", name);
        bench.send_as_client(&ControllerRequest::patch_status(key, Patch::Merge(status)));
        bench.run_until_idle();
    }

    fn run_pod(bench: &mut ControllerBench, name: &str, ip: &str) {
        add_pod(bench, name, "web", 8080);
        set_status(bench, name, ip, "Running", true);
    }

    /// The slices, one per line: ports, then addresses with those conditions that are true.
    fn shown(bench: &ControllerBench) -> String {
        let mut lines: Vec<String> = bench
            .list::<EndpointSlice>()
            .iter()
            .map(|slice| {
                let ports = slice.ports.iter().flatten().filter_map(|it| it.port);
                let ports: Vec<String> = ports.map(|it| it.to_string()).collect();
                let endpoints = slice.endpoints.iter().flatten().map(|it| {
                    let conditions = it.conditions.clone().unwrap();
                    let is = |value: Option<bool>, name: &'static str| {
                        (value == Some(true)).then_some(name)
                    };
                    let names = [
                        is(conditions.ready, "ready"),
                        is(conditions.serving, "serving"),
                        is(conditions.terminating, "terminating"),
                    ];
                    let names: Vec<&str> = names.into_iter().flatten().collect();
                    format!(" {}[{}]", it.addresses.join(","), names.join(" "))
                });
                format!(
                    "{}{}:{}",
                    slice.address_type,
                    ports.iter().map(|it| format!(" {it}")).collect::<String>(),
                    endpoints.collect::<String>()
                )
            })
            .collect();
        lines.sort();
        lines.join("\n")
    }

    #[test]
    fn pods_with_addresses_are_endpoints() {
        let mut bench = start(web());
        bench.run_until_idle();
        assert_eq!(shown(&bench), "IPv4:", "without pods there is one empty slice");
        add_pod(&mut bench, "a", "web", 8080);
        bench.run_until_idle();
        assert_eq!(shown(&bench), "IPv4:", "no address yet");
        set_status(&mut bench, "a", "10.0.0.1", "Running", false);
        assert_eq!(shown(&bench), "IPv4 8080: 10.0.0.1[]");
        set_status(&mut bench, "a", "10.0.0.1", "Running", true);
        assert_eq!(shown(&bench), "IPv4 8080: 10.0.0.1[ready serving]");
        add_pod(&mut bench, "other", "db", 8080);
        set_status(&mut bench, "other", "10.0.0.2", "Running", true);
        assert_eq!(shown(&bench), "IPv4 8080: 10.0.0.1[ready serving]");
        add_pod(&mut bench, "b", "web", 9090);
        set_status(&mut bench, "b", "10.0.0.3", "Running", true);
        assert_eq!(
            shown(&bench),
            "IPv4 8080: 10.0.0.1[ready serving]\nIPv4 9090: 10.0.0.3[ready serving]"
        );
        bench.delete(Kind::Pod, "b");
        bench.run_until_idle();
        assert_eq!(
            shown(&bench),
            "IPv4 8080: 10.0.0.1[ready serving]\nIPv4 9090: 10.0.0.3[serving terminating]"
        );
        set_status(&mut bench, "b", "10.0.0.3", "Succeeded", false);
        assert_eq!(shown(&bench), "IPv4 8080: 10.0.0.1[ready serving]");
        bench.merge(Kind::Pod, "a", json!({"metadata": {"labels": {"app": "db"}}}));
        bench.run_until_idle();
        assert_eq!(shown(&bench), "IPv4:");
    }

    #[test]
    fn a_slice_names_its_service_and_its_pods() {
        let mut bench = start(web());
        run_pod(&mut bench, "a", "10.0.0.1");
        let slices = bench.list::<EndpointSlice>();
        let slice = &slices[0];
        assert!(slice.metadata.name.as_ref().unwrap().starts_with("web-"));
        let labels = json!({SERVICE_NAME: "web", MANAGED_BY: CONTROLLER, "team": "x"});
        assert_eq!(json!(slice.metadata.labels), labels);
        let owner = crate::meta::controller_of(&slice.metadata).unwrap();
        assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("Service", "web"));
        let port = json!([{"name": "", "port": 8080, "protocol": "TCP"}]);
        assert_eq!(json!(slice.ports), port);
        let endpoint = &slice.endpoints.as_ref().unwrap()[0];
        assert_eq!(
            (endpoint.node_name.as_deref(), endpoint.zone.as_deref()),
            (Some("n"), Some("a"))
        );
        assert_eq!(endpoint.target_ref.as_ref().unwrap().name.as_deref(), Some("a"));
        let n_sent = bench.sent.len();
        bench.merge(Kind::Pod, "a", json!({"metadata": {"annotations": {"x": "y"}}}));
        bench.run_until_idle();
        assert_eq!(bench.sent.len(), n_sent, "nothing to write");
    }

    #[test]
    fn a_full_slice_is_followed_by_another_one() {
        let mut bench = start(web());
        for nth in 0..N_ENDPOINTS_MAX + 2 {
            run_pod(&mut bench, &format!("p{nth}"), &format!("10.0.1.{nth}"));
        }
        let sizes = |bench: &ControllerBench| {
            let all = bench.list::<EndpointSlice>();
            let mut sizes: Vec<usize> =
                all.iter().map(|it| it.endpoints.as_ref().map_or(0, Vec::len)).collect();
            sizes.sort_unstable();
            sizes
        };
        assert_eq!(sizes(&bench), [2, N_ENDPOINTS_MAX]);
        for name in ["p100", "p101"] {
            set_status(&mut bench, name, "10.0.1.200", "Failed", false);
        }
        assert_eq!(sizes(&bench), [N_ENDPOINTS_MAX]);
    }

    #[test]
    fn services_of_other_kinds() {
        let check = |spec: Value, want: &str| {
            let mut bench = start(spec);
            run_pod(&mut bench, "a", "10.0.0.1");
            let shown = shown(&bench);
            assert_eq!(shown, want);
        };
        check(json!({"ports": [{"port": 80}]}), "");
        check(json!({"type": "ExternalName", "externalName": "example.com"}), "");
        check(
            json!({"clusterIP": "None", "selector": {"app": "web"}}),
            "IPv4: 10.0.0.1[ready serving]",
        );
        check(
            json!({"selector": {"app": "web"}, "ports": [{"port": 80}]}),
            "IPv4 80: 10.0.0.1[ready serving]",
        );
        check(
            json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "none"}]}),
            "IPv4: 10.0.0.1[ready serving]",
        );
    }
}
