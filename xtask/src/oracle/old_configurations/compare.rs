//! Compares what an old scheduler and Loadmaster make of a file.

use std::collections::BTreeMap;

use loadmaster_config::{CheckedConfiguration, ResolvedProfile, SchedulerConfiguration};
use serde_json::{Map, Value, json};

use super::expected::{self, Expected, Plugins};
use super::version::{OldVersion, PluginTable};

/// A difference between the answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Differences of the same kind are counted together.
    pub kind: String,
    pub text: String,
}

/// Loadmaster's answer in the form of the old schedulers, for display.
pub fn shown(ours: &Result<CheckedConfiguration, Vec<String>>) -> Value {
    let checked = match ours {
        Ok(checked) => checked,
        Err(errors) => return json!({"errors": errors}),
    };
    let profiles: Vec<Value> = checked
        .profiles
        .iter()
        .map(|profile| {
            let plugins: Map<String, Value> = plugins_of(profile)
                .into_iter()
                .map(|(point, list)| (point, expected::show_list(&list)))
                .collect();
            json!({"schedulerName": profile.scheduler_name, "plugins": plugins, "args": profile.args})
        })
        .collect();
    let mut answer = value_of(&checked.config);
    answer["profiles"] = profiles.into();
    answer["notes"] = json!(checked.notes);
    answer
}

/// Every difference, the most telling first.
pub fn differences(
    version: OldVersion,
    table: &PluginTable,
    theirs: &Value,
    ours: &Result<CheckedConfiguration, Vec<String>>,
) -> Vec<Difference> {
    let checked = match (theirs.get("errors"), ours) {
        (Some(_), Err(_)) => return Vec::new(),
        (None, Ok(checked)) => checked,
        (Some(errors), Ok(_)) => {
            let messages: Vec<&str> =
                errors.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            if messages.iter().all(|message| expected::may_be_accepted(version, message)) {
                return Vec::new();
            }
            return vec![Difference {
                kind: format!(
                    "accepted by Loadmaster only: {}",
                    without_values(&messages.join("; "))
                ),
                text: format!("the old scheduler: {}", messages.join("\n")),
            }];
        }
        (None, Err(errors)) if expected::may_be_rejected(version, errors) => return Vec::new(),
        (None, Err(errors)) => {
            return vec![Difference {
                kind: format!("rejected by Loadmaster only: {}", error_kind(errors)),
                text: errors.join("\n"),
            }];
        }
    };
    let mut differences = Vec::new();
    let empty = Vec::new();
    let profiles = theirs["profiles"].as_array().unwrap_or(&empty);
    if profiles.len() != checked.profiles.len() {
        let text = format!("{} profiles, Loadmaster: {}", profiles.len(), checked.profiles.len());
        return vec![Difference { kind: "number of profiles".to_owned(), text }];
    }
    for (theirs_of, ours_of) in profiles.iter().zip(&checked.profiles) {
        let plugins = plugins_of(ours_of);
        let expected = expected::expected_profile(version, theirs, theirs_of, &plugins);
        let plugins = expected::comparable_plugins(table, &expected, plugins);
        compare_profile(version, (&expected, &plugins), ours_of, &mut differences);
    }
    compare_settings(version, theirs, checked, &mut differences);
    differences
}

/// The text of the first error without its place and values.
fn error_kind(errors: &[String]) -> String {
    let first = errors.first().map_or("", String::as_str);
    without_values(&first.split(": ").skip(2).collect::<Vec<_>>().join(": "))
}

/// The text without quoted parts and digits, up to some length.
fn without_values(text: &str) -> String {
    if text.contains("strict decod") {
        return "strict decoding error".to_owned();
    }
    let mut kept = String::new();
    let mut is_quoted = false;
    for letter in text.chars() {
        if letter == '"' {
            is_quoted = !is_quoted;
        }
        if !is_quoted && !letter.is_ascii_digit() {
            kept.push(letter);
        }
    }
    kept.chars().take_while(|letter| *letter != '\n').take(160).collect()
}

fn plugins_of(profile: &ResolvedProfile) -> Plugins {
    let mut plugins = Plugins::new();
    for (point, list) in profile.extension_points.iter() {
        let list = list.iter().map(|it| (it.name.clone(), it.weight)).collect();
        plugins.insert(point.field_name().to_owned(), list);
    }
    plugins
}

