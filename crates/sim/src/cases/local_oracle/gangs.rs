//! What Coscheduling does with the members of groups, step by step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::{Str, Timestamp};
use loadmaster_framework::api_calls::{PluginStep, PluginStepInput};
use loadmaster_framework::testkit::post_filter::CpuOnlyFilter;
use loadmaster_framework::waiting_pods::PluginAction;
use loadmaster_framework::{
    CycleState, FitError, Now, PermitResult, PluginStates, PodInfo, PostFilterCx, Rejection,
    SerialCx,
};
use loadmaster_stdx::Rng;
use serde_json::{Map, Value, json};

use super::{EventObjectError, GangCase, GangStep, LocalOracleError, SchedulingInput};

const PLUGIN: &str = "Coscheduling";

/// Between two steps: more than the backoff of a group.
const BETWEEN_STEPS: Duration = Duration::from_secs(11);

/// Performs the steps one after the other.
pub(super) fn gangs(
    input: &mut SchedulingInput<'_>,
    objects: &[Value],
    case: &GangCase,
) -> Result<Value, LocalOracleError> {
    let mut pods = BTreeMap::new();
    for object in objects.iter().filter(|object| object["kind"] == "Pod") {
        let error = |source| LocalOracleError::Object { side: "step's", source };
        let pod = super::pod(object).map_err(error)?;
        let parsed = input.world.parse_pod(&pod).map_err(EventObjectError::from).map_err(error)?;
        pods.insert(super::super::full_name(object), Arc::new(parsed));
    }
    let states = input.plugin_states();
    let mut run = GangRun { input, states, pods, reserved: BTreeMap::new() };
    let mut answers = Vec::new();
    for step in &case.steps {
        if !matches!(step, GangStep::Schedule { immediately: true, .. }) {
            run.advance_time(BETWEEN_STEPS);
        }
        let mut answer = match step {
            GangStep::Schedule { pod, node, .. } => run.schedule(pod, node)?,
            GangStep::Timeout { pod } => run.time_out(pod),
            GangStep::BindFails { pod } => run.fail_bind(pod),
            GangStep::Order => {
                let states = &run.states;
                let less = super::order(run.input, states, objects, &case.queued)?;
                Map::from_iter([("less".to_owned(), less["less"].clone())])
            }
        };
        run.finish_step(&mut answer);
        answers.push(answer);
    }
    Ok(json!({"steps": answers}))
}

struct GangRun<'a, 'p> {
    input: &'a mut SchedulingInput<'p>,
    states: PluginStates,
    /// By full name.
    pods: BTreeMap<String, Arc<PodInfo>>,
    /// Pods that the steps have given a node, by uid.
    reserved: BTreeMap<Box<str>, Arc<PodInfo>>,
}

impl GangRun<'_, '_> {
    fn advance_time(&mut self, by: Duration) {
        let Now { mono, wall } = self.input.world.now();
        let wall = Timestamp(wall.0 + by.as_nanos() as i64);
        self.input.world.set_now(Now { mono: mono.after(by), wall });
    }

    fn pod(&self, name: &str) -> Result<&Arc<PodInfo>, LocalOracleError> {
        self.pods.get(name).ok_or_else(|| LocalOracleError::PodNotFound(name.to_owned()))
    }

    fn serial<'s>(&'s mut self, cycle: &'s mut CycleState) -> SerialCx<'s> {
        SerialCx { world: &self.input.world, cycle, states: &mut self.states }
    }

    /// PreFilter; then PostFilter if it rejects the pod or there is no node, else Reserve and Permit.
    fn schedule(&mut self, name: &str, node: &str) -> Result<Map<String, Value>, LocalOracleError> {
        let (mut answer, mut cycle) = (Map::new(), CycleState::default());
        let pod = self.pod(name)?.clone();
        if !pod.node_name.is_empty() || self.reserved.contains_key(&pod.uid) {
            return Ok(answer);
        }
        let profile = self.input.profile;
        let found = profile.pre_filter.iter().find(|member| member.name == PLUGIN);
        let member = found.ok_or_else(|| LocalOracleError::PluginNotFound {
            profile: profile.scheduler_name.clone(),
            plugin: PLUGIN.to_owned(),
        })?;
        let result = member.point.pre_filter(self.serial(&mut cycle), &pod);
        answer.insert("preFilter".to_owned(), status(result.as_ref().err()));
        if result.is_err() || node.is_empty() {
            let rejection = self.post_filter(&mut cycle, &pod);
            answer.insert("postFilter".to_owned(), status(rejection.as_ref()));
            return Ok(answer);
        }
        let row = self.input.world.nodes().row(node);
        let row = row.ok_or_else(|| LocalOracleError::PodNotFound(node.to_owned()))?;
        let pod = Arc::new(PodInfo { node_name: Str::new(node), ..(*pod).clone() });
        self.input.world.add_pod(row, pod.clone());
        self.reserved.insert(pod.uid.clone(), pod.clone());
        let permitted = self.permit(&mut cycle, &pod, node);
        let shown = match &permitted {
            Ok(PermitResult::Allow) => status(None),
            Ok(PermitResult::Wait(time)) => {
                answer.insert("waitSeconds".to_owned(), json!(time.as_secs()));
                self.input.world.waiting_pods_mut().upsert(&pod, [PLUGIN].into_iter());
                json!({"code": "Wait"})
            }
            Err(rejection) => status(Some(rejection)),
        };
        answer.insert("permit".to_owned(), shown);
        if permitted.is_err() {
            self.unreserve(&pod.uid);
        }
        Ok(answer)
    }

