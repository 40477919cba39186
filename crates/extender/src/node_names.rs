//! The node names of requests: encoded once for all requests with the same nodes, and matched in responses that repeat them in
//! order,
//! as most do, without decoding them name by name.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::OnceLock;

use bytes::Bytes;
use loadmaster_api::Str;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::messages::{self, ExtenderFilterResult, NamedObject, matches_field_name};

/// Names of nodes, each once, in the order of a request.
#[derive(Debug)]
pub struct NodeNames {
    names: Vec<Str>,
    /// As a JSON array, encoded for the first request by name: `["a"`, `,"b"`.. and `]`.
    list: OnceLock<EncodedNames>,
    /// As Go encodes them in a HostPriorityList, without the scores: `[{"Host":"a","Score":`, `},{"Host":"b","Score":`.. They are
    /// compared with a response.
    hosts: OnceLock<EncodedNames>,
}

/// An encoded text with one piece per name.
#[derive(Debug)]
struct EncodedNames {
    text: Bytes,
    /// The end of each piece.
    ends: Vec<usize>,
}

impl EncodedNames {
    /// `write` appends the piece of a name; `end` follows the last one.
    fn new(names: &[Str], mut write: impl FnMut(&mut String, &str), end: &str) -> EncodedNames {
        let mut text = String::new();
        let mut ends = Vec::with_capacity(names.len());
        for name in names {
            // Encoding a string cannot fail.
            write(&mut text, &serde_json::to_string(name.as_str()).unwrap_or_default());
            ends.push(text.len());
        }
        text.push_str(end);
        EncodedNames { text: text.into(), ends }
    }

    fn piece(&self, at: usize) -> &[u8] {
        let begin = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.text[begin..self.ends[at]]
    }
}

