//! What objects get from their classes.

use expect_test::expect;
use http::Method;
use serde_json::{Value, json};

use super::testkit::{PODS, create, refused, server};

fn pod(name: &str, spec: &Value) -> Value {
    let mut whole =
        json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for (field, value) in spec.as_object().into_iter().flatten() {
        whole["spec"][field] = value.clone();
    }
    whole
}

#[test]
fn runtimes() {
    let server = server();
    let classes = "/apis/node.k8s.io/v1/runtimeclasses";
    create(&server, classes, json!({"metadata": {"name": "plain"}, "handler": "h"}));
    let toleration = json!({"key": "vm", "operator": "Exists", "effect": "NoSchedule"});
    let class = json!({"metadata": {"name": "vm"}, "handler": "h", "overhead": {"podFixed": {"memory": "1Gi"}},
        "scheduling": {"nodeSelector": {"vm": "yes"}, "tolerations": [toleration]}});
    create(&server, classes, class);
    let wide = json!({"key": "vm", "operator": "Exists"});
    let made = create(
        &server,
        PODS,
        pod(
            "a",
            &json!({"runtimeClassName": "vm", "tolerations": [wide],
        "nodeSelector": {"a": "b"}, "overhead": {"memory": "1024Mi"}}),
        ),
    );
    let spec = &made["spec"];
    assert_eq!(spec["overhead"], json!({"memory": "1Gi"}));
    assert_eq!(spec["nodeSelector"], json!({"a": "b", "vm": "yes"}));
    let of_vm = |it: &&Value| it["key"] == "vm";
    let tolerations: Vec<&Value> =
        spec["tolerations"].as_array().unwrap().iter().filter(of_vm).collect();
    assert_eq!(tolerations, [&wide], "the narrow one says nothing more");
    let made = create(&server, PODS, pod("b", &json!({"runtimeClassName": "vm"})));
    assert_eq!(made["spec"]["tolerations"].as_array().unwrap().last(), Some(&toleration));

    let no = |spec: Value, want: &expect_test::Expect| {
        refused(&server, Method::POST, PODS, pod("no", &spec), want);
    };
    no(
        json!({"runtimeClassName": "none"}),
        &expect![[
            r#"403 Forbidden: pods "no" is forbidden: pod rejected: RuntimeClass "none" not found"#
        ]],
    );
    no(
        json!({"runtimeClassName": "vm", "overhead": {"memory": "2Gi"}}),
        &expect![[
            r#"403 Forbidden: pods "no" is forbidden: pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"#
        ]],
    );
    no(
        json!({"runtimeClassName": "plain", "overhead": {"memory": "2Gi"}}),
        &expect![[
            r#"403 Forbidden: pods "no" is forbidden: pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"#
        ]],
    );
    no(
        json!({"runtimeClassName": "vm", "nodeSelector": {"vm": "no"}}),
        &expect![[
            r#"403 Forbidden: pods "no" is forbidden: conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no"#
        ]],
    );
}

#[test]
fn defaults() {
    #[track_caller]
    fn check(classes: (&str, &str), objects: &str, (field, old): (&str, &str), spec: &Value) {
        let server = server();
        let make = |name: &str, annotations: Value, said: Value| {
            let mut spec = spec.clone();
            if !said.is_null() {
                spec[field] = said;
            }
            let metadata = json!({"name": name, "annotations": annotations});
            create(&server, objects, json!({"metadata": metadata, "spec": spec}))["spec"][field]
                .take()
        };
        assert_eq!(make("a", json!({}), Value::Null), Value::Null, "there is none");
        for (name, is_default) in [("b", "true"), ("c", "true"), ("a", "false")] {
            let metadata = json!({"name": name, "annotations": {classes.1: is_default}});
            create(
                &server,
                classes.0,
                json!({"metadata": metadata, "provisioner": "p", "spec": {"controller": "c.io/c"}}),
            );
        }
        assert_eq!(make("b", json!({}), Value::Null), "b", "of equally old ones the first by name");
        assert_eq!(make("c", json!({}), json!("a")), "a");
        assert_eq!(make("d", json!({old: "x"}), Value::Null), Value::Null);
    }
    check(
        ("/apis/storage.k8s.io/v1/storageclasses", "storageclass.kubernetes.io/is-default-class"),
        "/api/v1/namespaces/default/persistentvolumeclaims",
        ("storageClassName", "volume.beta.kubernetes.io/storage-class"),
        &json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}),
    );
    check(
        (
            "/apis/networking.k8s.io/v1/ingressclasses",
            "ingressclass.kubernetes.io/is-default-class",
        ),
        "/apis/networking.k8s.io/v1/namespaces/default/ingresses",
        ("ingressClassName", "kubernetes.io/ingress.class"),
        &json!({"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}),
    );
}
