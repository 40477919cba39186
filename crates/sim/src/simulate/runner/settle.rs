//! The end of a run: without faults, until everything has settled.

use std::time::Duration;

use loadmaster_engine::MonoTime;

use super::{N_ROUNDS_MAX, Runner};
use crate::simulate::invariants::{self, CheckResult};
use crate::simulate::plugin_workload::PluginWorkload;
use crate::simulate::reloads::Reloads;
use crate::simulate::settled::Settled;
use crate::simulate::workload::Workload;
use crate::simulate::{holding_plugin, panicking_plugin, volumes};

/// After the faults everything must settle within this much virtual time: two flushes of unschedulable pods, and a backoff after
/// each; with claims, PreBind may wait for ten minutes before.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// After the faults no gang stays partly bound for longer than this: the longest timeout of a PodGroup and the backoffs.
const GANG_TIMEOUT: Duration = Duration::from_secs(180);

impl Runner<'_> {
    /// The faults end, the workload stops, and virtual time advances until everything has settled.
    pub(super) fn without_faults(&mut self) -> CheckResult {
        self.step = self.options.steps;
        self.trace.note(self.at_ms(), format_args!("no more faults"));
        self.network.end_faults(self.now.mono);
        self.extenders.end_faults(self.now.mono);
        panicking_plugin::set_panic_rng(None);
        holding_plugin::set_hold_rng(None);
        self.workload.restore_objects(&mut self.api_server);
        if self.reloads.as_mut().is_some_and(Reloads::ends_with_reload) {
            self.reload()?;
        }
        if let Some(event) = self.plugin_workload.last_publication(&self.api_server) {
            self.publish(event)?;
        }
        let run = self.out_of_tree.as_mut();
        for event in run.map(|it| it.last_publications(&self.api_server)).unwrap_or_default() {
            self.publish(event)?;
        }
        let has_volumes = self.parts.volumes;
        let timeout = if has_volumes { SETTLE_TIMEOUT * 2 } else { SETTLE_TIMEOUT };
        if self.parts.gangs && !has_volumes {
            self.settle_until(self.now.mono.after(GANG_TIMEOUT))?;
            self.settled().check_partly_bound_gangs()?;
        }
        self.settle_until(self.now.mono.after(timeout))?;
        self.check()?;
        if self.network.has_calls_in_flight() {
            return Err("API calls are in flight when everything should have settled".to_owned());
        }
        if has_volumes {
            volumes::check_settled(&self.api_server, &self.engine)?;
        }
        invariants::check_nothing_in_flight(&self.engine)?;
        let pending = self.settled().check()?;
        self.report.unschedulable = pending.all;
        self.report.over_quota = pending.over_quota;
        if let Some(run) = &self.out_of_tree {
            run.check_settled(&self.api_server)?;
        }
        // A status that could not be written is written after the next attempt only.
        if self.flushes { self.settled().check_pod_scheduled_conditions() } else { Ok(()) }
    }

    fn settled(&self) -> Settled<'_> {
        Settled {
            setup: self.setup,
            model: &self.model,
            api_server: &self.api_server,
            engine: &self.engine,
            flushes: self.flushes,
        }
    }

    /// Advances virtual time, and at each time does everything that there is to do.
    fn settle_until(&mut self, end: MonoTime) -> CheckResult {
        let has_volumes = self.parts.volumes;
        // The number of changes that left the controllers nothing to do.
        let mut idle_at = None;
        let mut n_rounds = 0;
        while self.now.mono <= end {
            let before = self.now.mono;
            let n_changes = self.api_server.n_changes();
            self.workload.run_kubelets(&mut self.api_server, self.now.wall, true);
            self.plugin_workload.run_controller(&mut self.api_server, true);
            if idle_at != Some(n_changes) {
                self.run_volume_controllers(true)?;
            }
            self.deliver(u64::MAX)?;
            self.handle_timeouts()?;
            self.cycle(u64::MAX)?;
            let replies = self
                .network
                .next_delivery_due()
                .into_iter()
                .chain(self.extenders.next_response_due());
            let due = replies.chain(self.engine.next_timeout()).min();
            let is_idle = Workload::kubelets_are_idle(&self.api_server)
                && PluginWorkload::controller_is_idle(&self.api_server)
                && (!has_volumes || self.api_server.n_changes() == n_changes);
            idle_at = (self.api_server.n_changes() == n_changes).then_some(n_changes);
            let next = if is_idle { due.unwrap_or(end.after(SETTLE_TIMEOUT)) } else { before };
            self.advance_to(next.max(before));
            n_rounds = if self.now.mono == before { n_rounds + 1 } else { 0 };
            if n_rounds > N_ROUNDS_MAX {
                let what = match is_idle {
                    true => "something is always due",
                    false => "objects change forever",
                };
                return Err(format!("virtual time stands still: {what}"));
            }
        }
        Ok(())
    }
}
