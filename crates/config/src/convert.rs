//! `config convert`: the v1 form of a configuration of any version, with a comment at each thing that changed.

use std::collections::BTreeMap;
use std::fmt::Write;

use loadmaster_api::document::{Document, DocumentFormat};
use loadmaster_framework::Registry;
use loadmaster_stdx::CollectByInsertion as _;
use serde_json::{Map, Value, json};

use crate::annotated::{comment, take_comments};
use crate::check::{ConfigurationDocuments, ConfigurationError, check_and_convert};
use crate::decode::drop_nulls;
use crate::gates::AllFeatureGates;
use crate::old_versions::{NODE_RESOURCES_FIT, RESOURCE_SCORES};
use crate::print::PrintError;
use crate::v1::{API_VERSION, KIND};
use crate::volume_limits;

/// A configuration in v1.
#[derive(Clone, Debug)]
pub struct ConvertedConfiguration {
    value: Value,
    /// By path.
    comments: BTreeMap<String, String>,
    /// The text of a file that is in v1 already.
    unchanged: Option<Document>,
    /// Values that were accepted and have no effect; one sentence each.
    pub notes: Vec<String>,
}

/// Converts a configuration of any version, or a Policy, to v1. One that is in v1 stays as it is.
///
/// # Errors
///
/// All errors of the configuration.
pub fn convert_configuration(
    documents: ConfigurationDocuments<'_>,
    registry: &Registry,
    gates: &AllFeatureGates,
) -> Result<ConvertedConfiguration, Vec<ConfigurationError>> {
    let (checked, converted) = check_and_convert(documents, registry, gates, |_| ())?;
    let is_old = converted.is_old();
    let mut value = converted.value;
    drop_nulls(&mut value);
    if is_old {
        for profile in value["profiles"].as_array_mut().into_iter().flatten() {
            if let Value::Object(profile) = profile {
                replace_resource_score(profile);
                if let Some(Value::Object(plugins)) = profile.get_mut("plugins") {
                    volume_limits::replace_in_value(plugins);
                }
            }
        }
    }
    let comments = take_comments(&mut value);
    let mut comments: BTreeMap<String, String> =
        comments.into_iter().map(|(path, text)| (path.to_string(), text)).collect_by_insertion();
    if let Value::Object(object) = &mut value {
        object.insert("apiVersion".to_owned(), API_VERSION.into());
        object.insert("kind".to_owned(), KIND.into());
    }
    if is_old {
        let from = if converted.has_policy {
            "a Policy".to_owned()
        } else {
            converted.version.to_string()
        };
        let known = comments.entry("apiVersion".to_owned()).or_default();
        *known = format!("Converted from {from}.");
        for note in &converted.notes {
            *known += &format!("\nLeft out: {note}");
        }
    }
    let unchanged = documents.configuration.filter(|_| !is_old).cloned();
    Ok(ConvertedConfiguration { value, comments, unchanged, notes: checked.notes })
}

impl ConvertedConfiguration {
    /// YAML with comments; the text of the file if it is in v1.
    pub fn to_yaml(&self) -> String {
        match &self.unchanged {
            Some(document) if document.format() == DocumentFormat::Yaml => {
                document.text().to_owned()
            }
            _ => {
                let mut text = String::new();
                YamlWriter { comments: &self.comments, text: &mut text }.members(
                    &self.value,
                    "",
                    0,
                );
                text
            }
        }
    }

    /// JSON, which has no comments.
    ///
    /// # Errors
    ///
    /// When the value cannot be written.
    pub fn to_json(&self) -> Result<String, PrintError> {
        serde_json::to_string_pretty(&self.value).map_err(PrintError::Json)
    }

    /// The comments of the YAML form with their paths, for a form that has none.
    pub fn comments(&self) -> impl Iterator<Item = (&str, &str)> {
        self.comments.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }
}

