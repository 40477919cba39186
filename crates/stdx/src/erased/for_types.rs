//! What types are compiled for: a decoder, and what it finds.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor};

use super::{
    Content, Decode, EntryAccess, ErasedError, Found, ItemAccess, Seed, Shape, VariantChoice,
    Visit, nothing_decoded, used_twice,
};

/// The decoder that types are compiled for.
pub struct ErasedDecoder<'a, 'de>(pub(super) &'a mut dyn Decode<'de>);

impl<'de> ErasedDecoder<'_, 'de> {
    fn decode<V: Visitor<'de>>(self, shape: Shape, visitor: V) -> Result<V::Value, ErasedError> {
        visit(visitor, |slot| self.0.decode(shape, slot))
    }
}

/// Lends the visitor to `decode` and returns its value.
fn visit<'de, V: Visitor<'de>>(
    visitor: V,
    decode: impl FnOnce(&mut dyn Visit<'de>) -> Result<(), ErasedError>,
) -> Result<V::Value, ErasedError> {
    let mut slot = VisitorSlot { visitor: Some(visitor), value: None };
    decode(&mut slot)?;
    slot.value.ok_or_else(nothing_decoded)
}

macro_rules! methods {
    ($($method:ident $shape:ident;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ErasedError> {
            self.decode(Shape::$shape, visitor)
        })*
    };
}

impl<'de> Deserializer<'de> for ErasedDecoder<'_, 'de> {
    type Error = ErasedError;

    methods! {
        deserialize_any Any;
        deserialize_bool Bool;
        deserialize_i8 I8;
        deserialize_i16 I16;
        deserialize_i32 I32;
        deserialize_i64 I64;
        deserialize_i128 I128;
        deserialize_u8 U8;
        deserialize_u16 U16;
        deserialize_u32 U32;
        deserialize_u64 U64;
        deserialize_u128 U128;
        deserialize_f32 F32;
        deserialize_f64 F64;
        deserialize_char Char;
        deserialize_str Str;
        deserialize_string String;
        deserialize_bytes Bytes;
        deserialize_byte_buf ByteBuf;
        deserialize_option Option;
        deserialize_unit Unit;
        deserialize_seq Seq;
        deserialize_map Map;
        deserialize_identifier Identifier;
        deserialize_ignored_any IgnoredAny;
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ErasedError> {
        self.decode(Shape::UnitStruct(name), visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ErasedError> {
        self.decode(Shape::NewtypeStruct(name), visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ErasedError> {
        self.decode(Shape::Tuple(len), visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ErasedError> {
        self.decode(Shape::TupleStruct(name, len), visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ErasedError> {
        self.decode(Shape::Struct(name, fields), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ErasedError> {
        self.decode(Shape::Enum(name, variants), visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

/// A visitor, then its value.
struct VisitorSlot<'de, V: Visitor<'de>> {
    visitor: Option<V>,
    value: Option<V::Value>,
}

impl<'de, V: Visitor<'de>> Visit<'de> for VisitorSlot<'de, V> {
    fn visit(&mut self, found: Found<'_, 'de>) -> Result<(), ErasedError> {
        let visitor = self.visitor.take().ok_or_else(used_twice)?;
        let value = match found {
            Found::Bool(value) => visitor.visit_bool(value),
            Found::I64(value) => visitor.visit_i64(value),
            Found::U64(value) => visitor.visit_u64(value),
            Found::F64(value) => visitor.visit_f64(value),
            Found::Str(text) => visitor.visit_str(text),
            Found::String(text) => visitor.visit_string(text),
            Found::Bytes(bytes) => visitor.visit_bytes(bytes),
            Found::None => visitor.visit_none(),
            Found::Some(decoder) => visitor.visit_some(ErasedDecoder(decoder)),
            Found::Unit => visitor.visit_unit(),
            Found::Newtype(decoder) => visitor.visit_newtype_struct(ErasedDecoder(decoder)),
            Found::Seq(items) => visitor.visit_seq(ErasedItems(items)),
            Found::Map(entries) => visitor.visit_map(ErasedEntries(entries)),
            Found::Enum(choice) => visitor.visit_enum(ErasedEnum(choice)),
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
        visit(visitor, |slot| self.0.content(Content::Tuple(len, slot)))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ErasedError> {
        visit(visitor, |slot| self.0.content(Content::Struct(fields, slot)))
    }
}
