//! Runs a scenario step by step, and collects one question for the oracle per expectation.

use std::collections::BTreeMap;

use loadmaster_framework::plugin_args::decode_json_value;
use serde_json::{Value, json};

use super::expect::{self, ExpectedResult, RecordedResult};
use super::preempt::ExpectedPreemption;
use super::shorthand::{NodeShorthand, PodShorthand, ShorthandError};
use super::{Scenario, ScenarioError, ScenarioStep};
use crate::cases::{CaseEvent, OracleCase, OracleCaseKind};

/// A question for the oracle, and the expectation that it checks.
#[derive(Clone, Debug)]
pub struct OracleQuestion {
    /// Index of the step.
    pub step: usize,
    pub about: ExpectationKind,
    pub case: OracleCase,
}

/// An expectation of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpectationKind {
    /// The scheduling result of the pod.
    Expect { pod: String },
    /// The preemption result of the pod.
    Preempt { pod: String },
    /// The plugin's queueing hint for the event.
    Hint { plugin: String },
    /// The pod's signature.
    Sign { pod: String },
}

impl ExpectationKind {
    /// The pod or plugin.
    pub fn name(&self) -> &str {
        match self {
            ExpectationKind::Expect { pod: name }
            | ExpectationKind::Preempt { pod: name }
            | ExpectationKind::Hint { plugin: name }
            | ExpectationKind::Sign { pod: name } => name,
        }
    }
}

/// A step is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    #[error("expected one of submit, delete, expect, preempt, sign, event, found {0} of them")]
    WrongNumberOfKinds(usize),
    #[error("expected the name of a pod or node of the cluster, found {0:?}")]
    ObjectNotFound(String),
    #[error("expected a pending pod, none was submitted")]
    NoPod,
    #[error("expected an event such as `Node Add`, found {0:?}")]
    Event(String),
    #[error("expected an object with a name")]
    MissingName,
    #[error("{name}")]
    Shorthand {
        name: String,
        #[source]
        source: ShorthandError,
    },
    #[error("{0}")]
    Object(String),
    #[error("loadmaster: {name}: {message}")]
    Deviation { name: String, message: String },
}

impl Scenario {
    /// All questions in order. Events without a list of plugins check the hint of `plugin`.
    pub fn questions(&self, plugin: &str) -> Result<Vec<OracleQuestion>, ScenarioError> {
        let mut play = ScenarioRunner {
            objects: self.initial_objects()?,
            config: self.configuration(),
            feature_gates: self.feature_gates.clone(),
            last: None,
            questions: Vec::new(),
        };
        for (at, step) in self.steps.iter().enumerate() {
            let failed = |source| ScenarioError::Step { step: at, source };
            play.step(at, step, plugin).map_err(failed)?;
        }
        Ok(play.questions)
    }

    /// Loadmaster's result for a question, if the file says that it differs from kube-scheduler's.
    ///
    /// # Errors
    ///
    /// If it has not the form of the recorded result.
    pub fn deviating_result(
        &self,
        question: &OracleQuestion,
    ) -> Result<Option<RecordedResult>, ScenarioError> {
        let name = question.about.name();
        let results = self.steps.get(question.step).and_then(|step| step.loadmaster.as_ref());
        let Some(written) = results.and_then(|results| results.get(name)) else { return Ok(None) };
        let decoded = match &question.about {
            ExpectationKind::Expect { .. } => {
                decode_json_value(written).map(|it| RecordedResult::Expect(Box::new(it)))
            }
            ExpectationKind::Preempt { .. } => {
                decode_json_value(written).map(|it| RecordedResult::Preempt(Box::new(it)))
            }
            ExpectationKind::Hint { .. } => decode_json_value(written).map(RecordedResult::Hint),
            ExpectationKind::Sign { .. } => {
                decode_json_value(written).map(RecordedResult::Signature)
            }
        };
        decoded.map(Some).map_err(|error| ScenarioError::Step {
            step: question.step,
            source: StepError::Deviation { name: name.to_owned(), message: error.to_string() },
        })
    }

    /// The recorded result for a question.
    pub fn recorded_result(&self, question: &OracleQuestion) -> Option<RecordedResult> {
        let step = self.steps.get(question.step)?;
        match &question.about {
            ExpectationKind::Expect { pod } => {
                let expect = step.expect.as_ref()?.get(pod)?;
                (!expect.is_empty()).then(|| RecordedResult::Expect(Box::new(expect.clone())))
            }
            ExpectationKind::Preempt { pod } => {
                let preempt = step.preempt.as_ref()?.get(pod)?;
                let is_empty = *preempt == ExpectedPreemption::default();
                (!is_empty).then(|| RecordedResult::Preempt(Box::new(preempt.clone())))
            }
            ExpectationKind::Hint { plugin } => {
                Some(RecordedResult::Hint(step.hints.as_ref()?.get(plugin)?.clone()))
            }
            ExpectationKind::Sign { pod } => {
                Some(RecordedResult::Signature(step.sign.as_ref()?.get(pod)?.clone()))
            }
        }
    }
}

impl Scenario {
    /// The part of a result that is written to the file: of a signature only the fragments that are already there, unless none is.
    pub fn keep_recorded_fragments(
        &self,
        question: &OracleQuestion,
        found: RecordedResult,
    ) -> RecordedResult {
        match (self.recorded_result(question), found) {
            (
                Some(RecordedResult::Signature(Some(known))),
                RecordedResult::Signature(Some(mut parts)),
            ) if !known.is_empty() => {
                parts.retain(|key, _| known.contains_key(key));
                RecordedResult::Signature(Some(parts))
            }
            (_, found) => found,
        }
    }
}

