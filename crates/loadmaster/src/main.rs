//! The `loadmaster` binary: the command line with the in-tree plugins.

fn main() -> std::process::ExitCode {
    loadmaster::SchedulerCommand::loadmaster().run()
}
