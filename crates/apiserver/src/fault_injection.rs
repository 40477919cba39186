//! Fault injection: which requests fail and how, decided from a seed.
//!
//! [`Faults::decide_faults`] is a function of the seed, of the number of matching requests before, and of the request: a
//! single client gets the same faults in every run. `http` injects them. Requests that match no rule are not affected
//! and not counted. Responses are never wrong: they are only delayed, truncated or dropped.

use std::time::Duration;

use loadmaster_api::document::from_yaml;
use loadmaster_stdx::Rng;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::request::RequestPath;
use crate::status::ApiError;

/// Fault injection rules. The first one that matches a request applies.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Faults {
    rules: Vec<Rule>,
}

/// Which requests, and the probability (0 to 1) of each fault. Several can apply to one request.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Rule {
    /// Such as `list`, `watch`, `patch`; all if empty.
    verbs: Vec<String>,
    /// Such as `pods` or `pods/binding`; all if empty.
    resources: Vec<String>,
    /// What the user agent begins with; all if empty.
    user_agents: Vec<String>,
    /// The response is delayed by up to `latencyMs`.
    latency: f64,
    latency_ms: u64,
    /// 429 with `Retry-After: 1`; the request is not executed.
    throttle: f64,
    /// 500, 503 or 504; the request is not executed.
    error: f64,
    /// 409 on update, patch and delete; the request is not executed.
    conflict: f64,
    /// The connection is closed; the request is not executed.
    drop: f64,
    /// The request is executed and its response lost: the connection is closed, or the response is 504.
    lose: f64,
    /// The response, or a watch, is truncated within the first `cutBytes` of its body.
    cut: f64,
    cut_bytes: u64,
    /// 410: a watch from a revision, at once or after some events, and a list with a continue token.
    expire: f64,
    /// Events of a watch are delayed by up to `lateMs`, in order.
    late: f64,
    late_ms: u64,
}

impl Default for Rule {
    fn default() -> Rule {
        Rule {
            verbs: Vec::new(),
            resources: Vec::new(),
            user_agents: Vec::new(),
            latency: 0.0,
            latency_ms: 100,
            throttle: 0.0,
            error: 0.0,
            conflict: 0.0,
            drop: 0.0,
            lose: 0.0,
            cut: 0.0,
            cut_bytes: 8 * 1024,
            expire: 0.0,
            late: 0.0,
            late_ms: 500,
        }
    }
}

/// Why fault injection rules are invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FaultsError {
    #[error("{part:?} is not KEY=VALUE")]
    NotKeyValue { part: String },
    #[error("rule {nth}: {key} is {value}, but a probability must be from 0 to 1")]
    Probability { nth: usize, key: &'static str, value: f64 },
    #[error("parsing the fault injection rules")]
    Yaml(#[source] serde_saphyr::Error),
    #[error("parsing the fault injection rules")]
    Flag(#[source] serde_json::Error),
}

/// The attributes of a request that rules match on.
#[derive(Clone, Copy, Debug)]
pub struct FaultRequest<'a> {
    pub verb: &'a str,
    pub target: &'a RequestPath,
    pub user_agent: &'a str,
    /// It continues from a resourceVersion or a continue token.
    pub is_continuation: bool,
}

/// The injected faults of one request.
#[derive(Clone, Debug)]
pub struct FaultDecision {
    /// Delay before the request is handled.
    pub delay: Duration,
    pub fate: RequestFault,
    pub stream: BodyFaults,
}

/// How a request is handled.
#[derive(Clone, Debug)]
pub enum RequestFault {
    /// Executed and answered.
    Pass,
    /// Answered with an error and not executed.
    Reject(ApiError),
    /// The connection is closed before it is executed.
    Drop,
    /// Executed, then the connection is closed.
    DropResponse,
    /// Executed and answered with an error.
    ErrorAfterExecution(ApiError),
}

/// The injected faults of a response body.
#[derive(Clone, Debug)]
pub struct BodyFaults {
    rng: Rng,
    /// It is truncated after so many bytes.
    cut_after: Option<u64>,
    /// A watch gets 410 after so many parts.
    expire_after: Option<u64>,
    late: f64,
    late_ms: u64,
}

/// How a part of a body is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkFault {
    /// Sent after this delay.
    Pass(Duration),
    /// Truncated to so many bytes, then the connection is closed.
    Cut(usize),
    /// Replaced by a 410 event, which ends the watch.
    Expire,
}

