//! Which notices become Events, and which only count.

use std::sync::Arc;
use std::time::Duration;

use loadmaster_stdx::{Map, Rng};

use super::Notice;

/// Upstream's finishTime: a series that was silent for so long is over.
const FINISH: Duration = Duration::from_secs(6 * 60);

/// Upstream's refreshTime: how often the count of a series is written.
const REFRESH: Duration = Duration::from_secs(30 * 60);

/// Object names are no longer.
const NAME_LEN_MAX: usize = 253;

/// An Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub notice: Notice,
    /// The Event's own name.
    pub name: String,
    /// When it happened first, in microseconds since 1970.
    pub time_us: i64,
}

/// An Event that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// As it happened first.
    pub event: Arc<Event>,
    /// How often it happened, and when last (in microseconds since 1970), if more than once: then the Event exists already.
    pub series: Option<(u32, i64)>,
}

struct Known {
    event: Arc<Event>,
    count: u32,
    last_us: i64,
    last: Duration,
    /// When it was written last, and with which count.
    written: Duration,
    written_count: u32,
}

/// Remembers what happened lately.
pub struct Series {
    known: Map<Notice, Known>,
    n_known_max: usize,
    last_nanos: i64,
    rng: Rng,
}

impl Series {
    /// Remembers so many Events. What happens beyond that is written each time.
    pub fn new(n_known_max: usize, rng: Rng) -> Series {
        Series { known: Map::default(), n_known_max, last_nanos: 0, rng }
    }

    /// Takes a notice. `now` is the time since any fixed moment, `wall_us` the time for people.
    pub fn take(&mut self, now: Duration, wall_us: i64, notice: Notice) -> Option<Write> {
        if let Some(known) = self.known.get_mut(&notice) {
            known.count = known.count.saturating_add(1);
            (known.last, known.last_us) = (now, wall_us);
            if known.count > 2 {
                return None;
            }
            return Some(known.write(now));
        }
        let name = self.name(&notice.regarding.name, wall_us);
        let event = Arc::new(Event { notice: notice.clone(), name, time_us: wall_us });
        if self.known.len() < self.n_known_max {
            let event = event.clone();
            let (last_us, last) = (wall_us, now);
            let known = Known { event, count: 1, last_us, last, written: now, written_count: 1 };
            self.known.insert(notice, known);
        }
        Some(Write { event, series: None })
    }

    /// Writes what is due, and forgets what is over. To be called once a minute or so.
    pub fn sweep(&mut self, now: Duration) -> Vec<Write> {
        let mut writes = Vec::new();
        self.known.retain(|_, known| {
            let is_over = now.saturating_sub(known.last) >= FINISH;
            let is_due = is_over || now.saturating_sub(known.written) >= REFRESH;
            if is_due && known.written_count != known.count {
                writes.push(known.write(now));
            }
            !is_over
        });
        writes.sort_by(|a, b| a.event.name.cmp(&b.event.name));
        writes
    }

    /// Writes all counts that have not been written, at the end.
    pub fn flush(&mut self, now: Duration) -> Vec<Write> {
        self.sweep(now.saturating_add(FINISH + REFRESH))
    }

    /// As upstream: the object's name and the time; a uuid where that is no name.
    fn name(&mut self, object: &str, wall_us: i64) -> String {
        // No two at the same time.
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

impl Known {
    fn write(&mut self, now: Duration) -> Write {
        (self.written, self.written_count) = (now, self.count);
        Write { event: self.event.clone(), series: Some((self.count, self.last_us)) }
    }
}

/// RFC 1123: labels of small letters, digits and dashes, which begin and end with a letter or digit, joined by dots.
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
    use super::super::Reference;
    use super::*;

    fn notice(pod: &str, note: &str) -> Notice {
        Notice {
            regarding: Reference { name: pod.into(), ..Reference::default() },
            related: None,
            is_warning: true,
            reason: "FailedScheduling".into(),
            action: "Scheduling".into(),
            note: note.to_owned(),
            controller: "default-scheduler".into(),
        }
    }

    /// At each minute a notice for a pod with a note, or a sweep; what is written.
    #[track_caller]
    fn check(n_known_max: usize, script: &[(u64, &str)], want: &[&str]) {
        let mut series = Series::new(n_known_max, Rng::new(1));
        let mut written = Vec::new();
        for (minute, what) in script {
            let (now, wall_us) = (Duration::from_secs(minute * 60), *minute as i64 * 60_000_000);
            let writes = match *what {
                "sweep" => series.sweep(now),
                "flush" => series.flush(now),
                _ => {
                    let (pod, note) = what.split_once(' ').unwrap();
                    series.take(now, wall_us, notice(pod, note)).into_iter().collect()
                }
            };
            for Write { event, series } in writes {
                let of = &event.notice;
                written.push(match series {
                    None => format!("{minute}: {} {}", of.regarding.name, of.note),
                    Some((count, last_us)) => {
                        format!(
                            "{minute}: {} x{count} @{}",
                            of.regarding.name,
                            last_us / 60_000_000
                        )
                    }
                });
            }
        }
        assert_eq!(written, want);
    }

    #[test]
    fn repetitions_count() {
        check(
            10,
            &[(0, "a x"), (1, "a x"), (2, "a x"), (3, "a x"), (3, "b x"), (4, "a y"), (5, "sweep")],
            &["0: a x", "1: a x2 @1", "3: b x", "4: a y"],
        );
        // At the end of a series its last count is written, if it has not been.
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
        // A series that goes on is written every half hour.
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
    fn beyond_the_limit_each_is_written() {
        check(
            1,
            &[(0, "a x"), (0, "b x"), (0, "b x"), (1, "a x")],
            &["0: a x", "0: b x", "0: b x", "1: a x2 @1"],
        );
    }

    #[test]
    fn names() {
        let mut series = Series::new(0, Rng::new(1));
        assert_eq!(series.name("web-1", 1_770_000_000_000_000), "web-1.18904d9f44710000");
        assert_eq!(series.name("web-1", 1_770_000_000_000_000), "web-1.18904d9f44710001");
        let uuid = series.name(&"a".repeat(250), 1);
        assert_eq!((uuid.len(), uuid.as_bytes()[14]), (36, b'4'));
        assert_eq!(series.name("No_Name", 1).len(), 36);
    }
}
