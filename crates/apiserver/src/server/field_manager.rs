//! Managed fields of a write: which manager owns which field of the new state.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{ApiServer, ResourceRequest, rfc3339_seconds};
use crate::custom_resource::CustomResourceVersion;
use crate::event_conversion;
use crate::managed_fields::{
    ApplyError, FieldManager, ResetFields, TypeRef, Types, VersionedTypes, built_in,
    conflict_message, set_managed_fields,
};
use crate::object::list_entries;
use crate::schema::{Kind, Subresource, TypeId, decode, schema};
use crate::status::{ApiError, Cause};

/// The longest name of a manager, as upstream's limit.
const MANAGER_BYTES_MAX: usize = 128;

/// The resource, the subresource and the field manager of a write.
#[derive(Clone, Copy)]
pub(super) struct Write<'a> {
    pub kind: &'a Kind,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// The manager that becomes the owner of changed fields; none if the new state has its managed fields already.
    pub manager: Option<&'a str>,
}

/// The API versions of the objects in a table.
pub(super) struct Forms {
    forms: Vec<Form>,
    /// The kinds of the forms, if there are several.
    kinds: Vec<Kind>,
}

struct Form {
    api_version: String,
    kind: &'static str,
    types: Typing,
}

enum Typing {
    BuiltIn(TypeId),
    Custom(Arc<CustomResourceVersion>),
}

impl Forms {
    /// The forms of what a subresource shows, such as a scale.
    pub(super) fn of_subresource(subresource: &Subresource) -> Forms {
        let Subresource { group, version, kind, type_id, .. } = *subresource;
        let api_version = crate::schema::api_version(group, version);
        let form = Form { api_version, kind, types: Typing::BuiltIn(type_id) };
        Forms { forms: vec![form], kinds: Vec::new() }
    }

    fn of_kind(kind: &Kind) -> Form {
        let types = match kind.custom() {
            Some(custom) => Typing::Custom(custom),
            None => Typing::BuiltIn(kind.type_id),
        };
        Form { api_version: kind.api_version(), kind: kind.kind, types }
    }

    fn find(&self, api_version: &str) -> Option<&Form> {
        self.forms.iter().find(|it| it.api_version == api_version)
    }
}

impl VersionedTypes for Forms {
    fn form(&self, api_version: &str) -> Option<(&Types, TypeRef)> {
        Some(match &self.find(api_version)?.types {
            Typing::BuiltIn(id) => (built_in(), Types::of_built_in(*id)),
            Typing::Custom(custom) => (&custom.types.0, custom.types.1),
        })
    }

    fn convert(&self, object: &Value, api_version: &str) -> Value {
        let own = object["apiVersion"].as_str().unwrap_or_default();
        let named = |version: &str| self.kinds.iter().find(|it| it.api_version() == version);
        match (named(own), named(api_version)) {
            (Some(from), Some(to)) if own != api_version => event_conversion::to_request_version(
                to,
                event_conversion::to_storage_version(from, object.clone()),
            ),
            _ => object.clone(),
        }
    }

    fn nothing(&self, api_version: &str) -> Value {
        let Some(form) = self.find(api_version) else { return json!({}) };
        let mut zero = match form.types {
            Typing::BuiltIn(id) => decode(schema(), id, json!({})).map(|it| it.value),
            Typing::Custom(_) => Ok(json!({})),
        }
        .unwrap_or_else(|_| json!({}));
        zero["apiVersion"] = api_version.into();
        zero["kind"] = form.kind.into();
        zero
    }
}

impl ApiServer {
    /// The objects of a table, in all API versions in which they are served.
    pub(super) fn forms(&self, kind: &Kind) -> Forms {
        if !event_conversion::may_have_several_versions(kind) {
            return Forms { forms: vec![Forms::of_kind(kind)], kinds: Vec::new() };
        }
        let kinds = self.kinds();
        let kinds: Vec<Kind> = kinds.iter().filter(|it| it.table == kind.table).cloned().collect();
        Forms { forms: kinds.iter().map(Forms::of_kind).collect(), kinds }
    }

    /// Updates the managed fields of the new state, in the API version of the request.
    pub(super) fn enter(&self, write: Write<'_>, old: Option<&Value>, new: &mut Value) {
        let Write { kind, subresource, manager: Some(manager) } = write else { return };
        let forms = self.forms(kind);
        let api_version = kind.api_version();
        let books = field_manager(&forms, kind, &api_version, subresource, self.now());
        let old = match old {
            Some(old) => live(kind, old),
            None => Cow::Owned(forms.nothing(&api_version)),
        };
        let list = books.update(&old, &live(kind, new), manager);
        set_managed_fields(new, list);
    }
}

