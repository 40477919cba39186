//! The scale of a workload: one number and a selector, whatever the kind.

use http::Response;
use serde_json::{Value, json};

use super::body::Body;
use super::create::Expected;
use super::{Answer, ApiServer, Call, Rewritten};
use crate::object::{meta, parsed};
use crate::schema::Kind;
use crate::status::{ApiError, Cause};

impl ApiServer {
    pub(super) fn scale(&self, call: &Call<'_>, verb: &str) -> Result<Response<Body>, ApiError> {
        let sub = call.kind.subresource("scale").ok_or_else(ApiError::no_such_resource)?;
        let expected = Expected {
            group: sub.group,
            version: sub.version,
            kind: sub.kind,
            type_id: sub.type_id,
            custom: None,
        };
        let key = (call.target.namespace.as_str(), call.target.name.as_str());
        let scale = if verb == "get" {
            scale_of(call.kind, &parsed(&*self.stored(call.kind, key.0, key.1)?)?)
        } else {
            let wanted = match verb {
                "update" => Some(self.read_body(call, expected)?.0),
                _ => None,
            };
            let rewritten = self.rewrite(call.kind, key, call.query.dry_run()?, |old| {
                let wanted = match &wanted {
                    Some(wanted) => wanted.clone(),
                    None => self.patched(call, expected, &scale_of(call.kind, old))?,
                };
                let replicas = wanted["spec"]["replicas"].as_i64().unwrap_or(0);
                if replicas < 0 {
                    let cause = Cause::invalid(
                        "spec.replicas",
                        &replicas.into(),
                        "must be greater than or equal to 0",
                    );
                    return Err(ApiError::invalid(call.kind, key.1, &[cause]));
                }
                let mut new = old.clone();
                match call.kind.custom().and_then(|it| it.scale.clone()) {
                    Some(scale) => scale.replicas.set(&mut new, replicas.into()),
                    None => new["spec"]["replicas"] = replicas.into(),
                }
                let revision = meta(&wanted, "resourceVersion");
                if !revision.is_empty() {
                    new["metadata"]["resourceVersion"] = revision.into();
                }
                self.updated(call.kind, "", old, new)
            })?;
            match rewritten {
                Rewritten::Stored(object) => scale_of(call.kind, &parsed(&object)?),
                Rewritten::Dry(value) => scale_of(call.kind, &value),
            }
        };
        Ok(Answer::value(200, sub.type_id, &scale, call.form).into_response())
    }
}

fn scale_of(kind: &Kind, workload: &Value) -> Value {
    let custom = kind.custom();
    let scale = custom.as_ref().and_then(|it| it.scale.as_ref());
    let number = |value: Option<&Value>| value.and_then(Value::as_i64).unwrap_or(0);
    let (wanted, current, selector) = match scale {
        Some(scale) => (
            number(scale.replicas.first(workload)),
            number(scale.current.first(workload)),
            scale.selector.as_ref().map(|it| it.text(workload)).unwrap_or_default(),
        ),
        None => (
            number(workload["spec"].get("replicas")),
            number(workload["status"].get("replicas")),
            selector_text(&workload["spec"]["selector"]),
        ),
    };
    let mut metadata = json!({});
    for name in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if !workload["metadata"][name].is_null() {
            metadata[name] = workload["metadata"][name].clone();
        }
    }
    let mut status = json!({"replicas": current});
    if !selector.is_empty() {
        status["selector"] = selector.into();
    }
    let mut spec = json!({});
    if wanted != 0 {
        spec["replicas"] = wanted.into();
    }
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec,
        "status": status})
}

/// A selector as a query would write it; a plain map selects by equality.
pub(crate) fn selector_text(selector: &Value) -> String {
    let labels = selector.get("matchLabels").unwrap_or(selector);
    let mut terms: Vec<(String, String)> = Vec::new();
    for (key, value) in labels.as_object().into_iter().flatten() {
        if let Some(value) = value.as_str() {
            terms.push((key.clone(), format!("{key}={value}")));
        }
    }
    for it in crate::object::entries(&selector["matchExpressions"]) {
        let key = it["key"].as_str().unwrap_or_default();
        let values: Vec<&str> =
            crate::object::entries(&it["values"]).iter().filter_map(Value::as_str).collect();
        let values = values.join(",");
        let text = match it["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        };
        terms.push((key.to_owned(), text));
    }
    terms.sort();
    terms.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(",")
}
