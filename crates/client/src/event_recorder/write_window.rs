//! How many Events are written at the same time.

use std::time::Duration;

/// A write that takes this much longer than the fastest ones shows that the server is busy.
const BUSY_FACTOR: u32 = 4;
/// Differences below this show nothing.
const TOLERANCE: Duration = Duration::from_millis(10);

/// Concurrent writes at the start.
const SIZE_FIRST: usize = 4;

/// The number of concurrent writes: half as many with every write for which the API server takes much longer than it can, because it has more
/// important requests to answer, such as binds and those of other clients; otherwise one more with every write, up to the maximum.
pub struct WriteWindow {
    size: usize,
    size_max: usize,
    /// The duration of the fastest writes. Each write increases it by a hundredth, so that it follows a server that has become farther away.
    fastest: Duration,
}

impl WriteWindow {
    pub fn new(size_max: usize) -> WriteWindow {
        WriteWindow { size: SIZE_FIRST.min(size_max), size_max, fastest: Duration::MAX }
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// A write has taken this long.
    pub fn observe(&mut self, duration: Duration) {
        self.fastest = duration.min(self.fastest.saturating_add(self.fastest / 100));
        let is_busy = duration > self.fastest.saturating_mul(BUSY_FACTOR) + TOLERANCE;
        self.size = if is_busy { (self.size / 2).max(1) } else { self.size_max.min(self.size + 1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(durations_ms: &[u64]) -> Vec<usize> {
        let mut window = WriteWindow::new(4);
        let after = |&ms| {
            window.observe(Duration::from_millis(ms));
            window.size()
        };
        durations_ms.iter().map(after).collect()
    }

    #[test]
    fn a_busy_server_gets_few_events_at_a_time() {
        let check = |durations_ms: &[u64], want: &[usize]| {
            assert_eq!(sizes(durations_ms), want, "{durations_ms:?} ms");
        };
        check(&[5, 6, 29, 5], &[4, 4, 4, 4]);
        check(&[5, 31, 40, 35, 5, 5, 5, 5], &[4, 2, 1, 1, 2, 3, 4, 4]);
        // A server far away is not a busy one.
        check(&[80, 90, 300, 400, 80], &[4, 4, 4, 2, 3]);
        check(&[0, 9, 10, 11], &[4, 4, 4, 2]);
    }

    #[test]
    fn an_idle_server_gets_as_many_as_allowed() {
        let mut window = WriteWindow::new(32);
        assert_eq!(window.size(), SIZE_FIRST);
        (0..40).for_each(|_| window.observe(Duration::from_millis(5)));
        assert_eq!(window.size(), 32);
    }

    #[test]
    fn a_server_that_stays_slower_is_not_busy_for_ever() {
        let durations: Vec<u64> = [5].into_iter().chain([50; 200]).collect();
        let sizes = sizes(&durations);
        assert_eq!((sizes[1], sizes[100], sizes[200]), (2, 4, 4));
    }
}
