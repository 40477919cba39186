//! A test bench for controllers: the embedded API server without sockets, and a simulated clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use loadmaster_apiserver::authentication::User;
use loadmaster_apiserver::store::StoreLimits;
use loadmaster_apiserver::{ApiServer, Options};
use serde_json::{Value, json};

use crate::controller::Controller;
use crate::kind::{Key, Kind, Object, Typed};
use crate::request::{ControllerRequest, ControllerResponse, HttpRequest};
use crate::runner::{ControllerEvent, ControllerRunner, RunnerStats};
use crate::served_kinds::ServedKinds;
use crate::work_queue::saturating_add;

/// Fault injection: optionally responds to a request in place of the server.
type Faults = Box<dyn FnMut(&ControllerRequest) -> Option<ControllerResponse>>;

/// Runs controllers against an API server.
pub(crate) struct ControllerBench {
    server: ApiServer,
    clock: Arc<AtomicI64>,
    runner: ControllerRunner,
    /// Uid and resourceVersion of the objects that were delivered to the controllers.
    delivered: BTreeMap<Key, (Option<String>, u64)>,
    /// Fault injection, called before each request of a controller.
    faults: Faults,
    /// Objects under this path are not watched.
    pub unwatched_path: Option<&'static str>,
    /// Every request that controllers have made.
    pub sent: Vec<ControllerRequest>,
}

/// Maximum number of rounds until the controllers must be idle.
const N_ROUNDS_MAX: usize = 1_000;

impl ControllerBench {
    /// At 2026-01-01T00:00:00Z, with what a new cluster has.
    pub fn new(controllers: Vec<Box<dyn Controller>>) -> ControllerBench {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Arc::new(AtomicI64::new(start.as_millisecond()));
        let read = clock.clone();
        let server = ApiServer::new(Options {
            clock: Arc::new(move || {
                Timestamp::from_millisecond(read.load(Ordering::Relaxed)).unwrap()
            }),
            seed: 1,
            limits: StoreLimits::default(),
            also_serve: Vec::new(),
        });
        let runner = ControllerRunner::new(controllers);
        let (delivered, faults, sent) =
            (BTreeMap::new(), Box::new(|_: &ControllerRequest| None), Vec::new());
        let server = server.unwrap();
        let bench = ControllerBench {
            server,
            clock,
            runner,
            delivered,
            faults,
            unwatched_path: None,
            sent,
        };
        // The only ConfigMap of a new cluster: tests list those that they made.
        let path = "/api/v1/namespaces/kube-system/configmaps/kube-apiserver-legacy-service-account-token-tracking";
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        assert_eq!(bench.http("DELETE", path, &options).0, 200);
        bench
    }

    /// Restarts the controllers with empty state.
    pub fn restart(&mut self, controllers: Vec<Box<dyn Controller>>) {
        self.runner = ControllerRunner::new(controllers);
        self.delivered.clear();
    }

    /// Counts of the controllers.
    pub fn stats(&self) -> RunnerStats {
        self.runner.stats()
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_millisecond(self.clock.load(Ordering::Relaxed)).unwrap()
    }

    /// Sets the fault injection.
    pub fn with_faults(
        mut self,
        faults: impl FnMut(&ControllerRequest) -> Option<ControllerResponse> + 'static,
    ) -> ControllerBench {
        self.faults = Box::new(faults);
        self
    }

