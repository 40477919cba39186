//! What happens around the test plugins: NodePools come, change and go; a controller makes Attachments ready; the plugin author's service
//! publishes values, and allows or rejects waiting pods.

use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::Str;
use loadmaster_engine::Profile;
use loadmaster_engine::engine::{EngineEvent, PermitDecision};
use loadmaster_framework::Registry;
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::plugin_model::has_attachment;
use super::simulated_profiles::profile_with_plugins;
use super::{holding_plugin, watching_plugin};
use crate::fake_api_server::{FakeApiServer, WatchedKind, is_pod_terminal};
use loadmaster_engine::world_loader::DefaultProfileError;

/// The default profile with test plugins: one that watches objects and receives published values; one that holds pods at Permit and waits
/// in PreBind; and both.
///
/// # Errors
///
/// When the registry lacks a plugin of the default configuration.
pub fn profiles_with_test_plugins(
    registry: &Registry,
) -> Result<[Arc<Profile>; 3], DefaultProfileError> {
    let registry = registry.clone().with(watching_plugin::WATCHING).with(holding_plugin::HOLDING);
    let (watching, holding) = (watching_plugin::NAME, holding_plugin::NAME);
    let profile = |plugins: &[&str]| profile_with_plugins(&registry, plugins).map(Arc::new);
    Ok([profile(&[watching])?, profile(&[holding])?, profile(&[watching, holding])?])
}

/// Whether the profile has the plugin that holds pods.
pub(super) fn has_holding_plugin(profile: &Profile) -> bool {
    profile.plugins.iter().any(|plugin| plugin.name == holding_plugin::NAME)
}

pub(super) struct PluginWorkload {
    rng: Rng,
    /// Some test plugin is in the profile.
    is_active: bool,
}

impl PluginWorkload {
    pub fn new(rng: Rng, is_active: bool) -> PluginWorkload {
        PluginWorkload { rng, is_active }
    }

    /// Changes a custom object, or none.
    pub fn random_operation(&mut self, api_server: &mut FakeApiServer) {
        if !self.is_active {
            return;
        }
        match self.rng.below(20) {
            0..=2 => self.change_pool(api_server),
            3 => {
                if let Some(name) = self.any_object(api_server, WatchedKind::NodePool) {
                    api_server.delete_custom_object(WatchedKind::NodePool, &name);
                }
            }
            4 if self.rng.one_in(2) => {
                if let Some(name) = self.any_object(api_server, WatchedKind::Attachment) {
                    api_server.delete_custom_object(WatchedKind::Attachment, &name);
                }
            }
            _ => {}
        }
    }

    fn change_pool(&mut self, api_server: &mut FakeApiServer) {
        let nodes: Vec<Str> = api_server.nodes().map(|node| Str::new(node.name())).collect();
        if nodes.is_empty() {
            return;
        }
        let name = self.rng.pick(&nodes).clone();
        let accepts = match self.rng.below(5) {
            0 => json!([]),
            1 => json!(["web"]),
            2 => json!(["db", "cache"]),
            3 => json!(["web", "db", "cache"]),
            // It cannot be decoded.
            _ => json!("all"),
        };
        let pool = json!({"metadata": {"name": name.as_str()}, "accepts": accepts});
        api_server.upsert_custom_object(WatchedKind::NodePool, &name, pool);
    }

    fn any_object(&mut self, api_server: &FakeApiServer, kind: WatchedKind) -> Option<Str> {
        let names: Vec<Str> =
            api_server.custom_objects(&kind).map(|(name, _)| name.clone()).collect();
        if names.is_empty() { None } else { Some(self.rng.pick(&names).clone()) }
    }

    /// Runs the controller of Attachments: on a random part of them, or on all. It makes them ready, and deletes those of pods that no
    /// longer exist.
    pub fn run_controller(&mut self, api_server: &mut FakeApiServer, all: bool) {
        let attachments = api_server.custom_objects(&WatchedKind::Attachment);
        let names: Vec<Str> = attachments.map(|(name, _)| name.clone()).collect();
        for name in names {
            if !all && !self.rng.one_in(12) {
                continue;
            }
            let is_its =
                |pod: &loadmaster_api::Pod| !is_pod_terminal(pod) && has_attachment(pod, &name);
            if api_server.pods().any(is_its) {
                let ready = json!({"metadata": {"name": name.as_str()}, "ready": true});
                api_server.upsert_custom_object(WatchedKind::Attachment, &name, ready);
            } else {
                api_server.delete_custom_object(WatchedKind::Attachment, &name);
            }
        }
    }

    /// Whether the controller has nothing left to do.
    pub fn controller_is_idle(api_server: &FakeApiServer) -> bool {
        let mut attachments = api_server.custom_objects(&WatchedKind::Attachment);
        attachments.all(|(_, attachment)| attachment["ready"] == true)
    }

    /// A value that the service publishes now, or none.
    pub fn publication(&mut self, api_server: &FakeApiServer) -> Option<EngineEvent> {
        if !self.is_active || !self.rng.one_in(10) {
            return None;
        }
        let ttl = Duration::from_secs(*self.rng.pick(&[1, 10, 60, 120]));
        // One in six cannot be decoded.
        if self.rng.one_in(6) {
            return Some(published(json!({"closed": 1}), ttl));
        }
        Some(self.closed_nodes(api_server, ttl))
    }

    /// The value that stays when the faults have ended, or none: then the last value expires.
    pub fn last_publication(&mut self, api_server: &FakeApiServer) -> Option<EngineEvent> {
        let is_published = self.is_active && self.rng.one_in(2);
        is_published.then(|| self.closed_nodes(api_server, Duration::from_secs(24 * 3600)))
    }

    fn closed_nodes(&mut self, api_server: &FakeApiServer, ttl: Duration) -> EngineEvent {
        let nodes: Vec<&str> = api_server.nodes().map(|node| node.name()).collect();
        let closed: Vec<&str> = nodes.into_iter().filter(|_| self.rng.one_in(3)).collect();
        published(json!({"closed": closed}), ttl)
    }

    /// What the service decides about a waiting pod now, or nothing. It may be too late: the pod no longer waits.
    pub fn permit_decision(&mut self, held: &[Box<str>]) -> Option<(Box<str>, PermitDecision)> {
        if held.is_empty() || !self.rng.one_in(8) {
            return None;
        }
        let uid = self.rng.pick(held).clone();
        let rejection = || PermitDecision::Reject("rejected by the service".to_owned());
        Some((uid, if self.rng.one_in(2) { PermitDecision::Allow } else { rejection() }))
    }
}

fn published(value: Value, ttl: Duration) -> EngineEvent {
    EngineEvent::Published { plugin: watching_plugin::NAME.into(), value, ttl }
}
