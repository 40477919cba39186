//! The binary as its users meet it, and the cluster behind `loadmaster up`. One binary, to link once.

mod cluster;
mod config;
mod explain;
mod live;
mod process;
mod up;
