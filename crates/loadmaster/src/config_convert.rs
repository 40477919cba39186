//! `loadmaster config convert`: writes a configuration of any version, or a Policy, in v1.

use std::io::Write;

use clap::ValueEnum;
use loadmaster_config::convert_configuration;
use loadmaster_framework::Registry;
use loadmaster_stdx::ErrorChain;

use crate::exit::{CommandResult, Exit, Failure, print_to_stderr};
use crate::input::{ConfigurationFiles, GateArgs};

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
    /// KubeSchedulerConfiguration of any version, or Policy, in YAML or JSON; `-` reads standard input.
    file: String,
    /// The Policy, in place of the file or ConfigMap that the configuration names.
    #[arg(long, value_name = "FILE")]
    policy: Option<String>,
    #[command(flatten)]
    gates: GateArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Format::Yaml)]
    output: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Yaml,
    Json,
}

pub(crate) fn run(args: &Args, registry: &Registry, out: &mut dyn Write) -> CommandResult<Exit> {
    let gates = args.gates.parse()?;
    let files = ConfigurationFiles::read(&args.file, args.policy.as_deref())?;
    let converted = convert_configuration(files.documents(), registry, &gates)
        .map_err(Failure::invalid_inputs)?;
    for note in &converted.notes {
        print_to_stderr(&format!("note: {note}"));
    }
    match args.output {
        Format::Yaml => write!(out, "{}", converted.to_yaml())?,
        Format::Json => {
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
