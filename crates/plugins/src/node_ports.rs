//! NodePorts: a pod that requests host ports fits only on nodes where they are free.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreFilter, Filter, Sign |
//! | woken by | assigned or nominated pod with such a port deleted, node added |
//! | upstream | `plugins/nodeports`, 1.36 |
//! | deviations | also works in a profile that disables its PreFilter; upstream returns an error there |
//! | cost | O(ports of the pod · ports in use) per node, no allocation |

use std::sync::Arc;

use loadmaster_api::SharedPodSpec;
use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::extension_points::{SignFragment, UnsignablePod};
use loadmaster_framework::incremental::{FilterScope, ResultDependencies, RowDependency};
use loadmaster_framework::template::HostPort;
use loadmaster_framework::{
    ActionType, ClusterEvent, Code, Cx, Detail, EvaluatorCx, EventResource, Explain,
    ExtensionPoints, Failure, Filter, Incremental, NodeInfo, NodeRow, PluginDef, PluginError,
    PluginEvaluator, PodInfo, PreFilter, PreFilterResult, PrepareCx, PrepareResult, QueueingHint,
    Rejection, SerialCx, Sign,
};
use serde_json::Value;

use crate::DeclaredReasons;
use crate::explain_text::facts_detail;

pub const NAME: &str = "NodePorts";

const REASON: &str = "node(s) didn't have free ports for the requested pod ports";

/// The reasons with which this plugin rejects pods and nodes.
pub(crate) const REASONS: DeclaredReasons = &[(Code::Unschedulable, REASON)];

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

struct NodePorts;

fn build(points: &mut ExtensionPoints, _args: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(NodePorts);
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.explain = Some(plugin.clone());
    points.incremental = Some(plugin);
    points.register_event(
        ClusterEvent::new(EventResource::Pod, ActionType::DELETE),
        Some(Arc::new(after_pod_deleted)),
    );
    points.register_event(ClusterEvent::new(EventResource::Node, ActionType::ADD), None);
    Ok(())
}

impl PreFilter for NodePorts {
    fn pre_filter(&self, _cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        let none = pod.template.host_ports.is_empty();
        Ok(if none { PreFilterResult::Skip } else { PreFilterResult::All })
    }
}

impl Filter for NodePorts {
    fn filter(&self, _cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        result(are_free(&pod.template.host_ports, node.host_ports()))
    }
}

fn result(are_free: bool) -> Result<(), Rejection> {
    if are_free { Ok(()) } else { Err(Rejection::unschedulable(REASON)) }
}

impl Explain for NodePorts {
    fn node_details(&self, _cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Vec<Detail> {
        let wanted = &pod.template.host_ports;
        // Most nodes have no pod with such a port.
        if are_free(wanted, node.host_ports()) {
            return Vec::new();
        }
        let facts = wanted.iter().filter_map(|port| {
            let wanted = std::slice::from_ref(port);
            let user = node.pods().find(|it| !are_free(wanted, it.template.host_ports.iter()))?;
            let HostPort { ip, protocol, port } = port;
            Some(format!("{protocol} {ip}:{port} is used by {}", user.full_name()))
        });
        facts_detail("usedPorts", facts)
    }
}

fn after_pod_deleted(hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let deleted = hint_args.old_pod()?;
    // A pod that was neither assigned nor nominated to a node used no port.
    if deleted.node_name.is_empty() && deleted.nominated_node_name.is_empty() {
        return Ok(QueueingHint::Skip);
    }
    let unrelated =
        are_free(&hint_args.pod.template.host_ports, deleted.template.host_ports.iter());
    Ok(if unrelated { QueueingHint::Skip } else { QueueingHint::Queue })
}

impl Sign for NodePorts {
    fn sign(&self, pod: &PodInfo) -> Result<Vec<SignFragment>, UnsignablePod> {
        // Upstream's signature contains the ports of every init container, but neither address nor protocol.
        let spec = &pod.template.spec;
        let containers = spec.containers.iter().chain(&spec.init_containers);
        let ports = containers.flat_map(|container| &container.ports).map(|port| port.host_port);
        let mut ports: Vec<i32> = ports.filter(|port| *port != 0).collect();
        ports.sort_unstable();
        ports.dedup();
        Ok(vec![SignFragment { key: "v1.Pod.Spec.HostPorts()", value: Value::from(ports) }])
    }
}

impl Incremental for NodePorts {
    /// The wanted ports with protocol and address.
    type Key = Box<[HostPort]>;

