//! The endpoints without a scheduler: takes kube-scheduler's flags, serves the endpoints, never
//! becomes config. Try `cargo run -p loadmaster-daemon --example endpoints -- --bind-address=127.0.0.1
//! --authorization-always-allow-paths='/*'` and `curl -k https://127.0.0.1:10259/readyz`.

use std::process::ExitCode;
use std::sync::Arc;

use loadmaster_daemon::flags::Program;
use loadmaster_daemon::serve::{EndpointsConfig, Health, HealthState, start_server};
use loadmaster_daemon::{CompletedConfig, EarlyExit, load_startup_config};

fn main() -> ExitCode {
    let registry = loadmaster_plugins::in_tree_registry();
    let flags = std::env::args_os().skip(1);
    let startup = load_startup_config(&Program::kube_scheduler(), flags, &registry);
    match startup.and_then(|it| it.start_logging()).and_then(|config| run(&config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(exit) => exit.report(),
    }
}

fn run(config: &CompletedConfig) -> Result<(), EarlyExit> {
    let failed = |error: &dyn std::fmt::Display| EarlyExit::Failed(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| failed(&error))?.block_on(async {
        let mut endpoints =
            EndpointsConfig::new(&config.options, &config.loaded, config.metrics.clone());
        let synced = HealthState::failing("handlers are not fully synchronized");
        endpoints.health = Health::scheduler_health_checks(None, &HealthState::passing(), &synced);
        let logs = config.logs.clone();
        endpoints.set_verbosity = Arc::new(move |level| logs.set_verbosity(level));
        let server =
            start_server(&config.options, endpoints).await.map_err(|error| failed(&error))?;
        let _server = server.ok_or_else(|| failed(&"--secure-port=0: nothing is served"))?;
        std::future::pending().await
    })
}
