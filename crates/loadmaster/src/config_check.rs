//! `loadmaster config check`: validates a configuration and prints it with its defaults.

use std::io::Write;

use loadmaster_framework::Registry;
use loadmaster_stdx::ErrorChain;

use crate::exit::{CommandResult, Exit, Failure, print_to_stderr};
use crate::input::{ConfigurationArgs, ConfigurationFormat};

/// Validate a KubeSchedulerConfiguration of any version, or a Policy, and print it in v1 with defaults applied.
///
/// Errors are reported with line and column. Valid settings that have no effect in Loadmaster are reported on standard error.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster config check scheduler.yaml
  loadmaster config check scheduler.yaml --feature-gates PodLevelResources=false -o json")]
pub(crate) struct Args {
    #[command(flatten)]
    configuration: ConfigurationArgs,
}

pub(crate) fn run(args: &Args, registry: &Registry, out: &mut dyn Write) -> CommandResult<Exit> {
    let (files, gates) = args.configuration.read()?;
    let checked = files.check(registry, &gates)?;
    for note in &checked.notes {
        print_to_stderr(&format!("note: {note}"));
    }
    let text = match args.configuration.output {
        ConfigurationFormat::Yaml => checked.config.to_v1_yaml(),
        ConfigurationFormat::Json => checked.config.to_v1_json(),
    };
    let text = text.map_err(|error| Failure::invalid_input(ErrorChain(&error)))?;
    writeln!(out, "{}", text.trim_end())?;
    Ok(Exit::Done)
}
