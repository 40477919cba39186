//! Deviations of Coscheduling, which `docs/src/reference/deviations.md` explains.

use loadmaster_sim::cases::{GangCase, GangStep, OracleCase, OracleCaseKind};
use serde_json::{Value, json};

use super::{Deviation, ExpectedAnswer};

const LABEL: &str = "scheduling.x-k8s.io/pod-group";

pub(super) const DEVIATIONS: [Deviation; 9] = [
    Deviation {
        text: "members that are being deleted count as siblings and as assigned in scheduler-plugins",
        scenario: None,
        applies: |case| gangs(case).is_some() && case.objects.iter().any(is_terminating_member),
        expected: ExpectedAnswer::OfReferenceCase(|case| {
            let mut case = case.clone();
            case.objects.retain(|object| !is_terminating_member(object));
            case
        }),
    },
    Deviation {
        text: "scheduler-plugins counts a rejected member as assigned until its binding cycle has called Unreserve",
        scenario: None,
        applies: |case| gangs(case).is_some_and(|gangs| gangs.late_unreserve),
        expected: ExpectedAnswer::OfReferenceCase(|case| {
            with_gangs(case, |gangs| gangs.late_unreserve = false)
        }),
    },
    Deviation {
        text: "a scheduleTimeoutSeconds of 0 or less makes members time out at once in scheduler-plugins",
        scenario: None,
        applies: |case| gangs(case).is_some() && pod_groups(case).any(has_no_timeout),
        expected: ExpectedAnswer::OfReferenceCase(|case| {
            let mut case = case.clone();
            for group in case.objects.iter_mut().filter(|it| has_no_timeout(it)) {
                group["spec"]["scheduleTimeoutSeconds"] = Value::Null;
            }
            case
        }),
    },
    Deviation {
        text: "a member that PreFilter rejects fails the attempt of its group in scheduler-plugins",
        scenario: None,
        applies: may_be_rejected_by_pre_filter,
        expected: ExpectedAnswer::OfReferenceCase(|case| {
            with_gangs(case, |gangs| gangs.no_post_filter_after_pre_filter = true)
        }),
    },
    Deviation {
        text: "PostFilter of a member that PreFilter rejects has no effect in Loadmaster, and only returns its message",
        scenario: None,
        applies: may_be_rejected_by_pre_filter,
        expected: ExpectedAnswer::Changed(add_post_filter),
    },
    Deviation {
        text: "with podGroupRejectPercentage, scheduler-plugins tries other members although none is left",
        scenario: None,
        applies: tries_others_in_vain,
        expected: ExpectedAnswer::OfReferenceCase(|case| {
            let mut case = case.clone();
            if let Some(args) = case.config.as_mut().map(args_mut) {
                args["podGroupRejectPercentage"] = json!(0);
            }
            case
        }),
    },
    Deviation {
        text: "a group whose member could not be bound goes behind others in scheduler-plugins",
        scenario: None,
        applies: |case| gangs(case).is_some_and(compares_after_failed_bind),
        expected: ExpectedAnswer::OfReferenceCase(|case| {
            with_gangs(case, |gangs| {
                for step in &mut gangs.steps {
                    if let GangStep::BindFails { pod } = step {
                        // The pod does not wait, so that nothing happens.
                        *step = GangStep::Timeout { pod: pod.clone() };
                    }
                }
            })
        }),
    },
    Deviation {
        text: "groups that were created in the same second are ordered by the names of their pods in scheduler-plugins",
        scenario: None,
        applies: |case| gangs(case).is_some() && has_equal_creation_times(case),
        expected: ExpectedAnswer::OfReferenceCase(with_different_creation_times),
    },
    Deviation {
        text: "the texts of missing minResources, and the backoff of groups",
        scenario: None,
        applies: |case| {
            let is_immediate =
                |step: &GangStep| matches!(step, GangStep::Schedule { immediately: true, .. });
            let has_resources = pod_groups(case).any(|it| !it["spec"]["minResources"].is_null());
            gangs(case).is_some_and(|it| has_resources || it.steps.iter().any(is_immediate))
        },
        expected: ExpectedAnswer::Changed(|case, answer| {
            rewrite_resource_gaps(answer);
            reject_in_backoff(case, answer);
        }),
    },
];

fn gangs(case: &OracleCase) -> Option<&GangCase> {
    match &case.kind {
        OracleCaseKind::Gangs(gangs) => Some(gangs),
        _ => None,
    }
}

