//! Validates CustomResourceDefinitions, with upstream's messages.
//!
//! Upstream moves what all versions have in common to the definition itself before validation, so errors about a
//! schema that is the same in all versions name `spec.validation`, not `spec.versions[0].schema`; so do these.

mod rules;
mod schema;
#[cfg(test)]
mod tests;

use serde_json::Value;

pub use rules::field_path;

use super::json_path::Path;
use super::structural::StructuralSchema;
use crate::object::{list_entries, metadata_text};
use crate::status::Cause;
use crate::validate::names;

/// Validates a new definition.
pub fn validate_definition_create(crd: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let spec = &crd["spec"];
    let wanted = format!("{}.{}", str_of(&spec["names"]["plural"]), str_of(&spec["group"]));
    if metadata_text(crd, "name") != wanted {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        causes.push(Cause::invalid("metadata.name", &metadata_text(crd, "name").into(), detail));
    }
    self::spec(spec, &mut causes);
    if list_entries(&crd["status"]["storedVersions"]).is_empty() {
        let detail = "must have at least one stored version";
        causes.push(Cause::invalid("status.storedVersions", &Value::Null, detail));
    }
    approval(crd, None, &mut causes);
    causes
}

/// Validates an update of a definition.
pub fn validate_definition_update(old: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let spec = &new["spec"];
    self::spec(spec, &mut causes);
    let mut fixed = |path: &str| {
        let at = |object: &Value| object.pointer(&format!("/{path}")).cloned().unwrap_or_default();
        let now = at(new);
        if at(old) != now {
            let field = path.replace('/', ".");
            causes.push(Cause::invalid(field, &now, "field is immutable"));
        }
    };
    if super::definition::has_condition(old, "Established") {
        fixed("spec/scope");
        fixed("spec/names/kind");
    }
    fixed("spec/group");
    fixed("spec/names/plural");
    stored_versions(new, &mut causes);
    approval(new, Some(old), &mut causes);
    causes
}

/// Stored versions cannot be removed.
fn stored_versions(crd: &Value, causes: &mut Vec<Cause>) {
    for (at, stored) in list_entries(&crd["status"]["storedVersions"]).iter().enumerate() {
        if !list_entries(&crd["spec"]["versions"]).iter().any(|it| it["name"] == *stored) {
            let name = str_of(stored);
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            );
            causes.push(Cause::invalid(format!("status.storedVersions[{at}]"), stored, &detail));
        }
    }
}

fn str_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn spec(spec: &Value, causes: &mut Vec<Cause>) {
    let group = str_of(&spec["group"]);
    let complaints = names::subdomain(group);
    if group.is_empty() {
        causes.push(Cause::required("spec.group", ""));
    } else if !complaints.is_empty() {
        causes.push(Cause::invalid("spec.group", &spec["group"], &complaints.join(",")));
    } else if !group.contains('.') {
        let detail = "should be a domain with at least one dot";
        causes.push(Cause::invalid("spec.group", &spec["group"], detail));
    }
    one_of("spec.scope", &spec["scope"], &["Cluster", "Namespaced"], causes);
    if spec["preserveUnknownFields"] == true {
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        causes.push(Cause::invalid("spec.preserveUnknownFields", &true.into(), detail));
    }
    versions(spec, causes);
    for name in ["plural", "singular", "kind", "listKind"] {
        if str_of(&spec["names"][name]).is_empty() {
            causes.push(Cause::required(format!("spec.names.{name}"), ""));
        }
    }
    names(&spec["names"], causes);
    conversion(&spec["conversion"], causes);
}

fn one_of(field: &str, value: &Value, allowed: &[&str], causes: &mut Vec<Cause>) {
    match str_of(value) {
        "" => causes.push(Cause::required(field, "")),
        given if allowed.contains(&given) => {}
        _ => causes.push(Cause::not_supported(field, value, allowed)),
    }
}

