//! The API server without sockets: a function from a request and its user to a response. All state is behind one
//! lock, which is held only for operations of the store; decoding and encoding happen outside it.

mod admission;
mod audit_log;
mod authenticate;
mod authorization;
mod body;
mod bootstrap;
mod certificate_signing_requests;
mod change_notifier;
mod cluster_options;
mod create;
mod custom_resource_definitions;
mod default_classes;
mod delete;
mod durability;
mod event_ttl;
mod field_manager;
mod impersonate;
mod limit_ranges;
mod list;
mod metrics;
mod patch;
mod pods;
mod rbac;
mod resource_quotas;
mod response;
mod reviews;
mod scale;
mod server_side_apply;
mod service_accounts;
mod services;
mod token_request;
mod update;
mod watch;
mod watch_frame_cache;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
#[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use http::{Method, Request, Response};
use jiff::Timestamp;
use loadmaster_stdx::{Map, Rng};
use serde_json::Value;

pub use body::Body;
pub use cluster_options::{AdmissionPlugins, ClusterOptions};
pub use durability::OpenError;
use resource_quotas::QuotaUpdate;
pub use response::ApiResponse;
pub(crate) use response::partial as partial_metadata;
pub(crate) use watch::expired_frame;

use crate::audit;
use crate::authentication::{Claims, SigningKey, StaticTokens, User};
use crate::authorization::{AuthorizationAttributes, RbacPolicy, RequestTarget};
use crate::custom_resource::registry::Registry;
use crate::object::{key_of, parsed};
use crate::request::{Query, RequestPath, ResponseFormat, request_verb};
use crate::schema::{Kind, Kinds, NO_BACKEND};
use crate::status::ApiError;
use crate::store::{Object, Precondition, Store, StoreLimits, TableId, WriteConflict};
use crate::{discovery, openapi};

/// Reads the time. The server has no clock of its own, so that a simulator can hand it a virtual one.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Inputs of a server: clock, seed, history limits and API versions.
#[derive(Clone)]
pub struct Options {
    /// The source of the current time.
    pub clock: Clock,
    /// Seed of the random number generator for uids and name suffixes.
    pub seed: u64,
    /// How much history is kept for watches.
    pub limits: StoreLimits,
    /// Group-versions to serve beside the stable ones, such as `scheduling.k8s.io/v1alpha2`; see
    /// [`Kinds::can_also_serve`]. Others are not served.
    pub also_serve: Vec<String>,
}

/// How often the namespaces and the service `kubernetes` are recreated if they are missing, in seconds, as in
/// kube-apiserver.
const BOOTSTRAP_CHECK_SECONDS: i64 = 10;

/// The largest body of a request, as kube-apiserver's.
pub const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;

/// An API server. Clones share their state.
#[derive(Clone)]
pub struct ApiServer {
    shared: Arc<Shared>,
}

struct Shared {
    built_in: Kinds,
    /// Everything that is served, custom resources included.
    registry: Registry,
    #[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
    state: Mutex<State>,
    change_notifier: change_notifier::ChangeNotifier,
    clock: Clock,
    setup: ClusterOptions,
    /// Signs the tokens of service accounts.
    key: SigningKey,
    /// Verified service account tokens and their claims.
    #[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
    verified: Mutex<Map<String, Arc<Claims>>>,
    #[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
    policy: Mutex<Arc<RbacPolicy>>,
    /// Serializes writes of services; see [`ApiServer::lock_services`].
    #[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
    services: Mutex<()>,
    tokens: StaticTokens,
    expiry: event_ttl::EventExpiry,
    /// When the bootstrap objects are checked next, in Unix seconds.
    bootstrap_check_due: AtomicI64,
    frames: watch_frame_cache::WatchFrameCache,
    metrics: metrics::Metrics,
    /// Present if the server has a data directory.
    journal: Option<crate::journal::JournalHandle>,
}

struct State {
    store: Store,
    rng: Rng,
    /// The addresses and node ports allocated to services.
    taken: services::ServiceAllocator,
}

