//! What the engine asks for is checked, and sent: API calls over the network, calls to extenders.

use loadmaster_api::Str;
use loadmaster_engine::engine::{
    ApiServerCall, CallId, Effect, Effects, ExtenderCall, NO_REPLY_FROM_EXTENDER, Observation,
};
use loadmaster_extender::ExtenderOperation;

use super::Runner;
use crate::simulate::invariants::{self, CheckResult};
use crate::simulate::reference_model::CallKind;
use crate::simulate::{quotas, volumes};

impl Runner<'_> {
    pub(super) fn carry_out(&mut self, effects: Effects, in_cycle: bool) -> CheckResult {
        for effect in effects {
            self.trace.effect(self.at_ms(), &effect);
            match effect {
                Effect::Call(call) => self.call(call, in_cycle)?,
                // With quotas the check of the victim covers priorities.
                Effect::RecordEvent(record)
                    if record.reason == "Preempted" && !self.parts.quotas =>
                {
                    invariants::check_preempted_event(&self.model, &record)?;
                }
                Effect::RecordEvent(record)
                    if self.parts.gangs && in_cycle && record.reason == "FailedScheduling" =>
                {
                    let failed = (&*record.regarding.uid, &*record.note);
                    self.gangs.check_unschedulable(&self.model, &self.engine, failed)?;
                }
                Effect::RecordEvent(record)
                    if self.out_of_tree.is_some() && record.reason == "FailedScheduling" =>
                {
                    let out_of_tree = &mut self.model.plugins.out_of_tree;
                    out_of_tree.handle_failed_attempt(&record.regarding.uid);
                }
                // While faults are injected, resources may also become free after the flush.
                Effect::Observe(Observation::Bound { after_flush: true, .. })
                    if self.step == self.options.steps
                        && !self.running_configuration().has_extenders() =>
                {
                    self.report.bound_after_flush += 1;
                }
                Effect::Observe(Observation::PluginPanicked(panic)) => {
                    self.report.panics += panic.times
                }
                Effect::CallExtender(call) => self.call_extender(call)?,
                Effect::RecordEvent(record) if record.note == NO_REPLY_FROM_EXTENDER => {
                    self.model.abandon_extender_binding(&record.regarding.uid);
                }
                Effect::RecordEvent(_) | Effect::Observe(_) => {}
            }
        }
        if let Some(volumes) = &mut self.model.plugins.volumes {
            volumes.end_step();
        }
        Ok(())
    }

    fn call_extender(&mut self, call: ExtenderCall) -> CheckResult {
        self.check_extender_call(&call)?;
        if let ExtenderOperation::Bind(node) = &call.request.operation {
            self.bind(call.id, &call.request.uid, node.clone())?;
        }
        self.extenders.send(self.now.mono, self.term, call);
        Ok(())
    }

    fn bind(&mut self, call: CallId, uid: &str, node: Str) -> CheckResult {
        self.report.binds += 1;
        self.gangs.check_bind(uid)?;
        // The node was checked when the pod was reserved.
        let nodes = self.engine.world().nodes();
        let object = nodes.row(&node).and_then(|row| nodes.node(row));
        self.model.plugins.check_bind(uid, &node, object.map(|node| &**node))?;
        self.model.start_binding(call, uid);
        Ok(())
    }

    fn call(&mut self, mut call: ApiServerCall, in_cycle: bool) -> CheckResult {
        match CallKind::of_call(&call) {
            CallKind::Bind { uid, node } => {
                self.check_binder(&uid, false)?;
                self.bind(call.id, &uid, node)?;
            }
            CallKind::DisruptionCondition { uid } => {
                if in_cycle && self.parts.quotas {
                    quotas::check_victim(&self.model, &self.engine, &uid)?;
                } else if in_cycle {
                    invariants::check_victim(&self.model, &self.engine, &uid)?;
                }
                self.model.victims.insert(uid);
            }
            CallKind::DeletePod { uid } => {
                self.report.evictions += 1;
                if !self.model.victims.contains(&uid) {
                    return Err(format!("pod {uid} is deleted, but was not selected as a victim"));
                }
            }
            CallKind::BindVolume { volume, claim, version } => {
                self.report.volume_writes += 1;
                if let Some(volumes) = &mut self.model.plugins.volumes {
                    volumes.check_volume_update(&volume, &claim, &version)?;
                }
            }
            CallKind::SelectNode { claim, node } => {
                self.report.volume_writes += 1;
                if let Some(volumes) = &self.model.plugins.volumes {
                    volumes.check_claim_update(&claim, &node)?;
                }
            }
            CallKind::Other => {}
        }
        volumes::alter_call(self.options.injected_bug, &mut call);
        self.network.send_call(self.now.mono, self.term, call);
        Ok(())
    }
}
