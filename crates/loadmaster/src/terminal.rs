//! The terminal: detection, signals, and a full-screen view.

#[cfg(feature = "cluster")]
mod keys;
#[cfg(feature = "cluster")]
mod screen;

use std::io::{self, IsTerminal};

#[cfg(feature = "cluster")]
pub(crate) use keys::Key;
#[cfg(feature = "cluster")]
pub(crate) use screen::{Screen, is_interactive, size};

/// Whether standard output shows color: it is a terminal, and `NO_COLOR` is not set.
pub(crate) fn has_color() -> bool {
    io::stdout().is_terminal() && env("NO_COLOR").is_empty()
}

#[expect(
    clippy::disallowed_methods,
    reason = "NO_COLOR and TERM are conventions for terminal output"
)]
fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// Waits for Ctrl-C or SIGTERM; forever if signals cannot be handled. From this call on, which is made in a runtime, neither ends the process,
/// even if nothing polls the future yet.
pub(crate) fn stop_signal() -> impl Future<Output = ()> + Send {
    #[cfg(unix)]
    let signals = {
        use tokio::signal::unix::{SignalKind, signal};
        [SignalKind::interrupt(), SignalKind::terminate()].map(|kind| signal(kind).ok())
    };
    async move {
        #[cfg(unix)]
        {
            let [interrupt, terminate] = signals.map(|signal| async move {
                match signal {
                    Some(mut signal) => _ = signal.recv().await,
                    None => std::future::pending().await,
                }
            });
            tokio::select! {
                () = interrupt => {}
                () = terminate => {}
            }
        }
        #[cfg(not(unix))]
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    }
}
