use expect_test::{Expect, expect};

use super::*;

/// What a flag says: the gates it changes and the notes, or the errors.
#[track_caller]
fn check(flags: &[&str], want: &Expect) {
    let got = match Gates::parse(flags.iter().copied()) {
        Ok(gates) => std::iter::once(format!("{gates:?}")).chain(gates.notes()).collect::<Vec<_>>(),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    };
    want.assert_eq(&got.join("\n"));
}

#[test]
fn names_are_sorted_and_known() {
    assert!(table::GATES.windows(2).all(|pair| pair[0].name < pair[1].name));
    let known = |name: &&'static str| table::GATES.iter().any(|gate| gate.name == *name);
    let used =
        [LOCKED_ON, not_yet::GATES, not_yet::DAEMON_GATES, not_yet::IDLE_GATES, defaults::GATES]
            .concat();
    assert!(table::GATES.iter().flat_map(|gate| gate.needs).chain(&used).all(known));
}

#[test]
fn defaults_agree_with_what_plugins_assume() {
    assert_eq!(Gates::default().framework(), FeatureGates::default());
    assert_eq!(Gates::default().dependencies(), []);
}

#[test]
fn changes() {
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
    let gates = Gates::parse(["SchedulerPopFromBackoffQ=false"]).unwrap();
    assert!(!gates.framework().pop_from_backoff_q);
    assert!(!gates.enabled("SchedulerPopFromBackoffQ") && !gates.enabled("Nobody"));
    assert!(gates.enabled("PodLevelResources"));
}

#[test]
fn gates_of_others_are_noted() {
    check(
        &["KubeletPSI=true,MemoryQoS=true,ContextualLogging=false,NativeHistograms=true"],
        &expect![[r#"
            {"ContextualLogging": false, "MemoryQoS": true, "NativeHistograms": true}
            feature gates that mean nothing to this scheduler: ContextualLogging, KubeletPSI, MemoryQoS
            feature gates that have no effect here: NativeHistograms"#]],
    );
}

#[test]
fn malformed() {
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
fn refused() {
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
        cannot set feature gate GangScheduling to true: this version of Loadmaster does not have it yet
        cannot set feature gate GenericWorkload to true: this version of Loadmaster does not have it yet"#]],
    );
    check(
        &["WorkloadWithJob=true"],
        &expect![
            "WorkloadWithJob is enabled, but depends on features that are disabled: [GenericWorkload]"
        ],
    );
}

#[test]
fn all_of_a_stage() {
    check(
        &["AllAlpha=true"],
        &expect![
            "cannot set AllAlpha to true: this version of Loadmaster does not have these yet: DRAListTypeAttributes, DRANodeAllocatableResources, DRAWorkloadResourceClaims, GangScheduling, GenericWorkload, StorageCapacityScoring, TopologyAwareWorkloadScheduling, VolumeLimitScaling, WorkloadAwarePreemption"
        ],
    );
    check(
        &["AllBeta=false"],
        &expect![
            "cannot set AllBeta to false: this version of Loadmaster does not have these yet: DRAConsumableCapacity, DRADeviceBindingConditions, DRADeviceTaints, DRAExtendedResource, DRAPartitionableDevices, DRAResourceClaimDeviceStatus, DRASchedulerFilterTimeout"
        ],
    );
    check(&["AllAlpha=false"], &expect!["{}"]);
    check(
        &["AllBeta=true"],
        &expect![
            "cannot set AllBeta to true: this version of Loadmaster does not have these yet: DRADeviceTaintRules, SchedulerAsyncAPICalls"
        ],
    );
}
