//! Legacy Policies.

use expect_test::{Expect, expect};
use loadmaster_api::document::Document;
use loadmaster_config::ExtensionPoint::PostFilter;
use loadmaster_config::{AllFeatureGates, PolicySource, check_configuration, policy_source};

use crate::old_versions::{shown, try_check};
use crate::testkit::registry_with_old_plugins;

/// The plugins, arguments and notes of a Policy without its header; or the errors.
#[track_caller]
fn check(members: &str, want: &Expect) {
    let separator = if members.is_empty() { "" } else { "," };
    let text = format!("{{\"kind\": \"Policy\", \"apiVersion\": \"v1\"{separator}\n{members}\n}}");
    let document = Document::new("policy.json", text);
    let registry = registry_with_old_plugins();
    let got = match check_configuration(&document, &registry, &AllFeatureGates::default()) {
        Ok(checked) => {
            let extenders = serde_json::to_string(&checked.config.extenders).unwrap();
            format!("{}extenders {extenders}\n", shown(&checked))
        }
        Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    };
    want.assert_eq(&got);
}

#[test]
fn absent_lists_mean_the_defaults_and_empty_ones_nothing() {
    check(
        "",
        &expect![[r#"
        preEnqueue: SchedulingGates DynamicResources DefaultPreemption
        queueSort: PrioritySort
        preFilter: DynamicResources NodeDeclaredFeatures NodeResourcesFit NodePorts NodeAffinity VolumeBinding PodTopologySpread InterPodAffinity NodeVolumeLimits VolumeZone VolumeRestrictions
        filter: DynamicResources NodeDeclaredFeatures NodeUnschedulable NodeResourcesFit NodeName NodePorts NodeAffinity VolumeRestrictions TaintToleration EBSLimits GCEPDLimits NodeVolumeLimits AzureDiskLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity
        postFilter: DynamicResources DefaultPreemption
        preScore: PodTopologySpread InterPodAffinity NodeAffinity TaintToleration NodeResourcesBalancedAllocation
        score: DynamicResources=1 NodeResourcesBalancedAllocation=1 PodTopologySpread=2 ImageLocality=1 InterPodAffinity=1 NodeResourcesLeastAllocated=1 NodeAffinity=1 NodePreferAvoidPods=10000 TaintToleration=1
        reserve: DynamicResources VolumeBinding
        preBind: DynamicResources VolumeBinding
        bind: DefaultBinder
        DefaultPreemption {"minCandidateNodesAbsolute":100,"minCandidateNodesPercentage":10}
        InterPodAffinity {"hardPodAffinityWeight":1,"ignorePreferredTermsOfExistingPods":false}
        PodTopologySpread {"defaultingType":"System"}
        extenders []
    "#]],
    );
    check(
        r#""predicates": [], "priorities": []"#,
        &expect![[r#"
        preEnqueue: SchedulingGates DynamicResources DefaultPreemption
        queueSort: PrioritySort
        preFilter: DynamicResources NodeDeclaredFeatures
        filter: DynamicResources NodeDeclaredFeatures NodeUnschedulable TaintToleration
        postFilter: DynamicResources DefaultPreemption
        score: DynamicResources=1
        reserve: DynamicResources
        preBind: DynamicResources
        bind: DefaultBinder
        DefaultPreemption {"minCandidateNodesAbsolute":100,"minCandidateNodesPercentage":10}
        extenders []
    "#]],
    );
}

#[test]
fn predicates_and_priorities_with_arguments() {
    check(
        r#""predicates": [
  {"name": "PodFitsPorts"}, {"name": "GeneralPredicates"}, {"name": "CheckNodeMemoryPressure"},
  {"name": "ByRegion", "argument": {"serviceAffinity": {"labels": ["region"]}}},
  {"name": "OnlyRacks", "argument": {"labelsPresence": {"labels": ["rack", "row"], "presence": true}}},
  {"name": "NoRetired", "argument": {"labelsPresence": {"labels": ["retired"]}}},
  {"name": "MaxCinderVolumeCount"}
],
"priorities": [
  {"name": "EqualPriority", "weight": 1}, {"name": "ServiceSpreadingPriority", "weight": 4}, {"name": "EvenPodsSpreadPriority", "weight": 3},
  {"name": "SpreadZones", "weight": 2, "argument": {"serviceAntiAffinity": {"label": "zone"}}},
  {"name": "PreferSsd", "weight": 2, "argument": {"labelPreference": {"label": "ssd", "presence": true}}},
  {"name": "AvoidOld", "weight": 2, "argument": {"labelPreference": {"label": "old"}}},
  {"name": "Packing", "weight": 5, "argument": {"requestedToCapacityRatioArguments": {
    "shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}], "resources": [{"name": "cpu", "weight": 2}]}}},
  {"name": "InterPodAffinityPriority", "weight": 1}
],
"hardPodAffinitySymmetricWeight": 10, "alwaysCheckAllPredicates": true"#,
        &expect![[r#"
            preEnqueue: SchedulingGates DynamicResources DefaultPreemption
            queueSort: PrioritySort
            preFilter: DynamicResources NodeDeclaredFeatures NodeResourcesFit NodePorts NodeAffinity ServiceAffinity
            filter: DynamicResources NodeDeclaredFeatures NodeUnschedulable NodeResourcesFit NodeName NodePorts NodeAffinity TaintToleration NodeLabel ServiceAffinity CinderLimits
            postFilter: DynamicResources DefaultPreemption
            preScore: PodTopologySpread InterPodAffinity
            score: DynamicResources=1 PodTopologySpread=3 InterPodAffinity=1 NodeLabel=4 RequestedToCapacityRatio=5 ServiceAffinity=2
            reserve: DynamicResources
            preBind: DynamicResources
            bind: DefaultBinder
            DefaultPreemption {"minCandidateNodesAbsolute":100,"minCandidateNodesPercentage":10}
            InterPodAffinity {"hardPodAffinityWeight":10,"ignorePreferredTermsOfExistingPods":false}
            NodeLabel {"absentLabels":["retired"],"absentLabelsPreference":["old"],"presentLabels":["rack","row"],"presentLabelsPreference":["ssd"]}
            PodTopologySpread {"defaultingType":"System"}
            RequestedToCapacityRatio {"resources":[{"name":"cpu","weight":2}],"shape":[{"score":0,"utilization":0},{"score":10,"utilization":100}]}
            ServiceAffinity {"affinityLabels":["region"],"antiAffinityLabelsPreference":["zone"]}
            note: alwaysCheckAllPredicates has no effect: placements are the same, and a node is reported with the first plugin that rejects it
            note: predicate CheckNodeMemoryPressure has no effect: nodes with this condition have a taint, which TaintToleration checks
            note: priority EqualPriority has no effect: all nodes get the same score
            extenders []
        "#]],
    );
}

#[test]
fn extenders_of_a_policy() {
    check(
        r#""predicates": [], "priorities": [], "extenders": [{
  "apiVersion": "v1beta1", "URLPrefix": "http://127.0.0.1:8888/", "filterVerb": "filter", "prioritizeVerb": "prioritize", "weight": 5,
  "enableHttps": false, "httpTimeout": 2500000000, "nodecachecapable": true, "managedResources": [{"name": "example.com/gpu", "IgnoredByScheduler": true}]
}]"#,
        &expect![[
            r#"policy.json:4:149: extenders[0].managedResources[0].IgnoredByScheduler: can't find NodeResourcesFitArgs in plugin config of profile "default-scheduler""#
        ]],
    );
}

#[test]
fn all_errors_of_a_policy_are_reported() {
    check(
        r#""predicates": [
  {"name": "GeneralPredicate"},
  {"name": "Two", "argument": {"serviceAffinity": {"labels": []}, "labelsPresence": {"labels": []}}},
  {"name": "None", "argument": {}},
  {"nam": "HostName"}
],
"priorities": [
  {"name": "LeastRequestedPriority"},
  {"name": "LeastRequested", "weight": 1},
  {"name": "A", "weight": 1, "argument": {"labelPreference": {"label": "a"}}},
  {"name": "B", "weight": 2, "argument": {"labelPreference": {"label": "b"}}},
  {"name": "C", "weight": 99999999999}
],
"extenders": [{"urlPrefix": "http://a", "filterVerbs": "f", "httpTimeout": "5s", "prioritizeVerb": "p"}],
"hardPodAffinitySymmetricWeight": 101, "Priorities": []"#,
        &expect![[r#"
            policy.json:3:12: predicates[0].name: predicate type not found for "GeneralPredicate"; did you mean "GeneralPredicates"?
            policy.json:4:31: predicates[1].argument: Invalid value: "Two": exactly 1 predicate argument is required: serviceAffinity or labelsPresence
            policy.json:5:32: predicates[2].argument: Invalid value: "None": exactly 1 predicate argument is required: serviceAffinity or labelsPresence
            policy.json:6:11: predicates[3].nam: unknown field `nam`, expected `name` or `argument`; did you mean "name"?
            policy.json:9:3: priorities[0].weight: Invalid value: 0: priority LeastRequestedPriority should have a positive weight applied to it or it has overflown
            policy.json:10:12: priorities[1].name: priority type not found for "LeastRequested"; did you mean "LeastRequestedPriority"?
            policy.json:12:27: priorities[3].weight: Invalid value: 2: LabelPreference priority "B" has a different weight with "A"
            policy.json:13:27: priorities[4].weight: Invalid value: 99999999999: priority C should have a positive weight applied to it or it has overflown
            policy.json:15:15: extenders[0].weight: Invalid value: 0: must have a positive weight applied to it
            policy.json:15:56: extenders[0].filterVerbs: unknown field `filterVerbs`, expected one of `urlPrefix`, `filterVerb`, `preemptVerb`, `prioritizeVerb`, `weight`, `bindVerb`, `enableHTTPS`, `tlsConfig`, `httpTimeout`, `nodeCacheCapable`, `managedResources`, `ignorable`; did you mean "filterVerb"?
            policy.json:15:76: extenders[0].httpTimeout: Invalid value: "5s": a number of nanoseconds is expected, such as 5000000000
            policy.json:16:35: hardPodAffinitySymmetricWeight: Invalid value: 101: not in valid range [0-100]
            policy.json:16:54: Priorities: unknown field `Priorities`, expected one of `predicates`, `priorities`, `extenders`, `hardPodAffinitySymmetricWeight`, `alwaysCheckAllPredicates`; did you mean "priorities"?"#]],
    );
}

#[test]
fn a_policy_of_v1alpha1_keeps_the_name_of_the_scheduler() {
    let yaml = "schedulerName: my-scheduler\nalgorithmSource: {policy: {file: {path: p.json}}}\nbindTimeoutSeconds: 9\n";
    let policy = r#"{"kind": "Policy", "apiVersion": "v1", "predicates": [{"name": "CheckVolumeBinding"}], "priorities": []}"#;
    let checked = try_check("v1alpha1", yaml, Some(policy)).unwrap();
    assert_eq!(checked.profiles[0].scheduler_name, "my-scheduler");
    assert_eq!(checked.profiles[0].args_of("VolumeBinding")["bindTimeoutSeconds"], 9);
    // In v1alpha2 only the timeout is not a profile's.
    let profile = "profiles: [{schedulerName: my-scheduler}]\nbindTimeoutSeconds: 9\n";
    let checked = try_check("v1alpha2", profile, Some(policy)).unwrap();
    assert_eq!(checked.profiles[0].scheduler_name, "default-scheduler");
    assert_eq!(checked.profiles[0].args_of("VolumeBinding")["bindTimeoutSeconds"], 9);
    let errors = try_check("v1alpha1", yaml, None).unwrap_err();
    assert!(
        errors.starts_with("config.yaml:4:27: algorithmSource.policy: Required value"),
        "{errors}"
    );
    let errors = try_check("v1alpha1", "plugins: {}\n", Some(policy)).unwrap_err();
    assert!(
        errors.contains("using Plugins and Policy simultaneously is not supported"),
        "{errors}"
    );
}

#[test]
fn a_policy_leaves_disabled_preemption_disabled() {
    let policy = r#"{"kind": "Policy", "apiVersion": "v1"}"#;
    for (version, yaml, is_enabled) in [
        ("v1alpha1", "disablePreemption: true\n", false),
        ("v1alpha1", "disablePreemption: false\n", true),
        ("v1alpha1", "disablePreemption: null\n", true),
        ("v1alpha1", "", true),
        ("v1alpha2", "disablePreemption: true\n", false),
        ("v1beta1", "", true),
    ] {
        let checked = try_check(version, yaml, Some(policy)).unwrap();
        let plugins = checked.profiles[0].extension_points.at_extension_point(PostFilter);
        let has_preemption = plugins.iter().any(|plugin| plugin.name == "DefaultPreemption");
        assert_eq!(has_preemption, is_enabled, "{version} {yaml}");
    }
}

#[test]
fn errors_of_moved_arguments_have_the_place_in_the_configuration() {
    let yaml = "hardPodAffinitySymmetricWeight: 101\nbindTimeoutSeconds: 9\n";
    for (policy, want) in [
        // The arguments of the Policy stand before those of the configuration.
        (
            r#"{"kind": "Policy", "apiVersion": "v1"}"#,
            "config.yaml:3:33: hardPodAffinitySymmetricWeight: Invalid value: 101: not in valid range [0-100]",
        ),
        // The weight of the Policy replaces that of the configuration.
        (
            r#"{"kind": "Policy", "apiVersion": "v1", "hardPodAffinitySymmetricWeight": 102}"#,
            "policy.json:1:74: hardPodAffinitySymmetricWeight: Invalid value: 102: not in valid range [0-100]",
        ),
    ] {
        assert_eq!(try_check("v1alpha1", yaml, Some(policy)).unwrap_err(), want);
    }
}

#[test]
fn where_a_configuration_says_its_policy_is() {
    let source = |text: &str| {
        let text = format!(
            "apiVersion: kubescheduler.config.k8s.io/v1alpha1\nalgorithmSource:\n  policy: {text}\n"
        );
        policy_source(&Document::new("c.yaml", text))
            .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let file = PolicySource::File { path: "/p.json".to_owned() };
    assert_eq!(source("{file: {path: /p.json}}"), Ok(Some(file)));
    let config_map =
        PolicySource::ConfigMap { namespace: "kube-system".to_owned(), name: "p".to_owned() };
    assert_eq!(source("{configMap: {name: p}}"), Ok(Some(config_map)));
    let both = source("{configMap: {name: p}, file: {path: p}}").unwrap_err();
    assert_eq!(
        both,
        [
            "c.yaml:3:11: algorithmSource.policy: Required value: either file.path or configMap.name is expected"
        ]
    );
    let misspelt = source("{files: {path: p}}").unwrap_err();
    assert!(misspelt.iter().any(|error| error.contains("unknown field `files`")), "{misspelt:?}");
}

#[test]
fn a_file_that_is_no_object_refers_to_no_policy() {
    for text in [
        "a",
        "- b",
        "algorithmSource: c",
        "apiVersion: kubescheduler.config.k8s.io/v1alpha1\nalgorithmSource: [d]",
    ] {
        let document = loadmaster_api::document::Document::new("f", text.to_owned());
        assert_eq!(loadmaster_config::policy_source(&document), Ok(None), "{text}");
    }
}