impl OracleQuestion {
    /// Converts an answer to the form in which it is recorded.
    pub fn to_recorded_result(&self, answer: &Value, scorers: Option<&[String]>) -> RecordedResult {
        match &self.about {
            ExpectationKind::Expect { .. } => {
                RecordedResult::Expect(Box::new(ExpectedResult::from_answer(answer, scorers)))
            }
            ExpectationKind::Preempt { .. } => {
                RecordedResult::Preempt(Box::new(ExpectedPreemption::from_answer(answer)))
            }
            ExpectationKind::Hint { .. } => RecordedResult::Hint(expect::hint(answer)),
            ExpectationKind::Sign { .. } => RecordedResult::Signature(expect::signature(answer)),
        }
    }
}

struct ScenarioRunner {
    objects: Vec<Value>,
    config: Option<Value>,
    feature_gates: BTreeMap<String, bool>,
    /// The pod submitted last.
    last: Option<String>,
    questions: Vec<OracleQuestion>,
}

impl ScenarioRunner {
    fn step(&mut self, at: usize, step: &ScenarioStep, plugin: &str) -> Result<(), StepError> {
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
            return Err(StepError::WrongNumberOfKinds(n_kinds));
        }
        for (name, pod) in step.submit.iter().flatten() {
            self.objects
                .push(pod.expand_object(name).map_err(|source| shorthand_error(name, source))?);
            self.last = Some(name.clone());
        }
        for name in step.delete.iter().flatten() {
            let at = self.find(name)?;
            self.objects.remove(at);
        }
        for name in step.expect.iter().flatten().map(|(name, _)| name) {
            self.add_question(
                at,
                ExpectationKind::Expect { pod: name.clone() },
                name,
                OracleCaseKind::Explain,
            )?;
        }
        for name in step.preempt.iter().flatten().map(|(name, _)| name) {
            self.add_question(
                at,
                ExpectationKind::Preempt { pod: name.clone() },
                name,
                OracleCaseKind::Preemption,
            )?;
        }
        for name in step.sign.iter().flatten().map(|(name, _)| name) {
            self.add_question(
                at,
                ExpectationKind::Sign { pod: name.clone() },
                name,
                OracleCaseKind::Sign,
            )?;
        }
        match &step.event {
            Some(event) => self.event(at, step, event, plugin),
            None => Ok(()),
        }
    }

    fn event(
        &mut self,
        at: usize,
        step: &ScenarioStep,
        event: &str,
        plugin: &str,
    ) -> Result<(), StepError> {
        let (resource, action) =
            event.split_once(' ').ok_or_else(|| StepError::Event(event.to_owned()))?;
        let old = self.object(resource, step.old.as_ref())?;
        let new = self.object(resource, step.new.as_ref())?;
        self.apply_event(resource, action, &old, &new);
        let pod = step.pod.clone().or_else(|| self.last.clone()).ok_or(StepError::NoPod)?;
        let listed: Vec<String> =
            step.hints.iter().flatten().map(|(plugin, _)| plugin.clone()).collect();
        let plugins = if listed.is_empty() { vec![plugin.to_owned()] } else { listed };
        for plugin in plugins {
            let event = CaseEvent {
                plugin: plugin.clone(),
                resource: resource.to_owned(),
                action: action.to_owned(),
                old: old.clone(),
                new: new.clone(),
            };
            self.add_question(
                at,
                ExpectationKind::Hint { plugin },
                &pod,
                OracleCaseKind::Hint(Box::new(event)),
            )?;
        }
        if resource == "Node" && action == "Delete" {
            // The scheduler runs the hints before it removes the node from its cache.
            self.objects.retain(|object| !is_same_object(object, &old));
        }
        Ok(())
    }

    /// Applies an event to the cluster.
    fn apply_event(&mut self, resource: &str, action: &str, old: &Value, new: &Value) {
        if !new.is_null() {
            match self.objects.iter_mut().find(|object| is_same_object(object, new)) {
                Some(place) => *place = new.clone(),
                None => self.objects.push(new.clone()),
            }
        } else if resource != "Node" && action == "Delete" {
            self.objects.retain(|object| !is_same_object(object, old));
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
            let short: NodeShorthand = decode_json_value(given).map_err(failed)?;
            let name = short.name.clone().ok_or(StepError::MissingName)?;
            return short.expand_object(&name).map_err(|source| shorthand_error(&name, source));
        }
        let short: PodShorthand = decode_json_value(given).map_err(failed)?;
        let name = short.name.clone().ok_or(StepError::MissingName)?;
        short.expand_object(&name).map_err(|source| shorthand_error(&name, source))
    }

    fn add_question(
        &mut self,
        step: usize,
        about: ExpectationKind,
        pod: &str,
        ask: OracleCaseKind,
    ) -> Result<(), StepError> {
        let object = &self.objects[self.find(pod)?];
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let case = OracleCase {
            id: self.questions.len() as u64,
            pod: format!("{namespace}/{name}"),
            config: self.config.clone(),
            feature_gates: self.feature_gates.clone(),
            objects: self.objects.clone(),
            kind: ask,
        };
        self.questions.push(OracleQuestion { step, about, case });
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
        found.ok_or_else(|| StepError::ObjectNotFound(name.to_owned()))
    }
}

fn shorthand_error(name: &str, source: ShorthandError) -> StepError {
    StepError::Shorthand { name: name.to_owned(), source }
}

fn is_same_object(a: &Value, b: &Value) -> bool {
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
