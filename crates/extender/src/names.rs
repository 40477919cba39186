//! Names of nodes as extenders are asked about them: written once for all questions about the same nodes, and found again in
//! answers that repeat them in order, as most do, without reading these name by name.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::OnceLock;

use bytes::Bytes;
use loadmaster_api::Str;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::messages::{self, ExtenderFilterResult, Named, is_called};

/// Names of nodes, each once, in the order of a question.
#[derive(Debug)]
pub struct NodeNames {
    names: Vec<Str>,
    /// As a JSON array, written when somebody is asked by name: `["a"`, `,"b"`.. and `]`.
    list: OnceLock<Written>,
    /// As Go writes them with scores, written when somebody answers with scores: `[{"Host":"a","Score":`, `},{"Host":"b","Score":`..
    /// Each is compared with an answer at once.
    hosts: OnceLock<Written>,
}

/// A text in pieces, one a name.
#[derive(Debug)]
struct Written {
    text: Bytes,
    /// Where each piece ends.
    ends: Vec<usize>,
}

impl Written {
    /// What is written for each name, and behind the last one.
    fn new(names: &[Str], mut write: impl FnMut(&mut String, &str), end: &str) -> Written {
        let mut text = String::new();
        let mut ends = Vec::with_capacity(names.len());
        for name in names {
            // Writing a text into memory cannot fail.
            write(&mut text, &serde_json::to_string(name.as_str()).unwrap_or_default());
            ends.push(text.len());
        }
        text.push_str(end);
        Written { text: text.into(), ends }
    }

    fn piece(&self, at: usize) -> &[u8] {
        let begin = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.text[begin..self.ends[at]]
    }
}

/// Which nodes of a question are left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Left {
    /// All of them.
    All,
    /// Those at these places, ascending.
    At(Vec<usize>),
}

impl FromIterator<Str> for NodeNames {
    fn from_iter<T: IntoIterator<Item = Str>>(names: T) -> Self {
        NodeNames {
            names: names.into_iter().collect(),
            list: OnceLock::new(),
            hosts: OnceLock::new(),
        }
    }
}

impl Deref for NodeNames {
    type Target = [Str];
    fn deref(&self) -> &[Str] {
        &self.names
    }
}

impl PartialEq for NodeNames {
    fn eq(&self, other: &NodeNames) -> bool {
        self.names == other.names
    }
}

impl Eq for NodeNames {}

impl NodeNames {
    /// The names as a JSON array, shared by all who ask for it.
    pub fn json(&self) -> Bytes {
        self.list().text.clone()
    }

    fn list(&self) -> &Written {
        self.list.get_or_init(|| {
            let mut separator = '[';
            let write = |text: &mut String, name: &str| {
                text.push(std::mem::replace(&mut separator, ','));
                text.push_str(name);
            };
            Written::new(&self.names, write, if self.names.is_empty() { "[]" } else { "]" })
        })
    }

