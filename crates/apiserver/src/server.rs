//! The server without sockets: a request and who sends it go in, a response comes out. All state is behind one lock that
//! is held for the store's own operations only; decoding and encoding happen outside it.

mod access;
mod accounts;
mod admission;
mod answer;
mod apply;
mod authenticate;
mod body;
mod bootstrap;
mod certificates;
mod classes;
mod create;
mod definitions;
mod delete;
mod durability;
mod expiry;
mod frames;
mod impersonate;
mod limits;
mod list;
mod managed;
mod news;
mod patch;
mod pods;
mod quotas;
mod review;
mod roles;
mod scale;
mod services;
mod setup;
mod token;
mod update;
mod watch;
mod written;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
#[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use http::{Method, Request, Response};
use jiff::Timestamp;
use loadmaster_stdx::{Map, Rng};
use serde_json::Value;

pub use answer::Answer;
pub(crate) use answer::partial as partial_metadata;
pub use body::Body;
pub use durability::OpenError;
use quotas::Raised;
pub use setup::{Admission, Setup};
pub(crate) use watch::gone_frame;

use crate::audit;
use crate::auth::{Claims, SigningKey, Tokens, User};
use crate::authorize::{Attributes, Policy, What};
use crate::custom::registry::Registry;
use crate::object::{key_of, parsed};
use crate::request::{Form, Query, Target, verb};
use crate::schema::{Kind, Kinds};
use crate::status::ApiError;
use crate::store::{Expect, Limits, Object, Refused, Store, TableId};
use crate::{discovery, openapi};

/// Reads the time. The server has no clock of its own, so that a simulator can hand it a virtual one.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// How a server is set up.
#[derive(Clone)]
pub struct Options {
    /// What time it is.
    pub clock: Clock,
    /// Where uids and name suffixes come from.
    pub seed: u64,
    /// History kept.
    pub limits: Limits,
    /// Group-versions to serve beside the stable ones, such as `scheduling.k8s.io/v1alpha2`; see
    /// [`Kinds::can_also_serve`]. Others are not served.
    pub also_serve: Vec<String>,
}

/// How often, in seconds, kube-apiserver looks at the service `kubernetes`.
const FURNISH_EVERY: i64 = 10;

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
    news: news::News,
    clock: Clock,
    setup: Setup,
    /// Signs the tokens of service accounts.
    key: SigningKey,
    /// Signed tokens seen, with what they say.
    #[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
    verified: Mutex<Map<String, Arc<Claims>>>,
    #[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
    policy: Mutex<Arc<Policy>>,
    /// Held by who writes a service; see [`ApiServer::alone`].
    #[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
    services: Mutex<()>,
    tokens: Tokens,
    expiry: expiry::Expiry,
    /// When what the server needs is looked at next, in seconds.
    furnish_due: AtomicI64,
    frames: frames::FrameCache,
    /// Present when everything is kept in a folder.
    journal: Option<crate::journal::Handle>,
}

struct State {
    store: Store,
    rng: Rng,
    /// What services have.
    taken: services::Taken,
}

/// A request, read as far as its path and parameters.
struct Asked<'a> {
    request: &'a Request<Bytes>,
    query: &'a Query,
    /// None for what is no resource.
    target: Option<&'a Target>,
    /// None for a method that resources do not have.
    verb: Option<&'static str>,
}

/// A request on a resource, looked up and checked.
struct Call<'a> {
    user: &'a User,
    kind: &'a Kind,
    target: &'a Target,
    query: &'a Query,
    form: Form,
    headers: &'a http::HeaderMap,
    body: &'a [u8],
}

impl ApiServer {
    /// A server with the objects a new cluster has, where everybody known may do everything.
    ///
    /// # Errors
    ///
    /// When one of those cannot be stored, which is a bug.
    pub fn new(options: Options) -> Result<ApiServer, ApiError> {
        ApiServer::with_setup(options, Setup::default())
    }

    /// A server with the objects a new cluster has.
    ///
    /// # Errors
    ///
    /// When one of those cannot be stored, which is a bug, or no key can be made.
    pub fn with_setup(options: Options, setup: Setup) -> Result<ApiServer, ApiError> {
        let server = ApiServer::over(Store::new(options.limits), None, options, setup)?;
        server.bootstrap()?;
        server.look_at_definitions();
        Ok(server)
    }

    /// A server over what a store has.
    fn over(
        mut store: Store,
        journal: Option<crate::journal::Handle>,
        options: Options,
        mut setup: Setup,
    ) -> Result<ApiServer, ApiError> {
        let key = match setup.signing_key.take() {
            Some(key) => key,
            None => {
                SigningKey::generate().map_err(|error| ApiError::internal(&error.to_string()))?
            }
        };
        let kinds = Kinds::new(&mut store, &options.also_serve);
        let news = news::News::new(store.revision());
        let rng = Rng::new(options.seed);
        #[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
        let (state, verified, policy, services) = (
            Mutex::new(State { store, rng, taken: services::Taken::default() }),
            Mutex::default(),
            Mutex::default(),
            Mutex::default(),
        );
        Ok(ApiServer {
            shared: Arc::new(Shared {
                registry: Registry::new(kinds.clone()),
                built_in: kinds,
                state,
                news,
                clock: options.clock,
                setup,
                key,
                verified,
                services,
                policy,
                tokens: Tokens::default(),
                expiry: expiry::Expiry::default(),
                furnish_due: AtomicI64::new(i64::MIN),
                frames: frames::FrameCache::default(),
                journal,
            }),
        })
    }