/// Lets NodeResourcesFit score resources instead of the only plugin of the profile that does so. kube-scheduler's v1 has this form;
/// with several such plugins they stay, because NodeResourcesFit has one strategy.
fn replace_resource_score(profile: &mut Map<String, Value>) {
    let plugins = profile.get_mut("plugins").and_then(|plugins| plugins.get_mut("score"));
    let Some(Value::Array(enabled)) = plugins.and_then(|score| score.get_mut("enabled")) else {
        return;
    };
    let is_score = |plugin: &Value| {
        plugin["name"].as_str().is_some_and(|name| RESOURCE_SCORES.contains(&name))
    };
    if enabled.iter().filter(|plugin| is_score(plugin)).count() != 1
        || enabled.iter().any(|plugin| plugin["name"] == NODE_RESOURCES_FIT)
    {
        return;
    }
    let Some(Value::Object(plugin)) = enabled.iter_mut().find(|plugin| is_score(plugin)) else {
        return;
    };
    let name = plugin["name"].as_str().unwrap_or_default().to_owned();
    let strategy = match name.as_str() {
        "NodeResourcesLeastAllocated" => "LeastAllocated",
        "NodeResourcesMostAllocated" => "MostAllocated",
        other => other,
    };
    plugin.insert("name".to_owned(), NODE_RESOURCES_FIT.into());
    comment(plugin, format!("instead of {name}, which is its strategy {strategy} since v1beta2"));
    if let Some(Value::Object(plugins)) = profile.get_mut("plugins") {
        let pre_score = plugins.entry("preScore").or_insert_with(|| json!({"enabled": []}));
        if let Some(Value::Array(enabled)) = pre_score.get_mut("enabled") {
            enabled.push(json!({"name": NODE_RESOURCES_FIT}));
        }
    }
    let entries = profile.entry("pluginConfig").or_insert_with(|| json!([]));
    let Value::Array(entries) = entries else { return };
    let of_plugin = entries.iter().position(|entry| entry["name"] == name.as_str());
    let args = of_plugin.map(|idx| entries.remove(idx)["args"].take()).unwrap_or_default();
    let mut scoring = json!({"type": strategy});
    if let Some(resources) = args.get("resources") {
        scoring["resources"] = resources.clone();
    }
    if let Some(shape) = args.get("shape") {
        scoring["requestedToCapacityRatio"] = json!({"shape": shape});
    }
    let idx = entries.iter().position(|entry| entry["name"] == NODE_RESOURCES_FIT);
    let idx = idx.unwrap_or_else(|| {
        entries.push(json!({"name": NODE_RESOURCES_FIT, "args": {}}));
        entries.len() - 1
    });
    if entries[idx]["args"].is_null() {
        entries[idx]["args"] = json!({});
    }
    entries[idx]["args"]["scoringStrategy"] = scoring;
}

/// Writes block-style YAML with comments. YAML writers for serde have no comments on maps.
struct YamlWriter<'a> {
    comments: &'a BTreeMap<String, String>,
    text: &'a mut String,
}

impl YamlWriter<'_> {
    /// The members of a map, each on its own lines.
    fn members(&mut self, value: &Value, path: &str, indent: usize) {
        let Value::Object(object) = value else { return };
        for (name, member) in object {
            let member_path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            self.comment(&member_path, indent);
            self.line_start(indent);
            self.member(name, member, &member_path, indent);
        }
    }

    /// `name: value` from the current position on.
    fn member(&mut self, name: &str, value: &Value, path: &str, indent: usize) {
        self.text.push_str(&scalar(&Value::from(name)));
        self.text.push(':');
        match value {
            Value::Object(object) if !object.is_empty() => {
                self.text.push('\n');
                self.members(value, path, indent + 2);
            }
            Value::Array(elements) if !elements.is_empty() => {
                self.text.push('\n');
                self.elements(elements, path, indent);
            }
            other => {
                let _ = writeln!(self.text, " {}", scalar(other));
            }
        }
    }

    fn elements(&mut self, elements: &[Value], path: &str, indent: usize) {
        for (idx, element) in elements.iter().enumerate() {
            let path = format!("{path}[{idx}]");
            self.comment(&path, indent);
            self.line_start(indent);
            self.text.push('-');
            let Value::Object(object) = element else {
                // A list inside a list does not occur in a configuration, but is written as JSON.
                let _ = writeln!(self.text, " {}", scalar(element));
                continue;
            };
            if object.is_empty() {
                self.text.push_str(" {}\n");
            }
            for (nth, (name, member)) in object.iter().enumerate() {
                let member_path = format!("{path}.{name}");
                if nth == 0 {
                    self.text.push(' ');
                } else {
                    self.comment(&member_path, indent + 2);
                    self.line_start(indent + 2);
                }
                self.member(name, member, &member_path, indent + 2);
            }
        }
    }

    fn comment(&mut self, path: &str, indent: usize) {
        let Some(comment) = self.comments.get(path) else { return };
        for line in comment.lines() {
            self.line_start(indent);
            let _ = writeln!(self.text, "# {line}");
        }
    }

    fn line_start(&mut self, indent: usize) {
        self.text.extend(std::iter::repeat_n(' ', indent));
    }
}

/// A value on one line: a plain string where YAML reads it as one, else JSON, which YAML includes.
fn scalar(value: &Value) -> String {
    const RESERVED: &[&str] = &["true", "false", "yes", "no", "on", "off", "y", "n", "null"];
    if let Value::String(text) = value {
        let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "_./-".contains(c))
            && !RESERVED.contains(&text.to_ascii_lowercase().as_str());
        if is_plain {
            return text.clone();
        }
    }
    value.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_is_read_as_what_was_written() {
        let value = json!({
            "a": [], "b": {}, "c": [{"name": "x", "list": [1, "2"]}, {}], "no": "yes",
            "d": "1e3", "e": "a: b", "f": {"g": {"h": 0.5, "i": "*"}}, "j": "tab\there", "k": true,
        });
        let comments = [("c[0]", "first\nsecond"), ("f.g", "about g"), ("c[0].name", "ignored")];
        let comments =
            comments.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect();
        let mut text = String::new();
        YamlWriter { comments: &comments, text: &mut text }.members(&value, "", 0);
        let read = Document::new("", text.clone()).decode_value();
        assert_eq!(read.ok(), Some(value), "{text}");
        assert!(text.contains("c:\n# first\n# second\n- list:\n"), "{text}");
        assert!(text.contains("  # about g\n  g:\n"), "{text}");
    }
}
