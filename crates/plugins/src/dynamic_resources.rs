//! DynamicResources: pods with ResourceClaims are rejected with a reason that says so, because devices are not supported yet.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreFilter, Score, Sign |
//! | woken by | no event: none can change the result |
//! | upstream | `plugins/dynamicresources`, 1.36 |
//! | deviations | pods with ResourceClaims stay pending; arguments other than the defaults are rejected |
//! | cost | O(claims of the pod), once per scheduling cycle, no allocation |
//!
//! It has upstream's name, so that configurations that name it are accepted. A pod whose claim is ignored could be placed on a node
//! without its device.

use std::sync::Arc;

use loadmaster_api::SharedPodSpec;
use loadmaster_framework::extension_points::{SignFragment, UnsignablePod};
use loadmaster_framework::plugin_args::decode_given_args;
use loadmaster_framework::{
    Cx, EvaluatorCx, ExtensionPoints, Failure, FeatureGates, FieldError, Incremental, NodeInfo,
    PluginDef, PluginError, PodInfo, PodTemplate, PreFilter, PreFilterResult, PrepareCx,
    PrepareResult, Rejection, Score, SerialCx, Sign,
};
use loadmaster_stdx::duration::parse_duration_nanos;
use serde::Deserialize;
use serde_json::{Value, json};

pub const DEF: PluginDef = PluginDef {
    name: "DynamicResources",
    build: build_dynamic_resources,
    args: Some(complete_dynamic_resources_args),
};

const REASON_DEVICES: &str = "pod has ResourceClaims, which this version does not support yet";

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct DynamicResourcesArgs {
    filter_timeout: Option<String>,
    binding_timeout: Option<String>,
}

fn complete_dynamic_resources_args(
    given: &Value,
    _gates: &FeatureGates,
) -> Result<Value, Vec<FieldError>> {
    let args: DynamicResourcesArgs = decode_given_args(given)?;
    let filter = Timeout {
        field: "filterTimeout",
        default: "10s",
        default_seconds: 10,
        min_seconds: 0,
        expected: "must be zero or positive",
    };
    let binding = Timeout {
        field: "bindingTimeout",
        default: "10m0s",
        default_seconds: 600,
        min_seconds: 1,
        expected: "must be at least 1 second",
    };
    let given = [(&filter, args.filter_timeout), (&binding, args.binding_timeout)];
    let errors = given.into_iter().filter_map(|(rule, given)| rule.check(&given?).err());
    let errors: Vec<FieldError> = errors.collect();
    if !errors.is_empty() {
        return Err(errors);
    }
    Ok(json!({filter.field: filter.default, binding.field: binding.default}))
}

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// A timeout that must be valid by upstream's rules and, as long as it has no effect, equal to the default.
struct Timeout {
    field: &'static str,
    /// As upstream formats it.
    default: &'static str,
    default_seconds: i64,
    min_seconds: i64,
    expected: &'static str,
}

impl Timeout {
    fn check(&self, given: &str) -> Result<(), FieldError> {
        let nanos = parse_duration_nanos(given)
            .map_err(|error| FieldError { path: self.field.to_owned(), text: error.to_string() })?;
        let invalid = |expected: &str| FieldError::invalid(self.field, json!(given), expected);
        if nanos < self.min_seconds * NANOS_PER_SECOND {
            return Err(invalid(self.expected));
        }
        if nanos != self.default_seconds * NANOS_PER_SECOND {
            let default = self.default;
            let expected = format!(
                "devices are not allocated by this version yet, only the default {default} is accepted"
            );
            return Err(invalid(&expected));
        }
        Ok(())
    }
}

struct DynamicResources;

fn build_dynamic_resources(points: &mut ExtensionPoints, _args: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(DynamicResources);
    points.pre_filter = Some(plugin.clone());
    points.score = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.incremental = Some(plugin);
    points.register_no_events();
    Ok(())
}

impl PreFilter for DynamicResources {
    fn pre_filter(&self, _cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        reject_if(has_resource_claims(&pod.template), REASON_DEVICES)
    }
}

impl Sign for DynamicResources {
    fn sign(&self, pod: &PodInfo) -> Result<Vec<SignFragment>, UnsignablePod> {
        if has_resource_claims(&pod.template) { Err(UnsignablePod) } else { Ok(Vec::new()) }
    }
}

