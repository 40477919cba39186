//! What real decoders are compiled for: one visitor, and one seed.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor};

use super::{
    Content, Decode, EntryAccess, ErasedError, Found, ItemAccess, Seed, Shape, VariantChoice,
    Visit, used_twice,
};

/// A real decoder, then its error.
pub(super) struct DecoderSlot<'de, D: Deserializer<'de>> {
    decoder: Option<D>,
    error: Option<D::Error>,
    is_human_readable: bool,
}

impl<'de, D: Deserializer<'de>> DecoderSlot<'de, D> {
    pub(super) fn new(decoder: D) -> Self {
        let is_human_readable = decoder.is_human_readable();
        DecoderSlot { decoder: Some(decoder), error: None, is_human_readable }
    }

    /// The error of the decoder that belongs to this one.
    pub(super) fn real_error(self, error: ErasedError) -> D::Error {
        error.into_real(self.error)
    }
}

impl<'de, D: Deserializer<'de>> Decode<'de> for DecoderSlot<'de, D> {
    fn decode(&mut self, shape: Shape, visitor: &mut dyn Visit<'de>) -> Result<(), ErasedError> {
        let decoder = self.decoder.take().ok_or_else(used_twice)?;
        keep(call(decoder, shape, RealVisitor(visitor)), &mut self.error)
    }

    fn is_human_readable(&self) -> bool {
        self.is_human_readable
    }
}

fn call<'de, D: Deserializer<'de>>(
    decoder: D,
    shape: Shape,
    visitor: RealVisitor<'_, 'de>,
) -> Result<(), D::Error> {
    match shape {
        Shape::Any => decoder.deserialize_any(visitor),
        Shape::Bool => decoder.deserialize_bool(visitor),
        Shape::I8 => decoder.deserialize_i8(visitor),
        Shape::I16 => decoder.deserialize_i16(visitor),
        Shape::I32 => decoder.deserialize_i32(visitor),
        Shape::I64 => decoder.deserialize_i64(visitor),
        Shape::I128 => decoder.deserialize_i128(visitor),
        Shape::U8 => decoder.deserialize_u8(visitor),
        Shape::U16 => decoder.deserialize_u16(visitor),
        Shape::U32 => decoder.deserialize_u32(visitor),
        Shape::U64 => decoder.deserialize_u64(visitor),
        Shape::U128 => decoder.deserialize_u128(visitor),
        Shape::F32 => decoder.deserialize_f32(visitor),
        Shape::F64 => decoder.deserialize_f64(visitor),
        Shape::Char => decoder.deserialize_char(visitor),
        Shape::Str => decoder.deserialize_str(visitor),
        Shape::String => decoder.deserialize_string(visitor),
        Shape::Bytes => decoder.deserialize_bytes(visitor),
        Shape::ByteBuf => decoder.deserialize_byte_buf(visitor),
        Shape::Option => decoder.deserialize_option(visitor),
        Shape::Unit => decoder.deserialize_unit(visitor),
        Shape::UnitStruct(name) => decoder.deserialize_unit_struct(name, visitor),
        Shape::NewtypeStruct(name) => decoder.deserialize_newtype_struct(name, visitor),
        Shape::Seq => decoder.deserialize_seq(visitor),
        Shape::Tuple(len) => decoder.deserialize_tuple(len, visitor),
        Shape::TupleStruct(name, len) => decoder.deserialize_tuple_struct(name, len, visitor),
        Shape::Map => decoder.deserialize_map(visitor),
        Shape::Struct(name, fields) => decoder.deserialize_struct(name, fields, visitor),
        Shape::Enum(name, variants) => decoder.deserialize_enum(name, variants, visitor),
        Shape::Identifier => decoder.deserialize_identifier(visitor),
        Shape::IgnoredAny => decoder.deserialize_ignored_any(visitor),
    }
}

/// The one visitor that real decoders are compiled for.
struct RealVisitor<'a, 'de>(&'a mut dyn Visit<'de>);

impl<'de> RealVisitor<'_, 'de> {
    fn pass<E: Error>(self, found: Found<'_, 'de>) -> Result<(), E> {
        self.0.visit(found).map_err(|error| error.into_real(None))
    }
}

