//! The JSON of whole pods and nodes in requests to extenders: that of the API server, without managed fields.

use indexmap::IndexMap;
use serde_json::value::RawValue;

/// An object's JSON without `kind`, `apiVersion` and `metadata.managedFields`, as kube-scheduler encodes the objects of its
/// informers
/// (the items of lists have no kinds, and kube-scheduler's transform removes managed fields).
///
/// # Errors
///
/// When the text is not a JSON object.
pub fn strip_managed_fields(object: &[u8]) -> Result<Box<RawValue>, serde_json::Error> {
    let mut fields: IndexMap<String, &RawValue> = serde_json::from_slice(object)?;
    fields.shift_remove("kind");
    fields.shift_remove("apiVersion");
    let metadata = match fields.get("metadata") {
        Some(metadata) => {
            let mut metadata: IndexMap<String, &RawValue> = serde_json::from_str(metadata.get())?;
            metadata.shift_remove("managedFields");
            Some(serde_json::value::to_raw_value(&metadata)?)
        }
        None => None,
    };
    if let Some(metadata) = &metadata {
        fields.insert("metadata".to_owned(), metadata);
    }
    serde_json::value::to_raw_value(&fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(object: &str, want: Option<&str>) {
        let found = strip_managed_fields(object.as_bytes()).ok();
        assert_eq!(found.as_deref().map(RawValue::get), want);
    }

    #[test]
    fn objects_are_encoded_as_by_kube_scheduler() {
        check(
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","managedFields":[{"a":1}],"uid":"u"},"spec":{"x": 1}}"#,
            Some(r#"{"metadata":{"name":"p","uid":"u"},"spec":{"x": 1}}"#),
        );
        check(r#"{"status":{"kind":"x"}}"#, Some(r#"{"status":{"kind":"x"}}"#));
        check("[]", None);
        check(r#"{"metadata":1}"#, None);
    }
}
