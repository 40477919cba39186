//! `loadmaster crds`: the definitions of the custom resources that built-in plugins read.

use std::io::Write;

#[cfg(feature = "cluster")]
use loadmaster_api::document::{Document, LocatedError};
use loadmaster_scheduler_plugins::custom_resource_definitions::CUSTOM_RESOURCE_DEFINITIONS;
#[cfg(feature = "cluster")]
use serde_json::Value;

use crate::exit::{CommandResult, Exit};

/// Print the CustomResourceDefinitions of the built-in plugins: PodGroup and ElasticQuota, as in scheduler-plugins.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster crds | kubectl apply -f -
  loadmaster crds > crds.yaml")]
pub(crate) struct Args {}

/// The definitions as objects. An error would be a mistake in a definition.
#[cfg(feature = "cluster")]
pub(crate) fn definitions() -> Result<Vec<Value>, LocatedError> {
    let document = Document::new("crds", CUSTOM_RESOURCE_DEFINITIONS.join("---\n"));
    document.decode_values()
}

pub(crate) fn run(_: &Args, out: &mut dyn Write) -> CommandResult<Exit> {
    for (nth, definition) in CUSTOM_RESOURCE_DEFINITIONS.iter().enumerate() {
        if nth > 0 {
            writeln!(out, "---")?;
        }
        out.write_all(definition.as_bytes())?;
    }
    Ok(Exit::Done)
}
