//! `loadmaster config check`: is a configuration right, and what does it mean in full?

use std::io::Write;

use clap::ValueEnum;
use loadmaster_api::document::Document;
use loadmaster_framework::Registry;
use loadmaster_stdx::Chain;

use crate::exit::{Answer, Exit, Failure, complain};
use crate::input::{self, GateArgs};

/// Check a configuration and print it with its defaults.
///
/// What is wrong is told with line and column. What is right but has no effect here is told on standard error.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster config check scheduler.yaml
  loadmaster config check scheduler.yaml --feature-gates PodLevelResources=false -o json")]
pub(crate) struct Args {
    /// A KubeSchedulerConfiguration in YAML or JSON; `-` for standard input.
    file: String,
    #[command(flatten)]
    gates: GateArgs,
    /// How to print it.
    #[arg(short, long, value_enum, default_value_t = Format::Yaml)]
    output: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Yaml,
    Json,
}

pub(crate) fn run(args: &Args, registry: &Registry, out: &mut dyn Write) -> Answer<Exit> {
    let gates = args.gates.parse()?;
    let document = Document::read(&args.file, Some(input::CONFIG_BYTES_MAX));
    let document = document.map_err(|error| Failure::input(Chain(&error)))?;
    let checked = loadmaster_config::check(&document, registry, &gates).map_err(Failure::inputs)?;
    for note in &checked.notes {
        complain(&format!("note: {note}"));
    }
    let text = match args.output {
        Format::Yaml => checked.config.to_v1_yaml(),
        Format::Json => checked.config.to_v1_json(),
    };
    let text = text.map_err(|error| Failure::input(Chain(&error)))?;
    writeln!(out, "{}", text.trim_end())?;
    Ok(Exit::Done)
}