impl Faults {
    /// `KEY=VALUE,...`: one rule; lists are separated by `|`, as in `verbs=get|list`.
    ///
    /// # Errors
    ///
    /// When a key or value is not one of a rule.
    pub fn from_flag(text: &str) -> Result<Faults, FaultsError> {
        let mut rule = Map::new();
        for part in text.split(',').filter(|it| !it.is_empty()) {
            let pair = part.split_once('=');
            let (key, value) =
                pair.ok_or_else(|| FaultsError::NotKeyValue { part: part.to_owned() })?;
            let is_list = matches!(key, "verbs" | "resources" | "userAgents");
            let value = match (is_list, value.parse::<u64>(), value.parse::<f64>()) {
                (true, _, _) => value.split('|').map(Value::from).collect(),
                (_, Ok(number), _) => number.into(),
                (_, _, Ok(number)) => number.into(),
                _ => value.into(),
            };
            rule.insert(key.to_owned(), value);
        }
        let rule = serde_json::from_value(Value::Object(rule)).map_err(FaultsError::Flag)?;
        Faults { rules: vec![rule] }.validated()
    }

    /// A YAML document with a list of `rules`.
    ///
    /// # Errors
    ///
    /// When it is not one.
    pub fn from_yaml(text: &str) -> Result<Faults, FaultsError> {
        let faults: Faults = from_yaml(text).map_err(FaultsError::Yaml)?;
        faults.validated()
    }

    fn validated(self) -> Result<Faults, FaultsError> {
        for (at, rule) in self.rules.iter().enumerate() {
            for (key, value) in rule.probabilities() {
                if !(0.0..=1.0).contains(&value) {
                    return Err(FaultsError::Probability { nth: at + 1, key, value });
                }
            }
        }
        Ok(self)
    }

    /// The faults of a request; `nth` counts the requests that match a rule. None if no rule matches.
    pub fn decide_faults(
        &self,
        seed: u64,
        nth: impl FnOnce() -> u64,
        asked: FaultRequest<'_>,
    ) -> Option<FaultDecision> {
        let rule = self.rules.iter().find(|rule| rule.matches(asked))?;
        Some(rule.decide(&Rng::new(seed).split(&nth().to_string()), asked))
    }
}

impl Rule {
    fn probabilities(&self) -> [(&'static str, f64); 9] {
        [
            ("latency", self.latency),
            ("throttle", self.throttle),
            ("error", self.error),
            ("conflict", self.conflict),
            ("drop", self.drop),
            ("lose", self.lose),
            ("cut", self.cut),
            ("expire", self.expire),
            ("late", self.late),
        ]
    }

    fn matches(&self, asked: FaultRequest<'_>) -> bool {
        let RequestPath { resource, subresource, .. } = asked.target;
        let is_named = |name: &String| match name.split_once('/') {
            Some((main, sub)) => main == resource && sub == subresource,
            None => name == resource && subresource.is_empty(),
        };
        (self.verbs.is_empty() || self.verbs.iter().any(|it| it == asked.verb))
            && (self.resources.is_empty() || self.resources.iter().any(is_named))
            && (self.user_agents.is_empty()
                || self.user_agents.iter().any(|it| asked.user_agent.starts_with(it.as_str())))
    }

    fn decide(&self, rng: &Rng, asked: FaultRequest<'_>) -> FaultDecision {
        // Each fault has its own random numbers: raising one rate does not change when the others occur.
        let hits = |name: &str, rate: f64| happens_with_rate(&mut rng.split(name), rate);
        let below = |name: &str, n: u64| rng.split(name).below(n.max(1));
        let changes = matches!(asked.verb, "update" | "patch" | "delete");
        let is_watch = asked.verb == "watch";
        let delay_ms = match hits("latency", self.latency) {
            true => 1 + below("latency, ms", self.latency_ms),
            false => 0,
        };
        let expires = asked.is_continuation && hits("expire", self.expire);
        let at_once = !is_watch || below("expire, when", 2) == 0;
        let fate = if hits("drop", self.drop) {
            RequestFault::Drop
        } else if hits("throttle", self.throttle) {
            RequestFault::Reject(ApiError::fault(429, "TooManyRequests", Some(1)))
        } else if hits("error", self.error) {
            RequestFault::Reject(match below("error, which", 3) {
                0 => ApiError::fault(500, "InternalError", None),
                1 => ApiError::fault(503, "ServiceUnavailable", None),
                _ => ApiError::fault(504, "Timeout", None),
            })
        } else if changes && hits("conflict", self.conflict) {
            RequestFault::Reject(ApiError::fault(409, "Conflict", None))
        } else if expires && at_once {
            RequestFault::Reject(ApiError::fault(410, "Expired", None))
        } else if hits("lose", self.lose) {
            match below("lose, how", 2) {
                0 => RequestFault::DropResponse,
                _ => RequestFault::ErrorAfterExecution(ApiError::fault(504, "Timeout", None)),
            }
        } else {
            RequestFault::Pass
        };
        let cut = hits("cut", self.cut);
        FaultDecision {
            delay: Duration::from_millis(delay_ms),
            fate,
            stream: BodyFaults {
                rng: rng.split("stream"),
                cut_after: cut.then(|| below("cut, where", self.cut_bytes)),
                expire_after: (is_watch && expires).then(|| below("expire, where", 20)),
                late: if is_watch { self.late } else { 0.0 },
                late_ms: self.late_ms,
            },
        }
    }
}

impl BodyFaults {
    /// Whether this body has no faults.
    pub fn has_no_faults(&self) -> bool {
        self.cut_after.is_none() && self.expire_after.is_none() && self.late == 0.0
    }