/// What is stored, as the kind shows it. Events and HorizontalPodAutoscalers are stored in one form and written in two, which write out
/// different empty fields.
pub(super) fn live<'v>(kind: &Kind, stored: &'v Value) -> Cow<'v, Value> {
    if kind.custom.is_some() {
        return Cow::Owned(event_conversion::to_request_version(kind, stored.clone()));
    }
    if !event_conversion::may_have_several_versions(kind) {
        return Cow::Borrowed(stored);
    }
    let shown = event_conversion::to_request_version(kind, stored.clone());
    let whole = decode(schema(), kind.type_id, shown.clone());
    Cow::Owned(whole.map_or(shown, |reading| reading.value))
}

/// The field manager for writes through a kind's (sub)resource.
pub(super) fn field_manager<'a>(
    forms: &'a Forms,
    kind: &Kind,
    api_version: &'a str,
    subresource: &'a str,
    now: Timestamp,
) -> FieldManager<'a> {
    let reset = match kind.custom() {
        Some(custom) => ResetFields::of_custom(custom.has_status, subresource),
        None => ResetFields::of(kind, subresource),
    };
    FieldManager {
        versions: forms,
        api_version,
        kind: kind.kind,
        subresource,
        reset,
        now: rfc3339_seconds(now),
    }
}

/// Restores the times of managed fields that did not change if nothing else changed either, so that the write is a
/// no-op.
pub(super) fn keep_times(old: &Value, new: &mut Value) {
    let before = list_entries(&old["metadata"]["managedFields"]);
    let after = list_entries(&new["metadata"]["managedFields"]);
    let is_same = |(before, after): (&Value, &Value)| {
        let members = |it| -> Vec<_> { untimed(it).collect() };
        members(before) == members(after)
    };
    if before.len() != after.len() || before == after || !before.iter().zip(after).all(is_same) {
        return;
    }
    let books = new["metadata"]["managedFields"].take();
    new["metadata"]["managedFields"] = before.into();
    if old != new {
        new["metadata"]["managedFields"] = books;
    }
}

/// The members of an entry but its time.
fn untimed(entry: &Value) -> impl Iterator<Item = (&String, &Value)> {
    entry.as_object().into_iter().flatten().filter(|(name, _)| *name != "time")
}

impl ResourceRequest<'_> {
    /// The field manager of a request: its parameter, or the client's user agent.
    ///
    /// # Errors
    ///
    /// When the request names a manager that cannot be one. `options` is the kind of the request's parameters.
    pub(super) fn manager(&self, options: &'static str) -> Result<String, ApiError> {
        let Some(named) = self.query.get("fieldManager") else {
            return Ok(of_agent(self.user_agent()));
        };
        let causes = manager_causes(named);
        if causes.is_empty() {
            Ok(named.to_owned())
        } else {
            Err(ApiError::invalid_write_options(options, &causes))
        }
    }

    fn user_agent(&self) -> &str {
        let agent = self.headers.get(http::header::USER_AGENT);
        agent.and_then(|it| it.to_str().ok()).unwrap_or_default()
    }
}

/// Validates the name of a field manager.
pub(super) fn manager_causes(name: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    if name.len() > MANAGER_BYTES_MAX {
        causes.push(Cause::too_long("fieldManager", MANAGER_BYTES_MAX));
    }
    for (at, it) in name.char_indices().filter(|(_, it)| it.is_control()) {
        let why = format!("invalid character U+{:04X} (at position {at})", u32::from(it));
        causes.push(Cause::invalid("fieldManager", &name.into(), &why));
    }
    causes
}

/// `kubectl` of `kubectl/v1.36.3 (linux/amd64)`.
fn of_agent(agent: &str) -> String {
    let mut name = String::new();
    let first = agent.split('/').next().unwrap_or_default();
    for it in first.chars().filter(|it| !it.is_control()) {
        if name.len() + it.len_utf8() > MANAGER_BYTES_MAX {
            break;
        }
        name.push(it);
    }
    name
}

impl From<ApplyError> for ApiError {
    fn from(failure: ApplyError) -> ApiError {
        match failure {
            ApplyError::Invalid(why) => ApiError::bad_request(why),
            ApplyError::Other(why) => ApiError::unclassified(&why),
            ApplyError::Conflicts(conflicts) => {
                let causes = conflicts.iter().map(|it| (it.field(), it.owner()));
                ApiError::apply_conflict(&conflict_message(&conflicts), causes)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_agents_become_managers() {
        assert_eq!(of_agent("kubectl/v1.36.3 (linux/amd64)"), "kubectl");
        assert_eq!(of_agent("a\u{7}b"), "ab");
        assert_eq!(of_agent(&"é".repeat(100)).len(), 128);
        assert_eq!(of_agent(""), "");
    }

    #[test]
    fn times_are_unchanged_when_nothing_else_changes() {
        let object = |time: &str, data: &str| json!({"metadata": {"managedFields": [{"manager": "a", "time": time}]}, "data": data});
        for (data, want) in [("x", "1"), ("y", "2")] {
            let mut new = object("2", data);
            keep_times(&object("1", "x"), &mut new);
            assert_eq!(new, object(want, data));
        }
    }
}
