//! Decides which events are written, and which are only counted as repetitions.

use std::sync::Arc;
use std::time::Duration;

use loadmaster_stdx::{Map, Rng, SortCompactly as _};

use super::NewEvent;

/// Upstream's finishTime: a series ends when its event was not repeated for so long.
const FINISH_TIME: Duration = Duration::from_secs(6 * 60);

/// Upstream's refreshTime: how often the count of a series is written.
const REFRESH_TIME: Duration = Duration::from_secs(30 * 60);

/// The longest valid object name.
const NAME_LEN_MAX: usize = 253;

/// An Event with its name and time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its content.
    pub new_event: NewEvent,
    /// The name of the Event object.
    pub name: String,
    /// When it occurred first, in microseconds since 1970.
    pub time_us: i64,
}

/// A write of an Event to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventWrite {
    /// The Event.
    pub event: Arc<Event>,
    /// For a repetition, whose Event exists already: how often it occurred, and when last (in microseconds since 1970).
    pub series: Option<(u32, i64)>,
}

struct CachedEvent {
    event: Arc<Event>,
    count: u32,
    last_us: i64,
    last: Duration,
    /// When it was last written, and with which count.
    written: Duration,
    written_count: u32,
}

/// Correlates recent events into series (client-go's `EventCorrelator` and event cache).
pub struct EventCorrelator {
    cached: Map<NewEvent, CachedEvent>,
    n_cached_max: usize,
    last_nanos: i64,
    rng: Rng,
}

impl EventCorrelator {
    /// A correlator that caches at most `n_cached_max` events. Events beyond that are written each time they occur.
    pub fn new(n_cached_max: usize, rng: Rng) -> EventCorrelator {
        EventCorrelator { cached: Map::default(), n_cached_max, last_nanos: 0, rng }
    }

    /// Handles an event: returns what to write at once, if anything. `now` is the time since any fixed moment, `wall_us` that since
    /// 1970.
    pub fn correlate(
        &mut self,
        now: Duration,
        wall_us: i64,
        notice: NewEvent,
    ) -> Option<EventWrite> {
        if let Some(cached) = self.cached.get_mut(&notice) {
            cached.count = cached.count.saturating_add(1);
            (cached.last, cached.last_us) = (now, wall_us);
            if cached.count > 2 {
                return None;
            }
            return Some(cached.write(now));
        }
        let name = self.name(&notice.regarding.name, wall_us);
        let event = Arc::new(Event { new_event: notice.clone(), name, time_us: wall_us });
        if self.cached.len() < self.n_cached_max {
            let event = event.clone();
            let (last_us, last) = (wall_us, now);
            let cached =
                CachedEvent { event, count: 1, last_us, last, written: now, written_count: 1 };
            self.cached.insert(notice, cached);
        }
        Some(EventWrite { event, series: None })
    }

    /// Returns the counts of series that are due to be written, and removes series that have ended. To be called about once per
    /// minute.
    pub fn refresh_series(&mut self, now: Duration) -> Vec<EventWrite> {
        let mut writes = Vec::new();
        self.cached.retain(|_, cached| {
            let is_over = now.saturating_sub(cached.last) >= FINISH_TIME;
            let is_due = is_over || now.saturating_sub(cached.written) >= REFRESH_TIME;
            if is_due && cached.written_count != cached.count {
                writes.push(cached.write(now));
            }
            !is_over
        });
        writes.sort_compactly_by(|a, b| a.event.name.cmp(&b.event.name));
        writes
    }

    /// Returns all counts that have not been written. To be called at shutdown.
    pub fn flush(&mut self, now: Duration) -> Vec<EventWrite> {
        self.refresh_series(now.saturating_add(FINISH_TIME + REFRESH_TIME))
    }

    /// The name of an Event as upstream's: the object's name and the time; a UUID when that is no valid name.
    fn name(&mut self, object: &str, wall_us: i64) -> String {
        // Unique times make unique names.
        self.last_nanos = wall_us.saturating_mul(1_000).max(self.last_nanos + 1);
        let name = format!("{object}.{:x}", self.last_nanos);
        if name.len() <= NAME_LEN_MAX && is_subdomain(&name) {
            return name;
        }
        let (high, low) = (self.rng.next_u64(), self.rng.next_u64());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | ((low >> 48) & 0x3fff),
            low & 0xffff_ffff_ffff
        )
    }
}

