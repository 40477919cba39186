use std::fmt::Debug;

use expect_test::{Expect, expect};
use loadmaster_stdx::Rng;
use proptest::prelude::*;
use prost::Message;
use serde::de::DeserializeOwned;

use super::*;

// Made with k8s.io/api and k8s.io/apimachinery v0.36.3 from objects of our own.

const NODE: &str = "6b3873000a0a0a02763112044e6f6465129d010a270a016112001a0022002a0175320231323800420808a5eb \
    dcca0610005a090a047a6f6e6512017a121c0a0012001a0020012a120a016b1201761a0a4e6f536368656475 \
    6c651a540a0a0a0363707512030a01340a0f0a066d656d6f727912050a03384769120e0a0363707512070a05 \
    333930306d1a0032040a0208003a140a0012001a0022002a0032003a0042004a00520042070a03693a311005 \
    1a002200";

const POD: &str = "6b3873000a090a0276311203506f6412e4010a330a017012001a016e22002a0032023133380042006a1d0a0a \
    5265706c6963615365741a01722201782a07617070732f76313001129001123b0a01631203693a312a00320e \
    0a00105018903f22035443502a00420f120d0a0363707512060a043130306d6a007200800100880100900100 \
    a201001a00320042004a005201615800600068008201008a01009201161a140a120a0a0a080a036170701201 \
    781a047a6f6e659a0100c20100c801078a0217080112047a6f6e651a0d446f4e6f745363686564756c651a1a \
    0a0752756e6e696e671a0022002a0032004a005a0072008801001a002200";

const NODE_LIST: &str = "6b3873000a0e0a02763112084e6f64654c697374128d010a0d0a00120231351a03746f6b2003123d0a110a01 \
    6212001a0022002a0032003800420012080a0012001a0020001a1e1a0032040a0208003a140a0012001a0022 \
    002a0032003a0042004a005200123d0a110a016312001a0022002a0032003800420012080a0012001a002000 \
    1a1e1a0032040a0208003a140a0012001a0022002a0032003a0042004a0052001a002200";

/// An added node, a bookmark at the end of the initial events, an error.
const FRAMES: &str = "000000600a05414444454412570a556b3873000a0a0a02763112044e6f6465123f0a130a016212001a002200 \
    2a00320231343800420012080a0012001a0020001a1e1a0032040a0208003a140a0012001a0022002a003200 \
    3a0042004a0052001a002200000000850a08424f4f4b4d41524b12790a776b3873000a0a0a02763112044e6f \
    646512610a350a0012001a0022002a00320239393800420062210a196b38732e696f2f696e697469616c2d65 \
    76656e74732d656e6412047472756512080a0012001a0020001a1e1a0032040a0208003a140a0012001a0022 \
    002a0032003a0042004a0052001a002200000000550a054552524f52124c0a4a6b3873000a0c0a0276311206 \
    53746174757312320a060a0012001a0012074661696c7572651a07746f6f206f6c642207457870697265642a \
    0a0a0012001a0028033200309a031a002200";

const NODE_JSON: &str = r#"{"kind":"Node","apiVersion":"v1","metadata":{"name":"a","uid":"u","resourceVersion":"12","creationTimestamp":"2026-01-02T03:04:05Z","labels":{"zone":"z"}},
"spec":{"unschedulable":true,"taints":[{"key":"k","value":"v","effect":"NoSchedule"}]},
"status":{"capacity":{"cpu":"4","memory":"8Gi"},"allocatable":{"cpu":"3900m"},"images":[{"names":["i:1"],"sizeBytes":5}]}}"#;