    /// Bearer tokens that are accepted.
    pub fn tokens(&self) -> &Tokens {
        &self.shared.tokens
    }

    /// The resources served.
    pub fn kinds(&self) -> Arc<Kinds> {
        self.shared.registry.kinds()
    }

    /// Does what falls due though nobody asks for it: old events go, and what the server needs itself is made again. Cheap when
    /// nothing is due; each request does it first.
    pub fn tend(&self) {
        self.expire_events();
        let (now, due) = (self.now().as_second(), &self.shared.furnish_due);
        // Somebody else may be faster.
        if due.load(Ordering::Relaxed) <= now
            && due.fetch_max(now + FURNISH_EVERY, Ordering::Relaxed) <= now
        {
            // It is tried again.
            let _ = self.furnish();
        }
    }

    /// Answers a request. Only the body of a watch takes time; the answer itself is there at once.
    pub fn handle(&self, user: &User, request: &Request<Bytes>) -> Response<Body> {
        self.handle_noting(user, request, &mut None)
    }

    /// The same; what the audit log knows of a request that panics is left in `entry`.
    fn handle_noting(
        &self,
        user: &User,
        request: &Request<Bytes>,
        entry: &mut Option<audit::Entry>,
    ) -> Response<Body> {
        self.tend();
        let query = Query::parse(request.uri().query().unwrap_or_default());
        let target = Target::parse(request.uri().path());
        let verb = target.as_ref().and_then(|it| verb(request.method(), it, &query));
        let method = request.method().as_str().to_ascii_lowercase();
        let what = match &target {
            None => What::Path(request.uri().path()),
            Some(target) => What::Resource(access::resource_of(
                target,
                match verb {
                    Some("list" | "watch" | "deletecollection") => access::selected_name(&query),
                    _ => "",
                },
            )),
        };
        let attributes = Attributes { user, verb: verb.unwrap_or(&method), what };
        let version = target.as_ref().map_or("", |it| it.version.as_str());
        *entry = self.begin_entry(&attributes, version, request);
        let asked = Asked { request, query: &query, target: target.as_ref(), verb };
        let answer = self.answer(&attributes, &asked, entry.as_mut());
        self.end_entry(entry.take(), answer)
    }

    fn answer(
        &self,
        attributes: &Attributes<'_>,
        asked: &Asked<'_>,
        mut entry: Option<&mut audit::Entry>,
    ) -> Result<Response<Body>, ApiError> {
        let request = asked.request;
        let acting = self.acting(attributes, request.headers())?;
        if let (Some(entry), true) = (entry.as_deref_mut(), acting.is_impersonated) {
            entry.impersonated(&acting.user);
        }
        let attributes = Attributes { user: &acting.user, ..*attributes };
        let decision = self.decide(&attributes);
        if let Some(entry) = entry {
            entry.decided(&decision);
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
            return Ok(Answer::text(404, "404 page not found\n").into_response());
        }
        let kind = kinds
            .find(&target.group, &target.version, &target.resource)
            .ok_or_else(ApiError::no_such_resource)?;
        let verb = asked.verb.ok_or_else(ApiError::method_not_allowed)?;
        self.check_verb(kind, target, verb)?;
        asked.query.check_options(verb)?;
        let is_typed = kind.custom.is_none() || target.subresource == "scale";
        let call = Call {
            user: &acting.user,
            kind,
            target,
            query: asked.query,
            form: Form::negotiate(request.headers(), is_typed)?,
            headers: request.headers(),
            body: request.body(),
        };
        let mut response = self.dispatch(&call, verb)?;
        if verb == "watch" {
            response.extensions_mut().insert(audit::Lasting);
        }
        let warning = kind.custom().and_then(|it| it.warning.clone());
        if let Some(warning) = warning.or_else(|| kind.warning.clone()) {
            answer::warn(&mut response, &warning);
        }
        let writes = !matches!(verb, "get" | "list" | "watch");
        if writes && kind.is(crate::authorize::GROUP, "clusterroles") {
            self.aggregate_roles()?;
        }
        Ok(response)
    }

