//! The arguments of PodTopologySpread: the constraints of pods without any of their own.

use loadmaster_api::meta::nullable;
use loadmaster_api::{Str, TopologySpreadConstraint};
use loadmaster_framework::{FeatureGates, FieldError, plugin_args};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{HARD, HOSTNAME, SOFT, ZONE};

const SYSTEM: &str = "System";
const LIST: &str = "List";

/// Upstream's `PodTopologySpreadArgs`.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Args {
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    default_constraints: Vec<DefaultConstraint>,
    #[serde(deserialize_with = "nullable")]
    defaulting_type: Str,
}

/// A constraint without a selector: the selector is deduced for each pod.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct DefaultConstraint {
    #[serde(deserialize_with = "nullable")]
    max_skew: i32,
    #[serde(deserialize_with = "nullable")]
    topology_key: Str,
    #[serde(deserialize_with = "nullable")]
    when_unsatisfiable: Str,
    /// Decoded only to be rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    label_selector: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_domains: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_affinity_policy: Option<Str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_taints_policy: Option<Str>,
    /// Accepted as by upstream, and without effect: there is no selector to merge them into.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    match_label_keys: Vec<Str>,
}

/// Decodes the arguments, fills in defaults and validates them.
pub(super) fn complete(given: &Value, _gates: &FeatureGates) -> Result<Value, Vec<FieldError>> {
    let mut args: Args = plugin_args::decode_given_args(given)?;
    if args.defaulting_type.is_empty() {
        args.defaulting_type = Str::new(SYSTEM);
    }
    let errors = validate(&args);
    if !errors.is_empty() {
        return Err(errors);
    }
    let unwritable = |error: serde_json::Error| {
        vec![FieldError { path: String::new(), text: error.to_string() }]
    };
    serde_json::to_value(&args).map_err(unwritable)
}

pub(super) fn read(args: &Value) -> Result<Args, FieldError> {
    plugin_args::decode_json_value(args)
}

impl Args {
    /// Whether the defaulting type is System: upstream's constraints instead of listed ones.
    pub(super) fn is_system(&self) -> bool {
        self.defaulting_type == SYSTEM
    }

    /// The constraints of pods without any.
    pub(super) fn constraints(&self) -> Vec<TopologySpreadConstraint> {
        if self.is_system() {
            return [(HOSTNAME, 3), (ZONE, 5)].map(system_constraint).into();
        }
        self.default_constraints.iter().cloned().map(TopologySpreadConstraint::from).collect()
    }
}

/// Upstream's `systemDefaultConstraints`.
fn system_constraint((key, max_skew): (&str, i32)) -> TopologySpreadConstraint {
    TopologySpreadConstraint {
        max_skew,
        topology_key: Str::new(key),
        when_unsatisfiable: Str::new(SOFT),
        ..TopologySpreadConstraint::default()
    }
}

impl From<DefaultConstraint> for TopologySpreadConstraint {
    fn from(constraint: DefaultConstraint) -> Self {
        TopologySpreadConstraint {
            max_skew: constraint.max_skew,
            topology_key: constraint.topology_key,
            when_unsatisfiable: constraint.when_unsatisfiable,
            label_selector: None,
            min_domains: constraint.min_domains,
            node_affinity_policy: constraint.node_affinity_policy,
            node_taints_policy: constraint.node_taints_policy,
            match_label_keys: Vec::new(),
        }
    }
}

fn validate(args: &Args) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let constraints = &args.default_constraints;
    match args.defaulting_type.as_str() {
        LIST => {}
        SYSTEM if constraints.is_empty() => {}
        SYSTEM => errors.push(FieldError::invalid(
            "defaultingType",
            "\"System\"",
            "when .defaultConstraints are not empty",
        )),
        other => errors.push(FieldError::unsupported("defaultingType", other, &[SYSTEM, LIST])),
    }
    for (at, constraint) in constraints.iter().enumerate() {
        let path = format!("defaultConstraints[{at}]");
        errors.extend(constraint.validate().into_iter().map(|error| error.with_path_prefix(&path)));
        let same = |other: &DefaultConstraint| {
            other.topology_key == constraint.topology_key
                && other.when_unsatisfiable == constraint.when_unsatisfiable
        };
        if constraints[..at].iter().any(same) {
            let pair =
                format!("{{{}, {}}}", constraint.topology_key, constraint.when_unsatisfiable);
            errors.push(FieldError::duplicate(path, pair));
        }
    }
    errors
}

impl DefaultConstraint {
    fn validate(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if self.max_skew <= 0 {
            errors.push(FieldError::invalid(
                "maxSkew",
                self.max_skew,
                "not in valid range (0, inf)",
            ));
        }
        if self.topology_key.is_empty() {
            errors.push(FieldError::required("topologyKey", "can not be empty"));
        } else {
            let key = format!("{:?}", self.topology_key);
            let complaints = loadmaster_api::selector::label_key_errors(&self.topology_key);
            errors.extend(
                complaints.iter().map(|text| FieldError::invalid("topologyKey", &key, text)),
            );
        }
        match self.when_unsatisfiable.as_str() {
            HARD | SOFT => {}
            "" => errors.push(FieldError::required("whenUnsatisfiable", "can not be empty")),
            other => {
                errors.push(FieldError::unsupported("whenUnsatisfiable", other, &[HARD, SOFT]));
            }
        }
        if self.label_selector.is_some() {
            errors.push(FieldError::forbidden(
                "labelSelector",
                "constraint must not define a selector, as they deduced for each pod",
            ));
        }
        errors
    }
}