const POD_JSON: &str = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":"n","resourceVersion":"13","ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r","uid":"x","controller":true}]},
"spec":{"containers":[{"name":"c","image":"i:1","ports":[{"hostPort":80,"containerPort":8080,"protocol":"TCP"}],"resources":{"requests":{"cpu":"100m"}}}],"nodeName":"a",
"affinity":{"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"labelSelector":{"matchLabels":{"app":"x"}},"topologyKey":"zone"}]}},"priority":7,
"topologySpreadConstraints":[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule"}]},
"status":{"phase":"Running"}}"#;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        hex.chars().filter_map(|digit| digit.to_digit(16)).map(|d| d as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Decodes the beginnings of a message, and the message with some bytes changed so many times; returns how many could be decoded.
#[track_caller]
pub(super) fn decode_changed(
    bytes: &[u8],
    n_changed: u32,
    decode: impl Fn(&[u8]) -> bool,
) -> usize {
    let mut rng = Rng::new(7);
    let mut n_decoded = (0..bytes.len()).filter(|len| decode(&bytes[..*len])).count();
    for _ in 0..n_changed {
        let mut changed = bytes.to_vec();
        for _ in 0..=rng.below(3) {
            changed[rng.below(bytes.len() as u64) as usize] = rng.below(256) as u8;
        }
        n_decoded += usize::from(decode(&changed));
    }
    n_decoded
}

/// Puts a message into an envelope.
fn envelope(api_version: &str, kind: &str, message: &impl Message) -> Vec<u8> {
    let field = |tag: u8, bytes: &[u8]| {
        let mut field = vec![tag << 3 | 2];
        prost::encode_length_delimiter(bytes.len(), &mut field).unwrap();
        [&field[..], bytes].concat()
    };
    let type_meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), field(1, &type_meta), field(2, &message.encode_to_vec())].concat()
}

/// The message must come to the same object as the JSON text.
#[track_caller]
fn check<T: ProtoKind + DeserializeOwned + PartialEq + Debug>(message: &impl Message, json: &str) {
    let want: T = serde_json::from_str(json).unwrap();
    let bytes = envelope(T::API_VERSION, T::KIND, message);
    assert_eq!(decode_as::<T>(&bytes).unwrap(), want);
    assert!(decode(&bytes).is_ok());
}

#[test]
fn lists_of_any_kind_are_decoded_object_by_object() {
    let bytes = bytes(NODE_LIST);
    let items = ListItems::open(&bytes).unwrap();
    let whole: List<Node> = decode_list(&bytes).unwrap();
    assert_eq!(items.resource_version(), whole.resource_version);
    assert_eq!(items.continue_token(), whole.continue_token);
    let objects: Vec<(Object, &str)> = items.decode().map(Result::unwrap).collect();
    let nodes: Vec<Object> =
        whole.items.into_iter().map(|node| Object::Node(node.into())).collect();
    assert_eq!(objects, nodes.into_iter().map(|node| (node, "")).collect::<Vec<_>>());
    assert_eq!((items.len(), items.is_empty()), (2, false));
    assert!(ListItems::open(&self::bytes(NODE)).is_err());
}

#[test]
fn objects_encoded_by_go() {
    let node: Node = serde_json::from_str(NODE_JSON).unwrap();
    assert_eq!(decode(&bytes(NODE)), Ok(Object::Node(Box::new(node))));
    let pod: Pod = serde_json::from_str(POD_JSON).unwrap();
    assert_eq!(decode(&bytes(POD)), Ok(Object::Pod(Box::new(pod))));
}

#[test]
fn a_list_encoded_by_go() {
    let list = decode_list::<Node>(&bytes(NODE_LIST)).unwrap();
    let names: Vec<&str> = list.items.iter().map(Node::name).collect();
    assert_eq!(names, ["b", "c"]);
    assert_eq!((&*list.resource_version, &*list.continue_token), ("15", "tok"));
    assert_eq!(list.remaining_item_count, Some(3));
}

