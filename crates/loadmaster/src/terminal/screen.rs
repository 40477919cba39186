//! The full-screen view of `up`: its size, what it shows, and key presses.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use super::env;
use super::keys::{self, Key};
use crate::text::Line;

/// Default columns and rows.
const SIZE: (usize, usize) = (100, 32);

/// Whether standard input and output are a terminal that supports full-screen output.
pub(crate) fn is_interactive() -> bool {
    cfg!(unix) && io::stdout().is_terminal() && io::stdin().is_terminal() && env("TERM") != "dumb"
}

/// Columns and rows of the terminal.
pub(crate) fn size() -> (usize, usize) {
    #[cfg(unix)]
    if let Ok(size) = rustix::termios::tcgetwinsize(io::stdout())
        && size.ws_col > 0
        && size.ws_row > 0
    {
        return (usize::from(size.ws_col), usize::from(size.ws_row));
    }
    SIZE
}

/// The alternate screen; the terminal is restored on drop.
pub(crate) struct Screen {
    #[cfg(unix)]
    before: rustix::termios::Termios,
}

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Synchronized update: the terminal shows the frame only when it is complete.
const BEGIN_UPDATE: &str = "\x1b[?2026h\x1b[H";
const END_UPDATE: &str = "\x1b[J\x1b[?2026l";
const END_LINE: &str = "\x1b[K";

#[cfg(unix)]
impl Screen {
    /// Switches to the alternate screen. Ctrl-C is read as a key from now on.
    pub fn open() -> io::Result<Screen> {
        use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        silent.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        tcsetattr(io::stdin(), OptionalActions::Now, &silent)?;
        let screen = Screen { before };
        write!(io::stdout(), "{ENTER}")?;
        Ok(screen)
    }

    /// Waits for keys, at most this time.
    pub fn read_keys(&self, wait: Duration) -> io::Result<Vec<Key>> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let stdin = io::stdin();
        let wait =
            Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut fds, Some(&wait)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut bytes = [0; 64];
        let n = rustix::io::read(&stdin, &mut bytes)?;
        Ok(if n == 0 { vec![Key::Interrupt] } else { keys::parse(&bytes[..n]) })
    }
}

#[cfg(unix)]
impl Drop for Screen {
    fn drop(&mut self) {
        use rustix::termios::{OptionalActions, tcsetattr};
        let _ = write!(io::stdout(), "{LEAVE}").and_then(|()| io::stdout().flush());
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

#[cfg(not(unix))]
impl Screen {
    /// Not supported on this system; see [`is_interactive`].
    pub fn open() -> io::Result<Screen> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Not supported on this system.
    pub fn read_keys(&self, _: Duration) -> io::Result<Vec<Key>> {
        Ok(vec![Key::Interrupt])
    }
}

impl Screen {
    /// Replaces the content of the screen with these lines, cut to its size.
    pub fn draw(&self, lines: &[Line], color: bool) -> io::Result<()> {
        let (columns, rows) = size();
        let mut frame = String::from(BEGIN_UPDATE);
        for (at, line) in lines.iter().take(rows).enumerate() {
            if at > 0 {
                frame.push_str("\r\n");
            }
            frame.push_str(&line.render(columns, color));
            frame.push_str(END_LINE);
        }
        frame.push_str(END_UPDATE);
        let mut out = io::stdout();
        out.write_all(frame.as_bytes())?;
        out.flush()
    }
}
