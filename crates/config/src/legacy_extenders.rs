//! Extenders of Policies and of v1alpha2, whose fields differ from those of v1: names in any case, `enableHttps`, a timeout in nanoseconds
//! (upstream's `LegacyExtender`).

use loadmaster_framework::FieldError;
use serde_json::{Map, Value};

use crate::annotated::comment_on;
use crate::duration::Duration;
use crate::findings::Findings;

/// The fields of an extender in v1.
const FIELDS: &[&str] = &[
    "urlPrefix",
    "filterVerb",
    "preemptVerb",
    "prioritizeVerb",
    "weight",
    "bindVerb",
    "enableHTTPS",
    "tlsConfig",
    "httpTimeout",
    "nodeCacheCapable",
    "managedResources",
    "ignorable",
];

const TLS_FIELDS: &[&str] =
    &["insecure", "serverName", "certFile", "keyFile", "caFile", "certData", "keyData", "caData"];

const RESOURCE_FIELDS: &[&str] = &["name", "ignoredByScheduler"];

/// `extenders` of the v1 form.
pub(crate) fn convert_extenders(
    written: Vec<Map<String, Value>>,
    findings: &mut Findings,
) -> Value {
    let converted = written
        .into_iter()
        .enumerate()
        .map(|(idx, extender)| convert_extender(&format!("extenders[{idx}]"), extender, findings));
    converted.collect()
}

fn convert_extender(
    path: &str,
    mut extender: Map<String, Value>,
    findings: &mut Findings,
) -> Value {
    // Samples of the time of 1.5 have it.
    if extender.remove("apiVersion").is_some_and(|version| !version.is_null()) {
        let note = format!("{path}.apiVersion has no effect: extenders have no version");
        findings.notes.push(note);
    }
    let mut extender = with_v1_names(path, extender, FIELDS, findings);
    if let Some(Value::Object(tls)) = extender.get_mut("tlsConfig") {
        let tls_path = format!("{path}.tlsConfig");
        *tls = with_v1_names(&tls_path, std::mem::take(tls), TLS_FIELDS, findings);
    }
    if let Some(Value::Array(resources)) = extender.get_mut("managedResources") {
        for (nth, resource) in resources.iter_mut().enumerate() {
            if let Value::Object(resource) = resource {
                let path = format!("{path}.managedResources[{nth}]");
                let written = std::mem::take(resource);
                *resource = with_v1_names(&path, written, RESOURCE_FIELDS, findings);
            }
        }
    }
    timeout(path, &mut extender, findings);
    Value::Object(extender)
}

/// The object with the names of v1 for its fields; a name counts in any case, as in upstream's decoding. Null is as if absent.
fn with_v1_names(
    path: &str,
    object: Map<String, Value>,
    names: &[&str],
    findings: &mut Findings,
) -> Map<String, Value> {
    let mut renamed = Map::new();
    for (written, value) in object {
        let Some(name) = names.iter().find(|name| name.eq_ignore_ascii_case(&written)) else {
            let error = crate::decode::unknown_field(&written, names);
            findings.errors.push(error.with_path_prefix(path));
            continue;
        };
        if value.is_null() {
            continue;
        }
        if written != *name {
            let origin = format!("{path}.{written}");
            findings.origins.insert(format!("{path}.{name}"), origin);
        }
        renamed.insert((*name).to_owned(), value);
    }
    renamed
}

/// Converts the timeout from nanoseconds.
fn timeout(path: &str, extender: &mut Map<String, Value>, findings: &mut Findings) {
    let Some(written) = extender.get("httpTimeout") else { return };
    let Some(nanoseconds) = written.as_i64() else {
        let expected = "a number of nanoseconds is expected, such as 5000000000";
        let error = FieldError::invalid(format!("{path}.httpTimeout"), written, expected);
        findings.errors.push(error);
        extender.remove("httpTimeout");
        return;
    };
    let timeout = Duration::from_nanos(nanoseconds).to_string();
    extender.insert("httpTimeout".to_owned(), timeout.into());
    comment_on(extender, "httpTimeout", format!("was {nanoseconds} nanoseconds"));
}