#[test]
fn a_watch_encoded_by_go() {
    for piece_len in [1, 7, 100, 1000] {
        let mut frames = WatchFrames::new(1000);
        let mut events = Vec::new();
        for piece in bytes(FRAMES).chunks(piece_len) {
            frames.push(piece);
            while let Some(frame) = frames.next().unwrap() {
                events.push(decode_event::<Node>(frame).unwrap());
            }
        }
        assert!(!frames.is_mid_frame());
        let mut node = Node::default();
        node.metadata.name = "b".into();
        let status = Status {
            code: 410,
            reason: "Expired".to_owned(),
            message: "too old".to_owned(),
            retry_after_seconds: 3,
        };
        let want = [
            WatchEvent::Added { object: node, resource_version: "14".to_owned() },
            WatchEvent::Bookmark { resource_version: "99".to_owned(), ends_initial_events: true },
            WatchEvent::Error(status),
        ];
        assert_eq!(events, want);
    }
}

#[test]
fn frames_are_limited() {
    let mut frames = WatchFrames::new(5);
    frames.push(b"\0\0\0\x05hello\0\0");
    assert_eq!(frames.next(), Ok(Some(&b"hello"[..])));
    assert_eq!(frames.next(), Ok(None));
    assert!(frames.is_mid_frame());
    frames.push(b"\0\x06");
    assert_eq!(frames.next(), Err(ProtoError::FrameTooLarge { len: 6, len_max: 5 }));
    frames.push(b"\0");
    assert!(frames.next().is_err());
}

