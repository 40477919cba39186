use std::fmt::Debug;

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::*;

type Args = ExtenderArgs<Value, Value>;
type FilterResult = ExtenderFilterResult<Value>;

/// Checks that a message is encoded as `want`, and that decoding gives the message again.
#[track_caller]
fn check_encoded<T>(message: T, want: &Expect)
where
    T: Serialize + Default + for<'de> Deserialize<'de> + PartialEq + Debug,
{
    let text = serde_json::to_string(&message).unwrap();
    want.assert_eq(&text);
    assert_eq!(decode_message::<T>(text.as_bytes()).unwrap(), message);
}

#[test]
fn messages_are_encoded_as_in_go() {
    let pod = || Some(json!({"metadata": {"name": "p"}}));
    check_encoded(Args::default(), &expect![[r#"{"Pod":null,"Nodes":null,"NodeNames":null}"#]]);
    check_encoded(
        Args { pod: pod(), node_names: Some(vec!["a".into()]), ..Args::default() },
        &expect![[r#"{"Pod":{"metadata":{"name":"p"}},"Nodes":null,"NodeNames":["a"]}"#]],
    );
    check_encoded(
        Args { node_names: Some(vec![]), ..Args::default() },
        &expect![[r#"{"Pod":null,"Nodes":null,"NodeNames":[]}"#]],
    );
    let nodes = |items| Args { nodes: Some(NodeList { items }), ..Args::default() };
    check_encoded(
        nodes(vec![json!({"metadata": {"name": "a"}})]),
        &expect![[
            r#"{"Pod":null,"Nodes":{"metadata":{},"items":[{"metadata":{"name":"a"}}]},"NodeNames":null}"#
        ]],
    );
    check_encoded(
        nodes(vec![]),
        &expect![[r#"{"Pod":null,"Nodes":{"metadata":{},"items":null},"NodeNames":null}"#]],
    );
    check_encoded(
        FilterResult::default(),
        &expect![[
            r#"{"Nodes":null,"NodeNames":null,"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":""}"#
        ]],
    );
    check_encoded(
        FilterResult {
            failed_nodes: [("b".into(), "no".into()), ("a".into(), "full".into())].into(),
            error: "x".into(),
            ..FilterResult::default()
        },
        &expect![[
            r#"{"Nodes":null,"NodeNames":null,"FailedNodes":{"a":"full","b":"no"},"FailedAndUnresolvableNodes":null,"Error":"x"}"#
        ]],
    );
    check_encoded::<HostPriorityList>(
        vec![HostPriority { host: "a".into(), score: -3 }],
        &expect![[r#"[{"Host":"a","Score":-3}]"#]],
    );
    check_encoded(
        ExtenderPreemptionArgs {
            pod: pod(),
            node_name_to_victims: [(
                "a".into(),
                Victims { pods: vec![json!({})], num_pdb_violations: 1 },
            )]
            .into(),
            ..Default::default()
        },
        &expect![[
            r#"{"Pod":{"metadata":{"name":"p"}},"NodeNameToVictims":{"a":{"Pods":[{}],"NumPDBViolations":1}},"NodeNameToMetaVictims":null}"#
        ]],
    );
    let victims = MetaVictims { pods: vec![MetaPod { uid: "u".into() }], num_pdb_violations: 0 };
    check_encoded(
        ExtenderPreemptionResult {
            node_name_to_meta_victims: [
                ("a".into(), victims),
                ("b".into(), MetaVictims::default()),
            ]
            .into(),
        },
        &expect![[
            r#"{"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"u"}],"NumPDBViolations":0},"b":{"Pods":[],"NumPDBViolations":0}}}"#
        ]],
    );
    check_encoded(
        ExtenderBindingArgs {
            pod_name: "p".into(),
            pod_namespace: "d".into(),
            pod_uid: "u".into(),
            node: "a".into(),
        },
        &expect![[r#"{"PodName":"p","PodNamespace":"d","PodUID":"u","Node":"a"}"#]],
    );
    check_encoded(
        ExtenderBindingResult { error: "late".into() },
        &expect![[r#"{"Error":"late"}"#]],
    );
}

/// Checks what a text is decoded to (encoded again), or the error.
#[track_caller]
fn check_decoded<T>(text: &str, want: &Expect)
where
    T: Serialize + Default + for<'de> Deserialize<'de>,
{
    match decode_message::<T>(text.as_bytes()) {
        Ok(message) => want.assert_eq(&serde_json::to_string(&message).unwrap()),
        Err(error) => want.assert_eq(&format!("error: {error}")),
    }
}

#[test]
fn field_names_match_in_any_case() {
    check_decoded::<Args>(
        r#"{"pod": {"a": 1}, "NODENAMES": ["x"], "nodes": {"Items": [{}], "metadata": {"c": 1}}}"#,
        &expect![[r#"{"Pod":{"a":1},"Nodes":{"metadata":{},"items":[{}]},"NodeNames":["x"]}"#]],
    );
    check_decoded::<FilterResult>(
        r#"{"nodenames": ["x"], "failednodes": {"y": "Full"}, "faıledNodes": 1, "\u017fcore": 1}"#,
        &expect![[
            r#"{"Nodes":null,"NodeNames":["x"],"FailedNodes":{"y":"Full"},"FailedAndUnresolvableNodes":null,"Error":""}"#
        ]],
    );
    check_decoded::<HostPriorityList>(
        r#"[{"host": "a", "\u017fCORE": 7}]"#,
        &expect![[r#"[{"Host":"a","Score":7}]"#]],
    );
}

#[test]
fn null_and_trailing_text_are_accepted_as_in_go() {
    check_decoded::<HostPriorityList>("null", &expect!["[]"]);
    check_decoded::<HostPriorityList>("[null]", &expect![[r#"[{"Host":"","Score":0}]"#]]);
    check_decoded::<ExtenderBindingResult>("null", &expect![[r#"{"Error":""}"#]]);
    check_decoded::<ExtenderBindingResult>(r#"{"Error": null}"#, &expect![[r#"{"Error":""}"#]]);
    check_decoded::<ExtenderBindingResult>(
        r#"{"other": [1]} trailing"#,
        &expect![[r#"{"Error":""}"#]],
    );
    check_decoded::<ExtenderPreemptionResult>(
        r#"{"NodeNameToMetaVictims": {"a": null}}"#,
        &expect![[r#"{"NodeNameToMetaVictims":{"a":{"Pods":[],"NumPDBViolations":0}}}"#]],
    );
}

#[test]
fn invalid_messages_are_errors() {
    check_decoded::<ExtenderBindingResult>("", &expect!["error: EOF"]);
    check_decoded::<ExtenderBindingResult>(" \n", &expect!["error: EOF"]);
    check_decoded::<ExtenderBindingResult>(r#"{"Error": "x"#, &expect!["error: unexpected EOF"]);
    check_decoded::<ExtenderBindingResult>(
        "<html>",
        &expect!["error: expected value at line 1 column 1"],
    );
    check_decoded::<ExtenderBindingResult>(
        "[]",
        &expect![
            "error: invalid type: sequence, expected an object, ExtenderBindingResult at line 1 column 2"
        ],
    );
    check_decoded::<HostPriorityList>(
        r#"[{"Score": 1.5}]"#,
        &expect!["error: invalid type: floating point `1.5`, expected i64 at line 1 column 14"],
    );
    check_decoded::<HostPriorityList>(
        r#"[{"Score": 9223372036854775808}]"#,
        &expect![
            "error: invalid value: integer `9223372036854775808`, expected i64 at line 1 column 30"
        ],
    );
}

#[test]
fn invalid_utf8_is_replaced() {
    let read = decode_message::<ExtenderBindingResult>(b"{\"Error\": \"\xff\"}").unwrap();
    assert_eq!(read.error, "\u{fffd}");
}

#[test]
fn raw_json_is_unchanged() {
    let text = r#"{"Pod":{"b": 1,  "a":2},"Nodes":null,"NodeNames":null}"#;
    let args: ExtenderArgs = decode_message(text.as_bytes()).unwrap();
    assert_eq!(args.pod.unwrap().get(), r#"{"b": 1,  "a":2}"#);
}
