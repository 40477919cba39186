//! What the engine saw, as metrics and log lines.

use loadmaster_client::recorder::{Notice, Reference};
use loadmaster_engine::engine::{Engine, ObjectName, Observation, Outcome, Tell};
use loadmaster_engine::queue::IncomingQueue;

use crate::metrics::{AttemptResult, CacheKind, Metrics, Queue};

/// Counts one observation.
pub(super) fn observe(engine: &Engine, metrics: &Metrics, observation: &Observation) {
    let scheduler = &metrics.scheduler;
    match observation {
        Observation::Attempt { seat, outcome, nanos } => {
            let result = match outcome {
                Outcome::Scheduled => AttemptResult::Scheduled,
                Outcome::Unschedulable => AttemptResult::Unschedulable,
                Outcome::Error => AttemptResult::Error,
            };
            scheduler.attempt(result, engine.profile_name(*seat), seconds(*nanos));
        }
        Observation::Algorithm { nanos } => scheduler.algorithm(seconds(*nanos)),
        Observation::Bound { attempts, nanos, after_flush } => {
            scheduler.scheduled(*attempts, seconds(*nanos));
            if *after_flush {
                scheduler.scheduled_after_flush();
            }
        }
        Observation::PermitWait { allowed, nanos } => {
            let result = if *allowed { "Success" } else { "Unschedulable" };
            scheduler.permit_waited(result, seconds(*nanos));
        }
        Observation::Preemption { victims } => {
            scheduler.preemption_attempt();
            if let Some(n_victims) = victims {
                scheduler.preemption_victims(*n_victims);
            }
        }
        Observation::Handled { event, nanos } => {
            scheduler.event_handled(&event.to_string(), seconds(*nanos));
        }
        Observation::Judged(judgement) => {
            let profile = &judgement.profile;
            scheduler.shadow_decision(profile, judgement.opinion.name());
            tracing::info!(profile = profile.as_str(), "{judgement}");
        }
        Observation::Trouble { what } => tracing::warn!("{what}"),
    }
}

/// Sets what is a state and no event.
pub(super) fn state(engine: &mut Engine, metrics: &Metrics) {
    let scheduler = &metrics.scheduler;
    for incoming in engine.take_incoming() {
        let queue = match incoming.queue {
            IncomingQueue::Active => Queue::Active,
            IncomingQueue::Backoff => Queue::Backoff,
            IncomingQueue::Unschedulable => Queue::Unschedulable,
        };
        scheduler.queue_incoming(queue, &incoming.cause.to_string(), incoming.n);
    }
    let counts = engine.queue().counts();
    scheduler.set_pending(Queue::Active, counts.active);
    scheduler.set_pending(Queue::Backoff, counts.backoff);
    scheduler.set_pending(Queue::Unschedulable, counts.unschedulable);
    scheduler.set_pending(Queue::Gated, counts.gated);
    scheduler.set_cache_size(CacheKind::Nodes, engine.world().nodes().len());
    scheduler.set_cache_size(CacheKind::Pods, engine.world().n_assigned());
    scheduler.set_cache_size(CacheKind::AssumedPods, engine.n_assumed());
    scheduler.set_bind_window(engine.n_binding());
}

/// An Event object about a pod.
pub(super) fn notice(tell: Tell) -> Notice {
    let pod = |pod: ObjectName| Reference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        namespace: pod.namespace,
        name: pod.name,
        uid: pod.uid,
    };
    Notice {
        regarding: pod(tell.regarding),
        related: tell.related.map(pod),
        is_warning: tell.is_warning,
        reason: tell.reason.into(),
        action: tell.action.into(),
        note: tell.note,
        controller: tell.controller,
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