    /// Sends a JSON request to the server.
    pub fn http(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let json = [("content-type", "application/json")];
        let (status, body) =
            self.call(method.parse().unwrap(), path, &json, body.to_string().into_bytes());
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    fn call(
        &self,
        method: http::Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> (u16, Bytes) {
        let request = http::Request::builder().method(method).uri(path);
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let request = request.body(Bytes::from(body)).unwrap();
        let response = self.server.handle(&User::admin(), &request);
        let status = response.status().as_u16();
        // Only watches have a body that takes time.
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        (status, runtime.block_on(response.into_body().collect()).unwrap().to_bytes())
    }

    /// Sends a request as another client; it must succeed.
    #[track_caller]
    pub fn send_as_client(&mut self, request: &ControllerRequest) -> Option<Object> {
        match self.send_request(request) {
            ControllerResponse::Success(object) => object,
            other => panic!("{request:?}: {other:?}"),
        }
    }

    /// Creates an object from its manifest.
    #[track_caller]
    pub fn create(&mut self, manifest: Value) -> Object {
        let text = |name: &str| manifest[name].as_str().unwrap_or_default().to_owned();
        let (version, name) = (text("apiVersion"), text("kind"));
        let served = self.runner.cache().served_kinds();
        let kind = Kind::find(&version, &name).or_else(|| served.find(&version, &name));
        let kind = kind.expect("a known kind");
        let namespace = manifest["metadata"]["namespace"].as_str().unwrap_or_default();
        let (status, made) = self.http("POST", &kind.api_path(namespace), &manifest);
        assert_eq!(status, 201, "{made}");
        Object::from_json(kind, made).unwrap()
    }

    /// An object as the server has it; the namespace is empty for kinds without.
    pub fn get<K: Typed>(&self, namespace: &str, name: &str) -> Option<K> {
        let path = format!("{}/{name}", K::IS.api_path(namespace));
        let (status, value) = self.http("GET", &path, &Value::Null);
        (status == 200).then(|| serde_json::from_value(value).unwrap())
    }

    /// All objects of a kind as the server has them.
    pub fn list<K: Typed>(&self) -> Vec<K> {
        self.items(K::IS).into_iter().map(|item| serde_json::from_value(item).unwrap()).collect()
    }

    fn items(&self, kind: Kind) -> Vec<Value> {
        let (status, mut list) = self.http("GET", &kind.api_path(""), &Value::Null);
        assert_eq!(status, 200, "{list}");
        list["items"].as_array_mut().map(std::mem::take).unwrap_or_default()
    }

    fn send_request(&self, request: &ControllerRequest) -> ControllerResponse {
        let HttpRequest { method, path, content_type, body } = request.encode().unwrap();
        let (status, body) = self.call(method, &path, &[("content-type", content_type)], body);
        if status < 300 {
            return request.parse_success_body(&body);
        }
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        ControllerResponse::Rejected {
            status,
            reason: text("reason"),
            message: text("message"),
            retry_after: None,
        }
    }

    /// Runs the controllers until they are idle at the current time.
    #[track_caller]
    pub fn run_until_idle(&mut self) {
        for _ in 0..N_ROUNDS_MAX {
            self.deliver_events();
            let now = self.now();
            let calls = self.runner.run(64, now);
            if calls.is_empty() {
                return;
            }
            for call in calls {
                let response = (self.faults)(&call.request)
                    .unwrap_or_else(|| self.send_request(&call.request));
                self.sent.push(call.request);
                self.runner.handle_response(call.id, &response, now);
            }
        }
        panic!("it never settles: {:?}", &self.sent[self.sent.len().saturating_sub(5)..]);
    }

    /// Advances the clock by `span` and runs the controllers as their timers expire.
    #[track_caller]
    pub fn advance_time(&mut self, span: Duration) {
        let end = saturating_add(self.now(), span);
        self.run_until_idle();
        while let Some(at) = self.runner.next_wakeup().filter(|at| *at <= end) {
            self.clock.fetch_max(
                at.as_millisecond() + i64::from(at.subsec_nanosecond() % 1_000_000 != 0),
                Ordering::Relaxed,
            );
            self.run_until_idle();
        }
        self.clock.store(end.as_millisecond(), Ordering::Relaxed);
        self.run_until_idle();
    }

    /// Delivers changed objects to the controllers, as a watch does.
    fn deliver_events(&mut self) {
        let now = self.now();
        if self.runner.watches_all_kinds() {
            let accept = [("accept", ServedKinds::DISCOVERY_ACCEPT)];
            let ask = |path| self.call(http::Method::GET, path, &accept, Vec::new()).1;
            let served = self
                .runner
                .cache()
                .served_kinds()
                .read_discovery(&ServedKinds::DISCOVERY_PATHS.map(ask))
                .unwrap();
            if served != *self.runner.cache().served_kinds() {
                self.delivered.retain(|key, _| {
                    Kind::ALL.contains(&key.kind) || served.watchable().contains(&key.kind)
                });
                self.runner.handle_event(ControllerEvent::Served(served), now);
            }
        }
        for kind in self.runner.kinds() {
            if self.unwatched_path.is_some_and(|blind| kind.api_path("").starts_with(blind)) {
                self.runner.handle_event(ControllerEvent::Unavailable(kind), now);
                continue;
            }
            if self.http("GET", &kind.api_path(""), &Value::Null).0 == 404 {
                self.runner.handle_event(ControllerEvent::Unavailable(kind), now);
                continue;
            }
            let mut found: Vec<Object> = self
                .items(kind)
                .into_iter()
                .map(|item| Object::from_json(kind, item).unwrap())
                .collect();
            found.sort_by_key(Object::version);
            let keys: BTreeMap<Key, Option<String>> =
                found.iter().map(|object| (object.key(), object.metadata().uid.clone())).collect();
            let gone = |(key, (uid, _)): (&Key, &(Option<String>, u64))| {
                (key.kind == kind && keys.get(key) != Some(uid)).then(|| key.clone())
            };
            for key in self.delivered.iter().filter_map(gone).collect::<Vec<Key>>() {
                self.delivered.remove(&key);
                self.runner.handle_event(ControllerEvent::Delete(key), now);
            }
            for object in found {
                let state = (object.metadata().uid.clone(), object.version());
                if self.delivered.insert(object.key(), state.clone()) != Some(state) {
                    self.runner.handle_event(ControllerEvent::Upsert(object), now);
                }
            }
            self.runner.handle_event(ControllerEvent::Synced(kind), now);
        }
    }
}
