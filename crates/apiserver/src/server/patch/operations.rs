//! JSON patches within bounds: operations that copy and move can make something of any size and depth from a few bytes.

use json_patch::{AddOperation, Patch, PatchOperation, ReplaceOperation, patch_unsafe};
use serde_json::Value;

use crate::object::{DEPTH_MAX, depth};

/// How many bytes the copies of one patch may have together, as upstream's `JSONPatchMaxCopyBytes`.
const COPIED_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Deeper than what can be stored: between two operations a value may be, but not so deep that a walk over it needs much stack.
const DEPTH_BETWEEN_MAX: usize = 4 * DEPTH_MAX;

/// Why a patch cannot be applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    #[error(transparent)]
    Operation(#[from] json_patch::PatchError),
    #[error("the copies of the patch have more than {COPIED_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the patch nests values too deeply")]
    TooDeep,
}

/// Applies a patch as upstream's library does, where a member that is not there is null: it may be replaced, and passes for null
/// in a test. The value is of no use after an error.
pub fn apply_json_patch(value: &mut Value, patch: &Patch) -> Result<(), Problem> {
    let mut n_copied = 0;
    // No less than the value's depth, without looking at all of it each time.
    let mut depth_at_most = depth(value);
    for operation in patch.iter() {
        let path_len = operation.path().count();
        let is_absent = is_absent(value, operation.path().as_str());
        let added;
        let operation = match operation {
            PatchOperation::Copy(it) => {
                let copied = value.pointer(it.from.as_str()).map_or(0, |it| it.to_string().len());
                n_copied += copied;
                if n_copied > COPIED_BYTES_MAX {
                    return Err(Problem::TooLarge);
                }
                depth_at_most += path_len;
                operation
            }
            PatchOperation::Move(_) => {
                depth_at_most += path_len;
                operation
            }
            PatchOperation::Add(AddOperation { path, value })
            | PatchOperation::Replace(ReplaceOperation { path, value }) => {
                depth_at_most = depth_at_most.max(path_len + depth(value));
                if is_absent {
                    let (path, value) = (path.clone(), value.clone());
                    added = PatchOperation::Add(AddOperation { path, value });
                    &added
                } else {
                    operation
                }
            }
            PatchOperation::Test(it) if is_absent && it.value.is_null() => continue,
            PatchOperation::Remove(_) | PatchOperation::Test(_) => operation,
        };
        patch_unsafe(value, std::slice::from_ref(operation))?;
        if depth_at_most > DEPTH_BETWEEN_MAX {
            depth_at_most = depth(value);
            if depth_at_most > DEPTH_MAX {
                return Err(Problem::TooDeep);
            }
        }
    }
    Ok(())
}

/// Whether a path names a member that an object does not have.
fn is_absent(value: &Value, path: &str) -> bool {
    let owner = path.rsplit_once('/').and_then(|(owner, _)| value.pointer(owner));
    owner.is_some_and(Value::is_object) && value.pointer(path).is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(mut value: Value, patch: Value) -> Result<Value, Problem> {
        let patch: Patch = serde_json::from_value(patch).expect("a patch");
        apply_json_patch(&mut value, &patch).map(|()| value)
    }

    #[test]
    fn operations_are_applied_in_order() {
        let patch = json!([
            {"op": "copy", "from": "/a", "path": "/b"},
            {"op": "move", "from": "/a", "path": "/b/c"},
            {"op": "test", "path": "/b/c", "value": {"x": 1}},
        ]);
        let done = patched(json!({"a": {"x": 1}}), patch).expect("applies");
        assert_eq!(done, json!({"b": {"x": 1, "c": {"x": 1}}}));
    }

    #[test]
    fn absent_members_are_null_in_a_json_patch() {
        let check = |operations: Value, want: Option<Value>| {
            let done = patched(json!({"a": {"b": 1}, "l": [1]}), operations.clone());
            assert_eq!(done.ok(), want, "{operations}");
        };
        let replace = |path: &str| json!([{"op": "replace", "path": path, "value": {"x": 1}}]);
        check(replace("/a/b"), Some(json!({"a": {"b": {"x": 1}}, "l": [1]})));
        check(replace("/a/c~1d"), Some(json!({"a": {"b": 1, "c/d": {"x": 1}}, "l": [1]})));
        check(replace("/c/d"), None);
        check(replace("/l/1"), None);
        check(json!([{"op": "remove", "path": "/c"}]), None);
        let test = |path: &str, value: Value| json!([{"op": "test", "path": path, "value": value}]);
        check(test("/c", Value::Null), Some(json!({"a": {"b": 1}, "l": [1]})));
        check(test("/c", json!(1)), None);
        check(test("/c/d", Value::Null), None);
    }

    #[test]
    fn errors_after_a_move_of_the_root_are_reported() {
        let patch = json!([
            {"op": "move", "from": "/a", "path": ""},
            {"op": "test", "path": "/x", "value": 1},
        ]);
        let failed = patched(json!({"a": {"x": 2}}), patch);
        assert!(matches!(failed, Err(Problem::Operation(_))), "{failed:?}");
    }

    #[test]
    fn copies_of_copies_are_limited() {
        let double = json!({"op": "copy", "from": "/a", "path": "/a/-"});
        let doubled = |n| patched(json!({"a": [0]}), vec![double.clone(); n].into());
        assert!(doubled(10).is_ok());
        assert!(matches!(doubled(40), Err(Problem::TooLarge)));
    }

    #[test]
    fn moves_of_moves_are_limited() {
        let wrap = [
            json!({"op": "add", "path": "/b", "value": {}}),
            json!({"op": "move", "from": "/a", "path": "/b/a"}),
            json!({"op": "move", "from": "/b", "path": "/a"}),
        ];
        let wrapped = |n: usize| {
            let operations: Vec<Value> = wrap.iter().cycle().take(3 * n).cloned().collect();
            patched(json!({"a": {}}), operations.into())
        };
        assert_eq!(depth(&wrapped(20).expect("applies")), 22);
        assert!(matches!(wrapped(3_000), Err(Problem::TooDeep)));
    }
}
