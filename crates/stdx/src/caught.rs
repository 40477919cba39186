//! Calls that may panic and must not take their caller along.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

/// What is known of a panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caught {
    /// What it said.
    pub message: String,
    /// File, line and column, where [`quiet_caught_panics`] was called.
    pub place: Option<Box<str>>,
}

impl fmt::Display for Caught {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.place.as_ref().map_or(Ok(()), |place| write!(f, " ({place})"))
    }
}

thread_local! {
    static IS_CATCHING: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<Option<Box<str>>> = const { RefCell::new(None) };
}

/// Does something and catches its panic. What it was changing must bear that it was left half done.
///
/// # Errors
///
/// What the panic said.
pub fn catch<R>(work: impl FnOnce() -> R) -> Result<R, Caught> {
    let outer = IS_CATCHING.replace(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    IS_CATCHING.set(outer);
    done.map_err(|payload| Caught {
        message: message(&*payload),
        place: PLACE.with_borrow_mut(Option::take),
    })
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("(no message)").to_owned()
}

/// Lets the usual report of a panic, a backtrace on stderr, be for those panics that [`catch`] does not catch; of the others only
/// the place is kept. For whoever owns the process.
pub fn quiet_caught_panics() {
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
    fn what_it_said_and_where() {
        quiet_caught_panics();
        assert_eq!(catch(|| 7), Ok(7));
        let caught = catch(|| panic!("on {}", "purpose")).unwrap_err();
        assert_eq!(caught.message, "on purpose");
        assert!(
            caught.to_string().starts_with("on purpose (crates/stdx/src/caught.rs:"),
            "{caught}"
        );
        let caught = catch(|| -> () { panic::panic_any(7) }).unwrap_err();
        assert_eq!(caught.message, "(no message)");
        let inner = catch(|| (catch(|| -> () { panic!("inner") }), IS_CATCHING.get()));
        assert!(matches!(inner, Ok((Err(_), true))), "{inner:?}");
        assert!(!IS_CATCHING.get());
    }
}
