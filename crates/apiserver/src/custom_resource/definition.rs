//! CustomResourceDefinitions: defaults, accepted names, conditions, and the resources they define.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_stdx::CollectByInsertion as _;
use loadmaster_stdx::Set;
use loadmaster_stdx::SortCompactly as _;
use serde_json::{Map, Value, json};

use super::cel::Rules;
use super::json_path::Path;
use super::structural::StructuralSchema;
use super::table::{self, Column};
use super::{CurrentCustomResourceVersion, CustomResourceVersion, Scale};
use crate::managed_fields::Types;
use crate::object::{list_entries, members_mut, metadata_text};
use crate::schema::{Kind, Subresource, intern, schema};
use crate::store::TableId;

/// The finalizer of a definition until its objects are deleted.
pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Whether a resource is that of definitions.
pub fn is_custom_resource_definition(kind: &Kind) -> bool {
    kind.is("apiextensions.k8s.io", "customresourcedefinitions")
}

/// Sets the defaults of a definition.
pub fn set_definition_defaults(crd: &mut Map<String, Value>) {
    let Some(spec) = crd.get_mut("spec") else { return };
    let names = members_mut(&mut spec["names"]);
    let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    let is_empty = |value: Option<&Value>| value.and_then(Value::as_str).is_none_or(str::is_empty);
    if is_empty(names.get("singular")) {
        names.insert("singular".to_owned(), kind.to_lowercase().into());
    }
    if is_empty(names.get("listKind")) && !kind.is_empty() {
        names.insert("listKind".to_owned(), format!("{kind}List").into());
    }
    let conversion = members_mut(spec).entry("conversion");
    conversion.or_insert_with(|| json!({"strategy": "None"}));
}

/// Adds the storage version to `status.storedVersions`.
pub fn add_stored_version(crd: &mut Value) {
    let storage = list_entries(&crd["spec"]["versions"]).iter().find(|it| it["storage"] == true);
    let Some(name) = storage.map(|it| it["name"].clone()) else { return };
    let known = members_mut(&mut crd["status"]).entry("storedVersions").or_insert(Value::Null);
    match known {
        Value::Array(known) if known.contains(&name) => {}
        Value::Array(known) => known.push(name),
        _ => *known = json!([name]),
    }
    let empty = [("conditions", Value::Null), ("acceptedNames", json!({"plural": "", "kind": ""}))];
    for (field, value) in empty {
        members_mut(&mut crd["status"]).entry(field).or_insert(value);
    }
}

/// Whether a condition is true.
pub fn has_condition(crd: &Value, kind: &str) -> bool {
    let conditions = list_entries(&crd["status"]["conditions"]);
    conditions.iter().any(|it| it["type"] == kind && it["status"] == "True")
}

/// Sets a condition; its time moves with its status.
pub fn set_condition(crd: &mut Value, kind: &str, condition: (&str, &str, &str), now: &str) {
    let (status, reason, message) = condition;
    let mut condition = json!({"type": kind, "status": status, "reason": reason,
        "message": message, "lastTransitionTime": now});
    let conditions = members_mut(&mut crd["status"]).entry("conditions").or_insert(Value::Null);
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Value::Array(conditions) = conditions else { return };
    match conditions.iter_mut().find(|it| it["type"] == kind) {
        Some(known) => {
            if known["status"] == status {
                condition["lastTransitionTime"] = known["lastTransitionTime"].take();
            }
            *known = condition;
        }
        None => conditions.push(condition),
    }
}

