//! Validation of a configuration, one check per rule.

use expect_test::expect;

use crate::testkit::check_errors;

#[test]
fn numbers() {
    check_errors(
        "parallelism: 0\n",
        &expect![
            "config.yaml:3:14: parallelism: Invalid value: 0: should be an integer value greater than zero"
        ],
    );
    check_errors(
        "percentageOfNodesToScore: 101\n",
        &expect![
            "config.yaml:3:27: percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]"
        ],
    );
    check_errors(
        "profiles: [{percentageOfNodesToScore: -1}]\n",
        &expect![
            "config.yaml:3:39: profiles[0].percentageOfNodesToScore: Invalid value: -1: not in valid range [0-100]"
        ],
    );
    check_errors(
        "\
podInitialBackoffSeconds: 0
podMaxBackoffSeconds: -1
",
        &expect![[r#"
        config.yaml:3:27: podInitialBackoffSeconds: Invalid value: 0: must be greater than 0
        config.yaml:4:23: podMaxBackoffSeconds: Invalid value: -1: must be greater than or equal to PodInitialBackoffSeconds"#]],
    );
    check_errors(
        "podInitialBackoffSeconds: 20\n",
        &expect![
            "config.yaml:1:1: podMaxBackoffSeconds: Invalid value: 10: must be greater than or equal to PodInitialBackoffSeconds"
        ],
    );
    check_errors(
        "clientConnection: {burst: -1, qps: -1.5}\n",
        &expect![
            "config.yaml:3:27: clientConnection.burst: Invalid value: -1: must be non-negative"
        ],
    );
}

#[test]
fn leader_election() {
    check_errors(
        "leaderElection: {leaseDuration: -1s, renewDeadline: -2s, retryPeriod: -1ms}\n",
        &expect![[r#"
        config.yaml:3:33: leaderElection.leaseDuration: Invalid value: "-1s": must be greater than zero
        config.yaml:3:53: leaderElection.renewDeadline: Invalid value: "-2s": must be greater than zero
        config.yaml:3:71: leaderElection.retryPeriod: Invalid value: "-1ms": must be greater than zero"#]],
    );
    check_errors(
        "leaderElection: {leaseDuration: 10s}\n",
        &expect![[
            r#"config.yaml:3:33: leaderElection.leaseDuration: Invalid value: "10s": must be greater than `RenewDeadline`"#
        ]],
    );
    check_errors(
        "leaderElection: {resourceLock: endpoints}\n",
        &expect![[
            r#"config.yaml:3:32: leaderElection.resourceLock: Invalid value: "endpoints": resourceLock value must be "leases""#
        ]],
    );
    check_errors(
        "leaderElection: {leaderElect: false, resourceLock: endpoints, leaseDuration: 1s}\n",
        &expect![["ok"]],
    );
    check_errors("leaderElection: {leaseDuration: 0s, retryPeriod: 9s}\n", &expect![["ok"]]);
}

#[test]
fn profiles() {
    check_errors("profiles: []\n", &expect![["ok"]]);
    check_errors(
        "profiles: [{schedulerName: \"\"}]\n",
        &expect!["config.yaml:3:28: profiles[0].schedulerName: Required value"],
    );
    check_errors(
        "\
profiles:
- {}
- {}
",
        &expect![[r#"
        config.yaml:4:3: profiles[0].schedulerName: Required value
        config.yaml:5:3: profiles[1].schedulerName: Required value
        config.yaml:5:3: profiles[1].schedulerName: Duplicate value: """#]],
    );
    check_errors(
        "\
profiles:
- schedulerName: a
- schedulerName: a
",
        &expect![[r#"config.yaml:5:18: profiles[1].schedulerName: Duplicate value: "a""#]],
    );
    check_errors(
        "\
profiles:
- schedulerName: a
- schedulerName: b
",
        &expect![["ok"]],
    );
}

#[test]
fn plugin_config() {
    check_errors(
        "\
profiles:
- pluginConfig:
  - name: Other
  - name: Other
    args: {a: 1}
  - name: EBSLimits
",
        &expect![[r#"
            config.yaml:6:5: profiles[0].pluginConfig[1]: Duplicate value: "Other"
            config.yaml:8:5: profiles[0].pluginConfig[2]: Invalid value: "EBSLimits": was invalid in version "v1" (KubeSchedulerConfiguration is version "kubescheduler.config.k8s.io/v1")"#]],
    );
}

#[test]
fn removed_plugins() {
    check_errors(
        "profiles: [{plugins: {filter: {enabled: [{name: EBSLimits}]}}}]\n",
        &expect![[r#"
            config.yaml:3:42: profiles[0].plugins.filter.enabled[0]: Invalid value: "EBSLimits": was invalid in version "v1" (KubeSchedulerConfiguration is version "kubescheduler.config.k8s.io/v1")
            config.yaml:3:49: profiles[0].plugins.filter.enabled[0].name: FilterPlugin "EBSLimits" does not exist"#]],
    );
    check_errors(
        "profiles: [{plugins: {multiPoint: {enabled: [{name: EBSLimits}]}}}]\n",
        &expect![[
            r#"config.yaml:3:53: profiles[0].plugins.multiPoint.enabled[0].name: plugin "EBSLimits" does not exist"#
        ]],
    );
    check_errors(
        "profiles: [{plugins: {filter: {disabled: [{name: EBSLimits}]}}}]\n",
        &expect![["ok"]],
    );
}

#[test]
fn one_queue_sort() {
    check_errors(
        "profiles: [{plugins: {queueSort: {enabled: [{name: PrioritySort}, {name: MySort}]}}}]\n",
        &expect![
            "config.yaml:3:44: profiles[0].plugins.queueSort.enabled: Invalid value: 2: only one queue sort plugin can be enabled"
        ],
    );
    check_errors(
        "\
profiles:
- schedulerName: a
- schedulerName: b
  plugins: {queueSort: {enabled: [{name: PrioritySort}]}}
",
        &expect![[
            r#"config.yaml:6:24: profiles[1].plugins.queueSort: Invalid value: {"enabled":[{"name":"PrioritySort","weight":0}]}: must be the same for all profiles"#
        ]],
    );
    check_errors(
        "\
profiles:
- schedulerName: a
  plugins: {queueSort: {enabled: [{name: PrioritySort}]}}
  pluginConfig: [{name: PrioritySort, args: {a: 1}}]
- schedulerName: b
  plugins: {queueSort: {enabled: [{name: PrioritySort}]}}
  pluginConfig: [{name: PrioritySort, args: {a: 2}}]
",
        &expect![[
            r#"config.yaml:9:45: profiles[1].pluginConfig[0].args: Invalid value: {"a":2}: queueSort must be the same for all profiles"#
        ]],
    );
    // The plugin sets are equal, but they expand to different plugins.
    check_errors(
        "\
profiles:
- schedulerName: a
- schedulerName: b
  plugins: {multiPoint: {enabled: [{name: MySort}], disabled: [{name: PrioritySort}]}}
",
        &expect![[
            r#"config.yaml:5:3: profiles[1]: different queue sort plugins for profile "b": "MySort", first: "PrioritySort""#
        ]],
    );
}

#[test]
fn extenders() {
    check_errors(
        "\
extenders:
- {urlPrefix: 'http://x', prioritizeVerb: p}
",
        &expect![
            "config.yaml:4:3: extenders[0].weight: Invalid value: 0: must have a positive weight applied to it"
        ],
    );
    check_errors(
        "\
extenders:
- {urlPrefix: 'http://x', bindVerb: b}
- {bindVerb: c}
",
        &expect![[
            r#"config.yaml:4:3: extenders: Invalid value: "found 2 extenders implementing bind": only one extender can implement bind"#
        ]],
    );
    check_errors(
        "\
extenders:
- managedResources:
  - name: cpu
  - name: a/b
  - name: a/b
  - name: kubernetes.io/x
  - name: requests.foo/x
  - name: a/b/c
  - name: ''
",
        &expect![[r#"
            config.yaml:5:11: extenders[0].managedResources[0].name: Invalid value: "cpu": is an invalid extended resource name
            config.yaml:7:11: extenders[0].managedResources[2].name: Invalid value: "a/b": duplicate extender managed resource name
            config.yaml:8:11: extenders[0].managedResources[3].name: Invalid value: "kubernetes.io/x": is an invalid extended resource name
            config.yaml:9:11: extenders[0].managedResources[4].name: Invalid value: "requests.foo/x": is an invalid extended resource name
            config.yaml:10:11: extenders[0].managedResources[5].name: Invalid value: "a/b/c": a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')
            config.yaml:11:11: extenders[0].managedResources[6].name: Invalid value: "": name part must be non-empty
            config.yaml:11:11: extenders[0].managedResources[6].name: Invalid value: "": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"#]],
    );
}

#[test]
fn all_errors_are_reported_at_once() {
    check_errors(
        "\
parallelism: 0
leaderElection: {resourceLock: x, leaseDuration: 1s}
clientConnection: {burst: -5}
podInitialBackoffSeconds: -3
podMaxBackoffSeconds: -5
percentageOfNodesToScore: 300
profiles:
- schedulerName: a
  percentageOfNodesToScore: 101
- schedulerName: a
  pluginConfig:
  - name: Foo
  - name: Foo
",
        &expect![[r#"
            config.yaml:3:14: parallelism: Invalid value: 0: should be an integer value greater than zero
            config.yaml:4:32: leaderElection.resourceLock: Invalid value: "x": resourceLock value must be "leases"
            config.yaml:4:50: leaderElection.leaseDuration: Invalid value: "10s": must be greater than `RenewDeadline`
            config.yaml:5:27: clientConnection.burst: Invalid value: -5: must be non-negative
            config.yaml:6:27: podInitialBackoffSeconds: Invalid value: -3: must be greater than 0
            config.yaml:7:23: podMaxBackoffSeconds: Invalid value: -5: must be greater than or equal to PodInitialBackoffSeconds
            config.yaml:8:27: percentageOfNodesToScore: Invalid value: 300: not in valid range [0-100]
            config.yaml:11:29: profiles[0].percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]
            config.yaml:12:18: profiles[1].schedulerName: Duplicate value: "a"
            config.yaml:15:5: profiles[1].pluginConfig[1]: Duplicate value: "Foo""#]],
    );
}