/// A request, read as far as its path and parameters.
struct ParsedRequest<'a> {
    request: &'a Request<Bytes>,
    query: &'a Query,
    /// None if the path names no resource.
    target: Option<&'a RequestPath>,
    /// None if resources do not support the method.
    verb: Option<&'static str>,
}

/// A request on a resource, looked up and checked.
struct ResourceRequest<'a> {
    user: &'a User,
    kind: &'a Kind,
    target: &'a RequestPath,
    query: &'a Query,
    form: ResponseFormat,
    headers: &'a http::HeaderMap,
    body: &'a [u8],
}

impl ApiServer {
    /// A server with the objects of a new cluster. Every authenticated user may do everything.
    ///
    /// # Errors
    ///
    /// When one of those cannot be stored, which is a bug.
    pub fn new(options: Options) -> Result<ApiServer, ApiError> {
        ApiServer::with_cluster_options(options, ClusterOptions::default())
    }

    /// A server with the objects of a new cluster.
    ///
    /// # Errors
    ///
    /// When one of those cannot be stored, which is a bug, or no signing key can be generated.
    pub fn with_cluster_options(
        options: Options,
        setup: ClusterOptions,
    ) -> Result<ApiServer, ApiError> {
        let server = ApiServer::over(Store::new(options.limits), None, options, setup)?;
        server.bootstrap()?;
        server.sync_definitions();
        Ok(server)
    }

    /// A server over an existing store.
    fn over(
        mut store: Store,
        journal: Option<crate::journal::JournalHandle>,
        options: Options,
        mut setup: ClusterOptions,
    ) -> Result<ApiServer, ApiError> {
        let key = match setup.signing_key.take() {
            Some(key) => key,
            None => {
                SigningKey::generate().map_err(|error| ApiError::internal(&error.to_string()))?
            }
        };
        let kinds = Kinds::new(&mut store, &options.also_serve);
        let change_notifier = change_notifier::ChangeNotifier::new(store.revision());
        let rng = Rng::new(options.seed);
        #[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
        let (state, verified, policy, services) = (
            Mutex::new(State { store, rng, taken: services::ServiceAllocator::default() }),
            Mutex::default(),
            Mutex::default(),
            Mutex::default(),
        );
        Ok(ApiServer {
            shared: Arc::new(Shared {
                registry: Registry::new(kinds.clone()),
                built_in: kinds,
                state,
                change_notifier,
                clock: options.clock,
                setup,
                key,
                verified,
                services,
                policy,
                tokens: StaticTokens::default(),
                expiry: event_ttl::EventExpiry::default(),
                bootstrap_check_due: AtomicI64::new(i64::MIN),
                frames: watch_frame_cache::WatchFrameCache::default(),
                metrics: metrics::Metrics::new()
                    .map_err(|error| ApiError::internal(&error.to_string()))?,
                journal,
            }),
        })
    }

    /// Bearer tokens that are accepted.
    pub fn tokens(&self) -> &StaticTokens {
        &self.shared.tokens
    }

    /// The resources served.
    pub fn kinds(&self) -> Arc<Kinds> {
        self.shared.registry.kinds()
    }

    /// Does the periodic work: deletes expired events and recreates missing bootstrap objects. Cheap when nothing is
    /// due; every request calls it first.
    pub fn run_maintenance(&self) {
        self.expire_events();
        let (now, due) = (self.now().as_second(), &self.shared.bootstrap_check_due);
        // Another thread may have done it.
        if due.load(Ordering::Relaxed) <= now
            && due.fetch_max(now + BOOTSTRAP_CHECK_SECONDS, Ordering::Relaxed) <= now
        {
            // It is retried at the next check.
            let _ = self.ensure_system_objects();
        }
    }

    /// Handles a request. It returns at once; only the body of a watch takes time.
    pub fn handle(&self, user: &User, request: &Request<Bytes>) -> Response<Body> {
        self.handle_with_audit(user, request, &mut None)
    }

