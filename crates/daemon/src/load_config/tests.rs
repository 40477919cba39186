//! Flags and configuration files.

use std::path::PathBuf;

use loadmaster_config::v1::Plugin;

use super::*;
use crate::flags::{ParsedCommandLine, parse_command_line};

fn options(args: &[&str]) -> Options {
    match parse_command_line(["kube-scheduler"].iter().chain(args)).unwrap() {
        ParsedCommandLine::Run(options) => *options,
        ParsedCommandLine::Print(text) => panic!("printed {text}"),
    }
}

fn load(args: &[&str]) -> Result<LoadedConfig, String> {
    options(args)
        .load_config(&loadmaster_plugins::in_tree_registry())
        .map_err(|error| error.to_string())
}

/// A configuration file that is removed at the end of the test.
struct TempConfigFile(PathBuf);

impl TempConfigFile {
    fn new(name: &str, text: &str) -> TempConfigFile {
        let file = format!("loadmaster-daemon-{}-{name}.yaml", std::process::id());
        let path = std::env::temp_dir().join(file);
        std::fs::write(&path, text).unwrap();
        TempConfigFile(path)
    }

    fn flag(&self) -> String {
        format!("--config={}", self.0.display())
    }
}

impl Drop for TempConfigFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const HEAD: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

#[test]
fn configuration_from_flags_alone() {
    let loaded = load(&[
        "--kubeconfig=/k",
        "--kube-api-qps=7.5",
        "--kube-api-burst=9",
        "--profiling=false",
        "--leader-elect=false",
        "--scheduler-name=mine",
        "--hard-pod-affinity-symmetric-weight=42",
        "--master=https://a",
    ])
    .unwrap();
    let config = &loaded.config;
    assert_eq!(config.client_connection.kubeconfig, "/k");
    assert_eq!((config.client_connection.qps, config.client_connection.burst), (7.5, 9));
    assert!(!config.enable_profiling && config.enable_contention_profiling);
    assert!(!config.leader_election.leader_elect);
    assert_eq!(config.profiles[0].scheduler_name, "mine");
    assert!(config.to_v1_json().unwrap().contains(r#""hardPodAffinityWeight":42"#));
    assert_eq!(loaded.master, "https://a");
    assert_eq!(loaded.pod_max_in_unschedulable_pods.to_string(), "5m0s");
    assert_eq!(loaded.profiles.len(), 1);
}

#[test]
fn leader_election_flags_override_the_file_and_deprecated_ones_do_not() {
    let file = TempConfigFile::new(
        "override",
        &format!(
            "{HEAD}leaderElection: {{leaderElect: true, resourceName: file, retryPeriod: 3s}}\n\
             clientConnection: {{kubeconfig: /from/file, qps: 3}}\n"
        ),
    );
    let loaded = load(&[
        &file.flag(),
        "--leader-elect=false",
        "--leader-elect-resource-name=flag",
        "--kubeconfig=/from/flag",
        "--kube-api-qps=50",
        "--scheduler-name=mine",
        "--pod-max-in-unschedulable-pods-duration=60s",
    ])
    .unwrap();
    let election = &loaded.config.leader_election;
    assert!(!election.leader_elect);
    assert_eq!(
        (election.resource_name.as_str(), election.retry_period.to_string().as_str()),
        ("flag", "3s")
    );
    let client = &loaded.config.client_connection;
    assert_eq!((client.kubeconfig.as_str(), client.qps), ("/from/file", 3.0));
    assert_eq!(loaded.config.profiles[0].scheduler_name, "default-scheduler");
    assert_eq!(loaded.pod_max_in_unschedulable_pods.to_string(), "1m0s");
    let ignored: Vec<&String> = loaded
        .notes
        .iter()
        .filter(|note| note.contains("is ignored because --config is set"))
        .collect();
    assert_eq!(ignored.len(), 3, "{ignored:?}");
}

#[test]
fn command_lines_of_older_manifests_are_accepted() {
    let file = TempConfigFile::new("old", HEAD);
    let config = file.flag();
    assert!(load(&[&config, "--port=0", "--logtostderr=true", "--v=9"]).is_ok());
    let reviews =
        ["--authentication-kubeconfig=F", "--authorization-kubeconfig=F", &config, "-v=9"];
    assert!(load(&reviews).is_ok());
}

#[test]
fn invalid_flags_and_files_are_rejected() {
    #[track_caller]
    fn check(args: &[&str], want: &str) {
        let error = load(args).unwrap_err();
        assert!(error.contains(want), "{args:?}: {error}");
    }
    check(&["--config=/nope/nope"], "/nope/nope");
    check(&["--feature-gates=Foo=true"], "unrecognized feature gate: Foo");
    check(&["--emulated-version=1.20"], "emulation version 1.20 is not between [1.33, 1.36.0]");
    check(&["--leader-elect-lease-duration=1s"], "leaderElection.leaseDuration");
    check(&["--leader-elect-resource-lock=configmaps"], "leaderElection.resourceLock");
    check(&["--secure-port=-1"], "--secure-port -1 must be between 0 and 65535");
    let file = TempConfigFile::new("bad", &format!("{HEAD}parallelism: 0\n"));
    check(&[&file.flag()], ":3:");
}

#[test]
fn null_fields_of_plugin_arguments_must_be_known() {
    for (plugin, args, unknown) in [
        (
            "NodeResourcesFit",
            "{ignoredResources: null, scoringStrategy: {type: MostAllocated, resources: null}}",
            None,
        ),
        (
            "NodeResourcesFit",
            "{scoringStrategy: {resources: null, resource: null}}",
            Some("scoringStrategy.resource: unknown field `resource`"),
        ),
        (
            "PodTopologySpread",
            "{defaultingType: List, defaultConstraints: [{maxSkew: 1, skew: null}]}",
            Some("defaultConstraints[0].skew: unknown field `skew`"),
        ),
        (
            "NodeAffinity",
            "{addedAffinity: {required: null}}",
            Some("addedAffinity.required: unknown field `required`"),
        ),
    ] {
        let text =
            format!("{HEAD}profiles:\n- pluginConfig:\n  - name: {plugin}\n    args: {args}\n");
        let file = TempConfigFile::new("null", &text);
        let errors = load(&[&file.flag()]).err();
        match unknown {
            None => assert_eq!(errors, None, "{args}"),
            Some(unknown) => {
                let errors = errors.unwrap_or_default();
                let is_found = errors.contains(&format!("pluginConfig[0].args.{unknown}"));
                assert!(is_found && errors.contains(":6:"), "{args}: {errors}");
            }
        }
    }
}

/// Loads a configuration with the plugins of older versions.
fn load_old(args: &[&str]) -> Result<LoadedConfig, String> {
    let registry = loadmaster_plugins::in_tree_registry();
    options(args)
        .load_config(&loadmaster_legacy_plugins::with_legacy_plugins(registry))
        .map_err(|error| error.to_string())
}

const POLICY: &str = r#"{"kind": "Policy", "apiVersion": "v1", "predicates": [{"name": "PodFitsResources"}],
"priorities": [{"name": "MostRequestedPriority", "weight": 2}], "hardPodAffinitySymmetricWeight": 9}"#;

#[test]
fn a_policy_by_flags_replaces_the_plugins_of_the_configuration() {
    let policy = TempConfigFile::new("policy", POLICY);
    let policy_flag = format!("--policy-config-file={}", policy.0.display());
    let config = TempConfigFile::new("with-policy", &format!("{HEAD}parallelism: 7\n"));
    for args in [
        vec![policy_flag.as_str(), "--scheduler-name=default-scheduler"],
        vec![&policy_flag, &config.flag()],
        vec![&policy_flag, "--policy-configmap=other", "--use-legacy-policy-config"],
    ] {
        let loaded = load_old(&args).unwrap();
        let enabled = loaded.config.profiles[0].plugins.enabled_names();
        assert!(enabled.contains(&"NodeResourcesMostAllocated"), "{args:?}: {enabled:?}");
        assert!(!enabled.contains(&"NodePorts"), "{args:?}: {enabled:?}");
    }
    let missing = load_old(&["--policy-config-file=/nope/policy.json"]).unwrap_err();
    assert!(missing.contains("/nope/policy.json"), "{missing}");
    let bad = TempConfigFile::new(
        "bad-policy",
        r#"{"kind": "Policy", "apiVersion": "v1", "predicate": []}"#,
    );
    let errors = load_old(&[&format!("--policy-config-file={}", bad.0.display())]).unwrap_err();
    assert!(errors.contains("predicate: unknown field"), "{errors}");
    let by_map = load_old(&["--policy-configmap=p", "--kubeconfig=/nope/kubeconfig"]).unwrap_err();
    assert_eq!(by_map, "couldn't get policy config map kube-system/p");
}

#[test]
fn cluster_autoscaler_provider_prefers_used_nodes() {
    let loaded = load_old(&["--algorithm-provider=ClusterAutoscalerProvider"]).unwrap();
    let args = loaded.profiles[0].args_of("NodeResourcesFit");
    assert_eq!(args["scoringStrategy"]["type"], "MostAllocated");
}

#[test]
fn the_limit_of_volumes_in_the_environment() {
    let text =
        "apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration\n";
    let file = TempConfigFile::new("limits", text);
    let mut config = load_old(&[&file.flag()]).unwrap().config;
    let plugins = &mut config.profiles[0].plugins;
    plugins.filter.enabled.push(Plugin { name: "EBSLimits".to_owned(), weight: 0 });
    let n_before = config.profiles[0].plugin_config.len();
    for value in [None, Some("0"), Some("x")] {
        apply_max_volumes(&mut config, value);
        assert_eq!(config.profiles[0].plugin_config.len(), n_before);
    }
    apply_max_volumes(&mut config, Some("40"));
    let added = &config.profiles[0].plugin_config[n_before..];
    assert_eq!((added.len(), &added[0].args), (1, &json!({"maxVolumes": 40})));
}
