//! Compares the answers of kube-scheduler and Loadmaster.

use anyhow::Result;
use loadmaster_sim::cases::{OracleCase, OracleCaseKind};
use serde_json::{Map, Value, json};

use super::deviations;

/// A difference between the answers.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The kind of difference, such as `filter result of NodePorts`.
    pub kind: String,
    /// Both values.
    pub text: String,
}

/// The first difference between Loadmaster's answer and the one that it must give: kube-scheduler's, or that of a deviation. `ask` asks
/// kube-scheduler about another case.
pub fn compare(
    case: &OracleCase,
    theirs: &Value,
    ours: &Value,
    ask: impl FnOnce(&OracleCase) -> Result<Value>,
) -> Result<Option<Difference>> {
    if deviations::of(case).is_empty() {
        return Ok(difference(case, theirs, ours));
    }
    let expected = deviations::expected_answer(case, theirs, ask)?;
    Ok(difference(case, &expected, ours).map(|difference| Difference {
        kind: format!("deviation: {}", difference.kind),
        text: format!("{} (where kube-scheduler's answer is the expected one)", difference.text),
    }))
}

/// The first difference between the answers.
pub fn difference(case: &OracleCase, theirs: &Value, ours: &Value) -> Option<Difference> {
    let (theirs_failed, ours_failed) = (theirs.get("error"), ours.get("error"));
    // Answers about hints may have an error beside the hint.
    let failed = |answer: &Value| answer.get("error").is_some() && answer.get("hint").is_none();
    if failed(theirs) && failed(ours) {
        return None;
    }
    if failed(theirs) || failed(ours) {
        let who =
            if failed(theirs) { "only kube-scheduler fails" } else { "only Loadmaster fails" };
        let error = theirs_failed.or(ours_failed).and_then(Value::as_str).unwrap_or_default();
        return Some(Difference {
            kind: format!("{}: {who}: {}", case.kind.name(), without_names(error)),
            text: format!("kube-scheduler {theirs}, ours {ours}"),
        });
    }
    match &case.kind {
        OracleCaseKind::Explain => explanations(theirs, ours),
        OracleCaseKind::Hint(event) => {
            let kind = format!("hint of {} to {} {}", event.plugin, event.resource, event.action);
            let registered = |answer: &Value| answer["registered"].clone();
            differ(&kind, &theirs["hint"], &ours["hint"]).or_else(|| {
                let kind = format!("events registered by {}", event.plugin);
                differ(&kind, &registered(theirs), &registered(ours))
            })
        }
        OracleCaseKind::Preemption => preemptions(theirs, ours),
        OracleCaseKind::Sign => signatures(theirs, ours),
        OracleCaseKind::Config => configurations(theirs, ours),
        OracleCaseKind::Order(_) => differ("queue order", &theirs["less"], &ours["less"]),
        OracleCaseKind::Gangs(_) => gangs(theirs, ours),
    }
}

/// An error text without names and numbers, which differ from case to case.
pub fn without_names(text: &str) -> String {
    let text = text.split('"').step_by(2).collect::<Vec<_>>().join("_");
    let text: String =
        text.chars().map(|char| if char.is_ascii_digit() { '0' } else { char }).collect();
    let text = text.replace("00", "0").replace("00", "0").replace("00", "0");
    text.chars().take(90).collect()
}

fn differ(kind: &str, theirs: &Value, ours: &Value) -> Option<Difference> {
    let text = || format!("{kind}: kube-scheduler {theirs}, ours {ours}");
    (theirs != ours).then(|| Difference { kind: kind.to_owned(), text: text() })
}