    /// How the next part, which has so many bytes, is sent.
    pub fn next_chunk_fault(&mut self, n_bytes: usize) -> ChunkFault {
        if let Some(left) = &mut self.cut_after {
            match left.checked_sub(n_bytes as u64) {
                Some(rest) => *left = rest,
                None => return ChunkFault::Cut(usize::try_from(*left).unwrap_or(0)),
            }
        }
        if let Some(left) = &mut self.expire_after {
            match left.checked_sub(1) {
                Some(rest) => *left = rest,
                None => return ChunkFault::Expire,
            }
        }
        let is_late = happens_with_rate(&mut self.rng, self.late);
        let late_ms = if is_late { 1 + self.rng.below(self.late_ms.max(1)) } else { 0 };
        ChunkFault::Pass(Duration::from_millis(late_ms))
    }
}

/// True with this probability.
fn happens_with_rate(rng: &mut Rng, rate: f64) -> bool {
    // A double has 53 bits of precision.
    ((rng.next_u64() >> 11) as f64) < rate * (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(resource: &str, subresource: &str) -> RequestPath {
        RequestPath {
            resource: resource.into(),
            subresource: subresource.into(),
            ..RequestPath::default()
        }
    }

    fn asked<'a>(verb: &'a str, target: &'a RequestPath) -> FaultRequest<'a> {
        FaultRequest { verb, target, user_agent: "kubectl/1.36", is_continuation: true }
    }

    fn name(fate: &RequestFault) -> String {
        match fate {
            RequestFault::Pass => "pass".to_owned(),
            RequestFault::Drop => "drop".to_owned(),
            RequestFault::DropResponse => "lose".to_owned(),
            RequestFault::Reject(error) => error.code.to_string(),
            RequestFault::ErrorAfterExecution(error) => format!("done, {}", error.code),
        }
    }

    fn run(faults: &str, seed: u64, verb: &str, n: u64) -> Vec<String> {
        let faults = Faults::from_flag(faults).expect("faults");
        let pods = target("pods", "");
        (0..n)
            .map(|nth| faults.decide_faults(seed, || nth, asked(verb, &pods)).expect("a rule"))
            .map(|it| name(&it.fate))
            .collect()
    }

    #[test]
    fn a_seed_decides_all_faults_and_rates_are_independent() {
        let words = "drop=0.1,lose=0.2,error=0.1,throttle=0.1,conflict=0.1";
        let first = run(words, 1, "patch", 500);
        assert_eq!(first, run(words, 1, "patch", 500));
        assert_ne!(first, run(words, 2, "patch", 500));
        for want in ["pass", "drop", "lose", "done, 504", "429", "500", "503", "504", "409"] {
            assert!(first.iter().any(|it| it == want), "{want} never comes");
        }
        let without = run("drop=0.1", 1, "patch", 500);
        for (with, without) in first.iter().zip(&without) {
            assert_eq!(with == "drop", without == "drop");
        }
    }

    #[test]
    fn rates_are_met() {
        let n = |rate: &str| {
            let fates = run(&format!("drop={rate}"), 3, "get", 10_000);
            fates.iter().filter(|it| *it == "drop").count()
        };
        assert_eq!((n("0"), n("1")), (0, 10_000));
        assert!((800..1_200).contains(&n("0.1")), "{}", n("0.1"));
    }

    #[test]
    fn reads_get_no_conflicts_and_only_continuations_expire() {
        assert!(run("conflict=1", 1, "get", 50).iter().all(|it| it == "pass"));
        assert!(run("expire=1", 1, "list", 50).iter().all(|it| it == "410"));
        let watches = run("expire=1", 1, "watch", 50);
        assert!(watches.iter().any(|it| it == "410") && watches.iter().any(|it| it == "pass"));
        let faults = Faults::from_flag("expire=1").expect("faults");
        let pods = target("pods", "");
        let fresh = FaultRequest { is_continuation: false, ..asked("list", &pods) };
        assert_eq!(name(&faults.decide_faults(1, || 0, fresh).expect("a rule").fate), "pass");
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let faults = Faults::from_yaml(
            "rules:\n- {verbs: [create], resources: [pods/binding], drop: 1}\n- {userAgents: [kubectl], error: 1}\n",
        )
        .expect("rules");
        let check = |verb: &str, subresource: &str, user_agent: &str, want: Option<&str>| {
            let pods = target("pods", subresource);
            let asked = FaultRequest { verb, target: &pods, user_agent, is_continuation: false };
            let fate =
                faults.decide_faults(1, || 0, asked).map(|it| name(&it.fate)[..1].to_owned());
            assert_eq!(fate.as_deref(), want, "{verb} {subresource} {user_agent}");
        };
        check("create", "binding", "any", Some("d"));
        check("create", "", "any", None);
        check("create", "", "kubectl/1", Some("5"));
        check("get", "binding", "kubectl/1", Some("5"));
    }

    #[test]
    fn parts_of_a_body() {
        let stream = |words: &str, verb: &str| {
            let pods = target("pods", "");
            let faults = Faults::from_flag(words).expect("faults");
            faults.decide_faults(5, || 0, asked(verb, &pods)).expect("a rule").stream
        };
        let mut cut = stream("cut=1", "get");
        let mut n_bytes = 0;
        let end = loop {
            match cut.next_chunk_fault(100) {
                ChunkFault::Pass(_) => n_bytes += 100,
                other => break other,
            }
        };
        assert!(matches!(end, ChunkFault::Cut(n) if n < 100) && n_bytes <= 8 * 1024, "{end:?}");
        let mut expired = stream("expire=1", "watch");
        assert!((0..30).any(|_| expired.next_chunk_fault(10) == ChunkFault::Expire));
        assert!(
            stream("late=1", "get").has_no_faults(),
            "only watches have parts that can be late"
        );
        let ChunkFault::Pass(late) = stream("late=1,lateMs=40", "watch").next_chunk_fault(10)
        else {
            panic!("cut")
        };
        assert!((1..=40).contains(&late.as_millis()));
    }

    #[test]
    fn bad_rules_are_rejected() {
        let check = |words: &str, want: &str| {
            let error = Faults::from_flag(words).expect_err("refused");
            let said = loadmaster_stdx::ErrorChain(&error).to_string();
            assert!(said.contains(want), "{words}: {said}");
        };
        check("drop", "\"drop\" is not KEY=VALUE");
        check("drop=2", "rule 1: drop is 2, but a probability must be from 0 to 1");
        check("drop=often", "invalid type: string \"often\"");
        check("dorp=0.1", "unknown field `dorp`");
        assert!(Faults::from_yaml("rules: [{drop: -1}]").is_err());
        assert!(Faults::from_yaml("rule: []").is_err());
    }
}
