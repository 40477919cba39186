//! The types that handlers may return.

use std::fmt;
use std::future::{Future, ready};

use loadmaster_stdx::ErrorChain;

/// The error of a handler, in one line. `?` converts any error, with its causes.
///
/// Filter and bind return it to the scheduler in their response; the other verbs respond with status 500 and the error as text.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    text: String,
}

impl Error {
    /// An error with this text.
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

// Like `anyhow::Error` this does not implement `std::error::Error`: else it could not be converted from all of them.
impl<E: std::error::Error> From<E> for Error {
    fn from(error: E) -> Error {
        Error { text: ErrorChain(&error).to_string() }
    }
}

/// What a handler may return for a response `T`: `T`, `Result<T, Error>`, or a future of either. `Form` only distinguishes the
/// implementations; the compiler infers it.
#[diagnostic::on_unimplemented(
    message = "a handler of this verb returns `{T}`, `Result<{T}, Error>` or a future of one of them"
)]
pub trait IntoHandlerResult<T, Form>: Send {
    /// The result of the handler.
    fn into_handler_result(self) -> impl Future<Output = Result<T, Error>> + Send;
}

/// The forms of [`IntoHandlerResult`].
pub mod form {
    /// The value itself.
    pub struct HandlerValueForm;
    /// A result.
    pub struct HandlerResultForm;
    /// A future of the value.
    pub struct HandlerFutureForm;
    /// A future of a result.
    pub struct HandlerFutureResultForm;
}

impl<T: Send> IntoHandlerResult<T, form::HandlerValueForm> for T {
    fn into_handler_result(self) -> impl Future<Output = Result<T, Error>> + Send {
        ready(Ok(self))
    }
}

impl<T: Send> IntoHandlerResult<T, form::HandlerResultForm> for Result<T, Error> {
    fn into_handler_result(self) -> impl Future<Output = Result<T, Error>> + Send {
        ready(self)
    }
}

impl<T, F: Future<Output = T> + Send> IntoHandlerResult<T, form::HandlerFutureForm> for F {
    async fn into_handler_result(self) -> Result<T, Error> {
        Ok(self.await)
    }
}

impl<T, F: Future<Output = Result<T, Error>> + Send>
    IntoHandlerResult<T, form::HandlerFutureResultForm> for F
{
    fn into_handler_result(self) -> impl Future<Output = Result<T, Error>> + Send {
        self
    }
}
