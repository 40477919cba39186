//! Strict decoding: which values are rejected, and at which line and column.

use expect_test::{Expect, expect};
use loadmaster_api::document::Document;
use loadmaster_config::{AllFeatureGates, check_configuration};

use crate::testkit::{check_errors, registry};

#[test]
fn all_unknown_fields_are_reported() {
    check_errors(
        "\
parallelism: 4
foo: 1
profiles:
- bar: 2
  plugins:
    baz: {}
    filter:
      enabled:
      - {name: NodeName, wait: 1}
",
        &expect![[r#"
            config.yaml:4:6: foo: unknown field `foo`, expected one of `parallelism`, `leaderElection`, `clientConnection`, `enableProfiling`, `enableContentionProfiling`, `percentageOfNodesToScore`, `podInitialBackoffSeconds`, `podMaxBackoffSeconds`, `profiles`, `extenders`, `delayCacheUntilActive`
            config.yaml:6:8: profiles[0].bar: unknown field `bar`, expected one of `schedulerName`, `percentageOfNodesToScore`, `plugins`, `pluginConfig`
            config.yaml:8:10: profiles[0].plugins.baz: unknown field `baz`, expected one of `preEnqueue`, `queueSort`, `preFilter`, `filter`, `postFilter`, `preScore`, `score`, `reserve`, `permit`, `preBind`, `bind`, `postBind`, `multiPoint`, `placementGenerate`, `placementScore`
            config.yaml:11:32: profiles[0].plugins.filter.enabled[0].wait: unknown field `wait`, expected `name` or `weight`"#]],
    );
}

#[test]
fn field_names_are_case_sensitive() {
    check_errors(
        "Parallelism: 4\n",
        &expect![[
            r#"config.yaml:3:14: Parallelism: unknown field `Parallelism`, expected one of `parallelism`, `leaderElection`, `clientConnection`, `enableProfiling`, `enableContentionProfiling`, `percentageOfNodesToScore`, `podInitialBackoffSeconds`, `podMaxBackoffSeconds`, `profiles`, `extenders`, `delayCacheUntilActive`; did you mean "parallelism"?"#
        ]],
    );
}

#[test]
fn duplicate_keys_are_rejected() {
    check_errors(
        "\
parallelism: 4
parallelism: 5
",
        &expect![[r#"config.yaml:4:1: duplicate key "parallelism""#]],
    );
}

#[test]
fn wrong_types_are_rejected() {
    check_errors(
        "\
parallelism: many
enableProfiling: 1
profiles:
- percentageOfNodesToScore: 3000000000
- 7
leaderElection:
  leaseDuration: 5
  renewDeadline: 5\"
  retryPeriod: 1d
clientConnection: {qps: 1.0e+300}
",
        &expect![[r#"
            config.yaml:3:14: parallelism: expected i32, found string "many"
            config.yaml:4:18: enableProfiling: expected a boolean, found integer `1`
            config.yaml:6:29: profiles[0].percentageOfNodesToScore: expected i32, found integer `3000000000`
            config.yaml:7:3: profiles[1]: expected an object, found integer `7`
            config.yaml:9:18: leaderElection.leaseDuration: expected a duration such as "15s", found integer `5`
            config.yaml:10:18: leaderElection.renewDeadline: time: unknown unit "\"" in duration "5\""
            config.yaml:11:16: leaderElection.retryPeriod: time: unknown unit "d" in duration "1d"
            config.yaml:12:25: clientConnection.qps: number too large for 32 bits"#]],
    );
    check_errors(
        "profiles: {}\n",
        &expect!["config.yaml:3:11: profiles: expected a sequence, found map"],
    );
    check_errors(
        "\
extenders:
- tlsConfig: {certData: \"!!\", keyData: YWJj, caData: YQ==}
  httpTimeout: \"\"
",
        &expect![[r#"
            config.yaml:4:25: extenders[0].tlsConfig.certData: illegal base64 data
            config.yaml:5:16: extenders[0].httpTimeout: time: invalid duration """#]],
    );
}

#[test]
fn null_is_absent() {
    check_errors(
        "\
parallelism: null
profiles:
- schedulerName: null
  plugins: null
  pluginConfig:
  - {name: InterPodAffinity, args: {hardPodAffinityWeight: null}}
leaderElection: null
",
        &expect![["ok"]],
    );
    check_errors("profiles: [null]\n", &expect![["ok"]]);
}

#[test]
fn plugin_arguments_are_decoded_strictly() {
    check_errors(
        "\
profiles:
- pluginConfig:
  - name: InterPodAffinity
    args: {hardPodAffinityWeight: 101}
  - name: DefaultPreemption
    args:
      kind: DefaultPreemptionArgs
      apiVersion: kubescheduler.config.k8s.io/v1
      minCandidates: 1
  - name: Unknown
    args: {anything: [goes]}
",
        &expect![[r#"
            config.yaml:6:35: profiles[0].pluginConfig[0].args.hardPodAffinityWeight: Invalid value: 101: not in valid range [0-100]
            config.yaml:11:22: profiles[0].pluginConfig[1].args.minCandidates: unknown field `minCandidates`, expected `minCandidateNodesPercentage` or `minCandidateNodesAbsolute`; did you mean "minCandidateNodesAbsolute"?"#]],
    );
    check_errors(
        "\
profiles:
- pluginConfig:
  - {name: InterPodAffinity, args: {kind: NodeAffinityArgs}}
  - {name: DefaultPreemption, args: {apiVersion: kubescheduler.config.k8s.io/v1beta3}}
",
        &expect![[r#"
            config.yaml:5:43: profiles[0].pluginConfig[0].args.kind: args for plugin InterPodAffinity were not of type InterPodAffinityArgs, got NodeAffinityArgs
            config.yaml:6:50: profiles[0].pluginConfig[1].args.apiVersion: no kind "DefaultPreemptionArgs" is registered for version "kubescheduler.config.k8s.io/v1beta3": kubescheduler.config.k8s.io/v1 is expected"#]],
    );
    check_errors(
        "\
profiles:
- pluginConfig:
  - {name: InterPodAffinity, args: [1]}
  - {name: DefaultPreemption, args: {kind: 3}}
",
        &expect![[r#"
            config.yaml:5:36: profiles[0].pluginConfig[0].args: Invalid value: [1]: must be an object
            config.yaml:6:44: profiles[0].pluginConfig[1].args.kind: Invalid value: 3: must be a string"#]],
    );
}

#[test]
fn api_version_and_kind_are_checked() {
    #[track_caller]
    fn check_text(text: &str, want: &Expect) {
        let document = Document::new("config.yaml", text);
        let got = match check_configuration(&document, &registry(), &AllFeatureGates::default()) {
            Ok(_) => "ok".to_owned(),
            Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
        };
        want.assert_eq(&got);
    }
    check_text(
        "\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
",
        &expect![["ok"]],
    );
    check_text(
        "\
apiVersion: kubescheduler.config.k8s.io/v1beta9
kind: KubeSchedulerConfiguration
",
        &expect![[
            r#"config.yaml:1:13: apiVersion: no kind "KubeSchedulerConfiguration" is registered for version "kubescheduler.config.k8s.io/v1beta9": this scheduler reads KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1 and older versions; did you mean "kubescheduler.config.k8s.io/v1beta3"?"#
        ]],
    );
    check_text(
        "{\"kind\": \"Polic\", \"apiVersion\": \"v1\"}",
        &expect![[
            r#"config.yaml:1:10: kind: no kind "Polic" is registered for version "v1": this scheduler reads KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1 and older versions"#
        ]],
    );
    check_text(
        "kind: KubeSchedulerConfiguration\n",
        &expect![[
            r#"config.yaml:1:1: apiVersion: Required value: "kubescheduler.config.k8s.io/v1" is expected"#
        ]],
    );
    check_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\n",
        &expect![[
            r#"config.yaml:1:1: kind: Required value: "KubeSchedulerConfiguration" is expected"#
        ]],
    );
    check_text(
        "\
apiVersion: 1
kind: KubeSchedulerConfiguration
",
        &expect!["config.yaml:1:13: apiVersion: Invalid value: 1: must be a string"],
    );
    check_text(
        "- a\n",
        &expect!["config.yaml:1:1: not an object: a KubeSchedulerConfiguration is expected"],
    );
    check_text(
        "7",
        &expect!["config.yaml:1:1: not an object: a KubeSchedulerConfiguration is expected"],
    );
    check_text("", &expect!["config.yaml:1:1: expected a document, found nothing"]);
    check_text("a: [\n", &expect!["config.yaml:1:4: a: unclosed bracket '['"]);
}
