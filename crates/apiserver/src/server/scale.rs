//! The scale of a workload: one number and a selector, whatever the kind.

use http::Response;
use serde_json::{Value, json};

use super::body::Body;
use super::create::Expected;
use super::{Answer, ApiServer, Call, Rewritten};
use crate::object::{meta, parsed};
use crate::status::{ApiError, Cause};

impl ApiServer {
    pub(super) fn scale(&self, call: &Call<'_>, verb: &str) -> Result<Response<Body>, ApiError> {
        let sub = call.kind.subresource("scale").ok_or_else(ApiError::no_such_resource)?;
        let expected = Expected {
            group: sub.group,
            version: sub.version,
            kind: sub.kind,
            type_id: sub.type_id,
        };
        let key = (call.target.namespace.as_str(), call.target.name.as_str());
        let scale = if verb == "get" {
            scale_of(&parsed(&*self.stored(call.kind, key.0, key.1)?)?)
        } else {
            let wanted = match verb {
                "update" => Some(self.read_body(call, expected)?.0),
                _ => None,
            };
            let rewritten = self.rewrite(call.kind, key, call.query.dry_run()?, |old| {
                let wanted = match &wanted {
                    Some(wanted) => wanted.clone(),
                    None => self.patched(call, expected, &scale_of(old))?,
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
                new["spec"]["replicas"] = replicas.into();
                let revision = meta(&wanted, "resourceVersion");
                if !revision.is_empty() {
                    new["metadata"]["resourceVersion"] = revision.into();
                }
                self.updated(call.kind, "", old, new)
            })?;
            match rewritten {
                Rewritten::Stored(object) => scale_of(&parsed(&object)?),
                Rewritten::Dry(value) => scale_of(&value),
            }
        };
        Ok(Answer::value(200, sub.type_id, &scale, call.form).into_response())
    }
}

fn scale_of(workload: &Value) -> Value {
    let mut metadata = json!({});
    for name in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if !workload["metadata"][name].is_null() {
            metadata[name] = workload["metadata"][name].clone();
        }
    }
    let mut status = json!({"replicas": workload["status"]["replicas"].as_i64().unwrap_or(0)});
    let selector = selector_text(&workload["spec"]["selector"]);
    if !selector.is_empty() {
        status["selector"] = selector.into();
    }
    let mut spec = json!({});
    if let Some(replicas) = workload["spec"]["replicas"].as_i64().filter(|n| *n != 0) {
        spec["replicas"] = replicas.into();
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