/// Sets the accepted names of a definition and the condition NamesAccepted. `others` are the other definitions of its
/// group.
pub fn set_accepted_names(crd: &mut Value, others: &[&Value], now: &str) {
    let accepted = |it: &&Value| it["status"]["acceptedNames"].clone();
    let others: Vec<Value> = others.iter().map(accepted).collect();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (mut resources, mut kinds) = (Set::default(), Set::default());
    for names in &others {
        resources.extend([text(&names["plural"]), text(&names["singular"])]);
        resources.extend(list_entries(&names["shortNames"]).iter().map(text));
        kinds.extend([text(&names["kind"]), text(&names["listKind"])]);
    }
    let wanted = crd["spec"]["names"].clone();
    let mut names = crd["status"]["acceptedNames"].clone();
    let mut conflict: Option<(&str, String)> = None;
    let taken = |name: &str| format!("{name:?} is already in use");
    let single = [
        ("plural", "PluralConflict", &resources),
        ("singular", "SingularConflict", &resources),
        ("kind", "KindConflict", &kinds),
        ("listKind", "ListKindConflict", &kinds),
    ];
    for (field, reason, used) in single {
        let name = text(&wanted[field]);
        if wanted[field] != names[field] && used.contains(&name) {
            conflict = Some((reason, taken(&name)));
        } else {
            names[field] = wanted[field].clone();
        }
    }
    let own = list_entries(&names["shortNames"]).to_vec();
    let short: Vec<String> = list_entries(&wanted["shortNames"])
        .iter()
        .filter(|it| !own.contains(it) && resources.contains(&text(it)))
        .map(|it| taken(&text(it)))
        .collect();
    let mut copy = |field: &str| match wanted.get(field) {
        Some(value) => names[field] = value.clone(),
        None => drop(members_mut(&mut names).remove(field)),
    };
    copy("categories");
    match short.as_slice() {
        [] => copy("shortNames"),
        [one] => conflict = Some(("ShortNamesConflict", one.clone())),
        _ => conflict = Some(("ShortNamesConflict", format!("[{}]", short.join(", ")))),
    }
    crd["status"]["acceptedNames"] = names;
    if super::validate_definition::is_protected(crd["spec"]["group"].as_str().unwrap_or_default())
        && let Some((status, reason, message)) = super::validate_definition::approval_condition(crd)
    {
        const POLICY: &str = "KubernetesAPIApprovalPolicyConformant";
        set_condition(crd, POLICY, (status, reason, &message), now);
    }
    let is_established = has_condition(crd, "Established");
    match conflict {
        None => {
            set_condition(crd, "NamesAccepted", ("True", "NoConflicts", "no conflicts found"), now);
            if !is_established {
                let condition =
                    ("True", "InitialNamesAccepted", "the initial names have been accepted");
                set_condition(crd, "Established", condition, now);
            }
        }
        Some((reason, message)) => {
            set_condition(crd, "NamesAccepted", ("False", reason, &message), now);
            if !is_established {
                let condition = ("False", "NotAccepted", "not all names are accepted");
                set_condition(crd, "Established", condition, now);
            }
        }
    }
}

const VERBS: &[&str] =
    &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
const PART_VERBS: &[&str] = &["get", "patch", "update"];

/// The resources of an established definition, one per served version. `live` finds those that exist already.
pub fn served_kinds(
    crd: &Value,
    table: TableId,
    live: impl Fn(&str) -> Option<CurrentCustomResourceVersion>,
) -> Vec<Kind> {
    let spec = &crd["spec"];
    let group = spec["group"].as_str().unwrap_or_default();
    let versions = list_entries(&spec["versions"]);
    let api_version = |version: &Value| format!("{group}/{}", str_of(&version["name"]));
    let schema_of = |version: &Value| {
        let written = &version["schema"]["openAPIV3Schema"];
        StructuralSchema::read(written).map(Arc::new).unwrap_or_default()
    };
    let schemas: BTreeMap<String, Arc<StructuralSchema>> =
        versions.iter().map(|it| (api_version(it), schema_of(it))).collect_by_insertion();
    let schemas = Arc::new(schemas);
    let storage = versions.iter().find(|it| it["storage"] == true).map(api_version);
    let mut selectable: Vec<&str> = Vec::new();
    for field in versions.iter().flat_map(|it| list_entries(&it["selectableFields"])) {
        let path = str_of(&field["jsonPath"]);
        if !selectable.contains(&path) {
            selectable.push(path);
        }
    }
    let slots: Arc<[Path]> =
        selectable.iter().map(|it| Path::parse(it).unwrap_or_default()).collect();
    let names = &crd["status"]["acceptedNames"];
    let served = versions.iter().filter(|it| it["served"] == true);
    let make = |version: &Value| {
        let own = api_version(version);
        let schema = schemas.get(&own).cloned().unwrap_or_default();
        let fields = list_entries(&version["selectableFields"]).iter().filter_map(|field| {
            let path = str_of(&field["jsonPath"]);
            let slot = selectable.iter().position(|it| *it == path)?;
            Some((path.trim_start_matches('.').to_owned(), slot))
        });
        let made = CustomResourceVersion {
            list_kind: str_of(&names["listKind"]).to_owned(),
            storage: storage.clone().unwrap_or_else(|| own.clone()),
            api_version: own,
            schemas: Arc::clone(&schemas),
            rules: Rules::compile(&schema),
            schema,
            types: Types::of_resource(
                version["schema"].get("openAPIV3Schema"),
                spec["preserveUnknownFields"] == true,
            ),
            written: version["schema"]["openAPIV3Schema"].clone(),
            has_status: !version["subresources"]["status"].is_null(),
            scale: scale(&version["subresources"]["scale"]),
            columns: columns(version),
            selectable: fields.collect(),
            slots: Arc::clone(&slots),
            warning: warning(spec, version),
            is_terminating: has_condition(crd, "Terminating"),
        };
        kind(crd, version, table, made, &live)
    };
    let mut kinds: Vec<Kind> = served.filter_map(make).collect();
    kinds.sort_compactly_by(|a, b| table::newest_first(a.version, b.version));
    kinds
}

