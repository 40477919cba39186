//! Tables of custom resources, from `additionalPrinterColumns`.

use std::cmp::Ordering;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::json_path::Path;
use crate::object::metadata_text;
use crate::table::since;

/// A printer column.
#[derive(Clone, Debug)]
pub struct Column {
    name: String,
    kind: String,
    format: String,
    description: String,
    priority: i64,
    path: Path,
}

impl Column {
    /// Reads a column; none if its path cannot be read.
    pub fn from_definition(column: &Value) -> Option<Column> {
        let text = |name: &str| column[name].as_str().unwrap_or_default().to_owned();
        let path = text("jsonPath");
        let mut description = text("description");
        if description.is_empty() {
            description = format!("Custom resource definition column (in JSONPath format): {path}");
        }
        Some(Column {
            name: text("name"),
            kind: text("type"),
            format: text("format"),
            description,
            priority: column["priority"].as_i64().unwrap_or(0),
            path: Path::parse(&path)?,
        })
    }

    /// The default column.
    pub fn age() -> Column {
        Column {
            name: "Age".to_owned(),
            kind: "date".to_owned(),
            format: String::new(),
            description: "CreationTimestamp is a timestamp representing the server time when this object was created.".to_owned(),
            priority: 0,
            path: Path::parse(".metadata.creationTimestamp").unwrap_or_default(),
        }
    }

    /// What the header of a table says of it.
    pub fn definition(&self) -> Value {
        json!({"name": self.name, "type": self.kind, "format": self.format,
            "description": self.description, "priority": self.priority})
    }

    fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let Some(value) = self.path.first_value(object) else { return Value::Null };
        match (self.kind.as_str(), value) {
            ("string", Value::String(_)) => value.clone(),
            ("string", Value::Null) => "<nil>".into(),
            ("string", other) => other.to_string().into(),
            ("integer", Value::Number(n)) => {
                n.as_i64().or_else(|| n.as_f64().map(|n| n as i64)).into()
            }
            ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
            ("date", Value::String(text)) if text.parse::<Timestamp>().is_err() => {
                "<invalid>".into()
            }
            ("date", Value::String(_)) => since(value, now).into(),
            _ => Value::Null,
        }
    }
}

/// The cells of a row.
pub fn cells(columns: &[Column], object: &Value, now: Timestamp) -> Vec<Value> {
    let name = std::iter::once(metadata_text(object, "name").into());
    name.chain(columns.iter().map(|it| it.cell(object, now))).collect()
}

/// The order of versions: stable before beta before alpha, higher before lower, all else behind.
pub fn newest_first(a: &str, b: &str) -> Ordering {
    let rank = |text: &str| -> Option<(u8, u64, u64)> {
        let rest = text.strip_prefix('v')?;
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let major = rest[..end].parse().ok()?;
        match &rest[end..] {
            "" => Some((2, major, 0)),
            stage => {
                let (level, minor) = match stage.strip_prefix("beta") {
                    Some(minor) => (1, minor),
                    None => (0, stage.strip_prefix("alpha")?),
                };
                Some((level, major, minor.parse().ok()?))
            }
        }
    };
    match (rank(a), rank(b)) {
        (Some(a), Some(b)) => b.cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kind: &str, path: &str, want: Value) {
        let now = "2026-01-02T03:04:05Z".parse().expect("a time");
        let object =
            json!({"n": 3, "f": 1.5, "s": "x", "b": true, "l": [1], "t": "2026-01-02T03:03:05Z"});
        let column = json!({"name": "C", "type": kind, "jsonPath": path});
        let column = Column::from_definition(&column).expect("a column");
        assert_eq!(column.cell(&object, now), want, "{kind} {path}");
    }

    #[test]
    fn cells_have_the_type_of_their_column() {
        check("string", ".s", "x".into());
        check("string", ".n", "3".into());
        check("string", ".l", "[1]".into());
        check("string", ".missing", Value::Null);
        check("integer", ".n", 3.into());
        check("integer", ".f", 1.into());
        check("integer", ".s", Value::Null);
        check("number", ".f", 1.5.into());
        check("boolean", ".b", true.into());
        check("date", ".t", "60s".into());
        check("date", ".s", "<invalid>".into());
    }

    #[test]
    fn versions_are_in_order() {
        let mut versions = ["foo", "v1alpha2", "v1", "v1beta1", "v10", "v2", "v1beta10", "bar"];
        versions.sort_by(|a, b| newest_first(a, b));
        let want = ["v10", "v2", "v1", "v1beta10", "v1beta1", "v1alpha2", "bar", "foo"];
        assert_eq!(versions, want);
    }
}
