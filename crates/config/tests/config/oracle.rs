//! kube-scheduler 1.36 and Loadmaster get the same configurations: both accept or reject, both have the
//! same plugins at every extension point and print the same configuration.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use loadmaster_api::document::Document;
use loadmaster_config::{
    AllFeatureGates, CheckedConfiguration, ExtensionPoint, check_configuration_value,
    in_tree_extension_points,
};
use loadmaster_framework::Registry;
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use crate::testkit::registry;

/// One configuration per line.
const CONFIGURATIONS: &str = r#"
{}
{parallelism: 0}
{parallelism: 1.5}
{parallelism: "16"}
{Parallelism: 3}
{parallelism: 3000000000}
{percentageOfNodesToScore: 101}
{podInitialBackoffSeconds: 0, podMaxBackoffSeconds: -1}
{podInitialBackoffSeconds: 20}
{podInitialBackoffSeconds: 20, podMaxBackoffSeconds: 20}
{enableProfiling: false}
{enableProfiling: false, enableContentionProfiling: true}
{enableProfiling: "true"}
{clientConnection: {burst: -1, qps: 0.1}}
{clientConnection: {qps: -1.5, kubeconfig: a, acceptContentTypes: b, contentType: c, burst: 7}}
{clientConnection: {qps: 1.0e+300}}
{clientConnection: {qps: 16777217}}
{leaderElection: {leaseDuration: 0s}}
{leaderElection: {leaseDuration: 1h1.5s, renewDeadline: 90s, retryPeriod: 1500ms}}
{leaderElection: {leaseDuration: -1s, renewDeadline: -2s, retryPeriod: -1ms}}
{leaderElection: {leaseDuration: 10s}}
{leaderElection: {leaseDuration: 5}}
{leaderElection: {leaseDuration: "5"}}
{leaderElection: {leaseDuration: ""}}
{leaderElection: {retryPeriod: 9s}}
{leaderElection: {resourceLock: endpoints}}
{leaderElection: {leaderElect: false, resourceLock: endpoints, leaseDuration: 1s}}
{leaderElection: null, clientConnection: null, profiles: null, extenders: null}
{foo: null}
{leaderElection: {foo: null}}
{clientConnection: {foo: null, burst: null}}
{leaderElection: []}
{clientConnection: []}
{profiles: [[]]}
{profiles: [{bar: null}]}
{profiles: [{plugins: []}]}
{extenders: [[]]}
{extenders: [{foo: null}]}
{extenders: [{urlPrefix: "http://x", filterVerb: null, tlsConfig: {foo: null}}]}
{extenders: [{urlPrefix: "http://x", filterVerb: null, httpTimeout: 5s, tlsConfig: {insecure: null}, managedResources: null}]}
{extenders: [{managedResources: [{name: a.b/c, foo: null}]}]}
{profiles: []}
{profiles: [null]}
{profiles: {}}
{profiles: [{schedulerName: a}, {schedulerName: b}]}
{profiles: [{schedulerName: a}, {schedulerName: a}]}
{profiles: [{}, {}]}
{profiles: [{schedulerName: ""}]}
{profiles: [{schedulerName: null}]}
{profiles: [{percentageOfNodesToScore: -1}]}
{profiles: [{percentageOfNodesToScore: 100}]}
{foo: 1, profiles: [{bar: 2, plugins: {baz: {}}}]}
{extenders: [{urlPrefix: "http://x", prioritizeVerb: p}]}
{extenders: [{bindVerb: b}, {bindVerb: b}]}
{extenders: [{tlsConfig: {certData: "!!"}}]}
{extenders: [{managedResources: [{name: cpu}]}]}
{profiles: [{schedulerName: a}, {schedulerName: b, plugins: {queueSort: {enabled: [{name: PrioritySort}]}}}]}
{profiles: [{schedulerName: a}, {schedulerName: b, plugins: {queueSort: {disabled: [{name: x}]}}}]}
{profiles: [{schedulerName: a}, {schedulerName: b, pluginConfig: [{name: PrioritySort, args: {a: 2}}]}]}
"#;

