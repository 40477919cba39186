//! `config convert`: v1 with comments, which converted again stays as it is.

use expect_test::{Expect, expect};
use loadmaster_api::document::Document;
use loadmaster_config::{AllFeatureGates, ConfigurationDocuments, convert_configuration};

use crate::testkit::registry_with_old_plugins;

fn convert(name: &str, text: &str) -> String {
    let document = Document::new(name, text);
    let documents = ConfigurationDocuments { configuration: Some(&document), policy: None };
    let registry = registry_with_old_plugins();
    match convert_configuration(documents, &registry, &AllFeatureGates::default()) {
        Ok(converted) => converted.to_yaml(),
        Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    }
}

#[track_caller]
fn check(text: &str, want: &Expect) {
    let v1 = convert("old", text);
    want.assert_eq(&v1);
    assert_eq!(convert("v1", &v1), v1, "converting again");
}

#[test]
fn v1beta1_and_v1beta3() {
    check(
        "\
apiVersion: kubescheduler.config.k8s.io/v1beta1
kind: KubeSchedulerConfiguration
metricsBindAddress: 0.0.0.0:10251
profiles:
- schedulerName: packing
  plugins:
    score:
      disabled: [{name: NodeResourcesLeastAllocated}]
      enabled: [{name: NodeResourcesMostAllocated, weight: 5}]
  pluginConfig:
  - name: NodeResourcesMostAllocated
    args: {resources: [{name: cpu, weight: 3}]}
",
        &expect![[r##"
            # Converted from kubescheduler.config.k8s.io/v1beta1.
            # Left out: metricsBindAddress has no effect: insecure serving was removed; use --bind-address and --secure-port
            apiVersion: kubescheduler.config.k8s.io/v1
            kind: KubeSchedulerConfiguration
            profiles:
            - pluginConfig:
              - args:
                  scoringStrategy:
                    resources:
                    - name: cpu
                      weight: 3
                    type: MostAllocated
                name: NodeResourcesFit
              plugins:
                bind:
                  enabled:
                  - name: DefaultBinder
                filter:
                  enabled:
                  - name: NodeUnschedulable
                  - name: NodeName
                  - name: TaintToleration
                  - name: NodeAffinity
                  - name: NodePorts
                  - name: NodeResourcesFit
                  - name: VolumeRestrictions
                  # instead of EBSLimits, GCEPDLimits, AzureDiskLimits: in-tree volumes count for their CSI drivers today
                  - name: NodeVolumeLimits
                  - name: VolumeBinding
                  - name: VolumeZone
                  - name: PodTopologySpread
                  - name: InterPodAffinity
                # The default plugins of v1 are disabled: those of the older version stand below. The enabled ones are newer than it, and without them pods would be scheduled that must wait.
                multiPoint:
                  disabled:
                  - name: "*"
                  enabled:
                  - name: SchedulingGates
                  - name: DynamicResources
                  - name: NodeDeclaredFeatures
                postFilter:
                  enabled:
                  - name: DefaultPreemption
                preBind:
                  enabled:
                  - name: VolumeBinding
                preEnqueue:
                  enabled:
                  # runs at preEnqueue as well today
                  - name: DefaultPreemption
                preFilter:
                  enabled:
                  - name: NodeResourcesFit
                  - name: NodePorts
                  - name: VolumeRestrictions
                  - name: PodTopologySpread
                  - name: InterPodAffinity
                  - name: VolumeBinding
                  - name: NodeAffinity
                  # runs at preFilter as well today
                  - name: NodeVolumeLimits
                  # runs at preFilter as well today
                  - name: VolumeZone
                preScore:
                  enabled:
                  - name: InterPodAffinity
                  - name: PodTopologySpread
                  - name: TaintToleration
                  - name: NodeAffinity
                  # runs at preScore as well today
                  - name: NodeResourcesBalancedAllocation
                  - name: NodeResourcesFit
                queueSort:
                  enabled:
                  - name: PrioritySort
                reserve:
                  enabled:
                  - name: VolumeBinding
                score:
                  enabled:
                  - name: NodeResourcesBalancedAllocation
                    weight: 1
                  - name: ImageLocality
                    weight: 1
                  - name: InterPodAffinity
                    weight: 1
                  - name: NodeAffinity
                    weight: 1
                  - name: NodePreferAvoidPods
                    weight: 10000
                  - name: PodTopologySpread
                    weight: 2
                  - name: TaintToleration
                    weight: 1
                  # instead of NodeResourcesMostAllocated, which is its strategy MostAllocated since v1beta2
                  - name: NodeResourcesFit
                    weight: 5
              schedulerName: packing
        "##]],
    );
    check(
        "\
apiVersion: kubescheduler.config.k8s.io/v1beta3
kind: KubeSchedulerConfiguration
profiles:
- plugins:
    multiPoint:
      disabled: [{name: EBSLimits}]
      enabled: [{name: CinderLimits}]
",
        &expect![[r#"
            # Converted from kubescheduler.config.k8s.io/v1beta3.
            apiVersion: kubescheduler.config.k8s.io/v1
            kind: KubeSchedulerConfiguration
            profiles:
            - plugins:
                multiPoint:
                  disabled: []
                  enabled:
                  # instead of CinderLimits: in-tree volumes count for their CSI drivers today
                  - name: NodeVolumeLimits
        "#]],
    );
}

#[test]
fn a_policy() {
    check(
        r#"{"kind": "Policy", "apiVersion": "v1",
"predicates": [{"name": "PodFitsResources"}, {"name": "CheckNodeDiskPressure"}, {"name": "Racks", "argument": {"labelsPresence": {"labels": ["rack"], "presence": true}}}],
"priorities": [{"name": "LeastRequestedPriority", "weight": 2}, {"name": "MostRequestedPriority", "weight": 1}],
"extenders": [{"urlPrefix": "http://127.0.0.1:8888", "filterVerb": "filter", "enableHttps": true, "httpTimeout": 1000000000}]}"#,
        &expect![[r##"
            # Converted from a Policy.
            # Left out: predicate CheckNodeDiskPressure has no effect: nodes with this condition have a taint, which TaintToleration checks
            apiVersion: kubescheduler.config.k8s.io/v1
            extenders:
            - enableHTTPS: true
              filterVerb: filter
              # was 1000000000 nanoseconds
              httpTimeout: "1s"
              urlPrefix: "http://127.0.0.1:8888"
            kind: KubeSchedulerConfiguration
            profiles:
            # The plugins come from the predicates and priorities of the Policy.
            - pluginConfig:
              - args:
                  presentLabels:
                  - rack
                name: NodeLabel
              plugins:
                bind:
                  enabled:
                  - name: DefaultBinder
                filter:
                  enabled:
                  # predicate CheckNodeUnschedulable
                  - name: NodeUnschedulable
                  # predicate PodFitsResources
                  - name: NodeResourcesFit
                  # predicate PodToleratesNodeTaints
                  - name: TaintToleration
                  # predicate CheckNodeLabelPresence
                  - name: NodeLabel
                # The default plugins of v1 are disabled: those of the older version stand below. The enabled ones are newer than it, and without them pods would be scheduled that must wait.
                multiPoint:
                  disabled:
                  - name: "*"
                  enabled:
                  - name: SchedulingGates
                  - name: DynamicResources
                  - name: NodeDeclaredFeatures
                postFilter:
                  enabled:
                  - name: DefaultPreemption
                preEnqueue:
                  enabled:
                  # runs at preEnqueue as well today
                  - name: DefaultPreemption
                preFilter:
                  enabled:
                  # predicate PodFitsResources
                  - name: NodeResourcesFit
                queueSort:
                  enabled:
                  - name: PrioritySort
                score:
                  enabled:
                  # priority LeastRequestedPriority
                  - name: NodeResourcesLeastAllocated
                    weight: 2
                  # priority MostRequestedPriority
                  - name: NodeResourcesMostAllocated
                    weight: 1
        "##]],
    );
}

#[test]
fn v1_stays_as_it_is() {
    let text = "# mine\nkind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/v1\nparallelism:   4\n";
    assert_eq!(convert("v1", text), text);
    assert_eq!(
        convert(
            "old",
            "apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration\nparalelism: 4\n"
        ),
        "old:3:13: paralelism: unknown field `paralelism`, expected one of `parallelism`, `leaderElection`, `clientConnection`, \
         `enableProfiling`, `enableContentionProfiling`, `percentageOfNodesToScore`, `podInitialBackoffSeconds`, \
         `podMaxBackoffSeconds`, `profiles`, `extenders`; did you mean \"parallelism\"?"
    );
}

#[test]
fn null_fields_are_left_out() {
    let text = "\
apiVersion: kubescheduler.config.k8s.io/v1alpha2
kind: KubeSchedulerConfiguration
clientConnection: {burst: null, qps: 7}
profiles:
- schedulerName: null
  pluginConfig:
  - {name: InterPodAffinity, args: {hardPodAffinityWeight: null}}
";
    let v1 = convert("old", text);
    assert!(v1.contains("qps: 7\n") && !v1.contains("null"), "{v1}");
}
