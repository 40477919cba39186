//! Configurations of versions before v1: plugins, arguments and errors.

use expect_test::{Expect, expect};
use loadmaster_api::document::Document;
use loadmaster_config::{
    AllFeatureGates, CheckedConfiguration, ConfigurationDocuments, check_documents_with_overrides,
};

use crate::testkit::{plugins_of, registry_with_old_plugins};

/// Checks a configuration of a version, without its header, and a Policy.
pub fn try_check(
    version: &str,
    yaml: &str,
    policy: Option<&str>,
) -> Result<CheckedConfiguration, String> {
    let text = format!(
        "apiVersion: kubescheduler.config.k8s.io/{version}\nkind: KubeSchedulerConfiguration\n{yaml}"
    );
    let document = Document::new("config.yaml", text);
    let policy = policy.map(|text| Document::new("policy.json", text));
    let documents =
        ConfigurationDocuments { configuration: Some(&document), policy: policy.as_ref() };
    let registry = registry_with_old_plugins();
    check_documents_with_overrides(documents, &registry, &AllFeatureGates::default(), |_| ())
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

/// The plugins of the first profile, its arguments, and the notes; or the errors.
#[track_caller]
fn check(version: &str, yaml: &str, want: &Expect) {
    let got = match try_check(version, yaml, None) {
        Ok(checked) => shown(&checked),
        Err(errors) => errors,
    };
    want.assert_eq(&got);
}

/// The plugins of the first profile, its arguments, and the notes.
pub fn shown(checked: &CheckedConfiguration) -> String {
    let profile = &checked.profiles[0];
    let mut text = plugins_of(&profile.extension_points);
    for (name, args) in profile.args.iter().filter(|(_, args)| !args.is_null()) {
        text += &format!("{name} {args}\n");
    }
    // The first note names the version.
    for note in checked.notes.iter().skip(1) {
        text += &format!("note: {note}\n");
    }
    text
}

#[test]
fn every_version_has_its_default_plugins() {
    check(
        "v1alpha1",
        "",
        &expect![[r#"
        preEnqueue: SchedulingGates DynamicResources DefaultPreemption
        queueSort: PrioritySort
        preFilter: DynamicResources NodeDeclaredFeatures NodeResourcesFit NodePorts InterPodAffinity PodTopologySpread NodeVolumeLimits VolumeZone VolumeRestrictions NodeAffinity VolumeBinding
        filter: DynamicResources NodeDeclaredFeatures NodeUnschedulable NodeResourcesFit NodeName NodePorts NodeAffinity VolumeRestrictions TaintToleration EBSLimits GCEPDLimits NodeVolumeLimits AzureDiskLimits VolumeBinding VolumeZone InterPodAffinity PodTopologySpread
        postFilter: DynamicResources DefaultPreemption
        preScore: InterPodAffinity SelectorSpread TaintToleration PodTopologySpread NodeResourcesBalancedAllocation NodeAffinity
        score: DynamicResources=1 NodeResourcesBalancedAllocation=1 ImageLocality=1 InterPodAffinity=1 NodeResourcesLeastAllocated=1 NodeAffinity=1 NodePreferAvoidPods=10000 SelectorSpread=1 TaintToleration=1 PodTopologySpread=1
        reserve: DynamicResources VolumeBinding
        preBind: DynamicResources VolumeBinding
        bind: DefaultBinder
        DefaultPreemption {"minCandidateNodesAbsolute":100,"minCandidateNodesPercentage":10}
        InterPodAffinity {"hardPodAffinityWeight":1,"ignorePreferredTermsOfExistingPods":false}
        PodTopologySpread {"defaultingType":"List"}
    "#]],
    );
    check(
        "v1alpha2",
        "",
        &expect![[r#"
        preEnqueue: SchedulingGates DynamicResources DefaultPreemption
        queueSort: PrioritySort
        preFilter: DynamicResources NodeDeclaredFeatures NodeResourcesFit NodePorts InterPodAffinity PodTopologySpread NodeVolumeLimits VolumeZone VolumeRestrictions NodeAffinity VolumeBinding
        filter: DynamicResources NodeDeclaredFeatures NodeUnschedulable NodeResourcesFit NodeName NodePorts NodeAffinity VolumeRestrictions TaintToleration EBSLimits GCEPDLimits NodeVolumeLimits AzureDiskLimits VolumeBinding VolumeZone InterPodAffinity PodTopologySpread
        postFilter: DynamicResources DefaultPreemption
        preScore: InterPodAffinity SelectorSpread TaintToleration PodTopologySpread NodeResourcesBalancedAllocation NodeAffinity
        score: DynamicResources=1 NodeResourcesBalancedAllocation=1 ImageLocality=1 InterPodAffinity=1 NodeResourcesLeastAllocated=1 NodeAffinity=1 NodePreferAvoidPods=10000 SelectorSpread=1 TaintToleration=1 PodTopologySpread=1
        reserve: DynamicResources VolumeBinding
        preBind: DynamicResources VolumeBinding
        bind: DefaultBinder
        DefaultPreemption {"minCandidateNodesAbsolute":100,"minCandidateNodesPercentage":10}
        InterPodAffinity {"hardPodAffinityWeight":1,"ignorePreferredTermsOfExistingPods":false}
        PodTopologySpread {"defaultingType":"List"}
    "#]],
    );
    check(
        "v1beta1",
        "",
        &expect![[r#"
        preEnqueue: SchedulingGates DynamicResources DefaultPreemption
        queueSort: PrioritySort
        preFilter: DynamicResources NodeDeclaredFeatures NodeResourcesFit NodePorts VolumeRestrictions PodTopologySpread InterPodAffinity VolumeBinding NodeAffinity NodeVolumeLimits VolumeZone
        filter: DynamicResources NodeDeclaredFeatures NodeUnschedulable NodeName TaintToleration NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions EBSLimits GCEPDLimits NodeVolumeLimits AzureDiskLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity
        postFilter: DynamicResources DefaultPreemption
        preScore: InterPodAffinity PodTopologySpread TaintToleration NodeAffinity NodeResourcesBalancedAllocation
        score: DynamicResources=1 NodeResourcesBalancedAllocation=1 ImageLocality=1 InterPodAffinity=1 NodeResourcesLeastAllocated=1 NodeAffinity=1 NodePreferAvoidPods=10000 PodTopologySpread=2 TaintToleration=1
        reserve: DynamicResources VolumeBinding
        preBind: DynamicResources VolumeBinding
        bind: DefaultBinder
        DefaultPreemption {"minCandidateNodesAbsolute":100,"minCandidateNodesPercentage":10}
        InterPodAffinity {"hardPodAffinityWeight":1,"ignorePreferredTermsOfExistingPods":false}
    "#]],
    );
    check(
        "v1beta2",
        "",
        &expect![[r#"
        preEnqueue: SchedulingGates DynamicResources DefaultPreemption
        queueSort: PrioritySort
        preFilter: DynamicResources NodeDeclaredFeatures NodeResourcesFit NodePorts VolumeRestrictions PodTopologySpread InterPodAffinity VolumeBinding NodeAffinity NodeVolumeLimits VolumeZone
        filter: DynamicResources NodeDeclaredFeatures NodeUnschedulable NodeName TaintToleration NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions EBSLimits GCEPDLimits NodeVolumeLimits AzureDiskLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity
        postFilter: DynamicResources DefaultPreemption
        preScore: InterPodAffinity PodTopologySpread TaintToleration NodeAffinity NodeResourcesFit NodeResourcesBalancedAllocation
        score: DynamicResources=1 NodeResourcesBalancedAllocation=1 ImageLocality=1 InterPodAffinity=1 NodeResourcesFit=1 NodeAffinity=1 PodTopologySpread=2 TaintToleration=1
        reserve: DynamicResources VolumeBinding
        preBind: DynamicResources VolumeBinding
        bind: DefaultBinder
        DefaultPreemption {"minCandidateNodesAbsolute":100,"minCandidateNodesPercentage":10}
        InterPodAffinity {"hardPodAffinityWeight":1,"ignorePreferredTermsOfExistingPods":false}
    "#]],
    );
    check(
        "v1beta3",
        "",
        &expect![[r#"
        preEnqueue: SchedulingGates DynamicResources DefaultPreemption
        queueSort: PrioritySort
        preFilter: NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity DynamicResources NodeDeclaredFeatures
        filter: NodeUnschedulable NodeName TaintToleration NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions EBSLimits GCEPDLimits NodeVolumeLimits AzureDiskLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity DynamicResources NodeDeclaredFeatures
        postFilter: DynamicResources DefaultPreemption
        preScore: TaintToleration NodeAffinity NodeResourcesFit VolumeBinding PodTopologySpread InterPodAffinity NodeResourcesBalancedAllocation
        score: TaintToleration=3 NodeAffinity=2 NodeResourcesFit=1 VolumeBinding=1 PodTopologySpread=2 InterPodAffinity=2 DynamicResources=2 NodeResourcesBalancedAllocation=1 ImageLocality=1
        reserve: VolumeBinding DynamicResources
        preBind: VolumeBinding DynamicResources
        bind: DefaultBinder
        DefaultPreemption {"minCandidateNodesAbsolute":100,"minCandidateNodesPercentage":10}
        InterPodAffinity {"hardPodAffinityWeight":1,"ignorePreferredTermsOfExistingPods":false}
    "#]],
    );
}

#[test]
fn a_file_of_an_older_version_gets_one_note_that_names_it() {
    let checked = try_check("v1beta2", "parallelism: 16\n", None).unwrap();
    assert_eq!(
        checked.notes,
        [
            "kubescheduler.config.k8s.io/v1beta2 was read by kube-scheduler up to 1.27; `loadmaster config convert` writes the same \
             configuration in kubescheduler.config.k8s.io/v1"
        ]
    );
}

#[test]
fn weights_are_replaced_in_place_since_v1beta2() {
    let yaml = "\
profiles:
- plugins:
    score:
      enabled:
      - {name: ImageLocality, weight: 7}
      - {name: Mine, weight: 3}
";
    check(
        "v1beta2",
        yaml,
        &expect![[r#"
        preEnqueue: SchedulingGates DynamicResources DefaultPreemption
        queueSort: PrioritySort
        preFilter: DynamicResources NodeDeclaredFeatures NodeResourcesFit NodePorts VolumeRestrictions PodTopologySpread InterPodAffinity VolumeBinding NodeAffinity NodeVolumeLimits VolumeZone
        filter: DynamicResources NodeDeclaredFeatures NodeUnschedulable NodeName TaintToleration NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions EBSLimits GCEPDLimits NodeVolumeLimits AzureDiskLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity
        postFilter: DynamicResources DefaultPreemption
        preScore: InterPodAffinity PodTopologySpread TaintToleration NodeAffinity NodeResourcesFit NodeResourcesBalancedAllocation
        score: DynamicResources=1 NodeResourcesBalancedAllocation=1 ImageLocality=7 InterPodAffinity=1 NodeResourcesFit=1 NodeAffinity=1 PodTopologySpread=2 TaintToleration=1 Mine=3
        reserve: DynamicResources VolumeBinding
        preBind: DynamicResources VolumeBinding
        bind: DefaultBinder
        DefaultPreemption {"minCandidateNodesAbsolute":100,"minCandidateNodesPercentage":10}
        InterPodAffinity {"hardPodAffinityWeight":1,"ignorePreferredTermsOfExistingPods":false}
    "#]],
    );
    check(
        "v1beta1",
        yaml,
        &expect![[
            r#"config.yaml:7:16: profiles[0].plugins.score.enabled[0].name: plugin "ImageLocality" already registered as "ScorePlugin""#
        ]],
    );
    let yaml = "\
profiles:
- plugins:
    score:
      disabled: [{name: ImageLocality}]
      enabled:
      - {name: ImageLocality, weight: 7}
";
    check(
        "v1beta1",
        yaml,
        &expect![[r#"
        preEnqueue: SchedulingGates DynamicResources DefaultPreemption
        queueSort: PrioritySort
        preFilter: DynamicResources NodeDeclaredFeatures NodeResourcesFit NodePorts VolumeRestrictions PodTopologySpread InterPodAffinity VolumeBinding NodeAffinity NodeVolumeLimits VolumeZone
        filter: DynamicResources NodeDeclaredFeatures NodeUnschedulable NodeName TaintToleration NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions EBSLimits GCEPDLimits NodeVolumeLimits AzureDiskLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity
        postFilter: DynamicResources DefaultPreemption
        preScore: InterPodAffinity PodTopologySpread TaintToleration NodeAffinity NodeResourcesBalancedAllocation
        score: DynamicResources=1 NodeResourcesBalancedAllocation=1 InterPodAffinity=1 NodeResourcesLeastAllocated=1 NodeAffinity=1 NodePreferAvoidPods=10000 PodTopologySpread=2 TaintToleration=1 ImageLocality=7
        reserve: DynamicResources VolumeBinding
        preBind: DynamicResources VolumeBinding
        bind: DefaultBinder
        DefaultPreemption {"minCandidateNodesAbsolute":100,"minCandidateNodesPercentage":10}
        InterPodAffinity {"hardPodAffinityWeight":1,"ignorePreferredTermsOfExistingPods":false}
    "#]],
    );
}

#[test]
fn v1alpha1_is_one_profile() {
    check(
        "v1alpha1",
        "\
schedulerName: my-scheduler
hardPodAffinitySymmetricWeight: 5
bindTimeoutSeconds: 60
disablePreemption: true
healthzBindAddress: 127.0.0.1:10251
algorithmSource: {provider: ClusterAutoscalerProvider}
leaderElection: {lockObjectName: mine, resourceLock: endpoints}
plugins:
  postFilter: {disabled: [{name: DefaultPodTopologySpread}]}
  score: {disabled: [{name: DefaultPodTopologySpread}]}
  unreserve: {enabled: [{name: VolumeBinding}]}
",
        &expect![[r#"
            preEnqueue: SchedulingGates DynamicResources
            queueSort: PrioritySort
            preFilter: DynamicResources NodeDeclaredFeatures NodeResourcesFit NodePorts InterPodAffinity PodTopologySpread NodeVolumeLimits VolumeZone VolumeRestrictions NodeAffinity VolumeBinding
            filter: DynamicResources NodeDeclaredFeatures NodeUnschedulable NodeResourcesFit NodeName NodePorts NodeAffinity VolumeRestrictions TaintToleration EBSLimits GCEPDLimits NodeVolumeLimits AzureDiskLimits VolumeBinding VolumeZone InterPodAffinity PodTopologySpread
            postFilter: DynamicResources
            preScore: InterPodAffinity TaintToleration PodTopologySpread NodeResourcesBalancedAllocation NodeAffinity
            score: DynamicResources=1 NodeResourcesBalancedAllocation=1 ImageLocality=1 InterPodAffinity=1 NodeResourcesMostAllocated=1 NodeAffinity=1 NodePreferAvoidPods=10000 TaintToleration=1 PodTopologySpread=1
            reserve: DynamicResources VolumeBinding
            preBind: DynamicResources VolumeBinding
            bind: DefaultBinder
            InterPodAffinity {"hardPodAffinityWeight":5,"ignorePreferredTermsOfExistingPods":false}
            PodTopologySpread {"defaultingType":"List"}
            VolumeBinding {"bindTimeoutSeconds":60}
            note: healthzBindAddress has no effect: insecure serving was removed; use --bind-address and --secure-port
            note: leaderElection.resourceLock was "endpoints": only Leases are used as locks today
        "#]],
    );
    let yaml = "leaderElection: {lockObjectName: mine, lockObjectNamespace: kube-public}\n";
    let config = try_check("v1alpha1", yaml, None).unwrap().config;
    assert_eq!(config.leader_election.resource_name, "mine");
    assert_eq!(config.leader_election.resource_namespace, "kube-public");
    assert_eq!(config.profiles[0].scheduler_name, "default-scheduler");
}

#[test]
fn arguments_of_older_versions() {
    check(
        "v1beta1",
        "\
profiles:
- plugins:
    preFilter: {enabled: [{name: CapacityScheduling}]}
    postFilter: {enabled: [{name: CapacityScheduling}], disabled: [{name: '*'}]}
    reserve: {enabled: [{name: CapacityScheduling}]}
  pluginConfig:
  - name: CapacityScheduling
    args: {kubeConfigPath: /etc/kubernetes/scheduler.conf}
  - name: InterPodAffinity
    args: {apiVersion: kubescheduler.config.k8s.io/v1beta1, kind: InterPodAffinityArgs, hardPodAffinityWeight: 3}
  - name: PodTopologySpread
    args: {defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]}
",
        &expect![[r#"
            preEnqueue: SchedulingGates DynamicResources
            queueSort: PrioritySort
            preFilter: DynamicResources NodeDeclaredFeatures NodeResourcesFit NodePorts VolumeRestrictions PodTopologySpread InterPodAffinity VolumeBinding NodeAffinity CapacityScheduling NodeVolumeLimits VolumeZone
            filter: DynamicResources NodeDeclaredFeatures NodeUnschedulable NodeName TaintToleration NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions EBSLimits GCEPDLimits NodeVolumeLimits AzureDiskLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity
            postFilter: DynamicResources CapacityScheduling
            preScore: InterPodAffinity PodTopologySpread TaintToleration NodeAffinity NodeResourcesBalancedAllocation
            score: DynamicResources=1 NodeResourcesBalancedAllocation=1 ImageLocality=1 InterPodAffinity=1 NodeResourcesLeastAllocated=1 NodeAffinity=1 NodePreferAvoidPods=10000 PodTopologySpread=2 TaintToleration=1
            reserve: DynamicResources VolumeBinding CapacityScheduling
            preBind: DynamicResources VolumeBinding
            bind: DefaultBinder
            CapacityScheduling {}
            InterPodAffinity {"hardPodAffinityWeight":3,"ignorePreferredTermsOfExistingPods":false}
            PodTopologySpread {"defaultConstraints":[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"ScheduleAnyway"}],"defaultingType":"List"}
            note: kubeConfigPath of CapacityScheduling has no effect: the plugin uses the connection of the scheduler
        "#]],
    );
}

#[test]
fn errors_have_the_positions_of_the_file() {
    check(
        "v1alpha1",
        "\
parallelism: 16
disablePreemption: 1
hardPodAffinitySymmetricWeight: 101
algorithmSource: {provider: ClusterAutoscaler}
plugins:
  filter:
    enabled:
    - name: NodeLabels
  score: {enabled: [{name: NodeLabel, weigth: 2}]}
leaderElection: {resourceName: a, lockObjectName: b}
",
        &expect![[r#"
            config.yaml:3:14: parallelism: unknown field `parallelism`, expected one of `schedulerName`, `algorithmSource`, `hardPodAffinitySymmetricWeight`, `leaderElection`, `clientConnection`, `healthzBindAddress`, `metricsBindAddress`, `enableProfiling`, `enableContentionProfiling`, `disablePreemption`, `percentageOfNodesToScore`, `bindTimeoutSeconds`, `podInitialBackoffSeconds`, `podMaxBackoffSeconds`, `plugins`, `pluginConfig`
            config.yaml:4:20: disablePreemption: Invalid value: 1: must be a boolean
            config.yaml:5:33: hardPodAffinitySymmetricWeight: Invalid value: 101: not in valid range [0-100]
            config.yaml:6:29: algorithmSource.provider: algorithm provider "ClusterAutoscaler" is not registered; did you mean "ClusterAutoscalerProvider"?
            config.yaml:10:13: plugins.filter.enabled[0].name: FilterPlugin "NodeLabels" does not exist; did you mean "NodeLabel"?
            config.yaml:11:47: plugins.score.enabled[0].weigth: unknown field `weigth`, expected `name` or `weight`; did you mean "weight"?
            config.yaml:12:51: leaderElection.lockObjectName: Invalid value: "b": resourceName and lockObjectName are both set and do not match, resourceName: "a""#]],
    );
    check(
        "v1beta2",
        "\
healthzBindAddress: 0.0.0.0:10251
profiles:
- plugins:
    score:
      enabled:
      - name: NodePreferAvoidPods
      - name: Mine
      - name: Mine
  percentageOfNodesToScore: 50
  pluginConfig:
  - name: NodeLabel
- schedulerName: other
  plugins: {queueSort: {enabled: [{name: MySort}], disabled: [{name: '*'}]}}
",
        &expect![[r#"
            config.yaml:3:21: healthzBindAddress: Invalid value: "0.0.0.0:10251": must be empty or with an explicit 0 port
            config.yaml:5:3: profiles[0].schedulerName: Required value
            config.yaml:8:9: profiles[0].plugins.score.enabled[0]: Invalid value: "NodePreferAvoidPods": was removed in version "kubescheduler.config.k8s.io/v1beta2" (KubeSchedulerConfiguration is version "kubescheduler.config.k8s.io/v1beta2")
            config.yaml:11:29: profiles[0].percentageOfNodesToScore: unknown field `percentageOfNodesToScore`, expected one of `schedulerName`, `plugins`, `pluginConfig`
            config.yaml:13:5: profiles[0].pluginConfig[0]: Invalid value: "NodeLabel": was removed in version "kubescheduler.config.k8s.io/v1beta2" (KubeSchedulerConfiguration is version "kubescheduler.config.k8s.io/v1beta2")
            config.yaml:15:24: profiles[1].plugins.queueSort: Invalid value: {"enabled":[{"name":"MySort","weight":0}]}: must be the same for all profiles"#]],
    );
    check(
        "v1beta1",
        "profiles: [{plugins: {score: {enabled: [{name: NodeResourcesFit}]}}}]\n",
        &expect![[
            r#"config.yaml:3:41: profiles[0].plugins.score.enabled[0]: Invalid value: "NodeResourcesFit": was conflict with ["NodeResourcesLeastAllocated"] in version "kubescheduler.config.k8s.io/v1beta1" (KubeSchedulerConfiguration is version "kubescheduler.config.k8s.io/v1beta1")"#
        ]],
    );
    check(
        "v1beta3",
        "profiles: [{plugins: {multiPoint: {enabled: [{name: NodeLabel}]}}}]\n",
        &expect![[
            r#"config.yaml:3:46: profiles[0].plugins.multiPoint.enabled[0]: Invalid value: "NodeLabel": was removed in version "kubescheduler.config.k8s.io/v1beta2" (KubeSchedulerConfiguration is version "kubescheduler.config.k8s.io/v1beta3")"#
        ]],
    );
    check(
        "v1beta4",
        "",
        &expect![[
            r#"config.yaml:1:13: apiVersion: no kind "KubeSchedulerConfiguration" is registered for version "kubescheduler.config.k8s.io/v1beta4": this scheduler reads KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1 and older versions; did you mean "kubescheduler.config.k8s.io/v1beta3"?"#
        ]],
    );
}

#[test]
fn v1_takes_plugins_of_older_versions_but_not_the_volume_limits() {
    check(
        "v1",
        "\
profiles:
- plugins:
    multiPoint: {disabled: [{name: '*'}], enabled: [{name: PrioritySort}, {name: DefaultBinder}, {name: NodeLabel}]}
",
        &expect![[r#"
            queueSort: PrioritySort
            filter: NodeLabel
            score: NodeLabel=1
            bind: DefaultBinder
        "#]],
    );
    let checked = try_check(
        "v1",
        "profiles: [{plugins: {multiPoint: {enabled: [{name: NodeLabel}]}}}]\n",
        None,
    );
    let note = "enabled plugins that kube-scheduler 1.36 does not have: NodeLabel";
    assert_eq!(checked.unwrap().notes, [note]);
    check(
        "v1",
        "profiles: [{plugins: {multiPoint: {enabled: [{name: EBSLimits}]}}}]\n",
        &expect![[
            r#"config.yaml:3:53: profiles[0].plugins.multiPoint.enabled[0].name: plugin "EBSLimits" does not exist"#
        ]],
    );
    check(
        "v1",
        "profiles: [{plugins: {filter: {enabled: [{name: EBSLimits}]}}}]\n",
        &expect![[
            r#"config.yaml:3:42: profiles[0].plugins.filter.enabled[0]: Invalid value: "EBSLimits": was invalid in version "v1" (KubeSchedulerConfiguration is version "kubescheduler.config.k8s.io/v1")"#
        ]],
    );
}
