//! `loadmaster config convert`: writes a configuration of any version, or a Policy, in v1.

use std::io::Write;

use loadmaster_config::convert_configuration;
use loadmaster_framework::Registry;
use loadmaster_stdx::ErrorChain;

use crate::exit::{CommandResult, Exit, Failure, print_to_stderr};
use crate::input::{ConfigurationArgs, ConfigurationFormat};

/// Write a KubeSchedulerConfiguration of an older version, or a legacy Policy, in kubescheduler.config.k8s.io/v1.
///
/// A comment stands at each thing that changed; JSON has no comments, and they are printed on standard error. A configuration that is in v1
/// is written as it is.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster config convert scheduler-v1beta1.yaml > scheduler.yaml
  loadmaster config convert policy.json
  loadmaster config convert scheduler-v1alpha1.yaml --policy policy.json -o json")]
pub(crate) struct Args {
    #[command(flatten)]
    configuration: ConfigurationArgs,
}

pub(crate) fn run(args: &Args, registry: &Registry, out: &mut dyn Write) -> CommandResult<Exit> {
    let (files, gates) = args.configuration.read()?;
    let converted = convert_configuration(files.documents(), registry, &gates)
        .map_err(Failure::invalid_inputs)?;
    for note in &converted.notes {
        print_to_stderr(&format!("note: {note}"));
    }
    match args.configuration.output {
        ConfigurationFormat::Yaml => write!(out, "{}", converted.to_yaml())?,
        ConfigurationFormat::Json => {
            for (path, comment) in converted.comments() {
                for line in comment.lines() {
                    print_to_stderr(&format!("{path}: {line}"));
                }
            }
            let json = converted.to_json();
            let json = json.map_err(|error| Failure::invalid_input(ErrorChain(&error)))?;
            writeln!(out, "{json}")?;
        }
    }
    Ok(Exit::Done)
}
