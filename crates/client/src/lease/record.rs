//! What a Lease says, as a value and as JSON.

use serde_json::{Value, json};

/// The record of who leads. Times are for people and, as a whole, for telling one renewal from the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Who leads; empty when the lease was given back.
    pub holder: String,
    /// How long the lease is good after a renewal, in seconds.
    pub duration_s: i32,
    /// When the holder took it, in microseconds since 1970.
    pub acquired_us: i64,
    /// When the holder renewed it last, in microseconds since 1970.
    pub renewed_us: i64,
    /// How often it changed hands.
    pub transitions: i32,
}

impl Record {
    /// Reads the spec of a Lease. What is absent or odd counts as zero, as in client-go.
    pub fn of(lease: &Value) -> Record {
        let spec = &lease["spec"];
        let number = |name: &str| {
            let number = spec[name].as_i64().unwrap_or_default();
            i32::try_from(number).unwrap_or_default()
        };
        let time = |name: &str| {
            let time = spec[name].as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
            time.map(jiff::Timestamp::as_microsecond).unwrap_or_default()
        };
        Record {
            holder: spec["holderIdentity"].as_str().unwrap_or_default().to_owned(),
            duration_s: number("leaseDurationSeconds"),
            acquired_us: time("acquireTime"),
            renewed_us: time("renewTime"),
            transitions: number("leaseTransitions"),
        }
    }

    /// The spec of a Lease.
    pub fn spec(&self) -> Value {
        json!({
            "holderIdentity": self.holder,
            "leaseDurationSeconds": self.duration_s,
            "acquireTime": micro_time(self.acquired_us),
            "renewTime": micro_time(self.renewed_us),
            "leaseTransitions": self.transitions,
        })
    }
}

/// A time with six decimals, as the API server wants it.
pub(crate) fn micro_time(us: i64) -> String {
    let time = jiff::Timestamp::from_microsecond(us).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_the_wire() {
        let record = Record {
            holder: "a_1".to_owned(),
            duration_s: 15,
            acquired_us: 1_770_000_000_000_001,
            renewed_us: 1_770_000_002_500_000,
            transitions: 3,
        };
        let lease = json!({ "spec": record.spec() });
        assert_eq!(Record::of(&lease), record);
        assert_eq!(lease["spec"]["renewTime"], "2026-02-02T02:40:02.500000Z");
        let odd = json!({"spec": {"holderIdentity": null, "leaseDurationSeconds": "x", "renewTime": "x"}});
        assert_eq!(Record::of(&odd), Record::default());
        assert_eq!(Record::of(&json!({})), Record::default());
    }
}
