//! Cron schedules: five fields, or a descriptor such as `@daily`, parsed as by Kubernetes.

use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan as _};

/// A parsed cron schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Schedule {
    /// At these minutes.
    Fields(Fields),
    /// Every number of seconds.
    Every(i64),
}

/// Allowed values, a bit each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether the day of the month or that of the week is left open: then both must fit, else one.
    is_day_open: bool,
}

/// What is wrong with a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(super) enum Error {
    #[error("expected exactly 5 fields, found {found}: {text}")]
    Count { found: usize, text: String },
    #[error("unrecognized descriptor: {text}")]
    Word { text: String },
    #[error("failed to parse {part} in {field}")]
    Part { part: String, field: &'static str },
    #[error("the range {part} is not within {min} to {max}")]
    Range { part: String, min: u32, max: u32 },
}

struct Field {
    name: &'static str,
    min: u32,
    max: u32,
    /// Names of the values from `min` on.
    names: &'static [&'static str],
}

const MONTHS: &[&str] =
    &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const FIELDS: [Field; 5] = [
    Field { name: "minute", min: 0, max: 59, names: &[] },
    Field { name: "hour", min: 0, max: 23, names: &[] },
    Field { name: "day of month", min: 1, max: 31, names: &[] },
    Field { name: "month", min: 1, max: 12, names: MONTHS },
    Field { name: "day of week", min: 0, max: 6, names: WEEKDAYS },
];

impl Schedule {
    /// Reads a schedule.
    pub(super) fn parse(text: &str) -> Result<Schedule, Error> {
        if let Some(span) = text.strip_prefix("@every ") {
            let nanos = loadmaster_stdx::duration::parse_duration_nanos(span.trim());
            let nanos = nanos.map_err(|_| Error::Word { text: text.to_owned() })?;
            return Ok(Schedule::Every((nanos / 1_000_000_000).max(1)));
        }
        let fields = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            _ if text.starts_with('@') => return Err(Error::Word { text: text.to_owned() }),
            _ => text,
        };
        let parts: Vec<&str> = fields.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = *parts.as_slice() else {
            return Err(Error::Count { found: parts.len(), text: text.to_owned() });
        };
        let [of_minute, of_hour, of_day, of_month, of_weekday] = &FIELDS;
        let (days, is_open) = of_day.read(days)?;
        let (weekdays, is_week_open) = of_weekday.read(weekdays)?;
        Ok(Schedule::Fields(Fields {
            minutes: of_minute.read(minutes)?.0,
            hours: of_hour.read(hours)?.0,
            days,
            months: of_month.read(months)?.0,
            weekdays,
            is_day_open: is_open || is_week_open,
        }))
    }

    /// The first time after another; none if there is none within five years.
    pub(super) fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            Schedule::Every(seconds) => {
                let whole = Timestamp::from_second(after.as_second()).ok()?;
                whole.checked_add(SignedDuration::from_secs(*seconds)).ok()
            }
            Schedule::Fields(fields) => fields.next(after, zone),
        }
    }
}

impl Fields {
    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let mut at = Timestamp::from_second((after.as_second().div_euclid(60) + 1) * 60).ok()?;
        let last = zone.to_datetime(at).year().checked_add(5)?;
        let begin = |date: Date| zone.to_timestamp(date.at(0, 0, 0, 0)).ok();
        loop {
            let local = zone.to_datetime(at);
            if local.year() > last {
                return None;
            }
            let next = if !has(self.months, local.month()) {
                begin(local.date().last_of_month().tomorrow().ok()?)?
            } else if !self.fits_day(local.date()) {
                begin(local.date().tomorrow().ok()?)?
            } else if !has(self.hours, local.hour()) {
                at.checked_add(i64::from(60 - local.minute()).minutes()).ok()?
            } else if !has(self.minutes, local.minute()) {
                at.checked_add(1.minute()).ok()?
            } else {
                return Some(at);
            };
            // Where clocks are put back, the beginning of an hour or day may come twice.
            at = next.max(at.checked_add(1.minute()).ok()?);
        }
    }

    fn fits_day(&self, date: Date) -> bool {
        let day = has(self.days, date.day());
        let weekday = has(self.weekdays, date.weekday().since(Weekday::Sunday));
        if self.is_day_open { day && weekday } else { day || weekday }
    }
}

fn has(bits: u64, value: i8) -> bool {
    u32::try_from(value).is_ok_and(|value| bits >> value & 1 == 1)
}

