//! Integration tests of the binary. They are one test binary, to link only once.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod apiserver;
mod completion;
mod config;
mod controllers;
mod coscheduling;
mod cross_node_preemption;
mod explain;
mod explain_changes;
mod explain_kubectl_plugin;
mod explain_live_cluster;
mod explain_running_scheduler;
mod explain_several_pods;
mod explain_volumes;
mod extender;
mod kubelets;
mod leader_election;
mod new_plugin;
mod plugin_inputs;
mod plugin_needs;
mod post_filter_plugin;
mod process;
mod replay;
mod running_scheduler;
mod security;
mod service_client;
mod up;
