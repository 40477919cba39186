//! NodePorts: a pod that asks for host ports fits only where they are free.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreFilter, Filter, Sign |
//! | woken by | assigned or nominated pod with such a port deleted, node added |
//! | upstream | `plugins/nodeports`, 1.36 |
//! | deviations | works also where a profile disables its PreFilter, which upstream answers with an error |
//! | cost | O(ports of the pod · ports in use) a node, no allocation |

use std::sync::Arc;

use loadmaster_framework::event::HintQuestion;
use loadmaster_framework::points::{Fragment, Unsignable};
use loadmaster_framework::prepare::{Reads, RowPart};
use loadmaster_framework::template::HostPort;
use loadmaster_framework::{
    Action, ClusterEvent, Code, Cx, EventResource, Failure, Filter, Hint, NodeInfo, NodeTable,
    PluginDef, PluginError, PodInfo, PodTemplate, Points, PreFilter, PreFiltered, Prepare,
    Prepared, Rejection, Row, Run, SerialCx, Sign, World,
};
use serde_json::Value;

use crate::DeclaredReasons;

pub const NAME: &str = "NodePorts";

const REASON: &str = "node(s) didn't have free ports for the requested pod ports";

/// What it turns pods and nodes down with.
pub(crate) const REASONS: DeclaredReasons = &[(Code::Unschedulable, REASON)];

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

struct NodePorts;

fn build(points: &mut Points, _args: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(NodePorts);
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.prepare = Some(plugin);
    points.wake_on(
        ClusterEvent::new(EventResource::Pod, Action::DELETE),
        Some(Arc::new(after_pod_deleted)),
    );
    points.wake_on(ClusterEvent::new(EventResource::Node, Action::ADD), None);
    Ok(())
}

impl PreFilter for NodePorts {
    fn pre_filter(&self, _cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFiltered, Rejection> {
        let none = pod.template.host_ports.is_empty();
        Ok(if none { PreFiltered::Skip } else { PreFiltered::All })
    }
}

impl Filter for NodePorts {
    fn filter(&self, _cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let free = are_free(&pod.template.host_ports, node.host_ports());
        if free { Ok(()) } else { Err(Rejection::unschedulable(REASON)) }
    }
}

fn after_pod_deleted(question: &HintQuestion<'_>) -> Result<Hint, Failure> {
    let gone = question.pod_before()?;
    // A pod that was not even promised a node kept no port from anybody.
    if gone.node_name.is_empty() && gone.nominated_node_name.is_empty() {
        return Ok(Hint::Skip);
    }
    let unrelated = are_free(&question.pod.template.host_ports, gone.template.host_ports.iter());
    Ok(if unrelated { Hint::Skip } else { Hint::Queue })
}

impl Sign for NodePorts {
    fn sign(&self, pod: &PodInfo) -> Result<Vec<Fragment>, Unsignable> {
        // Upstream's signature counts the ports of every init container, and neither address nor protocol.
        let spec = &pod.template.spec;
        let containers = spec.containers.iter().chain(&spec.init_containers);
        let ports = containers.flat_map(|container| &container.ports).map(|port| port.host_port);
        let mut ports: Vec<i32> = ports.filter(|port| *port != 0).collect();
        ports.sort_unstable();
        ports.dedup();
        Ok(vec![Fragment { key: "v1.Pod.Spec.HostPorts()", value: Value::from(ports) }])
    }
}

impl Prepare for NodePorts {
    fn prepare(&self, _world: &mut World, pod: &PodInfo) -> Prepared {
        if pod.template.host_ports.is_empty() {
            return Prepared::Skip;
        }
        Prepared::Run(Box::new(FreePorts { pod: pod.template.clone() }))
    }
}

struct FreePorts {
    pod: Arc<PodTemplate>,
}

impl Run for FreePorts {
    fn reads(&self) -> Reads {
        Reads { filter: Some(RowPart::Pods), ..Reads::default() }
    }

    fn filter_row(&self, nodes: &NodeTable, row: Row) -> bool {
        are_free(&self.pod.host_ports, nodes.host_ports(row).iter())
    }
}

/// Whether none of the ports in use stands in the way.
fn are_free<'a>(wanted: &[HostPort], mut used: impl Iterator<Item = &'a HostPort>) -> bool {
    !used.any(|used| wanted.iter().any(|wanted| wanted.conflicts(used)))
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use loadmaster_framework::EventObject;
    use loadmaster_framework::testkit::Bench;
    use serde_json::json;

    use super::*;

    fn bench() -> Bench {
        let mut bench = Bench::new(&DEF, json!({})).unwrap();
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

    /// What the pod at hand wants, what a pod on node `used` has, what PreFilter says and what Filter says there. The
    /// other node always fits.
    #[track_caller]
    fn check(wanted: Value, used: Value, want: &Expect) {
        let mut bench = bench();
        bench.assigned("used", pod("old", &[used])).unwrap();
        want.assert_eq(&filtered(&mut bench, pod("web", &[wanted])));
    }

    fn filtered(bench: &mut Bench, pod: Value) -> String {
        let pre_filter = bench.pre_filter(pod.clone()).unwrap();
        let verdicts = bench.filter(pod).unwrap();
        assert_eq!(verdicts[0], "free Success");
        format!("{pre_filter}, {}", verdicts[1].replace(REASON, "REASON"))
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
        bench.assigned("used", pod("old", &[json!([{"hostPort": 80}])])).unwrap();
        let mut verdicts = |policy: Option<&str>| {
            let init = json!({"ports": [{"hostPort": 80}], "restartPolicy": policy});
            filtered(&mut bench, json!({"spec": {"initContainers": [init]}}))
        };
        expect!["All, used Unschedulable REASON"].assert_eq(&verdicts(Some("Always")));
        expect!["Skip, used Success"].assert_eq(&verdicts(None));
    }

    #[test]
    fn hints() {
        let mut bench = bench();
        let web = pod("web", &[json!([{"hostPort": 80}])]);
        let mut ask = |port: i32, node: &str, nominated: &str| {
            let mut gone = pod("old", &[json!([{"hostPort": port}])]);
            gone["spec"]["nodeName"] = node.into();
            gone["status"] = json!({"nominatedNodeName": nominated});
            let gone = bench.pod(gone).unwrap();
            let event = ClusterEvent::new(EventResource::AssignedPod, Action::DELETE);
            bench.hint(event, web.clone(), Some(EventObject::Pod(&gone)), None).unwrap()
        };
        assert_eq!(ask(80, "used", ""), "Queue");
        assert_eq!(ask(80, "", "used"), "Queue");
        assert_eq!(ask(80, "", ""), "Skip");
        assert_eq!(ask(443, "used", ""), "Skip");
        assert_eq!(ask(0, "used", ""), "Skip");
        let added = ClusterEvent::new(EventResource::Node, Action::ADD);
        assert_eq!(bench.hint(added, web.clone(), None, None).unwrap(), "Queue");
        let taint = ClusterEvent::new(EventResource::Node, Action::UPDATE_NODE_TAINT);
        assert_eq!(bench.hint(taint, web, None, None).unwrap(), "Unregistered");
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
}
