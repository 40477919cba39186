//! Test cases in files of the test, run as those of Kubernetes are.

use std::fs;

use super::*;

const CASES: &str = r#"
- name: Spread
  defaultPodTemplatePath: pod.yaml
  workloadTemplate:
  - opcode: createNodes
    countParam: $nodes
    labelNodePrepareStrategy: {labelKey: topology.kubernetes.io/zone, labelValues: [a, b]}
  - opcode: churn
    mode: recreate
    number: 1
    templatePaths: [service.yaml]
    intervalMilliseconds: 5
  - opcode: createPods
    countParam: $pods
    collectMetrics: true
  - opcode: deletePods
    namespace: namespace-2
    deletePodsPerSecond: 100
  - opcode: createPods
    namespace: gated
    count: 2
    podTemplatePath: gated.yaml
    skipWaitToCompletion: true
  - opcode: updateAny
    namespace: gated
    count: 2
    templatePath: free.yaml
  - opcode: barrier
  workloads:
  - {name: small, labels: [performance], params: {nodes: 4, pods: 20}}
  - {name: large, labels: [other], params: {nodes: 4, pods: 20}}
- name: Full
  defaultPodTemplatePath: free.yaml
  workloadTemplate:
  - {opcode: createNodes, count: 1}
  - {opcode: createPods, count: 111}
  workloads: [{name: small, labels: [full]}]
- name: Devices
  workloadTemplate: [{opcode: createResourceDriver}]
  workloads: [{name: small, labels: [performance]}]
"#;

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {generateName: pod-, labels: {app: a}}
spec:
  containers: [{name: main, image: a, resources: {requests: {cpu: 100m}}}]
  topologySpreadConstraints:
  - {maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: a}}}
"#;

const GATED: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: "gated-{{ .Index }}"}
spec:
  schedulingGates: [{name: example.com/gate}]
  containers: [{name: main, image: a}]
"#;

const FREE: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: "gated-{{ .Index }}"}
spec:
  containers: [{name: main, image: a}]
"#;

const SERVICE: &str = r#"
apiVersion: v1
kind: Service
metadata: {generateName: service-}
spec: {selector: {app: a}}
"#;

#[test]
fn files_are_run() {
    let folder = std::env::temp_dir().join(format!("loadmaster-perf-{}", std::process::id()));
    fs::create_dir_all(folder.join("cases")).unwrap();
    for (name, text) in [
        ("performance-config.yaml", CASES),
        ("pod.yaml", POD),
        ("gated.yaml", GATED),
        ("free.yaml", FREE),
        ("service.yaml", SERVICE),
    ] {
        fs::write(folder.join("cases").join(name), text).unwrap();
    }
    let cases = test_case::load(&folder).unwrap();
    let outcome =
        |case: usize, workload: usize| run(&cases[case], &cases[case].workloads[workload]);
    let Outcome::Measured(figures) = outcome(0, 0).unwrap() else { panic!("not run") };
    let found: Vec<_> = figures.iter().map(|it| (it.name.as_str(), it.n_pods)).collect();
    assert_eq!(found, [("namespace-2", 20)]);
    assert!(figures[0].percentiles[0] > 0.0);
    let error = format!("{:#}", outcome(1, 0).err().unwrap());
    assert!(error.contains("1 pods are not Scheduled, such as gated-110"), "{error}");
    let Outcome::NotRun(reason) = outcome(2, 0).unwrap() else { panic!("run") };
    assert_eq!(reason, "devices (createResourceDriver)");
    assert_eq!(measure(&folder, "performance", "Spread").unwrap().len(), 1);
    assert!(measure(&folder, "full", "").is_err());
    fs::remove_dir_all(folder).unwrap();
}