fn conversion(conversion: &Value, causes: &mut Vec<Cause>) {
    let strategy = &conversion["strategy"];
    if strategy == "Webhook" {
        let detail = "conversion webhooks are not called by this server";
        causes.push(Cause::invalid("spec.conversion.strategy", strategy, detail));
    } else if !conversion.is_null() {
        one_of("spec.conversion.strategy", strategy, &["None", "Webhook"], causes);
    }
}

fn names(names: &Value, causes: &mut Vec<Cause>) {
    let mut label = |field: String, value: &Value, prefix: &str| {
        let name = str_of(value);
        let complaints = names::dns1035(&name.to_lowercase());
        let is_mixed = prefix.is_empty() && name.chars().any(char::is_uppercase);
        let complaints = if is_mixed { names::dns1035(name) } else { complaints };
        if !name.is_empty() && !complaints.is_empty() {
            let detail = format!("{prefix}{}", complaints.join(","));
            causes.push(Cause::invalid(field, value, &detail));
        }
    };
    const MIXED: &str = "may have mixed case, but should otherwise match: ";
    label("spec.names.plural".to_owned(), &names["plural"], "");
    label("spec.names.singular".to_owned(), &names["singular"], "");
    label("spec.names.kind".to_owned(), &names["kind"], MIXED);
    label("spec.names.listKind".to_owned(), &names["listKind"], MIXED);
    for list in ["shortNames", "categories"] {
        for (at, name) in list_entries(&names[list]).iter().enumerate() {
            label(format!("spec.names.{list}[{at}]"), name, "");
        }
    }
    if !names["kind"].is_null() && names["kind"] == names["listKind"] {
        let detail = "kind and listKind may not be the same";
        causes.push(Cause::invalid("spec.names.listKind", &names["listKind"], detail));
    }
}

/// A field of the versions, where upstream looks for it: in one place if all say the same.
fn lifted<'a>(versions: &'a [Value], field: &str, name: &str) -> Vec<(String, &'a Value)> {
    let Some(first) = versions.first() else { return Vec::new() };
    if versions.iter().all(|it| it[field] == first[field]) {
        return vec![(format!("spec.{name}"), &first[field])];
    }
    let each = versions.iter().enumerate();
    each.map(|(at, it)| (format!("spec.versions[{at}].{field}"), &it[field])).collect()
}

fn versions(spec: &Value, causes: &mut Vec<Cause>) {
    let versions = list_entries(&spec["versions"]);
    for (at, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{at}]");
        if version["schema"]["openAPIV3Schema"].is_null() {
            causes.push(Cause::required(format!("{path}.schema.openAPIV3Schema"), ""));
        }
        let complaints = names::dns1035(str_of(&version["name"]));
        if !complaints.is_empty() {
            let field = format!("{path}.name");
            causes.push(Cause::invalid(field, &version["name"], &complaints.join(",")));
        }
        deprecation(version, &path, causes);
    }
    let names: Vec<&Value> = versions.iter().map(|it| &it["name"]).collect();
    let is_unique = (1..names.len()).all(|at| !names[..at].contains(&names[at]));
    if !is_unique {
        causes.push(of_versions(versions, "must contain unique version names"));
    }
    if versions.iter().filter(|it| it["storage"] == true).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        causes.push(of_versions(versions, detail));
    }
    if let Some(first) = versions.first() {
        let complaints = names::dns1035(str_of(&first["name"]));
        if !complaints.is_empty() {
            causes.push(Cause::invalid("spec.version", &first["name"], &complaints.join(",")));
        }
    }
    let has_status = versions.iter().any(|it| !it["subresources"]["status"].is_null());
    let schemas = lifted(versions, "schema", "validation");
    for (at, (path, value)) in schemas.iter().enumerate() {
        let own = versions.get(at).is_some_and(|it| !it["subresources"]["status"].is_null());
        let is_lifted = schemas.len() == 1;
        let field = format!("{path}.openAPIV3Schema");
        let with_status = if is_lifted { has_status } else { own };
        schema::validate_schema(&value["openAPIV3Schema"], &field, with_status, causes);
    }
    for (path, value) in lifted(versions, "subresources", "subresources") {
        scale(&value["scale"], &path, causes);
    }
    for (path, value) in lifted(versions, "additionalPrinterColumns", "additionalPrinterColumns") {
        for (at, column) in list_entries(value).iter().enumerate() {
            self::column(column, &format!("{path}[{at}]"), causes);
        }
    }
    let selectable = lifted(versions, "selectableFields", "selectableFields");
    for (version, (path, value)) in versions.iter().zip(selectable) {
        selectable_fields(value, &version["schema"]["openAPIV3Schema"], &path, causes);
    }
}

