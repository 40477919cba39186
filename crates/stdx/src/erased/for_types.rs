//! What types are compiled for: a decoder, and what it finds.

use std::fmt;

use serde::Deserializer;
use serde::de::{
    DeserializeSeed, EnumAccess, Error as _, Expected, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};

use super::{
    Content, Decode, EntryAccess, ErasedError, Found, ItemAccess, Seed, Shape, VariantChoice,
    Visit, nothing_decoded, used_twice,
};

/// The decoder that types are compiled for.
pub struct ErasedDecoder<'a, 'de>(pub(super) &'a mut dyn Decode<'de>);

/// What a visitor is compiled for, as bits: which variants of [`Found`]. The rest is an error, as it is by default in serde.
type Kinds = u8;

/// What serde derives for a structure from a list of its fields, or for a field from its number, is as much code as the rest of the type,
/// and no text for Loadmaster has either.
mod kinds {
    use super::Kinds;

    pub const TEXT: Kinds = 1;
    pub const SEQ: Kinds = 1 << 1;
    pub const MAP: Kinds = 1 << 2;
    pub const ENUM: Kinds = 1 << 3;
    pub const NEWTYPE: Kinds = 1 << 4;
    /// `null`, and whether there is a value.
    pub const OPTION: Kinds = 1 << 5;
    /// Numbers, `true` and `false`, bytes.
    pub const SCALAR: Kinds = 1 << 6;
    pub const ALL: Kinds = Kinds::MAX;
}

impl<'de> ErasedDecoder<'_, 'de> {
    fn decode<const KINDS: Kinds, V: Visitor<'de>>(
        self,
        shape: Shape,
        visitor: V,
    ) -> Result<V::Value, ErasedError> {
        visit::<KINDS, V>(visitor, |slot| self.0.decode(shape, slot))
    }
}

