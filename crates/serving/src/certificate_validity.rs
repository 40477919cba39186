//! How long a certificate is valid.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::CertificateParams;

/// A client's clock may be behind ours by this.
const CLOCK_SKEW_MAX: SignedDuration = SignedDuration::from_hours(1);

/// Makes a certificate valid from an hour before `now` until `n_days` after it.
pub fn set_validity(params: &mut CertificateParams, now: Timestamp, n_days: u32) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let time = |at: Timestamp| epoch + Duration::from_secs(at.as_second().try_into().unwrap_or(0));
    params.not_before = time(now - CLOCK_SKEW_MAX);
    params.not_after = time(now) + Duration::from_secs(u64::from(n_days) * 24 * 60 * 60);
}