impl Field {
    /// The values of a field, and whether it is left open.
    fn read(&self, text: &str) -> Result<(u64, bool), Error> {
        let (mut bits, mut is_open) = (0, false);
        for part in text.split(',') {
            let (range, step) = match part.split_once('/') {
                Some((range, step)) => (range, Some(step)),
                None => (part, None),
            };
            let bad = || Error::Part { part: part.to_owned(), field: self.name };
            let width = match step {
                None => 1,
                Some(step) => step.parse::<u32>().ok().filter(|step| *step > 0).ok_or_else(bad)?,
            };
            let (first, last) = match range {
                "*" | "?" => {
                    is_open |= width == 1;
                    (self.min, self.max)
                }
                _ => match range.split_once('-') {
                    Some((first, last)) => {
                        (self.value(first).ok_or_else(bad)?, self.value(last).ok_or_else(bad)?)
                    }
                    // With a step, one value stands for the range from it on.
                    None => {
                        let first = self.value(range).ok_or_else(bad)?;
                        (first, if step.is_some() { self.max } else { first })
                    }
                },
            };
            if first < self.min || last > self.max || first > last {
                return Err(Error::Range { part: part.to_owned(), min: self.min, max: self.max });
            }
            for value in (first..=last).step_by(width as usize) {
                bits |= 1_u64 << value;
            }
        }
        Ok((bits, is_open))
    }

    fn value(&self, text: &str) -> Option<u32> {
        let lower = text.to_ascii_lowercase();
        match self.names.iter().position(|name| *name == lower) {
            Some(place) => Some(self.min + place as u32),
            None => text.parse().ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(schedule: &str, after: &str, want: &[&str]) {
        let schedule = Schedule::parse(schedule).unwrap();
        let mut at: Timestamp = after.parse().unwrap();
        for want in want {
            at = schedule.next(at, &TimeZone::UTC).unwrap();
            assert_eq!(at.to_string(), *want);
        }
    }

    #[test]
    fn times() {
        check(
            "* * * * *",
            "2026-01-01T00:00:00Z",
            &["2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z"],
        );
        check("* * * * *", "2026-01-01T00:00:59.5Z", &["2026-01-01T00:01:00Z"]);
        check(
            "*/15 * * * *",
            "2026-01-01T00:31:00Z",
            &["2026-01-01T00:45:00Z", "2026-01-01T01:00:00Z"],
        );
        check(
            "5/20 * * * *",
            "2026-01-01T00:00:00Z",
            &["2026-01-01T00:05:00Z", "2026-01-01T00:25:00Z"],
        );
        check(
            "30 6-16/4 * * 1-5",
            "2026-01-02T14:31:00Z",
            &["2026-01-05T06:30:00Z", "2026-01-05T10:30:00Z"],
        );
        check("0 0 1 1 *", "2026-01-01T00:00:00Z", &["2027-01-01T00:00:00Z"]);
        check("0 12 29 2 *", "2026-01-01T00:00:00Z", &["2028-02-29T12:00:00Z"]);
        check("0 0 * JAN,mar Sun", "2026-01-26T00:00:00Z", &["2026-03-01T00:00:00Z"]);
        // Both days given: one is enough. With a step, a star counts as given.
        check(
            "0 0 13 * 5",
            "2026-01-10T00:00:00Z",
            &["2026-01-13T00:00:00Z", "2026-01-16T00:00:00Z"],
        );
        check(
            "0 0 */2 * 5",
            "2026-01-01T00:00:00Z",
            &["2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"],
        );
        check("@daily", "2026-01-01T10:00:00Z", &["2026-01-02T00:00:00Z"]);
        check("@hourly", "2026-12-31T23:10:00Z", &["2027-01-01T00:00:00Z"]);
        check("@weekly", "2026-01-01T00:00:00Z", &["2026-01-04T00:00:00Z"]);
        check("@monthly", "2026-01-01T00:00:00Z", &["2026-02-01T00:00:00Z"]);
        check(
            "@every 90s",
            "2026-01-01T00:00:00.9Z",
            &["2026-01-01T00:01:30Z", "2026-01-01T00:03:00Z"],
        );
    }

    #[test]
    fn a_schedule_that_is_never_due() {
        let schedule = Schedule::parse("59 23 31 2 *").unwrap();
        assert_eq!(schedule.next(Timestamp::UNIX_EPOCH, &TimeZone::UTC), None);
    }

    #[test]
    fn another_time_zone() {
        let zone = TimeZone::fixed(jiff::tz::offset(5));
        let schedule = Schedule::parse("0 0 * * *").unwrap();
        let next = schedule.next("2026-01-01T00:00:00Z".parse().unwrap(), &zone);
        assert_eq!(next.unwrap().to_string(), "2026-01-01T19:00:00Z");
    }

    #[test]
    fn bad_schedules() {
        let check = |text: &str, want: &str| {
            assert_eq!(Schedule::parse(text).unwrap_err().to_string(), want);
        };
        check("* * * *", "expected exactly 5 fields, found 4: * * * *");
        check("", "expected exactly 5 fields, found 0: ");
        check("60 * * * *", "the range 60 is not within 0 to 59");
        check("* * 0 * *", "the range 0 is not within 1 to 31");
        check("5-1 * * * *", "the range 5-1 is not within 0 to 59");
        check("*/0 * * * *", "failed to parse */0 in minute");
        check("* * * foo *", "failed to parse foo in month");
        check("* * * * 7", "the range 7 is not within 0 to 6");
        check("@noon", "unrecognized descriptor: @noon");
        check("@every x", "unrecognized descriptor: @every x");
    }
}