fn kind(
    crd: &Value,
    version: &Value,
    table: TableId,
    made: CustomResourceVersion,
    live: impl Fn(&str) -> Option<CurrentCustomResourceVersion>,
) -> Option<Kind> {
    let names = &crd["status"]["acceptedNames"];
    let text = |value: &Value| intern(str_of(value));
    let list = |value: &Value| list_entries(value).iter().map(text).collect();
    let (group, name) = (text(&crd["spec"]["group"]), text(&version["name"]));
    let type_id = schema().find("meta/v1.PartialObjectMetadata")?;
    let mut subresources = Vec::new();
    if made.has_status {
        let kind = text(&names["kind"]);
        let verbs = PART_VERBS.to_vec();
        let status = Subresource { name: "status", group, version: name, kind, verbs, type_id };
        subresources.push(status);
    }
    if made.scale.is_some() {
        subresources.push(Subresource {
            name: "scale",
            group: "autoscaling",
            version: "v1",
            kind: "Scale",
            verbs: PART_VERBS.to_vec(),
            type_id: schema().find("autoscaling/v1.Scale")?,
        });
    }
    let custom = match live(&made.api_version) {
        Some(live) => {
            live.set(Arc::new(made));
            live
        }
        None => CurrentCustomResourceVersion::new(made),
    };
    Some(Kind {
        group,
        version: name,
        resource: text(&names["plural"]),
        singular: text(&names["singular"]),
        kind: text(&names["kind"]),
        is_namespaced: crd["spec"]["scope"] == "Namespaced",
        verbs: VERBS.to_vec(),
        short_names: list(&names["shortNames"]),
        categories: list(&names["categories"]),
        warning: None,
        subresources,
        type_id,
        table: Some(table),
        custom: Some(custom),
    })
}

fn str_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn scale(scale: &Value) -> Option<Scale> {
    let path = |name: &str| scale[name].as_str().and_then(Path::parse);
    Some(Scale {
        replicas: path("specReplicasPath")?,
        current: path("statusReplicasPath")?,
        selector: path("labelSelectorPath"),
    })
}

fn columns(version: &Value) -> Vec<Column> {
    let columns = list_entries(&version["additionalPrinterColumns"]);
    if columns.is_empty() {
        return vec![Column::age()];
    }
    columns.iter().filter_map(Column::from_definition).collect()
}

/// The warning for clients of a deprecated version, which names a newer one if there is one.
fn warning(spec: &Value, version: &Value) -> Option<String> {
    if version["deprecated"] != true {
        return None;
    }
    if let Some(text) = version["deprecationWarning"].as_str() {
        return Some(text.to_owned());
    }
    let (group, kind) = (str_of(&spec["group"]), str_of(&spec["names"]["kind"]));
    let name = str_of(&version["name"]);
    let text = format!("{group}/{name} {kind} is deprecated");
    let mut newer: Vec<&str> = list_entries(&spec["versions"])
        .iter()
        .filter(|it| it["served"] == true && it["deprecated"] != true)
        .map(|it| str_of(&it["name"]))
        .filter(|it| table::newest_first(it, name).is_lt())
        .collect();
    newer.sort_compactly_by(|a, b| table::newest_first(a, b));
    Some(match newer.first() {
        Some(newest) => format!("{text}; use {group}/{newest} {kind}"),
        None => text,
    })
}

/// Formats that are in a new schema and not in the old one, and are not checked.
pub fn unrecognized_format_warnings(old: Option<&Value>, new: &Value) -> Vec<String> {
    let formats = |crd: &Value| -> Vec<String> {
        let mut found = Vec::new();
        for version in list_entries(&crd["spec"]["versions"]) {
            let Ok(schema) = StructuralSchema::read(&version["schema"]["openAPIV3Schema"]) else {
                continue;
            };
            schema.visit(&mut |node| {
                let is_known = match node.kind.as_str() {
                    "" | "string" => super::formats::is_known(&node.format),
                    "integer" => matches!(node.format.as_str(), "int32" | "int64"),
                    "number" => matches!(node.format.as_str(), "float" | "double"),
                    _ => false,
                };
                if !node.format.is_empty() && !is_known {
                    found.push(node.format.clone());
                }
            });
        }
        found
    };
    let known = old.map(&formats).unwrap_or_default();
    let new = formats(new).into_iter().filter(|it| !known.contains(it));
    new.map(|format| format!("unrecognized format {format:?}")).collect()
}

