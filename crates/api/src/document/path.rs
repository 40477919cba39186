//! Where in a document a value stands: field names and positions in lists.

use std::fmt;
use std::str::FromStr;

/// One step into a document.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FieldPathSegment {
    /// The value of a key.
    Field(String),
    /// An item of a list, counted from 0.
    Index(usize),
}

/// A way into a document such as `items[3].metadata.labels[topology.kubernetes.io/zone]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldPath(Vec<FieldPathSegment>);

impl FieldPath {
    /// The document itself.
    pub const ROOT: FieldPath = FieldPath(Vec::new());

    /// The steps from the outside in.
    pub fn segments(&self) -> &[FieldPathSegment] {
        &self.0
    }

    /// Whether this is the document itself.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// This path, and from there to the value of `name`.
    #[must_use]
    pub fn field(mut self, name: &str) -> FieldPath {
        self.0.push(FieldPathSegment::Field(name.to_owned()));
        self
    }

    /// This path, and from there to the item at `index`.
    #[must_use]
    pub fn index(mut self, index: usize) -> FieldPath {
        self.0.push(FieldPathSegment::Index(index));
        self
    }

    /// This path, and from there on along `below`.
    #[must_use]
    pub fn join(mut self, below: &FieldPath) -> FieldPath {
        self.0.extend_from_slice(&below.0);
        self
    }
}

/// Steps that are not known (keys that are not strings) are left out.
impl From<&serde_path_to_error::Path> for FieldPath {
    fn from(path: &serde_path_to_error::Path) -> FieldPath {
        use serde_path_to_error::Segment as Step;
        let segment = |step: &Step| match step {
            Step::Seq { index } => Some(FieldPathSegment::Index(*index)),
            Step::Map { key: name } | Step::Enum { variant: name } => {
                Some(FieldPathSegment::Field(name.clone()))
            }
            Step::Unknown => None,
        };
        FieldPath(path.iter().filter_map(segment).collect())
    }
}

impl FromIterator<FieldPathSegment> for FieldPath {
    fn from_iter<I: IntoIterator<Item = FieldPathSegment>>(segments: I) -> FieldPath {
        FieldPath(segments.into_iter().collect())
    }
}

/// Plain names are joined by dots, others stand in brackets, quoted if they hold a bracket or a quote.
impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, segment) in self.0.iter().enumerate() {
            match segment {
                FieldPathSegment::Index(index) => write!(f, "[{index}]")?,
                FieldPathSegment::Field(name) if is_plain(name) => {
                    let dot = if nth == 0 { "" } else { "." };
                    write!(f, "{dot}{name}")?;
                }
                FieldPathSegment::Field(name)
                    if name.contains(['[', ']', '"']) || name.is_empty() =>
                {
                    write!(f, "[\"{}\"]", name.replace('\\', "\\\\").replace('"', "\\\""))?;
                }
                FieldPathSegment::Field(name) => write!(f, "[{name}]")?,
            }
        }
        Ok(())
    }
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.contains(['.', '/', '[', ']', '"', '\\'])
}

/// A text that is not a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid path {text:?}: expected names and positions such as spec.taints[0] or labels[a.b/c]"
)]
pub struct FieldPathError {
    /// The text.
    pub text: String,
}

/// Reads what [`FieldPath`] prints.
impl FromStr for FieldPath {
    type Err = FieldPathError;

    fn from_str(text: &str) -> Result<FieldPath, FieldPathError> {
        parse(text).ok_or_else(|| FieldPathError { text: text.to_owned() })
    }
}

fn parse(text: &str) -> Option<FieldPath> {
    let mut segments = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix("[\"") {
            let (name, after) = unquote(quoted)?;
            segments.push(FieldPathSegment::Field(name));
            rest = after.strip_prefix(']')?;
        } else if let Some(inner) = rest.strip_prefix('[') {
            let (name, after) = inner.split_once(']')?;
            let all_digits = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
            segments.push(match name {
                "" => return None,
                _ if all_digits => FieldPathSegment::Index(name.parse().ok()?),
                _ => FieldPathSegment::Field(name.to_owned()),
            });
            rest = after;
        } else {
            let named = if segments.is_empty() { rest } else { rest.strip_prefix('.')? };
            let end = named.find(['.', '[']).unwrap_or(named.len());
            let name = &named[..end];
            if !is_plain(name) {
                return None;
            }
            segments.push(FieldPathSegment::Field(name.to_owned()));
            rest = &named[end..];
        }
    }
    Some(FieldPath(segments))
}

/// A name up to its closing quote, and what follows it.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, letter)) = chars.next() {
        match letter {
            '"' => return Some((name, &text[at + 1..])),
            '\\' => name.push(chars.next()?.1),
            _ => name.push(letter),
        }
    }
    None
}
