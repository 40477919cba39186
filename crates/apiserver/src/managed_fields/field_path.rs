//! One step of a field path.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use super::value;

/// How a value is found in the one around it.
#[derive(Clone, Debug)]
pub enum PathElement {
    /// A field of a struct, or a key of a map.
    Field(Box<str>),
    /// The entry of a list whose key fields, sorted by name, have these values.
    Key(Vec<(Box<str>, Value)>),
    /// The entry of a set.
    Value(Value),
    /// The entry at a place.
    Index(i64),
}

/// Why a text is no path element.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathElementError {
    #[error("key must be 2 characters long")]
    TooShort,
    #[error("missing colon: {0}")]
    NoColon(String),
    #[error("path element {0} is not valid JSON")]
    NotJson(String),
    #[error("path element {0} is not a number")]
    NotANumber(String),
    #[error("a set of fields is not an object")]
    NotAnObject,
}

impl PathElement {
    /// A field.
    pub fn field(name: &str) -> PathElement {
        PathElement::Field(name.into())
    }

    /// The form in `fieldsV1`: `f:name`, `k:{"name":"a"}`, `v:1` or `i:0`.
    pub fn to_key(&self) -> String {
        match self {
            PathElement::Field(name) => format!("f:{name}"),
            PathElement::Key(fields) => {
                let members: Vec<String> = fields
                    .iter()
                    .map(|(name, value)| format!("{}:{}", quoted(name), value::to_go_json(value)))
                    .collect();
                format!("k:{{{}}}", members.join(","))
            }
            PathElement::Value(value) => format!("v:{}", value::to_go_json(value)),
            PathElement::Index(index) => format!("i:{index}"),
        }
    }

    /// Reads that form. None for a kind of element that is not known, which readers pass over.
    ///
    /// # Errors
    ///
    /// When the text is malformed.
    pub fn parse(key: &str) -> Result<Option<PathElement>, PathElementError> {
        let bytes = key.as_bytes();
        if bytes.len() < 2 {
            return Err(PathElementError::TooShort);
        }
        if bytes[1] != b':' {
            return Err(PathElementError::NoColon(key.to_owned()));
        }
        let (kind, rest) = key.split_at(2);
        let not_json = |_| PathElementError::NotJson(key.to_owned());
        Ok(Some(match kind {
            "f:" => PathElement::field(rest),
            "v:" => PathElement::Value(serde_json::from_str(rest).map_err(not_json)?),
            "k:" => {
                let fields: Map<String, Value> = serde_json::from_str(rest).map_err(not_json)?;
                PathElement::Key(fields.into_iter().map(|(name, it)| (name.into(), it)).collect())
            }
            "i:" => PathElement::Index(
                rest.parse().map_err(|_| PathElementError::NotANumber(key.to_owned()))?,
            ),
            _ => return Ok(None),
        }))
    }

    fn rank(&self) -> u8 {
        match self {
            PathElement::Field(_) => 0,
            PathElement::Key(_) => 1,
            PathElement::Value(_) => 2,
            PathElement::Index(_) => 3,
        }
    }
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

impl std::fmt::Display for PathElement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PathElement::Field(name) => write!(f, ".{name}"),
            PathElement::Key(fields) => {
                let parts: Vec<String> = fields
                    .iter()
                    .map(|(name, value)| format!("{name}={}", value::to_text(value)))
                    .collect();
                write!(f, "[{}]", parts.join(","))
            }
            PathElement::Value(value) => write!(f, "[={}]", value::to_text(value)),
            PathElement::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &PathElement) -> Ordering {
        match (self, other) {
            (PathElement::Field(a), PathElement::Field(b)) => a.cmp(b),
            (PathElement::Key(a), PathElement::Key(b)) => compare_keys(a, b),
            (PathElement::Value(a), PathElement::Value(b)) => value::compare(a, b),
            (PathElement::Index(a), PathElement::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

fn compare_keys(a: &[(Box<str>, Value)], b: &[(Box<str>, Value)]) -> Ordering {
    for ((a_name, a_value), (b_name, b_value)) in a.iter().zip(b) {
        let order = a_name.cmp(b_name).then_with(|| value::compare(a_value, b_value));
        if order.is_ne() {
            return order;
        }
    }
    a.len().cmp(&b.len())
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &PathElement) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &PathElement) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PathElement {}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(key: &str, want_key: &str, want_text: &str) {
        let element = PathElement::parse(key).expect("a path element").expect("a known kind");
        assert_eq!(
            (element.to_key().as_str(), element.to_string().as_str()),
            (want_key, want_text)
        );
    }

    #[test]
    fn forms() {
        check("f:a.b/c", "f:a.b/c", ".a.b/c");
        check(
            r#"k:{ "protocol":"TCP","port":443 }"#,
            r#"k:{"port":443,"protocol":"TCP"}"#,
            r#"[port=443,protocol="TCP"]"#,
        );
        check(r#"v:"a<b""#, r#"v:"a\u003cb""#, r#"[="a<b"]"#);
        check("v: 3.0", "v:3", "[=3]");
        check("i:4", "i:4", "[4]");
    }

    #[test]
    fn malformed_and_unknown() {
        assert_eq!(PathElement::parse("r:x"), Ok(None));
        assert_eq!(PathElement::parse("f"), Err(PathElementError::TooShort));
        assert_eq!(PathElement::parse("fx"), Err(PathElementError::NoColon("fx".to_owned())));
        assert_eq!(PathElement::parse("i:x"), Err(PathElementError::NotANumber("i:x".to_owned())));
        assert_eq!(PathElement::parse("k:1"), Err(PathElementError::NotJson("k:1".to_owned())));
    }

    #[test]
    fn order() {
        let keys = [
            "f:a",
            "f:b",
            r#"k:{"a":1}"#,
            r#"k:{"a":1,"b":1}"#,
            "v:9",
            "v:10",
            r#"v:"a""#,
            "v:true",
            "i:0",
        ];
        let elements: Vec<PathElement> = keys
            .iter()
            .map(|key| PathElement::parse(key).expect("valid").expect("known"))
            .collect();
        assert!(elements.is_sorted());
        assert_eq!(PathElement::Value(1.into()), PathElement::Value(1.0.into()));
    }
}
