//! Comments inside a JSON value, for `config convert`: a comment stands beside what it is about, and so moves with it.

use loadmaster_api::document::FieldPath;
use serde_json::{Map, Value};

/// Begins the key of a comment: no YAML or JSON text has such a key that means something.
const MARK: char = '\0';

/// The key of the comment on the object itself.
const ON_SELF: &str = "\0";

/// Adds a comment to a member of the object; several become several lines.
pub(crate) fn comment_on(object: &mut Map<String, Value>, member: &str, text: impl Into<String>) {
    add(object, format!("{MARK}{member}"), text.into());
}

/// Adds a comment to the object itself, which is an element of a list.
pub(crate) fn comment(object: &mut Map<String, Value>, text: impl Into<String>) {
    add(object, ON_SELF.to_owned(), text.into());
}

fn add(object: &mut Map<String, Value>, key: String, text: String) {
    match object.get_mut(&key) {
        Some(Value::String(known)) if known.lines().any(|line| line == text) => {}
        Some(Value::String(known)) => {
            known.push('\n');
            known.push_str(&text);
        }
        _ => {
            object.insert(key, Value::String(text));
        }
    }
}

/// Removes all comments; returns them with the paths of what they are about.
pub(crate) fn take_comments(value: &mut Value) -> Vec<(FieldPath, String)> {
    let mut comments = Vec::new();
    take(value, FieldPath::ROOT, &mut comments);
    comments
}

fn take(value: &mut Value, path: FieldPath, comments: &mut Vec<(FieldPath, String)>) {
    match value {
        Value::Object(object) => {
            let keys: Vec<String> =
                object.keys().filter(|key| key.starts_with(MARK)).cloned().collect();
            for key in keys {
                if let Some(Value::String(text)) = object.remove(&key) {
                    let member = &key[MARK.len_utf8()..];
                    let on =
                        if member.is_empty() { path.clone() } else { path.clone().field(member) };
                    comments.push((on, text));
                }
            }
            for (member, value) in object {
                take(value, path.clone().field(member), comments);
            }
        }
        Value::Array(elements) => {
            for (idx, element) in elements.iter_mut().enumerate() {
                take(element, path.clone().index(idx), comments);
            }
        }
        _ => {}
    }
}
