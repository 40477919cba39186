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

/// Waits for Ctrl-C or SIGTERM; forever if signals cannot be handled.
pub(crate) async fn stop_signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                Ok(()) = tokio::signal::ctrl_c() => return,
                Some(()) = terminate.recv() => return,
            }
        }
    }
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}
