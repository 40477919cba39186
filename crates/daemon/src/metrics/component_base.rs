//! Metrics of every Kubernetes component: requests to the API server, work queues, leader election,
//! requests to its own endpoints. From component-base and apiserver, 1.36.

use prometheus::Error;

use super::family::{ALPHA, BETA, Counters, Families, Gauges, Histograms, def, exponential};

/// Requests to the API server.
pub struct RestClientMetrics {
    requests: Counters<3>,
    retries: Counters<3>,
    duration: Histograms<2>,
    request_size: Histograms<2>,
    response_size: Histograms<2>,
    rate_limiter: Histograms<2>,
}

impl RestClientMetrics {
    pub(super) fn new(families: &mut Families) -> Result<Self, Error> {
        let seconds = || vec![0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
        let bytes = || {
            [
                64u32,
                256,
                512,
                1 << 10,
                4 << 10,
                16 << 10,
                64 << 10,
                256 << 10,
                1 << 20,
                4 << 20,
                16 << 20,
            ]
            .map(f64::from)
            .to_vec()
        };
        Ok(RestClientMetrics {
            requests: families.counters(def(
                "rest_client_requests_total",
                "Number of HTTP requests, partitioned by status code, method, and host.",
                ALPHA,
                ["code", "method", "host"],
            ))?,
            retries: families.counters(def(
                "rest_client_request_retries_total",
                "Number of request retries, partitioned by status code, verb, and host.",
                ALPHA,
                ["code", "verb", "host"],
            ))?,
            duration: families.histograms(
                def(
                    "rest_client_request_duration_seconds",
                    "Request latency in seconds. Broken down by verb, and host.",
                    ALPHA,
                    ["verb", "host"],
                ),
                seconds(),
            )?,
            request_size: families.histograms(
                def(
                    "rest_client_request_size_bytes",
                    "Request size in bytes. Broken down by verb and host.",
                    ALPHA,
                    ["verb", "host"],
                ),
                bytes(),
            )?,
            response_size: families.histograms(
                def(
                    "rest_client_response_size_bytes",
                    "Response size in bytes. Broken down by verb and host.",
                    ALPHA,
                    ["verb", "host"],
                ),
                bytes(),
            )?,
            rate_limiter: families.histograms(
                def(
                    "rest_client_rate_limiter_duration_seconds",
                    "Client side rate limiter latency in seconds. Broken down by verb, and host.",
                    ALPHA,
                    ["verb", "host"],
                ),
                seconds(),
            )?,
        })
    }

    /// A request got a response with a status code, or `None` without a response; `verb` is the HTTP method.
    pub fn record_response(&self, verb: &str, host: &str, code: Option<u16>, seconds: f64) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.requests.inc([&code, verb, host]);
        self.duration.observe([verb, host], seconds);
    }

    /// A request is retried after a status code, or after an error without a response.
    pub fn retried(&self, verb: &str, host: &str, code: Option<u16>) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.retries.inc([&code, verb, host]);
    }

    /// The numbers of bytes sent and received.
    pub fn bytes_transferred(&self, verb: &str, host: &str, sent: u64, received: u64) {
        self.request_size.observe([verb, host], sent as f64);
        self.response_size.observe([verb, host], received as f64);
    }

    /// A request waited `seconds` for the client-side rate limiter.
    pub fn rate_limited(&self, verb: &str, host: &str, seconds: f64) {
        self.rate_limiter.observe([verb, host], seconds);
    }
}

/// Work queues, by name.
pub struct WorkqueueMetrics {
    depth: Gauges<1>,
    adds: Counters<1>,
    queue_duration: Histograms<1>,
    work_duration: Histograms<1>,
    unfinished: Gauges<1>,
    longest: Gauges<1>,
    retries: Counters<1>,
}

impl WorkqueueMetrics {
    pub(super) fn new(families: &mut Families) -> Result<Self, Error> {
        let buckets = || exponential(10e-9, 10.0, 10);
        Ok(WorkqueueMetrics {
            depth: families.gauges(def("workqueue_depth", "Current depth of workqueue", BETA, ["name"]))?,
            adds: families.counters(def("workqueue_adds_total", "Total number of adds handled by workqueue", BETA, ["name"]))?,
            queue_duration: families.histograms(def("workqueue_queue_duration_seconds", "How long in seconds an item stays in workqueue before being requested.", BETA, ["name"]), buckets())?,
            work_duration: families.histograms(def("workqueue_work_duration_seconds", "How long in seconds processing an item from workqueue takes.", BETA, ["name"]), buckets())?,
            unfinished: families.gauges(def("workqueue_unfinished_work_seconds", "How many seconds of work has done that is in progress and hasn't been observed by work_duration. Large values indicate stuck threads. One can deduce the number of stuck threads by observing the rate at which this increases.", BETA, ["name"]))?,
            longest: families.gauges(def("workqueue_longest_running_processor_seconds", "How many seconds has the longest running processor for workqueue been running.", BETA, ["name"]))?,
            retries: families.counters(def("workqueue_retries_total", "Total number of retries handled by workqueue", BETA, ["name"]))?,
        })
    }

    /// An item was added; the queue now has `depth` items.
    pub fn added(&self, name: &str, depth: usize) {
        self.adds.inc([name]);
        self.depth.set([name], depth as f64);
        self.retries.add([name], 0);
        self.unfinished.add([name], 0.0);
        self.longest.add([name], 0.0);
    }

    /// An item was taken after `seconds`; the queue now has `depth` items.
    pub fn taken(&self, name: &str, seconds: f64, depth: usize) {
        self.queue_duration.observe([name], seconds);
        self.depth.set([name], depth as f64);
    }

