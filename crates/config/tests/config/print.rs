//! `--write-config-to`.

use expect_test::expect;

use crate::testkit::try_check;

#[test]
fn json_has_upstreams_order() {
    let checked = try_check(
        "\
clientConnection: {qps: 0.1}
leaderElection: {leaseDuration: 90s}
profiles:
- plugins:
    multiPoint:
      enabled: [{name: DefaultBinder}, {name: PrioritySort}, {name: InterPodAffinity, weight: 3}]
      disabled: [{name: '*'}]
    score:
      disabled: [{name: ImageLocality, weight: 4}]
  pluginConfig:
  - {name: Nobody, args: {a: 1}}
",
    )
    .unwrap();
    expect![[r#"{"kind":"KubeSchedulerConfiguration","apiVersion":"kubescheduler.config.k8s.io/v1","parallelism":16,"leaderElection":{"leaderElect":true,"leaseDuration":"1m30s","renewDeadline":"10s","retryPeriod":"2s","resourceLock":"leases","resourceName":"kube-scheduler","resourceNamespace":"kube-system"},"clientConnection":{"kubeconfig":"","acceptContentTypes":"","contentType":"application/vnd.kubernetes.protobuf","qps":0.1,"burst":100},"enableProfiling":true,"enableContentionProfiling":true,"percentageOfNodesToScore":0,"podInitialBackoffSeconds":1,"podMaxBackoffSeconds":10,"profiles":[{"schedulerName":"default-scheduler","plugins":{"preEnqueue":{},"queueSort":{},"preFilter":{},"filter":{},"postFilter":{},"preScore":{},"score":{"disabled":[{"name":"ImageLocality","weight":0}]},"reserve":{},"permit":{},"preBind":{},"bind":{},"postBind":{},"multiPoint":{"enabled":[{"name":"DefaultBinder","weight":0},{"name":"PrioritySort","weight":0},{"name":"InterPodAffinity","weight":3}],"disabled":[{"name":"*","weight":0}]},"placementGenerate":{},"placementScore":{}},"pluginConfig":[{"name":"InterPodAffinity","args":{"apiVersion":"kubescheduler.config.k8s.io/v1","hardPodAffinityWeight":1,"ignorePreferredTermsOfExistingPods":false,"kind":"InterPodAffinityArgs"}}]}]}"#]].assert_eq(&checked.config.to_v1_json().unwrap());
    expect![[r#"
        apiVersion: kubescheduler.config.k8s.io/v1
        clientConnection:
          acceptContentTypes: ""
          burst: 100
          contentType: application/vnd.kubernetes.protobuf
          kubeconfig: ""
          qps: 0.1
        enableContentionProfiling: true
        enableProfiling: true
        kind: KubeSchedulerConfiguration
        leaderElection:
          leaderElect: true
          leaseDuration: 1m30s
          renewDeadline: 10s
          resourceLock: leases
          resourceName: kube-scheduler
          resourceNamespace: kube-system
          retryPeriod: 2s
        parallelism: 16
        percentageOfNodesToScore: 0
        podInitialBackoffSeconds: 1
        podMaxBackoffSeconds: 10
        profiles:
        - pluginConfig:
          - args:
              apiVersion: kubescheduler.config.k8s.io/v1
              hardPodAffinityWeight: 1
              ignorePreferredTermsOfExistingPods: false
              kind: InterPodAffinityArgs
            name: InterPodAffinity
          plugins:
            bind: {}
            filter: {}
            multiPoint:
              disabled:
              - name: "*"
                weight: 0
              enabled:
              - name: DefaultBinder
                weight: 0
              - name: PrioritySort
                weight: 0
              - name: InterPodAffinity
                weight: 3
            permit: {}
            placementGenerate: {}
            placementScore: {}
            postBind: {}
            postFilter: {}
            preBind: {}
            preEnqueue: {}
            preFilter: {}
            preScore: {}
            queueSort: {}
            reserve: {}
            score:
              disabled:
              - name: ImageLocality
                weight: 0
          schedulerName: default-scheduler
    "#]]
    .assert_eq(&checked.config.to_v1_yaml().unwrap());
}

/// YAML without `apiVersion` and `kind`, which the test bench adds.
fn without_header(yaml: &str) -> String {
    let lines = yaml.lines();
    let is_body = |line: &&str| !line.starts_with("apiVersion:") && !line.starts_with("kind:");
    lines.filter(is_body).map(|line| format!("{line}\n")).collect()
}

#[test]
fn printed_configurations_can_be_checked_again() {
    let checked = try_check(
        "\
parallelism: 3
profiles:
- schedulerName: a
- schedulerName: b
",
    )
    .unwrap();
    let yaml = checked.config.to_v1_yaml().unwrap();
    let again = try_check(&without_header(&yaml)).unwrap();
    assert_eq!(again.profiles, checked.profiles);
    assert_eq!(again.config.parallelism, checked.config.parallelism);
}

#[test]
fn extenders_have_the_default_timeout() {
    let yaml = "extenders: [{urlPrefix: http://a}, {urlPrefix: http://b, httpTimeout: 0s}, {urlPrefix: http://c, httpTimeout: 1s}]\n";
    let printed = try_check(yaml).unwrap().config.to_v1_json().unwrap();
    let timeouts: Vec<&str> = printed.matches("\"httpTimeout\":\"5s\"").collect();
    assert_eq!(timeouts.len(), 2, "{printed}");
    assert!(printed.contains("\"httpTimeout\":\"1s\""), "{printed}");
}

#[test]
fn redacted_configurations_have_no_keys_and_passwords() {
    let yaml = "extenders:\n\
                - urlPrefix: https://me:hidden@e.example\n\
                \x20 filterVerb: filter\n\
                \x20 enableHTTPS: true\n\
                \x20 tlsConfig: {certData: Y2VydA==, keyData: aGlkZGVu}\n\
                - urlPrefix: https://f.example\n\
                \x20 filterVerb: filter\n\
                \x20 tlsConfig: {serverName: f}\n";
    let config = try_check(yaml).unwrap().config;
    let redacted = config.redacted();
    for text in [
        redacted.to_v1_json().unwrap(),
        redacted.to_v1_yaml().unwrap(),
        format!("{config:?}"),
        format!("{config:#?}"),
    ] {
        assert!(!text.contains("hidden") && !text.contains("aGlkZGVu"), "{text}");
        assert!(text.contains("Y2VydA==") && text.contains("https://me:***@e.example"), "{text}");
    }
    // It can be read again, as from a recording.
    let read = try_check(&without_header(&redacted.to_v1_yaml().unwrap())).unwrap().config;
    assert_eq!(read, redacted);
    assert_ne!(read, config);
}
