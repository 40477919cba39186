//! Tests of the crate's public interface.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod bad_files;
mod convert;
mod decoding;
mod fuzz;
mod multi_point;
mod old_versions;
mod oracle;
mod policy;
mod print;
mod testkit;
mod unsupported;
mod validation;
