//! kube-scheduler's command line with the plugin of this crate.

fn main() -> std::process::ExitCode {
    sample_plugin::command().run()
}