    /// As [`ApiServer::handle`]. `entry` holds the audit entry of a request that panics.
    fn handle_with_audit(
        &self,
        user: &User,
        request: &Request<Bytes>,
        entry: &mut Option<audit::AuditEntry>,
    ) -> Response<Body> {
        self.run_maintenance();
        let query = Query::parse(request.uri().query().unwrap_or_default());
        let target = RequestPath::parse(request.uri().path());
        let verb = target.as_ref().and_then(|it| request_verb(request.method(), it, &query));
        let method = request.method().as_str().to_ascii_lowercase();
        let what = match &target {
            None => RequestTarget::Path(request.uri().path()),
            Some(target) => RequestTarget::Resource(authorization::resource_of(
                target,
                match verb {
                    Some("list" | "watch" | "deletecollection") => {
                        authorization::selected_name(&query)
                    }
                    _ => "",
                },
            )),
        };
        let attributes = AuthorizationAttributes { user, verb: verb.unwrap_or(&method), what };
        let version = target.as_ref().map_or("", |it| it.version.as_str());
        *entry = self.begin_entry(&attributes, version, request);
        let asked = ParsedRequest { request, query: &query, target: target.as_ref(), verb };
        let began = self.now();
        let answer = self.answer(&attributes, &asked, entry.as_mut());
        let mut response = self.end_entry(entry.take(), answer);
        self.observe(&asked, began, &mut response);
        response
    }

    fn answer(
        &self,
        attributes: &AuthorizationAttributes<'_>,
        asked: &ParsedRequest<'_>,
        mut entry: Option<&mut audit::AuditEntry>,
    ) -> Result<Response<Body>, ApiError> {
        let request = asked.request;
        let acting = self.effective_user(attributes, request.headers())?;
        if let (Some(entry), true) = (entry.as_deref_mut(), acting.is_impersonated) {
            entry.set_impersonated_user(&acting.user);
        }
        let attributes = AuthorizationAttributes { user: &acting.user, ..*attributes };
        let decision = self.decide(&attributes);
        if let Some(entry) = entry {
            entry.set_decision(&decision);
        }
        if !decision.is_allowed() {
            return Err(attributes.forbidden(decision.reason()));
        }
        let Some(target) = asked.target else {
            return self.answer_other(request.uri().path(), request);
        };
        let kinds = self.kinds();
        let is_served = |it: &Kind| it.group == target.group && it.version == target.version;
        if !kinds.iter().any(is_served) {
            return Ok(ApiResponse::text(404, "404 page not found\n").into_response());
        }
        let kind = kinds
            .find(&target.group, &target.version, &target.resource)
            .ok_or_else(ApiError::no_such_resource)?;
        let verb = asked.verb.ok_or_else(ApiError::method_not_allowed)?;
        self.check_verb(kind, target, verb)?;
        asked.query.check_options(verb)?;
        let is_typed = kind.custom.is_none() || target.subresource == "scale";
        let call = ResourceRequest {
            user: &acting.user,
            kind,
            target,
            query: asked.query,
            form: ResponseFormat::negotiate(request.headers(), is_typed)?,
            headers: request.headers(),
            body: request.body(),
        };
        let mut response = self.dispatch(&call, verb)?;
        if verb == "watch" {
            response.extensions_mut().insert(audit::LongRunning);
        }
        let warning = kind.custom().and_then(|it| it.warning.clone());
        if let Some(warning) = warning.or_else(|| kind.warning.clone()) {
            response::warn(&mut response, &warning);
        }
        let writes = !matches!(verb, "get" | "list" | "watch");
        if writes && kind.is(crate::authorization::RBAC_GROUP, "clusterroles") {
            self.aggregate_roles()?;
        }
        Ok(response)
    }

    fn check_verb(&self, kind: &Kind, target: &RequestPath, verb: &str) -> Result<(), ApiError> {
        // Namespaced objects need a namespace in the path, cluster-scoped ones must not have one.
        let misplaced = if kind.is_namespaced {
            target.namespace.is_empty() && (!target.name.is_empty() || verb == "create")
        } else {
            !target.namespace.is_empty()
        };
        if misplaced {
            return Err(ApiError::no_such_resource());
        }
        if target.name.is_empty() && matches!(verb, "update" | "patch") {
            return Err(ApiError::method_not_allowed());
        }
        let verbs = match target.subresource.as_str() {
            "" => &kind.verbs,
            name => match kind.subresource(name) {
                Some(subresource) => &subresource.verbs,
                None => return Err(self.unserved_subresource(kind, target)),
            },
        };
        if verbs.contains(&verb) { Ok(()) } else { Err(ApiError::method_not_allowed()) }
    }