    /// Processing an item took `seconds`.
    pub fn processed(&self, name: &str, seconds: f64) {
        self.work_duration.observe([name], seconds);
    }

    /// The items in progress took `sum_seconds` so far, the longest one `longest_seconds`.
    pub fn set_unfinished(&self, name: &str, sum_seconds: f64, longest_seconds: f64) {
        self.unfinished.set([name], sum_seconds);
        self.longest.set([name], longest_seconds);
    }

    /// An item is retried after a failure.
    pub fn retried(&self, name: &str) {
        self.retries.inc([name]);
    }
}

/// Leader election.
pub struct LeaderElectionMetrics {
    master: Gauges<1>,
    slow: Counters<1>,
}

impl LeaderElectionMetrics {
    pub(super) fn new(families: &mut Families) -> Result<Self, Error> {
        Ok(LeaderElectionMetrics {
            master: families.gauges(def("leader_election_master_status", "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. 'name' is the string used to identify the lease. Please make sure to group by name.", ALPHA, ["name"]))?,
            slow: families.counters(def("leader_election_slowpath_total", "Total number of slow path exercised in renewing leader leases. 'name' is the string used to identify the lease. Please make sure to group by name.", ALPHA, ["name"]))?,
        })
    }

    /// Whether this process is the leader.
    pub fn set_leading(&self, name: &str, is_leading: bool) {
        self.master.set([name], f64::from(u8::from(is_leading)));
    }

    /// A renewal had to read the lease first.
    pub fn slow_path(&self, name: &str) {
        self.slow.inc([name]);
    }
}

/// The result of authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthenticationResult {
    /// The user is known.
    Success,
    /// An error occurred.
    Error,
}

/// The result of authorization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorizationResult {
    /// Allowed.
    Allowed,
    /// Denied.
    Denied,
    /// No authorizer decided.
    NoOpinion,
    /// An error occurred.
    Error,
}

/// Requests to our own endpoints.
pub struct AuthMetrics {
    users: Counters<1>,
    attempts: Counters<1>,
    duration: Histograms<1>,
    authorization_attempts: Counters<1>,
    authorization_duration: Histograms<1>,
    token_requests: Counters<1>,
    token_duration: Histograms<1>,
    access_requests: Counters<1>,
    access_duration: Histograms<1>,
}

impl AuthMetrics {
    pub(super) fn new(families: &mut Families) -> Result<Self, Error> {
        let long = || exponential(0.001, 2.0, 15);
        let review = || vec![0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];
        Ok(AuthMetrics {
            users: families.counters(def("authenticated_user_requests", "Counter of authenticated requests broken out by username.", ALPHA, ["username"]))?,
            attempts: families.counters(def("authentication_attempts", "Counter of authenticated attempts.", ALPHA, ["result"]))?,
            duration: families.histograms(def("authentication_duration_seconds", "Authentication duration in seconds broken out by result.", ALPHA, ["result"]), long())?,
            authorization_attempts: families.counters(def("authorization_attempts_total", "Counter of authorization attempts broken down by result. It can be either 'allowed', 'denied', 'no-opinion' or 'error'.", ALPHA, ["result"]))?,
            authorization_duration: families.histograms(def("authorization_duration_seconds", "Authorization duration in seconds broken out by result.", ALPHA, ["result"]), long())?,
            token_requests: families.counters(def("apiserver_delegated_authn_request_total", "Number of HTTP requests partitioned by status code.", ALPHA, ["code"]))?,
            token_duration: families.histograms(def("apiserver_delegated_authn_request_duration_seconds", "Request latency in seconds. Broken down by status code.", ALPHA, ["code"]), review())?,
            access_requests: families.counters(def("apiserver_delegated_authz_request_total", "Number of HTTP requests partitioned by status code.", ALPHA, ["code"]))?,
            access_duration: families.histograms(def("apiserver_delegated_authz_request_duration_seconds", "Request latency in seconds. Broken down by status code.", ALPHA, ["code"]), review())?,
        })
    }

    pub(crate) fn authenticated(
        &self,
        result: AuthenticationResult,
        user: Option<&str>,
        seconds: f64,
    ) {
        let label = match result {
            AuthenticationResult::Success => "success",
            AuthenticationResult::Error => "error",
        };
        self.attempts.inc([label]);
        self.duration.observe([label], seconds);
        if let Some(user) = user {
            self.users.inc([kind_of_user(user)]);
        }
    }

    pub(crate) fn authorized(&self, result: AuthorizationResult, seconds: f64) {
        let label = match result {
            AuthorizationResult::Allowed => "allowed",
            AuthorizationResult::Denied => "denied",
            AuthorizationResult::NoOpinion => "no-opinion",
            AuthorizationResult::Error => "error",
        };
        self.authorization_attempts.inc([label]);
        self.authorization_duration.observe([label], seconds);
    }

    pub(crate) fn token_review(&self, code: Option<u16>, seconds: f64) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.token_requests.inc([&code]);
        self.token_duration.observe([&code], seconds);
    }

    pub(crate) fn access_review(&self, code: Option<u16>, seconds: f64) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.access_requests.inc([&code]);
        self.access_duration.observe([&code], seconds);
    }
}

/// User names are compressed into classes, as upstream: well-known users, email addresses, others.
fn kind_of_user(user: &str) -> &str {
    match user {
        "admin"
        | "client"
        | "kube_proxy"
        | "kubelet"
        | "system:serviceaccount:kube-system:default" => user,
        _ if user.contains('@') => "email_id",
        _ => "other",
    }
}
