//! The API server from outside: requests in, responses out.

#![expect(clippy::expect_used, reason = "helpers of tests")]

mod access;
mod apply;
mod autoscalers;
mod bootstrap;
mod classes;
mod custom;
mod deletion;
mod http;
mod limits;
mod quotas;
mod resources;
mod services;
mod testkit;
mod watches;
mod without_kubelets;
