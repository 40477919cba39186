//! More gangs than fit: those that have been bound are deleted, and others follow.

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::task::JoinSet;

use super::super::api_client::ApiClient;
use super::super::bound_pods::BoundPods;
use super::super::load_objects;
use super::super::process::Process;
use super::history::GangLimits;
use super::objects;

/// Gangs whose members are created at once, alternately.
#[derive(Clone, Debug)]
pub struct Waves {
    /// Their namespace, which is also the name of their nodes' pool.
    pub namespace: String,
    pub n_gangs: u32,
    /// Number of members, which is also `minMember`.
    pub size: u32,
    /// How many pods fit on the nodes.
    pub n_room: u32,
}

/// What has happened.
#[derive(Debug, Default)]
pub struct WavesResult {
    /// When each pod was bound, in seconds since the first gang was complete, in order: no pod may be bound before.
    pub bound_seconds: Vec<f64>,
    /// How many gangs are bound.
    pub n_bound_gangs: u32,
    pub cpu_seconds: f64,
}

impl WavesResult {
    /// Until the last binding; NaN without one.
    pub fn seconds(&self) -> f64 {
        self.bound_seconds.last().copied().unwrap_or(f64::NAN)
    }

    pub fn pods_per_second(&self) -> f64 {
        self.bound_seconds.len() as f64 / self.seconds()
    }
}

impl Waves {
    pub fn limits(&self) -> GangLimits {
        GangLimits { size: self.size as usize, n_room: self.n_room as usize }
    }

    fn n_pods(&self) -> u32 {
        self.n_gangs * self.size
    }

    /// How many gangs must be deleted for the others.
    fn n_to_delete(&self) -> u32 {
        self.n_gangs - self.n_room / self.size
    }

    /// Runs them until all are bound, or no pod is bound for `patience`.
    pub async fn run(
        &self,
        api: &ApiClient,
        scheduler: &mut Process,
        patience: Duration,
    ) -> Result<WavesResult> {
        load_objects::namespace(api, &self.namespace).await?;
        objects::nodes(api, &self.namespace, self.n_room).await?;
        for i in 0..self.n_gangs {
            objects::pod_group(api, &self.namespace, &gang_name(i), self.size).await?;
        }
        let mut bound = BoundPods::watch(api, &self.namespace).await?;
        let cpu_before = scheduler.usage()?.cpu_seconds;
        // All gangs but for their last members, which are then created at once.
        let n_before = self.n_pods() - self.n_gangs;
        self.create_pods(api, 0..n_before).await?;
        let start = Instant::now();
        let (n_bound_gangs, ()) = tokio::try_join!(
            self.follow(api, &mut bound, patience),
            self.create_pods(api, n_before..self.n_pods())
        )?;
        scheduler.check_running()?;
        let bound_at = bound.bound_at().iter();
        Ok(WavesResult {
            bound_seconds: bound_at
                .map(|at| at.saturating_duration_since(start).as_secs_f64())
                .collect(),
            n_bound_gangs,
            cpu_seconds: scheduler.usage()?.cpu_seconds - cpu_before,
        })
    }

    /// One member of each gang, then another one.
    async fn create_pods(&self, api: &ApiClient, which: Range<u32>) -> Result<()> {
        let Waves { n_gangs, namespace, .. } = self.clone();
        let path = objects::pods(&namespace);
        let make = move |i: u32| {
            let gang = gang_name(i % n_gangs);
            objects::pod(&objects::member_name(&gang, i / n_gangs), &namespace, Some(&gang))
        };
        let created = load_objects::create_all(api, &path, which, make);
        created.await.context("creating members")
    }

    /// Deletes gangs that are bound while others need their room. Returns how many gangs were bound.
    async fn follow(
        &self,
        api: &ApiClient,
        bound: &mut BoundPods,
        patience: Duration,
    ) -> Result<u32> {
        let mut n_bound_members: BTreeMap<String, u32> = BTreeMap::new();
        let (mut n_bound_gangs, mut n_seen) = (0, 0);
        let mut deletions = JoinSet::new();
        while n_seen < self.n_pods() as usize && bound.wait_for(n_seen + 1, patience).await? {
            for pod in &bound.names()[n_seen..] {
                let gang = objects::gang_of(pod).with_context(|| format!("a pod called {pod}"))?;
                let n_members = n_bound_members.entry(gang.to_owned()).or_default();
                *n_members += 1;
                if *n_members < self.size {
                    continue;
                }
                n_bound_gangs += 1;
                if n_bound_gangs <= self.n_to_delete() {
                    let (api, gang) = (api.clone(), gang.to_owned());
                    let Waves { namespace, size, .. } = self.clone();
                    deletions.spawn(async move {
                        objects::delete_members(&api, &namespace, &gang, size).await
                    });
                }
            }
            n_seen = bound.names().len();
        }
        while let Some(deleted) = deletions.join_next().await {
            deleted.context("deleting a gang")??;
        }
        Ok(n_bound_gangs)
    }
}

fn gang_name(i: u32) -> String {
    format!("gang-{i}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_gangs_are_deleted_as_have_no_room() {
        let check = |n_gangs, size, n_room, want| {
            let waves = Waves { namespace: String::new(), n_gangs, size, n_room };
            assert_eq!(waves.n_to_delete(), want, "{waves:?}");
        };
        check(50, 20, 600, 20);
        check(2, 20, 30, 1);
        check(2, 20, 40, 0);
    }

    #[test]
    fn rates_end_with_the_last_binding() {
        let result = WavesResult { bound_seconds: vec![0.5, 1.0, 2.0], ..WavesResult::default() };
        assert_eq!((result.seconds(), result.pods_per_second()), (2.0, 1.5));
        assert!(WavesResult::default().seconds().is_nan());
    }
}