#[test]
fn absent_and_empty_differ_where_json_distinguishes_them() {
    use messages as wire;
    check::<Pod>(&wire::Pod::default(), "{}");
    let spec = wire::PodSpec {
        preemption_policy: Some(String::new()),
        resources: Some(wire::ResourceRequirements::default()),
        affinity: Some(wire::Affinity::default()),
        priority: Some(0),
        ..Default::default()
    };
    let json = r#"{"spec":{"preemptionPolicy":"","resources":{},"affinity":{},"priority":0}}"#;
    check::<Pod>(&wire::Pod { spec: Some(spec), ..Default::default() }, json);
    let on_host = wire::PodSpec { host_users: Some(false), ..Default::default() };
    check::<Pod>(
        &wire::Pod { spec: Some(on_host), ..Default::default() },
        r#"{"spec":{"hostUsers":false}}"#,
    );
    let class = wire::PriorityClass { value: -5, global_default: true, ..Default::default() };
    check::<PriorityClass>(&class, r#"{"value":-5,"globalDefault":true}"#);
    let spec = wire::ReplicasSpec {
        replicas: Some(0),
        selector: Some(wire::LabelSelector::default()),
        template: None,
    };
    let set = wire::WorkloadWithReplicas { metadata: None, spec: Some(spec) };
    check::<ReplicaSet>(&set, r#"{"spec":{"replicas":0,"selector":{}}}"#);
    check::<StatefulSet>(&set, r#"{"spec":{"replicas":0,"selector":{}}}"#);
    check::<Deployment>(&set, r#"{"spec":{"replicas":0,"selector":{}}}"#);
    let pair = wire::Pair { key: "a".into(), value: "b".into() };
    let spec = wire::MapSelectorSpec { selector: vec![pair] };
    let service = wire::ObjectWithMapSelector { metadata: None, spec: Some(spec) };
    check::<Service>(&service, r#"{"spec":{"selector":{"a":"b"}}}"#);
    check::<ReplicationController>(&service, r#"{"spec":{"selector":{"a":"b"}}}"#);
}

#[test]
fn declared_features_and_what_needs_them() {
    use messages as wire;
    let declared_features = vec!["A".to_owned(), "B".to_owned()];
    let status = wire::NodeStatus { declared_features, ..Default::default() };
    let node = wire::Node { status: Some(status), ..Default::default() };
    check::<Node>(&node, r#"{"status":{"declaredFeatures":["A","B"]}}"#);
    let rule = wire::ContainerRestartRule { action: "RestartAllContainers".to_owned() };
    let container = wire::Container { restart_policy_rules: vec![rule], ..Default::default() };
    let spec = wire::PodSpec { containers: vec![container], ..Default::default() };
    check::<Pod>(
        &wire::Pod { spec: Some(spec), ..Default::default() },
        r#"{"spec":{"containers":[{"restartPolicyRules":[{"action":"RestartAllContainers","exitCodes":{"values":[1]}}]}]}}"#,
    );
}

#[test]
fn disks_of_volumes() {
    use messages as wire;
    #[track_caller]
    fn check_source(source: wire::VolumeSource, json: &str) {
        let volume = wire::Volume { name: "v".into(), source: Some(source) };
        let spec = wire::PodSpec { volumes: vec![volume], ..Default::default() };
        let json = format!(r#"{{"spec":{{"volumes":[{{"name":"v",{json}}}]}}}}"#);
        check::<Pod>(&wire::Pod { spec: Some(spec), ..Default::default() }, &json);
    }
    let none = wire::VolumeSource::default;
    let id = || Some(wire::VolumeId { volume_id: "i".into() });
    check_source(none(), r#""emptyDir":{}"#);
    let gce = Some(wire::GcePersistentDisk { pd_name: "d".into(), read_only: true });
    check_source(
        wire::VolumeSource { gce_persistent_disk: gce, ..none() },
        r#""gcePersistentDisk":{"pdName":"d","readOnly":true}"#,
    );
    check_source(
        wire::VolumeSource { aws_elastic_block_store: id(), ..none() },
        r#""awsElasticBlockStore":{"volumeID":"i"}"#,
    );
    check_source(wire::VolumeSource { cinder: id(), ..none() }, r#""cinder":{"volumeID":"i"}"#);
    check_source(
        wire::VolumeSource { portworx_volume: id(), ..none() },
        r#""portworxVolume":{"volumeID":"i"}"#,
    );
    let iscsi = Some(wire::Iscsi { iqn: "q".into(), read_only: true });
    check_source(wire::VolumeSource { iscsi, ..none() }, r#""iscsi":{"iqn":"q","readOnly":true}"#);
    let (monitors, image) = (vec!["m".into(), "n".into()], "i".into());
    let rbd = Some(wire::Rbd { monitors, image, pool: "p".into(), read_only: false });
    check_source(
        wire::VolumeSource { rbd, ..none() },
        r#""rbd":{"monitors":["m","n"],"image":"i","pool":"p"}"#,
    );
    let azure = Some(wire::AzureDisk { disk_uri: "u".into(), kind: Some("Managed".into()) });
    check_source(
        wire::VolumeSource { azure_disk: azure, ..none() },
        r#""azureDisk":{"diskURI":"u","kind":"Managed"}"#,
    );
    let azure = Some(wire::AzureFile { share_name: "s".into() });
    check_source(
        wire::VolumeSource { azure_file: azure, ..none() },
        r#""azureFile":{"shareName":"s"}"#,
    );
    let vsphere = Some(wire::VsphereVolume { volume_path: "p".into() });
    check_source(
        wire::VolumeSource { vsphere_volume: vsphere, ..none() },
        r#""vsphereVolume":{"volumePath":"p"}"#,
    );
    let csi = Some(wire::Csi { driver: "d".into() });
    check_source(wire::VolumeSource { csi, ..none() }, r#""csi":{"driver":"d"}"#);
}

#[test]
fn times() {
    use messages as wire;
    let at = |seconds| Some(wire::Time { seconds });
    let meta = wire::ObjectMeta {
        creation_timestamp: at(None),
        deletion_timestamp: at(Some(0)),
        ..Default::default()
    };
    let json =
        r#"{"metadata":{"creationTimestamp":null,"deletionTimestamp":"1970-01-01T00:00:00Z"}}"#;
    check::<Namespace>(&wire::Namespace { metadata: Some(meta) }, json);
    let moment = |key: &str, seconds| wire::NamedTime { key: key.into(), value: at(seconds) };
    let status = wire::PodDisruptionBudgetStatus {
        disrupted_pods: vec![moment("b", Some(1_767_323_045)), moment("a", None)],
        disruptions_allowed: 2,
    };
    let budget = wire::PodDisruptionBudget { status: Some(status), ..Default::default() };
    let json = r#"{"status":{"disruptionsAllowed":2,"disruptedPods":{"a":null,"b":"2026-01-02T03:04:05Z"}}}"#;
    check::<PodDisruptionBudget>(&budget, json);
}

#[track_caller]
fn check_error(bytes: &[u8], want: &Expect) {
    let error = decode(bytes).unwrap_err();
    want.assert_eq(&loadmaster_stdx::ErrorChain(&error).to_string());
}

#[test]
fn errors() {
    use messages as wire;
    check_error(b"", &expect![[r#"expected an object in protobuf: bytes beginning with "k8s\0""#]]);
    check_error(
        b"{\"kind\":\"Pod\"}",
        &expect![[r#"expected an object in protobuf: bytes beginning with "k8s\0""#]],
    );
    check_error(
        b"k8s\0",
        &expect![[r#"unexpected "" of "": expected a kind that scheduling reads"#]],
    );
    check_error(b"k8s\0\x0a\xff\x01", &expect!["unexpected end of a protobuf message"]);
    check_error(b"k8s\0\x0f", &expect!["malformed protobuf message"]);
    check_error(
        b"k8s\0\x1a\x04gzip",
        &expect![[r#"unknown encoding "gzip" of an object: expected none"#]],
    );
    check_error(
        &envelope("v1", "ConfigMap", &wire::Pod::default()),
        &expect![[r#"unexpected "ConfigMap" of "v1": expected a kind that scheduling reads"#]],
    );
    let not_a_pod = messages::Pair { key: "\x07".into(), value: "".into() };
    check_error(
        &envelope("v1", "Pod", &not_a_pod),
        &expect![
            "decoding a Pod from protobuf: failed to decode Protobuf message: Pod.metadata: invalid wire type value: 7"
        ],
    );
    let value = Some(wire::Quantity { string: "1x".to_owned() });
    let capacity = vec![wire::Amount { key: "cpu".into(), value }];
    let status = wire::NodeStatus { capacity, ..Default::default() };
    let node = wire::Node { status: Some(status), ..Default::default() };
    check_error(
        &envelope("v1", "Node", &node),
        &expect![[
            r#"decoding the amount of "cpu": invalid quantity "1x": expected a number with an optional suffix such as m, Ki, M or e3"#
        ]],
    );
    let time = Some(wire::Time { seconds: Some(i64::MAX) });
    let metadata = Some(wire::ObjectMeta { creation_timestamp: time, ..Default::default() });
    check_error(
        &envelope("v1", "Namespace", &wire::Namespace { metadata }),
        &expect!["time of 9223372036854775807 s since 1970 is out of range"],
    );
    assert!(matches!(decode_as::<Pod>(&bytes(NODE)), Err(ProtoError::Kind { .. })));
    assert!(matches!(decode_list::<Pod>(&bytes(NODE_LIST)), Err(ProtoError::Kind { .. })));
    assert!(matches!(decode_list::<Node>(&bytes(NODE)), Err(ProtoError::Kind { .. })));
}

proptest! {
    #[test]
    fn no_bytes_panic(
        (vector, at, byte) in (0..4usize, any::<prop::sample::Index>(), any::<u8>()),
        random in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut bytes = bytes([NODE, POD, NODE_LIST, FRAMES][vector]);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        for bytes in [&bytes[..], &bytes[..at], &bytes[4..], &random] {
            let _ = decode(bytes);
            let _ = decode_list::<Node>(bytes);
            let _ = decode_event::<Pod>(bytes);
            let mut frames = WatchFrames::new(1 << 20);
            frames.push(bytes);
            while let Ok(Some(frame)) = frames.next() {
                let _ = decode_event::<Node>(frame);
            }
        }
    }
}
