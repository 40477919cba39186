//! One bind, until it is known what became of it.

use std::time::Duration;

use loadmaster_framework::request::{ApiRequest, Verb};
use serde::Deserialize;
use serde_json::Value;

use super::Outcome;
use crate::answer::status_of;
use crate::lane::{Reply, SendError};

/// Answers that ask to come back are followed so often, as client-go.
pub(super) const N_RETRIES_MAX: u32 = 10;

/// A pod that is still unbound after a bind of unknown outcome is bound again so often.
const N_POSTS_MAX: u32 = 5;

/// Reading that is refused is tried again so often.
const N_REFUSED_READS_MAX: u32 = 3;

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// What a bind wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's uid; empty if any pod of this name is meant.
    pub uid: String,
    /// The node.
    pub node: String,
}

impl Intent {
    /// What a request wants, if it is a bind.
    pub fn of(request: &ApiRequest) -> Option<Intent> {
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
        Some(Intent {
            namespace: request.namespace.to_string(),
            name: request.name.to_string(),
            uid: text("/metadata/uid"),
            node: text("/target/name"),
        })
    }
}

/// What is to be done next about a bind.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Send the bind.
    Post,
    /// Read the pod.
    Read,
    /// Wait, then ask for the next step.
    Pause(Duration),
    /// It is known what became of it.
    Finish(Outcome),
}

/// What came of a step.
#[derive(Clone, Debug)]
pub enum Answer {
    /// An answer to sending or reading.
    Reply(Reply),
    /// None.
    Error(SendError),
}

/// A bind under way.
#[derive(Clone, Debug)]
pub struct Bind {
    intent: Intent,
    /// An attempt may have been carried out unseen.
    may_be_bound: bool,
    /// What comes after the pause.
    then: Then,
    pause: Option<Duration>,
    n_posts: u32,
    n_retries: u32,
    n_refused_reads: u32,
    n_pauses: u32,
}