fn explanations(theirs: &Value, ours: &Value) -> Option<Difference> {
    for part in ["preEnqueue", "preFilter"] {
        let (a, b) = (status(&theirs[part]), status(&ours[part]));
        if let Some(difference) = differ(&format!("{part} of {}", plugin_of(&a, &b)), &a, &b) {
            return Some(difference);
        }
    }
    let names = |answer: &Value| each(&answer["nodes"], |node| node["name"].clone());
    if let Some(difference) = differ("nodes", &names(theirs), &names(ours)) {
        return Some(difference);
    }
    let nodes = || {
        theirs["nodes"]
            .as_array()
            .into_iter()
            .flatten()
            .zip(ours["nodes"].as_array().into_iter().flatten())
    };
    for (a, b) in nodes() {
        let (a, b) = (status(&a["filter"]), status(&b["filter"]));
        if let Some(difference) = differ(&format!("filter result of {}", plugin_of(&a, &b)), &a, &b)
        {
            return Some(difference);
        }
    }
    for (a, b) in nodes() {
        if let Some(difference) = scores(a, b) {
            return Some(difference);
        }
    }
    differ("message", &theirs["message"], &ours["message"])
        .or_else(|| differ("best", &theirs["best"], &ours["best"]))
}

fn each(list: &Value, of: impl Fn(&Value) -> Value) -> Value {
    list.as_array().into_iter().flatten().map(of).collect()
}

fn scores(theirs: &Value, ours: &Value) -> Option<Difference> {
    let empty = json!({});
    let (a, b) = (theirs.get("scores").unwrap_or(&empty), ours.get("scores").unwrap_or(&empty));
    let plugins = [a, b].into_iter().filter_map(Value::as_object).flat_map(|scores| scores.keys());
    for plugin in plugins {
        if let Some(difference) = differ(&format!("score of {plugin}"), &a[plugin], &b[plugin]) {
            return Some(difference);
        }
    }
    differ("total", &theirs["total"], &ours["total"])
}

/// A status with sorted reasons: upstream lists scalar resources in random order.
fn status(status: &Value) -> Value {
    let mut status = status.clone();
    if let Some(reasons) = status.get_mut("reasons").and_then(Value::as_array_mut) {
        reasons.sort_by_key(Value::to_string);
    }
    status
}

fn plugin_of(theirs: &Value, ours: &Value) -> String {
    let name = |status: &Value| {
        let plugin = status["plugin"].as_str().or(status["code"].as_str()).unwrap_or("none");
        plugin.to_owned()
    };
    let (theirs, ours) = (name(theirs), name(ours));
    if theirs == ours { theirs } else { format!("{theirs} versus {ours}") }
}

/// Compares answers about preemption.
fn preemptions(theirs: &Value, ours: &Value) -> Option<Difference> {
    let nodes = |answer: &Value| -> Value {
        answer["candidates"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(node, _)| node.clone())
            .collect()
    };
    let each_node = || {
        let mut nodes = theirs["candidates"].as_object().into_iter().flatten();
        nodes.find_map(|(node, theirs)| {
            let ours = &ours["candidates"][node];
            differ("victims", &theirs["victims"], &ours["victims"]).or_else(|| {
                differ("PDB violations", &theirs["pdbViolations"], &ours["pdbViolations"])
            })
        })
    };
    let in_any_order = |answer: &Value| status(&answer["status"]);
    // Of several best candidates a random one is nominated; the oracle checks that it is among its best.
    let nominated = |answer: &Value| match answer["nominated"].as_str() {
        Some(node) if !node.is_empty() => {
            json!(answer["best"].as_array().is_some_and(|best| best.contains(&json!(node))))
        }
        _ => answer["nominated"].clone(),
    };
    differ("whether the pod fits", &theirs["fits"], &ours["fits"])
        .or_else(|| differ("error of the cycle", &theirs["cycleError"], &ours["cycleError"]))
        .or_else(|| differ("candidates", &nodes(theirs), &nodes(ours)))
        .or_else(each_node)
        .or_else(|| differ("best candidates", &theirs["best"], &ours["best"]))
        .or_else(|| differ("status of PostFilter", &in_any_order(theirs), &in_any_order(ours)))
        .or_else(|| differ("nomination", &nominated(theirs), &nominated(ours)))
}

