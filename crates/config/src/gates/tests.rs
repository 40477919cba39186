use expect_test::{Expect, expect};

use super::*;

/// Checks the result of a flag: the gates that it changes and the notes, or the errors.
#[track_caller]
fn check(flags: &[&str], want: &Expect) {
    let got = match AllFeatureGates::parse(flags.iter().copied()) {
        Ok(gates) => std::iter::once(format!("{gates:?}"))
            .chain(gates.ineffective_gate_notes())
            .collect::<Vec<_>>(),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    };
    want.assert_eq(&got.join("\n"));
}

#[test]
fn gate_names_are_sorted_and_known() {
    assert!(table::GATES.windows(2).all(|pair| pair[0].name < pair[1].name));
    let known = |name: &&'static str| table::GATES.iter().any(|gate| gate.name == *name);
    let used = [
        LOCKED_ON,
        unsupported::GATES,
        unsupported::DAEMON_GATES,
        unsupported::NO_EFFECT_GATES,
        default_values::PLUGIN_GATES,
    ]
    .concat();
    assert!(table::GATES.iter().flat_map(|gate| gate.depends_on).chain(&used).all(known));
}

#[test]
fn defaults_equal_those_of_the_framework() {
    assert_eq!(AllFeatureGates::default().framework_gates(), FeatureGates::default());
    assert_eq!(AllFeatureGates::default().dependencies(), []);
}

#[test]
fn flags_change_gates() {
    check(&[], &expect!["{}"]);
    check(
        &["TaintTolerationComparisonOperators=true,OpportunisticBatching=F"],
        &expect![[
            r#"{"OpportunisticBatching": false, "TaintTolerationComparisonOperators": true}"#
        ]],
    );
    check(
        &["kube:OpportunisticBatching=false", " kube: OpportunisticBatching = 1 ,,"],
        &expect!["{}"],
    );
    check(&["NodeDeclaredFeatures=true,DynamicResourceAllocation=true"], &expect!["{}"]);
    let gates = AllFeatureGates::parse(["SchedulerPopFromBackoffQ=false"]).unwrap();
    assert!(!gates.framework_gates().pop_from_backoff_q);
    assert!(!gates.enabled("SchedulerPopFromBackoffQ") && !gates.enabled("Unknown"));
    assert!(gates.enabled("PodLevelResources"));
}

#[test]
fn gates_without_effect_are_noted() {
    check(
        &["KubeletPSI=true,MemoryQoS=true,ContextualLogging=false,NativeHistograms=true"],
        &expect![[r#"
            {"ContextualLogging": false, "MemoryQoS": true, "NativeHistograms": true}
            feature gates that the scheduler does not read: ContextualLogging, KubeletPSI, MemoryQoS
            feature gates that have no effect in Loadmaster: NativeHistograms"#]],
    );
}

#[test]
fn malformed_flags_are_rejected() {
    check(&["PodLevelResources"], &expect!["missing bool value for PodLevelResources"]);
    check(
        &["PodLevelResources=maybe"],
        &expect![[
            r#"invalid value of PodLevelResources=maybe, err: strconv.ParseBool: parsing "maybe": invalid syntax"#
        ]],
    );
    check(&["wardle:featureA=true"], &expect!["component not registered: wardle"]);
    check(
        &["kube:NodeSwap=true,KubeletPSI=true"],
        &expect![
            "set kube feature gates with default empty prefix or kube: prefix consistently, do not mix use"
        ],
    );
}

#[test]
fn invalid_gates_are_rejected() {
    check(&["Foo=true"], &expect!["unrecognized feature gate: Foo"]);
    check(
        &["SchedulerQueueingHints=false,NodeSwap=false"],
        &expect![[r#"
        cannot set feature gate NodeSwap to false, feature is locked to true
        cannot set feature gate SchedulerQueueingHints to false, feature is locked to true"#]],
    );
    check(
        &["PodLevelResources=true,PodLevelResources=false"],
        &expect![
            "InPlacePodLevelResourcesVerticalScaling is enabled, but depends on features that are disabled: [PodLevelResources]"
        ],
    );
    check(
        &["GangScheduling=true,GenericWorkload=true,StorageCapacityScoring=false"],
        &expect![[r#"
        cannot set feature gate GangScheduling to true: this version of Loadmaster does not implement it
        cannot set feature gate GenericWorkload to true: this version of Loadmaster does not implement it"#]],
    );
    check(
        &["WorkloadWithJob=true"],
        &expect![
            "WorkloadWithJob is enabled, but depends on features that are disabled: [GenericWorkload]"
        ],
    );
}

#[test]
fn toggles_of_a_stage() {
    check(
        &["AllAlpha=true"],
        &expect![
            "cannot set AllAlpha to true: this version of Loadmaster does not implement DRAListTypeAttributes, DRANodeAllocatableResources, DRAWorkloadResourceClaims, GangScheduling, GenericWorkload, TopologyAwareWorkloadScheduling, WorkloadAwarePreemption"
        ],
    );
    check(
        &["AllBeta=false"],
        &expect![
            "cannot set AllBeta to false: this version of Loadmaster does not implement DRAConsumableCapacity, DRADeviceBindingConditions, DRADeviceTaints, DRAExtendedResource, DRAPartitionableDevices, DRAResourceClaimDeviceStatus, DRASchedulerFilterTimeout"
        ],
    );
    check(&["AllAlpha=false"], &expect!["{}"]);
    check(
        &["AllBeta=true"],
        &expect![
            "cannot set AllBeta to true: this version of Loadmaster does not implement DRADeviceTaintRules, SchedulerAsyncAPICalls"
        ],
    );
}
