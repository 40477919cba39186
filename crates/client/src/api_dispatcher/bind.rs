//! A bind, with retries until its outcome is known.

use std::time::Duration;

use loadmaster_framework::api_calls::{ApiRequest, Verb};
use serde::Deserialize;
use serde_json::Value;

use super::ApiCallOutcome;
use crate::api_client::{N_RETRIES_MAX, Reply, SendError};
use crate::status::decode_status;

/// How often a bind is sent at most while its outcome is unknown and the pod is still unbound.
const N_POSTS_MAX: u32 = 5;

/// After so many refused reads of the pod the outcome is reported as unknown.
const N_REFUSED_READS_MAX: u32 = 3;

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The pod and the node of a bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindTarget {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's uid; empty for any pod with this name.
    pub uid: String,
    /// The name of the node.
    pub node: String,
}

impl BindTarget {
    /// The pod and the node of a request; None if it is not a bind.
    pub fn from_request(request: &ApiRequest) -> Option<BindTarget> {
        let is_bind = request.verb == Verb::Create
            && request.group.is_empty()
            && &*request.resource == "pods"
            && &*request.subresource == "binding";
        if !is_bind {
            return None;
        }
        let body = request.body.as_ref()?;
        let text = |pointer: &str| {
            body.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        Some(BindTarget {
            namespace: request.namespace.to_string(),
            name: request.name.to_string(),
            uid: text("/metadata/uid"),
            node: text("/target/name"),
        })
    }
}

/// The next step of a bind.
#[derive(Clone, Debug, PartialEq)]
pub enum BindStep {
    /// Send the bind.
    Post,
    /// Read the pod.
    Read,
    /// Wait, then take the next step.
    Pause(Duration),
    /// The outcome is known.
    Finish(ApiCallOutcome),
}

/// The reply to a step, or the error in place of it.
#[derive(Clone, Debug)]
pub enum BindReply {
    /// The server's reply.
    Reply(Reply),
    /// There is no reply.
    Error(SendError),
}

/// A bind in flight: a state machine without I/O.
#[derive(Clone, Debug)]
pub struct BindOperation {
    intent: BindTarget,
    /// The server may have executed a request whose reply was lost.
    may_be_bound: bool,
    /// The step after the pause.
    next: NextStep,
    pause: Option<Duration>,
    n_posts: u32,
    n_retries: u32,
    n_refused_reads: u32,
    n_pauses: u32,
}

#[derive(Clone, Debug, PartialEq)]
enum NextStep {
    Post,
    Read,
    Finish(ApiCallOutcome),
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct PodState {
    metadata: PodMetadata,
    spec: PodSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodMetadata {
    uid: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    node_name: String,
}

impl BindOperation {
    /// A bind that has not been sent.
    pub fn new(intent: BindTarget) -> BindOperation {
        BindOperation {
            intent,
            may_be_bound: false,
            next: NextStep::Post,
            pause: None,
            n_posts: 0,
            n_retries: 0,
            n_refused_reads: 0,
            n_pauses: 0,
        }
    }

    /// Whether a reply was lost, so that the outcome had to be found by reading the pod.
    pub fn was_outcome_unknown(&self) -> bool {
        self.may_be_bound
    }

    /// The step to be taken now.
    pub fn next_step(&mut self) -> BindStep {
        if let Some(pause) = self.pause.take() {
            return BindStep::Pause(pause);
        }
        match &self.next {
            NextStep::Post => BindStep::Post,
            NextStep::Read => BindStep::Read,
            NextStep::Finish(outcome) => BindStep::Finish(outcome.clone()),
        }
    }

    /// Handles the reply to the bind request.
    pub fn handle_post_reply(&mut self, reply: BindReply) {
        self.n_posts += 1;
        let reply = match reply {
            BindReply::Reply(reply) => reply,
            BindReply::Error(error) if error.may_have_arrived() => {
                self.may_be_bound = true;
                return self.read_soon();
            }
            BindReply::Error(_) if self.may_be_bound => return self.read_soon(),
            BindReply::Error(error) => {
                let message = error.to_string();
                return self.finish(ApiCallOutcome::NotSent { message });
            }
        };
        if reply.is_success() {
            return self.finish(ApiCallOutcome::Done(Value::Null));
        }
        // The API server may have timed out waiting for etcd, which may still execute the write.
        self.may_be_bound |= reply.status >= 500;
        if let Some(pause) = reply.retry_pause()
            && self.n_retries < N_RETRIES_MAX
        {
            self.n_retries += 1;
            self.pause = Some(pause);
            self.next = NextStep::Post;
            return;
        }
        if self.may_be_bound {
            // The conflict may be with our own earlier request.
            return self.read_soon();
        }
        self.finish(refused_outcome(&reply));
    }

    /// Handles the reply to reading the pod.
    pub fn handle_read_reply(&mut self, reply: BindReply) {
        let reply = match reply {
            BindReply::Reply(reply) => reply,
            // Retried without a limit: the outcome cannot be found in any other way.
            BindReply::Error(_) => return self.read_later(None),
        };
        match reply.status {
            200 => self.read_pod(&reply),
            404 => self.finish(refused_outcome(&reply)),
            429 | 500.. => self.read_later(reply.retry_after),
            _ => {
                self.n_refused_reads += 1;
                if self.n_refused_reads < N_REFUSED_READS_MAX {
                    return self.read_later(reply.retry_after);
                }
                let status = decode_status(reply.status, &reply.body);
                let message = format!("the pod cannot be read: {} {}", status.code, status.message);
                self.finish(ApiCallOutcome::Unknown { message });
            }
        }
    }

    fn read_pod(&mut self, reply: &Reply) {
        let Ok(PodState { metadata, spec }) = loadmaster_stdx::json::from_slice(&reply.body) else {
            return self.read_later(None);
        };
        if !self.intent.uid.is_empty() && metadata.uid != self.intent.uid {
            return self.finish(ApiCallOutcome::Refused {
                status: 409,
                reason: "Conflict".to_owned(),
                message: format!("pod {} has been replaced by another one", self.intent.name),
            });
        }
        if spec.node_name == self.intent.node {
            return self.finish(ApiCallOutcome::Done(Value::Null));
        }
        if !spec.node_name.is_empty() {
            return self.finish(ApiCallOutcome::BoundElsewhere { node: spec.node_name });
        }
        // The earlier request may still arrive; it binds to the same node.
        if self.n_posts < N_POSTS_MAX {
            self.next = NextStep::Post;
            self.pause = Some(self.next_pause());
            return;
        }
        let message = format!(
            "the pod is still unbound after {} bind requests of unknown outcome",
            self.n_posts
        );
        let reason = "Timeout".to_owned();
        self.finish(ApiCallOutcome::Refused { status: 504, reason, message });
    }

    fn finish(&mut self, outcome: ApiCallOutcome) {
        self.next = NextStep::Finish(outcome);
    }

    fn read_soon(&mut self) {
        self.next = NextStep::Read;
    }

    fn read_later(&mut self, retry_after: Option<Duration>) {
        let pause = self.next_pause();
        self.pause = Some(retry_after.unwrap_or(pause).max(pause));
        self.next = NextStep::Read;
    }

    fn next_pause(&mut self) -> Duration {
        let pause = pause(self.n_pauses);
        self.n_pauses += 1;
        pause
    }
}

/// The nth pause, from 0: 100 ms, doubled each time, up to 10 s.
pub(super) fn pause(nth: u32) -> Duration {
    (PAUSE_MIN * (1 << nth.min(10))).min(PAUSE_MAX)
}

/// The outcome of a request that the server refused.
pub(super) fn refused_outcome(reply: &Reply) -> ApiCallOutcome {
    let status = decode_status(reply.status, &reply.body);
    ApiCallOutcome::Refused { status: reply.status, reason: status.reason, message: status.message }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `replies` are the replies: `200` or `503+2` (with Retry-After) to a bind, `unsent`, `lost`; `free`, `ours`, `other`, `new`,
    /// `403`, `502` to a read. `want` are the steps and the outcome.
    #[track_caller]
    fn check(replies: &str, want: &str) {
        let mut bind = BindOperation::new(BindTarget {
            namespace: "n".to_owned(),
            name: "p".to_owned(),
            uid: "u".to_owned(),
            node: "a".to_owned(),
        });
        let mut replies = replies.split(' ').map(reply);
        let mut done = Vec::new();
        for _ in 0..100 {
            match bind.next_step() {
                BindStep::Post => {
                    done.push("post".to_owned());
                    bind.handle_post_reply(replies.next().unwrap());
                }
                BindStep::Read => {
                    done.push("read".to_owned());
                    bind.handle_read_reply(replies.next().unwrap());
                }
                BindStep::Pause(pause) => done.push(format!("{}ms", pause.as_millis())),
                BindStep::Finish(outcome) => {
                    done.push(match outcome {
                        ApiCallOutcome::Done(_) => "done".to_owned(),
                        ApiCallOutcome::Refused { status, .. } => format!("refused {status}"),
                        ApiCallOutcome::BoundElsewhere { node } => format!("on {node}"),
                        ApiCallOutcome::NotSent { .. } => "not sent".to_owned(),
                        ApiCallOutcome::Unknown { .. } => "unknown".to_owned(),
                    });
                    break;
                }
            }
        }
        assert_eq!(done.join(" "), want);
        assert_eq!(replies.count(), 0, "replies left over");
    }

    fn reply(word: &str) -> BindReply {
        let pod = |uid: &str, node: &str| {
            let body =
                format!(r#"{{"metadata":{{"uid":"{uid}"}},"spec":{{"nodeName":"{node}"}}}}"#);
            BindReply::Reply(Reply {
                status: 200,
                retry_after: None,
                is_protobuf: false,
                body: body.into(),
            })
        };
        let (server, text) = ("s".into(), "t".into());
        match word {
            "unsent" => BindReply::Error(SendError::NotSent { server, text }),
            "lost" => BindReply::Error(SendError::Lost { server, text }),
            "free" => pod("u", ""),
            "ours" => pod("u", "a"),
            "other" => pod("u", "b"),
            "new" => pod("v", ""),
            status => {
                let (status, after) = status.split_once('+').unwrap_or((status, ""));
                let retry_after = after.parse().ok().map(Duration::from_secs);
                let status = status.parse().unwrap();
                let body = "{}".into();
                BindReply::Reply(Reply { status, retry_after, is_protobuf: false, body })
            }
        }
    }

    #[test]
    fn bind_outcomes() {
        check("201", "post done");
        check("409", "post refused 409");
        check("404", "post refused 404");
        check("unsent", "post not sent");
        check("429", "post refused 429");
        check("429+1 201", "post 1000ms post done");
        // The reply is lost.
        check("lost ours", "post read done");
        check("lost other", "post read on b");
        check("lost new", "post read refused 409");
        check("lost 404", "post read refused 404");
        check("500 ours", "post read done");
        check("504 free 201", "post read 100ms post done");
        // The first request arrives after all, while the second is in flight.
        check("lost free 409 ours", "post read 100ms post read done");
        check("503+2 409 ours", "post 2000ms post read done");
        check("lost free unsent ours", "post read 100ms post read done");
        // Reading the pod fails, too.
        check("lost lost 502 429+3 ours", "post read 100ms read 200ms read 3000ms read done");
        check("lost 403 403 403", "post read 100ms read 200ms read unknown");
        check(
            "lost free lost free lost free lost free lost free",
            "post read 100ms post read 200ms post read 400ms post read 800ms post read refused 504",
        );
        check(
            "429+1 429+1 429+1 429+1 429+1 429+1 429+1 429+1 429+1 429+1 429+1",
            "post 1000ms post 1000ms post 1000ms post 1000ms post 1000ms post 1000ms post 1000ms post \
             1000ms post 1000ms post 1000ms post refused 429",
        );
    }

    #[test]
    fn pauses_are_capped() {
        assert_eq!(pause(0), Duration::from_millis(100));
        assert_eq!(pause(6), Duration::from_millis(6_400));
        assert_eq!(pause(7), PAUSE_MAX);
        assert_eq!(pause(u32::MAX), PAUSE_MAX);
    }
}