/// Lends the visitor to `decode` and returns its value.
fn visit<'de, const KINDS: Kinds, V: Visitor<'de>>(
    visitor: V,
    decode: impl FnOnce(&mut dyn Visit<'de>) -> Result<(), ErasedError>,
) -> Result<V::Value, ErasedError> {
    let mut slot = VisitorSlot::<KINDS, V> { visitor: Some(visitor), value: None };
    decode(&mut slot)?;
    slot.value.ok_or_else(nothing_decoded)
}

macro_rules! methods {
    ($($method:ident $shape:ident $kinds:expr;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ErasedError> {
            self.decode::<{ $kinds }, V>(Shape::$shape, visitor)
        })*
    };
}

impl<'de> Deserializer<'de> for ErasedDecoder<'_, 'de> {
    type Error = ErasedError;

    methods! {
        deserialize_any Any kinds::ALL;
        deserialize_bool Bool kinds::ALL;
        deserialize_i8 I8 kinds::ALL;
        deserialize_i16 I16 kinds::ALL;
        deserialize_i32 I32 kinds::ALL;
        deserialize_i64 I64 kinds::ALL;
        deserialize_i128 I128 kinds::ALL;
        deserialize_u8 U8 kinds::ALL;
        deserialize_u16 U16 kinds::ALL;
        deserialize_u32 U32 kinds::ALL;
        deserialize_u64 U64 kinds::ALL;
        deserialize_u128 U128 kinds::ALL;
        deserialize_f32 F32 kinds::ALL;
        deserialize_f64 F64 kinds::ALL;
        deserialize_char Char kinds::ALL;
        deserialize_str Str kinds::TEXT;
        deserialize_string String kinds::TEXT;
        deserialize_bytes Bytes kinds::ALL;
        deserialize_byte_buf ByteBuf kinds::ALL;
        deserialize_option Option kinds::OPTION;
        deserialize_unit Unit kinds::ALL;
        deserialize_seq Seq kinds::SEQ | kinds::OPTION;
        deserialize_map Map kinds::MAP | kinds::OPTION;
        deserialize_identifier Identifier kinds::TEXT;
        deserialize_ignored_any IgnoredAny kinds::ALL;
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ErasedError> {
        self.decode::<{ kinds::ALL }, V>(Shape::UnitStruct(name), visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ErasedError> {
        self.decode::<{ kinds::ALL & !kinds::SEQ }, V>(Shape::NewtypeStruct(name), visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ErasedError> {
        self.decode::<{ kinds::SEQ }, V>(Shape::Tuple(len), visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ErasedError> {
        self.decode::<{ kinds::SEQ }, V>(Shape::TupleStruct(name, len), visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ErasedError> {
        self.decode::<{ kinds::MAP | kinds::OPTION }, V>(Shape::Struct(name, fields), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ErasedError> {
        self.decode::<{ kinds::ENUM }, V>(Shape::Enum(name, variants), visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

/// A visitor, then its value.
struct VisitorSlot<'de, const KINDS: Kinds, V: Visitor<'de>> {
    visitor: Option<V>,
    value: Option<V::Value>,
}

impl<'de, const KINDS: Kinds, V: Visitor<'de>> Visit<'de> for VisitorSlot<'de, KINDS, V> {
    fn visit(&mut self, found: Found<'_, 'de>) -> Result<(), ErasedError> {
        let visitor = self.visitor.take().ok_or_else(used_twice)?;
        let value = match found {
            Found::Str(text) if KINDS & kinds::TEXT != 0 => visitor.visit_str(text),
            Found::String(text) if KINDS & kinds::TEXT != 0 => visitor.visit_string(text),
            Found::Seq(items) if KINDS & kinds::SEQ != 0 => visitor.visit_seq(ErasedItems(items)),
            Found::Map(entries) if KINDS & kinds::MAP != 0 => {
                visitor.visit_map(ErasedEntries(entries))
            }
            Found::Enum(choice) if KINDS & kinds::ENUM != 0 => {
                visitor.visit_enum(ErasedEnum(choice))
            }
            Found::Newtype(decoder) if KINDS & kinds::NEWTYPE != 0 => {
                visitor.visit_newtype_struct(ErasedDecoder(decoder))
            }
            Found::None if KINDS & kinds::OPTION != 0 => visitor.visit_none(),
            Found::Some(decoder) if KINDS & kinds::OPTION != 0 => {
                visitor.visit_some(ErasedDecoder(decoder))
            }
            Found::Unit if KINDS & kinds::OPTION != 0 => visitor.visit_unit(),
            Found::Bool(value) if KINDS & kinds::SCALAR != 0 => visitor.visit_bool(value),
            Found::I64(value) if KINDS & kinds::SCALAR != 0 => visitor.visit_i64(value),
            Found::U64(value) if KINDS & kinds::SCALAR != 0 => visitor.visit_u64(value),
            Found::F64(value) if KINDS & kinds::SCALAR != 0 => visitor.visit_f64(value),
            Found::Bytes(bytes) if KINDS & kinds::SCALAR != 0 => visitor.visit_bytes(bytes),
            other => Err(mismatch(&other, &visitor)),
        };
        self.value = Some(value?);
        Ok(())
    }

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.visitor {
            Some(visitor) => visitor.expecting(f),
            None => f.write_str("one value"),
        }
    }
}

/// The error for what is none of a visitor's kinds.
#[cold]
fn mismatch(found: &Found<'_, '_>, expected: &dyn Expected) -> ErasedError {
    let unexpected = match found {
        Found::Bool(value) => Unexpected::Bool(*value),
        Found::I64(value) => Unexpected::Signed(*value),
        Found::U64(value) => Unexpected::Unsigned(*value),
        Found::F64(value) => Unexpected::Float(*value),
        Found::Str(text) => Unexpected::Str(text),
        Found::String(text) => Unexpected::Str(text),
        Found::Bytes(bytes) => Unexpected::Bytes(bytes),
        Found::None | Found::Some(_) => Unexpected::Option,
        Found::Unit => Unexpected::Unit,
        Found::Newtype(_) => Unexpected::NewtypeStruct,
        Found::Seq(_) => Unexpected::Seq,
        Found::Map(_) => Unexpected::Map,
        Found::Enum(_) => Unexpected::Enum,
    };
    ErasedError::invalid_type(unexpected, expected)
}

/// A seed, then its value.
pub(super) struct SeedSlot<'de, S: DeserializeSeed<'de>> {
    seed: Option<S>,
    pub(super) value: Option<S::Value>,
}

impl<'de, S: DeserializeSeed<'de>> SeedSlot<'de, S> {
    pub(super) fn new(seed: S) -> Self {
        SeedSlot { seed: Some(seed), value: None }
    }

    /// The value that was decoded.
    fn value(self) -> Result<S::Value, ErasedError> {
        self.value.ok_or_else(nothing_decoded)
    }
}

impl<'de, S: DeserializeSeed<'de>> Seed<'de> for SeedSlot<'de, S> {
    fn decode(&mut self, decoder: &mut dyn Decode<'de>) -> Result<(), ErasedError> {
        let seed = self.seed.take().ok_or_else(used_twice)?;
        self.value = Some(seed.deserialize(ErasedDecoder(decoder))?);
        Ok(())
    }
}

struct ErasedItems<'a, 'de>(&'a mut dyn ItemAccess<'de>);

impl<'de> SeqAccess<'de> for ErasedItems<'_, 'de> {
    type Error = ErasedError;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, ErasedError> {
        let mut slot = SeedSlot::new(seed);
        if self.0.next(&mut slot)? { slot.value().map(Some) } else { Ok(None) }
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

struct ErasedEntries<'a, 'de>(&'a mut dyn EntryAccess<'de>);

impl<'de> MapAccess<'de> for ErasedEntries<'_, 'de> {
    type Error = ErasedError;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, ErasedError> {
        let mut slot = SeedSlot::new(seed);
        if self.0.next_key(&mut slot)? { slot.value().map(Some) } else { Ok(None) }
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<S::Value, ErasedError> {
        let mut slot = SeedSlot::new(seed);
        self.0.next_value(&mut slot)?;
        slot.value()
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

struct ErasedEnum<'a, 'de>(&'a mut dyn VariantChoice<'de>);

impl<'de> EnumAccess<'de> for ErasedEnum<'_, 'de> {
    type Error = ErasedError;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self), ErasedError> {
        let mut slot = SeedSlot::new(seed);
        self.0.name(&mut slot)?;
        Ok((slot.value()?, self))
    }
}

impl<'de> VariantAccess<'de> for ErasedEnum<'_, 'de> {
    type Error = ErasedError;

    fn unit_variant(self) -> Result<(), ErasedError> {
        self.0.content(Content::Unit)
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<S::Value, ErasedError> {
        let mut slot = SeedSlot::new(seed);
        self.0.content(Content::Newtype(&mut slot))?;
        slot.value()
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ErasedError> {
        visit::<{ kinds::SEQ }, V>(visitor, |slot| self.0.content(Content::Tuple(len, slot)))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ErasedError> {
        visit::<{ kinds::MAP }, V>(visitor, |slot| self.0.content(Content::Struct(fields, slot)))
    }
}