fn compare_profile(
    version: OldVersion,
    (expected, plugins): (&Expected, &Plugins),
    ours: &ResolvedProfile,
    differences: &mut Vec<Difference>,
) {
    if expected.scheduler_name != ours.scheduler_name {
        let text = format!("{:?}, Loadmaster: {:?}", expected.scheduler_name, ours.scheduler_name);
        differences.push(Difference { kind: "schedulerName".to_owned(), text });
    }
    let points: BTreeMap<&String, ()> =
        expected.plugins.keys().chain(plugins.keys()).map(|point| (point, ())).collect();
    let none = Vec::new();
    for point in points.into_keys() {
        let theirs = expected.plugins.get(point).unwrap_or(&none);
        let mine = plugins.get(point).unwrap_or(&none);
        if theirs != mine {
            let text = format!(
                "profile {:?}\n  old:        {}\n  Loadmaster: {}",
                ours.scheduler_name,
                expected::show_list(theirs),
                expected::show_list(mine)
            );
            let kind = format!("{point}: {}", list_kind(theirs, mine));
            differences.push(Difference { kind, text });
        }
    }
    for (plugin, theirs) in &expected.args {
        let mine = ours.args_of(plugin);
        let (theirs, mine) = (
            canonical(theirs),
            canonical(&expected::comparable_args(version, expected, plugin, mine)),
        );
        if theirs != mine && !(is_zero(&theirs) && is_zero(&mine)) {
            let text = format!(
                "profile {:?}\n  old:        {theirs}\n  Loadmaster: {mine}",
                ours.scheduler_name
            );
            differences.push(Difference { kind: format!("args of {plugin}"), text });
        }
    }
}

/// What differs between two lists of plugins: names, else order, else weights.
fn list_kind(theirs: &[(String, i32)], mine: &[(String, i32)]) -> String {
    let lacks = |list: &[(String, i32)], other: &[(String, i32)]| {
        let names = list.iter().filter(|(name, _)| !other.iter().any(|(known, _)| known == name));
        names.map(|(name, _)| name.clone()).collect::<Vec<_>>().join(", ")
    };
    let (missing, additional) = (lacks(theirs, mine), lacks(mine, theirs));
    if !missing.is_empty() || !additional.is_empty() {
        return format!("missing [{missing}], additional [{additional}]");
    }
    let names = |list: &[(String, i32)]| -> Vec<String> {
        list.iter().map(|(name, _)| name.clone()).collect()
    };
    if names(theirs) == names(mine) { "weights".to_owned() } else { "order".to_owned() }
}

/// Fields of the configuration outside of profiles.
fn compare_settings(
    version: OldVersion,
    theirs: &Value,
    checked: &CheckedConfiguration,
    differences: &mut Vec<Difference>,
) {
    let mine = value_of(&checked.config);
    for field in expected::compared_fields(version) {
        let strip = |value: &Value| {
            let mut value = value.clone();
            if let Some(object) = value.as_object_mut() {
                for ignored in expected::IGNORED_FIELDS {
                    object.remove(*ignored);
                }
            }
            canonical(&value)
        };
        let theirs = match *field {
            "extenders" => expected::with_default_timeouts(theirs[field].clone()),
            _ => theirs[field].clone(),
        };
        let (theirs, mine) = (strip(&theirs), strip(&mine[field]));
        if theirs != mine && !(is_zero(&theirs) && is_zero(&mine)) {
            let text = format!("\n  old:        {theirs}\n  Loadmaster: {mine}");
            differences.push(Difference { kind: (*field).to_owned(), text });
        }
    }
}

fn value_of(config: &SchedulerConfiguration) -> Value {
    serde_json::to_value(config).unwrap_or_else(|error| format!("not JSON: {error}").into())
}

/// The value without absent and empty members, zeros and `false`, and with all numbers as floating-point numbers.
fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let members = object.iter().map(|(name, member)| (name.clone(), canonical(member)));
            let members: Map<String, Value> =
                members.filter(|(_, member)| !is_zero(member)).collect();
            Value::Object(members)
        }
        Value::Array(elements) => elements.iter().map(canonical).collect(),
        Value::Number(number) => json!(number.as_f64()),
        other => other.clone(),
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || text == "0s",
        Value::Array(elements) => elements.is_empty(),
        Value::Object(object) => object.is_empty(),
    }
}