    fn check_verb(&self, kind: &Kind, target: &Target, verb: &str) -> Result<(), ApiError> {
        // Objects in namespaces are named within one; those outside have none.
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
            name => &kind.subresource(name).ok_or_else(ApiError::no_such_resource)?.verbs,
        };
        if verbs.contains(&verb) { Ok(()) } else { Err(ApiError::method_not_allowed()) }
    }

    fn dispatch(&self, call: &Call<'_>, verb: &str) -> Result<Response<Body>, ApiError> {
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

    /// Health, version, discovery and OpenAPI.
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
            "/version" => Some(Answer::json(&discovery::version())),
            "/.well-known/openid-configuration" | "/openid/v1/jwks" => self.issuer_discovery(path),
            _ if path.starts_with("/openapi") => {
                openapi::answer(&self.kinds(), request, self.now())?
            }
            _ => discovery::answer(&self.kinds(), path, request.headers()),
        };
        Ok(answer.unwrap_or_else(|| Answer::text(404, "404 page not found\n")).into_response())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under the lock leaves the store whole: it is changed by single steps.
        self.shared.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn now(&self) -> Timestamp {
        (self.shared.clock)()
    }

    /// Tells of a write: definitions are acted upon, and the watchers of the table wake.
    fn announce(&self, table: TableId, revision: u64) {
        self.act_on_definitions(table);
        self.tell(table, revision);
    }

    /// Tells the watchers of a table that it has changed, or the journal, which tells them when the change is on disk.
    fn tell(&self, table: TableId, revision: u64) {
        match &self.shared.journal {
            Some(journal) => journal.wake(),
            None => self.publish(table, revision),
        }
    }

    /// Wakes the watchers of a table.
    fn publish(&self, table: TableId, revision: u64) {
        self.shared.news.announce(table, revision);
        let shown = self.shared.journal.as_ref().map_or(u64::MAX, |it| it.durable());
        self.shared.news.end_shown(shown);
    }

    /// The kind of a resource the server itself needs.
    fn own_kind(&self, group: &str, resource: &str) -> Result<&Kind, ApiError> {
        self.shared.built_in.named(group, resource).ok_or_else(ApiError::no_such_resource)
    }

    /// An object as it is stored.
    fn stored(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Arc<Object>, ApiError> {
        let table = kind.table.ok_or_else(ApiError::no_such_resource)?;
        let found = self.state().store.get(table, &key_of(kind, namespace, name)).cloned();
        found.ok_or_else(|| ApiError::not_found(kind, name))
    }

    /// Changes an object, again if it changed meanwhile. `change` gets the newest state and returns the new one; an equal
    /// one is not written.
    fn rewrite(
        &self,
        kind: &Kind,
        key: (&str, &str),
        dry_run: bool,
        mut change: impl FnMut(&Value) -> Result<Value, ApiError>,
    ) -> Result<Rewritten, ApiError> {
        self.rewrite_counted(kind, key, dry_run, |old| Ok((change(old)?, Vec::new())))
    }

    /// The same for a change that raises quotas: `change` gives these, too.
    fn rewrite_counted(
        &self,
        kind: &Kind,
        key: (&str, &str),
        dry_run: bool,
        mut change: impl FnMut(&Value) -> Result<(Value, Vec<Raised>), ApiError>,
    ) -> Result<Rewritten, ApiError> {
        let table = kind.table.ok_or_else(ApiError::no_such_resource)?;
        let _alone = self.alone(kind);
        loop {
            let stored = self.stored(kind, key.0, key.1)?;
            let old = parsed(&stored)?;
            let (new, raised) = change(&old)?;
            if dry_run {
                return Ok(Rewritten::Dry(new));
            }
            if new == old {
                return Ok(Rewritten::Stored(stored));
            }
            match self.replace(kind, table, &stored, &new, raised)? {
                Ok(object) => return Ok(Rewritten::Stored(object)),
                Err(Refused::Missing) => return Err(ApiError::not_found(kind, key.1)),
                Err(Refused::Changed | Refused::Exists) => {}
            }
        }
    }

    /// Writes over a version, or removes the object if nothing keeps it any longer.
    fn replace(
        &self,
        kind: &Kind,
        table: TableId,
        stored: &Object,
        new: &Value,
        raised: Vec<Raised>,
    ) -> Result<Result<Arc<Object>, Refused>, ApiError> {
        let draft = crate::object::draft(kind, new)?;
        let revision = stored.revision();
        if !delete::is_done(new) {
            return Ok(self.put_counted(table, Expect::Revision(revision), draft, raised));
        }
        let removed = self.state().store.remove(table, stored.key(), revision, Some(draft));
        if let Ok(object) = &removed {
            self.announce(table, object.revision());
        }
        Ok(removed)
    }
}

/// What came of changing an object.
enum Rewritten {
    Stored(Arc<Object>),
    /// Nothing was written because the request said so.
    Dry(Value),
}

/// Whoever is answered finds a server that is well; `verbose` names the check that this is.
fn health(path: &str, query: Option<&str>) -> Answer {
    let mut parameters = query.unwrap_or_default().split('&');
    match path {
        _ if !parameters.any(|it| it.split('=').next() == Some("verbose")) => {
            Answer::text(200, "ok")
        }
        "/healthz" => Answer::text(200, "[+]ping ok\nhealthz check passed\n"),
        "/livez" => Answer::text(200, "[+]ping ok\nlivez check passed\n"),
        _ => Answer::text(200, "[+]ping ok\nreadyz check passed\n"),
    }
}

/// A random uid, in the form of version 4.
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

/// Seconds only, as upstream writes times of metadata.
fn spelled(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}
