//! Which taints a pod's tolerations tolerate, and tolerations in the signature of a pod: shared by all plugins that read taints.

use loadmaster_api::{Taint, Toleration};
use loadmaster_framework::extension_points::SignFragment;
use loadmaster_framework::{FeatureGates, PodInfo};
use loadmaster_stdx::CollectByInsertion as _;
use serde_json::{Map, Value};

pub(crate) const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";
const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";

/// Decides whether a toleration tolerates a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TolerationMatcher {
    /// Gate TaintTolerationComparisonOperators: `Lt` and `Gt` compare numbers.
    comparison_operators: bool,
}

impl TolerationMatcher {
    pub(crate) fn new(gates: &FeatureGates) -> TolerationMatcher {
        TolerationMatcher { comparison_operators: gates.taint_toleration_comparison_operators }
    }

    /// Whether every NoSchedule and NoExecute taint is tolerated (upstream's `FindMatchingUntoleratedTaint` finds none).
    pub(crate) fn tolerates_all(self, tolerations: &[Toleration], taints: &[Taint]) -> bool {
        self.untolerated(tolerations, taints).next().is_none()
    }

    /// The NoSchedule and NoExecute taints that are not tolerated.
    pub(crate) fn untolerated<'a>(
        self,
        tolerations: &'a [Toleration],
        taints: &'a [Taint],
    ) -> impl Iterator<Item = &'a Taint> {
        let hard = taints.iter().filter(|taint| is_do_not_schedule(taint));
        hard.filter(move |taint| !self.any_tolerates(tolerations, taint))
    }

    /// Whether one of the tolerations tolerates the taint.
    pub(crate) fn any_tolerates(self, tolerations: &[Toleration], taint: &Taint) -> bool {
        tolerations.iter().any(|toleration| self.tolerates(toleration, taint))
    }

    /// The number of PreferNoSchedule taints not tolerated (upstream's `countIntolerableTaintsPreferNoSchedule`).
    pub(crate) fn n_intolerable(self, tolerations: &[Toleration], taints: &[Taint]) -> i64 {
        let soft = taints.iter().filter(|taint| taint.effect == PREFER_NO_SCHEDULE);
        soft.filter(|taint| !self.any_tolerates(tolerations, taint)).count() as i64
    }

    fn tolerates(self, toleration: &Toleration, taint: &Taint) -> bool {
        let effect = toleration.effect.is_empty() || toleration.effect == taint.effect;
        // An empty key matches all keys, whatever the operator: only the API server requires `Exists` with it.
        let key = toleration.key.is_empty() || toleration.key == taint.key;
        effect && key && self.tolerates_value(toleration, &taint.value)
    }

    fn tolerates_value(self, toleration: &Toleration, value: &str) -> bool {
        match toleration.operator.as_str() {
            "" | "Equal" => toleration.value == *value,
            "Exists" => true,
            "Lt" => self.compares(toleration, value, |taint, bound| taint < bound),
            "Gt" => self.compares(toleration, value, |taint, bound| taint > bound),
            _ => false,
        }
    }

    fn compares(self, toleration: &Toleration, value: &str, rule: fn(i64, i64) -> bool) -> bool {
        let numbers = canonical_integer(value).zip(canonical_integer(&toleration.value));
        self.comparison_operators && numbers.is_some_and(|(taint, bound)| rule(taint, bound))
    }
}

fn is_do_not_schedule(taint: &Taint) -> bool {
    taint.effect == NO_SCHEDULE || taint.effect == NO_EXECUTE
}

/// An integer in canonical form: no plus sign, no leading zeros, no minus zero.
fn canonical_integer(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let canonical = text == "0" || digits.starts_with(|first: char| ('1'..='9').contains(&first));
    if canonical { text.parse().ok() } else { None }
}

/// The pod's tolerations, sorted by key and value, as a fragment of its signature.
pub(crate) fn signed_tolerations(pod: &PodInfo) -> SignFragment {
    let mut sorted: Vec<&Toleration> = pod.template.spec.tolerations.iter().collect();
    sorted.sort_by(|a, b| (&a.key, &a.value).cmp(&(&b.key, &b.value)));
    let value = sorted.into_iter().map(toleration_json).collect();
    SignFragment { key: "v1.Pod.Spec.Tolerations", value }
}

