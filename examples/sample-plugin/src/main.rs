//! Loadmaster's command line with the plugin of this crate.

use loadmaster::SchedulerCommand;

fn main() -> std::process::ExitCode {
    SchedulerCommand::new().with_plugin(sample_plugin::DEF).run()
}
