//! Creating objects, and reading the bodies of requests.

use http::Response;
use loadmaster_api::document::from_yaml;
use serde_json::{Value, json};
use serde_saphyr::{DefaultMessageFormatter, Error as YamlError, MessageFormatter as _};

use super::body::Body;
use super::certificate_signing_requests::prepare_request;
use super::field_manager::Write;
use super::{ApiResponse, ApiServer, ResourceRequest, rfc3339_seconds, uid};
use crate::custom_resource::{CurrentCustomResourceVersion, definition};
use crate::managed_fields::is_managed_fields_reset;
use crate::object::{check_depth, draft, key_of, meta_mut, metadata_text};
use crate::request::{FieldValidation, content_type};
use crate::schema::{
    DecodeError, Decoded, Kind, Subresource, TypeId, decode, duplicate_fields, schema,
};
use crate::status::{ApiError, Cause};
use crate::store::{Precondition, WriteConflict};
use crate::{audit, defaults, event_conversion, protobuf, strategy, validate};

/// The accepted media types of a request body.
const ACCEPTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// How many unknown and duplicate fields are reported, as in upstream's decoder.
const N_COMPLAINTS_MAX: usize = 100;

/// How many names are tried for an object, as upstream's `maxNameGenerationCreateAttempts`.
const N_NAMES_MAX: usize = 8;

/// The type that a body must have.
#[derive(Clone, Copy)]
pub(super) struct Expected<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
    pub type_id: TypeId,
    /// Present for custom objects.
    pub custom: Option<&'a CurrentCustomResourceVersion>,
}

impl<'a> Expected<'a> {
    /// An object of the resource itself.
    pub fn of(kind: &'a Kind) -> Expected<'a> {
        Expected {
            group: kind.group,
            version: kind.version,
            kind: kind.kind,
            type_id: kind.type_id,
            custom: kind.custom.as_ref(),
        }
    }

    /// The object of a subresource, such as a Scale.
    pub fn of_subresource(sub: &Subresource) -> Expected<'a> {
        let Subresource { group, version, kind, type_id, .. } = *sub;
        Expected { group, version, kind, type_id, custom: None }
    }

    fn api_version(self) -> String {
        crate::schema::api_version(self.group, self.version)
    }
}

impl ApiServer {
    /// Decodes a body. The texts are warnings for the client.
    pub(super) fn read_body(
        &self,
        call: &ResourceRequest<'_>,
        expected: Expected<'_>,
    ) -> Result<(Value, Vec<String>), ApiError> {
        let value = match content_type(call.headers) {
            "application/json" | "" => loadmaster_stdx::json::from_slice(call.body).map_err(|error| {
                let why = match call.body {
                    [] => "unexpected end of JSON input (<empty>)".to_owned(),
                    _ => error.to_string(),
                };
                ApiError::bad_request(format!(
                    "the object provided is unrecognized (must be of type {}): couldn't get version/kind; json parse error: {why}",
                    expected.kind
                ))
            })?,
            "application/yaml" => yaml(call.body)?,
            protobuf::MEDIA_TYPE if expected.custom.is_none() => {
                let (value, kind) = from_protobuf(call.body, expected.type_id)?;
                check_kind(&kind.0, &kind.1, expected)?;
                value
            }
            _ => return Err(ApiError::unsupported_media_type(ACCEPTED)),
        };
        let validation = FieldValidation::of(call.query)?;
        let is_json = matches!(content_type(call.headers), "application/json" | "");
        let warnings = match validation {
            FieldValidation::Ignore => Vec::new(),
            _ if is_json => duplicate_fields(call.body),
            _ => Vec::new(),
        };
        if expected.custom.is_some() {
            check_custom_kind(&value, call, expected)?;
        }
        self.typed_with(value, expected, validation, warnings)
    }

    /// Decodes a value as its type.
    pub(super) fn typed(
        &self,
        value: Value,
        expected: Expected<'_>,
        validation: FieldValidation,
    ) -> Result<(Value, Vec<String>), ApiError> {
        self.typed_with(value, expected, validation, Vec::new())
    }

