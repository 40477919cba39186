//! Pod failure policy and success policy of Jobs.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::{
    JobSpec, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use super::indexes;

/// The action for a failed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FailureAction {
    /// It counts against the limit of failures.
    Count,
    /// It does not count.
    Ignore,
    /// Its index has failed for good.
    FailIndex,
    /// The Job has failed, for this reason.
    FailJob(String),
}

/// The action of the first rule that matches a failed pod; without a match it counts.
pub(super) fn match_pod_failure_policy(spec: &JobSpec, pod: &Pod) -> FailureAction {
    let rules = spec.pod_failure_policy.as_ref().map(|policy| policy.rules.as_slice());
    for (index, rule) in rules.unwrap_or_default().iter().enumerate() {
        let Some(why) = fits(rule, pod) else { continue };
        return match rule.action.as_str() {
            "Ignore" => FailureAction::Ignore,
            "FailIndex" => FailureAction::FailIndex,
            "FailJob" => {
                FailureAction::FailJob(format!("{why} matching FailJob rule at index {index}"))
            }
            _ => FailureAction::Count,
        };
    }
    FailureAction::Count
}

/// Why a rule matches a pod.
fn fits(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let name = format!("{}/{}", text(&pod.metadata.namespace), text(&pod.metadata.name));
    if let Some(wanted) = &rule.on_exit_codes {
        let containers = status.container_statuses.iter().flatten();
        let mut all = containers.chain(status.init_container_statuses.iter().flatten());
        let (container, code) = all.find_map(|one| Some((&one.name, exit_code(one, wanted)?)))?;
        return Some(format!("Container {container} for pod {name} failed with exit code {code}"));
    }
    let patterns = rule.on_pod_conditions.as_deref().unwrap_or_default();
    let mut conditions = status.conditions.iter().flatten();
    let condition = conditions.find(|condition| {
        patterns.iter().any(|pattern| {
            let status = pattern.status.as_deref().unwrap_or("True");
            pattern.type_ == condition.type_ && status == condition.status
        })
    })?;
    Some(format!("Pod {name} has condition {}", condition.type_))
}

fn exit_code(
    container: &ContainerStatus,
    wanted: &PodFailurePolicyOnExitCodesRequirement,
) -> Option<i32> {
    let code = container.state.as_ref()?.terminated.as_ref()?.exit_code;
    let is_named = wanted.container_name.as_ref().is_none_or(|name| *name == container.name);
    let is_listed = wanted.values.contains(&code);
    let fits = match wanted.operator.as_str() {
        "In" => is_listed,
        "NotIn" => !is_listed,
        _ => false,
    };
    (is_named && fits && code != 0).then_some(code)
}

/// Why the succeeded indexes satisfy the success policy, if they do.
pub(super) fn match_success_policy(spec: &JobSpec, succeeded: &BTreeSet<i32>) -> Option<String> {
    let rules = &spec.success_policy.as_ref()?.rules;
    let completions = spec.completions.unwrap_or(0);
    let is_met = |rule: &k8s_openapi::api::batch::v1::SuccessPolicyRule| {
        let enough = |count: usize| {
            rule.succeeded_count.is_some_and(|wanted| count >= usize::try_from(wanted).unwrap_or(0))
        };
        match &rule.succeeded_indexes {
            Some(text) => {
                let wanted = indexes::parse(text, completions);
                let count = wanted.intersection(succeeded).count();
                !wanted.is_empty() && (count == wanted.len() || enough(count))
            }
            None => enough(succeeded.len()),
        }
    };
    let index = rules.iter().position(is_met).filter(|_| !succeeded.is_empty())?;
    Some(format!("Matched rules at index {index}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    fn spec(more: Value) -> JobSpec {
        let mut spec = json!({"template": {}, "completions": 10});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        from_value(spec).unwrap()
    }

    #[test]
    fn failures() {
        let pod: Pod = from_value(json!({"metadata": {"namespace": "x", "name": "p"}, "status": {
            "conditions": [{"type": "DisruptionTarget", "status": "True"}],
            "containerStatuses": [
                {"name": "side", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"terminated": {"exitCode": 0}}},
                {"name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"terminated": {"exitCode": 42}}}]}}))
        .unwrap();
        let check = |rules: Value, want: FailureAction| {
            let spec = spec(json!({"podFailurePolicy": {"rules": rules}}));
            assert_eq!(match_pod_failure_policy(&spec, &pod), want);
        };
        let exit = |action: &str, more: Value| {
            let mut on = json!({"operator": "In", "values": [42]});
            on.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"action": action, "onExitCodes": on})
        };
        let condition = |action: &str, kind: &str| json!({"action": action, "onPodConditions": [{"type": kind, "status": "True"}]});
        check(json!([]), FailureAction::Count);
        check(json!([exit("Ignore", json!({}))]), FailureAction::Ignore);
        check(json!([exit("FailIndex", json!({}))]), FailureAction::FailIndex);
        check(json!([exit("Ignore", json!({"containerName": "side"}))]), FailureAction::Count);
        check(
            json!([exit("Ignore", json!({"operator": "NotIn", "values": [42]}))]),
            FailureAction::Count,
        );
        check(
            json!([exit("Ignore", json!({"operator": "NotIn", "values": [1]}))]),
            FailureAction::Ignore,
        );
        check(json!([condition("Ignore", "DisruptionTarget")]), FailureAction::Ignore);
        check(
            json!([condition("Ignore", "ConfigIssue"), exit("Count", json!({}))]),
            FailureAction::Count,
        );
        let text =
            "Container main for pod x/p failed with exit code 42 matching FailJob rule at index 1";
        let rules = json!([condition("Ignore", "ConfigIssue"), exit("FailJob", json!({}))]);
        check(rules, FailureAction::FailJob(text.to_owned()));
        let text = "Pod x/p has condition DisruptionTarget matching FailJob rule at index 0";
        check(
            json!([condition("FailJob", "DisruptionTarget")]),
            FailureAction::FailJob(text.to_owned()),
        );
    }

    #[test]
    fn successes() {
        let check = |rules: Value, succeeded: &[i32], want: Option<&str>| {
            let spec = spec(json!({"successPolicy": {"rules": rules}}));
            let found = match_success_policy(&spec, &succeeded.iter().copied().collect());
            assert_eq!(found.as_deref(), want);
        };
        let first = Some("Matched rules at index 0");
        check(json!([{"succeededIndexes": "0-2"}]), &[0, 1, 2], first);
        check(json!([{"succeededIndexes": "0-2"}]), &[0, 1, 3], None);
        check(json!([{"succeededIndexes": "0-2", "succeededCount": 1}]), &[2], first);
        check(json!([{"succeededCount": 2}]), &[2], None);
        check(json!([{"succeededCount": 2}]), &[2, 3], first);
        check(
            json!([{"succeededIndexes": "9"}, {"succeededCount": 1}]),
            &[1],
            Some("Matched rules at index 1"),
        );
        check(json!([{"succeededCount": 0}]), &[], None);
        assert_eq!(match_success_policy(&spec(json!({})), &BTreeSet::from([1])), None);
    }
}
