//! Errors between erased decoders and visitors.

use std::fmt;

use serde::de::{Error, Expected, Unexpected};

/// An error of a type, kept until it becomes one of the real decoder; or the mark that the real decoder's error waits in its slot.
#[derive(Debug)]
pub struct ErasedError(Box<Kind>);

#[derive(Debug)]
enum Kind {
    /// The error itself is in the slot of the decoder that returned it. Its text is for those who show it before that.
    OfDecoder(String),
    Custom(String),
    InvalidType(OwnedUnexpected, String),
    InvalidValue(OwnedUnexpected, String),
    InvalidLength(usize, String),
    UnknownVariant(String, &'static [&'static str]),
    UnknownField(String, &'static [&'static str]),
    MissingField(&'static str),
    DuplicateField(&'static str),
}

/// [`Unexpected`] with its text.
#[derive(Debug)]
enum OwnedUnexpected {
    Str(String),
    Bytes(Vec<u8>),
    Other(String),
    Plain(Unexpected<'static>),
}

impl ErasedError {
    /// The mark for an error that is put into a slot.
    pub(super) fn of_decoder(error: &impl fmt::Display) -> ErasedError {
        ErasedError(Box::new(Kind::OfDecoder(error.to_string())))
    }

    /// The error of the real decoder: the one in the slot, or a new one with the same meaning.
    pub(super) fn into_real<E: Error>(self, slot: Option<E>) -> E {
        match (*self.0, slot) {
            (Kind::OfDecoder(_), Some(error)) => error,
            (Kind::OfDecoder(text) | Kind::Custom(text), _) => E::custom(text),
            (Kind::InvalidType(found, expected), _) => {
                E::invalid_type(found.borrow(), &expected.as_str())
            }
            (Kind::InvalidValue(found, expected), _) => {
                E::invalid_value(found.borrow(), &expected.as_str())
            }
            (Kind::InvalidLength(length, expected), _) => {
                E::invalid_length(length, &expected.as_str())
            }
            (Kind::UnknownVariant(name, expected), _) => E::unknown_variant(&name, expected),
            (Kind::UnknownField(name, expected), _) => E::unknown_field(&name, expected),
            (Kind::MissingField(name), _) => E::missing_field(name),
            (Kind::DuplicateField(name), _) => E::duplicate_field(name),
        }
    }
}

impl OwnedUnexpected {
    fn new(found: Unexpected<'_>) -> OwnedUnexpected {
        OwnedUnexpected::Plain(match found {
            Unexpected::Str(text) => return OwnedUnexpected::Str(text.to_owned()),
            Unexpected::Bytes(bytes) => return OwnedUnexpected::Bytes(bytes.to_owned()),
            Unexpected::Other(text) => return OwnedUnexpected::Other(text.to_owned()),
            Unexpected::Bool(value) => Unexpected::Bool(value),
            Unexpected::Unsigned(value) => Unexpected::Unsigned(value),
            Unexpected::Signed(value) => Unexpected::Signed(value),
            Unexpected::Float(value) => Unexpected::Float(value),
            Unexpected::Char(value) => Unexpected::Char(value),
            Unexpected::Unit => Unexpected::Unit,
            Unexpected::Option => Unexpected::Option,
            Unexpected::NewtypeStruct => Unexpected::NewtypeStruct,
            Unexpected::Seq => Unexpected::Seq,
            Unexpected::Map => Unexpected::Map,
            Unexpected::Enum => Unexpected::Enum,
            Unexpected::UnitVariant => Unexpected::UnitVariant,
            Unexpected::NewtypeVariant => Unexpected::NewtypeVariant,
            Unexpected::TupleVariant => Unexpected::TupleVariant,
            Unexpected::StructVariant => Unexpected::StructVariant,
        })
    }

    fn borrow(&self) -> Unexpected<'_> {
        match self {
            OwnedUnexpected::Str(text) => Unexpected::Str(text),
            OwnedUnexpected::Bytes(bytes) => Unexpected::Bytes(bytes),
            OwnedUnexpected::Other(text) => Unexpected::Other(text),
            OwnedUnexpected::Plain(found) => *found,
        }
    }
}

fn made(kind: Kind) -> ErasedError {
    ErasedError(Box::new(kind))
}

impl Error for ErasedError {
    #[cold]
    fn custom<T: fmt::Display>(text: T) -> ErasedError {
        made(Kind::Custom(text.to_string()))
    }

    #[cold]
    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> ErasedError {
        made(Kind::InvalidType(OwnedUnexpected::new(found), expected.to_string()))
    }

    #[cold]
    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> ErasedError {
        made(Kind::InvalidValue(OwnedUnexpected::new(found), expected.to_string()))
    }

    #[cold]
    fn invalid_length(length: usize, expected: &dyn Expected) -> ErasedError {
        made(Kind::InvalidLength(length, expected.to_string()))
    }

    #[cold]
    fn unknown_variant(name: &str, expected: &'static [&'static str]) -> ErasedError {
        made(Kind::UnknownVariant(name.to_owned(), expected))
    }

    #[cold]
    fn unknown_field(name: &str, expected: &'static [&'static str]) -> ErasedError {
        made(Kind::UnknownField(name.to_owned(), expected))
    }

    #[cold]
    fn missing_field(name: &'static str) -> ErasedError {
        made(Kind::MissingField(name))
    }

    #[cold]
    fn duplicate_field(name: &'static str) -> ErasedError {
        made(Kind::DuplicateField(name))
    }
}

impl fmt::Display for ErasedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// serde's own wording.
        type Plain = serde::de::value::Error;
        let plain = match &*self.0 {
            Kind::OfDecoder(text) | Kind::Custom(text) => return f.write_str(text),
            Kind::InvalidType(found, expected) => {
                Plain::invalid_type(found.borrow(), &expected.as_str())
            }
            Kind::InvalidValue(found, expected) => {
                Plain::invalid_value(found.borrow(), &expected.as_str())
            }
            Kind::InvalidLength(length, expected) => {
                Plain::invalid_length(*length, &expected.as_str())
            }
            Kind::UnknownVariant(name, expected) => Plain::unknown_variant(name, expected),
            Kind::UnknownField(name, expected) => Plain::unknown_field(name, expected),
            Kind::MissingField(name) => Plain::missing_field(name),
            Kind::DuplicateField(name) => Plain::duplicate_field(name),
        };
        fmt::Display::fmt(&plain, f)
    }
}

impl std::error::Error for ErasedError {}
