//! Reads the API server's audit log, and checks bindings and leadership with it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use serde_json::{Value, json};

/// A policy that logs every request, without bodies.
pub fn policy_for_all_requests() -> Value {
    policy(json!([{"level": "Metadata"}]))
}

/// A policy that logs every request of the accounts in kube-system, without bodies.
pub fn policy_for_accounts() -> Value {
    let groups = ["system:serviceaccounts:kube-system"];
    policy(json!([{"level": "Metadata", "userGroups": groups}, {"level": "None"}]))
}

/// A policy that logs bindings with the pod's uid, and writes of leases.
pub fn policy_for_bindings_and_leases() -> Value {
    let resource = |group: &str, name: &str| json!([{"group": group, "resources": [name]}]);
    policy(json!([
        {"level": "Request", "verbs": ["create"], "resources": resource("", "pods/binding")},
        {"level": "Metadata", "verbs": ["create", "update", "patch"],
         "resources": resource("coordination.k8s.io", "leases")},
        {"level": "None"}]))
}

/// A policy that logs bindings with the pod's uid, writes of leases, and what a group lists and watches.
pub fn policy_for_bindings_leases_and_lists(group: &str) -> Value {
    let resource = |group: &str, name: &str| json!([{"group": group, "resources": [name]}]);
    policy(json!([
        {"level": "Request", "verbs": ["create"], "resources": resource("", "pods/binding")},
        {"level": "Metadata", "verbs": ["create", "update", "patch"],
         "resources": resource("coordination.k8s.io", "leases")},
        {"level": "Metadata", "verbs": ["list", "watch"], "userGroups": [group]},
        {"level": "None"}]))
}

/// A policy that logs bindings with the pod's uid, and every other request of the accounts in kube-system without its body.
pub fn policy_for_bindings_and_accounts() -> Value {
    let bindings = json!([{"group": "", "resources": ["pods/binding"]}]);
    let groups = ["system:serviceaccounts:kube-system"];
    policy(json!([
        {"level": "Request", "verbs": ["create"], "resources": bindings},
        {"level": "Metadata", "userGroups": groups},
        {"level": "None"}]))
}

/// A policy that logs the writes of `user` to pods, claims and volumes, with their bodies.
pub fn policy_for_writes_with_volumes(user: &str) -> Value {
    let resources = [
        "persistentvolumeclaims",
        "persistentvolumeclaims/status",
        "persistentvolumes",
        "persistentvolumes/status",
        "pods",
        "pods/binding",
        "pods/eviction",
        "pods/status",
    ];
    policy(json!([
        {"level": "Request", "users": [user], "verbs": ["create", "update", "patch", "delete", "deletecollection"],
         "resources": [{"group": "", "resources": resources}]},
        {"level": "None"}]))
}

/// A policy that logs which pods were created, bound and deleted.
pub fn policy_for_writes_of_pods() -> Value {
    let resources = json!([{"group": "", "resources": ["pods", "pods/binding"]}]);
    policy(json!([
        {"level": "Metadata", "verbs": ["create", "delete"], "resources": resources},
        {"level": "None"}]))
}

fn policy(rules: Value) -> Value {
    json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules})
}

/// A completed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    pub user: String,
    /// The User-Agent header.
    pub user_agent: String,
    pub verb: String,
    /// The resource and subresource, such as `pods/binding`; the path of a non-resource request.
    pub resource: String,
    pub namespace: String,
    pub name: String,
    /// The uid of the object, if the policy logs request bodies.
    pub uid: String,
    /// The body, if the policy logs it; otherwise null.
    pub body: Value,
    /// The HTTP status of the response.
    pub code: u16,
    pub received: Timestamp,
    pub answered: Timestamp,
}

impl AuditEntry {
    /// Whether the request was executed.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// Whether the request may have been executed or not, as when its client is stopped before the response.
    pub fn is_outcome_unknown(&self) -> bool {
        self.code >= 500
    }
}

/// All completed requests of a log, in the order of their completion.
pub fn read(path: &Path) -> Result<Vec<AuditEntry>> {
    read_from(path, 0)
}

/// The same for what was logged after the log had this length in bytes.
pub fn read_from(path: &Path, length: u64) -> Result<Vec<AuditEntry>> {
    let mut entries = Vec::new();
    for (i, line) in complete_lines(path, length)?.lines().enumerate() {
        let position = || format!("reading {}, line {}", path.display(), i + 1);
        entries.extend(parse(line).with_context(position)?);
    }
    entries.sort_by_key(|entry| entry.answered);
    Ok(entries)
}

/// What was logged after the log had this length in bytes, without a line that the API server is still writing.
fn complete_lines(path: &Path, length: u64) -> Result<String> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(length))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let mut bytes = read().with_context(|| format!("reading {}", path.display()))?;
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    bytes.truncate(end);
    String::from_utf8(bytes).with_context(|| format!("reading {}", path.display()))
}

/// How often each user has listed each resource, also as a watch that begins with all objects (WatchList). Further pages do not count.
pub fn n_lists(path: &Path) -> Result<BTreeMap<(String, String), u32>> {
    let mut lists = BTreeMap::new();
    for line in complete_lines(path, 0)?.lines() {
        let event: Value = serde_json::from_str(line).context("an entry that is not JSON")?;
        let uri = event["requestURI"].as_str().unwrap_or_default();
        let is_list = match (event["verb"].as_str(), event["stage"].as_str()) {
            (Some("list"), Some("ResponseComplete")) => !uri.contains("continue="),
            // A watch is complete only when it ends.
            (Some("watch"), Some("ResponseStarted")) => uri.contains("sendInitialEvents=true"),
            _ => false,
        };
        if is_list {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let key = (text(&event["user"]["username"]), text(&event["objectRef"]["resource"]));
            *lists.entry(key).or_insert(0) += 1;
        }
    }
    Ok(lists)
}

