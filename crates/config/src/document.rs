//! Reads the configuration document and adds line and column to errors.

use loadmaster_api::document::{Document, FieldPath, LocatedError, reword_decode_error};
use loadmaster_framework::FieldError;
use loadmaster_stdx::SortCompactly as _;
use serde_json::Value;

/// Decodes the only object of the document.
pub(crate) fn read(document: &Document) -> Result<Value, LocatedError> {
    document.decode_value()
}

/// Adds to every error the line and column of its value, or of the enclosing value when it is absent;
/// sorted by position.
pub(crate) fn locate(document: &Document, errors: Vec<FieldError>) -> Vec<LocatedError> {
    let locate = |error: FieldError| {
        let path = error.path.parse().unwrap_or(FieldPath::ROOT);
        document.error_at(path, reword_decode_error(&error.text))
    };
    let mut located: Vec<LocatedError> = errors.into_iter().map(locate).collect();
    located.sort_compactly_by_key(|error| (error.line, error.column));
    located
}
