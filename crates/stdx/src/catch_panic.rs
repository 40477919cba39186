//! Catches panics of a call.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

/// A panic that was caught.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaughtPanic {
    /// The panic message.
    pub message: String,
    /// File, line and column; only if [`silence_caught_panics`] was called.
    pub location: Option<Box<str>>,
}

impl fmt::Display for CaughtPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.location.as_ref().map_or(Ok(()), |place| write!(f, " ({place})"))
    }
}

thread_local! {
    static IS_CATCHING: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<Option<Box<str>>> = const { RefCell::new(None) };
}

/// Calls `work` and catches its panic. Data that it modifies must stay valid when it ends anywhere.
///
/// # Errors
///
/// The panic.
pub fn catch_panic<R>(work: impl FnOnce() -> R) -> Result<R, CaughtPanic> {
    let outer = IS_CATCHING.replace(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    IS_CATCHING.set(outer);
    done.map_err(|payload| CaughtPanic {
        message: message(&*payload),
        location: PLACE.with_borrow_mut(Option::take),
    })
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("(no message)").to_owned()
}

/// Installs a panic hook that prints only panics that [`catch_panic`] does not catch; of the others only
/// the location is recorded. To be called once by the program's `main`.
pub fn silence_caught_panics() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_CATCHING.get() {
                return report(info);
            }
            let place = info.location().map(|location| location.to_string().into());
            PLACE.with_borrow_mut(|known| *known = place);
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn catch_panic_returns_the_message_and_the_location() {
        silence_caught_panics();
        assert_eq!(catch_panic(|| 7), Ok(7));
        let caught = catch_panic(|| panic!("on {}", "purpose")).unwrap_err();
        assert_eq!(caught.message, "on purpose");
        assert!(
            caught.to_string().starts_with("on purpose (crates/stdx/src/catch_panic.rs:"),
            "{caught}"
        );
        let caught = catch_panic(|| -> () { panic::panic_any(7) }).unwrap_err();
        assert_eq!(caught.message, "(no message)");
        let inner = catch_panic(|| (catch_panic(|| -> () { panic!("inner") }), IS_CATCHING.get()));
        assert!(matches!(inner, Ok((Err(_), true))), "{inner:?}");
        assert!(!IS_CATCHING.get());
    }
}
