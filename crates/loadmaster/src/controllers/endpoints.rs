//! The HTTP endpoints of `loadmaster controllers`: metrics and probes, without TLS, as those of scheduler-plugins.

use std::fmt::{self, Write as _};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use loadmaster_client::leader_election::LeadershipStatus;
use loadmaster_controllers::runner::{ControllerStats, RunnerStats};
use loadmaster_serving::{ConnectionLimits, Incoming, Peer};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// The name of the Lease.
pub(crate) const LEASE_NAME: &str = "sched-plugins-controllers";

/// An address to listen on, as controller-runtime writes it: `:8080` for all addresses, `0` or nothing for none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListenAddress(Option<SocketAddr>);

impl ListenAddress {
    pub fn parse(text: &str) -> Result<ListenAddress, String> {
        if matches!(text, "" | "0") {
            return Ok(ListenAddress(None));
        }
        let full = if text.starts_with(':') { format!("[::]{text}") } else { text.to_owned() };
        let address = full.parse();
        let address = address.map_err(|_| "expected ADDRESS:PORT, :PORT or 0".to_owned())?;
        Ok(ListenAddress(Some(address)))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("0"),
        }
    }
}

/// What the endpoints show.
#[derive(Clone)]
pub(super) struct ControllerState {
    pub stats: watch::Receiver<RunnerStats>,
    /// `None` without leader election.
    pub leadership: Option<watch::Receiver<LeadershipStatus>>,
}

/// Answers a path; `None` for one that does not exist.
pub(super) type Handler = fn(&str, &ControllerState) -> Option<String>;

/// Listens on an address, and answers until the process ends.
pub(super) async fn serve(
    address: &ListenAddress,
    state: ControllerState,
    handler: Handler,
) -> io::Result<()> {
    let Some(address) = address.0 else { return Ok(()) };
    let listener = TcpListener::bind(address).await?;
    let answer = move |_: Arc<Peer>, request: Request<Incoming>| {
        let response = respond(request.method(), request.uri().path(), &state, handler);
        async move { response }
    };
    let (limits, never) = (ConnectionLimits::default(), std::future::pending());
    tokio::spawn(loadmaster_serving::serve(listener, || None, limits, answer, never));
    Ok(())
}

fn respond(
    method: &Method,
    path: &str,
    state: &ControllerState,
    handler: Handler,
) -> Response<Full<Bytes>> {
    let (status, body) = match (method, handler(path, state)) {
        (&Method::GET | &Method::HEAD, Some(body)) => (StatusCode::OK, body),
        (_, Some(_)) => (StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n".to_owned()),
        (_, None) => (StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let content_type = http::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, content_type);
    response
}

/// The value of the label `controller`: as in controller-runtime, the kind that the controller reconciles, in lower case.
pub(super) fn label(controller: &str) -> String {
    controller.trim_end_matches("Controller").to_ascii_lowercase()
}

/// A counter of `/metrics`.
pub(super) struct Count {
    pub name: &'static str,
    pub help: &'static str,
    pub value: u64,
}

/// The counters, with the names of controller-runtime.
pub(super) fn counts(stats: &ControllerStats) -> [Count; 3] {
    [
        Count {
            name: "controller_runtime_reconcile_total",
            help: "Total number of reconciliations per controller.",
            value: stats.n_reconciled,
        },
        Count {
            name: "controller_runtime_reconcile_errors_total",
            help: "Total number of reconciliation errors per controller.",
            value: stats.n_failed_requests + stats.n_panics,
        },
        Count {
            name: "controller_runtime_reconcile_panics_total",
            help: "Total number of reconciliation panics per controller.",
            value: stats.n_panics,
        },
    ]
}

/// `/healthz` and `/readyz`: the process answers.
pub(super) fn probe(path: &str, _: &ControllerState) -> Option<String> {
    matches!(path, "/healthz" | "/readyz" | "/healthz/" | "/readyz/").then(|| "ok".to_owned())
}

/// `/metrics`.
pub(super) fn metrics(path: &str, state: &ControllerState) -> Option<String> {
    if path != "/metrics" {
        return None;
    }
    let mut text = String::new();
    // Writing to a string does not fail.
    for (at, Count { name, help, .. }) in counts(&ControllerStats::default()).iter().enumerate() {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
        for stats in &state.stats.borrow().controllers {
            let (controller, value) = (label(stats.name), counts(stats)[at].value);
            let _ = writeln!(text, "{name}{{controller=\"{controller}\"}} {value}");
        }
    }
    if let Some(leadership) = &state.leadership {
        let name = "leader_election_master_status";
        let value = u64::from(leadership.borrow().is_leading);
        let _ = writeln!(
            text,
            "# HELP {name} Whether this replica holds the lease.\n# TYPE {name} gauge\n{name}{{name=\"{LEASE_NAME}\"}} {value}"
        );
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_as_in_controller_runtime() {
        #[track_caller]
        fn check(text: &str, want: Result<&str, ()>) {
            let found = ListenAddress::parse(text).map(|address| address.to_string());
            assert_eq!(found.as_deref().map_err(|_| ()), want, "{text}");
        }
        check(":8080", Ok("[::]:8080"));
        check("127.0.0.1:9", Ok("127.0.0.1:9"));
        check("0", Ok("0"));
        check("", Ok("0"));
        check("8080", Err(()));
        check("host:name", Err(()));
    }

    #[test]
    fn the_endpoints_show_counts_and_leadership() {
        let of = |name, n_reconciled, n_failed_requests| ControllerStats {
            name,
            n_reconciled,
            n_failed_requests,
            n_panics: 0,
        };
        let controllers = vec![of("PodGroupController", 7, 2), of("ElasticQuotaController", 3, 0)];
        let stats = RunnerStats { controllers, ..RunnerStats::default() };
        let status = LeadershipStatus { is_leading: true, ..LeadershipStatus::default() };
        let state = ControllerState {
            stats: watch::channel(stats).1,
            leadership: Some(watch::channel(status).1),
        };
        let text = metrics("/metrics", &state).unwrap();
        for line in [
            "controller_runtime_reconcile_total{controller=\"podgroup\"} 7",
            "controller_runtime_reconcile_total{controller=\"elasticquota\"} 3",
            "controller_runtime_reconcile_errors_total{controller=\"podgroup\"} 2",
            "leader_election_master_status{name=\"sched-plugins-controllers\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
        assert_eq!(metrics("/healthz", &state), None);
        assert_eq!(probe("/readyz", &state).as_deref(), Some("ok"));
        let get = |path| respond(&Method::GET, path, &state, probe).status();
        assert_eq!([get("/healthz"), get("/metrics")], [StatusCode::OK, StatusCode::NOT_FOUND]);
        let posted = respond(&Method::POST, "/healthz", &state, probe).status();
        assert_eq!(posted, StatusCode::METHOD_NOT_ALLOWED);
    }
}
