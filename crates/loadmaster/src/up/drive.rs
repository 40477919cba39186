//! What happens to a cluster from outside, in time, and when nothing more will happen.

#![expect(clippy::disallowed_types, reason = "a cluster that runs has a clock")]

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::Method;
use loadmaster_daemon::run::Asked;
use serde_json::json;

use super::cluster::Cluster;
use super::picture::Picture;
use super::sample::{Churn, Deed, Millis};
use super::tally::Tally;

/// How far ahead churn is planned.
const PLAN_AHEAD_MS: Millis = 1_000;

/// So long nothing may have changed before the cluster counts as settled.
const STILL: Duration = Duration::from_millis(1_500);

/// Time between two looks at what the scheduler knows: while something changes, and while nothing does.
const LOOK: Duration = Duration::from_millis(200);
const LOOK_STILL: Duration = Duration::from_millis(500);

/// A cluster with what goes on in it.
pub(super) struct Drive {
    pub cluster: Cluster,
    deeds: VecDeque<(Millis, Deed)>,
    churn: Option<Churn>,
    began: Instant,
    /// What was counted last, and when that was something else.
    last: (Tally, Instant),
    look: Look,
    /// Deeds that were refused.
    pub refused: Vec<String>,
}

/// The last look at what the scheduler knows. The larger the cluster, the rarer they are: each takes some of the scheduler's time.
struct Look {
    picture: Rc<Picture>,
    at: Instant,
    /// What was counted then.
    tally: Tally,
    n_decisions: u64,
}

/// The cluster at a moment.
pub(super) struct Moment {
    pub since: Duration,
    pub picture: Rc<Picture>,
    pub tally: Tally,
    pub n_decisions: u64,
    pub deciding: Duration,
    /// Nothing more will happen by itself.
    pub is_settled: bool,
}

impl Moment {
    /// Pods without a node.
    pub fn n_pending(&self) -> usize {
        self.picture.n_pending()
    }
}

impl Drive {
    pub fn new(cluster: Cluster, arrivals: Vec<(Millis, Deed)>, churn: Option<Churn>) -> Drive {
        let began = Instant::now();
        Drive {
            cluster,
            deeds: arrivals.into(),
            churn,
            began,
            last: (Tally::default(), began),
            look: Look {
                picture: Rc::default(),
                at: began,
                tally: Tally::default(),
                n_decisions: 0,
            },
            refused: Vec::new(),
        }
    }

    /// Does what is due, and looks; nothing when the scheduler has ended.
    pub fn step(&mut self) -> Option<Moment> {
        let since = self.began.elapsed();
        let now_ms = Millis::try_from(since.as_millis()).unwrap_or(Millis::MAX);
        if let Some(churn) = &mut self.churn {
            let mut planned = churn.plan(now_ms.saturating_add(PLAN_AHEAD_MS));
            planned.sort_by_key(|(at_ms, _)| *at_ms);
            self.deeds.extend(planned);
        }
        while self.deeds.front().is_some_and(|(at_ms, _)| *at_ms <= now_ms) {
            if let Some((_, deed)) = self.deeds.pop_front() {
                self.carry_out(deed);
            }
        }
        let tally = self.cluster.tally();
        if tally != self.last.0 {
            self.last = (tally, Instant::now());
        }
        let (n_decisions, seconds) = self.cluster.decisions();
        let is_same = tally == self.look.tally && n_decisions == self.look.n_decisions;
        if self.look.at.elapsed() >= if is_same { LOOK_STILL } else { LOOK } {
            match self.cluster.picture() {
                Asked::Answered(mut picture) => {
                    picture.add_unscheduled(&self.cluster.unscheduled());
                    let (picture, at) = (Rc::new(picture), Instant::now());
                    self.look = Look { picture, at, tally, n_decisions };
                }
                Asked::Busy => {}
                Asked::Ended => return None,
            }
        }
        let Look { picture, at, .. } = &self.look;
        let is_still = tally.starting == 0 && tally.ending == 0 && picture.n_busy == 0;
        let is_over = self.churn.is_none() && self.deeds.is_empty();
        Some(Moment {
            since,
            // An old look says nothing about what has changed since.
            is_settled: is_over && is_still && at.saturating_duration_since(self.last.1) >= STILL,
            picture: picture.clone(),
            tally,
            n_decisions,
            deciding: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
        })
    }

    /// Whether somebody wants it to end.
    pub fn is_told_to_stop(&self) -> bool {
        self.cluster.is_told_to_stop()
    }

    fn carry_out(&mut self, deed: Deed) {
        let api = &mut self.cluster.api;
        let done = match &deed {
            Deed::Create(object) => api.create(object),
            Deed::Scale { namespace, name, replicas } => {
                let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale");
                api.merge(&path, &json!({"spec": {"replicas": replicas}}))
            }
            Deed::RemoveNode(name) => {
                api.call(Method::DELETE, &format!("/api/v1/nodes/{name}"), None)
            }
        };
        if let Err(refusal) = done
            && !refusal.is_there_already()
        {
            self.refused.push(refusal.message);
        }
    }
}