/// Sets the condition Terminating: the objects are deleted first.
pub fn mark_terminating(crd: &mut Value, now: &str) {
    let metadata = crate::object::meta_mut(crd);
    metadata.insert("deletionTimestamp".to_owned(), now.into());
    let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
    if let Value::Array(finalizers) = finalizers
        && !finalizers.iter().any(|it| it == CLEANUP_FINALIZER)
    {
        finalizers.push(CLEANUP_FINALIZER.into());
    }
    let message =
        "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    set_condition(crd, "Terminating", ("True", "InstanceDeletionPending", message), now);
}

/// Removes the finalizer of a definition whose objects are deleted.
pub fn remove_cleanup_finalizer(crd: &mut Value, now: &str) {
    if let Some(Value::Array(finalizers)) = crate::object::meta_mut(crd).get_mut("finalizers") {
        finalizers.retain(|it| it != CLEANUP_FINALIZER);
    }
    let condition = ("False", "InstanceDeletionCompleted", "removed all instances");
    set_condition(crd, "Terminating", condition, now);
}

/// Whether two definitions are different ones of the same group.
pub fn is_other_definition_in_group(a: &Value, b: &Value) -> bool {
    a["spec"]["group"] == b["spec"]["group"] && metadata_text(a, "name") != metadata_text(b, "name")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crd(name: &str, kind: &str, short: &[&str]) -> Value {
        json!({"metadata": {"name": format!("{name}.e.io")}, "spec": {"group": "e.io", "scope": "Namespaced",
            "names": {"plural": name, "singular": kind.to_lowercase(), "kind": kind,
                "listKind": format!("{kind}List"), "shortNames": short},
            "versions": [{"name": "v1", "served": true, "storage": true}]}})
    }

    fn condition(crd: &Value) -> String {
        let conditions = list_entries(&crd["status"]["conditions"]).iter();
        let text = |it: &Value| {
            format!("{} {} {}", str_of(&it["type"]), str_of(&it["status"]), str_of(&it["reason"]))
        };
        conditions.map(text).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn names_belong_to_the_first_definition() {
        let mut first = crd("gangs", "Gang", &["g"]);
        set_accepted_names(&mut first, &[], "t0");
        assert_eq!(
            condition(&first),
            "NamesAccepted True NoConflicts, Established True InitialNamesAccepted"
        );
        let mut second = crd("groups", "Gang", &[]);
        set_accepted_names(&mut second, &[&first], "t1");
        assert_eq!(
            condition(&second),
            "NamesAccepted False ListKindConflict, Established False NotAccepted"
        );
        let mut third = crd("crews", "Crew", &["g"]);
        set_accepted_names(&mut third, &[&first], "t1");
        assert_eq!(
            condition(&third),
            "NamesAccepted False ShortNamesConflict, Established False NotAccepted"
        );
        // The first goes, and the second has its names.
        set_accepted_names(&mut second, &[], "t2");
        assert_eq!(
            condition(&second),
            "NamesAccepted True NoConflicts, Established True InitialNamesAccepted"
        );
        assert_eq!(second["status"]["conditions"][0]["lastTransitionTime"], "t2");
    }

    #[test]
    fn storage_versions_are_remembered() {
        let mut crd = crd("gangs", "Gang", &[]);
        add_stored_version(&mut crd);
        crd["spec"]["versions"][0]["name"] = "v2".into();
        add_stored_version(&mut crd);
        add_stored_version(&mut crd);
        assert_eq!(crd["status"]["storedVersions"], json!(["v1", "v2"]));
    }

    #[test]
    fn a_deprecated_version_names_a_newer_one() {
        let mut crd = crd("gangs", "Gang", &[]);
        crd["spec"]["versions"] = json!([{"name": "v1alpha1", "served": true, "deprecated": true},
            {"name": "v1beta1", "served": true}, {"name": "v1", "served": true, "storage": true}]);
        let version = crd["spec"]["versions"][0].clone();
        let want = "e.io/v1alpha1 Gang is deprecated; use e.io/v1 Gang";
        assert_eq!(warning(&crd["spec"], &version).as_deref(), Some(want));
    }
}
