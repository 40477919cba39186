//! What handlers may return.

use std::fmt;
use std::future::{Future, ready};

use loadmaster_stdx::Chain;

/// Why a handler has no answer, in one line. Made by `?` from any error, with its causes.
///
/// Filter and bind tell it to the scheduler in their answers; the other verbs have no place for it and answer 500.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    text: String,
}

impl Error {
    /// With this text.
    pub fn new(text: impl fmt::Display) -> Error {
        Error { text: text.to_string() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

// As `anyhow::Error` this is no `std::error::Error` itself: else it could not be made from all of them.
impl<E: std::error::Error> From<E> for Error {
    fn from(error: E) -> Error {
        Error { text: Chain(&error).to_string() }
    }
}

/// What a handler may return for an answer `T`: `T`, `Result<T, Error>`, or a future of either. `Form` only tells them apart; the
/// compiler finds it.
#[diagnostic::on_unimplemented(
    message = "a handler of this verb returns `{T}`, `Result<{T}, Error>` or a future of one of them"
)]
pub trait Outcome<T, Form>: Send {
    /// The answer when it is there.
    fn outcome(self) -> impl Future<Output = Result<T, Error>> + Send;
}

/// Forms of an [`Outcome`].
pub mod form {
    /// The value itself.
    pub struct Value;
    /// A result.
    pub struct Fallible;
    /// A future of the value.
    pub struct LaterValue;
    /// A future of a result.
    pub struct LaterFallible;
}

impl<T: Send> Outcome<T, form::Value> for T {
    fn outcome(self) -> impl Future<Output = Result<T, Error>> + Send {
        ready(Ok(self))
    }
}

impl<T: Send> Outcome<T, form::Fallible> for Result<T, Error> {
    fn outcome(self) -> impl Future<Output = Result<T, Error>> + Send {
        ready(self)
    }
}

impl<T, F: Future<Output = T> + Send> Outcome<T, form::LaterValue> for F {
    async fn outcome(self) -> Result<T, Error> {
        Ok(self.await)
    }
}

impl<T, F: Future<Output = Result<T, Error>> + Send> Outcome<T, form::LaterFallible> for F {
    fn outcome(self) -> impl Future<Output = Result<T, Error>> + Send {
        self
    }
}
