//! The leader election record in the spec of a Lease.

use serde_json::{Value, json};

/// The leader election record (client-go's `LeaderElectionRecord`). Its times are not compared with clocks: a record that differs
/// is a renewal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderElectionRecord {
    /// The identity of the leader; empty when the lease was released.
    pub holder: String,
    /// The lease duration in seconds.
    pub duration_s: i32,
    /// When the holder acquired the lease, in microseconds since 1970.
    pub acquired_us: i64,
    /// When the holder last renewed the lease, in microseconds since 1970.
    pub renewed_us: i64,
    /// How often the holder changed.
    pub transitions: i32,
}

impl LeaderElectionRecord {
    /// The record in the spec of a Lease. Fields that are absent or invalid are zero, as in client-go.
    pub fn from_lease(lease: &Value) -> LeaderElectionRecord {
        let spec = &lease["spec"];
        let number = |name: &str| {
            let number = spec[name].as_i64().unwrap_or_default();
            i32::try_from(number).unwrap_or_default()
        };
        let time = |name: &str| {
            let time = spec[name].as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
            time.map(jiff::Timestamp::as_microsecond).unwrap_or_default()
        };
        LeaderElectionRecord {
            holder: spec["holderIdentity"].as_str().unwrap_or_default().to_owned(),
            duration_s: number("leaseDurationSeconds"),
            acquired_us: time("acquireTime"),
            renewed_us: time("renewTime"),
            transitions: number("leaseTransitions"),
        }
    }

    /// The spec of a Lease with this record.
    pub fn to_spec(&self) -> Value {
        json!({
            "holderIdentity": self.holder,
            "leaseDurationSeconds": self.duration_s,
            "acquireTime": format_micro_time(self.acquired_us),
            "renewTime": format_micro_time(self.renewed_us),
            "leaseTransitions": self.transitions,
        })
    }
}

/// A `MicroTime`: with six decimals.
pub(crate) fn format_micro_time(us: i64) -> String {
    let time = jiff::Timestamp::from_microsecond(us).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_through_json() {
        let record = LeaderElectionRecord {
            holder: "a_1".to_owned(),
            duration_s: 15,
            acquired_us: 1_770_000_000_000_001,
            renewed_us: 1_770_000_002_500_000,
            transitions: 3,
        };
        let lease = json!({ "spec": record.to_spec() });
        assert_eq!(LeaderElectionRecord::from_lease(&lease), record);
        assert_eq!(lease["spec"]["renewTime"], "2026-02-02T02:40:02.500000Z");
        let odd = json!({"spec": {"holderIdentity": null, "leaseDurationSeconds": "x", "renewTime": "x"}});
        assert_eq!(LeaderElectionRecord::from_lease(&odd), LeaderElectionRecord::default());
        assert_eq!(LeaderElectionRecord::from_lease(&json!({})), LeaderElectionRecord::default());
    }
}