/// Compares answers about the members of groups, step by step.
fn gangs(theirs: &Value, ours: &Value) -> Option<Difference> {
    let n_steps = |answer: &Value| json!(answer["steps"].as_array().map(Vec::len));
    let steps = theirs["steps"].as_array()?.iter().zip(ours["steps"].as_array()?).enumerate();
    let each_step = |(at, (theirs, ours)): (usize, (&Value, &Value))| {
        let parts =
            ["preFilter", "postFilter", "permit", "waitSeconds", "allowed", "rejected", "less"];
        let different = parts.into_iter().find(|part| theirs[part] != ours[part])?;
        let text = format!("step {at}, {different}: kube-scheduler {theirs}, ours {ours}");
        Some(Difference { kind: format!("{different} of Coscheduling"), text })
    };
    differ("number of steps", &n_steps(theirs), &n_steps(ours))
        .or_else(|| steps.into_iter().find_map(each_step))
}

fn signatures(theirs: &Value, ours: &Value) -> Option<Difference> {
    let parts = |signature: &Value| -> Option<Map<String, Value>> {
        let signature = match signature {
            Value::String(text) => serde_json::from_str(text).ok()?,
            other => other.clone(),
        };
        signature.as_object().cloned()
    };
    let a = parts(&theirs["signature"]).map(deviations::expected_signature);
    let b = parts(&ours["signature"]).map(deviations::compared_signature);
    match (a, b) {
        (Some(a), Some(b)) => {
            let keys = a.keys().chain(b.keys());
            keys.into_iter().find_map(|key| {
                let value =
                    |parts: &Map<String, Value>| parts.get(key).cloned().unwrap_or(json!("absent"));
                differ(&format!("signature's {key}"), &value(&a), &value(&b))
            })
        }
        (None, None) => None,
        (a, _) => {
            let who =
                if a.is_some() { "only kube-scheduler signs" } else { "only Loadmaster signs" };
            let kind = format!("signature: {who}, {}", theirs["refusedBy"]);
            Some(Difference { kind, text: format!("kube-scheduler {theirs}, ours {ours}") })
        }
    }
}

fn configurations(theirs: &Value, ours: &Value) -> Option<Difference> {
    let (a, b) = (deviations::expected_plugins(&theirs["plugins"]), &ours["plugins"]);
    differ("profiles", &each_key(&a), &each_key(b))
        .or_else(|| {
            let profiles = a.as_object().into_iter().flatten();
            let points = profiles.flat_map(|(name, points)| {
                points.as_object().into_iter().flatten().map(move |point| (name, point.0))
            });
            points.into_iter().find_map(|(name, point)| {
                differ(&format!("plugins at {point}"), &a[name][point], &b[name][point])
            })
        })
        .or_else(|| differ("plugins", &a, b))
}

fn each_key(object: &Value) -> Value {
    object.as_object().into_iter().flatten().map(|(key, _)| json!(key)).collect()
}

#[cfg(test)]
mod tests {
    use loadmaster_sim::cases::CaseEvent;

    use super::*;

    #[track_caller]
    fn check(ask: OracleCaseKind, theirs: Value, ours: Value, want: Option<&str>) {
        let case = OracleCase {
            id: 0,
            pod: "default/web".into(),
            config: None,
            feature_gates: Default::default(),
            objects: vec![],
            kind: ask,
        };
        let found = difference(&case, &theirs, &ours).map(|difference| difference.kind);
        assert_eq!(found.as_deref(), want);
    }