    fn hosts(&self) -> &Written {
        self.hosts.get_or_init(|| {
            let mut before = "[";
            let write = |text: &mut String, name: &str| {
                let before = std::mem::replace(&mut before, "},");
                text.extend([before, r#"{"Host":"#, name, r#","Score":"#]);
            };
            Written::new(&self.names, write, "")
        })
    }

    /// Reads an answer to filter that leaves some of these names, in this order, written as Go writes them. `None` for any other.
    pub fn filtered(&self, body: &[u8]) -> Option<(Left, ExtenderFilterResult<Named>)> {
        let begin = value_of(body, "NodeNames")?;
        let (left, n) = self.left(&body[begin..])?;
        // What is around the names is read as any answer; a name that no node has stands for them.
        let rest = [&body[..begin], br#"[""]"#, &body[begin + n..]].concat();
        let mut result: ExtenderFilterResult<Named> = messages::read(&rest).ok()?;
        match result.node_names.take()?.as_slice() {
            [name] if name.is_empty() => Some((left, result)),
            _ => None,
        }
    }

    /// What an array at the beginning of a text leaves of these names, and how long it is.
    fn left(&self, text: &[u8]) -> Option<(Left, usize)> {
        let list = self.list();
        if text.starts_with(&list.text) {
            return Some((Left::All, list.text.len()));
        }
        let mut rest = text.strip_prefix(b"[")?;
        let mut places = Vec::new();
        for at in 0..self.names.len() {
            let Some(behind) = rest.strip_prefix(&list.piece(at)[1..]) else { continue };
            places.push(at);
            match behind.split_first()? {
                (b',', behind) => rest = behind,
                (b']', behind) => return Some((Left::At(places), text.len() - behind.len())),
                _ => return None,
            }
        }
        None
    }

    /// Reads an answer to prioritize that has a score for each of these names, in this order, written as Go writes it. `None` for
    /// any other.
    pub fn scores(&self, body: &[u8]) -> Option<Vec<i64>> {
        let hosts = self.hosts();
        let (mut rest, mut pieces) = (body, &hosts.text[..]);
        let mut scores = Vec::with_capacity(self.names.len());
        let mut begin = 0;
        for end in &hosts.ends {
            let (piece, next) = pieces.split_at(end - begin);
            let (found, behind) = rest.split_at_checked(piece.len())?;
            if !is_same(found, piece) {
                return None;
            }
            let (score, behind) = integer(behind)?;
            scores.push(score);
            (rest, pieces, begin) = (behind, next, *end);
        }
        rest.starts_with(b"}]").then_some(scores)
    }
}

/// Whether two texts of one length are the same. Short ones are compared here, eight bytes at a time: there are so many of them that
/// calling a function for each takes longer than comparing it.
#[inline]
fn is_same(a: &[u8], b: &[u8]) -> bool {
    match (a.last_chunk::<8>(), b.last_chunk::<8>()) {
        (Some(end_of_a), Some(end_of_b)) => {
            let (a, b) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
            end_of_a == end_of_b && a.iter().zip(b).all(|(a, b)| a == b)
        }
        _ => a == b,
    }
}

/// An integer at the beginning of a text, and what is behind it. `None` for what is none in JSON, and for very long ones.
#[inline]
fn integer(text: &[u8]) -> Option<(i64, &[u8])> {
    let (sign, digits) = match text {
        [b'-', digits @ ..] => (-1, digits),
        _ => (1, text),
    };
    let (mut sum, mut n) = (0, 0);
    while let Some(digit) = digits.get(n).map(|byte| byte.wrapping_sub(b'0')).filter(|it| *it < 10)
    {
        // Eighteen digits fit.
        if n == 18 || n > 0 && sum == 0 {
            return None;
        }
        sum = sum * 10 + i64::from(digit);
        n += 1;
    }
    (n > 0).then(|| (sign * sum, &digits[n..]))
}

/// Where the value of a field begins in an object at the beginning of a text.
fn value_of(text: &[u8], field: &str) -> Option<usize> {
    let mut at = behind(text, 0, b'{')?;
    loop {
        let (key, end) = value::<Key>(text, at)?;
        at = behind(text, end, b':')?;
        if is_called(&key.0, field) {
            return Some(at);
        }
        (_, at) = value::<IgnoredAny>(text, at)?;
        at = behind(text, at, b',')?;
    }
}

#[derive(Deserialize)]
struct Key(Cow<'static, str>);

/// The JSON value at a place, and where it ends.
fn value<T: DeserializeOwned>(text: &[u8], at: usize) -> Option<(T, usize)> {
    let mut values = serde_json::Deserializer::from_slice(&text[at..]).into_iter::<T>();
    let value = values.next()?.ok()?;
    Some((value, at + values.byte_offset()))
}

/// Where the text goes on behind this character and the white space on both sides of it.
fn behind(text: &[u8], at: usize, wanted: u8) -> Option<usize> {
    let at = behind_space(text, at);
    (text.get(at) == Some(&wanted)).then(|| behind_space(text, at + 1))
}

fn behind_space(text: &[u8], at: usize) -> usize {
    let space = text[at..].iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
    at + space.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> NodeNames {
        ["a", "b-1", "c"].map(Str::new).into_iter().collect()
    }

    #[test]
    fn written_as_go_does() {
        assert_eq!(names().json(), r#"["a","b-1","c"]"#);
        assert_eq!(NodeNames::from_iter([]).json(), "[]");
    }

    /// The names that are left; none where the answer must be read name by name.
    #[track_caller]
    fn check_left(body: &str, want: Option<Left>) {
        assert_eq!(names().filtered(body.as_bytes()).map(|(left, _)| left), want, "{body}");
    }

    #[test]
    fn names_in_order_are_found() {
        let at = |places: &[usize]| Some(Left::At(places.to_vec()));
        check_left(r#"{"Nodes":null,"NodeNames":["a","b-1","c"],"Error":""}"#, Some(Left::All));
        check_left(r#" { "nodenames" : ["a","b-1","c"] } trailing"#, Some(Left::All));
        check_left(r#"{"Nodes":{"items":[{"a":"}"}]},"NodeNames":["b-1"]}"#, at(&[1]));
        check_left(r#"{"NodeNames":["a","c"],"FailedNodes":{"b-1":"full"}}"#, at(&[0, 2]));
        for other in [
            r#"{"NodeNames":["c","a"]}"#,
            r#"{"NodeNames":["a","a"]}"#,
            r#"{"NodeNames":["x"]}"#,
            r#"{"NodeNames":["a", "c"]}"#,
            r#"{"NodeNames":[]}"#,
            r#"{"NodeNames":null}"#,
            r#"{"NodeNames":["a""c"]}"#,
            r#"{"NodeNames":["a""#,
            r#"{"NodeNames":["a"],"NodeNames":["b-1"]}"#,
            r#"{"NodeNames":["a"],"NodeNames":null}"#,
            r#"{"NodeNames":["a"],"FailedNodes":7}"#,
            r#"{"NodeNames":["a"]"#,
            r#"{"Error":"["a","b-1","c"]"}"#,
            r#"["a","b-1","c"]"#,
            r#"{"Error":"x"}"#,
            "null",
            "{",
            "",
        ] {
            check_left(other, None);
        }
    }

    #[test]
    fn the_rest_of_the_answer_is_read() {
        let body = br#"{"NodeNames":["a"],"FailedNodes":{"c":"full"},"Error":"e"}"#;
        let (_, result) = names().filtered(body).unwrap();
        assert_eq!((result.node_names, result.error.as_str()), (None, "e"));
        assert_eq!(result.failed_nodes["c"], "full");
    }

    #[test]
    fn scores_in_order_are_found() {
        let check = |body: &str, want: Option<&[i64]>| {
            assert_eq!(names().scores(body.as_bytes()).as_deref(), want, "{body}");
        };
        let body = |[a, b, c]: [&str; 3]| {
            format!(
                r#"[{{"Host":"a","Score":{a}}},{{"Host":"b-1","Score":{b}}},{{"Host":"c","Score":{c}}}]"#
            )
        };
        check(&body(["1", "-20", "0"]), Some(&[1, -20, 0]));
        let longest = 999_999_999_999_999_999;
        check(&body([&longest.to_string(), "-0", "10"]), Some(&[longest, 0, 10]));
        check(&format!("{} more", body(["1", "2", "3"])), Some(&[1, 2, 3]));
        for bad in ["01", "1.0", "1e2", "-", "", "null", " 1", "9223372036854775808"] {
            check(&body(["1", bad, "3"]), None);
        }
        // Only scores may be others.
        let whole = body(["1", "2", "3"]).into_bytes();
        let is_found = |at: &usize| {
            let mut other = whole.clone();
            other[*at] ^= 1;
            names().scores(&other).is_some()
        };
        assert_eq!((0..whole.len()).filter(is_found).count(), 3);
        check(r#"[{"Host":"a","Score":1}]"#, None);
        check(r#"[{"Host":"b-1","Score":1},{"Host":"a","Score":1},{"Host":"c","Score":1}]"#, None);
        check("[]", None);
        check("", None);
    }
}