fn with_gangs(case: &OracleCase, change: impl FnOnce(&mut GangCase)) -> OracleCase {
    let mut case = case.clone();
    if let OracleCaseKind::Gangs(gangs) = &mut case.kind {
        change(gangs);
    }
    case
}

fn pod_groups(case: &OracleCase) -> impl Iterator<Item = &Value> {
    case.objects.iter().filter(|object| object["kind"] == "PodGroup")
}

/// The members of a PodGroup that are not being deleted.
fn members<'a>(case: &'a OracleCase, group: &'a Value) -> impl Iterator<Item = &'a Value> {
    let is_member = |object: &&Value| {
        object["metadata"]["labels"][LABEL] == group["metadata"]["name"]
            && object["metadata"]["namespace"] == group["metadata"]["namespace"]
            && !is_terminating_member(object)
    };
    case.objects.iter().filter(is_member)
}

fn min_member(group: &Value) -> usize {
    group["spec"]["minMember"].as_u64().and_then(|it| usize::try_from(it).ok()).unwrap_or_default()
}

/// The arguments of the plugin.
fn args_mut(config: &mut Value) -> &mut Value {
    &mut config["profiles"][0]["pluginConfig"][0]["args"]
}

fn arg(case: &OracleCase, name: &str) -> Option<i64> {
    case.config.as_ref()?["profiles"][0]["pluginConfig"][0]["args"][name].as_i64()
}

fn is_terminating_member(object: &Value) -> bool {
    object["kind"] == "Pod"
        && object["metadata"]["labels"][LABEL].is_string()
        && !object["metadata"]["deletionTimestamp"].is_null()
}

fn has_no_timeout(group: &Value) -> bool {
    group["kind"] == "PodGroup"
        && group["spec"]["scheduleTimeoutSeconds"].as_i64().is_some_and(|seconds| seconds <= 0)
}

fn may_be_rejected_by_pre_filter(case: &OracleCase) -> bool {
    let is_gated = |pod: &Value| !pod["spec"]["schedulingGates"].is_null();
    let may_reject = |group: &Value| {
        !group["spec"]["minResources"].is_null()
            || members(case, group).count() < min_member(group)
            || members(case, group).any(is_gated)
    };
    let backs_off = arg(case, "podGroupBackoffSeconds").is_some();
    gangs(case).is_some() && (backs_off || pod_groups(case).any(may_reject))
}

/// The PodGroup of a pod with this full name.
fn group_of<'a>(case: &'a OracleCase, pod: &str) -> Option<&'a Value> {
    let pod = case.objects.iter().find(|object| super::is_pod(object, pod))?;
    pod_groups(case).find(|group| {
        group["metadata"]["name"] == pod["metadata"]["labels"][LABEL]
            && group["metadata"]["namespace"] == pod["metadata"]["namespace"]
    })
}

fn group_name(group: &Value) -> String {
    let text = |field: &str| group["metadata"][field].as_str().unwrap_or_default();
    format!("{}/{}", text("namespace"), text("name"))
}

/// The status of PostFilter for a pod of a group that has not enough members with a node.
fn rejected(group: &Value, pod: &str) -> Value {
    let (group, name) = (group_name(group), pod.rsplit('/').next().unwrap_or_default());
    let reason = format!(
        "PodGroup {group} gets rejected due to Pod {name} is unschedulable even after PostFilter"
    );
    json!({"code": "Unschedulable", "reasons": [reason]})
}

/// Each step that schedules a pod, with its answer.
fn schedules<'a>(
    case: &'a OracleCase,
    answer: &'a mut Value,
) -> impl Iterator<Item = (&'a str, &'a mut Value)> {
    let steps = gangs(case).map_or(&[][..], |gangs| &gangs.steps);
    let answers = answer["steps"].as_array_mut().into_iter().flatten();
    steps.iter().zip(answers).filter_map(|(step, answer)| match step {
        GangStep::Schedule { pod, .. } => Some((pod.as_str(), answer)),
        _ => None,
    })
}

fn add_post_filter(case: &OracleCase, answer: &mut Value) {
    for (pod, answer) in schedules(case, answer) {
        let is_rejected = answer["preFilter"]["code"] == "UnschedulableAndUnresolvable";
        let Some(group) = group_of(case, pod).filter(|_| is_rejected) else { continue };
        let has_node = |pod: &&Value| pod["spec"]["nodeName"].is_string();
        let is_enough = members(case, group).filter(has_node).count() >= min_member(group);
        answer["postFilter"] = match is_enough {
            true => json!({"code": "Unschedulable"}),
            false => rejected(group, pod),
        };
    }
}

