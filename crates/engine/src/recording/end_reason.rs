//! Why a recording was ended.

/// Why a recording was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordingEndReason {
    /// The scheduler was stopped.
    Stopped,
    /// The recording reached its size limit.
    Full,
    /// The disk was too slow.
    DiskTooSlow,
    /// An event cannot be recorded.
    Unrecordable,
}

impl RecordingEndReason {
    pub(super) fn code(self) -> i32 {
        match self {
            RecordingEndReason::Stopped => 1,
            RecordingEndReason::Full => 2,
            RecordingEndReason::DiskTooSlow => 3,
            RecordingEndReason::Unrecordable => 4,
        }
    }

    pub(super) fn of(code: i32) -> Option<RecordingEndReason> {
        [
            RecordingEndReason::Stopped,
            RecordingEndReason::Full,
            RecordingEndReason::DiskTooSlow,
            RecordingEndReason::Unrecordable,
        ]
        .into_iter()
        .find(|ended| ended.code() == code)
    }
}
