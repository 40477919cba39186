//! `/healthz`, `/livez`, `/readyz`: named checks, and upstream's text about them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::{Arc, PoisonError, RwLock};

use http::StatusCode;

use super::reply::{Reply, plain};
use crate::metrics::Metrics;

type Run = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Something that is well, or not for a reason in words.
#[derive(Clone)]
pub struct Check {
    name: String,
    run: Run,
}

impl Check {
    /// A check that is asked each time.
    pub fn new(
        name: impl Into<String>,
        run: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Check {
        Check { name: name.into(), run: Arc::new(run) }
    }

    /// Its name, as in `/readyz/<name>`.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A state that others set and a check reads.
///
/// ```
/// use loadmaster_daemon::serve::Condition;
/// let synced = Condition::failing("handlers are not fully synchronized");
/// let check = synced.check("sched-handler-sync");
/// synced.fail("listing pods is forbidden: grant verbs list and watch on pods");
/// synced.succeed();
/// # let _ = check;
/// ```
#[derive(Clone, Debug)]
pub struct Condition(Arc<RwLock<Result<(), String>>>);

impl Condition {
    /// Well from the start.
    pub fn well() -> Condition {
        Condition(Arc::new(RwLock::new(Ok(()))))
    }

    /// Not well from the start, for this reason.
    pub fn failing(reason: impl Into<String>) -> Condition {
        Condition(Arc::new(RwLock::new(Err(reason.into()))))
    }

    /// It is well now.
    pub fn succeed(&self) {
        self.set(Ok(()));
    }

    /// It is not, for this reason.
    pub fn fail(&self, reason: impl Into<String>) {
        self.set(Err(reason.into()));
    }

    fn set(&self, state: Result<(), String>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// How it is.
    pub fn state(&self) -> Result<(), String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A check of this state.
    pub fn check(&self, name: impl Into<String>) -> Check {
        let condition = self.clone();
        Check::new(name, move || condition.state())
    }
}

/// The checks of the three endpoints; one without checks answers for `ping`.
#[derive(Clone, Default)]
pub struct Health {
    /// `/healthz`: kube-scheduler has `leaderElection` here, if there is leader election.
    pub healthz: Vec<Check>,
    /// `/livez`: nothing.
    pub livez: Vec<Check>,
    /// `/readyz`: `leaderElection`, `shutdown`, `sched-handler-sync`.
    pub readyz: Vec<Check>,
}

/// What the condition `shutdown` fails with when the process is about to end.
pub const SHUTTING_DOWN: &str = "process is shutting down";

/// One of the endpoints: `healthz` and so on.
pub(super) struct Endpoint {
    name: &'static str,
    checks: Vec<Check>,
}

impl Health {
    pub(super) fn endpoints(self) -> Vec<Endpoint> {
        let endpoint = |name, mut checks: Vec<Check>| {
            if checks.is_empty() {
                checks.push(Check::new("ping", || Ok(())));
            }
            Endpoint { name, checks }
        };
        vec![
            endpoint("healthz", self.healthz),
            endpoint("livez", self.livez),
            endpoint("readyz", self.readyz),
        ]
    }
}

impl Endpoint {
    /// The answer for a path, if it is this endpoint or one of its checks.
    pub fn answer(&self, path: &str, query: &str, metrics: &Metrics) -> Option<Reply> {
        let rest = path.strip_prefix('/')?.strip_prefix(self.name)?;
        if rest.is_empty() {
            return Some(self.all(query, metrics));
        }
        let name = rest.strip_prefix('/')?;
        let check = self.checks.iter().find(|check| check.name == name)?;
        Some(match (check.run)() {
            Ok(()) => Reply::text(StatusCode::OK, "ok").sniffed(),
            Err(reason) => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                plain(status, format!("internal server error: {reason}"))
            }
        })
    }

    /// All checks together. Why one fails is told in the log and at its own path, which takes a
    /// permission, but not here.
    fn all(&self, query: &str, metrics: &Metrics) -> Reply {
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
        for Check { name, run } in &self.checks {
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
            return plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{text}{name} check failed"));
        }
        if verbose {
            Reply::text(StatusCode::OK, format!("{text}{name} check passed\n"))
        } else {
            Reply::text(StatusCode::OK, "ok")
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::metrics::Settings;

    #[track_caller]
    fn check(path: &str, want: &Expect) {
        let synced = Condition::failing("handlers are not fully synchronized");
        let ready = vec![
            Check::new("leaderElection", || Ok(())),
            Condition::well().check("shutdown"),
            synced.check("sched-handler-sync"),
        ];
        let health = Health { readyz: ready.clone(), healthz: ready[..1].to_vec(), livez: vec![] };
        let metrics = Metrics::new(&Settings::default()).unwrap();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let mut replies =
            health.endpoints().into_iter().filter_map(|it| it.answer(path, query, &metrics));
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
