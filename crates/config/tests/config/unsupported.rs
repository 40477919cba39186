//! Values that are rejected or noted because they are not implemented.

use expect_test::{Expect, expect};
use loadmaster_config::{AllFeatureGates, check_configuration_value};
use serde_json::json;

use crate::testkit::{check_errors, registry, registry_of, try_check};

#[track_caller]
fn check_notes(yaml: &str, want: &Expect) {
    want.assert_eq(&try_check(yaml).unwrap().notes.join("\n"));
}

#[test]
fn percentage_of_nodes_to_score_and_delay_cache_until_active_are_supported() {
    check_errors("percentageOfNodesToScore: 50\n", &expect!["ok"]);
    check_errors("profiles: [{percentageOfNodesToScore: 99}]\n", &expect!["ok"]);
    check_errors("delayCacheUntilActive: true\n", &expect!["ok"]);
}

#[test]
fn plugins_behind_feature_gates_are_rejected() {
    check_errors(
        "\
profiles:
- plugins:
    multiPoint: {enabled: [{name: GangScheduling}]}
    filter: {enabled: [{name: NodeDeclaredFeatures}]}
",
        &expect![[
            r#"config.yaml:5:35: profiles[0].plugins.multiPoint.enabled[0].name: Unsupported value: "GangScheduling": cannot take effect in this version of Loadmaster: the plugin is not implemented"#
        ]],
    );
}

#[test]
fn plugins_of_scheduler_plugins_are_rejected_until_they_are_implemented() {
    check_errors(
        "\
profiles:
- plugins:
    score: {enabled: [{name: NodeMetadata}]}
    queueSort: {enabled: [{name: TopologicalSort}], disabled: [{name: '*'}]}
",
        &expect![[r#"
            config.yaml:5:30: profiles[0].plugins.score.enabled[0].name: Unsupported value: "NodeMetadata": cannot take effect in this version of Loadmaster: the plugin is not implemented
            config.yaml:6:34: profiles[0].plugins.queueSort.enabled[0].name: Unsupported value: "TopologicalSort": cannot take effect in this version of Loadmaster: the plugin is not implemented"#]],
    );
}

#[test]
fn fields_and_plugins_without_effect_are_noted() {
    check_notes(
        "",
        &expect![
            "enabled plugins that this version of Loadmaster does not implement: DefaultBinder, NodeDeclaredFeatures"
        ],
    );
    check_notes(
        "profiles: [{plugins: {multiPoint: {disabled: [{name: NodeDeclaredFeatures}]}}}]\n",
        &expect![
            "enabled plugins that this version of Loadmaster does not implement: DefaultBinder"
        ],
    );
    check_notes(
        "\
parallelism: 4
enableProfiling: false
leaderElection: {leaderElect: false}
clientConnection: {qps: 100}
podMaxBackoffSeconds: 60
",
        &expect![[r#"
            enabled plugins that this version of Loadmaster does not implement: DefaultBinder, NodeDeclaredFeatures
            fields that have no effect in Loadmaster: parallelism, enableContentionProfiling"#]],
    );
}

#[test]
fn a_registry_with_all_plugins_needs_no_note() {
    let header = json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"});
    let checked = check_configuration_value(
        header.clone(),
        &registry_of(|_| true),
        &AllFeatureGates::default(),
    )
    .unwrap();
    assert_eq!(checked.notes, Vec::<String>::new());
    let gates = AllFeatureGates::parse(["NodeDeclaredFeatures=false,InPlacePodLevelResourcesVerticalScaling=false,NodeSwap=true,KubeletPSI=true,RestartAllContainersOnContainerExits=false,InPlacePodVerticalScalingInitContainers=false,ExtendWebSocketsToKubelet=false"]).unwrap();
    let checked = check_configuration_value(header, &registry(), &gates).unwrap();
    expect![[r#"
        feature gates that the scheduler does not read: ExtendWebSocketsToKubelet, InPlacePodVerticalScalingInitContainers, KubeletPSI, NodeSwap, RestartAllContainersOnContainerExits
        enabled plugins that this version of Loadmaster does not implement: DefaultBinder"#]].assert_eq(&checked.notes.join("\n"));
}
