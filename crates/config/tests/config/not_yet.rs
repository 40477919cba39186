//! What is refused or noted because it is not built.

use expect_test::{Expect, expect};
use loadmaster_config::{Gates, check_value};
use serde_json::json;

use crate::testkit::{check_errors, registry, registry_of, try_check};

#[track_caller]
fn check_notes(yaml: &str, want: &Expect) {
    want.assert_eq(&try_check(yaml).unwrap().notes.join("\n"));
}

#[test]
fn how_nodes_are_searched_and_when_watches_start_takes_effect() {
    check_errors("percentageOfNodesToScore: 50\n", &expect!["ok"]);
    check_errors("profiles: [{percentageOfNodesToScore: 99}]\n", &expect!["ok"]);
    check_errors("delayCacheUntilActive: true\n", &expect!["ok"]);
}

#[test]
fn plugins_behind_gates_are_refused() {
    check_errors(
        "\
profiles:
- plugins:
    multiPoint: {enabled: [{name: GangScheduling}]}
    filter: {enabled: [{name: NodeDeclaredFeatures}]}
",
        &expect![[
            r#"config.yaml:5:35: profiles[0].plugins.multiPoint.enabled[0].name: Unsupported value: "GangScheduling": cannot take effect in this version of Loadmaster: the plugin is not built"#
        ]],
    );
}

#[test]
fn notes() {
    check_notes(
        "",
        &expect![
            "plugins that are enabled and not built in this version of Loadmaster: DefaultBinder, NodeDeclaredFeatures"
        ],
    );
    check_notes(
        "profiles: [{plugins: {multiPoint: {disabled: [{name: NodeDeclaredFeatures}]}}}]\n",
        &expect![
            "plugins that are enabled and not built in this version of Loadmaster: DefaultBinder"
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
            plugins that are enabled and not built in this version of Loadmaster: DefaultBinder, NodeDeclaredFeatures
            fields that have no effect here: parallelism, enableContentionProfiling"#]],
    );
}

#[test]
fn a_registry_that_has_all_needs_no_note() {
    let header = json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"});
    let checked = check_value(header.clone(), &registry_of(|_| true), &Gates::default()).unwrap();
    assert_eq!(checked.notes, Vec::<String>::new());
    let gates = Gates::parse(["NodeDeclaredFeatures=false,InPlacePodLevelResourcesVerticalScaling=false,NodeSwap=true,KubeletPSI=true,RestartAllContainersOnContainerExits=false,InPlacePodVerticalScalingInitContainers=false,ExtendWebSocketsToKubelet=false"]).unwrap();
    let checked = check_value(header, &registry(), &gates).unwrap();
    expect![[r#"
        feature gates that mean nothing to this scheduler: ExtendWebSocketsToKubelet, InPlacePodVerticalScalingInitContainers, KubeletPSI, NodeSwap, RestartAllContainersOnContainerExits
        plugins that are enabled and not built in this version of Loadmaster: DefaultBinder"#]].assert_eq(&checked.notes.join("\n"));
}