    fn key(&self, _cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<Self::Key> {
        Some(pod.template.host_ports.clone())
    }

    fn key_is_of_spec(&self, _: &SharedPodSpec) -> bool {
        true
    }

    fn key_reads_resources(&self) -> bool {
        false
    }

    fn prepare(&self, _cx: &mut PrepareCx<'_>, wanted: &Self::Key) -> PrepareResult {
        if wanted.is_empty() {
            return PrepareResult::Skip;
        }
        PrepareResult::Evaluator(Box::new(NodePortsEvaluator { wanted: wanted.clone() }))
    }
}

struct NodePortsEvaluator {
    wanted: Box<[HostPort]>,
}

impl PluginEvaluator for NodePortsEvaluator {
    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies { filter: Some(RowDependency::Pods), ..ResultDependencies::default() }
    }

    fn filter_scope(&self) -> FilterScope {
        FilterScope::Node
    }

    fn filter_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> bool {
        are_free(&self.wanted, cx.nodes().host_ports(row).iter())
    }

    fn filter_result(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> Option<Result<(), Rejection>> {
        Some(result(self.filter_row(cx, row)))
    }
}

/// Whether no used port conflicts with a wanted one.
fn are_free<'a>(wanted: &[HostPort], mut used: impl Iterator<Item = &'a HostPort>) -> bool {
    !used.any(|used| wanted.iter().any(|wanted| wanted.conflicts(used)))
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use loadmaster_framework::EventObject;
    use loadmaster_framework::testkit::PluginTestBench;
    use serde_json::json;

    use super::*;

    fn bench() -> PluginTestBench {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        for name in ["free", "used"] {
            bench.node(json!({"metadata": {"name": name}})).unwrap();
        }
        bench
    }

    /// A pod with one container for each list of ports.
    fn pod(name: &str, containers: &[Value]) -> Value {
        let containers: Vec<Value> =
            containers.iter().map(|ports| json!({"ports": ports})).collect();
        json!({"metadata": {"name": name}, "spec": {"containers": containers}})
    }

    /// The ports of the incoming pod, the ports of a pod on node `used`, and the results of PreFilter and of Filter for
    /// that node. The other node always fits.
    #[track_caller]
    fn check(wanted: Value, used: Value, want: &Expect) {
        let mut bench = bench();
        bench.add_assigned_pod("used", pod("old", &[used])).unwrap();
        want.assert_eq(&filtered(&mut bench, pod("web", &[wanted])));
    }

    fn filtered(bench: &mut PluginTestBench, pod: Value) -> String {
        let pre_filter = bench.pre_filter(pod.clone()).unwrap();
        let results = bench.filter(pod).unwrap();
        assert_eq!(results[0], "free Success");
        format!("{pre_filter}, {}", results[1].replace(REASON, "REASON"))
    }

    #[test]
    fn filter() {
        let port = |port: i32| json!([{"hostPort": port}]);
        check(json!([]), port(80), &expect!["Skip, used Success"]);
        check(json!([{"containerPort": 80}]), port(80), &expect!["Skip, used Success"]);
        check(port(80), port(443), &expect!["All, used Success"]);
        check(port(80), port(80), &expect!["All, used Unschedulable REASON"]);
        check(
            json!([{"hostPort": 443}, {"hostPort": 80}]),
            port(80),
            &expect!["All, used Unschedulable REASON"],
        );
        let at = |ip: &str| json!([{"hostPort": 80, "hostIP": ip}]);
        check(at("10.0.0.1"), at("10.0.0.2"), &expect!["All, used Success"]);
        check(at("10.0.0.1"), at("10.0.0.1"), &expect!["All, used Unschedulable REASON"]);
        check(at("10.0.0.1"), at("0.0.0.0"), &expect!["All, used Unschedulable REASON"]);
        check(at(""), at("10.0.0.1"), &expect!["All, used Unschedulable REASON"]);
        let udp = json!([{"hostPort": 80, "protocol": "UDP"}]);
        check(udp.clone(), port(80), &expect!["All, used Success"]);
        check(udp.clone(), udp, &expect!["All, used Unschedulable REASON"]);
    }

    #[test]
    fn sidecars_count_and_other_init_containers_do_not() {
        let mut bench = bench();
        bench.add_assigned_pod("used", pod("old", &[json!([{"hostPort": 80}])])).unwrap();
        let mut results = |policy: Option<&str>| {
            let init = json!({"ports": [{"hostPort": 80}], "restartPolicy": policy});
            filtered(&mut bench, json!({"spec": {"initContainers": [init]}}))
        };
        expect!["All, used Unschedulable REASON"].assert_eq(&results(Some("Always")));
        expect!["Skip, used Success"].assert_eq(&results(None));
    }

    #[test]
    fn hints() {
        let mut bench = bench();
        let web = pod("web", &[json!([{"hostPort": 80}])]);
        let mut hint = |port: i32, node: &str, nominated: &str| {
            let mut deleted = pod("old", &[json!([{"hostPort": port}])]);
            deleted["spec"]["nodeName"] = node.into();
            deleted["status"] = json!({"nominatedNodeName": nominated});
            let deleted = bench.parse_pod(deleted).unwrap();
            let event = ClusterEvent::new(EventResource::AssignedPod, ActionType::DELETE);
            bench.queueing_hint(event, web.clone(), Some(EventObject::Pod(&deleted)), None).unwrap()
        };
        assert_eq!(hint(80, "used", ""), "Queue");
        assert_eq!(hint(80, "", "used"), "Queue");
        assert_eq!(hint(80, "", ""), "Skip");
        assert_eq!(hint(443, "used", ""), "Skip");
        assert_eq!(hint(0, "used", ""), "Skip");
        let added = ClusterEvent::new(EventResource::Node, ActionType::ADD);
        assert_eq!(bench.queueing_hint(added, web.clone(), None, None).unwrap(), "Queue");
        let taint = ClusterEvent::new(EventResource::Node, ActionType::UPDATE_NODE_TAINT);
        assert_eq!(bench.queueing_hint(taint, web, None, None).unwrap(), "Unregistered");
    }

    #[test]
    fn sign() {
        let mut web = pod("web", &[json!([{"hostPort": 443}, {"hostPort": 80}]), json!([{}])]);
        web["spec"]["initContainers"] = json!([{"ports": [{"hostPort": 80}, {"hostPort": 22}]}]);
        let signed = bench().sign(web).unwrap();
        assert_eq!(signed, json!({"v1.Pod.Spec.HostPorts()": [22, 80, 443]}));
        let signed = bench().sign(json!({})).unwrap();
        assert_eq!(signed, json!({"v1.Pod.Spec.HostPorts()": []}));
    }

    #[test]
    fn explain_names_the_pod_that_uses_a_port() {
        let mut bench = bench();
        let ports = json!([{"hostPort": 80}, {"hostPort": 443, "hostIP": "10.0.0.1"}]);
        bench.add_assigned_pod("used", pod("old", &[ports])).unwrap();
        let mut explain = |ports: Value| bench.explain(pod("web", &[ports])).unwrap().join(", ");
        expect!["used: usedPorts=TCP 0.0.0.0:80 is used by default/old; TCP 0.0.0.0:443 is used by default/old"].assert_eq(&explain(json!([{"hostPort": 80}, {"hostPort": 443}, {"hostPort": 1}])));
        assert_eq!(explain(json!([{"hostPort": 1}])), "");
    }
}
