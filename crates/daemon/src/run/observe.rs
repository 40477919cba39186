//! What the engine saw, as metrics and log lines.

use std::collections::BTreeMap;

use loadmaster_client::recorder::{Notice, Reference};
use loadmaster_engine::engine::{
    Engine, LostRace, ObjectName, Observation, Outcome, Overdue, Tell,
};
use loadmaster_engine::guard::{self, Panic, Site, Timed};
use loadmaster_engine::queue::IncomingQueue;
use loadmaster_framework::Code;

use crate::metrics::{AttemptResult, CacheKind, Metrics, OwnMetrics, Queue, SchedulerMetrics};

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
        Observation::Preemption { counts, victims } => {
            if *counts {
                scheduler.preemption_attempt();
            }
            if let Some(n_victims) = victims.filter(|n| *n > 0) {
                scheduler.preemption_victims(n_victims);
            }
        }
        Observation::Timed(calls) => timed(scheduler, calls),
        Observation::Panicked(panic) => panicked(&metrics.own, panic),
        Observation::Handled { event, nanos } => {
            scheduler.event_handled(&event.to_string(), seconds(*nanos));
        }
        Observation::Judged(judgement) => {
            let profile = &judgement.profile;
            metrics.own.shadow_decision(profile, judgement.opinion.name());
            tracing::info!(profile = profile.as_str(), "{judgement}");
        }
        Observation::Overdue(overdue) => plugin_overdue(&metrics.own, overdue),
        Observation::LostRace(lost) => lost_race(&metrics.own, lost),
        Observation::Trouble { what } => tracing::warn!("{what}"),
    }
}

/// Durations of plugins, and of points where they are the sum of these. Filters and scores that are asked one by one are some of
/// many; what they take together is told by itself, as all plugins' Filter.
fn timed(scheduler: &SchedulerMetrics, calls: &[Timed]) {
    let mut points: BTreeMap<(&str, Site), (Code, u64)> = BTreeMap::new();
    for Timed { who, site, code, nanos, event } in calls {
        if let Some(event) = event {
            let hint = match code {
                Code::Success => "Queue",
                Code::Skip => "QueueSkip",
                _ => "Error",
            };
            scheduler.hint(who.plugin, event, hint, seconds(*nanos));
            continue;
        }
        let is_all = who.plugin == guard::ALL;
        if !is_all {
            scheduler.plugin(who.plugin, site.name(), code.name(), seconds(*nanos));
        }
        let in_pass = matches!(
            site,
            Site::Filter | Site::Score | Site::Normalize | Site::AddPod | Site::RemovePod
        );
        if is_all || !in_pass {
            let code = if *code == Code::Skip { Code::Success } else { *code };
            let (worst, sum) = points.entry((&who.profile, *site)).or_insert((Code::Success, 0));
            *worst = if code == Code::Success { *worst } else { code };
            *sum += nanos;
        }
    }
    for ((profile, site), (code, nanos)) in points {
        scheduler.extension_point(site.name(), code.name(), profile, seconds(nanos));
    }
}

fn plugin_overdue(metrics: &OwnMetrics, overdue: &Overdue) {
    let Overdue { who, site, pod, node } = overdue;
    metrics.plugin_overdue(who.plugin, site.name());
    tracing::warn!(
        plugin = who.plugin,
        extension_point = site.name(),
        profile = &*who.profile,
        pod,
        node = node.as_str(),
        "A plugin has not come to an end for a minute; the pod waits for it"
    );
}

fn lost_race(metrics: &OwnMetrics, lost: &LostRace) {
    metrics.race_lost(lost.kind.name(), &lost.profile);
    let winner = lost.winner.as_ref();
    tracing::warn!(
        kind = lost.kind.name(),
        pod = lost.pod,
        node = lost.node.as_str(),
        bound_to = lost.bound_to.as_str(),
        other = winner.map_or("", |winner| &winner.pod),
        scheduler = winner.map_or("", |winner| &winner.scheduler),
        "Lost a race to another scheduler: {lost}"
    );
}

