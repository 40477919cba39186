//! The daemon without anything behind it: takes kube-scheduler's flags, serves the endpoints, never
//! becomes ready. Try `cargo run -p loadmaster-daemon --example endpoints -- --bind-address=127.0.0.1
//! --authorization-always-allow-paths='/*'` and `curl -k https://127.0.0.1:10259/readyz`.

use std::process::ExitCode;
use std::sync::Arc;

use loadmaster_daemon::serve::{Condition, Health, Parts, start};
use loadmaster_daemon::{Ready, Stop, prepare};

fn main() -> ExitCode {
    let ready = prepare(std::env::args_os(), &loadmaster_plugins::in_tree());
    match ready.and_then(|plan| plan.begin()).and_then(|ready| run(&ready)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => stop.end(),
    }
}

fn run(ready: &Ready) -> Result<(), Stop> {
    let failed = |error: &dyn std::fmt::Display| Stop::Failed(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| failed(&error))?.block_on(async {
        let mut parts = Parts::new(&ready.options, &ready.loaded, ready.metrics.clone());
        let synced = Condition::failing("handlers are not fully synchronized");
        parts.health = Health::of_scheduler(None, &Condition::well(), &synced);
        let logs = ready.logs.clone();
        parts.set_verbosity = Arc::new(move |level| logs.set_verbosity(level));
        let server = start(&ready.options, parts).await.map_err(|error| failed(&error))?;
        let _server = server.ok_or_else(|| failed(&"--secure-port=0: nothing is served"))?;
        std::future::pending().await
    })
}
