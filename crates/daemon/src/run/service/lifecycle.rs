//! Starts, restarts and stops services.

use std::sync::atomic::Ordering;
use std::time::Duration;

use loadmaster_stdx::ErrorChain;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tracing::Instrument as _;

use super::{Service, ServiceContext, ServiceHandle};

/// Delays before a restart of a service: doubled each time, and reset after a run of at least `STABLE_RUN_MIN`.
const RESTART_DELAY_MIN: Duration = Duration::from_secs(1);
const RESTART_DELAY_MAX: Duration = Duration::from_secs(60);
const STABLE_RUN_MIN: Duration = Duration::from_secs(600);

/// How long a service may take to end after [`ServiceHandle::stopped`] has resolved.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The services of a scheduler. Dropping this aborts them.
pub(in crate::run) struct RunningServices {
    tasks: JoinSet<()>,
    stopping: watch::Sender<bool>,
}

impl RunningServices {
    /// Starts the services.
    pub fn start(services: &[Service], context: &ServiceContext) -> RunningServices {
        let (stopping, receiver) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for service in services {
            tasks.spawn(run_with_restarts(service.clone(), context.handle(&receiver)));
        }
        RunningServices { tasks, stopping }
    }

    /// Lets the services end that wait for the end of the scheduler, and aborts the others.
    pub async fn stop(mut self) {
        self.stopping.send_replace(true);
        let all_ended = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(STOP_TIMEOUT, all_ended).await.is_err() {
            tracing::warn!(timeout = ?STOP_TIMEOUT, "A service did not end in time and is aborted");
        }
    }
}

/// Runs a service until the scheduler is stopped.
async fn run_with_restarts(service: Service, handle: ServiceHandle) {
    let mut stopping = handle.stopping.clone();
    let mut is_stopping = async move || drop(stopping.wait_for(|it| *it).await);
    let mut delay = RESTART_DELAY_MIN;
    let name = service.name;
    loop {
        let began = Instant::now();
        // In a separate task, so that a panic ends only the run; it is aborted together with this task.
        let mut run = JoinSet::new();
        let (start, service_handle) = (service.start.clone(), handle.clone());
        let span = tracing::error_span!("service", service = name);
        run.spawn(async move { start(service_handle).await }.instrument(span));
        let ended = tokio::select! {
            ended = run.join_next() => ended,
            () = is_stopping() => {
                if handle.awaits_stop.load(Ordering::Relaxed) {
                    run.join_next().await;
                }
                return;
            }
        };
        if *handle.stopping.borrow() {
            return;
        }
        let why = match ended {
            Some(Ok(Ok(()))) | None => "it returned".to_owned(),
            Some(Ok(Err(error))) => ErrorChain(&*error).to_string(),
            Some(Err(error)) => error.to_string(),
        };
        if began.elapsed() >= STABLE_RUN_MIN {
            delay = RESTART_DELAY_MIN;
        }
        tracing::error!(service = name, delay = ?delay, "A service ended and will be restarted: {why}");
        handle.metrics.loadmaster.service_ended(name);
        tokio::select! {
            () = sleep(delay) => {}
            () = is_stopping() => return,
        }
        delay = (2 * delay).min(RESTART_DELAY_MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::super::tests::context;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_service_that_ends_fails_or_panics_is_restarted() {
        let (context, _receiver, _lead) = context();
        let n_runs = Arc::new(AtomicU32::new(0));
        let runs = n_runs.clone();
        let service = Service::new("flaky", move |_| {
            let nth = runs.fetch_add(1, Ordering::Relaxed);
            async move {
                match nth {
                    0 => Ok(()),
                    1 => Err("no route to host".into()),
                    2 => panic!("on purpose"),
                    _ => std::future::pending().await,
                }
            }
        });
        let _services = RunningServices::start(&[service], &context);
        let began = Instant::now();
        while n_runs.load(Ordering::Relaxed) < 4 {
            sleep(Duration::from_millis(100)).await;
        }
        // Delays of 1, 2 and 4 seconds.
        assert_eq!(began.elapsed().as_secs(), 7);
        let text = context.metrics.text();
        assert!(text.contains(r#"loadmaster_service_ends_total{service="flaky"} 3"#), "{text}");
    }

    /// Starts a service, stops it a minute later, and returns how long that took, and whether the service did its last work.
    async fn stop(service: impl Fn(ServiceHandle, Arc<AtomicU32>) -> Service) -> (Duration, bool) {
        let (context, _receiver, _lead) = context();
        let n_done = Arc::new(AtomicU32::new(0));
        let handle = context.handle(&watch::channel(false).1);
        let services = RunningServices::start(&[service(handle, n_done.clone())], &context);
        sleep(Duration::from_secs(60)).await;
        let began = Instant::now();
        services.stop().await;
        let took = began.elapsed();
        // The end of the scheduler is not the end of a service that is counted.
        let text = context.metrics.text();
        assert!(!text.contains(r#"loadmaster_service_ends_total{service="controller"}"#), "{text}");
        (took, n_done.load(Ordering::Relaxed) == 1)
    }

    #[tokio::test(start_paused = true)]
    async fn services_end_before_the_scheduler_does() {
        let after = |seconds: u64| {
            move |_: ServiceHandle, n_done: Arc<AtomicU32>| {
                Service::new("controller", move |handle: ServiceHandle| {
                    let n_done = n_done.clone();
                    async move {
                        handle.stopped().await;
                        sleep(Duration::from_secs(seconds)).await;
                        n_done.fetch_add(1, Ordering::Relaxed);
                        Ok(())
                    }
                })
            }
        };
        for _ in 0..20 {
            assert_eq!(stop(after(0)).await, (Duration::ZERO, true));
        }
        assert_eq!(stop(after(2)).await, (Duration::from_secs(2), true));
        assert_eq!(stop(after(20)).await, (STOP_TIMEOUT, false));
        // Services that do not wait for the end of the scheduler, and one that waits for its restart.
        let forever = |_: ServiceHandle, _| Service::new("poll", |_| std::future::pending());
        assert_eq!(stop(forever).await, (Duration::ZERO, false));
        let failing = |_: ServiceHandle, _| Service::new("poll", |_| async { Err("".into()) });
        assert_eq!(stop(failing).await, (Duration::ZERO, false));
    }
}