impl<'de> Visitor<'de> for RealVisitor<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.pass(Found::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.pass(Found::I64(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.pass(Found::U64(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.pass(Found::F64(value))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.pass(Found::Str(text))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<(), E> {
        self.pass(Found::String(text))
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<(), E> {
        self.pass(Found::Bytes(bytes))
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        self.pass(Found::None)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.pass(Found::Unit)
    }

    fn visit_some<D: Deserializer<'de>>(self, decoder: D) -> Result<(), D::Error> {
        let mut slot = DecoderSlot::new(decoder);
        self.0.visit(Found::Some(&mut slot)).map_err(|error| slot.real_error(error))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, decoder: D) -> Result<(), D::Error> {
        let mut slot = DecoderSlot::new(decoder);
        self.0.visit(Found::Newtype(&mut slot)).map_err(|error| slot.real_error(error))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<(), A::Error> {
        let mut slot = ItemSlot { items, error: None };
        self.0.visit(Found::Seq(&mut slot)).map_err(|error| error.into_real(slot.error))
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<(), A::Error> {
        let mut slot = EntrySlot { entries, error: None };
        self.0.visit(Found::Map(&mut slot)).map_err(|error| error.into_real(slot.error))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, choice: A) -> Result<(), A::Error> {
        let mut slot = EnumSlot { choice: Some(choice), variant: None, error: None };
        self.0.visit(Found::Enum(&mut slot)).map_err(|error| error.into_real(slot.error))
    }
}

/// The one seed that real decoders are compiled for.
pub struct ErasedSeed<'a, 'de>(pub(super) &'a mut dyn Seed<'de>);

impl<'de> DeserializeSeed<'de> for ErasedSeed<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, decoder: D) -> Result<(), D::Error> {
        let mut slot = DecoderSlot::new(decoder);
        self.0.decode(&mut slot).map_err(|error| slot.real_error(error))
    }
}

/// Keeps the error in the slot of its decoder.
fn keep<T, E: Error>(result: Result<T, E>, slot: &mut Option<E>) -> Result<T, ErasedError> {
    result.map_err(|error| {
        let mark = ErasedError::of_decoder(&error);
        *slot = Some(error);
        mark
    })
}

struct ItemSlot<A, E> {
    items: A,
    error: Option<E>,
}

impl<'de, A: SeqAccess<'de>> ItemAccess<'de> for ItemSlot<A, A::Error> {
    fn next(&mut self, seed: &mut dyn Seed<'de>) -> Result<bool, ErasedError> {
        let item = self.items.next_element_seed(ErasedSeed(seed));
        keep(item, &mut self.error).map(|item| item.is_some())
    }

    fn size_hint(&self) -> Option<usize> {
        self.items.size_hint()
    }
}

struct EntrySlot<A, E> {
    entries: A,
    error: Option<E>,
}

impl<'de, A: MapAccess<'de>> EntryAccess<'de> for EntrySlot<A, A::Error> {
    fn next_key(&mut self, seed: &mut dyn Seed<'de>) -> Result<bool, ErasedError> {
        let key = self.entries.next_key_seed(ErasedSeed(seed));
        keep(key, &mut self.error).map(|key| key.is_some())
    }

    fn next_value(&mut self, seed: &mut dyn Seed<'de>) -> Result<(), ErasedError> {
        keep(self.entries.next_value_seed(ErasedSeed(seed)), &mut self.error)
    }

    fn size_hint(&self) -> Option<usize> {
        self.entries.size_hint()
    }
}

struct EnumSlot<'de, A: EnumAccess<'de>> {
    choice: Option<A>,
    variant: Option<A::Variant>,
    error: Option<A::Error>,
}

impl<'de, A: EnumAccess<'de>> VariantChoice<'de> for EnumSlot<'de, A> {
    fn name(&mut self, seed: &mut dyn Seed<'de>) -> Result<(), ErasedError> {
        let choice = self.choice.take().ok_or_else(used_twice)?;
        let ((), variant) = keep(choice.variant_seed(ErasedSeed(seed)), &mut self.error)?;
        self.variant = Some(variant);
        Ok(())
    }

    fn content(&mut self, content: Content<'_, 'de>) -> Result<(), ErasedError> {
        let variant = self.variant.take().ok_or_else(used_twice)?;
        let result = match content {
            Content::Unit => variant.unit_variant(),
            Content::Newtype(seed) => variant.newtype_variant_seed(ErasedSeed(seed)),
            Content::Tuple(len, visitor) => variant.tuple_variant(len, RealVisitor(visitor)),
            Content::Struct(fields, visitor) => {
                variant.struct_variant(fields, RealVisitor(visitor))
            }
        };
        keep(result, &mut self.error)
    }
}