/// A pod fits on no node, and its group has no other member to try.
fn tries_others_in_vain(case: &OracleCase) -> bool {
    let Some(gangs) = gangs(case) else { return false };
    let has_no_spare = |step: &GangStep| {
        let GangStep::Schedule { pod, node, .. } = step else { return false };
        let group = group_of(case, pod).filter(|_| node.is_empty());
        group.is_some_and(|group| members(case, group).count() <= min_member(group))
    };
    arg(case, "podGroupRejectPercentage").unwrap_or(10) > 0 && gangs.steps.iter().any(has_no_spare)
}

fn compares_after_failed_bind(gangs: &GangCase) -> bool {
    let failed = gangs.steps.iter().position(|step| matches!(step, GangStep::BindFails { .. }));
    failed.is_some_and(|at| gangs.steps[at..].contains(&GangStep::Order))
}

fn has_equal_creation_times(case: &OracleCase) -> bool {
    let mut times: Vec<&str> =
        pod_groups(case).filter_map(|it| it["metadata"]["creationTimestamp"].as_str()).collect();
    times.sort_unstable();
    times.windows(2).any(|pair| pair[0] == pair[1])
}

/// The same order by times: the groups by name, each a millisecond later.
fn with_different_creation_times(case: &OracleCase) -> OracleCase {
    let mut names: Vec<String> = pod_groups(case).map(group_name).collect();
    names.sort_unstable();
    let mut case = case.clone();
    for group in case.objects.iter_mut().filter(|object| object["kind"] == "PodGroup") {
        let nth = names.iter().position(|name| *name == group_name(group)).unwrap_or_default();
        if let Some(time) = group["metadata"]["creationTimestamp"].as_str() {
            let later = format!("{}.{nth:03}Z", time.trim_end_matches('Z'));
            group["metadata"]["creationTimestamp"] = later.into();
        }
    }
    case
}

/// From Go's internal form, `map[cpu:{{500 -3} {<nil>}  DecimalSI}]`, which has amounts and powers of ten.
fn rewrite_resource_gaps(answer: &mut Value) {
    let statuses = answer["steps"].as_array_mut().into_iter().flatten();
    for status in statuses.filter_map(|step| step.get_mut("preFilter")) {
        let Some(text) = status["reasons"][0].as_str() else { continue };
        let Some(amounts) = text.strip_prefix("resource gap: map[") else { continue };
        let mut gap = Vec::new();
        for part in amounts.split("SI") {
            let Some((name, rest)) = part.split_once(":{{") else { continue };
            let Some((amount, _)) = rest.split_once('}') else { continue };
            let name = name.trim_start_matches(['}', ']', ' ']);
            let Some((value, scale)) = amount.split_once(' ') else { continue };
            let (Ok(value), Ok(scale)) = (value.parse::<i64>(), scale.parse::<i32>()) else {
                continue;
            };
            let (unit, digits) = if name == "cpu" { ("m", 3) } else { ("", 0) };
            let power = |digits: i32| 10_i64.pow(digits.max(0).unsigned_abs());
            let amount = value * power(scale + digits) / power(-scale - digits);
            gap.push(format!("{name}: {amount}{unit}"));
        }
        status["reasons"][0] = format!("resource gap: {}", gap.join(", ")).into();
    }
}