fn panicked(metrics: &OwnMetrics, panic: &Panic) {
    let Panic { who, site, message, place, times } = panic;
    metrics.plugin_panicked(who.plugin, site.name(), *times);
    tracing::error!(
        plugin = who.plugin,
        extension_point = site.name(),
        profile = &*who.profile,
        times,
        place = place.as_deref().unwrap_or("unknown"),
        "A plugin panicked: {message}; {}",
        site.instead()
    );
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
    metrics.own.set_bind_window(engine.n_binding());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Settings;
    use loadmaster_engine::engine::RaceKind;
    use loadmaster_engine::guard::Who;

    fn who(plugin: &'static str) -> Who {
        Who { profile: "default-scheduler".into(), plugin }
    }

    fn call(plugin: &'static str, site: Site, code: Code, nanos: u64) -> Timed {
        Timed { who: who(plugin), site, code, nanos, event: None }
    }

    /// The sums and counts of the metrics whose names begin like this.
    fn lines(metrics: &Metrics, names: &[&str]) -> String {
        let text = metrics.text();
        let is_shown = |line: &&str| {
            let is_total = line.contains("_sum{") || line.contains("_total{");
            is_total && names.iter().any(|name| line.starts_with(name))
        };
        text.lines().filter(is_shown).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn points_are_the_sums_of_their_plugins_but_for_the_pass() {
        let metrics = Metrics::new(&Settings::default()).unwrap();
        let hint = Timed {
            event: Some("NodeAdd".into()),
            ..call("NodeName", Site::QueueingHint, Code::Skip, 9_000)
        };
        timed(
            &metrics.scheduler,
            &[
                call("A", Site::PreFilter, Code::Skip, 1_000),
                call("B", Site::PreFilter, Code::Success, 2_000),
                call("A", Site::Filter, Code::Success, 5_000),
                call(guard::ALL, Site::Filter, Code::Success, 70_000),
                call("A", Site::Permit, Code::Wait, 3_000),
                hint,
            ],
        );
        expect_test::expect![[r#"
            scheduler_framework_extension_point_duration_seconds_sum{extension_point="Filter",profile="default-scheduler",status="Success"} 7e-05
            scheduler_framework_extension_point_duration_seconds_sum{extension_point="Permit",profile="default-scheduler",status="Wait"} 3e-06
            scheduler_framework_extension_point_duration_seconds_sum{extension_point="PreFilter",profile="default-scheduler",status="Success"} 3e-06
            scheduler_plugin_execution_duration_seconds_sum{extension_point="Filter",plugin="A",status="Success"} 5e-06
            scheduler_plugin_execution_duration_seconds_sum{extension_point="Permit",plugin="A",status="Wait"} 3e-06
            scheduler_plugin_execution_duration_seconds_sum{extension_point="PreFilter",plugin="A",status="Skip"} 1e-06
            scheduler_plugin_execution_duration_seconds_sum{extension_point="PreFilter",plugin="B",status="Success"} 2e-06
            scheduler_queueing_hint_execution_duration_seconds_sum{event="NodeAdd",hint="QueueSkip",plugin="NodeName"} 9e-06"#]].assert_eq(&lines(
            &metrics,
            &[
                "scheduler_framework_extension_point_duration_seconds",
                "scheduler_plugin_execution_duration_seconds",
                "scheduler_queueing_hint_execution_duration_seconds",
            ],
        ));
    }

    #[test]
    fn lost_races_and_plugins_without_an_end_are_counted() {
        let metrics = Metrics::new(&Settings::default()).unwrap();
        let overdue = Overdue {
            who: who("Slow"),
            site: Site::PreBind,
            pod: "default/web".to_owned(),
            node: "a".into(),
        };
        plugin_overdue(&metrics.own, &overdue);
        plugin_overdue(&metrics.own, &overdue);
        let lost = |kind| LostRace {
            kind,
            profile: "default-scheduler".into(),
            pod: "default/web".to_owned(),
            node: "a".into(),
            bound_to: "b".into(),
            winner: None,
        };
        for kind in [RaceKind::Bind, RaceKind::Room, RaceKind::Room, RaceKind::Pod] {
            lost_race(&metrics.own, &lost(kind));
        }
        expect_test::expect![[r#"
            loadmaster_lost_races_total{kind="bind",profile="default-scheduler"} 1
            loadmaster_lost_races_total{kind="pod",profile="default-scheduler"} 1
            loadmaster_lost_races_total{kind="room",profile="default-scheduler"} 2
            loadmaster_plugin_overdue_total{extension_point="PreBind",plugin="Slow"} 2"#]]
        .assert_eq(&lines(&metrics, &["loadmaster_"]));
    }

    #[test]
    fn panics_are_counted() {
        let metrics = Metrics::new(&Settings::default()).unwrap();
        let panic = Panic {
            who: who("Nervous"),
            site: Site::Filter,
            message: "a mouse".to_owned(),
            place: None,
            times: 3,
        };
        panicked(&metrics.own, &panic);
        expect_test::expect![[
            r#"loadmaster_plugin_panics_total{extension_point="Filter",plugin="Nervous"} 3"#
        ]]
        .assert_eq(&lines(&metrics, &["loadmaster_plugin_panics_total"]));
    }
}
