//! The arguments of the plugins that score by node resources.

use loadmaster_framework::FieldError;
use loadmaster_framework::plugin_args::PluginArgs;
use loadmaster_plugins::node_resources::args::{self, ResourceSpec};
use serde::{Deserialize, Deserializer, Serialize};

/// The arguments of NodeResourcesLeastAllocated and NodeResourcesMostAllocated.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct WeightedResourcesArgs {
    #[serde(deserialize_with = "resources_or_default")]
    pub resources: Vec<ResourceSpec>,
}

impl Default for WeightedResourcesArgs {
    fn default() -> Self {
        WeightedResourcesArgs { resources: default_resources() }
    }
}

/// CPU and memory, each with weight 1.
pub(crate) fn default_resources() -> Vec<ResourceSpec> {
    let mut resources = Vec::new();
    args::complete(&mut resources);
    resources
}

/// An empty list is the default list. A weight of 0 stays one, and is invalid, unlike in RequestedToCapacityRatio.
fn resources_or_default<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<ResourceSpec>, D::Error> {
    let given = Option::<Vec<ResourceSpec>>::deserialize(deserializer)?;
    Ok(given.filter(|list| !list.is_empty()).unwrap_or_else(default_resources))
}

impl PluginArgs for WeightedResourcesArgs {
    /// Upstream's `validateResources`.
    fn validate(&self) -> Vec<FieldError> {
        check_weights(&self.resources, 1..=100, "(0, 100]")
    }
}

/// The errors of weights that are not in a range, which errors show as `shown_range`.
pub(crate) fn check_weights(
    resources: &[ResourceSpec],
    range: std::ops::RangeInclusive<i64>,
    shown_range: &str,
) -> Vec<FieldError> {
    let invalid = resources.iter().enumerate().filter(|(_, it)| !range.contains(&it.weight));
    let error = |(at, ResourceSpec { name, weight }): (usize, &ResourceSpec)| {
        let why = format!("resource weight of {name} not in valid range {shown_range}");
        FieldError::invalid(format!("resources[{at}].weight"), weight, why)
    };
    invalid.map(error).collect()
}

/// Each resource once: as in upstream's map of weights, the last weight of a name counts.
pub(crate) fn with_last_weights(resources: Vec<ResourceSpec>) -> Vec<ResourceSpec> {
    let mut unique: Vec<ResourceSpec> = Vec::new();
    for resource in resources {
        match unique.iter_mut().find(|known| known.name == resource.name) {
            Some(known) => known.weight = resource.weight,
            None => unique.push(resource),
        }
    }
    unique
}
