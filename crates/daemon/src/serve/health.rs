//! `/healthz`, `/livez`, `/readyz`: named checks, with upstream's response texts.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::{Arc, PoisonError, RwLock};

use http::StatusCode;

use super::reply::{HttpReply, text_line};
use crate::metrics::Metrics;

type Run = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// A named health check, which passes or fails with a reason.
#[derive(Clone)]
pub struct HealthCheck {
    name: String,
    run: Run,
}

impl HealthCheck {
    /// A check that runs `run` at each request.
    pub fn new(
        name: impl Into<String>,
        run: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> HealthCheck {
        HealthCheck { name: name.into(), run: Arc::new(run) }
    }

    /// Its name, as in `/readyz/<name>`.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A state that the scheduler sets and a health check reads.
///
/// ```
/// use loadmaster_daemon::serve::HealthState;
/// let synced = HealthState::failing("handlers are not fully synchronized");
/// let check = synced.check("sched-handler-sync");
/// synced.fail("listing pods is forbidden: grant verbs list and watch on pods");
/// synced.succeed();
/// # let _ = check;
/// ```
#[derive(Clone, Debug)]
pub struct HealthState(Arc<RwLock<Result<(), String>>>);

impl HealthState {
    /// Initially passing.
    pub fn passing() -> HealthState {
        HealthState(Arc::new(RwLock::new(Ok(()))))
    }

    /// Initially failing for this reason.
    pub fn failing(reason: impl Into<String>) -> HealthState {
        HealthState(Arc::new(RwLock::new(Err(reason.into()))))
    }

    /// The check passes from now on.
    pub fn succeed(&self) {
        self.set(Ok(()));
    }

    /// The check fails from now on, for this reason.
    pub fn fail(&self, reason: impl Into<String>) {
        self.set(Err(reason.into()));
    }

    fn set(&self, state: Result<(), String>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// The current state.
    pub fn state(&self) -> Result<(), String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A check of this state.
    pub fn check(&self, name: impl Into<String>) -> HealthCheck {
        let state = self.clone();
        HealthCheck::new(name, move || state.state())
    }
}

/// The checks of the three endpoints; an endpoint without checks has the check `ping`.
#[derive(Clone, Default)]
pub struct Health {
    /// `/healthz`: in kube-scheduler `leaderElection`, if leader election is enabled.
    pub healthz: Vec<HealthCheck>,
    /// `/livez`: in kube-scheduler none.
    pub livez: Vec<HealthCheck>,
    /// `/readyz`: in kube-scheduler `leaderElection`, `shutdown`, `sched-handler-sync`.
    pub readyz: Vec<HealthCheck>,
}

/// The reason with which the check `shutdown` fails while the process is shutting down.
pub const SHUTTING_DOWN: &str = "process is shutting down";

/// One of the endpoints: `healthz` and so on.
pub(super) struct HealthEndpoint {
    name: &'static str,
    checks: Vec<HealthCheck>,
}

impl Health {
    pub(super) fn endpoints(self) -> Vec<HealthEndpoint> {
        let endpoint = |name, mut checks: Vec<HealthCheck>| {
            if checks.is_empty() {
                checks.push(HealthCheck::new("ping", || Ok(())));
            }
            HealthEndpoint { name, checks }
        };
        vec![
            endpoint("healthz", self.healthz),
            endpoint("livez", self.livez),
            endpoint("readyz", self.readyz),
        ]
    }
}

impl HealthEndpoint {
    /// The response for a path, if it is this endpoint or one of its checks.
    pub fn handle(&self, path: &str, query: &str, metrics: &Metrics) -> Option<HttpReply> {
        let rest = path.strip_prefix('/')?.strip_prefix(self.name)?;
        if rest.is_empty() {
            return Some(self.all(query, metrics));
        }
        let name = rest.strip_prefix('/')?;
        let check = self.checks.iter().find(|check| check.name == name)?;
        Some(match (check.run)() {
            Ok(()) => HttpReply::text(StatusCode::OK, "ok").without_nosniff(),
            Err(reason) => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                text_line(status, format!("internal server error: {reason}"))
            }
        })
    }

    /// Runs all checks. The reasons of failures are in the log and at the path of the single check, which
    /// requires authorization, but not here.
    fn all(&self, query: &str, metrics: &Metrics) -> HttpReply {
        let mut excluded = BTreeSet::new();
        let mut verbose = false;
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            match key.as_ref() {
                "exclude" => drop(excluded.insert(value.into_owned())),
                "verbose" => verbose = true,
                _ => {}
            }
        }
        let mut text = String::new();
        let mut failed = Vec::new();
        for HealthCheck { name, run } in &self.checks {
            // Writing to a string cannot fail.
            let _ = if excluded.remove(name) {
                writeln!(text, "[+]{name} excluded: ok")
            } else {
                let result = run();
                metrics.healthcheck(name, self.name, result.is_ok());
                match result {
                    Ok(()) => writeln!(text, "[+]{name} ok"),
                    Err(reason) => {
                        failed.push(format!("{name}: {reason}"));
                        writeln!(text, "[-]{name} failed: reason withheld")
                    }
                }
            };
        }
        if !excluded.is_empty() {
            let unknown: Vec<String> = excluded.iter().map(|name| format!("{name:?}")).collect();
            text.push_str("warn: some health checks cannot be excluded: no matches for ");
            text.push_str(&unknown.join(","));
            text.push('\n');
        }
        let name = self.name;
        if !failed.is_empty() {
            tracing::info!(v = 2, endpoint = name, failed = failed.join("; "), "Check failed");
            return text_line(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("{text}{name} check failed"),
            );
        }
        if verbose {
            HttpReply::text(StatusCode::OK, format!("{text}{name} check passed\n"))
        } else {
            HttpReply::text(StatusCode::OK, "ok")
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::metrics::MetricsSettings;

    #[track_caller]
    fn check(path: &str, want: &Expect) {
        let synced = HealthState::failing("handlers are not fully synchronized");
        let ready = vec![
            HealthCheck::new("leaderElection", || Ok(())),
            HealthState::passing().check("shutdown"),
            synced.check("sched-handler-sync"),
        ];
        let health = Health { readyz: ready.clone(), healthz: ready[..1].to_vec(), livez: vec![] };
        let metrics = Metrics::new(&MetricsSettings::default()).unwrap();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let mut replies =
            health.endpoints().into_iter().filter_map(|it| it.handle(path, query, &metrics));
        let got = match replies.next() {
            Some(reply) => format!("{} {}", reply.status.as_u16(), reply.body_text()),
            None => "none".to_owned(),
        };
        want.assert_eq(&got);
    }

    /// The texts are those of kube-scheduler 1.36.3.
    #[test]
    fn endpoints() {
        check("/healthz", &expect!["200 ok"]);
        check(
            "/healthz?verbose",
            &expect![[r#"
            200 [+]leaderElection ok
            healthz check passed
        "#]],
        );
        check(
            "/livez?verbose=",
            &expect![[r#"
            200 [+]ping ok
            livez check passed
        "#]],
        );
        check(
            "/readyz",
            &expect![[r#"
            500 [+]leaderElection ok
            [+]shutdown ok
            [-]sched-handler-sync failed: reason withheld
            readyz check failed
        "#]],
        );
        check(
            "/readyz?exclude=nonsense&exclude=leaderElection",
            &expect![[r#"
            500 [+]leaderElection excluded: ok
            [+]shutdown ok
            [-]sched-handler-sync failed: reason withheld
            warn: some health checks cannot be excluded: no matches for "nonsense"
            readyz check failed
        "#]],
        );
        check("/readyz?exclude=a&exclude=sched-handler-sync", &expect!["200 ok"]);
        check("/readyz/leaderElection", &expect!["200 ok"]);
        check(
            "/readyz/sched-handler-sync",
            &expect![[r#"
            500 internal server error: handlers are not fully synchronized
        "#]],
        );
        check("/readyz/none", &expect!["none"]);
        check("/healthz/ping", &expect!["none"]);
        check("/healthzz", &expect!["none"]);
    }
}
