//! Fake extenders that answer late, never, with an error, or at random, by the seed of the run. Once the faults have ended they accept
//! everything at once. An extender that binds may do so after the scheduler has given up.

use std::time::Duration;

use loadmaster_engine::engine::{ApiReply, ApiServerCall, EngineEvent, ExtenderCall};
use loadmaster_engine::{MonoTime, Now, Profile};
use loadmaster_extender::messages::{
    ExtenderBindingResult, ExtenderFilterResult, ExtenderPreemptionResult, HostPriority,
};
use loadmaster_extender::{ExtenderOperation, ExtenderRequest, ExtenderResponse};
use loadmaster_framework::Registry;
use loadmaster_framework::api_calls::{ApiRequest, Verb};
use loadmaster_stdx::Rng;
use serde::Serialize;
use serde_json::{Value, json};

use super::simulated_profiles::simulated_profile;
use crate::fake_api_server::FakeApiServer;
use loadmaster_engine::world_loader::DefaultProfileError;

/// The set of [`sets`] with an extender that binds.
pub(super) const SET_WITH_BINDER: usize = 1;

/// Two sets of extenders: one that filters, prioritizes and takes part in preemption together with an ignorable one that filters and
/// prioritizes; and one that filters and binds.
pub(super) fn sets() -> [Value; 2] {
    let extender = |config: Value| {
        let mut extender = json!({"urlPrefix": "http://extender", "nodeCacheCapable": true});
        for (key, value) in config.as_object().into_iter().flatten() {
            extender[key] = value.clone();
        }
        extender
    };
    let scores = json!({"filterVerb": "f", "prioritizeVerb": "p", "preemptVerb": "v", "weight": 2});
    let ignorable = json!({
        "filterVerb": "f", "prioritizeVerb": "p", "weight": 1, "ignorable": true, "httpTimeout": "1s",
    });
    let binds = json!({"filterVerb": "f", "bindVerb": "b"});
    [json!([extender(scores), extender(ignorable)]), json!([extender(binds)])]
}

/// The default profile with each of the sets of extenders.
pub fn profiles_with_extenders(registry: &Registry) -> Result<[Profile; 2], DefaultProfileError> {
    let profile = |extenders| simulated_profile(registry, json!({}), extenders);
    let [first, second] = sets();
    Ok([profile(first)?.0, profile(second)?.0])
}

/// A response in flight.
struct InFlightResponse {
    /// Leader term of the engine that sent the request.
    term: u64,
    call: ExtenderCall,
    due: MonoTime,
    kind: ResponseKind,
}

#[derive(Clone, Copy, PartialEq)]
enum ResponseKind {
    /// It accepts all nodes.
    Accept,
    /// It answers at random.
    Random,
    /// The request fails.
    Error,
}

/// The response of an extender.
pub(super) struct ExtenderReply {
    pub term: u64,
    /// The event for the engine.
    pub event: EngineEvent,
    /// For a bind: the same as an API call that the engine would have made itself.
    pub bind: Option<(ApiServerCall, ApiReply)>,
}

pub(super) struct FakeExtenders {
    rng: Rng,
    is_healthy: bool,
    responses: Vec<InFlightResponse>,
    pub n_requests: u64,
    /// Requests that failed or were never answered.
    pub n_failed: u64,
}

impl FakeExtenders {
    pub fn new(rng: Rng) -> FakeExtenders {
        FakeExtenders { rng, is_healthy: false, responses: Vec::new(), n_requests: 0, n_failed: 0 }
    }

    /// Ends the faults: from now on everything is accepted.
    pub fn end_faults(&mut self, now: MonoTime) {
        self.is_healthy = true;
        self.responses.iter_mut().for_each(|response| response.due = response.due.min(now));
    }

    /// Sends a request of the engine.
    pub fn send(&mut self, now: MonoTime, term: u64, call: ExtenderCall) {
        self.n_requests += 1;
        let rng = &mut self.rng;
        if self.is_healthy {
            return self.responses.push(InFlightResponse {
                term,
                call,
                due: now,
                kind: ResponseKind::Accept,
            });
        }
        if rng.one_in(12) {
            self.n_failed += 1;
            return;
        }
        // The timeouts are five seconds (two extenders) and one second (one extender); later responses find no receiver.
        let longest = *rng.pick(&[0, 50, 900, 4_000, 15_000]);
        let delay = Duration::from_millis(rng.range(0, longest) as u64);
        let kind = match rng.below(8) {
            0 => ResponseKind::Error,
            1..=3 => ResponseKind::Accept,
            _ => ResponseKind::Random,
        };
        self.n_failed += u64::from(kind == ResponseKind::Error);
        self.responses.push(InFlightResponse { term, call, due: now.after(delay), kind });
    }