impl CachedEvent {
    fn write(&mut self, now: Duration) -> EventWrite {
        (self.written, self.written_count) = (now, self.count);
        EventWrite { event: self.event.clone(), series: Some((self.count, self.last_us)) }
    }
}

/// RFC 1123: labels of lower case letters, digits and dashes, which begin and end with a letter or digit, joined by dots.
fn is_subdomain(name: &str) -> bool {
    name.split('.').all(|label| {
        let is_alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = label.as_bytes();
        bytes.iter().all(|byte| is_alphanumeric(byte) || *byte == b'-')
            && bytes.first().is_some_and(is_alphanumeric)
            && bytes.last().is_some_and(is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::super::ObjectReference;
    use super::*;

    fn new_event(pod: &str, note: &str) -> NewEvent {
        NewEvent {
            regarding: ObjectReference { name: pod.into(), ..ObjectReference::default() },
            related: None,
            is_warning: true,
            reason: "FailedScheduling".into(),
            action: "Scheduling".into(),
            note: note.to_owned(),
            controller: "default-scheduler".into(),
        }
    }

    /// At each minute an event for a pod with a note, `sweep` or `flush`; `want` is what is written.
    #[track_caller]
    fn check(n_cached_max: usize, script: &[(u64, &str)], want: &[&str]) {
        let mut series = EventCorrelator::new(n_cached_max, Rng::new(1));
        let mut written = Vec::new();
        for (minute, what) in script {
            let (now, wall_us) = (Duration::from_secs(minute * 60), *minute as i64 * 60_000_000);
            let writes = match *what {
                "sweep" => series.refresh_series(now),
                "flush" => series.flush(now),
                _ => {
                    let (pod, note) = what.split_once(' ').unwrap();
                    series.correlate(now, wall_us, new_event(pod, note)).into_iter().collect()
                }
            };
            for EventWrite { event, series } in writes {
                let new = &event.new_event;
                written.push(match series {
                    None => format!("{minute}: {} {}", new.regarding.name, new.note),
                    Some((count, last_us)) => {
                        format!(
                            "{minute}: {} x{count} @{}",
                            new.regarding.name,
                            last_us / 60_000_000
                        )
                    }
                });
            }
        }
        assert_eq!(written, want);
    }

    #[test]
    fn repetitions_are_counted_as_series() {
        check(
            10,
            &[(0, "a x"), (1, "a x"), (2, "a x"), (3, "a x"), (3, "b x"), (4, "a y"), (5, "sweep")],
            &["0: a x", "1: a x2 @1", "3: b x", "4: a y"],
        );
        // At the end of a series its last count is written.
        check(
            10,
            &[(0, "a x"), (1, "a x"), (2, "a x"), (7, "sweep"), (8, "sweep"), (20, "sweep")],
            &["0: a x", "1: a x2 @1", "8: a x3 @2"],
        );
        check(
            10,
            &[(0, "a x"), (1, "a x"), (7, "sweep"), (7, "a x")],
            &["0: a x", "1: a x2 @1", "7: a x"],
        );
        // The count of a series that continues is written every 30 minutes.
        let mut script: Vec<(u64, &str)> = (0..40).map(|minute| (minute, "a x")).collect();
        script.insert(30, (30, "sweep"));
        script.push((40, "sweep"));
        check(10, &script, &["0: a x", "1: a x2 @1", "40: a x40 @39"]);
        check(
            10,
            &[(0, "a x"), (1, "a x"), (2, "a x"), (2, "flush")],
            &["0: a x", "1: a x2 @1", "2: a x3 @2"],
        );
    }

    #[test]
    fn events_beyond_the_cache_size_are_written_each_time() {
        check(
            1,
            &[(0, "a x"), (0, "b x"), (0, "b x"), (1, "a x")],
            &["0: a x", "0: b x", "0: b x", "1: a x2 @1"],
        );
    }

    #[test]
    fn event_names() {
        let mut series = EventCorrelator::new(0, Rng::new(1));
        assert_eq!(series.name("web-1", 1_770_000_000_000_000), "web-1.18904d9f44710000");
        assert_eq!(series.name("web-1", 1_770_000_000_000_000), "web-1.18904d9f44710001");
        let uuid = series.name(&"a".repeat(250), 1);
        assert_eq!((uuid.len(), uuid.as_bytes()[14]), (36, b'4'));
        assert_eq!(series.name("No_Name", 1).len(), 36);
    }
}
