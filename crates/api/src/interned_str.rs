//! Interned strings: label keys, values, namespaces and images repeat by the thousand.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use loadmaster_stdx::Set;
use serde::{Deserialize, Deserializer};

/// A shared, immutable string. Equal strings decoded on one thread share one allocation, so that comparing
/// them is mostly comparing two pointers.
#[derive(Clone, PartialOrd, Ord)]
pub struct Str(Arc<str>);

/// How many strings a thread remembers before it starts over; forgetting only costs sharing.
const POOL_LEN_MAX: usize = 1 << 18;

thread_local! {
    static POOL: RefCell<Set<Str>> = RefCell::new(Set::default());
}

impl Str {
    /// The shared string with this text.
    pub fn new(text: &str) -> Str {
        if text.is_empty() {
            return Str::default();
        }
        POOL.with_borrow_mut(|pool| {
            if let Some(known) = pool.get(text) {
                return known.clone();
            }
            if pool.len() >= POOL_LEN_MAX {
                pool.clear();
            }
            let fresh = Str(text.into());
            pool.insert(fresh.clone());
            fresh
        })
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Most optional fields are absent, so the empty string is not looked up.
impl Default for Str {
    fn default() -> Self {
        static EMPTY: LazyLock<Str> = LazyLock::new(|| Str("".into()));
        EMPTY.clone()
    }
}

impl PartialEq for Str {
    fn eq(&self, other: &Str) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for Str {}

impl PartialEq<str> for Str {
    fn eq(&self, other: &str) -> bool {
        &*self.0 == other
    }
}

impl PartialEq<&str> for Str {
    fn eq(&self, other: &&str) -> bool {
        &*self.0 == *other
    }
}

impl std::hash::Hash for Str {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Deref for Str {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Str {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Str {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Str {
    fn from(text: &str) -> Str {
        Str::new(text)
    }
}

impl From<String> for Str {
    fn from(text: String) -> Str {
        Str::new(&text)
    }
}

impl fmt::Display for Str {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Str {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl<'de> Deserialize<'de> for Str {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Str, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Str;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Str, E> {
                Ok(Str::new(text))
            }
            fn visit_unit<E: serde::de::Error>(self) -> Result<Str, E> {
                Ok(Str::default())
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

impl serde::Serialize for Str {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}
