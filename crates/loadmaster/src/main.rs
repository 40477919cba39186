//! The `loadmaster` binary: the command line with the in-tree plugins.

/// Objects are decoded on one thread, and most of each is freed on another while the rest stays. The allocator of the C library keeps half as
/// much again as is in use after that, and is slower.
#[cfg(not(target_env = "musl"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    loadmaster::SchedulerCommand::loadmaster().run()
}