    /// When the next response is due.
    pub fn next_response_due(&self) -> Option<MonoTime> {
        self.responses.iter().map(|response| response.due).min()
    }

    /// Takes one of the responses that are due, in random order.
    pub fn next_response(
        &mut self,
        now: Now,
        api_server: &mut FakeApiServer,
    ) -> Option<ExtenderReply> {
        let due =
            self.responses.iter().enumerate().filter(|(_, response)| response.due <= now.mono);
        let due: Vec<usize> = due.map(|(at, _)| at).collect();
        let at = *due.get(self.rng.below(due.len().max(1) as u64) as usize)?;
        let InFlightResponse { term, call, kind, .. } = self.responses.swap_remove(at);
        let ExtenderCall { id, request, .. } = call;
        let mut bind = None;
        let response = match (&request.operation, kind) {
            (_, ResponseKind::Error) => {
                if let ExtenderOperation::Bind(node) = &request.operation {
                    let error = loadmaster_engine::engine::ApiError {
                        code: 0,
                        message: "connection refused".to_owned(),
                    };
                    let api_request = binding_request(&request, node);
                    bind = Some((ApiServerCall { id, request: api_request }, Err(error)));
                }
                Err("Post \"http://extender\": connection refused".to_owned())
            }
            (ExtenderOperation::Bind(node), _) => {
                let api_request = binding_request(&request, node);
                let reply = api_server.handle_request(&api_request, now.wall);
                let error = reply.as_ref().err().map(|error| error.message.clone());
                bind = Some((ApiServerCall { id, request: api_request }, reply));
                let error = error.unwrap_or_default();
                Ok(ExtenderResponse::Bind(ExtenderBindingResult { error }))
            }
            (operation, kind) => Ok(self.respond(operation, kind == ResponseKind::Random)),
        };
        Some(ExtenderReply {
            term,
            event: EngineEvent::ExtenderReplied { call: id, reply: response },
            bind,
        })
    }

    fn respond(&mut self, operation: &ExtenderOperation, is_random: bool) -> ExtenderResponse {
        let rng = &mut self.rng;
        match operation {
            ExtenderOperation::Filter(nodes) => {
                let mut result = ExtenderFilterResult::default();
                let mut left = Vec::new();
                for node in nodes.iter() {
                    match if is_random { rng.below(5) } else { 0 } {
                        0..=2 => left.push(node.to_string()),
                        3 => drop(result.failed_nodes.insert(node.to_string(), "full".to_owned())),
                        _ => {
                            let failed = &mut result.failed_and_unresolvable_nodes;
                            failed.insert(node.to_string(), "no such device".to_owned());
                        }
                    }
                }
                match if is_random { rng.below(12) } else { u64::MAX } {
                    0 => result.error = "no idea".to_owned(),
                    1 => left.push("a-node-of-another-cluster".to_owned()),
                    _ => {}
                }
                result.node_names = Some(left);
                encode_and_decode(operation, &result).unwrap_or(ExtenderResponse::Filter(result))
            }
            ExtenderOperation::Prioritize(nodes) => {
                let score = |rng: &mut Rng| if is_random { rng.range(0, 10) } else { 0 };
                let scores = nodes
                    .iter()
                    .map(|node| HostPriority { host: node.to_string(), score: score(rng) });
                let scores: Vec<HostPriority> = scores.collect();
                encode_and_decode(operation, &scores)
                    .unwrap_or(ExtenderResponse::Prioritize(scores))
            }
            ExtenderOperation::Preempt(victims) => {
                let mut left = victims.clone();
                if is_random {
                    left.retain(|_, _| !rng.one_in(3));
                }
                ExtenderResponse::Preempt(ExtenderPreemptionResult {
                    node_name_to_meta_victims: left,
                })
            }
            // Handled in `next_response`.
            ExtenderOperation::Bind(_) => ExtenderResponse::Bind(ExtenderBindingResult::default()),
        }
    }
}

/// Encodes and decodes a message as on the wire.
fn encode_and_decode(
    operation: &ExtenderOperation,
    message: &impl Serialize,
) -> Option<ExtenderResponse> {
    ExtenderResponse::decode(operation, true, &serde_json::to_vec(message).ok()?).ok()
}

/// The API request by which an extender binds a pod, as DefaultBinder would.
pub(super) fn binding_request(request: &ExtenderRequest, node: &str) -> ApiRequest {
    ApiRequest {
        verb: Verb::Create,
        group: "".into(),
        version: "v1".into(),
        resource: "pods".into(),
        namespace: request.namespace.clone(),
        name: (&*request.name).into(),
        subresource: "binding".into(),
        body: Some(json!({
            "metadata": {"namespace": &*request.namespace, "name": request.name, "uid": request.uid},
            "target": {"kind": "Node", "name": node},
        })),
    }
}
