//! Addresses and node ports of services.

use expect_test::{Expect, expect};
use http::Method;
use loadmaster_apiserver::ApiServer;
use serde_json::{Value, json};

use super::testkit::{MERGE, call, call_with, create, patch, said, server};

const SERVICES: &str = "/api/v1/namespaces/default/services";

fn service(name: &str, spec: &Value) -> Value {
    let mut whole = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
    for (field, value) in spec.as_object().into_iter().flatten() {
        whole["spec"][field] = value.clone();
    }
    whole
}

fn make(server: &ApiServer, name: &str, spec: Value) -> Value {
    create(server, SERVICES, service(name, &spec))["spec"].take()
}

#[track_caller]
fn refused(server: &ApiServer, spec: Value, want: &Expect) {
    want.assert_eq(&said(call(server, Method::POST, SERVICES, service("no", &spec))));
}

/// Changes the service `s`.
#[track_caller]
fn changed(server: &ApiServer, spec: Value, want: &Expect) {
    let path = format!("{SERVICES}/s");
    want.assert_eq(&said(call_with(server, Method::PATCH, &path, MERGE, json!({"spec": spec}))));
}

#[test]
fn cluster_ips_are_in_range_and_unique() {
    let server = server();
    assert_eq!(make(&server, "a", json!({"clusterIP": "10.96.0.9"}))["clusterIP"], "10.96.0.9");
    let given = make(&server, "b", json!({}));
    assert_eq!(given["clusterIP"], "10.96.1.1");
    assert_eq!(given["clusterIPs"], json!(["10.96.1.1"]));
    refused(
        &server,
        json!({"clusterIP": "10.96.0.9"}),
        &expect![[
            r#"422 Invalid: Service "no" is invalid: spec.clusterIPs: Invalid value: ["10.96.0.9"]: failed to allocate IP 10.96.0.9: provided IP is already allocated"#
        ]],
    );
    refused(
        &server,
        json!({"clusterIP": "10.0.0.9"}),
        &expect![[
            r#"422 Invalid: Service "no" is invalid: spec.clusterIPs: Invalid value: ["10.0.0.9"]: failed to allocate IP 10.0.0.9: the provided network does not match the current range"#
        ]],
    );
    refused(
        &server,
        json!({"clusterIP": "10.96.0"}),
        &expect![[
            r#"422 Invalid: Service "no" is invalid: spec.clusterIPs[0]: Invalid value: "10.96.0": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#
        ]],
    );
    refused(
        &server,
        json!({"clusterIP": "10.96.0.010"}),
        &expect![[
            r#"422 Invalid: Service "no" is invalid: spec.clusterIPs[0]: Invalid value: "10.96.0.010": must not have leading 0s"#
        ]],
    );
    refused(
        &server,
        json!({"clusterIP": "fd00::1"}),
        &expect![[
            r#"422 Invalid: Service "no" is invalid: spec.clusterIPs[0]: Invalid value: ["fd00::1"]: IPv6 is not configured on this cluster"#
        ]],
    );
    refused(
        &server,
        json!({"ipFamilyPolicy": "RequireDualStack"}),
        &expect![[
            r#"422 Invalid: Service "no" is invalid: spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for dual-stack services"#
        ]],
    );
    call(&server, Method::DELETE, &format!("{SERVICES}/a"), Value::Null);
    make(&server, "c", json!({"clusterIP": "10.96.0.9"}));
    // Nothing is taken by what is only tried out.
    let dry = format!("{SERVICES}?dryRun=All");
    assert_eq!(
        call(&server, Method::POST, &dry, service("d", &json!({"clusterIP": "10.96.0.8"}))).0,
        201
    );
    make(&server, "d", json!({"clusterIP": "10.96.0.8"}));
}

#[test]
fn families() {
    let server = server();
    #[track_caller]
    fn check(spec: &Value, policy: &str, families: Value) {
        assert_eq!((&spec["ipFamilyPolicy"], &spec["ipFamilies"]), (&json!(policy), &families));
    }
    check(&make(&server, "a", json!({})), "SingleStack", json!(["IPv4"]));
    let headless = json!({"clusterIP": "None"});
    check(&make(&server, "b", headless.clone()), "RequireDualStack", json!(["IPv4", "IPv6"]));
    let selecting = json!({"clusterIP": "None", "selector": {"a": "b"}});
    check(&make(&server, "c", selecting), "SingleStack", json!(["IPv4"]));
    let preferring = json!({"ipFamilyPolicy": "PreferDualStack"});
    check(&make(&server, "d", preferring), "PreferDualStack", json!(["IPv4"]));
}

