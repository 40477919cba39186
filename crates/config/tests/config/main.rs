//! The crate as its users see it: text in, text out.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod fuzz;
mod multi_point;
mod not_yet;
mod oracle;
mod print;
mod strict;
mod testkit;
mod validation;
