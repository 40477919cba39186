//! Playing a scenario: step by step, the questions that its expectations are answers to.

use loadmaster_framework::args::decode;
use serde_json::{Value, json};

use super::expect::{self, Expect, Recorded};
use super::preempt::Preempt;
use super::shorthand::{NodeShort, PodShort, ShorthandError};
use super::{Scenario, ScenarioError, Step};
use crate::cases::{Ask, Case, Event};

/// A question, and which expectation it is about.
#[derive(Clone, Debug)]
pub struct Question {
    /// Index of the step.
    pub step: usize,
    pub about: About,
    pub case: Case,
}

/// Which expectation of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// Where the pod could go.
    Expect { pod: String },
    /// Which pods would have to go for the pod.
    Preempt { pod: String },
    /// What the plugin says to the event.
    Hint { plugin: String },
    /// The pod's signature.
    Sign { pod: String },
}

/// A step cannot be played.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    #[error("expected one of submit, delete, expect, preempt, sign, event, found {0} of them")]
    Kinds(usize),
    #[error("expected the name of a pod or node of the cluster, found {0:?}")]
    Unknown(String),
    #[error("expected a pod to ask about, none was submitted")]
    NoPod,
    #[error("expected an event such as `Node Add`, found {0:?}")]
    Event(String),
    #[error("expected an object with a name")]
    NoName,
    #[error("{name}")]
    Shorthand {
        name: String,
        #[source]
        source: ShorthandError,
    },
    #[error("{0}")]
    Object(String),
}

impl Scenario {
    /// All questions in order. Events without a list of plugins are about `plugin`.
    pub fn questions(&self, plugin: &str) -> Result<Vec<Question>, ScenarioError> {
        let mut play = Play {
            objects: self.world()?,
            config: self.configuration(),
            last: None,
            questions: Vec::new(),
        };
        for (at, step) in self.steps.iter().enumerate() {
            let failed = |source| ScenarioError::Step { step: at, source };
            play.step(at, step, plugin).map_err(failed)?;
        }
        Ok(play.questions)
    }

    /// What is recorded for a question.
    pub fn recorded(&self, question: &Question) -> Option<Recorded> {
        let step = self.steps.get(question.step)?;
        match &question.about {
            About::Expect { pod } => {
                let expect = step.expect.as_ref()?.get(pod)?;
                (!expect.is_empty()).then(|| Recorded::Expect(Box::new(expect.clone())))
            }
            About::Preempt { pod } => {
                let preempt = step.preempt.as_ref()?.get(pod)?;
                let is_empty = *preempt == Preempt::default();
                (!is_empty).then(|| Recorded::Preempt(Box::new(preempt.clone())))
            }
            About::Hint { plugin } => {
                Some(Recorded::Hint(step.hints.as_ref()?.get(plugin)?.clone()))
            }
            About::Sign { pod } => Some(Recorded::Signature(step.sign.as_ref()?.get(pod)?.clone())),
        }
    }
}

impl Scenario {
    /// What of an answer goes into the file: of a signature only the parts that are there already, unless none is.
    pub fn narrow(&self, question: &Question, found: Recorded) -> Recorded {
        match (self.recorded(question), found) {
            (Some(Recorded::Signature(Some(known))), Recorded::Signature(Some(mut parts)))
                if !known.is_empty() =>
            {
                parts.retain(|key, _| known.contains_key(key));
                Recorded::Signature(Some(parts))
            }
            (_, found) => found,
        }
    }
}

impl Question {
    /// An answer as it is recorded.
    pub fn found(&self, answer: &Value, scorers: Option<&[String]>) -> Recorded {
        match &self.about {
            About::Expect { .. } => {
                Recorded::Expect(Box::new(Expect::from_answer(answer, scorers)))
            }
            About::Preempt { .. } => Recorded::Preempt(Box::new(Preempt::from_answer(answer))),
            About::Hint { .. } => Recorded::Hint(expect::hint(answer)),
            About::Sign { .. } => Recorded::Signature(expect::signature(answer)),
        }
    }
}

struct Play {
    objects: Vec<Value>,
    config: Option<Value>,
    /// The pod submitted last.
    last: Option<String>,
    questions: Vec<Question>,
}