/// The toleration as the API encodes it in JSON: without empty fields.
fn toleration_json(toleration: &Toleration) -> Value {
    let Toleration { key, operator, value, effect, toleration_seconds } = toleration;
    let fields = [("key", key), ("operator", operator), ("value", value), ("effect", effect)];
    let given = fields.into_iter().filter(|(_, text)| !text.is_empty());
    let mut object: Map<_, _> =
        given.map(|(name, text)| (name.to_owned(), text.as_str().into())).collect_by_insertion();
    if let Some(seconds) = toleration_seconds {
        object.insert("tolerationSeconds".to_owned(), (*seconds).into());
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `key=value:effect`, as kubectl writes taints.
    fn taint_json(text: &str) -> Value {
        let (pair, effect) = text.split_once(':').unwrap();
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        json!({"key": key, "value": value, "effect": effect})
    }

    /// One taint, one toleration, whether it tolerates, with the gate off and on.
    #[track_caller]
    fn check_tolerates(taint_text: &str, toleration: Value, want: [bool; 2]) {
        let taint: Taint = serde_json::from_value(taint_json(taint_text)).unwrap();
        let toleration: Toleration = serde_json::from_value(toleration).unwrap();
        let tolerates = |comparison_operators| {
            TolerationMatcher { comparison_operators }.tolerates(&toleration, &taint)
        };
        assert_eq!([tolerates(false), tolerates(true)], want, "{taint_text} {toleration:?}");
    }

    #[test]
    fn tolerates() {
        let yes = [true, true];
        let no = [false, false];
        let gated = [false, true];
        check_tolerates("k=v:NoSchedule", json!({"key": "k", "value": "v"}), yes);
        check_tolerates(
            "k=v:NoSchedule",
            json!({"key": "k", "operator": "Equal", "value": "v"}),
            yes,
        );
        check_tolerates(
            "k=v:NoSchedule",
            json!({"key": "k", "operator": "Equal", "value": "w"}),
            no,
        );
        check_tolerates("k=v:NoSchedule", json!({"key": "k"}), no);
        check_tolerates("k:NoSchedule", json!({"key": "k"}), yes);
        check_tolerates("k=v:NoSchedule", json!({"key": "l", "value": "v"}), no);
        check_tolerates("k=v:NoSchedule", json!({"key": "k", "operator": "Exists"}), yes);
        // The API server rejects a value here; it has no effect.
        let odd = json!({"key": "k", "operator": "Exists", "value": "w"});
        check_tolerates("k=v:NoSchedule", odd, yes);
        check_tolerates("k=v:NoSchedule", json!({"operator": "Exists"}), yes);
        check_tolerates("k=v:NoSchedule", json!({"value": "v"}), yes);
        check_tolerates("k=v:NoSchedule", json!({}), no);
        let only = |effect: &str| json!({"operator": "Exists", "effect": effect});
        check_tolerates("k=v:NoSchedule", only("NoSchedule"), yes);
        check_tolerates("k=v:NoSchedule", only("NoExecute"), no);
        check_tolerates("k=v:NoSchedule", json!({"key": "k", "operator": "In", "value": "v"}), no);

        let less = |value: &str| json!({"key": "k", "operator": "Lt", "value": value});
        let more = |value: &str| json!({"key": "k", "operator": "Gt", "value": value});
        check_tolerates("k=5:NoSchedule", less("6"), gated);
        check_tolerates("k=5:NoSchedule", less("5"), no);
        check_tolerates("k=5:NoSchedule", more("-4"), gated);
        check_tolerates("k=5:NoSchedule", more("5"), no);
        check_tolerates("k=0:NoSchedule", less("1"), gated);
        for odd in ["", "x", "05", "+5", "-0", "5.0", "-", "9223372036854775808"] {
            check_tolerates("k=6:NoSchedule", less(odd), no);
            check_tolerates("k=6:NoSchedule", more(odd), no);
            check_tolerates(&format!("k={odd}:NoSchedule"), less("7"), no);
        }
    }
}
