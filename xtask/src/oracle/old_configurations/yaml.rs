//! Writes a JSON value as block-style YAML, as people write configuration files.

use std::fmt::Write as _;

use serde_json::Value;

/// Appends `value` with this indentation.
pub fn write(text: &mut String, value: &Value, indent: usize) {
    let margin = " ".repeat(indent);
    match value {
        Value::Object(object) if !object.is_empty() => {
            for (name, member) in object {
                let _ = write!(text, "{margin}{name}:");
                write_member(text, member, indent);
            }
        }
        Value::Array(elements) if !elements.is_empty() => {
            for element in elements {
                let mut inner = String::new();
                write(&mut inner, element, indent + 2);
                // The first line of the element stands behind the dash.
                let _ = write!(text, "{margin}- {}", inner.trim_start());
            }
        }
        scalar => {
            let _ = writeln!(text, "{margin}{scalar}");
        }
    }
}

fn write_member(text: &mut String, member: &Value, indent: usize) {
    let is_nested = match member {
        Value::Object(object) => !object.is_empty(),
        Value::Array(elements) => !elements.is_empty(),
        _ => false,
    };
    if is_nested {
        text.push('\n');
        write(text, member, indent + 2);
    } else {
        let _ = writeln!(text, " {member}");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    #[test]
    fn the_text_has_the_value() {
        let value = json!({"a": [{"b": 1, "c": []}, "x"], "d": {"e": {}, "f": [true]}, "g": null});
        let mut text = String::new();
        super::write(&mut text, &value, 0);
        let read: Value = serde_saphyr::from_str(&text).expect("YAML");
        assert_eq!(read, value, "{text}");
    }
}