    #[test]
    fn explanations() {
        let answer = |node: Value| json!({"nodes": [node], "best": [], "message": ""});
        let check = |theirs: Value, ours: Value, want: Option<&str>| {
            check(OracleCaseKind::Explain, answer(theirs), answer(ours), want);
        };
        let rejected = |plugin: &str, code: &str, reasons: &[&str]| json!({"name": "a", "filter": {"code": code, "plugin": plugin, "reasons": reasons}});
        let fits = |scores: Value, total: i64| json!({"name": "a", "filter": {"code": "Success"}, "scores": scores, "total": total});
        check(rejected("P", "U", &["x", "y"]), rejected("P", "U", &["y", "x"]), None);
        check(rejected("P", "U", &["x"]), rejected("P", "U", &["y"]), Some("filter result of P"));
        check(rejected("P", "U", &["x"]), rejected("P", "UU", &["x"]), Some("filter result of P"));
        check(
            rejected("P", "U", &[]),
            rejected("Q", "U", &[]),
            Some("filter result of P versus Q"),
        );
        check(
            rejected("P", "U", &[]),
            fits(json!({}), 0),
            Some("filter result of P versus Success"),
        );
        check(fits(json!({"P": 1}), 1), fits(json!({"P": 1}), 1), None);
        check(fits(json!({"P": 1}), 1), fits(json!({"P": 2}), 2), Some("score of P"));
        check(fits(json!({"P": 0}), 0), fits(json!({}), 0), Some("score of P"));
        check(fits(json!({"P": 1}), 1), fits(json!({"P": 1}), 2), Some("total"));
    }

    #[test]
    fn other_parts_of_explanations() {
        let answer = |field: &str, value: Value| {
            let mut answer = json!({"nodes": [], "best": [], "message": ""});
            answer[field] = value;
            answer
        };
        let status = json!({"code": "U", "plugin": "P"});
        for (field, value, want) in [
            ("message", json!("x"), "message"),
            ("best", json!(["a"]), "best"),
            ("nodes", json!([{"name": "a"}]), "nodes"),
            ("preFilter", status.clone(), "preFilter of P versus none"),
            ("preEnqueue", status, "preEnqueue of P versus none"),
        ] {
            let plain = answer("message", json!(""));
            check(OracleCaseKind::Explain, answer(field, value), plain, Some(want));
        }
    }

    #[test]
    fn other_questions() {
        let event = CaseEvent {
            plugin: "P".into(),
            resource: "Node".into(),
            action: "Add".into(),
            old: Value::Null,
            new: Value::Null,
        };
        let hint = |hint: &str, known: &str| json!({"hint": hint, "registered": [["Node", known]]});
        let ask = || OracleCaseKind::Hint(Box::new(event.clone()));
        check(ask(), hint("Queue", "Add"), hint("Queue", "Add"), None);
        check(ask(), hint("Queue", "Add"), hint("QueueSkip", "Add"), Some("hint of P to Node Add"));
        check(ask(), hint("Queue", "Add"), hint("Queue", "Delete"), Some("events registered by P"));
        let signed = |signature: Value| json!({"signature": signature});
        check(OracleCaseKind::Sign, signed(json!("{\"a\":1}")), signed(json!({"a": 1})), None);
        check(
            OracleCaseKind::Sign,
            signed(json!("{\"a\":1}")),
            signed(json!({"a": 2})),
            Some("signature's a"),
        );
        check(
            OracleCaseKind::Sign,
            signed(json!("{}")),
            signed(json!({"a": 2})),
            Some("signature's a"),
        );
        check(
            OracleCaseKind::Sign,
            signed(Value::Null),
            signed(json!({})),
            Some("signature: only Loadmaster signs, null"),
        );
        let config = |plugins: Value| json!({"plugins": {"x": {"filter": plugins}}});
        check(OracleCaseKind::Config, config(json!([["P", 1]])), config(json!([["P", 1]])), None);
        check(
            OracleCaseKind::Config,
            config(json!([["P", 1], ["DynamicResources", 0]])),
            config(json!([["P", 1]])),
            None,
        );
        check(
            OracleCaseKind::Config,
            config(json!([["P", 1]])),
            config(json!([["P", 2]])),
            Some("plugins at filter"),
        );
        let refused = json!({"error": "x \"y\" 17"});
        check(OracleCaseKind::Sign, refused.clone(), refused.clone(), None);
        let want = "sign: only kube-scheduler fails: x _ 0";
        check(OracleCaseKind::Sign, refused, signed(json!({})), Some(want));
    }
}