    fn post_filter(&mut self, cycle: &mut CycleState, pod: &Arc<PodInfo>) -> Option<Rejection> {
        let profile = self.input.profile;
        let member = profile.post_filter.iter().find(|member| member.name == PLUGIN)?;
        let fit_error = FitError {
            node_codes: &[],
            rows_where_preemption_might_help: &[],
            filter_runner: &CpuOnlyFilter,
            has_preempting_extenders: false,
        };
        let cx = PostFilterCx::new(&mut self.input.world, cycle, &mut self.states);
        let input = PluginStepInput::Start;
        match member.point.post_filter(cx, pod, fit_error, &mut Rng::new(0), input) {
            PluginStep::Fail(rejection) => Some(rejection),
            _ => None,
        }
    }

    fn permit(
        &mut self,
        cycle: &mut CycleState,
        pod: &Arc<PodInfo>,
        node: &str,
    ) -> Result<PermitResult, Rejection> {
        let profile = self.input.profile;
        let world = &self.input.world;
        let Some(node) = world.nodes().row(node).and_then(|row| world.node(row)) else {
            return Ok(PermitResult::Allow);
        };
        for member in profile.reserve.iter().filter(|member| member.name == PLUGIN) {
            let cx = SerialCx { world, cycle, states: &mut self.states };
            member.point.reserve(cx, pod, node)?;
        }
        let member = profile.permit.iter().find(|member| member.name == PLUGIN);
        let cx = SerialCx { world, cycle, states: &mut self.states };
        member.map_or(Ok(PermitResult::Allow), |member| member.point.permit(cx, pod, node))
    }

    fn time_out(&mut self, name: &str) -> Map<String, Value> {
        let uid = self.pods.get(name).map(|pod| pod.uid.clone()).unwrap_or_default();
        if self.input.world.waiting_pods().get(&uid).is_some() {
            self.unreserve(&uid);
        }
        Map::new()
    }

    fn fail_bind(&mut self, name: &str) -> Map<String, Value> {
        let uid = self.pods.get(name).map(|pod| pod.uid.clone()).unwrap_or_default();
        if self.input.world.waiting_pods().get(&uid).is_none() {
            self.unreserve(&uid);
        }
        Map::new()
    }

    /// Takes the pod's node away, if it has one.
    fn unreserve(&mut self, uid: &str) {
        self.input.world.waiting_pods_mut().remove(uid);
        let Some(pod) = self.reserved.remove(uid) else { return };
        self.input.world.remove_pod(uid);
        let (profile, mut cycle) = (self.input.profile, CycleState::default());
        for member in profile.reserve.iter().filter(|member| member.name == PLUGIN) {
            let cx = self.serial(&mut cycle);
            member.point.unreserve(cx, &pod, &pod.node_name);
        }
    }

    /// Performs the actions that the plugin has requested, and those that follow from them.
    fn finish_step(&mut self, answer: &mut Map<String, Value>) {
        let (mut allowed, mut rejected) = (Vec::new(), Vec::new());
        loop {
            let actions = self.states.take_requested_actions();
            if actions.is_empty() {
                break;
            }
            for action in actions {
                let full_name = |uid: &str| self.reserved.get(uid).map(|pod| pod.full_name());
                match action {
                    PluginAction::Allow { uid, .. } => {
                        allowed.extend(full_name(&uid));
                        self.input.world.waiting_pods_mut().remove(&uid);
                    }
                    PluginAction::Reject { uid, .. } => {
                        rejected.extend(full_name(&uid));
                        self.unreserve(&uid);
                    }
                    _ => {}
                }
            }
        }
        for (field, mut names) in [("allowed", allowed), ("rejected", rejected)] {
            if !names.is_empty() {
                names.sort_unstable();
                answer.insert(field.to_owned(), json!(names));
            }
        }
    }
}

fn status(rejection: Option<&Rejection>) -> Value {
    let Some(rejection) = rejection else { return json!({"code": "Success"}) };
    let mut shown = json!({"code": rejection.code().name()});
    let reasons = rejection.reasons();
    if !reasons.is_empty() {
        shown["reasons"] = json!(reasons);
    }
    shown
}
