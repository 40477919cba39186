//! What a conversion to v1 finds beside the converted values.

use loadmaster_framework::FieldError;

use crate::origins::Origins;

/// What a conversion finds.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Where the fields of the v1 form stand in the document.
    pub origins: Origins,
    /// What the document says and has no effect; one sentence each.
    pub notes: Vec<String>,
    /// Errors, with paths in the document.
    pub errors: Vec<FieldError>,
}