impl Play {
    fn step(&mut self, at: usize, step: &Step, plugin: &str) -> Result<(), StepError> {
        let kinds = [
            step.submit.is_some(),
            step.delete.is_some(),
            step.expect.is_some(),
            step.preempt.is_some(),
            step.sign.is_some(),
            step.event.is_some(),
        ];
        let n_kinds = kinds.into_iter().filter(|is_there| *is_there).count();
        if n_kinds != 1 {
            return Err(StepError::Kinds(n_kinds));
        }
        for (name, pod) in step.submit.iter().flatten() {
            self.objects.push(pod.object(name).map_err(|source| shorthand(name, source))?);
            self.last = Some(name.clone());
        }
        for name in step.delete.iter().flatten() {
            let at = self.find(name)?;
            self.objects.remove(at);
        }
        for name in step.expect.iter().flatten().map(|(name, _)| name) {
            self.ask(at, About::Expect { pod: name.clone() }, name, Ask::Explain)?;
        }
        for name in step.preempt.iter().flatten().map(|(name, _)| name) {
            self.ask(at, About::Preempt { pod: name.clone() }, name, Ask::Preemption)?;
        }
        for name in step.sign.iter().flatten().map(|(name, _)| name) {
            self.ask(at, About::Sign { pod: name.clone() }, name, Ask::Sign)?;
        }
        match &step.event {
            Some(event) => self.event(at, step, event, plugin),
            None => Ok(()),
        }
    }

    fn event(
        &mut self,
        at: usize,
        step: &Step,
        event: &str,
        plugin: &str,
    ) -> Result<(), StepError> {
        let (resource, action) =
            event.split_once(' ').ok_or_else(|| StepError::Event(event.to_owned()))?;
        let old = self.object(resource, step.old.as_ref())?;
        let new = self.object(resource, step.new.as_ref())?;
        self.happen(resource, action, &old, &new);
        let pod = step.pod.clone().or_else(|| self.last.clone()).ok_or(StepError::NoPod)?;
        let listed: Vec<String> =
            step.hints.iter().flatten().map(|(plugin, _)| plugin.clone()).collect();
        let plugins = if listed.is_empty() { vec![plugin.to_owned()] } else { listed };
        for plugin in plugins {
            let event = Event {
                plugin: plugin.clone(),
                resource: resource.to_owned(),
                action: action.to_owned(),
                old: old.clone(),
                new: new.clone(),
            };
            self.ask(at, About::Hint { plugin }, &pod, Ask::Hint(Box::new(event)))?;
        }
        if resource == "Node" && action == "Delete" {
            // The scheduler asks before it takes the node out.
            self.objects.retain(|object| !is_same(object, &old));
        }
        Ok(())
    }

    /// The cluster as of the event.
    fn happen(&mut self, resource: &str, action: &str, old: &Value, new: &Value) {
        if !new.is_null() {
            match self.objects.iter_mut().find(|object| is_same(object, new)) {
                Some(place) => *place = new.clone(),
                None => self.objects.push(new.clone()),
            }
        } else if resource != "Node" && action == "Delete" {
            self.objects.retain(|object| !is_same(object, old));
        }
    }

    fn object(&self, resource: &str, given: Option<&Value>) -> Result<Value, StepError> {
        let given = match given {
            None | Some(Value::Null) => return Ok(Value::Null),
            Some(Value::String(name)) => return Ok(self.objects[self.find(name)?].clone()),
            Some(whole) if whole.get("kind").is_some() => return Ok(whole.clone()),
            Some(short) => short,
        };
        let failed = |error: loadmaster_framework::FieldError| StepError::Object(error.to_string());
        if resource == "Node" {
            let short: NodeShort = decode(given).map_err(failed)?;
            let name = short.name.clone().ok_or(StepError::NoName)?;
            return short.object(&name).map_err(|source| shorthand(&name, source));
        }
        let short: PodShort = decode(given).map_err(failed)?;
        let name = short.name.clone().ok_or(StepError::NoName)?;
        short.object(&name).map_err(|source| shorthand(&name, source))
    }

    fn ask(&mut self, step: usize, about: About, pod: &str, ask: Ask) -> Result<(), StepError> {
        let object = &self.objects[self.find(pod)?];
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let case = Case {
            id: self.questions.len() as u64,
            pod: format!("{namespace}/{name}"),
            config: self.config.clone(),
            objects: self.objects.clone(),
            ask,
        };
        self.questions.push(Question { step, about, case });
        Ok(())
    }

    /// The pod or node of this name, or the pod `namespace/name`.
    fn find(&self, name: &str) -> Result<usize, StepError> {
        let (namespace, short) = match name.split_once('/') {
            Some((namespace, short)) => (Some(namespace), short),
            None => (None, name),
        };
        let found = self.objects.iter().position(|object| {
            let metadata = &object["metadata"];
            (object["kind"] == "Pod" || object["kind"] == "Node")
                && metadata["name"] == short
                && namespace.is_none_or(|namespace| {
                    metadata["namespace"].as_str().unwrap_or("default") == namespace
                })
        });
        found.ok_or_else(|| StepError::Unknown(name.to_owned()))
    }
}

fn shorthand(name: &str, source: ShorthandError) -> StepError {
    StepError::Shorthand { name: name.to_owned(), source }
}

fn is_same(a: &Value, b: &Value) -> bool {
    let id = |object: &Value| {
        let metadata = &object["metadata"];
        json!([
            object["kind"],
            metadata["name"],
            metadata["namespace"].as_str().unwrap_or("default")
        ])
    };
    id(a) == id(b)
}