/// The attempt right after a failed one of its group is rejected.
fn reject_in_backoff(case: &OracleCase, answer: &mut Value) {
    let Some(gangs) = gangs(case) else { return };
    let (mut waiting, mut failed) = (Vec::new(), Vec::new());
    let answers = answer["steps"].as_array_mut().into_iter().flatten();
    for (step, answer) in gangs.steps.iter().zip(answers) {
        let (GangStep::Schedule { pod, .. } | GangStep::Timeout { pod }) = step else { continue };
        let Some(group) = group_of(case, pod) else { continue };
        let name = group_name(group);
        match step {
            GangStep::Timeout { .. } if waiting.contains(&pod) => failed.push(name),
            GangStep::Schedule { immediately: true, .. } if failed.contains(&name) => {
                let reason = format!("podGroup {name} failed recently");
                *answer = json!({"preFilter": {"code": "UnschedulableAndUnresolvable", "reasons": [reason]},
                    "postFilter": rejected(group, pod)});
            }
            GangStep::Schedule { .. } if answer["permit"]["code"] == "Wait" => {
                failed.retain(|it| *it != name);
                waiting.push(pod);
            }
            GangStep::Schedule { .. } if answer["permit"]["code"] == "Success" => {
                failed.retain(|it| *it != name);
            }
            GangStep::Schedule { .. }
                if answer["preFilter"]["code"] == "Success"
                    && answer["postFilter"]["reasons"].is_array() =>
            {
                failed.push(name);
            }
            _ => {}
        }
        let leaves = |name: &str| {
            let of_answer = |part: &str| {
                answer[part].as_array().is_some_and(|it| it.iter().any(|it| it == name))
            };
            of_answer("allowed") || of_answer("rejected")
        };
        waiting.retain(|pod| !leaves(pod));
        if let GangStep::Timeout { pod } = step {
            waiting.retain(|it| it != &pod);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_gaps_are_written_with_plain_amounts() {
        #[track_caller]
        fn check(theirs: &str, want: &str) {
            let mut answer = json!({"steps": [{"preFilter": {"reasons": [theirs]}}]});
            rewrite_resource_gaps(&mut answer);
            assert_eq!(answer["steps"][0]["preFilter"]["reasons"][0], want);
        }
        check("resource gap: map[cpu:{{500 -3} {<nil>}  DecimalSI}]", "resource gap: cpu: 500m");
        check(
            "resource gap: map[cpu:{{1 0} {<nil>}  DecimalSI} memory:{{8589934592 0} {<nil>}  BinarySI} pods:{{7 0} {<nil>}  DecimalSI}]",
            "resource gap: cpu: 1000m, memory: 8589934592, pods: 7",
        );
        check("podGroup ns/g failed recently", "podGroup ns/g failed recently");
    }

    #[test]
    fn groups_of_the_same_second_get_different_times_in_the_order_of_their_names() {
        let group = |name: &str| json!({"kind": "PodGroup", "metadata": {"name": name, "namespace": "ns", "creationTimestamp": "2024-05-01T10:00:00Z"}});
        let case = OracleCase {
            id: 0,
            pod: String::new(),
            config: None,
            feature_gates: Default::default(),
            objects: vec![group("b"), group("a")],
            kind: OracleCaseKind::Gangs(Box::default()),
        };
        assert!(has_equal_creation_times(&case));
        let reference = with_different_creation_times(&case);
        let times = [0, 1].map(|at| reference.objects[at]["metadata"]["creationTimestamp"].clone());
        assert_eq!(times, ["2024-05-01T10:00:00.001Z", "2024-05-01T10:00:00.000Z"]);
        assert!(!has_equal_creation_times(&reference));
    }

    #[test]
    fn an_attempt_right_after_a_failed_one_is_rejected() {
        let pod = |name: &str| json!({"kind": "Pod", "metadata": {"name": name, "namespace": "ns", "labels": {LABEL: "g"}}});
        let group = json!({"kind": "PodGroup", "metadata": {"name": "g", "namespace": "ns"}, "spec": {"minMember": 2}});
        let schedule = |pod: &str, node: &str, immediately| GangStep::Schedule {
            pod: pod.to_owned(),
            node: node.to_owned(),
            immediately,
        };
        let steps = vec![
            schedule("ns/a", "n", false),
            schedule("ns/b", "", false),
            schedule("ns/b", "n", true),
        ];
        let case = OracleCase {
            id: 0,
            pod: String::new(),
            config: None,
            feature_gates: Default::default(),
            objects: vec![group.clone(), pod("a"), pod("b")],
            kind: OracleCaseKind::Gangs(Box::new(GangCase { steps, ..GangCase::default() })),
        };
        let passed = json!({"code": "Success"});
        let waits = json!({"preFilter": passed, "permit": {"code": "Wait"}, "waitSeconds": 60});
        let failed = json!({"preFilter": passed, "postFilter": rejected(&group, "ns/b"), "rejected": ["ns/a"]});
        let mut answer = json!({"steps": [waits, failed, waits]});
        reject_in_backoff(&case, &mut answer);
        assert_eq!((&answer["steps"][0], &answer["steps"][1]), (&waits, &failed));
        let last = &answer["steps"][2];
        assert_eq!(last["preFilter"]["reasons"][0], "podGroup ns/g failed recently");
        assert_eq!(last.get("permit"), None);
    }
}
