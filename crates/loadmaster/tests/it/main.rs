//! The binary as its users meet it, and the cluster behind `loadmaster up`. One binary, to link once.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod apiserver;
mod config;
mod explain;
mod extender;
mod kubelets;
mod live;
mod needs;
mod plugins;
mod preempt;
mod process;
mod replay;
mod running;
mod standby;
mod up;
