//! Help texts of a program that is not called `loadmaster`.

use std::fmt::Write as _;

use clap::Command;

/// The command with the program's name in usage lines, descriptions and examples, where the texts of this crate say `loadmaster`.
pub(crate) fn with_program_name(command: Command, name: &str) -> Command {
    rename(command, name).bin_name(name)
}

fn rename(mut command: Command, name: &str) -> Command {
    let renamed = |text: String| text.replace("loadmaster ", &format!("{name} "));
    if let Some(text) = command.get_about().map(ToString::to_string) {
        command = command.about(renamed(text));
    }
    if let Some(text) = command.get_long_about().map(ToString::to_string) {
        command = command.long_about(renamed(text));
    }
    if let Some(text) = command.get_after_help().map(ToString::to_string) {
        command = command.after_help(renamed(text));
    }
    command = command.mut_args(|mut arg| {
        if let Some(text) = arg.get_help().map(ToString::to_string) {
            arg = arg.help(renamed(text));
        }
        if let Some(text) = arg.get_long_help().map(ToString::to_string) {
            arg = arg.long_help(renamed(text));
        }
        arg
    });
    command.mut_subcommands(|command| rename(command, name))
}

/// The usage of a program that is a scheduler if it is given no command.
pub(crate) fn usage_without_command(name: &str) -> String {
    format!("{name} [FLAGS]\n       {name} <COMMAND>")
}

/// The commands that a scheduler's program has besides its flags, for the end of its help.
pub(crate) fn list_of_commands(command: &Command, name: &str) -> String {
    let mut text = format!("Commands (see `{name} COMMAND --help`):");
    for command in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        // Up to the details, so that it fits in a line.
        let about = match command.get_name() {
            "run" => "Run the scheduler, as without a command",
            _ => about.split(": ").next().unwrap_or_default(),
        };
        // Writing to a string does not fail.
        let _ = write!(text, "\n  {:<11} {about}", command.get_name());
    }
    text
}
