//! Test worlds: generated scheduling cases, scenario files, differential tests, and simulated clusters with fault injection.

pub mod brute_force_counterfactual;
pub mod brute_force_preemption;
pub mod cases;
pub mod cluster_made_pods;
pub mod differential;
pub mod fake_api_server;
pub mod scenario;
pub mod simulate;
