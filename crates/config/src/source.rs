//! Where a configuration comes from: a document, which knows the line and column of every path.

use loadmaster_api::document::{Document, Located, Path, expected_first};
use loadmaster_framework::FieldError;
use serde_json::Value;

/// The document's only object.
pub(crate) fn read(document: &Document) -> Result<Value, Located> {
    document.decode_value()
}

/// The errors with the line and column of the value at fault, or of what stands around it when it
/// is not written; in the order of the text.
pub(crate) fn locate(document: &Document, errors: Vec<FieldError>) -> Vec<Located> {
    let locate = |error: FieldError| {
        let path = error.path.parse().unwrap_or(Path::ROOT);
        document.error_at(path, expected_first(&error.text))
    };
    let mut located: Vec<Located> = errors.into_iter().map(locate).collect();
    located.sort_by_key(|error| (error.line, error.column));
    located
}
