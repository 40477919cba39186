use expect_test::{Expect, expect};
use loadmaster_framework::testkit::PluginTestBench;
use serde_json::json;

use super::*;

fn node(name: &str, allocatable: Value) -> Value {
    json!({"metadata": {"name": name}, "status": {"allocatable": allocatable}})
}

fn pod(name: &str, requests: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}})
}

/// A node `n` with one pod on it.
fn bench(args: Value, allocatable: Value, used: Value) -> PluginTestBench {
    let mut bench = PluginTestBench::new(&DEF, args).unwrap();
    bench.node(node("n", allocatable)).unwrap();
    bench.add_assigned_pod("n", pod("there", used)).unwrap();
    bench
}

#[track_caller]
fn check_filter(args: Value, allocatable: Value, used: Value, wanted: Value, want: &Expect) {
    let results = bench(args, allocatable, used).filter(pod("web", wanted)).unwrap();
    want.assert_eq(&results.join("\n"));
}

#[test]
fn filter() {
    let big = || json!({"cpu": 4, "memory": 100, "ephemeral-storage": 100, "pods": 10, "a.io/x": 4, "hugepages-2Mi": 8});
    let some = || json!({"cpu": 1, "memory": 40, "ephemeral-storage": 40, "a.io/x": 1, "hugepages-2Mi": 4});
    let check = |wanted, want: Expect| check_filter(json!({}), big(), some(), wanted, &want);
    check(json!({}), expect!["n Success"]);
    check(
        json!({"cpu": 3, "memory": 60, "ephemeral-storage": 60, "a.io/x": 3}),
        expect!["n Success"],
    );
    check(json!({"cpu": "3001m"}), expect!["n Unschedulable Insufficient cpu"]);
    check(json!({"cpu": "4001m"}), expect!["n UnschedulableAndUnresolvable Insufficient cpu"]);
    check(json!({"memory": 61}), expect!["n Unschedulable Insufficient memory"]);
    check(json!({"memory": 101}), expect!["n UnschedulableAndUnresolvable Insufficient memory"]);
    check(
        json!({"ephemeral-storage": 61}),
        expect!["n Unschedulable Insufficient ephemeral-storage"],
    );
    check(json!({"hugepages-2Mi": 5}), expect!["n Unschedulable Insufficient hugepages-2Mi"]);
    check(json!({"a.io/x": 4}), expect!["n Unschedulable Insufficient a.io/x"]);
    check(json!({"a.io/x": 5}), expect!["n UnschedulableAndUnresolvable Insufficient a.io/x"]);
    check(json!({"b.io/y": 1}), expect!["n UnschedulableAndUnresolvable Insufficient b.io/y"]);
    check(json!({"b.io/y": 0, "odd": 7}), expect!["n Success"]);
    check(
        json!({"z.io/z": 1, "cpu": 4, "memory": 61, "ephemeral-storage": 61, "a.io/x": 4}),
        expect![
            "n UnschedulableAndUnresolvable Insufficient cpu, Insufficient memory, Insufficient ephemeral-storage, Insufficient a.io/x, Insufficient z.io/z"
        ],
    );
}

#[test]
fn filter_counts_pods() {
    let check = |allocatable, wanted, want: Expect| {
        check_filter(json!({}), allocatable, json!({}), wanted, &want)
    };
    check(json!({"cpu": 1, "pods": 2}), json!({"cpu": 1}), expect!["n Success"]);
    check(
        json!({"cpu": 1, "pods": 1}),
        json!({"cpu": 1}),
        expect!["n Unschedulable Too many pods"],
    );
    check(json!({"cpu": 1}), json!({}), expect!["n Unschedulable Too many pods"]);
    check(
        json!({"cpu": 1}),
        json!({"cpu": 2}),
        expect!["n UnschedulableAndUnresolvable Too many pods, Insufficient cpu"],
    );
}

