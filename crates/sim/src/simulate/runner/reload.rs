//! Another configuration replaces that of the running engine.

use std::sync::Arc;

use loadmaster_engine::engine::{EngineEvent, ExtenderCall};
use loadmaster_extender::ExtenderOperation;

use super::Runner;
use super::start::invalid;
use crate::simulate::invariants::CheckResult;
use crate::simulate::reloads;
use crate::simulate::run_configuration::{QueueOrder, RunConfiguration};

impl Runner<'_> {
    /// The configuration that the engine received last; while an attempt is suspended it decides by an earlier one.
    pub(super) fn running_configuration(&self) -> Arc<RunConfiguration> {
        self.configurations.last().cloned().unwrap_or_default()
    }

    /// A new engine starts with this configuration.
    pub(super) fn begin_configurations(&mut self, configuration: Arc<RunConfiguration>) {
        self.reserved_under.clear();
        if self.reloads.is_some() {
            let kinds = configuration.test_kinds().into_iter().chain(self.parts.kinds());
            let mut kinds: Vec<_> = kinds.collect();
            kinds.sort();
            self.network.set_kinds(kinds);
        }
        self.configurations = vec![configuration];
    }

    pub(super) fn reload_sometimes(&mut self) -> CheckResult {
        while let Some(reloads) = &mut self.reloads
            && reloads.is_due()
        {
            self.reload()?;
        }
        Ok(())
    }

    /// Replaces the configuration, unless the engine has obstacles, as the daemon does.
    pub(super) fn reload(&mut self) -> CheckResult {
        let Some(reloads) = &mut self.reloads else { return Ok(()) };
        let reload = reloads.next(self.options.injected_bug).map_err(invalid)?;
        let obstacles = self.engine.obstacles(&reload.configuration.engine_configuration());
        if !obstacles.is_empty() {
            return Err(format!("the configuration needs a restart: {obstacles:?}"));
        }
        self.report.reloads += 1;
        let n_in_flight = self.engine.queue().in_flight_pods().count();
        self.report.busy_reloads += u64::from(n_in_flight + self.engine.n_binding_pods() > 0);
        self.trace.note(self.at_ms(), format_args!("configuration {}", self.configurations.len()));
        self.configurations.push(reload.configuration.clone());
        self.model.defer_configuration(reload.configuration.clone());
        self.update_model();
        if let Some(given) = reload.given {
            let event = EngineEvent::Reconfigured(Arc::new(given.engine_configuration()));
            self.apply(event)?;
        }
        for kind in reload.configuration.test_kinds() {
            self.network.watch(self.now.mono, kind);
        }
        Ok(())
    }

    /// A pod is reserved under the running configuration.
    pub(super) fn handle_reserved(&mut self, uid: &str) {
        if self.reloads.is_none() {
            return;
        }
        let is_it = |it: &Arc<RunConfiguration>| Arc::ptr_eq(it, &self.model.configuration);
        let number = self.configurations.iter().rposition(is_it).unwrap_or_default();
        self.reserved_under.insert(uid.into(), number as u64);
        let pod = self.model.pods.get(uid);
        if let Some(profile) = pod.and_then(|pod| self.model.configuration.profile_of(pod)) {
            let name = profile.profile.scheduler_name.clone();
            self.model.counting.reserve(uid, &name);
        }
    }

    /// Whether an extender binds a pod is decided by the configuration under which the pod was reserved.
    pub(super) fn check_binder(&self, uid: &str, is_extender: bool) -> CheckResult {
        let number = self.reserved_under.get(uid).copied().unwrap_or_default();
        let configuration = self.configurations.get(number as usize);
        match configuration.and_then(|it| it.reloaded) {
            Some(parts) if parts.has_binder != is_extender => Err(format!(
                "pod {uid} was reserved under configuration {number}, but is bound as under another one"
            )),
            _ => Ok(()),
        }
    }

    /// Extenders are called by the configuration under which the attempt began.
    pub(super) fn check_extender_call(&self, call: &ExtenderCall) -> CheckResult {
        let uid = &call.request.uid;
        let is_it = |it: &Arc<RunConfiguration>| Arc::ptr_eq(it, &self.model.configuration);
        let running = self.configurations.iter().rposition(is_it).unwrap_or_default() as u64;
        let number = match &call.request.operation {
            ExtenderOperation::Bind(_) => {
                self.check_binder(uid, true)?;
                self.reserved_under.get(uid).copied().unwrap_or_default()
            }
            _ => running,
        };
        if call.configuration != number || call.configuration < self.engine.earliest_configuration()
        {
            return Err(format!(
                "an extender is called for pod {uid} by configuration {}, but the attempt began under {number}",
                call.configuration
            ));
        }
        Ok(())
    }

    /// The pods of which one is popped next; none if an attempt is suspended, or the order is not known.
    pub(super) fn first_pods(&self) -> Vec<(Box<str>, u32)> {
        let order = self.model.configuration.reloaded.map_or(QueueOrder::Other, |it| it.order);
        match self.engine.has_suspended_attempt() || order == QueueOrder::Other {
            true => Vec::new(),
            false => reloads::first_pods(order, &self.engine),
        }
    }

    /// What must hold after every step of a run whose configuration is replaced.
    pub(super) fn check_reloaded(&self) -> CheckResult {
        if self.reloads.is_none() {
            return Ok(());
        }
        reloads::check_pending_pods(&self.model, &self.engine)?;
        reloads::check_counts(&self.model, &self.engine)
    }
}