/// An error that shows all versions, in the form of upstream's internal type, which has what they share elsewhere.
fn of_versions(versions: &[Value], detail: &str) -> Cause {
    let shown = versions.iter().map(|it| {
        let flag = |name: &str| it[name] == true;
        format!(
            "{{\"Name\":{},\"Served\":{},\"Storage\":{},\"Deprecated\":{},\"DeprecationWarning\":{},\"Schema\":null,\"Subresources\":null,\"AdditionalPrinterColumns\":null,\"SelectableFields\":null}}",
            it["name"], flag("served"), flag("storage"), flag("deprecated"), it["deprecationWarning"],
        )
    });
    let shown = shown.collect::<Vec<_>>().join(",");
    Cause {
        reason: "FieldValueInvalid",
        message: format!("Invalid value: [{shown}]: {detail}"),
        field: "spec.versions".to_owned(),
    }
}

fn deprecation(version: &Value, path: &str, causes: &mut Vec<Cause>) {
    let Some(warning) = version["deprecationWarning"].as_str() else { return };
    let detail = if version["deprecated"] != true {
        "can only be set for deprecated versions"
    } else if warning.len() > 256 {
        "must be <= 256 characters long"
    } else if warning.is_empty() {
        "must not be an empty string"
    } else {
        return;
    };
    let field = format!("{path}.deprecationWarning");
    causes.push(Cause::invalid(field, &warning.into(), detail));
}

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];

fn column(column: &Value, path: &str, causes: &mut Vec<Cause>) {
    if str_of(&column["name"]).is_empty() {
        causes.push(Cause::required(format!("{path}.name"), ""));
    }
    let detail = format!("must be one of {}", COLUMN_TYPES.join(","));
    match str_of(&column["type"]) {
        "" => causes.push(Cause::required(format!("{path}.type"), &detail)),
        kind if COLUMN_TYPES.contains(&kind) => {}
        _ => causes.push(Cause::invalid(format!("{path}.type"), &column["type"], &detail)),
    }
    let format = str_of(&column["format"]);
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
        let detail = format!("must be one of {}", COLUMN_FORMATS.join(","));
        causes.push(Cause::invalid(format!("{path}.format"), &column["format"], &detail));
    }
    let field = format!("{path}.JSONPath");
    if str_of(&column["jsonPath"]).is_empty() {
        causes.push(Cause::required(field, ""));
    } else {
        simple_path(&column["jsonPath"], field, causes);
    }
}

/// A path has to begin with a dot. Upstream finds out at run time what else it cannot read; a column that cannot be read
/// is refused here.
fn simple_path(value: &Value, field: String, causes: &mut Vec<Cause>) -> bool {
    let path = str_of(value);
    if !path.starts_with('.') {
        let detail = "must be a simple json path starting with .";
        causes.push(Cause::invalid(field, value, detail));
        return false;
    }
    if Path::parse(path).is_none() {
        causes.push(Cause::invalid(field, value, "must be a json path in the dot notation"));
        return false;
    }
    true
}