/// One `pluginConfig` per line.
const ARGUMENTS: &str = r#"
[{name: NodeAffinity}]
[{name: Foo, args: null}]
[{args: {}}]
[{name: InterPodAffinity, args: {kind: FooArgs}}]
[{name: InterPodAffinity, args: {kind: NodeAffinityArgs}}]
[{name: InterPodAffinity, args: {apiVersion: kubescheduler.config.k8s.io/v1beta3}}]
[{name: InterPodAffinity, args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: InterPodAffinityArgs}}]
[{name: InterPodAffinity, args: {hardPodAffinityWeight: 7}}, {name: DefaultPreemption}]
[{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]
[{name: InterPodAffinity, args: {hardPodAffinityWeight: null}}]
[{name: InterPodAffinity, args: {foo: 1}}]
[{name: InterPodAffinity, args: {foo: null}}]
[{name: InterPodAffinity, args: {hardPodAffinityWeight: null, foo: null}}]
[{name: InterPodAffinity, args: {kind: null, apiVersion: null}}]
[{name: NodeName, args: {a: null}}]
[{name: InterPodAffinity, foo: null}]
[null]
[{name: InterPodAffinity, args: x}]
[{name: Foo, args: {}}, {name: Foo, args: {a: 1}}]
[{name: NodeName, args: {a: 1}}]
[{name: PrioritySort, args: {a: 1}}]
[{name: EBSLimits}]
"#;

/// One `plugins` per line.
const PLUGINS: &str = r#"
{filter: {enabled: [{name: Foo}]}}
{multiPoint: {enabled: [{name: Foo}]}}
{filter: {disabled: [{name: Foo}]}}
{score: {enabled: [{name: NodeName}]}}
{bind: {enabled: [{name: NodeName}]}}
{bind: {disabled: [{name: "*"}]}}
{filter: {enabled: [{}]}}
{filter: {enabled: [null]}}
{filter: {enabled: null}}
{filter: null}
{filters: null}
{filter: []}
{filter: {enable: null}}
{filter: {enabled: [{name: NodeName, foo: null}]}}
{filter: {enabled: [[]]}}
{filter: {disabled: [null]}}
{queueSort: {enabled: [{name: PrioritySort}]}}
{queueSort: {enabled: [{name: PrioritySort}, {name: PrioritySort}]}}
{queueSort: {disabled: [{name: "*"}]}}
{multiPoint: {disabled: [{name: PrioritySort}]}}
{filter: {enabled: [{name: EBSLimits}]}}
{filter: {disabled: [{name: EBSLimits}]}}
{multiPoint: {enabled: [{name: EBSLimits}]}}
{multiPoint: {enabled: [{name: NodeName}, {name: NodeName}]}}
{filter: {enabled: [{name: NodeName}, {name: NodeName}]}}
{multiPoint: {enabled: [{name: ImageLocality, weight: 4}, {name: ImageLocality, weight: 5}]}}
{score: {enabled: [{name: ImageLocality, weight: -3}]}}
{multiPoint: {enabled: [{name: ImageLocality, weight: -3}]}}
{multiPoint: {enabled: [{name: TaintToleration, weight: -3}]}}
{score: {enabled: [{name: ImageLocality, weight: 0}]}}
{score: {enabled: [{name: TaintToleration}]}}
{multiPoint: {enabled: [{name: ImageLocality, weight: 7}]}}
{score: {disabled: [{name: "*"}], enabled: [{name: ImageLocality, weight: 9}]}}
{multiPoint: {disabled: [{name: "*"}]}}
{multiPoint: {disabled: [{name: "*"}], enabled: [{name: DefaultBinder}, {name: PrioritySort}]}}
{filter: {enabled: [{name: NodePorts}, {name: NodeName}]}}
{filter: {disabled: [{name: NodeName}], enabled: [{name: NodeName}]}}
{filter: {disabled: [{name: NodeName, weight: 5}]}}
{reserve: {enabled: [{name: DynamicResources}]}}
{preEnqueue: {enabled: [{name: DefaultPreemption}, {name: SchedulingGates}]}}
{permit: {enabled: [{name: NodeName}]}}
{postBind: {enabled: [{name: DefaultBinder}]}}
{multiPoint: {disabled: [{name: NodeName}]}, filter: {enabled: [{name: NodeName}]}}
"#;

/// The number of random profiles.
const N_RANDOM: usize = 150;

fn lines(text: &str) -> impl Iterator<Item = Value> {
    text.lines()
        .filter(|line| !line.is_empty())
        .map(|line| Document::new("line", line).decode_value().unwrap())
}

fn configurations() -> Vec<Value> {
    let mut rng = Rng::new(36);
    let random = (0..N_RANDOM).map(|_| random_plugins(&mut rng)).collect::<Vec<_>>();
    let plugins =
        lines(PLUGINS).chain(random).map(|plugins| json!({"profiles": [{"plugins": plugins}]}));
    let arguments = lines(ARGUMENTS).map(|args| json!({"profiles": [{"pluginConfig": args}]}));
    let mut all: Vec<Value> = lines(CONFIGURATIONS).chain(arguments).chain(plugins).collect();
    for config in &mut all {
        config["apiVersion"] = "kubescheduler.config.k8s.io/v1".into();
        config["kind"] = "KubeSchedulerConfiguration".into();
    }
    all
}

/// A few plugins enabled and disabled at a few extension points, so that most configurations are valid.
fn random_plugins(rng: &mut Rng) -> Value {
    const NAMES: &[&str] = &[
        "NodeName",
        "TaintToleration",
        "NodeAffinity",
        "NodeResourcesFit",
        "VolumeBinding",
        "PodTopologySpread",
        "DynamicResources",
        "ImageLocality",
        "DefaultPreemption",
    ];
    let mut plugins = json!({});
    for _ in 0..=rng.below(3) {
        let point = (!rng.one_in(3)).then(|| *rng.pick(&ExtensionPoint::ALL));
        let extends = |name: &str| match point {
            Some(point) => {
                in_tree_extension_points(name).is_some_and(|points| points.contains(point))
            }
            None => true,
        };
        let mut names: Vec<&str> =
            NAMES.iter().copied().filter(|name| rng.one_in(30) || extends(name)).collect();
        let mut draw = |n_max: u64| -> Vec<Value> {
            let mut drawn = Vec::new();
            for _ in 0..rng.below(n_max + 1) {
                if names.is_empty() {
                    break;
                }
                let idx = rng.below(names.len() as u64) as usize;
                let name = if rng.one_in(40) { names[idx] } else { names.swap_remove(idx) };
                drawn.push(json!({"name": name, "weight": rng.below(4)}));
            }
            drawn
        };
        let (enabled, mut disabled) = (draw(3), draw(2));
        if rng.one_in(8)
            && point.is_some_and(|point| {
                !matches!(point, ExtensionPoint::Bind | ExtensionPoint::QueueSort)
            })
        {
            disabled.push(json!({"name": "*"}));
        }
        plugins[point.map_or("multiPoint", ExtensionPoint::field_name)] =
            json!({"enabled": enabled, "disabled": disabled});
    }
    plugins
}

/// Runs the oracle (kube-scheduler) on the configurations; `None` when it is not built.
fn run_oracle(configurations: &[Value]) -> Option<Vec<Value>> {
    let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/bin/oracle");
    if !oracle.exists() {
        println!("skipped: {} is not built", oracle.display());
        return None;
    }
    let requests: String = configurations
        .iter()
        .map(|config| json!({"id": 1, "ask": "config", "config": config}).to_string() + "\n")
        .collect();
    // Uses a file, because a full pipe of answers would block before the last question is written.
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("questions.jsonl");
    fs::write(&path, requests).unwrap();
    let output = Command::new(oracle).stdin(File::open(&path).unwrap()).output().unwrap();
    let answers = String::from_utf8(output.stdout).unwrap();
    Some(answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// The plugins of each profile, in the format of the oracle.
fn plugins_of(checked: &CheckedConfiguration) -> Value {
    let mut profiles = json!({});
    for profile in &checked.profiles {
        let mut points = json!({});
        for (point, plugins) in profile.extension_points.iter() {
            points[point.field_name()] =
                plugins.iter().map(|plugin| json!([plugin.name, plugin.weight])).collect();
        }
        profiles[&profile.scheduler_name] = points;
    }
    profiles
}

/// Removes from an answer the plugins that are not in the registry.
fn retain_implemented(plugins: &mut Value, registry: &Registry) {
    for profile in plugins.as_object_mut().unwrap().values_mut() {
        let points = profile.as_object_mut().unwrap();
        points.remove(ExtensionPoint::PlacementScore.field_name());
        for plugins in points.values_mut() {
            let plugins = plugins.as_array_mut().unwrap();
            plugins.retain(|plugin| registry.get(plugin[0].as_str().unwrap()).is_some());
        }
        points.retain(|_, plugins| plugins != &json!([]));
    }
}

/// Removes the arguments of plugins that have none in the registry of the test.
fn retain_known_args(config: &mut Value) {
    const KNOWN: &[&str] = &["DefaultPreemption", "InterPodAffinity", "NodeName", "PrioritySort"];
    for profile in config["profiles"].as_array_mut().unwrap() {
        let profile = profile.as_object_mut().unwrap();
        if let Some(Value::Array(entries)) = profile.get_mut("pluginConfig") {
            entries.retain(|entry| KNOWN.contains(&entry["name"].as_str().unwrap()));
            if entries.is_empty() {
                profile.remove("pluginConfig");
            }
        }
    }
}

#[test]
fn agrees_with_kube_scheduler() {
    let configurations = configurations();
    let Some(answers) = run_oracle(&configurations) else { return };
    assert_eq!(answers.len(), configurations.len());
    let registry = registry();
    let mut n_accepted = 0;
    for (config, mut answer) in configurations.iter().zip(answers) {
        let checked =
            match check_configuration_value(config.clone(), &registry, &AllFeatureGates::default())
            {
                Ok(checked) => checked,
                Err(errors) => {
                    assert!(
                        answer.get("error").is_some(),
                        "{config}\nours: {errors:?}\ntheirs: ok"
                    );
                    continue;
                }
            };
        assert!(answer.get("error").is_none(), "{config}\nours: ok\ntheirs: {}", answer["error"]);
        retain_implemented(&mut answer["plugins"], &registry);
        assert_eq!(plugins_of(&checked), answer["plugins"], "{config}");
        let mut printed: Value =
            serde_json::from_str(&checked.config.to_v1_json().unwrap()).unwrap();
        retain_known_args(&mut printed);
        retain_known_args(&mut answer["config"]);
        assert_eq!(printed, answer["config"], "{config}");
        n_accepted += 1;
    }
    assert!(n_accepted > N_RANDOM / 2, "{n_accepted} of {} are accepted", configurations.len());
}
