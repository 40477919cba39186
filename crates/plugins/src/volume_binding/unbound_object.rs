//! The whole of a claim or a volume that may still have to be updated.

use std::sync::Arc;

use loadmaster_api::storage::BIND_COMPLETED;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// The JSON of a claim or a volume, as an update needs it, without managed fields, which the API server then keeps. Nothing is stored for
/// bound ones, of which a cluster may have many: they are not updated any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UnboundObject(Option<Arc<str>>);

impl UnboundObject {
    /// The object; `None` if it is bound.
    pub fn json(&self) -> Option<&Arc<str>> {
        self.0.as_ref()
    }
}

impl<'de> Deserialize<'de> for UnboundObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<UnboundObject, D::Error> {
        let mut object = Value::deserialize(deserializer)?;
        if is_bound(&object) {
            return Ok(UnboundObject(None));
        }
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        Ok(UnboundObject(Some(object.to_string().into())))
    }
}

/// Whether a volume is bound to a claim that has a uid, or the binding of a claim is complete.
fn is_bound(object: &Value) -> bool {
    let has_text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let is_bound_claim = has_text(&object["spec"]["volumeName"])
        && !object["metadata"]["annotations"][BIND_COMPLETED].is_null();
    object["status"]["phase"] == "Bound"
        && (is_bound_claim || has_text(&object["spec"]["claimRef"]["uid"]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(object: Value, want: Option<Value>) {
        let read: UnboundObject = serde_json::from_value(object).unwrap();
        let stored = read.json().map(|json| serde_json::from_str(json).unwrap());
        assert_eq!(stored, want);
    }

    #[test]
    fn only_unbound_objects_are_stored() {
        let unbound =
            json!({"kind": "PersistentVolume", "metadata": {"name": "a"}, "spec": {"x": [1]}});
        let mut with_managed_fields = unbound.clone();
        with_managed_fields["metadata"]["managedFields"] = json!([{}]);
        check(with_managed_fields, Some(unbound));
        let volume = |uid: &str, phase: &str| json!({"spec": {"claimRef": {"uid": uid}}, "status": {"phase": phase}});
        check(volume("u", "Bound"), None);
        check(volume("u", "Available"), Some(volume("u", "Available")));
        check(volume("", "Bound"), Some(volume("", "Bound")));
        let claim = |annotations: Value, volume: &str| json!({"metadata": {"annotations": annotations}, "spec": {"volumeName": volume}, "status": {"phase": "Bound"}});
        check(claim(json!({BIND_COMPLETED: "yes"}), "pv"), None);
        check(claim(json!({}), "pv"), Some(claim(json!({}), "pv")));
    }
}
