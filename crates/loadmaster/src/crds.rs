//! `loadmaster crds`: the definitions of the custom resources that built-in plugins read.

use std::io::Write;

use loadmaster_scheduler_plugins::custom_resource_definitions::CUSTOM_RESOURCE_DEFINITIONS;

use crate::exit::{CommandResult, Exit};

/// Print the CustomResourceDefinitions of the built-in plugins: PodGroup and ElasticQuota, as in scheduler-plugins.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster crds | kubectl apply -f -
  loadmaster crds > crds.yaml && loadmaster up -f crds.yaml -f gang.yaml")]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args, out: &mut dyn Write) -> CommandResult<Exit> {
    for (nth, definition) in CUSTOM_RESOURCE_DEFINITIONS.iter().enumerate() {
        if nth > 0 {
            writeln!(out, "---")?;
        }
        out.write_all(definition.as_bytes())?;
    }
    Ok(Exit::Done)
}