    /// The same, with the errors about the text it was parsed from.
    fn typed_with(
        &self,
        mut value: Value,
        expected: Expected<'_>,
        validation: FieldValidation,
        mut warnings: Vec<String>,
    ) -> Result<(Value, Vec<String>), ApiError> {
        if is_managed_fields_reset(&value["metadata"]["managedFields"]) {
            // An empty list would be omitted.
            value["metadata"]["managedFields"] = json!([{}]);
        }
        let text = |name: &str| value[name].as_str().unwrap_or_default();
        check_kind(text("apiVersion"), text("kind"), expected)?;
        let cannot = |what: String| {
            let Expected { version, kind, .. } = expected;
            ApiError::bad_request(format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: {what}"
            ))
        };
        let reading = reading(value, expected).map_err(|problem| cannot(problem.0))?;
        let value = reading.value;
        warnings.extend(reading.unknown);
        warnings.truncate(N_COMPLAINTS_MAX);
        match validation {
            FieldValidation::Strict if !warnings.is_empty() => {
                Err(cannot(format!("strict decoding error: {}", warnings.join(", "))))
            }
            FieldValidation::Warn => Ok((value, warnings)),
            _ => Ok((value, Vec::new())),
        }
    }

    pub(super) fn create(&self, call: &ResourceRequest<'_>) -> Result<Response<Body>, ApiError> {
        if !call.target.name.is_empty() {
            return Err(ApiError::method_not_allowed());
        }
        let manager = call.manager("CreateOptions")?;
        let (mut value, mut warnings) = self.read_body(call, Expected::of(call.kind))?;
        prepare_request(call, &mut value)?;
        if definition::is_custom_resource_definition(call.kind) {
            warnings.extend(definition::unrecognized_format_warnings(None, &value));
        }
        self.check_escalation(call, None, &value)?;
        let dry_run = call.query.dry_run()?;
        let write = Write { kind: call.kind, subresource: "", manager: Some(&manager) };
        let value = self.create_value(write, &call.target.namespace, value, dry_run)?;
        Ok(self.created_answer(call, value, warnings))
    }

    /// The response to a create.
    pub(super) fn created_answer(
        &self,
        call: &ResourceRequest<'_>,
        value: Value,
        warnings: Vec<String>,
    ) -> Response<Body> {
        let shown = event_conversion::to_request_version(call.kind, value);
        let answer = ApiResponse::value_in_view(201, call.kind, &shown, call.form, self.now());
        let mut response = answer.with_warnings(warnings).into_response();
        response.extensions_mut().insert(audit::CreatedName(metadata_text(&shown, "name").into()));
        response
    }

    /// Creates the object of an update or apply if it does not exist.
    pub(super) fn create_as_named(
        &self,
        call: &ResourceRequest<'_>,
        write: Write<'_>,
        mut value: Value,
        dry_run: bool,
    ) -> Result<Value, ApiError> {
        // The right to update is not enough to create.
        self.authorize(&call.attributes("create"))?;
        meta_mut(&mut value).remove("resourceVersion");
        let uid = metadata_text(&value, "uid");
        if !uid.is_empty() {
            let why = match write.manager {
                Some(_) => {
                    format!("Precondition failed: UID in precondition: {uid}, UID in object meta: ")
                }
                None => format!(
                    "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                ),
            };
            return Err(ApiError::conflict(call.kind, "", &call.target.name, &why));
        }
        prepare_request(call, &mut value)?;
        self.check_escalation(call, None, &value)?;
        self.create_value(write, &call.target.namespace, value, dry_run)
    }

    /// Creates an object from a decoded value and returns it as stored. If a generated name is taken, another one is
    /// tried.
    pub(super) fn create_value(
        &self,
        write: Write<'_>,
        namespace: &str,
        value: Value,
        dry_run: bool,
    ) -> Result<Value, ApiError> {
        let is_made_up = metadata_text(&value, "name").is_empty()
            && !metadata_text(&value, "generateName").is_empty();
        let n_more = if is_made_up { N_NAMES_MAX - 1 } else { 0 };
        for _ in 0..n_more {
            match self.create_once(write, namespace, value.clone(), dry_run) {
                Err(error) if error.reason == "AlreadyExists" => {}
                made => return made,
            }
        }
        self.create_once(write, namespace, value, dry_run)
    }

    fn create_once(
        &self,
        write: Write<'_>,
        namespace: &str,
        value: Value,
        dry_run: bool,
    ) -> Result<Value, ApiError> {
        let kind = write.kind;
        let table = kind.table.ok_or_else(ApiError::no_such_resource)?;
        let _alone = self.lock_services(kind);
        let mut value = event_conversion::to_storage_version(kind, value);
        self.name_it(kind, namespace, &mut value)?;
        self.check_namespace(kind, namespace, metadata_text(&value, "name"))?;
        defaults::apply_defaults(kind, &mut value);
        self.enter(write, None, &mut value);
        self.admit(kind, &mut value)?;
        strategy::prepare_create(kind, &mut value);
        let causes = validate::create(kind, &value);
        let name = metadata_text(&value, "name").to_owned();
        if !causes.is_empty() {
            return Err(ApiError::invalid(kind, &name, &causes));
        }
        self.check_limits(kind, &value)?;
        check_depth(&value)?;
        loop {
            let quota_updates = self.quota_updates(write, None, &value)?;
            if dry_run {
                let key = key_of(kind, namespace, &name);
                return match self.state().store.get(table, &key) {
                    Some(_) => Err(ApiError::already_exists(kind, &name)),
                    None => Ok(value),
                };
            }
            match self.put_with_quota(
                table,
                Precondition::Absent,
                draft(kind, &value)?,
                quota_updates,
            ) {
                Ok(object) => {
                    let revision = object.revision().to_string();
                    meta_mut(&mut value).insert("resourceVersion".to_owned(), revision.into());
                    return Ok(value);
                }
                // A quota has changed meanwhile.
                Err(WriteConflict::Changed) => {}
                Err(WriteConflict::Exists | WriteConflict::Missing) => {
                    return Err(ApiError::already_exists(kind, &name));
                }
            }
        }
    }

    /// Sets the name, the namespace and the system metadata of a new object.
    fn name_it(&self, kind: &Kind, namespace: &str, value: &mut Value) -> Result<(), ApiError> {
        let given = metadata_text(value, "namespace").to_owned();
        if kind.is_namespaced && !given.is_empty() && given != namespace {
            return Err(ApiError::other_namespace());
        }
        if !metadata_text(value, "resourceVersion").is_empty() {
            return Err(ApiError::unclassified(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let (mut name, prefix) = (
            metadata_text(value, "name").to_owned(),
            metadata_text(value, "generateName").to_owned(),
        );
        let (uid, suffix) = {
            let rng = &mut self.state().rng;
            (uid(rng), suffix(rng))
        };
        if name.is_empty() && !prefix.is_empty() {
            // Names of services and the like have 63 bytes.
            let stem: String = prefix.chars().take(58).collect();
            name = format!("{stem}{suffix}");
        }
        if name.is_empty() && kind.is("", "limitranges") {
            name.clone_from(&uid);
        }
        if name.is_empty() {
            let cause = Cause::required("metadata.name", "name or generateName is required");
            return Err(ApiError::invalid(kind, "", &[cause]));
        }
        let created = rfc3339_seconds(self.now());
        let metadata = meta_mut(value);
        for unset in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"] {
            metadata.remove(unset);
        }
        metadata.insert("name".to_owned(), name.into());
        if kind.is_namespaced {
            metadata.insert("namespace".to_owned(), namespace.into());
        } else {
            metadata.remove("namespace");
        }
        metadata.insert("uid".to_owned(), uid.into());
        metadata.insert("creationTimestamp".to_owned(), created.into());
        Ok(())
    }

    /// Rejects an object in a namespace that does not exist or is being deleted.
    pub(super) fn check_namespace(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
    ) -> Result<(), ApiError> {
        if !kind.is_namespaced {
            return Ok(());
        }
        let found = self.get_object(self.own_kind("", "namespaces")?, "", namespace)?;
        if found.selectable_values().iter().any(|field| &**field == "Terminating") {
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            let mut error = ApiError::forbidden(kind, name, &why);
            error.details["causes"] = json!([{"reason": "NamespaceTerminating",
                "message": format!("namespace {namespace} is being terminated"),
                "field": "metadata.namespace"}]);
            return Err(error);
        }
        Ok(())
    }
}

/// A decoded value, with its `apiVersion` and `kind`.
pub(super) fn reading(value: Value, expected: Expected<'_>) -> Result<Decoded, DecodeError> {
    let mut reading = match expected.custom {
        Some(custom) => custom.get().decode(value)?,
        None => decode(schema(), expected.type_id, value)?,
    };
    reading.value["apiVersion"] = expected.api_version().into();
    reading.value["kind"] = expected.kind.into();
    Ok(reading)
}

/// The object in a protobuf body, with the version and kind of its envelope.
fn from_protobuf(body: &[u8], id: TypeId) -> Result<(Value, (String, String)), ApiError> {
    let bad = |error: protobuf::ProtobufError| ApiError::bad_request(error.to_string());
    let envelope = protobuf::decode_envelope(body).map_err(bad)?;
    let value = protobuf::decode_message(schema(), id, &envelope.raw).map_err(bad)?;
    Ok((value, (envelope.api_version, envelope.kind)))
}

pub(super) fn yaml(body: &[u8]) -> Result<Value, ApiError> {
    let text = std::str::from_utf8(body)
        .map_err(|_| ApiError::bad_request("error converting YAML to JSON: yaml: not UTF-8"))?;
    from_yaml(text).map_err(|error| {
        let mut error = &error;
        while let YamlError::AliasError { error: inner, .. }
        | YamlError::WithSnippet { error: inner, .. } = error
        {
            error = inner;
        }
        // Upstream does not name the first line.
        let line = error.location().map(|at| at.line()).filter(|line| *line > 1);
        let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
        let text = DefaultMessageFormatter.format_message(error);
        ApiError::bad_request(format!("error converting YAML to JSON: yaml: {place}{text}"))
    })
}

/// A custom object must have `apiVersion` and `kind`.
fn check_custom_kind(
    value: &Value,
    call: &ResourceRequest<'_>,
    expected: Expected<'_>,
) -> Result<(), ApiError> {
    let text = |name: &str| value[name].as_str().unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if kind.is_empty() {
        let body = String::from_utf8_lossy(call.body);
        return Err(ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): Object 'Kind' is missing in '{body}' ({body})",
            expected.kind
        )));
    }
    if api_version == expected.api_version() && kind != expected.kind {
        let cause = Cause::invalid("kind", &kind.into(), &format!("must be {}", expected.kind));
        let name = metadata_text(value, "name");
        return Err(ApiError::invalid_named(expected.group, kind, name, &[cause]));
    }
    Ok(())
}

fn check_kind(api_version: &str, kind: &str, expected: Expected<'_>) -> Result<(), ApiError> {
    let wanted = expected.api_version();
    if !api_version.is_empty() && api_version != wanted {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({wanted})"
        )));
    }
    if !kind.is_empty() && kind != expected.kind {
        return Err(ApiError::bad_request(format!(
            "{kind} in version {:?} cannot be handled as a {}: no kind {kind:?} is registered for this path",
            expected.version, expected.kind
        )));
    }
    Ok(())
}

/// Five letters and digits without vowels, as upstream's name generator makes.
pub(super) fn suffix(rng: &mut loadmaster_stdx::Rng) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    (0..5).map(|_| char::from(*rng.pick(ALPHABET))).collect()
}
