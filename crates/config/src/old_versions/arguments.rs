//! Plugin arguments of older versions.

use loadmaster_framework::FieldError;
use serde_json::{Map, Value, json};

use super::plugin_sets::{OLD_SELECTOR_SPREAD, SELECTOR_SPREAD};
use super::{Converter, Profile};
use crate::annotated::{comment, comment_on};
use crate::version::ConfigVersion;

const POD_TOPOLOGY_SPREAD: &str = "PodTopologySpread";

impl Converter<'_> {
    /// `pluginConfig` of a profile; `None` if there is none. What is not a list of objects stays as it is, for the error.
    pub(super) fn plugin_config(
        &mut self,
        profile: &Profile<'_>,
        written: Option<Value>,
    ) -> Option<Value> {
        let mut entries = match written {
            None => Vec::new(),
            Some(Value::Array(entries)) => entries,
            other => return other,
        };
        let path = format!("{}.pluginConfig", profile.path);
        let origin = profile.origin("pluginConfig");
        for (idx, entry) in entries.iter_mut().enumerate() {
            if let Value::Object(entry) = entry {
                self.plugin_arguments(&format!("{origin}[{idx}]"), entry);
            }
        }
        for (plugin, argument, value, field) in profile.arguments {
            let idx = entry_of(&mut entries, plugin);
            let args = &mut entries[idx]["args"];
            if args.is_null() {
                *args = json!({});
            }
            let Value::Object(args) = args else { continue };
            let argument_path = format!("{path}[{idx}].args.{argument}");
            if args.get(*argument).is_some_and(|given| !given.is_null()) {
                let why = format!("{plugin} has the argument {argument}, too");
                self.findings.errors.push(FieldError::forbidden(*field, why));
                continue;
            }
            args.insert((*argument).to_owned(), value.clone());
            comment_on(args, argument, format!("was {field} of the configuration"));
            self.findings.origins.insert(argument_path, *field);
        }
        if self.version <= ConfigVersion::V1Alpha2 {
            let idx = entry_of(&mut entries, POD_TOPOLOGY_SPREAD);
            let args = &mut entries[idx]["args"];
            if args.is_null() {
                *args = json!({});
            }
            if let Value::Object(args) = args {
                spread_by_constraints_only(args);
            }
        }
        (!entries.is_empty()).then_some(Value::Array(entries))
    }

    /// One entry of `pluginConfig`; `origin` is its path in the file.
    fn plugin_arguments(&mut self, origin: &str, entry: &mut Map<String, Value>) {
        let Some(name) = entry.get("name").and_then(Value::as_str).map(str::to_owned) else {
            return;
        };
        self.check_removed_plugin(origin, &name);
        if name == OLD_SELECTOR_SPREAD && self.version <= ConfigVersion::V1Alpha2 {
            entry.insert("name".to_owned(), SELECTOR_SPREAD.into());
            comment(entry, format!("was called {OLD_SELECTOR_SPREAD} then"));
        }
        let version = self.version;
        let Some(Value::Object(args)) = entry.get_mut("args") else { return };
        let of_args = args.get("apiVersion").and_then(Value::as_str);
        if of_args.and_then(ConfigVersion::from_api_version).is_some() {
            args.insert("apiVersion".to_owned(), ConfigVersion::V1.api_version().into());
        }
        for ignored in self.registry.ignored_arguments(&name) {
            if args.remove(ignored.argument).is_some_and(|given| !given.is_null()) {
                self.findings.notes.push(format!(
                    "{} of {name} has no effect: {}",
                    ignored.argument, ignored.reason
                ));
            }
        }
        if name == POD_TOPOLOGY_SPREAD && version == ConfigVersion::V1Beta1 {
            // The default was List if there were constraints; since v1beta2 it is System.
            let constraints = args.get("defaultConstraints").and_then(Value::as_array);
            if constraints.is_some_and(|constraints| !constraints.is_empty()) {
                spread_by_constraints_only(args);
            }
        }
    }
}

/// Sets `defaultingType` to what it was without the field.
fn spread_by_constraints_only(args: &mut Map<String, Value>) {
    if args.get("defaultingType").is_none_or(Value::is_null) {
        args.insert("defaultingType".to_owned(), "List".into());
        comment_on(args, "defaultingType", "was the default; in v1 it is System");
    }
}

/// The index of a plugin's entry, which is appended if there is none.
fn entry_of(entries: &mut Vec<Value>, plugin: &str) -> usize {
    if let Some(idx) = entries.iter().position(|entry| entry["name"] == plugin) {
        return idx;
    }
    entries.push(json!({"name": plugin}));
    entries.len() - 1
}