#[derive(Clone, Debug, PartialEq)]
enum Then {
    Post,
    Read,
    Finish(Outcome),
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct PodNow {
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

impl Bind {
    /// Nothing has been sent yet.
    pub fn new(intent: Intent) -> Bind {
        Bind {
            intent,
            may_be_bound: false,
            then: Then::Post,
            pause: None,
            n_posts: 0,
            n_retries: 0,
            n_refused_reads: 0,
            n_pauses: 0,
        }
    }

    /// Whether the outcome had to be found out by reading.
    pub fn was_unknown(&self) -> bool {
        self.may_be_bound
    }

    /// What is to be done now.
    pub fn step(&mut self) -> Step {
        if let Some(pause) = self.pause.take() {
            return Step::Pause(pause);
        }
        match &self.then {
            Then::Post => Step::Post,
            Then::Read => Step::Read,
            Then::Finish(outcome) => Step::Finish(outcome.clone()),
        }
    }

    /// Takes the answer to the bind.
    pub fn posted(&mut self, answer: Answer) {
        self.n_posts += 1;
        let reply = match answer {
            Answer::Reply(reply) => reply,
            Answer::Error(error) if error.may_have_arrived() => {
                self.may_be_bound = true;
                return self.read_soon();
            }
            Answer::Error(_) if self.may_be_bound => return self.read_soon(),
            Answer::Error(error) => {
                let message = error.to_string();
                return self.finish(Outcome::NotSent { message });
            }
        };
        if reply.is_success() {
            return self.finish(Outcome::Done(Value::Null));
        }
        // The server may have given up waiting for its store, which has not given up.
        self.may_be_bound |= reply.status >= 500;
        if let Some(pause) = reply.retry_after
            && (reply.status == 429 || reply.status >= 500)
            && self.n_retries < N_RETRIES_MAX
        {
            self.n_retries += 1;
            self.pause = Some(pause);
            self.then = Then::Post;
            return;
        }
        if self.may_be_bound {
            // A conflict may be with ourselves.
            return self.read_soon();
        }
        self.finish(refused(&reply));
    }

    /// Takes the answer to reading the pod.
    pub fn read(&mut self, answer: Answer) {
        let reply = match answer {
            Answer::Reply(reply) => reply,
            // As long as it takes: nothing else could be done in the meantime either.
            Answer::Error(_) => return self.read_later(None),
        };
        match reply.status {
            200 => self.read_pod(&reply),
            404 => self.finish(refused(&reply)),
            429 | 500.. => self.read_later(reply.retry_after),
            _ => {
                self.n_refused_reads += 1;
                if self.n_refused_reads < N_REFUSED_READS_MAX {
                    return self.read_later(reply.retry_after);
                }
                let status = status_of(reply.status, &reply.body);
                let message = format!("the pod cannot be read: {} {}", status.code, status.message);
                self.finish(Outcome::Unknown { message });
            }
        }
    }

    fn read_pod(&mut self, reply: &Reply) {
        let Ok(PodNow { metadata, spec }) = serde_json::from_slice(&reply.body) else {
            return self.read_later(None);
        };
        if !self.intent.uid.is_empty() && metadata.uid != self.intent.uid {
            return self.finish(Outcome::Refused {
                status: 409,
                reason: "Conflict".to_owned(),
                message: format!("pod {} has been replaced by another one", self.intent.name),
            });
        }
        if spec.node_name == self.intent.node {
            return self.finish(Outcome::Done(Value::Null));
        }
        if !spec.node_name.is_empty() {
            return self.finish(Outcome::BoundElsewhere { node: spec.node_name });
        }
        // The lost attempt may still be on its way; to the same node it does no harm.
        if self.n_posts < N_POSTS_MAX {
            self.then = Then::Post;
            self.pause = Some(self.grow());
            return;
        }
        let message = format!("still unbound after {} attempts without an answer", self.n_posts);
        let reason = "Timeout".to_owned();
        self.finish(Outcome::Refused { status: 504, reason, message });
    }

    fn finish(&mut self, outcome: Outcome) {
        self.then = Then::Finish(outcome);
    }

    fn read_soon(&mut self) {
        self.then = Then::Read;
    }

    fn read_later(&mut self, retry_after: Option<Duration>) {
        let pause = self.grow();
        self.pause = Some(retry_after.unwrap_or(pause).max(pause));
        self.then = Then::Read;
    }

    fn grow(&mut self) -> Duration {
        let pause = pause(self.n_pauses);
        self.n_pauses += 1;
        pause
    }
}

/// The nth pause, from 0: 100 ms, doubled each time, up to 10 s.
pub(super) fn pause(nth: u32) -> Duration {
    (PAUSE_MIN * (1 << nth.min(10))).min(PAUSE_MAX)
}

/// A refusal as an outcome.
pub(super) fn refused(reply: &Reply) -> Outcome {
    let status = status_of(reply.status, &reply.body);
    Outcome::Refused { status: reply.status, reason: status.reason, message: status.message }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happens, a word each: `200` or `503+2` (retry after) to a bind, `unsent`, `lost`; `free`, `ours`, `other`, `new`, `gone`,
    /// `403`, `502` to reading. What is done, in words.
    #[track_caller]
    fn check(answers: &str, want: &str) {
        let mut bind = Bind::new(Intent {
            namespace: "n".to_owned(),
            name: "p".to_owned(),
            uid: "u".to_owned(),
            node: "a".to_owned(),
        });
        let mut answers = answers.split(' ').map(answer);
        let mut done = Vec::new();
        for _ in 0..100 {
            match bind.step() {
                Step::Post => {
                    done.push("post".to_owned());
                    bind.posted(answers.next().unwrap());
                }
                Step::Read => {
                    done.push("read".to_owned());
                    bind.read(answers.next().unwrap());
                }
                Step::Pause(pause) => done.push(format!("{}ms", pause.as_millis())),
                Step::Finish(outcome) => {
                    done.push(match outcome {
                        Outcome::Done(_) => "done".to_owned(),
                        Outcome::Refused { status, .. } => format!("refused {status}"),
                        Outcome::BoundElsewhere { node } => format!("on {node}"),
                        Outcome::NotSent { .. } => "not sent".to_owned(),
                        Outcome::Unknown { .. } => "unknown".to_owned(),
                    });
                    break;
                }
            }
        }
        assert_eq!(done.join(" "), want);
        assert_eq!(answers.count(), 0, "answers left over");
    }

    fn answer(word: &str) -> Answer {
        let pod = |uid: &str, node: &str| {
            let body =
                format!(r#"{{"metadata":{{"uid":"{uid}"}},"spec":{{"nodeName":"{node}"}}}}"#);
            Answer::Reply(Reply {
                status: 200,
                retry_after: None,
                is_protobuf: false,
                body: body.into(),
            })
        };
        let (server, text) = ("s".into(), "t".into());
        match word {
            "unsent" => Answer::Error(SendError::NotSent { server, text }),
            "lost" => Answer::Error(SendError::Lost { server, text }),
            "free" => pod("u", ""),
            "ours" => pod("u", "a"),
            "other" => pod("u", "b"),
            "new" => pod("v", ""),
            status => {
                let (status, after) = status.split_once('+').unwrap_or((status, ""));
                let retry_after = after.parse().ok().map(Duration::from_secs);
                let status = status.parse().unwrap();
                let body = "{}".into();
                Answer::Reply(Reply { status, retry_after, is_protobuf: false, body })
            }
        }
    }

    #[test]
    fn binds() {
        check("201", "post done");
        check("409", "post refused 409");
        check("404", "post refused 404");
        check("unsent", "post not sent");
        check("429", "post refused 429");
        check("429+1 201", "post 1000ms post done");
        // Outcomes that are unknown.
        check("lost ours", "post read done");
        check("lost other", "post read on b");
        check("lost new", "post read refused 409");
        check("lost 404", "post read refused 404");
        check("500 ours", "post read done");
        check("504 free 201", "post read 100ms post done");
        // The first attempt arrived after all, while the second was on its way.
        check("lost free 409 ours", "post read 100ms post read done");
        check("503+2 409 ours", "post 2000ms post read done");
        check("lost free unsent ours", "post read 100ms post read done");
        // Reading fails, too.
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
    fn pauses_end_growing() {
        assert_eq!(pause(0), Duration::from_millis(100));
        assert_eq!(pause(6), Duration::from_millis(6_400));
        assert_eq!(pause(7), PAUSE_MAX);
        assert_eq!(pause(u32::MAX), PAUSE_MAX);
    }
}