/// `None` for a stage before ResponseComplete.
fn parse(line: &str) -> Result<Option<AuditEntry>> {
    let mut event: Value = serde_json::from_str(line).context("an entry that is not JSON")?;
    if event["stage"] != "ResponseComplete" {
        return Ok(None);
    }
    let body = event["requestObject"].take();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let time = |name: &str| {
        let time = event[name].as_str().with_context(|| format!("an entry without {name}"))?;
        time.parse::<Timestamp>().with_context(|| format!("{name} {time:?}"))
    };
    let object = &event["objectRef"];
    let mut resource = text(&object["resource"]);
    if resource.is_empty() {
        resource = text(&event["requestURI"]);
    }
    if let Some(subresource) = object["subresource"].as_str() {
        resource = format!("{resource}/{subresource}");
    }
    let code = event["responseStatus"]["code"].as_u64().context("an entry without a code")?;
    Ok(Some(AuditEntry {
        user: text(&event["user"]["username"]),
        user_agent: text(&event["userAgent"]),
        verb: text(&event["verb"]),
        resource,
        namespace: text(&object["namespace"]),
        name: text(&object["name"]),
        uid: text(&object["uid"]),
        body,
        code: u16::try_from(code).context("an entry with an invalid code")?,
        received: time("requestReceivedTimestamp")?,
        answered: time("stageTimestamp")?,
    }))
}

/// A period in which one user was the leader, that is, the only one who wrote the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderTerm {
    pub user: String,
    /// When its first write of the lease succeeded.
    pub from: Timestamp,
}

/// The sequence of leaders, from the writes of the lease. Each process must have its own user.
pub fn leader_terms(entries: &[AuditEntry], lease: &str) -> Vec<LeaderTerm> {
    let mut terms: Vec<LeaderTerm> = Vec::new();
    for entry in entries {
        if entry.resource != "leases" || entry.name != lease || !entry.is_success() {
            continue;
        }
        if terms.last().is_none_or(|term| term.user != entry.user) {
            terms.push(LeaderTerm { user: entry.user.clone(), from: entry.answered });
        }
    }
    terms
}

/// Requests to bind pods.
pub fn bindings(entries: &[AuditEntry]) -> impl Iterator<Item = &AuditEntry> {
    let is_binding =
        |entry: &&AuditEntry| entry.verb == "create" && entry.resource == "pods/binding";
    entries.iter().filter(is_binding)
}

/// Checks the bindings of these pods (uid, and whether it is bound in the end): no pod is bound twice or without a request, and no
/// replica binds while another one leads. Returns one message per fault.
pub fn binding_faults<'a>(
    entries: &[AuditEntry],
    terms: &[LeaderTerm],
    pods: impl Iterator<Item = (&'a str, bool)>,
) -> Vec<String> {
    let pods: BTreeMap<&str, bool> = pods.collect();
    let mut responses: BTreeMap<&str, BindingResponses> = BTreeMap::new();
    let mut faults = Vec::new();
    for binding in bindings(entries) {
        faults.extend(led_by_another(binding, terms));
        if !binding.uid.is_empty() && !pods.contains_key(binding.uid.as_str()) {
            faults.push(format!("{} has a binding request but does not exist", binding.name));
        }
        let responses = responses.entry(&binding.uid).or_default();
        responses.n_successful += u32::from(binding.is_success());
        responses.n_unknown += u32::from(binding.is_outcome_unknown());
    }
    for (uid, is_bound) in pods {
        let BindingResponses { n_successful, n_unknown } =
            responses.get(uid).copied().unwrap_or_default();
        if n_successful > 1 {
            faults.push(format!("the pod with uid {uid} was bound {n_successful} times"));
        } else if is_bound && n_successful == 0 && n_unknown == 0 {
            faults.push(format!(
                "the pod with uid {uid} is bound without a successful binding request"
            ));
        } else if !is_bound && n_successful > 0 {
            faults.push(format!("the pod with uid {uid} was bound but is not bound now"));
        }
    }
    faults
}

/// The responses to all binding requests for one pod.
#[derive(Clone, Copy, Default)]
struct BindingResponses {
    n_successful: u32,
    /// A request whose client died is logged with status 504, even if it was executed.
    n_unknown: u32,
}

/// A fault if a replica sends a binding request while another one leads.
fn led_by_another(binding: &AuditEntry, terms: &[LeaderTerm]) -> Option<String> {
    let leader = terms.iter().rfind(|term| term.from <= binding.received)?;
    (leader.user != binding.user).then(|| {
        format!(
            "{} sent a request at {} to bind {} while {} led since {}",
            binding.user, binding.received, binding.name, leader.user, leader.from
        )
    })
}

/// Requests of a user with status 401 or 403: the count of each kind.
pub fn denied_requests(entries: &[AuditEntry], user: &str) -> BTreeMap<String, u32> {
    let is_denied = |entry: &&AuditEntry| matches!(entry.code, 401 | 403) && entry.user == user;
    let mut kinds = BTreeMap::new();
    for entry in entries.iter().filter(is_denied) {
        let namespace = if entry.namespace.is_empty() {
            String::new()
        } else {
            format!(" in {}", entry.namespace)
        };
        let kind = format!("{} {} {}{namespace}", entry.code, entry.verb, entry.resource);
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

#[cfg(test)]
mod tests;
