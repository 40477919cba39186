//! Encodes a configuration for `--write-config-to`: with all defaults, plugin sets not expanded,
//! arguments sorted by plugin.

use serde::Serialize;

use crate::v1::{API_VERSION, KIND, SchedulerConfiguration};

/// A configuration that could not be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrintError {
    /// As JSON.
    #[error("writing the configuration as JSON")]
    Json(#[source] serde_json::Error),
    /// As YAML.
    #[error("writing the configuration as YAML")]
    Yaml(#[source] serde_saphyr::ser::Error),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a> {
    kind: &'static str,
    api_version: &'static str,
    #[serde(flatten)]
    config: &'a SchedulerConfiguration,
}

impl SchedulerConfiguration {
    fn object(&self) -> Object<'_> {
        Object { kind: KIND, api_version: API_VERSION, config: self }
    }

    /// One line of JSON, fields in upstream's order.
    pub fn to_v1_json(&self) -> Result<String, PrintError> {
        serde_json::to_string(&self.object()).map_err(PrintError::Json)
    }

    /// YAML, fields sorted by name, as kube-scheduler's.
    pub fn to_v1_yaml(&self) -> Result<String, PrintError> {
        let sorted = serde_json::to_value(self.object()).map_err(PrintError::Json)?;
        serde_saphyr::to_string(&sorted).map_err(PrintError::Yaml)
    }
}
