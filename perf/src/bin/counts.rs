//! Counts the allocations of a workload. `cargo xtask counts` runs it, also under valgrind, which counts instructions.
//!
//! Without arguments it prints the names of the workloads. With a name it runs that workload and prints the number of counted decisions and
//! their allocations; with `--only-first` after the name it ends before the counted decisions, and prints nothing. The difference
//! of the instructions of both runs is what the counted decisions need.

#[cfg(target_env = "musl")]
use std::alloc::System as Allocator;

use anyhow::{Context as _, Result, ensure};
use loadmaster_perf::counted::COUNTED;
#[cfg(not(target_env = "musl"))]
use mimalloc::MiMalloc as Allocator;
use stats_alloc::{Region, StatsAlloc};

/// As in the `loadmaster` program. That of glibc now and then merges all that was freed, which takes up to a fourth of the instructions of a
/// workload, or none: that depends on all that was allocated before.
#[global_allocator]
static ALLOCATOR: StatsAlloc<Allocator> = StatsAlloc::new(Allocator);

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let Some(name) = args.next() else {
        COUNTED.iter().for_each(|it| println!("{}", it.name));
        return Ok(());
    };
    let option = args.next();
    let counted = COUNTED.iter().find(|it| it.name == name);
    let counted = counted.with_context(|| format!("no workload is called {name:?}"))?;
    ensure!(option.as_deref().is_none_or(|it| it == "--only-first"), "unknown option {option:?}");
    let mut prepared = counted.prepare()?;
    if option.is_none() {
        let region = Region::new(&ALLOCATOR);
        prepared.run()?;
        let stats = region.change();
        println!("{} {}", counted.n_counted, stats.allocations + stats.reallocations);
    }
    // What dropping it costs depends on how much was done.
    std::mem::forget(prepared);
    Ok(())
}
