//! Whole pods and nodes, as extenders are sent them: what the API server wrote, without what nobody reads.

use indexmap::IndexMap;
use serde_json::value::RawValue;

/// An object's JSON without `kind`, `apiVersion` and `metadata.managedFields`, as a typed object that client-go keeps is written
/// (its lists carry no kinds, and kube-scheduler drops managed fields when it reads).
///
/// # Errors
///
/// When the text is no JSON object.
pub fn trimmed(object: &[u8]) -> Result<Box<RawValue>, serde_json::Error> {
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
        let found = trimmed(object.as_bytes()).ok();
        assert_eq!(found.as_deref().map(RawValue::get), want);
    }

    #[test]
    fn what_client_go_would_write() {
        check(
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","managedFields":[{"a":1}],"uid":"u"},"spec":{"x": 1}}"#,
            Some(r#"{"metadata":{"name":"p","uid":"u"},"spec":{"x": 1}}"#),
        );
        check(r#"{"status":{"kind":"x"}}"#, Some(r#"{"status":{"kind":"x"}}"#));
        check("[]", None);
        check(r#"{"metadata":1}"#, None);
    }
}
