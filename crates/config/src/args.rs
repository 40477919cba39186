//! Arguments of plugins: the kind they say they are, strict decoding, defaults and validation
//! through the plugin itself.

use std::collections::BTreeMap;

use loadmaster_framework::registry::ArgsFn;
use loadmaster_framework::{FeatureGates, FieldError, Registry};
use serde_json::{Map, Value};

use crate::decode::take_text;
use crate::v1::{API_VERSION, PluginConfig, SchedulerProfile};

/// Arguments by plugin name, as [`loadmaster_framework::PluginDef::build`] wants them: complete,
/// without `apiVersion` and `kind`.
pub type ArgsByName = BTreeMap<String, Value>;

/// Who knows the arguments of plugins.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    pub registry: &'a Registry,
    pub gates: &'a FeatureGates,
}

impl Known<'_> {
    /// How the arguments of a plugin are made; `None` for a plugin without arguments and for a name
    /// nobody knows.
    fn args_of(&self, name: &str) -> Option<ArgsFn> {
        self.registry.get(name)?.args
    }

    /// Makes the arguments of a profile complete, and adds those of enabled plugins for which
    /// nothing was written.
    pub fn complete(
        &self,
        path: &str,
        profile: &mut SchedulerProfile,
    ) -> (ArgsByName, Vec<FieldError>) {
        let mut complete = ArgsByName::new();
        let mut errors = Vec::new();
        let missing: Vec<String> = profile
            .plugins
            .enabled_names()
            .into_iter()
            .filter(|name| !profile.plugin_config.iter().any(|config| config.name == *name))
            .filter(|name| self.args_of(name).is_some())
            .map(str::to_owned)
            .collect();
        let missing = missing.into_iter().map(|name| PluginConfig { name, args: Value::Null });
        profile.plugin_config.extend(missing);
        for (i, config) in profile.plugin_config.iter_mut().enumerate() {
            let Some(make) = self.args_of(&config.name) else {
                complete.insert(config.name.clone(), config.args.clone());
                continue;
            };
            match self.make(make, config) {
                Ok(args) => {
                    config.args = typed(&config.name, &args);
                    complete.insert(config.name.clone(), args);
                }
                Err(found) => {
                    let path = format!("{path}.pluginConfig[{i}].args");
                    errors.extend(found.into_iter().map(|error| error.under(&path)));
                }
            }
        }
        (complete, errors)
    }

    fn make(&self, make: ArgsFn, config: &PluginConfig) -> Result<Value, Vec<FieldError>> {
        let mut args = match &config.args {
            Value::Null => Map::new(),
            Value::Object(args) => args.clone(),
            other => {
                let path = String::new();
                return Err(vec![FieldError::invalid(path, other, "must be an object")]);
            }
        };
        let kind = format!("{}Args", config.name);
        let said = take_text(&mut args, "kind").map_err(|error| vec![error])?;
        let version = take_text(&mut args, "apiVersion").map_err(|error| vec![error])?;
        if !said.is_empty() && said != kind {
            let text =
                format!("args for plugin {} were not of type {kind}, got {said}", config.name);
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

/// The arguments as a file shows them.
fn typed(name: &str, args: &Value) -> Value {
    let mut typed = args.clone();
    if let Value::Object(object) = &mut typed {
        object.insert("apiVersion".to_owned(), API_VERSION.into());
        object.insert("kind".to_owned(), format!("{name}Args").into());
    }
    typed
}
