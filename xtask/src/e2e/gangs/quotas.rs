//! Three quotas: one borrows all that the others do not use, and these reclaim it.

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::time::sleep;

use super::super::api_client::ApiClient;
use super::super::load_objects;
use super::objects;

/// CPUs, and so pods, of each quota's `min`.
const MIN: usize = 4;
/// The pods of each namespace: as many as fit on all nodes, which is also each quota's `max`.
const N_PODS: usize = 3 * MIN;
/// How long the last state must be the same.
const STABLE_TIME: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(200);

/// What has happened.
#[derive(Debug, Default)]
pub struct QuotasResult {
    /// Bound pods of each namespace in the end.
    pub n_bound: [usize; 3],
    /// From the creation of the last namespace's pods until each quota had its minimum.
    pub seconds: f64,
    /// What was not as it must be.
    pub faults: Vec<String>,
}

/// The namespaces of a test, each with a quota.
pub fn namespaces(prefix: &str) -> [String; 3] {
    ["a", "b", "c"].map(|name| format!("{prefix}-quota-{name}"))
}

/// Runs the test until every quota has its minimum, or `patience` is over.
pub async fn run(api: &ApiClient, prefix: &str, patience: Duration) -> Result<QuotasResult> {
    let pool = format!("{prefix}-quotas");
    let namespaces = namespaces(prefix);
    objects::nodes(api, &pool, N_PODS as u32).await?;
    for namespace in &namespaces {
        load_objects::namespace(api, namespace).await?;
        objects::quota(api, namespace, MIN as u32, N_PODS as u32).await?;
    }
    let mut result = QuotasResult::default();
    for (n_active, want) in [(1, [N_PODS, 0, 0]), (2, [N_PODS - MIN, MIN, 0]), (3, [MIN; 3])] {
        let begun = Instant::now();
        let (reached, n_bound) =
            wait_for(api, &pool, &namespaces, n_active, want, patience).await?;
        result.n_bound = n_bound;
        result.seconds = reached.map_or(f64::INFINITY, |at| (at - begun).as_secs_f64());
        if reached.is_none() {
            let waited = patience.as_secs();
            result.faults.push(format!(
                "{n_bound:?} pods of the quotas are bound after {waited} s, expected {want:?}"
            ));
            break;
        }
    }
    Ok(result)
}

/// Keeps the number of pods of the first namespaces, as a controller does, until as many as wanted are bound and stay so. Returns when
/// that was first the case.
async fn wait_for(
    api: &ApiClient,
    pool: &str,
    namespaces: &[String; 3],
    n_active: usize,
    want: [usize; 3],
    patience: Duration,
) -> Result<(Option<Instant>, [usize; 3])> {
    let begun = Instant::now();
    let mut same_since = None;
    loop {
        let mut n_bound = [0; 3];
        for (i, namespace) in namespaces.iter().enumerate().take(n_active) {
            let (n, n_pods) = objects::n_bound(api, namespace).await?;
            n_bound[i] = n;
            replace_missing_pods(api, pool, namespace, N_PODS.saturating_sub(n_pods)).await?;
        }
        if n_bound == want {
            let since: Instant = *same_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= STABLE_TIME {
                return Ok((Some(since), n_bound));
            }
        } else {
            same_since = None;
            if begun.elapsed() > patience {
                return Ok((None, n_bound));
            }
        }
        sleep(PAUSE).await;
    }
}

async fn replace_missing_pods(
    api: &ApiClient,
    pool: &str,
    namespace: &str,
    n: usize,
) -> Result<()> {
    for _ in 0..n {
        let mut pod = objects::pod("", pool, None);
        pod["metadata"]["generateName"] = "pod-".into();
        api.create(&objects::pods(namespace), &pod).await.context("creating a pod")?;
    }
    Ok(())
}
