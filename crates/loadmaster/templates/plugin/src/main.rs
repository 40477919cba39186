//! A Kubernetes scheduler with the plugin {{plugin}}. It takes kube-scheduler's flags: `{{name}} --config=scheduler.yaml`.

mod plugin;

use std::process::ExitCode;

use loadmaster::SchedulerCommand;

fn command() -> SchedulerCommand {
    SchedulerCommand::new()
        .with_name(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
        .with_plugin(plugin::DEF)
}

fn main() -> ExitCode {
    command().run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_valid() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/scheduler.yaml");
        let code = command().run_from([env!("CARGO_PKG_NAME"), "config", "check", file]);
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));
    }

    #[test]
    fn the_manifests_contain_the_configuration() {
        let config = include_str!("../scheduler.yaml").lines();
        let config = config.filter(|line| !line.starts_with('#'));
        let wanted: String = config.map(|line| format!("    {line}\n")).collect();
        assert!(include_str!("../deploy/scheduler.yaml").contains(&wanted));
    }
}
