//! Merging of plugin sets with the default plugins, and expansion of `multiPoint`.

use expect_test::{Expect, expect};
use loadmaster_config::ExpandedPlugins;

use crate::testkit::{check_errors, plugins_of, try_check};

/// The extension points whose plugins differ from those of the default profile.
#[track_caller]
fn check_plugins(plugins: &str, want: &Expect) {
    let points = |plugins: &str| -> ExpandedPlugins {
        let checked = try_check(&format!("profiles:\n- plugins: {plugins}\n"));
        checked.unwrap().profiles.remove(0).extension_points
    };
    let (default, got) = (plugins_of(&points("{}")), plugins_of(&points(plugins)));
    let changed: Vec<&str> =
        got.lines().filter(|line| !default.lines().any(|other| other == *line)).collect();
    let field = |line: &str| line.split(':').next().unwrap_or_default().to_owned();
    let fields: Vec<String> = got.lines().map(field).collect();
    let removed = default
        .lines()
        .map(field)
        .filter(|point| !fields.contains(point))
        .map(|point| format!("{point}: none"));
    let lines: Vec<String> = changed.iter().map(|line| (*line).to_owned()).chain(removed).collect();
    want.assert_eq(&lines.join("\n"));
}

#[test]
fn default_profile() {
    let checked = try_check("").unwrap();
    expect![[r#"
        preEnqueue: SchedulingGates DynamicResources DefaultPreemption
        queueSort: PrioritySort
        preFilter: NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity DynamicResources
        filter: NodeUnschedulable NodeName TaintToleration NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity DynamicResources
        postFilter: DynamicResources DefaultPreemption
        preScore: TaintToleration NodeAffinity NodeResourcesFit VolumeBinding PodTopologySpread InterPodAffinity NodeResourcesBalancedAllocation
        score: TaintToleration=3 NodeAffinity=2 NodeResourcesFit=1 VolumeBinding=1 PodTopologySpread=2 InterPodAffinity=2 DynamicResources=2 NodeResourcesBalancedAllocation=1 ImageLocality=1
        reserve: VolumeBinding DynamicResources
        preBind: VolumeBinding DynamicResources
    "#]].assert_eq(&plugins_of(&checked.profiles[0].extension_points));
    let names: Vec<&str> =
        checked.profiles[0].plugins.as_slice().iter().map(|plugin| plugin.name).collect();
    expect!["SchedulingGates PrioritySort NodeUnschedulable NodeName TaintToleration NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity DynamicResources DefaultPreemption NodeResourcesBalancedAllocation ImageLocality"].assert_eq(&names.join(" "));
}

#[test]
fn a_weight_is_replaced_in_place() {
    check_plugins(
        "{multiPoint: {enabled: [{name: NodeAffinity, weight: 7}]}}",
        &expect![
            "score: TaintToleration=3 NodeAffinity=7 NodeResourcesFit=1 VolumeBinding=1 PodTopologySpread=2 InterPodAffinity=2 DynamicResources=2 NodeResourcesBalancedAllocation=1 ImageLocality=1"
        ],
    );
}

#[test]
fn a_weight_left_out_is_one() {
    check_plugins(
        "{score: {enabled: [{name: TaintToleration}]}}",
        &expect![
            "score: TaintToleration=1 NodeAffinity=2 NodeResourcesFit=1 VolumeBinding=1 PodTopologySpread=2 InterPodAffinity=2 DynamicResources=2 NodeResourcesBalancedAllocation=1 ImageLocality=1"
        ],
    );
}

#[test]
fn the_weight_of_the_extension_point_wins() {
    check_plugins(
        "{multiPoint: {enabled: [{name: ImageLocality, weight: 7}]}, score: {enabled: [{name: ImageLocality, weight: 9}]}}",
        &expect![
            "score: ImageLocality=9 TaintToleration=3 NodeAffinity=2 NodeResourcesFit=1 VolumeBinding=1 PodTopologySpread=2 InterPodAffinity=2 DynamicResources=2 NodeResourcesBalancedAllocation=1"
        ],
    );
}

#[test]
fn plugins_of_the_extension_point_come_first() {
    check_plugins(
        "{filter: {enabled: [{name: NodePorts}, {name: Mine}, {name: NodeName}]}}",
        &expect![
            "filter: NodePorts NodeName NodeUnschedulable TaintToleration NodeAffinity NodeResourcesFit VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity DynamicResources Mine"
        ],
    );
}

#[test]
fn new_plugins_are_appended() {
    check_plugins(
        "{multiPoint: {enabled: [{name: Mine, weight: 2}]}}",
        &expect![[r#"
        filter: NodeUnschedulable NodeName TaintToleration NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity DynamicResources Mine
        score: TaintToleration=3 NodeAffinity=2 NodeResourcesFit=1 VolumeBinding=1 PodTopologySpread=2 InterPodAffinity=2 DynamicResources=2 NodeResourcesBalancedAllocation=1 ImageLocality=1 Mine=2"#]],
    );
}

#[test]
fn disabled_at_an_extension_point() {
    check_plugins(
        "{score: {disabled: [{name: NodeAffinity}]}}",
        &expect![
            "score: TaintToleration=3 NodeResourcesFit=1 VolumeBinding=1 PodTopologySpread=2 InterPodAffinity=2 DynamicResources=2 NodeResourcesBalancedAllocation=1 ImageLocality=1"
        ],
    );
}

#[test]
fn disabling_all_at_an_extension_point() {
    check_plugins(
        "{score: {disabled: [{name: '*'}], enabled: [{name: ImageLocality, weight: 9}]}, reserve: {disabled: [{name: '*'}]}}",
        &expect![[r#"
            score: ImageLocality=9
            reserve: none"#]],
    );
}

#[test]
fn disabling_all_in_multi_point() {
    check_plugins(
        "{multiPoint: {disabled: [{name: '*'}], enabled: [{name: DefaultBinder}, {name: NodeName}, {name: PrioritySort}]}}",
        &expect![[r#"
            filter: NodeName
            preEnqueue: none
            preFilter: none
            postFilter: none
            preScore: none
            score: none
            reserve: none
            preBind: none"#]],
    );
}

#[test]
fn disabled_in_multi_point_and_enabled_at_an_extension_point() {
    check_plugins(
        "{multiPoint: {disabled: [{name: NodeName}]}, filter: {enabled: [{name: NodeName}]}}",
        &expect![
            "filter: NodeUnschedulable TaintToleration NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity DynamicResources NodeName"
        ],
    );
}

#[test]
fn disabled_and_enabled_at_the_same_extension_point() {
    check_plugins(
        "{filter: {disabled: [{name: NodeName}], enabled: [{name: NodeName}]}}",
        &expect![
            "filter: NodeUnschedulable TaintToleration NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity DynamicResources NodeName"
        ],
    );
}

#[test]
fn another_queue_sort_plugin() {
    check_plugins(
        "{queueSort: {disabled: [{name: PrioritySort}], enabled: [{name: MySort}]}}",
        &expect!["queueSort: MySort"],
    );
}

#[test]
fn invalid_plugin_sets_are_rejected() {
    #[track_caller]
    fn check(plugins: &str, want: &Expect) {
        check_errors(&format!("profiles:\n- plugins: {plugins}\n"), want);
    }
    check(
        "{filter: {enabled: [{name: NodeName}, {name: Nobody}]}}",
        &expect![[
            r#"config.yaml:4:57: profiles[0].plugins.filter.enabled[1].name: FilterPlugin "Nobody" does not exist"#
        ]],
    );
    check(
        "{multiPoint: {enabled: [{name: Nobody}]}}",
        &expect![[
            r#"config.yaml:4:43: profiles[0].plugins.multiPoint.enabled[0].name: plugin "Nobody" does not exist"#
        ]],
    );
    check(
        "{filter: {enabled: [{}]}}",
        &expect![[
            r#"config.yaml:4:21: profiles[0].plugins.filter: FilterPlugin "" does not exist"#
        ]],
    );
    check("{filter: {disabled: [{name: Nobody}]}}", &expect![["ok"]]);
    check(
        "{score: {enabled: [{name: NodeName}]}}",
        &expect![[
            r#"config.yaml:4:38: profiles[0].plugins.score.enabled[0].name: plugin "NodeName" does not extend ScorePlugin plugin"#
        ]],
    );
    check(
        "{filter: {enabled: [{name: NodeName}, {name: NodeName}]}}",
        &expect![[
            r#"config.yaml:4:57: profiles[0].plugins.filter.enabled[1].name: plugin "NodeName" already registered as "FilterPlugin""#
        ]],
    );
    check(
        "{multiPoint: {enabled: [{name: NodeName}, {name: NodePorts}, {name: NodePorts}]}}",
        &expect![[
            r#"config.yaml:4:80: profiles[0].plugins.multiPoint.enabled[2].name: plugin "NodePorts" already registered as "PreFilterPlugin""#
        ]],
    );
    check(
        "{multiPoint: {disabled: [{name: PrioritySort}]}}",
        &expect![[
            r#"config.yaml:4:12: profiles[0].plugins.queueSort: only one queue sort plugin required for profile with scheduler name "default-scheduler", but got 0"#
        ]],
    );
    check(
        "{multiPoint: {enabled: [{name: MySort}]}}",
        &expect![[
            r#"config.yaml:4:12: profiles[0].plugins.queueSort: only one queue sort plugin required for profile with scheduler name "default-scheduler", but got 2"#
        ]],
    );
    check(
        "{queueSort: {disabled: [{name: '*'}]}, bind: {disabled: [{name: '*'}]}}",
        &expect![[r#"
        config.yaml:4:24: profiles[0].plugins.queueSort: only one queue sort plugin required for profile with scheduler name "default-scheduler", but got 0
        config.yaml:4:57: profiles[0].plugins.bind: at least one bind plugin is needed for profile with scheduler name "default-scheduler""#]],
    );
    check(
        "{score: {enabled: [{name: ImageLocality, weight: -3}]}}",
        &expect![
            "config.yaml:4:20: profiles[0].plugins.score: score plugins: total score of Score plugins could overflow"
        ],
    );
    check(
        "{multiPoint: {enabled: [{name: Failing}]}}",
        &expect![[
            r#"config.yaml:4:3: profiles[0]: initializing plugin "Failing": size: Invalid value: null: too small"#
        ]],
    );
}
