//! The API server from outside: requests in, responses out.

#![expect(clippy::expect_used, reason = "helpers of tests")]

mod access;
mod apply;
mod bench;
mod bootstrap;
mod bounds;
mod classes;
mod custom;
mod deletion;
mod quotas;
mod resources;
mod services;
mod sockets;
mod watching;
