//! Plugin arguments: `apiVersion` and `kind`, then decoding, defaults and validation by the plugin
//! itself.

use std::collections::BTreeMap;

use loadmaster_framework::registry::CompleteArgsFn;
use loadmaster_framework::{FeatureGates, FieldError, Registry};
use serde_json::{Map, Value};

use crate::decode::{drop_nulls, take_text};
use crate::v1::{API_VERSION, PluginConfig, SchedulerProfile};

/// Arguments by plugin name, in the form of [`loadmaster_framework::PluginDef::build`]: with defaults,
/// without `apiVersion` and `kind`.
pub type ArgsByPlugin = BTreeMap<String, Value>;

/// Completes plugin arguments with the functions of the registry.
#[derive(Clone, Copy)]
pub(crate) struct ArgsCompleter<'a> {
    pub registry: &'a Registry,
    pub gates: &'a FeatureGates,
}

impl ArgsCompleter<'_> {
    /// The function that completes a plugin's arguments; `None` for a plugin without arguments and for an
    /// unknown plugin.
    fn args_fn(&self, name: &str) -> Option<CompleteArgsFn> {
        self.registry.get(name)?.args
    }

    /// Completes the arguments of a profile, and adds those of enabled plugins that are not in the
    /// file.
    pub fn complete(
        &self,
        path: &str,
        profile: &mut SchedulerProfile,
    ) -> (ArgsByPlugin, Vec<FieldError>) {
        let mut complete = ArgsByPlugin::new();
        let mut errors = Vec::new();
        let missing: Vec<String> = profile
            .plugins
            .enabled_names()
            .into_iter()
            .filter(|name| !profile.plugin_config.iter().any(|config| config.name == *name))
            .filter(|name| self.args_fn(name).is_some())
            .map(str::to_owned)
            .collect();
        let missing = missing.into_iter().map(|name| PluginConfig { name, args: Value::Null });
        profile.plugin_config.extend(missing);
        for (i, config) in profile.plugin_config.iter_mut().enumerate() {
            let Some(make) = self.args_fn(&config.name) else {
                // Printed as written; a plugin decodes them when it is built.
                let mut args = config.args.clone();
                drop_nulls(&mut args);
                complete.insert(config.name.clone(), args);
                continue;
            };
            match self.complete_args(make, config) {
                Ok(args) => {
                    config.args = with_type_meta(&config.name, &args);
                    complete.insert(config.name.clone(), args);
                }
                Err(found) => {
                    let path = format!("{path}.pluginConfig[{i}].args");
                    errors.extend(found.into_iter().map(|error| error.with_path_prefix(&path)));
                }
            }
        }
        (complete, errors)
    }

    fn complete_args(
        &self,
        make: CompleteArgsFn,
        config: &PluginConfig,
    ) -> Result<Value, Vec<FieldError>> {
        let mut args = match &config.args {
            Value::Null => Map::new(),
            Value::Object(args) => args.clone(),
            other => {
                let path = String::new();
                return Err(vec![FieldError::invalid(path, other, "must be an object")]);
            }
        };
        let kind = format!("{}Args", config.name);
        let given_kind = take_text(&mut args, "kind").map_err(|error| vec![error])?;
        let version = take_text(&mut args, "apiVersion").map_err(|error| vec![error])?;
        if !given_kind.is_empty() && given_kind != kind {
            let text = format!(
                "args for plugin {} were not of type {kind}, got {given_kind}",
                config.name
            );
            return Err(vec![FieldError { path: "kind".to_owned(), text }]);
        }
        if !version.is_empty() && version != API_VERSION {
            let text = format!(
                "no kind {kind:?} is registered for version {version:?}: {API_VERSION} is expected"
            );
            return Err(vec![FieldError { path: "apiVersion".to_owned(), text }]);
        }
        make(&Value::Object(args), self.gates)
    }
}

/// The arguments as in a file, with `apiVersion` and `kind`.
fn with_type_meta(name: &str, args: &Value) -> Value {
    let mut with_type_meta = args.clone();
    if let Value::Object(object) = &mut with_type_meta {
        object.insert("apiVersion".to_owned(), API_VERSION.into());
        object.insert("kind".to_owned(), format!("{name}Args").into());
    }
    with_type_meta
}
