//! The audit log: one JSON line per request (`audit.k8s.io/v1`), at the level `Metadata`: user, verb, object, times
//! and status, without bodies. Tokens are never part of it.

mod policy;

use std::io::Write;
#[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, Uri, header};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::authentication::User;
use crate::authorization::{AuthorizationAttributes, AuthorizationDecision, RequestTarget};
use crate::status::ApiError;

pub use policy::{AuditPolicy, PolicyError, Stage};

/// A longer user agent is truncated.
const USER_AGENT_MAX: usize = 1024;

/// The generated name of a created object, an extension of the response.
#[derive(Clone, Debug)]
pub(crate) struct CreatedName(pub Box<str>);

/// Marks the response to a watch, a long-running request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LongRunning;

/// The client's address, an extension of the request.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress(pub std::net::IpAddr);

/// Writes audit events of requests.
pub struct AuditLog {
    policy: AuditPolicy,
    #[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
    out: Mutex<Box<dyn Write + Send>>,
    n_lost: AtomicU64,
}

impl std::fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Audit").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// The audit entry of a request that is being handled.
#[derive(Debug)]
pub(crate) struct AuditEntry {
    omitted: Vec<Stage>,
    received: Timestamp,
    /// What is known before the answer.
    known: Map<String, Value>,
    annotations: Map<String, Value>,
}

impl AuditLog {
    /// An audit log with this policy.
    #[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
    pub fn new(policy: AuditPolicy, out: Box<dyn Write + Send>) -> AuditLog {
        AuditLog { policy, out: Mutex::new(out), n_lost: AtomicU64::new(0) }
    }

    /// How many lines could not be written.
    pub fn n_lost(&self) -> u64 {
        self.n_lost.load(Ordering::Relaxed)
    }

    /// Begins an entry; none if the policy excludes the request. `version` is that of the resource.
    pub(crate) fn begin(
        &self,
        id: &str,
        attributes: &AuthorizationAttributes<'_>,
        version: &str,
        received: Timestamp,
        request: (&Uri, &HeaderMap, Option<PeerAddress>),
    ) -> Option<AuditEntry> {
        let omitted = self.policy.wants(attributes)?;
        let (uri, headers, peer) = request;
        let mut known = Map::new();
        let mut set = |name: &str, value: Value| drop(known.insert(name.to_owned(), value));
        set("kind", "Event".into());
        set("apiVersion", "audit.k8s.io/v1".into());
        set("level", "Metadata".into());
        set("auditID", id.into());
        set("requestURI", uri.path_and_query().map_or("/", |it| it.as_str()).into());
        set("verb", attributes.verb.into());
        set("user", attributes.user.user_info());
        let sources = sources(headers, peer);
        if !sources.is_empty() {
            set("sourceIPs", json!(sources));
        }
        let agent = headers.get(header::USER_AGENT).and_then(|it| it.to_str().ok());
        if let Some(agent) = agent.filter(|it| !it.is_empty()) {
            let cut = agent.get(..USER_AGENT_MAX).map(|it| format!("{it}...TRUNCATED"));
            let short = agent.len() <= USER_AGENT_MAX;
            set("userAgent", cut.filter(|_| !short).unwrap_or_else(|| agent.to_owned()).into());
        }
        if let RequestTarget::Resource(it) = attributes.what {
            let mut object = json!({"resource": it.resource});
            for (field, text) in [
                ("namespace", it.namespace),
                ("name", it.name),
                ("apiGroup", it.group),
                ("apiVersion", version),
                ("subresource", it.subresource),
            ] {
                if !text.is_empty() {
                    object[field] = text.into();
                }
            }
            set("objectRef", object);
        }
        Some(AuditEntry { omitted, received, known, annotations: Map::new() })
    }

    /// Writes a line for a stage. An error is what the request failed with.
    pub(crate) fn write(
        &self,
        entry: &AuditEntry,
        stage: Stage,
        now: Timestamp,
        outcome: (u16, Option<&ApiError>),
    ) {
        if entry.omitted.contains(&stage) {
            return;
        }
        let (code, error) = outcome;
        let mut line = entry.known.clone();
        line.insert("stage".to_owned(), stage.name().into());
        let mut status = json!({"metadata": {}});
        if let Some(error) = error {
            status["status"] = "Failure".into();
            status["message"] = error.message.as_str().into();
            status["reason"] = error.reason.into();
            if error.details.is_object() {
                status["details"] = error.details.clone();
            }
        }
        status["code"] = code.into();
        line.insert("responseStatus".to_owned(), status);
        line.insert("requestReceivedTimestamp".to_owned(), micros(entry.received).into());
        line.insert("stageTimestamp".to_owned(), micros(now).into());
        if !entry.annotations.is_empty() {
            line.insert("annotations".to_owned(), Value::Object(entry.annotations.clone()));
        }
        let mut text = Value::Object(line).to_string();
        text.push('\n');
        let mut out = self.out.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            self.n_lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl AuditEntry {
    /// The audit id, which clients get as a response header.
    pub fn id(&self) -> &str {
        self.known["auditID"].as_str().unwrap_or_default()
    }

    /// Sets the impersonated user.
    pub fn set_impersonated_user(&mut self, user: &User) {
        self.known.insert("impersonatedUser".to_owned(), user.user_info());
    }

    /// Sets the authorization decision.
    pub fn set_decision(&mut self, decision: &AuthorizationDecision) {
        let word = if decision.is_allowed() { "allow" } else { "forbid" };
        let mut add = |name: &str, text: &str| {
            self.annotations.insert(format!("authorization.k8s.io/{name}"), text.into());
        };
        add("decision", word);
        add("reason", decision.reason());
    }

    /// Sets the name of an object that is not in the request's path.
    pub fn set_object_name(&mut self, name: &str) {
        if let Some(object) = self.known.get_mut("objectRef")
            && object["name"].is_null()
        {
            object["name"] = name.into();
        }
    }
}

/// Where a request came from, as proxies and the connection say it.
fn sources(headers: &HeaderMap, peer: Option<PeerAddress>) -> Vec<String> {
    let texts = |name: &str| headers.get_all(name).into_iter().filter_map(|it| it.to_str().ok());
    let forwarded = texts("x-forwarded-for").flat_map(|it| it.split(','));
    let parsed = |text: &str| text.trim().parse::<std::net::IpAddr>().ok();
    let mut all: Vec<std::net::IpAddr> = forwarded.filter_map(parsed).collect();
    if let Some(real) = texts("x-real-ip").find_map(parsed)
        && !all.contains(&real)
    {
        all.push(real);
    }
    if let Some(PeerAddress(peer)) = peer
        && all.last() != Some(&peer)
    {
        all.push(peer);
    }
    all.iter().map(ToString::to_string).collect()
}

/// With six digits, as Go's `MicroTime`.
fn micros(time: Timestamp) -> String {
    format!("{time:.6}")
}