    /// Why there is no such subresource: it may be one that only a kubelet can serve.
    fn unserved_subresource(&self, kind: &Kind, target: &RequestPath) -> ApiError {
        let has_backend =
            matches!((kind.group, kind.resource), ("", "pods" | "nodes" | "services"));
        if !has_backend || !NO_BACKEND.contains(&target.subresource.as_str()) {
            return ApiError::no_such_resource();
        }
        let name = target.object_name();
        match self.get_object(kind, &target.namespace, name) {
            Ok(_) => ApiError::containers_do_not_run(kind, name, &target.subresource),
            Err(error) => error,
        }
    }

    fn dispatch(&self, call: &ResourceRequest<'_>, verb: &str) -> Result<Response<Body>, ApiError> {
        if call.kind.table.is_none() {
            return self.review(call);
        }
        match (verb, call.target.subresource.as_str()) {
            ("watch", _) => self.watch(call),
            ("list", _) => self.list(call),
            ("get" | "update" | "patch", "scale") => self.scale(call, verb),
            ("create", "binding") => self.bind(call),
            ("create", "eviction") => self.evict(call),
            ("create", "token") => self.token(call),
            ("get", _) => self.get(call),
            ("create", _) => self.create(call),
            ("update", _) => self.update(call),
            ("patch", _) => self.patch(call),
            ("delete", _) => self.delete(call),
            ("deletecollection", _) => self.delete_collection(call),
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    /// Health, metrics, version, discovery and OpenAPI.
    fn answer_other(
        &self,
        path: &str,
        request: &Request<Bytes>,
    ) -> Result<Response<Body>, ApiError> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Err(ApiError::method_not_allowed());
        }
        let path = path.trim_end_matches('/');
        let answer = match path {
            "/healthz" | "/livez" | "/readyz" => Some(health(path, request.uri().query())),
            "/metrics" => Some(self.metrics()),
            "/version" => Some(ApiResponse::json(&discovery::version())),
            "/.well-known/openid-configuration" | "/openid/v1/jwks" => self.issuer_discovery(path),
            _ if path.starts_with("/openapi") => {
                openapi::openapi_response(&self.kinds(), request, self.now())?
            }
            _ => discovery::discovery_response(&self.kinds(), path, request.headers()),
        };
        Ok(answer.unwrap_or_else(|| ApiResponse::text(404, "404 page not found\n")).into_response())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held leaves the store consistent: every change is one step.
        self.shared.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.shared.clock)()
    }

    /// Runs after every write: processes changed CustomResourceDefinitions and wakes the watchers of the table.
    fn on_write(&self, table: TableId, revision: u64) {
        self.sync_definitions_on_write(table);
        self.notify_journal_or_watchers(table, revision);
    }

    /// Wakes the watchers of a table or, with a data directory, the journal, which wakes them when the change is on
    /// disk.
    fn notify_journal_or_watchers(&self, table: TableId, revision: u64) {
        match &self.shared.journal {
            Some(journal) => journal.wake(),
            None => self.publish(table, revision),
        }
    }

    /// Wakes the watchers of a table.
    fn publish(&self, table: TableId, revision: u64) {
        self.shared.change_notifier.notify(table, revision);
        let shown = self.shared.journal.as_ref().map_or(u64::MAX, |it| it.durable_revision());
        self.shared.change_notifier.end_due_watches(shown);
    }

    /// The kind of a built-in resource that the server itself uses.
    fn own_kind(&self, group: &str, resource: &str) -> Result<&Kind, ApiError> {
        self.shared.built_in.find_stable(group, resource).ok_or_else(ApiError::no_such_resource)
    }

    /// The stored object.
    fn get_object(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<Object>, ApiError> {
        let table = kind.table.ok_or_else(ApiError::no_such_resource)?;
        let found = self.state().store.get(table, &key_of(kind, namespace, name)).cloned();
        found.ok_or_else(|| ApiError::not_found(kind, name))
    }

    /// Updates an object, and retries on a conflict. `change` gets the newest state and returns the new one; an equal
    /// state is not written.
    fn retry_update(
        &self,
        kind: &Kind,
        key: (&str, &str),
        dry_run: bool,
        mut change: impl FnMut(&Value) -> Result<Value, ApiError>,
    ) -> Result<UpdateOutcome, ApiError> {
        self.retry_update_with_quota(kind, key, dry_run, |old| Ok((change(old)?, Vec::new())))
    }

    /// The same for a change that uses more of a ResourceQuota: `change` returns the quota updates, too.
    fn retry_update_with_quota(
        &self,
        kind: &Kind,
        key: (&str, &str),
        dry_run: bool,
        mut change: impl FnMut(&Value) -> Result<(Value, Vec<QuotaUpdate>), ApiError>,
    ) -> Result<UpdateOutcome, ApiError> {
        let table = kind.table.ok_or_else(ApiError::no_such_resource)?;
        let _alone = self.lock_services(kind);
        loop {
            let stored = self.get_object(kind, key.0, key.1)?;
            let old = parsed(&stored)?;
            let (new, quota_updates) = change(&old)?;
            if dry_run {
                return Ok(UpdateOutcome::Dry(new));
            }
            if new == old {
                return Ok(UpdateOutcome::Stored(stored));
            }
            match self.replace(kind, table, &stored, &new, quota_updates)? {
                Ok(object) => return Ok(UpdateOutcome::Stored(object)),
                Err(WriteConflict::Missing) => return Err(ApiError::not_found(kind, key.1)),
                Err(WriteConflict::Changed | WriteConflict::Exists) => {}
            }
        }
    }

    /// Replaces a version, or removes the object if it is being deleted and has no finalizers left.
    fn replace(
        &self,
        kind: &Kind,
        table: TableId,
        stored: &Object,
        new: &Value,
        quota_updates: Vec<QuotaUpdate>,
    ) -> Result<Result<Arc<Object>, WriteConflict>, ApiError> {
        let draft = crate::object::draft(kind, new)?;
        let revision = stored.revision();
        if !delete::is_done(new) {
            return Ok(self.put_with_quota(
                table,
                Precondition::Revision(revision),
                draft,
                quota_updates,
            ));
        }
        let removed = self.state().store.remove(table, stored.key(), revision, Some(draft));
        if let Ok(object) = &removed {
            self.on_write(table, object.revision());
        }
        Ok(removed)
    }
}

/// The outcome of an update.
enum UpdateOutcome {
    Stored(Arc<Object>),
    /// A dry run: nothing was written.
    Dry(Value),
}

/// The health endpoints: a server that answers is healthy. `verbose` lists the one check.
fn health(path: &str, query: Option<&str>) -> ApiResponse {
    let mut parameters = query.unwrap_or_default().split('&');
    match path {
        _ if !parameters.any(|it| it.split('=').next() == Some("verbose")) => {
            ApiResponse::text(200, "ok")
        }
        "/healthz" => ApiResponse::text(200, "[+]ping ok\nhealthz check passed\n"),
        "/livez" => ApiResponse::text(200, "[+]ping ok\nlivez check passed\n"),
        _ => ApiResponse::text(200, "[+]ping ok\nreadyz check passed\n"),
    }
}

/// A random UUID of version 4.
fn uid(rng: &mut Rng) -> String {
    let (high, low) = (rng.next_u64(), rng.next_u64());
    let high = high & 0xffff_ffff_ffff_0fff | 0x4000;
    let low = low & 0x3fff_ffff_ffff_ffff | 0x8000_0000_0000_0000;
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

/// A time with seconds, as upstream writes it in metadata.
fn rfc3339_seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}
