//! The messages of which each pod has many, and which consist of texts that repeat: label pairs, tolerations, owners, amounts.
//!
//! prost decodes a text into a string of its own, which is looked up and dropped. Here the bytes are looked up, and nothing is allocated.

use bytes::{Buf, BufMut};
use prost::encoding::{
    DecodeContext, WireType, bool, decode_varint, int64, message, skip_field, string,
};
use prost::{DecodeError, Message};

use super::messages::{Quantity, Time};
use crate::interned_str::Str;

/// A message with texts, by field number, and perhaps an optional field of another type.
macro_rules! text_message {
    (
        $(#[$about:meta])*
        $name:ident { $($text:ident = $tag:literal,)+ $(; $other:ident: $type:ty = $encoding:ident $other_tag:literal)? }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub(super) struct $name {
            $(pub(super) $text: Str,)+
            $(pub(super) $other: Option<$type>,)?
        }

        impl Message for $name {
            fn merge_field(
                &mut self,
                tag: u32,
                wire_type: WireType,
                buffer: &mut impl Buf,
                context: DecodeContext,
            ) -> Result<(), DecodeError> {
                let (merged, field) = match tag {
                    $($tag => {
                        let merged = merge_text(&mut self.$text, wire_type, buffer, context);
                        (merged, stringify!($text))
                    })+
                    $($other_tag => {
                        let other = self.$other.get_or_insert_default();
                        let merged = $encoding::merge(wire_type, other, buffer, context);
                        (merged, stringify!($other))
                    })?
                    _ => return skip_field(wire_type, tag, buffer, context),
                };
                merged.map_err(|mut error| {
                    error.push(stringify!($name), field);
                    error
                })
            }

            fn encode_raw(&self, buffer: &mut impl BufMut) {
                $(string::encode($tag, &self.$text.to_string(), buffer);)+
                $(if let Some(other) = &self.$other {
                    $encoding::encode($other_tag, other, buffer);
                })?
            }

            fn encoded_len(&self) -> usize {
                let len: usize = [$(string::encoded_len($tag, &self.$text.to_string())),+].iter().sum();
                $(let len = len
                    + self.$other.as_ref().map_or(0, |it| $encoding::encoded_len($other_tag, it));)?
                len
            }

            fn clear(&mut self) {
                *self = Self::default();
            }
        }
    };
}

text_message! {
    /// An entry of `map<string, string>`.
    Pair { key = 1, value = 2, }
}

text_message! {
    /// An entry of a map from resource names to quantities.
    Amount { key = 1, ; value: Quantity = message 2 }
}

text_message! {
    /// An entry of a map from names to times.
    NamedTime { key = 1, ; value: Time = message 2 }
}

text_message! {
    OwnerReference {
        kind = 1, name = 3, uid = 4, api_version = 5, ; controller: bool = bool 6
    }
}

text_message! {
    Toleration {
        key = 1, operator = 2, value = 3, effect = 4, ; toleration_seconds: i64 = int64 5
    }
}

/// Decodes a text. prost handles what is not the usual case, with its errors.
fn merge_text(
    text: &mut Str,
    wire_type: WireType,
    buffer: &mut impl Buf,
    context: DecodeContext,
) -> Result<(), DecodeError> {
    if wire_type == WireType::LengthDelimited
        && let Some((found, n_bytes)) = leading_text(buffer.chunk())
    {
        *text = Str::new(found);
        buffer.advance(n_bytes);
        return Ok(());
    }
    let mut found = String::new();
    string::merge(wire_type, &mut found, buffer, context)?;
    *text = Str::new(&found);
    Ok(())
}

/// The text at the beginning, which its length precedes, and the number of bytes of both.
fn leading_text(bytes: &[u8]) -> Option<(&str, usize)> {
    let mut rest = bytes;
    let len = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
    let text = std::str::from_utf8(rest.get(..len)?).ok()?;
    Some((text, bytes.len() - rest.len() + len))
}

#[cfg(test)]
mod tests {
    use super::super::tests::decode_changed;
    use super::*;

    /// The same message, as prost decodes it.
    #[derive(Clone, PartialEq, Message)]
    struct TolerationOfProst {
        #[prost(string, tag = "1")]
        key: String,
        #[prost(string, tag = "2")]
        operator: String,
        #[prost(string, tag = "3")]
        value: String,
        #[prost(string, tag = "4")]
        effect: String,
        #[prost(int64, optional, tag = "5")]
        toleration_seconds: Option<i64>,
    }

    /// Whether both decode to the same, or fail with the same error.
    #[track_caller]
    fn check(bytes: &[u8]) -> bool {
        let found = Toleration::decode(bytes).map(|it| {
            let texts = [it.key, it.operator, it.value, it.effect].map(|text| text.to_string());
            (texts, it.toleration_seconds)
        });
        let wanted = TolerationOfProst::decode(bytes)
            .map(|it| ([it.key, it.operator, it.value, it.effect], it.toleration_seconds));
        // An error says in which message it is.
        let text = |error: DecodeError| error.to_string().replace("OfProst", "");
        let (found, wanted) = (found.map_err(text), wanted.map_err(text));
        assert_eq!(found, wanted, "{bytes:?}");
        found.is_ok()
    }

    #[test]
    fn decoded_as_prost_does() {
        let message = TolerationOfProst {
            key: "node.kubernetes.io/not-ready".to_owned(),
            operator: "Exists".to_owned(),
            value: "\u{e4}".to_owned(),
            effect: String::new(),
            toleration_seconds: Some(300),
        };
        let bytes = message.encode_to_vec();
        assert!(check(&bytes));
        let n_decoded = decode_changed(&bytes, 20_000, check);
        assert!((2_000..18_000).contains(&n_decoded), "{n_decoded}");
    }

    #[test]
    fn encoded_as_prost_does() {
        let texts = ["a", "", "\u{e4}", "b"];
        for seconds in [None, Some(-1), Some(0)] {
            let [key, operator, value, effect] = texts.map(Str::from);
            let found = Toleration { key, operator, value, effect, toleration_seconds: seconds };
            let bytes = found.encode_to_vec();
            let decoded = TolerationOfProst::decode(&*bytes).unwrap();
            assert_eq!(bytes.len(), found.encoded_len());
            assert_eq!(decoded.value, "\u{e4}");
            assert_eq!(decoded.toleration_seconds, seconds);
        }
    }
}
