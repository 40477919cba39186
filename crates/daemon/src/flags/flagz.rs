//! All flags with their values, formatted like pflag does: for `/flagz` and the log at startup.

use clap::{Arg, ArgMatches, Command};
use loadmaster_config::{Duration, redact_password};

use super::groups::LOADMASTER_FLAGS;
use super::{REST, VERSION, pflag};

/// Names and values, sorted by name, without legacy flags and Loadmaster's own flags.
pub(super) fn list(command: &Command, matches: &ArgMatches) -> Vec<(String, String)> {
    let mut listing: Vec<(String, String)> = command
        .get_arguments()
        .filter(|arg| arg.get_id() != REST && !arg.is_hide_set())
        .filter(|arg| arg.get_help_heading() != Some(LOADMASTER_FLAGS))
        .filter_map(|arg| Some((arg.get_long()?.to_owned(), value(arg, matches))))
        .collect();
    if !listing.iter().any(|(name, _)| name == "help") {
        listing.push(("help".to_owned(), "false".to_owned()));
    }
    listing.sort();
    listing
}

fn value(arg: &Arg, matches: &ArgMatches) -> String {
    if arg.get_id() == "help" {
        return "false".to_owned();
    }
    let values: Vec<&str> = matches
        .get_raw(arg.get_id().as_str())
        .into_iter()
        .flatten()
        .filter_map(|v| v.to_str())
        .collect();
    let last = values.last().copied().unwrap_or_default();
    let kind =
        arg.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str());
    match kind {
        "bool" => pflag::boolean(last).unwrap_or_default().to_string(),
        "duration" => last.parse::<Duration>().unwrap_or_default().to_string(),
        "strings" | "int32s" => {
            let values: Vec<&str> = values.into_iter().filter(|value| !value.is_empty()).collect();
            format!("[{}]", values.join(","))
        }
        "named-cert-key" => format!("[{}]", values.join(";")),
        "map" => format!("[{}]", values.join(",")),
        "gates" | "pattern=N" => values.join(","),
        _ if arg.get_id() == VERSION => "false".to_owned(),
        // An address may hold a password.
        _ => redact_password(last),
    }
}
