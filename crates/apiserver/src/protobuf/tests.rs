use serde_json::json;

use super::*;
use crate::schema::decode;

/// What comes back equals what went in, and damage never panics.
#[track_caller]
fn check(name: &str, value: Value) {
    let id = schema().find(name).expect("a type");
    let value = decode(schema(), id, value).expect("of its type").value;
    let bytes = encode_message(schema(), id, &value);
    let back = decode_message(schema(), id, &bytes).expect("decodes");
    let back = decode(schema(), id, back).expect("of its type").value;
    assert_eq!(back, value);
    for len in 0..bytes.len() {
        let _ = decode_message(schema(), id, &bytes[..len]);
        let mut damaged = bytes.clone();
        damaged[len] ^= 0x15;
        let _ = decode_message(schema(), id, &damaged);
    }
}

#[test]
fn objects_survive_the_round_trip() {
    check(
        "core/v1.Pod",
        json!({
            "metadata": {"name": "a", "labels": {"x": "y", "z": ""},
                "creationTimestamp": "2026-01-02T03:04:05Z"},
            "spec": {"containers": [{"name": "c", "image": "i",
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "resources": {"requests": {"cpu": "100m"}},
                "livenessProbe": {"httpGet": {"port": "web", "path": "/"}, "periodSeconds": 3},
                "readinessProbe": {"tcpSocket": {"port": 80}}}],
                "volumes": [{"name": "v", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "q"}}],
                "terminationGracePeriodSeconds": 0, "hostNetwork": true, "priority": -5},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        }),
    );
    check(
        "coordination/v1.Lease",
        json!({"metadata": {"name": "l"}, "spec": {"renewTime": "2026-01-02T03:04:05.123456Z",
            "leaseDurationSeconds": 40}}),
    );
    check(
        "core/v1.Secret",
        json!({"metadata": {"name": "s"}, "data": {"k": "AAEC"}, "type": "Opaque"}),
    );
    check(
        "apps/v1.Deployment",
        json!({"metadata": {"name": "d"}, "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}},
            "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}}}}),
    );
    check(
        "authentication/v1.TokenReview",
        json!({"status": {"user": {"username": "u", "extra": {"k": ["v", "w"]}}}}),
    );
}

#[test]
fn empty_messages_are_absent() {
    #[track_caller]
    fn check(name: &str, bytes: &[u8], want: &Value) {
        let id = schema().find(name).expect("a type");
        assert_eq!(decode_message(schema(), id, bytes).as_ref(), Ok(want), "{name}");
    }
    check("apps/v1.ControllerRevision", b"\x12\x00\x18\x01", &json!({"revision": 1}));
    check("apps/v1.ControllerRevision", b"\x12\x04\x0a\x02{}", &json!({"data": {}}));
    check("apps/v1.ControllerRevision", b"\x12\x06\x0a\x04null", &json!({}));
    check("meta/v1.ObjectMeta", b"\x42\x02\x08\x07\x42\x00", &json!({}));
}

#[test]
fn envelopes() {
    let closed = encode_envelope("v1", "Pod", b"raw");
    let want = Envelope { api_version: "v1".into(), kind: "Pod".into(), raw: b"raw".to_vec() };
    assert_eq!(decode_envelope(&closed), Ok(want));
    assert_eq!(decode_envelope(b"{}"), Err(ProtobufError::NoMagic));
    assert!(decode_envelope(&closed[..closed.len() - 5]).is_err());
}

#[test]
fn durations_as_go_writes_them() {
    for text in ["0s", "1ns", "1.5µs", "200ms", "1.5s", "1m0s", "1h0m0s", "2h3m4.5s", "-5s"] {
        let ns = loadmaster_stdx::duration::parse_duration_nanos(text).expect("a duration");
        assert_eq!(decode::go_duration_text(ns), text);
    }
}