/// Upstream scores a pod without claims too, with 0 on every node, and reports these scores.
impl Score for DynamicResources {
    fn score(&self, _: Cx<'_>, _: &PodInfo, _: NodeInfo<'_>) -> Result<i64, Failure> {
        Ok(0)
    }
}

impl Incremental for DynamicResources {
    /// Whether the pod has ResourceClaims.
    type Key = bool;

    fn key(&self, _cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<bool> {
        Some(has_resource_claims(&pod.template))
    }

    fn key_is_of_spec(&self, _: &SharedPodSpec) -> bool {
        true
    }

    fn key_reads_resources(&self) -> bool {
        false
    }

    fn prepare(&self, _cx: &mut PrepareCx<'_>, has_claims: &bool) -> PrepareResult {
        prepare_or_reject(*has_claims, REASON_DEVICES)
    }
}

fn reject_if(claims: bool, reason: &'static str) -> Result<PreFilterResult, Rejection> {
    if claims { Err(Rejection::unresolvable(reason)) } else { Ok(PreFilterResult::Skip) }
}

fn prepare_or_reject(claims: bool, reason: &'static str) -> PrepareResult {
    if claims {
        PrepareResult::Rejected(Rejection::unresolvable(reason))
    } else {
        PrepareResult::Skip
    }
}

fn has_resource_claims(pod: &PodTemplate) -> bool {
    !pod.spec.resource_claims.is_empty()
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use loadmaster_framework::testkit::PluginTestBench;

    use super::*;

    #[track_caller]
    fn check(def: &PluginDef, spec: Value, want: &Expect) {
        let mut bench = PluginTestBench::new(def, json!({})).unwrap();
        bench.node(json!({"metadata": {"name": "a"}})).unwrap();
        let pod = json!({"metadata": {"name": "web"}, "spec": spec});
        let pre_filter = bench.pre_filter(pod.clone()).unwrap();
        bench.filter(pod.clone()).unwrap();
        let signed = if bench.sign(pod).unwrap().is_null() { "refuses to sign" } else { "signs" };
        want.assert_eq(&format!("{pre_filter}; {signed}"));
        assert_eq!(bench.extension_points().events.as_ref().map(Vec::len), Some(0));
    }

    #[test]
    fn pods_with_resource_claims_are_rejected() {
        check(&DEF, json!({}), &expect!["Skip; signs"]);
        check(
            &DEF,
            json!({"resourceClaims": [{"name": "gpu"}]}),
            &expect![
                "UnschedulableAndUnresolvable pod has ResourceClaims, which this version does not support yet; refuses to sign"
            ],
        );
    }

    #[track_caller]
    fn check_args(def: &PluginDef, given: Value, want: &Expect) {
        let result = match def.args.unwrap()(&given, &FeatureGates::default()) {
            Ok(args) => args.to_string(),
            Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
        };
        want.assert_eq(&result);
    }

    #[test]
    fn dynamic_resources_args() {
        check_args(
            &DEF,
            json!({}),
            &expect![[r#"{"bindingTimeout":"10m0s","filterTimeout":"10s"}"#]],
        );
        check_args(
            &DEF,
            json!({"filterTimeout": "10000ms", "bindingTimeout": "0.1h4m"}),
            &expect![[r#"{"bindingTimeout":"10m0s","filterTimeout":"10s"}"#]],
        );
        check_args(
            &DEF,
            json!({"filterTimeout": "-1s", "bindingTimeout": "1ms"}),
            &expect![[r#"
                filterTimeout: Invalid value: "-1s": must be zero or positive
                bindingTimeout: Invalid value: "1ms": must be at least 1 second"#]],
        );
        check_args(
            &DEF,
            json!({"filterTimeout": "0", "bindingTimeout": "1h"}),
            &expect![[r#"
                filterTimeout: Invalid value: "0": devices are not allocated by this version yet, only the default 10s is accepted
                bindingTimeout: Invalid value: "1h": devices are not allocated by this version yet, only the default 10m0s is accepted"#]],
        );
        check_args(
            &DEF,
            json!({"filterTimeout": "10x", "bindingTimeout": ""}),
            &expect![[r#"
                filterTimeout: time: unknown unit "x" in duration "10x"
                bindingTimeout: time: invalid duration """#]],
        );
        check_args(
            &DEF,
            json!({"filterTimeout": 10}),
            &expect!["filterTimeout: invalid type: integer `10`, expected a string"],
        );
    }
}