fn scale(scale: &Value, path: &str, causes: &mut Vec<Cause>) {
    if scale.is_null() {
        return;
    }
    let mut check = |name: &str, roots: &[&str], under: &str, is_required: bool| {
        let field = format!("{path}.scale.{name}");
        let value = &scale[name];
        if str_of(value).is_empty() {
            if is_required {
                causes.push(Cause::required(field, ""));
            }
        } else if simple_path(value, field.clone(), causes)
            && !roots.iter().any(|root| str_of(value).starts_with(root))
        {
            let detail = format!("should be a json path under {under}");
            causes.push(Cause::invalid(field, value, &detail));
        }
    };
    check("specReplicasPath", &[".spec."], ".spec", true);
    check("statusReplicasPath", &[".status."], ".status", true);
    check("labelSelectorPath", &[".spec.", ".status."], "either .spec or .status", false);
}

/// As upstream's `MaxSelectableFields`.
const N_SELECTABLE_MAX: usize = 8;

fn selectable_fields(fields: &Value, schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    let Ok(schema) = StructuralSchema::read(schema) else { return };
    let mut seen: Vec<&str> = Vec::new();
    for (at, field) in list_entries(fields).iter().enumerate() {
        let place = format!("{path}[{at}].jsonPath");
        let (value, text) = (&field["jsonPath"], str_of(&field["jsonPath"]));
        if text.is_empty() {
            causes.push(Cause::required(place, ""));
            continue;
        }
        match rules::field_path(text, &schema, false) {
            Err(why) => {
                causes.push(Cause::invalid(place, value, &format!("is an invalid path: {why}")));
                continue;
            }
            Ok((_, found)) => {
                if text.starts_with(".metadata") {
                    let detail = "must not point to fields in metadata";
                    causes.push(Cause::invalid(place.clone(), value, detail));
                }
                if !matches!(found.kind.as_str(), "string" | "boolean" | "integer") {
                    let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
                    causes.push(Cause::invalid(place.clone(), value, detail));
                }
            }
        }
        if seen.contains(&text) {
            causes.push(Cause::duplicate(place, value));
        } else {
            seen.push(text);
        }
    }
    if seen.len() > N_SELECTABLE_MAX {
        causes.push(Cause::too_many(path, seen.len() as i64, N_SELECTABLE_MAX as i64));
    }
}

const APPROVAL: &str = "api-approved.kubernetes.io";

/// Whether a group is a protected one of the Kubernetes community, which needs an approval annotation.
pub fn is_protected(group: &str) -> bool {
    let within = |suffix: &str| group == suffix || group.ends_with(&format!(".{suffix}"));
    within("k8s.io") || within("kubernetes.io")
}

/// How the API of a protected group was approved: what a condition says of it.
pub fn approval_condition(crd: &Value) -> Option<(&'static str, &'static str, String)> {
    let given = crd["metadata"]["annotations"][APPROVAL].as_str()?;
    if given.starts_with("unapproved") {
        return Some(("False", "UnapprovedAnnotation", format!("not approved: {given:?}")));
    }
    is_url(given).then(|| ("True", "ApprovedAnnotation", format!("approved in {given}")))
}

/// Validates the approval annotation.
fn approval(crd: &Value, old: Option<&Value>, causes: &mut Vec<Cause>) {
    let group = str_of(&crd["spec"]["group"]);
    if !is_protected(group) {
        return;
    }
    let given = |crd: &Value| crd["metadata"]["annotations"][APPROVAL].as_str().map(str::to_owned);
    let now = given(crd);
    if old.is_some_and(|old| given(old) == now) {
        return;
    }
    let field = format!("metadata.annotations[{APPROVAL}]");
    match now.as_deref() {
        None | Some("") => {
            let detail = "protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111";
            causes.push(Cause::required(field, detail));
        }
        Some(text) if text.starts_with("unapproved") || is_url(text) => {}
        Some(text) => {
            let detail = "protected groups must have approval annotation \"api-approved.kubernetes.io\" with either a URL or a reason starting with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111";
            causes.push(Cause::invalid(field, &text.into(), detail));
        }
    }
}

fn is_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty())
}
