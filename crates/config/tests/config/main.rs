//! The crate as its users see it: text in, text out.

mod fuzz;
mod multi_point;
mod not_yet;
mod oracle;
mod print;
mod strict;
mod testkit;
mod validation;