#[test]
fn filter_ignores_configured_resources() {
    let args = || json!({"ignoredResources": ["a.io/x", "hugepages-2Mi"], "ignoredResourceGroups": ["b.io"]});
    let check =
        |wanted, want: Expect| check_filter(args(), json!({"pods": 5}), json!({}), wanted, &want);
    check(json!({"a.io/x": 1, "b.io/y": 1, "b.io/z": 1}), expect!["n Success"]);
    check(json!({"a.io/y": 1}), expect!["n UnschedulableAndUnresolvable Insufficient a.io/y"]);
    check(
        json!({"b.io.example/y": 1}),
        expect!["n UnschedulableAndUnresolvable Insufficient b.io.example/y"],
    );
    // Only extended resources can be ignored.
    check(
        json!({"hugepages-2Mi": 1}),
        expect!["n UnschedulableAndUnresolvable Insufficient hugepages-2Mi"],
    );
}

#[test]
fn filter_counts_the_whole_pod() {
    let mut bench = bench(json!({}), json!({"cpu": 4, "pods": 5}), json!({"cpu": 1}));
    let mut check = |spec: Value, want: &str| {
        let results = bench.filter(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
        assert_eq!(results, [format!("n {want}")]);
    };
    let requests_cpu = |cpu: &str| json!([{"name": "c", "resources": {"requests": {"cpu": cpu}}}]);
    let sidecar =
        json!([{"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}]);
    check(json!({"containers": requests_cpu("3")}), "Success");
    check(json!({"containers": requests_cpu("1"), "initContainers": requests_cpu("3")}), "Success");
    check(
        json!({"containers": requests_cpu("1"), "initContainers": requests_cpu("4")}),
        "Unschedulable Insufficient cpu",
    );
    check(
        json!({"containers": requests_cpu("3"), "initContainers": sidecar}),
        "Unschedulable Insufficient cpu",
    );
    check(
        json!({"containers": requests_cpu("3"), "overhead": {"cpu": "1m"}}),
        "Unschedulable Insufficient cpu",
    );
    check(
        json!({"containers": requests_cpu("1"), "resources": {"requests": {"cpu": "4"}}}),
        "Unschedulable Insufficient cpu",
    );
}

#[track_caller]
fn check_score(strategy: Value, wanted: Value, want: i64) {
    let args = if strategy.is_null() { json!({}) } else { json!({"scoringStrategy": strategy}) };
    let offered =
        json!({"cpu": 10, "memory": 1000, "ephemeral-storage": 100, "pods": 9, "a.io/x": 8});
    let used = json!({"cpu": 1, "memory": 200, "ephemeral-storage": 20, "a.io/x": 2});
    let scores = bench(args, offered, used).score(pod("web", wanted)).unwrap();
    assert_eq!(scores, [("n".to_owned(), want)]);
}

#[test]
fn score() {
    let spec = |kind: &str, names: &[&str]| {
        let resources: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        json!({"type": kind, "resources": resources})
    };
    check_score(Value::Null, json!({"cpu": 2, "memory": 300}), 60);
    // Missing requests count as 100m and 200 MiB, which exceeds the allocatable memory.
    check_score(Value::Null, json!({}), 44);
    check_score(spec("MostAllocated", &[]), json!({"cpu": 2, "memory": 300}), 40);
    check_score(spec("MostAllocated", &["cpu", "memory"]), json!({}), 55);
    check_score(
        spec("LeastAllocated", &["ephemeral-storage"]),
        json!({"ephemeral-storage": 30}),
        50,
    );
    // Scalar resources count when the pod requests them; resources that a node does not have never count.
    check_score(spec("LeastAllocated", &["cpu", "a.io/x"]), json!({"cpu": 2}), 70);
    check_score(spec("LeastAllocated", &["cpu", "a.io/x"]), json!({"cpu": 2, "a.io/x": 2}), 60);
    check_score(spec("LeastAllocated", &["b.io/x", "odd"]), json!({"cpu": 2}), 0);
    let weighted = json!({"type": "LeastAllocated", "resources": [{"name": "cpu", "weight": 3}, {"name": "memory"}]});
    check_score(weighted, json!({"cpu": 2, "memory": 300}), 65);
    let ratio = json!({"type": "RequestedToCapacityRatio", "resources": [{"name": "cpu"}],
        "requestedToCapacityRatio": {"shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]}});
    check_score(ratio, json!({"cpu": 2}), 30);
}

#[test]
fn score_ignores_pod_level_resources() {
    let mut bench = bench(
        json!({}),
        json!({"cpu": 10, "memory": "10Gi", "pods": 9}),
        json!({"cpu": 0, "memory": 0}),
    );
    let mut check = |own: Value, want: i64| {
        let spec = json!({"containers": [{"name": "c"}], "resources": {"requests": own}});
        let scores = bench.score(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
        assert_eq!(scores, [("n".to_owned(), want)]);
    };
    check(json!({"cpu": 5, "memory": "5Gi"}), 98);
    check(json!({}), 98);
}

#[track_caller]
fn check_args(given: Value, want: &Expect) {
    let text = match complete_args(&given, &FeatureGates::default()) {
        Ok(args) => args.to_string(),
        Err(errors) => errors.iter().map(FieldError::to_string).collect::<Vec<_>>().join("\n"),
    };
    want.assert_eq(&text);
}

#[test]
fn args_and_defaults() {
    let default = expect![[
        r#"{"scoringStrategy":{"resources":[{"name":"cpu","weight":1},{"name":"memory","weight":1}],"type":"LeastAllocated"}}"#
    ]];
    check_args(json!({}), &default);
    check_args(json!({"ignoredResources": null, "scoringStrategy": null}), &default);
    check_args(
        json!({"ignoredResources": ["a/b"], "ignoredResourceGroups": [], "scoringStrategy": {
            "type": "RequestedToCapacityRatio", "resources": [{"name": "a/b"}, {"name": "", "weight": 3}],
            "requestedToCapacityRatio": {"shape": [{"utilization": 0, "score": 0}, {"utilization": 100}]}}}),
        &expect![[
            r#"{"ignoredResources":["a/b"],"scoringStrategy":{"requestedToCapacityRatio":{"shape":[{"score":0,"utilization":0},{"score":0,"utilization":100}]},"resources":[{"name":"a/b","weight":1},{"name":"","weight":3}],"type":"RequestedToCapacityRatio"}}"#
        ]],
    );
}

#[test]
fn invalid_args_are_rejected() {
    check_args(
        json!({"foo": 1}),
        &expect![
            "foo: unknown field `foo`, expected one of `ignoredResources`, `ignoredResourceGroups`, `scoringStrategy`"
        ],
    );
    check_args(
        json!({"foo": null, "ignoredResources": {}, "scoringStrategy": ["LeastAllocated"]}),
        &expect![[r#"
            foo: unknown field `foo`, expected one of `ignoredResources`, `ignoredResourceGroups`, `scoringStrategy`
            ignoredResources: invalid type: map, expected a sequence
            scoringStrategy: invalid type: sequence, expected an object"#]],
    );
    check_args(
        json!({"scoringStrategy": {"resources": [["cpu", 1]], "bar": 2}}),
        &expect![[r#"
            scoringStrategy.bar: unknown field `bar`, expected one of `type`, `resources`, `requestedToCapacityRatio`
            scoringStrategy.resources[0]: invalid type: sequence, expected an object"#]],
    );
    check_args(
        json!({"scoringStrategy": {}}),
        &expect![[
            r#"scoringStrategy.type: Unsupported value: "": supported values: "LeastAllocated", "MostAllocated", "RequestedToCapacityRatio""#
        ]],
    );
    check_args(
        json!({"scoringStrategy": {"type": "Foo", "requestedToCapacityRatio": {},
            "resources": [{"name": "cpu", "weight": 101}, {"name": "m", "weight": -1}]}}),
        &expect![[r#"
            scoringStrategy.type: Unsupported value: "Foo": supported values: "LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"
            scoringStrategy.resources[0].weight: Invalid value: 101: resource weight of cpu not in valid range (0, 100]
            scoringStrategy.resources[1].weight: Invalid value: -1: resource weight of m not in valid range (0, 100]
            scoringStrategy.requestedToCapacityRatio: Forbidden: must be nil when type is not RequestedToCapacityRatio"#]],
    );
    let ratio = |shape: Value| json!({"scoringStrategy": {"type": "RequestedToCapacityRatio", "requestedToCapacityRatio": shape}});
    check_args(
        ratio(Value::Null),
        &expect![
            "scoringStrategy.requestedToCapacityRatio: Required value: must be specified when type is RequestedToCapacityRatio"
        ],
    );
    check_args(
        ratio(json!({"shape": []})),
        &expect![
            "scoringStrategy.requestedToCapacityRatio.shape: Required value: at least one point must be specified"
        ],
    );
    check_args(
        ratio(
            json!({"shape": [{"utilization": 50, "score": 11}, {"utilization": 50, "score": -1}, {"utilization": -1}, {"utilization": 101}]}),
        ),
        &expect![[r#"
            scoringStrategy.requestedToCapacityRatio.shape[1].utilization: Invalid value: 50: values must be sorted in increasing order
            scoringStrategy.requestedToCapacityRatio.shape[0].score: Invalid value: 11: not in valid range [0, 10]
            scoringStrategy.requestedToCapacityRatio.shape[1].score: Invalid value: -1: not in valid range [0, 10]
            scoringStrategy.requestedToCapacityRatio.shape[2].utilization: Invalid value: -1: not in valid range [0, 100]
            scoringStrategy.requestedToCapacityRatio.shape[3].utilization: Invalid value: 101: not in valid range [0, 100]"#]],
    );
    check_args(
        json!({"ignoredResources": ["p/"], "ignoredResourceGroups": ["a/b", "Pre"]}),
        &expect![[r#"
            ignoredResources[0]: Invalid value: "p/": name part must be non-empty
            ignoredResources[0]: Invalid value: "p/": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
            ignoredResourceGroups[0]: Invalid value: "a/b": resource group name can't contain '/'"#]],
    );
}

#[test]
fn signature() {
    let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
    let wanted = json!({"cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": 2, "ephemeral-storage": 3, "foo": 3, "hugepages-2Mi": 0});
    let mut check = |wanted: Value, want: Value| {
        let signed = bench.sign(pod("web", wanted)).unwrap();
        assert_eq!(signed, json!({"v1.Pod.Spec.ContainerRequestsAndOverheads()": want}));
    };
    check(
        wanted,
        json!({"MilliCPU": 1500, "Memory": 1_073_741_824, "EphemeralStorage": 3, "AllowedPodNumber": 0,
        "ScalarResources": {"hugepages-2Mi": 0, "nvidia.com/gpu": 2}}),
    );
    check(
        json!({}),
        json!({"MilliCPU": 0, "Memory": 0, "EphemeralStorage": 0, "AllowedPodNumber": 0, "ScalarResources": null}),
    );
}

#[test]
fn explain_says_how_much_is_needed_and_free() {
    let mut bench =
        bench(json!({}), json!({"cpu": 4, "memory": "8Gi", "pods": 1}), json!({"cpu": 1}));
    bench.node(node("m", json!({"cpu": "2500m", "memory": "8Gi", "pods": 9}))).unwrap();
    bench.node(node("z", json!({"cpu": 64, "memory": "64Gi", "pods": 9}))).unwrap();
    let mut check = |requests: Value, want: &Expect| {
        want.assert_eq(&bench.explain(pod("web", requests)).unwrap().join("\n"));
    };
    check(
        json!({"cpu": 6, "memory": "1536Mi"}),
        &expect![[r#"
        pod: needs=6 cpu, too much for 2 of 3 nodes; n is nearest, with 3 of 4 free
        n: needs=1 pod, 1 of 1 are there; 6 cpu, 3 of 4 free
        m: needs=6 cpu, 2500m of 2500m free"#]],
    );
    check(
        json!({"memory": "32Gi", "a.io/x": 2}),
        &expect![[r#"
        pod: needs=32Gi memory, too much for 2 of 3 nodes; m is nearest, with 8Gi of 8Gi free; 2 a.io/x, too much for 3 of 3 nodes; m is nearest, with 0 of 0 free
        n: needs=1 pod, 1 of 1 are there; 32Gi memory, 8Gi of 8Gi free; 2 a.io/x, 0 of 0 free
        m: needs=32Gi memory, 8Gi of 8Gi free; 2 a.io/x, 0 of 0 free
        z: needs=2 a.io/x, 0 of 0 free"#]],
    );
    check(json!({}), &expect!["n: needs=1 pod, 1 of 1 are there"]);
}
