//! Decoding through trait objects, for code size and build time.
//!
//! serde compiles a type once for each decoder that it is read with, and decoders are large: YAML with a path for errors is some 10 kB for each
//! struct. Through [`decode_erased`] a type is compiled for one decoder, [`ErasedDecoder`], and each real decoder for one visitor. With
//! [`decode_with`] a real decoder is not even compiled in each crate that has types.
//! What is decoded, and all errors, are the same, but that a structure is never read from a list; each value costs a virtual call or two.
//! Nothing can be borrowed from the text, and integers have at most 64 bits.

mod error;
mod for_decoders;
mod for_types;

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Error as _};
use serde::{Deserialize, Deserializer};

pub use error::ErasedError;
pub use for_decoders::ErasedSeed;
pub use for_types::ErasedDecoder;

use for_decoders::DecoderSlot;
use for_types::SeedSlot;

/// Decodes `seed` with `decoder` behind a trait object.
///
/// # Errors
///
/// Those of `decoder`.
pub fn decode_erased<'de, S: DeserializeSeed<'de>, D: Deserializer<'de>>(
    seed: S,
    decoder: D,
) -> Result<S::Value, D::Error> {
    let mut slot = DecoderSlot::new(decoder);
    seed.deserialize(ErasedDecoder(&mut slot)).map_err(|error| slot.real_error(error))
}

/// A value that is decoded with [`decode_erased`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Erased<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Erased<T> {
    fn deserialize<D: Deserializer<'de>>(decoder: D) -> Result<Erased<T>, D::Error> {
        decode_erased(PhantomData, decoder).map(Erased)
    }
}

/// Decodes `seed` with a function that does not know its type. The decoder is compiled where that function is, once if it is not generic.
/// `None` if the function did not decode the seed.
///
/// # Errors
///
/// Those of `decode`.
pub fn decode_with<'de, S: DeserializeSeed<'de>, E>(
    seed: S,
    decode: impl FnOnce(ErasedSeed<'_, 'de>) -> Result<(), E>,
) -> Result<Option<S::Value>, E> {
    let mut slot = SeedSlot::new(seed);
    decode(ErasedSeed(&mut slot))?;
    Ok(slot.value)
}

/// What a type asks a decoder for: the methods of [`Deserializer`].
#[derive(Clone, Copy)]
enum Shape {
    Any,
    Bool,
    I8,
    I16,
    I32,
    I64,
    I128,
    U8,
    U16,
    U32,
    U64,
    U128,
    F32,
    F64,
    Char,
    Str,
    String,
    Bytes,
    ByteBuf,
    Option,
    Unit,
    UnitStruct(&'static str),
    NewtypeStruct(&'static str),
    Seq,
    Tuple(usize),
    TupleStruct(&'static str, usize),
    Map,
    Struct(&'static str, &'static [&'static str]),
    Enum(&'static str, &'static [&'static str]),
    Identifier,
    IgnoredAny,
}

/// What a decoder found: the methods of [`serde::de::Visitor`], without those that are special cases of others. Each costs code in every type.
enum Found<'a, 'de> {
    Bool(bool),
    I64(i64),
    U64(u64),
    F64(f64),
    Str(&'a str),
    String(String),
    Bytes(&'a [u8]),
    None,
    Some(&'a mut dyn Decode<'de>),
    Unit,
    Newtype(&'a mut dyn Decode<'de>),
    Seq(&'a mut dyn ItemAccess<'de>),
    Map(&'a mut dyn EntryAccess<'de>),
    Enum(&'a mut dyn VariantChoice<'de>),
}

/// A decoder. Can be used once.
trait Decode<'de> {
    fn decode(&mut self, shape: Shape, visitor: &mut dyn Visit<'de>) -> Result<(), ErasedError>;

    fn is_human_readable(&self) -> bool;
}

/// A visitor that keeps its value. Can be used once.
trait Visit<'de> {
    fn visit(&mut self, found: Found<'_, 'de>) -> Result<(), ErasedError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// A seed that keeps its value. Can be used once.
trait Seed<'de> {
    fn decode(&mut self, decoder: &mut dyn Decode<'de>) -> Result<(), ErasedError>;
}

/// [`serde::de::SeqAccess`].
trait ItemAccess<'de> {
    /// Whether there was one more.
    fn next(&mut self, seed: &mut dyn Seed<'de>) -> Result<bool, ErasedError>;

    fn size_hint(&self) -> Option<usize>;
}

/// [`serde::de::MapAccess`].
trait EntryAccess<'de> {
    /// Whether there was one more.
    fn next_key(&mut self, seed: &mut dyn Seed<'de>) -> Result<bool, ErasedError>;

    fn next_value(&mut self, seed: &mut dyn Seed<'de>) -> Result<(), ErasedError>;

    fn size_hint(&self) -> Option<usize>;
}

/// [`serde::de::EnumAccess`], then [`serde::de::VariantAccess`].
trait VariantChoice<'de> {
    fn name(&mut self, seed: &mut dyn Seed<'de>) -> Result<(), ErasedError>;

    fn content(&mut self, content: Content<'_, 'de>) -> Result<(), ErasedError>;
}

/// What a variant contains: the methods of [`serde::de::VariantAccess`].
enum Content<'a, 'de> {
    Unit,
    Newtype(&'a mut dyn Seed<'de>),
    Tuple(usize, &'a mut dyn Visit<'de>),
    Struct(&'static [&'static str], &'a mut dyn Visit<'de>),
}

/// serde's contract: a decoder calls its visitor once, and a visitor reads each value once. Decoders that break it get these errors.
#[cold]
fn used_twice() -> ErasedError {
    ErasedError::custom("the decoder used a visitor twice")
}

#[cold]
fn nothing_decoded() -> ErasedError {
    ErasedError::custom("the decoder did not call the visitor")
}

#[cfg(test)]
mod tests;
