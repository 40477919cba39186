//! Extenders of Policies and of v1alpha2, whose fields differ from those of v1: names in any case, `enableHttps`, a timeout in nanoseconds
//! (upstream's `LegacyExtender`).

use loadmaster_framework::FieldError;
use serde_json::{Map, Value};

use crate::annotated::comment_on;
use crate::duration::Duration;

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

/// What the conversion of extenders finds.
#[derive(Debug, Default)]
pub(crate) struct LegacyExtenders {
    /// Where fields with another name stand.
    pub origins: Vec<(String, String)>,
    /// What has no effect.
    pub notes: Vec<String>,
    /// Errors, with paths in the document.
    pub errors: Vec<FieldError>,
}

impl LegacyExtenders {
    /// `extenders` of the v1 form.
    pub fn convert(&mut self, written: Vec<Map<String, Value>>) -> Value {
        let converted = written.into_iter().enumerate().map(|(idx, mut extender)| {
            let path = format!("extenders[{idx}]");
            // Samples of the time of 1.5 have it.
            if extender.remove("apiVersion").is_some() {
                self.notes
                    .push(format!("{path}.apiVersion has no effect: extenders have no version"));
            }
            let mut extender = self.with_v1_names(&path, extender, FIELDS);
            if let Some(Value::Object(tls)) = extender.get_mut("tlsConfig") {
                let tls_path = format!("{path}.tlsConfig");
                *tls = self.with_v1_names(&tls_path, std::mem::take(tls), TLS_FIELDS);
            }
            if let Some(Value::Array(resources)) = extender.get_mut("managedResources") {
                for (nth, resource) in resources.iter_mut().enumerate() {
                    if let Value::Object(resource) = resource {
                        let path = format!("{path}.managedResources[{nth}]");
                        let written = std::mem::take(resource);
                        *resource = self.with_v1_names(&path, written, RESOURCE_FIELDS);
                    }
                }
            }
            self.timeout(&path, &mut extender);
            Value::Object(extender)
        });
        converted.collect()
    }

    /// The object with the names of v1 for its fields; a name counts in any case, as in upstream's decoding.
    fn with_v1_names(
        &mut self,
        path: &str,
        object: Map<String, Value>,
        names: &[&str],
    ) -> Map<String, Value> {
        let mut renamed = Map::new();
        for (written, value) in object {
            let Some(name) = names.iter().find(|name| name.eq_ignore_ascii_case(&written)) else {
                let error = crate::decode::unknown_field(&written, names);
                self.errors.push(error.with_path_prefix(path));
                continue;
            };
            if written != *name {
                self.origins.push((format!("{path}.{name}"), format!("{path}.{written}")));
            }
            renamed.insert((*name).to_owned(), value);
        }
        renamed
    }

    /// Converts the timeout from nanoseconds.
    fn timeout(&mut self, path: &str, extender: &mut Map<String, Value>) {
        let Some(written) = extender.get("httpTimeout") else { return };
        let Some(nanoseconds) = written.as_i64() else {
            let expected = "a number of nanoseconds is expected, such as 5000000000";
            self.errors.push(FieldError::invalid(format!("{path}.httpTimeout"), written, expected));
            extender.remove("httpTimeout");
            return;
        };
        let timeout = Duration::from_nanos(nanoseconds).to_string();
        extender.insert("httpTimeout".to_owned(), timeout.into());
        comment_on(extender, "httpTimeout", format!("was {nanoseconds} nanoseconds"));
    }
}
