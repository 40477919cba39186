//! A handle without a scheduler, for tests of services.

use std::sync::Arc;

use loadmaster_client::kube;
use loadmaster_engine::EngineEvent;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::{ServiceContext, ServiceHandle};
use crate::metrics::{Metrics, MetricsSettings};
use crate::run::engine_loop::Command;

/// Controls a [`ServiceHandle`] in place of a scheduler.
pub struct ServiceHandleControl {
    commands: mpsc::UnboundedReceiver<Command>,
    leading: watch::Sender<bool>,
    stopping: watch::Sender<bool>,
    metrics: Arc<Metrics>,
}

impl ServiceHandle {
    /// A handle without a scheduler: requests to it have no effect. The replica is not the leader.
    ///
    /// # Errors
    ///
    /// If two of Loadmaster's own metrics have the same name: a bug.
    pub fn without_scheduler(
        client: kube::Client,
    ) -> Result<(ServiceHandle, ServiceHandleControl), prometheus::Error> {
        let (commands, receiver) = mpsc::unbounded_channel();
        let (leading, leading_receiver) = watch::channel(false);
        let (stopping, stopping_receiver) = watch::channel(false);
        let metrics = Arc::new(Metrics::new(&MetricsSettings::default())?);
        let context = ServiceContext {
            commands,
            leading: leading_receiver,
            client,
            metrics: metrics.clone(),
            event_sink: Arc::new(|_| {}),
            controller: "default-scheduler".into(),
        };
        let handle = context.handle(&stopping_receiver);
        Ok((handle, ServiceHandleControl { commands: receiver, leading, stopping, metrics }))
    }
}

impl ServiceHandleControl {
    /// Makes the replica the leader, or no longer the leader.
    pub fn set_leading(&self, is_leading: bool) {
        self.leading.send_replace(is_leading);
    }

    /// Lets [`ServiceHandle::stopped`] resolve.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Takes the values that were published since the last call, with the names of the plugins. Other requests are
    /// dropped.
    pub fn take_published(&mut self) -> Vec<(String, Value)> {
        let mut published = Vec::new();
        while let Ok(command) = self.commands.try_recv() {
            if let Command::ServiceRequest(request) = command
                && let EngineEvent::Published { plugin, value, .. } = request.event
            {
                published.push((plugin.to_string(), value));
            }
        }
        published
    }

    /// `/metrics`.
    pub fn metrics_text(&self) -> String {
        self.metrics.text()
    }
}