#[test]
fn node_ports_are_in_range_and_unique() {
    let server = server();
    let on = |port: i64| json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
    make(&server, "a", on(30_001));
    assert_eq!(make(&server, "b", json!({"type": "NodePort"}))["ports"][0]["nodePort"], 30_086);
    let both = json!({"type": "NodePort", "ports": [{"name": "t", "port": 53},
        {"name": "u", "port": 53, "protocol": "UDP"}]});
    let both = make(&server, "c", both);
    assert_eq!(both["ports"][0]["nodePort"], both["ports"][1]["nodePort"]);
    refused(
        &server,
        on(30_001),
        &expect![[
            r#"422 Invalid: Service "no" is invalid: spec.ports[0].nodePort: Invalid value: 30001: provided port is already allocated"#
        ]],
    );
    refused(
        &server,
        on(80),
        &expect![[
            r#"422 Invalid: Service "no" is invalid: spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767"#
        ]],
    );
    refused(
        &server,
        json!({"ports": [{"port": 80, "nodePort": 30_002}]}),
        &expect![[
            r#"422 Invalid: Service "no" is invalid: spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"#
        ]],
    );
    let balanced = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"});
    let balanced = make(&server, "d", balanced);
    assert!(
        balanced["healthCheckNodePort"].is_number() && balanced["ports"][0]["nodePort"].is_number()
    );
    let without = json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false});
    assert_eq!(make(&server, "e", without)["ports"][0]["nodePort"], Value::Null);
}

#[test]
fn types_change() {
    let server = server();
    let path = format!("{SERVICES}/s");
    let made = make(&server, "s", json!({}));
    let change = |spec: Value| patch(&server, &path, json!({"spec": spec}))["spec"].take();
    let dry = format!("{path}?dryRun=All");
    let tried = patch(&server, &dry, json!({"spec": {"type": "NodePort"}}))["spec"].take();
    let open = change(json!({"type": "NodePort"}));
    assert_eq!(tried, open, "what is tried out comes true");
    assert_eq!(
        (&open["clusterIP"], &open["ports"][0]["nodePort"]),
        (&made["clusterIP"], &json!(30_086))
    );
    // An update that does not mention them keeps them.
    let retained = call(&server, Method::PUT, &path, service("s", &json!({"type": "NodePort"}))).1;
    assert_eq!(
        (&retained["spec"]["clusterIP"], &retained["spec"]["ports"]),
        (&open["clusterIP"], &open["ports"])
    );
    changed(
        &server,
        json!({"clusterIP": "10.96.0.7"}),
        &expect![[
            r#"422 Invalid: Service "s" is invalid: spec.clusterIPs[0]: Invalid value: ["10.96.0.7"]: may not change once set"#
        ]],
    );
    changed(
        &server,
        json!({"ports": [{"port": 80, "nodePort": 1}]}),
        &expect![[
            r#"422 Invalid: Service "s" is invalid: spec.ports[0].nodePort: Invalid value: 1: provided port is not in the valid range. The range of valid ports is 30000-32767"#
        ]],
    );
    let closed = change(json!({"type": "ClusterIP"}));
    assert_eq!(
        (&closed["ports"][0]["nodePort"], &closed["externalTrafficPolicy"]),
        (&Value::Null, &Value::Null)
    );
    make(&server, "port", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_086}]}));
    let away = json!({"type": "ExternalName", "externalName": "a.example.com"});
    assert_eq!(change(away)["clusterIP"], Value::Null);
    make(&server, "address", json!({"clusterIP": made["clusterIP"]}));
    changed(
        &server,
        json!({"type": "ClusterIP", "clusterIP": made["clusterIP"]}),
        &expect![[
            r#"422 Invalid: Service "s" is invalid: spec.clusterIPs: Invalid value: ["10.96.1.1"]: failed to allocate IP 10.96.1.1: provided IP is already allocated"#
        ]],
    );
    let back = change(json!({"type": "NodePort", "externalName": null}));
    assert!(back["clusterIP"].is_string() && back["clusterIP"] != made["clusterIP"], "{back}");
    assert_eq!(back["ports"][0]["nodePort"], 30_087);
}

#[test]
fn complaints() {
    let server = server();
    refused(
        &server,
        json!({"type": "NodePort", "clusterIP": "None"}),
        &expect![[
            r#"422 Invalid: Service "no" is invalid: spec.clusterIPs[0]: Invalid value: "None": may not be set to 'None' for NodePort services"#
        ]],
    );
    refused(
        &server,
        json!({"type": "ExternalName", "clusterIP": "10.96.0.7"}),
        &expect![[
            r#"422 Invalid: Service "no" is invalid: [spec.clusterIPs: Forbidden: may not be set for ExternalName services, spec.externalName: Required value]"#
        ]],
    );
    refused(
        &server,
        json!({"ports": [{"name": "a", "port": 80}, {"name": "a", "port": 80}]}),
        &expect![[
            r#"422 Invalid: Service "no" is invalid: [spec.ports[1].name: Duplicate value: "a", spec.ports[1]: Duplicate value: {"Name":"","Protocol":"TCP","AppProtocol":null,"Port":80,"TargetPort":0,"NodePort":0}]"#
        ]],
    );
    refused(
        &server,
        json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}}}),
        &expect![[
            r#"422 Invalid: Service "no" is invalid: spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 0: must be greater than 0 and less than 86400"#
        ]],
    );
    refused(
        &server,
        json!({"loadBalancerClass": "a/b", "healthCheckNodePort": 30_000}),
        &expect![[
            r#"422 Invalid: Service "no" is invalid: [spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer', spec.healthCheckNodePort: Invalid value: 30000: may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local']"#
        ]],
    );
}
