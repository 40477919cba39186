//! The API server's audit log: who asked for what and when, and what follows from that about binding and leading.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use serde_json::{Value, json};

/// A policy that logs every request, without bodies.
pub fn policy_of_everything() -> Value {
    policy(json!([{"level": "Metadata"}]))
}

/// A policy that logs bindings with the pod's uid, and writes of leases.
pub fn policy_of_bindings_and_leases() -> Value {
    let resource = |group: &str, name: &str| json!([{"group": group, "resources": [name]}]);
    policy(json!([
        {"level": "Request", "verbs": ["create"], "resources": resource("", "pods/binding")},
        {"level": "Metadata", "verbs": ["create", "update", "patch"],
         "resources": resource("coordination.k8s.io", "leases")},
        {"level": "None"}]))
}

fn policy(rules: Value) -> Value {
    json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules})
}

/// A request that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub user: String,
    pub verb: String,
    /// With its subresource, as `pods/binding`; the path where it is no resource.
    pub resource: String,
    pub namespace: String,
    pub name: String,
    /// Of the object, where the policy asks for bodies.
    pub uid: String,
    /// The HTTP status of the answer.
    pub code: u16,
    pub received: Timestamp,
    pub answered: Timestamp,
}

impl Entry {
    fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }
}

/// All answered requests of a log, in the order in which they were answered.
pub fn read(path: &Path) -> Result<Vec<Entry>> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut entries = Vec::new();
    for (i, line) in BufReader::new(file).lines().enumerate() {
        let place = || format!("reading {}, line {}", path.display(), i + 1);
        let line = line.with_context(place)?;
        entries.extend(parse(&line).with_context(place)?);
    }
    entries.sort_by_key(|entry| entry.answered);
    Ok(entries)
}

/// `None` for a stage before the answer was complete.
fn parse(line: &str) -> Result<Option<Entry>> {
    let event: Value = serde_json::from_str(line).context("an entry that is no JSON")?;
    if event["stage"] != "ResponseComplete" {
        return Ok(None);
    }
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
    Ok(Some(Entry {
        user: text(&event["user"]["username"]),
        verb: text(&event["verb"]),
        resource,
        namespace: text(&object["namespace"]),
        name: text(&object["name"]),
        uid: text(&object["uid"]),
        code: u16::try_from(code).context("an entry with an impossible code")?,
        received: time("requestReceivedTimestamp")?,
        answered: time("stageTimestamp")?,
    }))
}

/// The time in which one user, and nobody else, wrote the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    pub user: String,
    /// When its first write had succeeded.
    pub from: Timestamp,
}

/// Who led, one after the other, from the writes of the lease. Each process has to be a user of its own.
pub fn terms(entries: &[Entry], lease: &str) -> Vec<Term> {
    let mut terms: Vec<Term> = Vec::new();
    for entry in entries {
        if entry.resource != "leases" || entry.name != lease || !entry.is_success() {
            continue;
        }
        if terms.last().is_none_or(|term| term.user != entry.user) {
            terms.push(Term { user: entry.user.clone(), from: entry.answered });
        }
    }
    terms
}

/// Requests to bind pods.
pub fn bindings(entries: &[Entry]) -> impl Iterator<Item = &Entry> {
    let is_binding = |entry: &&Entry| entry.verb == "create" && entry.resource == "pods/binding";
    entries.iter().filter(is_binding)
}

/// What is wrong with the bindings of these pods (uid, and whether it is bound in the end): none bound twice, none bound by no request,
/// and nobody bound after another had the lease.
pub fn binding_faults<'a>(
    entries: &[Entry],
    terms: &[Term],
    pods: impl Iterator<Item = (&'a str, bool)>,
) -> Vec<String> {
    let pods: BTreeMap<&str, bool> = pods.collect();
    let mut answers: BTreeMap<&str, Answers> = BTreeMap::new();
    let mut faults = Vec::new();
    for binding in bindings(entries) {
        faults.extend(led_by_another(binding, terms));
        if !binding.uid.is_empty() && !pods.contains_key(binding.uid.as_str()) {
            faults.push(format!("{} was to be bound and is not there", binding.name));
        }
        let answers = answers.entry(&binding.uid).or_default();
        answers.n_good += u32::from(binding.is_success());
        answers.n_unknown += u32::from(binding.code >= 500);
    }
    for (uid, is_bound) in pods {
        let Answers { n_good, n_unknown } = answers.get(uid).copied().unwrap_or_default();
        if n_good > 1 {
            faults.push(format!("the pod with uid {uid} was bound {n_good} times"));
        } else if is_bound && n_good == 0 && n_unknown == 0 {
            faults.push(format!("the pod with uid {uid} is bound, and no request did that"));
        } else if !is_bound && n_good > 0 {
            faults.push(format!("the pod with uid {uid} was bound, and is not"));
        }
    }
    faults
}

/// The answers to all requests to bind one pod.
#[derive(Clone, Copy, Default)]
struct Answers {
    n_good: u32,
    /// A request whose sender died under it is logged as 504, also when it was carried out.
    n_unknown: u32,
}

/// Who asks while another leads has lost the lease and goes on.
fn led_by_another(binding: &Entry, terms: &[Term]) -> Option<String> {
    let leader = terms.iter().rfind(|term| term.from <= binding.received)?;
    (leader.user != binding.user).then(|| {
        format!(
            "{} asked at {} to bind {}, and {} led since {}",
            binding.user, binding.received, binding.name, leader.user, leader.from
        )
    })
}

/// Requests of a user that the API server refused to allow, or did not know him for, each kind with its number.
pub fn refusals(entries: &[Entry], user: &str) -> BTreeMap<String, u32> {
    let refused = |entry: &&Entry| matches!(entry.code, 401 | 403) && entry.user == user;
    let mut kinds = BTreeMap::new();
    for entry in entries.iter().filter(refused) {
        let place = if entry.namespace.is_empty() {
            String::new()
        } else {
            format!(" in {}", entry.namespace)
        };
        let kind = format!("{} {} {}{place}", entry.code, entry.verb, entry.resource);
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

#[cfg(test)]
mod tests;
