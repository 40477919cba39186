//! API discovery: aggregated (`apidiscovery.k8s.io/v2`), or group by group.

use http::{HeaderMap, header};
use serde_json::{Value, json};

use crate::schema::{Kind, Kinds, api_version};
use crate::server::ApiResponse;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// `/version`.
pub fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "emulationMajor": "1",
        "emulationMinor": "36",
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35",
        "gitVersion": "v1.36.3+loadmaster",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, architecture()),
    })
}

/// As Go names it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The response to a discovery path; none for other paths.
pub fn discovery_response(kinds: &Kinds, path: &str, headers: &HeaderMap) -> Option<ApiResponse> {
    let aggregated = wants_aggregated(headers);
    match path {
        "/api" if aggregated => Some(aggregated_answer(kinds, |group| group.is_empty())),
        "/apis" if aggregated => Some(aggregated_answer(kinds, |group| !group.is_empty())),
        "/api" => Some(ApiResponse::json(&json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [],
        }))),
        "/apis" => {
            let groups: Vec<Value> = kinds
                .groups()
                .iter()
                .filter(|(group, _)| !group.is_empty())
                .map(|(group, versions)| api_group(group, versions))
                .collect();
            Some(ApiResponse::json(&json!({"kind": "APIGroupList", "apiVersion": "v1",
                "groups": groups})))
        }
        _ => of_group(kinds, path),
    }
}

fn wants_aggregated(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|it| it.to_str().ok()).unwrap_or("");
    accept.split(',').any(|clause| {
        clause.contains("as=APIGroupDiscoveryList")
            && clause.contains("v=v2")
            && !clause.contains("v=v2beta1")
            && clause.trim_start().starts_with("application/json")
    })
}

/// A path such as `/api/v1`, `/apis/apps` or `/apis/apps/v1`.
fn of_group(kinds: &Kinds, path: &str) -> Option<ApiResponse> {
    let (group, version) = match path.strip_prefix("/api/") {
        Some(version) => ("", Some(version)),
        None => match path.strip_prefix("/apis/")?.split_once('/') {
            Some((group, version)) => (group, Some(version)),
            None => (path.strip_prefix("/apis/")?, None),
        },
    };
    let groups = kinds.groups();
    let (group, versions) = groups.iter().find(|(name, _)| *name == group)?;
    let Some(version) = version else {
        return Some(ApiResponse::json(&api_group(group, versions)));
    };
    versions.contains(&version).then(|| ApiResponse::json(&resource_list(kinds, group, version)))
}

fn api_group(group: &str, versions: &[&str]) -> Value {
    let version = |it: &&str| json!({"groupVersion": api_version(group, it), "version": it});
    let versions: Vec<Value> = versions.iter().map(version).collect();
    json!({"kind": "APIGroup", "apiVersion": "v1", "name": group, "preferredVersion": versions[0],
        "versions": versions})
}

fn resource_list(kinds: &Kinds, group: &str, version: &str) -> Value {
    let mut resources = Vec::new();
    for kind in kinds.iter().filter(|it| it.group == group && it.version == version) {
        let mut entry = json!({"name": kind.resource, "singularName": kind.singular,
            "namespaced": kind.is_namespaced, "kind": kind.kind, "verbs": kind.advertised_verbs()});
        if !kind.short_names.is_empty() {
            entry["shortNames"] = json!(kind.short_names);
        }
        if !kind.categories.is_empty() {
            entry["categories"] = json!(kind.categories);
        }
        resources.push(entry);
        for sub in &kind.subresources {
            let mut entry = json!({"name": format!("{}/{}", kind.resource, sub.name),
                "singularName": "", "namespaced": kind.is_namespaced, "kind": sub.kind,
                "verbs": sub.verbs});
            if (sub.group, sub.version) != (kind.group, kind.version) {
                entry["group"] = sub.group.into();
                entry["version"] = sub.version.into();
            }
            resources.push(entry);
        }
    }
    json!({"kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": api_version(group, version), "resources": resources})
}

fn aggregated_answer(kinds: &Kinds, wanted: impl Fn(&str) -> bool) -> ApiResponse {
    let mut items = Vec::new();
    for (group, versions) in kinds.groups().iter().filter(|(group, _)| wanted(group)) {
        let versions: Vec<Value> = versions
            .iter()
            .map(|version| {
                let resources: Vec<Value> = kinds
                    .iter()
                    .filter(|it| it.group == *group && it.version == *version)
                    .map(aggregated_resource)
                    .collect();
                json!({"version": version, "resources": resources, "freshness": "Current"})
            })
            .collect();
        let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
        items.push(json!({"metadata": metadata, "versions": versions}));
    }
    let list = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {}, "items": items});
    ApiResponse::from_bytes(200, AGGREGATED, list.to_string())
}

fn aggregated_resource(kind: &Kind) -> Value {
    let response_kind = |group: &str, version: &str, name: &str| json!({"group": group, "version": version, "kind": name});
    let mut entry = json!({
        "resource": kind.resource,
        "responseKind": response_kind(kind.group, kind.version, kind.kind),
        "scope": if kind.is_namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular,
        "verbs": kind.advertised_verbs(),
    });
    if !kind.short_names.is_empty() {
        entry["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        entry["categories"] = json!(kind.categories);
    }
    if !kind.subresources.is_empty() {
        let subresource = |it: &crate::schema::Subresource| {
            json!({"subresource": it.name, "verbs": it.verbs,
                "responseKind": response_kind(it.group, it.version, it.kind)})
        };
        entry["subresources"] = kind.subresources.iter().map(subresource).collect();
    }
    entry
}