/// The nodes of a request that remain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RemainingNodes {
    /// All nodes.
    All,
    /// The nodes with these indices, ascending.
    #[serde(rename = "At")]
    Indices(Vec<usize>),
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
    /// The names as a JSON array; encoded once and shared.
    pub fn to_json(&self) -> Bytes {
        self.list().text.clone()
    }

    fn list(&self) -> &EncodedNames {
        self.list.get_or_init(|| {
            let mut separator = '[';
            let write = |text: &mut String, name: &str| {
                text.push(std::mem::replace(&mut separator, ','));
                text.push_str(name);
            };
            EncodedNames::new(&self.names, write, if self.names.is_empty() { "[]" } else { "]" })
        })
    }

    fn hosts(&self) -> &EncodedNames {
        self.hosts.get_or_init(|| {
            let mut before = "[";
            let write = |text: &mut String, name: &str| {
                let before = std::mem::replace(&mut before, "},");
                text.extend([before, r#"{"Host":"#, name, r#","Score":"#]);
            };
            EncodedNames::new(&self.names, write, "")
        })
    }

    /// Decodes a response to filter that has some of these names, in this order, as Go encodes them. `None` for any other response.
    pub fn decode_filter_response(
        &self,
        body: &[u8],
    ) -> Option<(RemainingNodes, ExtenderFilterResult<NamedObject>)> {
        let begin = field_value_offset(body, "NodeNames")?;
        let (left, n) = self.match_names(&body[begin..])?;
        // The rest of the response is decoded with a placeholder for the names, which no node has as its name.
        let rest = [&body[..begin], br#"[""]"#, &body[begin + n..]].concat();
        let mut result: ExtenderFilterResult<NamedObject> = messages::decode_message(&rest).ok()?;
        match result.node_names.take()?.as_slice() {
            [name] if name.is_empty() => Some((left, result)),
            _ => None,
        }
    }

    /// Which of these names a JSON array at the beginning of a text has, and the length of the array.
    fn match_names(&self, text: &[u8]) -> Option<(RemainingNodes, usize)> {
        let list = self.list();
        if text.starts_with(&list.text) {
            return Some((RemainingNodes::All, list.text.len()));
        }
        let mut rest = text.strip_prefix(b"[")?;
        let mut places = Vec::new();
        for at in 0..self.names.len() {
            let Some(behind) = rest.strip_prefix(&list.piece(at)[1..]) else { continue };
            places.push(at);
            match behind.split_first()? {
                (b',', behind) => rest = behind,
                (b']', behind) => {
                    return Some((RemainingNodes::Indices(places), text.len() - behind.len()));
                }
                _ => return None,
            }
        }
        None
    }

    /// Decodes a response to prioritize that has a score for each of these names, in this order, as Go encodes it. `None` for any
    /// other response.
    pub fn decode_prioritize_response(&self, body: &[u8]) -> Option<Vec<i64>> {
        let hosts = self.hosts();
        let (mut rest, mut pieces) = (body, &hosts.text[..]);
        let mut scores = Vec::with_capacity(self.names.len());
        let mut begin = 0;
        for end in &hosts.ends {
            let (piece, next) = pieces.split_at(end - begin);
            let (found, behind) = rest.split_at_checked(piece.len())?;
            if !bytes_equal(found, piece) {
                return None;
            }
            let (score, behind) = parse_integer(behind)?;
            scores.push(score);
            (rest, pieces, begin) = (behind, next, *end);
        }
        rest.starts_with(b"}]").then_some(scores)
    }
}

/// Whether two texts of equal length are equal. Compares eight bytes at a time, inlined: there are so many short texts that calling
/// `memcmp` for each would take longer than comparing it.
#[inline]
fn bytes_equal(a: &[u8], b: &[u8]) -> bool {
    match (a.last_chunk::<8>(), b.last_chunk::<8>()) {
        (Some(end_of_a), Some(end_of_b)) => {
            let (a, b) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
            end_of_a == end_of_b && a.iter().zip(b).all(|(a, b)| a == b)
        }
        _ => a == b,
    }
}

/// Parses an integer at the beginning of a text; returns it and the rest. `None` for one that is invalid in JSON, or very long.
#[inline]
fn parse_integer(text: &[u8]) -> Option<(i64, &[u8])> {
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

/// The offset of a field's value in a JSON object at the beginning of a text.
fn field_value_offset(text: &[u8], field: &str) -> Option<usize> {
    let mut at = skip_delimiter(text, 0, b'{')?;
    loop {
        let (key, end) = value::<Key>(text, at)?;
        at = skip_delimiter(text, end, b':')?;
        if matches_field_name(&key.0, field) {
            return Some(at);
        }
        (_, at) = value::<IgnoredAny>(text, at)?;
        at = skip_delimiter(text, at, b',')?;
    }
}

#[derive(Deserialize)]
struct Key(Cow<'static, str>);

/// Decodes the JSON value at an offset; returns it and the offset of its end.
fn value<T: DeserializeOwned>(text: &[u8], at: usize) -> Option<(T, usize)> {
    let mut values = serde_json::Deserializer::from_slice(&text[at..]).into_iter::<T>();
    let value = values.next()?.ok()?;
    Some((value, at + values.byte_offset()))
}

/// The offset after this character and the white space on both sides of it; `None` if another character is there.
fn skip_delimiter(text: &[u8], at: usize, wanted: u8) -> Option<usize> {
    let at = skip_whitespace(text, at);
    (text.get(at) == Some(&wanted)).then(|| skip_whitespace(text, at + 1))
}

fn skip_whitespace(text: &[u8], at: usize) -> usize {
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
    fn names_are_encoded_as_in_go() {
        assert_eq!(names().to_json(), r#"["a","b-1","c"]"#);
        assert_eq!(NodeNames::from_iter([]).to_json(), "[]");
    }

    /// `want` are the remaining nodes; none if the response must be decoded name by name.
    #[track_caller]
    fn check_filter_response(body: &str, want: Option<RemainingNodes>) {
        assert_eq!(
            names().decode_filter_response(body.as_bytes()).map(|(left, _)| left),
            want,
            "{body}"
        );
    }

    #[test]
    fn names_in_order_are_matched() {
        let at = |places: &[usize]| Some(RemainingNodes::Indices(places.to_vec()));
        check_filter_response(
            r#"{"Nodes":null,"NodeNames":["a","b-1","c"],"Error":""}"#,
            Some(RemainingNodes::All),
        );
        check_filter_response(
            r#" { "nodenames" : ["a","b-1","c"] } trailing"#,
            Some(RemainingNodes::All),
        );
        check_filter_response(r#"{"Nodes":{"items":[{"a":"}"}]},"NodeNames":["b-1"]}"#, at(&[1]));
        check_filter_response(
            r#"{"NodeNames":["a","c"],"FailedNodes":{"b-1":"full"}}"#,
            at(&[0, 2]),
        );
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
            check_filter_response(other, None);
        }
    }

    #[test]
    fn the_other_fields_of_a_response_are_decoded() {
        let body = br#"{"NodeNames":["a"],"FailedNodes":{"c":"full"},"Error":"e"}"#;
        let (_, result) = names().decode_filter_response(body).unwrap();
        assert_eq!((result.node_names, result.error.as_str()), (None, "e"));
        assert_eq!(result.failed_nodes["c"], "full");
    }

    #[test]
    fn scores_in_order_are_decoded() {
        let check = |body: &str, want: Option<&[i64]>| {
            assert_eq!(
                names().decode_prioritize_response(body.as_bytes()).as_deref(),
                want,
                "{body}"
            );
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
        // Only the scores may differ.
        let whole = body(["1", "2", "3"]).into_bytes();
        let is_found = |at: &usize| {
            let mut other = whole.clone();
            other[*at] ^= 1;
            names().decode_prioritize_response(&other).is_some()
        };
        assert_eq!((0..whole.len()).filter(is_found).count(), 3);
        check(r#"[{"Host":"a","Score":1}]"#, None);
        check(r#"[{"Host":"b-1","Score":1},{"Host":"a","Score":1},{"Host":"c","Score":1}]"#, None);
        check("[]", None);
        check("", None);
    }
}
