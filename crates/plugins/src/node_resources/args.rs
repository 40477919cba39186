//! What the arguments of the plugins for node resources have in common.

use loadmaster_framework::FieldError;
use loadmaster_framework::resources::{RESOURCE_CPU, RESOURCE_MEMORY};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A resource with its weight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResourceSpec {
    /// Such as `cpu` or `example.com/gpu`.
    pub name: String,
    /// 1 when absent or 0.
    pub weight: i64,
}

/// Upstream's defaults: CPU and memory when there is no list, 1 for weights that are not set.
pub fn complete(resources: &mut Vec<ResourceSpec>) {
    if resources.is_empty() {
        resources.extend(
            [RESOURCE_CPU, RESOURCE_MEMORY]
                .map(|name| ResourceSpec { name: name.to_owned(), weight: 1 }),
        );
    }
    for resource in resources.iter_mut().filter(|resource| resource.weight == 0) {
        resource.weight = 1;
    }
}

/// Encodes complete arguments, or returns the errors.
pub(super) fn encode(
    args: &impl Serialize,
    errors: Vec<FieldError>,
) -> Result<Value, Vec<FieldError>> {
    if !errors.is_empty() {
        return Err(errors);
    }
    serde_json::to_value(args)
        .map_err(|error| vec![FieldError { path: String::new(), text: error.to_string() }])
}
