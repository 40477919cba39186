//! KWOK stages (`kwok.x-k8s.io/v1alpha1` `Stage`), decoded strictly from files: which objects change how, and after which delay. No I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use loadmaster_api::document::{Document, FieldPath, LocatedError};
use loadmaster_stdx::Rng;
use loadmaster_stdx::duration::parse_duration_nanos;
use serde::Deserialize;
use serde_json::Value;

use super::gotemplate::GoTemplate;
use super::jq_query::JqQuery;
use crate::kind::Kind;

/// A KWOK stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Its name.
    pub name: String,
    /// The kind of object: Pod or Node.
    pub kind: Kind,
    /// None selects nothing.
    selector: Option<Vec<Requirement>>,
    weight: i64,
    weight_from: Option<JqQuery>,
    delay: Span,
    jitter: Span,
    /// The steps, in order.
    pub steps: Vec<StageNext>,
}

/// A condition on an object.
#[derive(Clone, Debug, PartialEq)]
struct Requirement {
    query: JqQuery,
    operator: Operator,
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// A duration; a value in the object takes precedence.
#[derive(Clone, Debug, Default, PartialEq)]
struct Span {
    milliseconds: Option<i64>,
    from: Option<JqQuery>,
}

/// One step of a stage (KWOK's `next`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageNext {
    /// An Event: type, reason, message.
    pub event: Option<(String, String, GoTemplate)>,
    /// Finalizers to be added, to be removed, and whether all are.
    pub finalizers: Option<StageFinalizers>,
    /// Changes.
    pub patches: Vec<StagePatch>,
    /// The object is deleted, with no grace.
    pub delete: bool,
}

/// A patch of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct StagePatch {
    /// Empty for the object itself.
    pub subresource: &'static str,
    /// The field that the result of the template is placed under (KWOK's `root`); empty for none.
    pub root: String,
    /// The type of the patch.
    pub form: PatchType,
    /// Renders the patch, in YAML.
    pub template: GoTemplate,
}

/// The type of a patch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PatchType {
    /// JSON patch, RFC 6902.
    Json,
    /// JSON merge patch, RFC 7386.
    Merge,
    /// Kubernetes'.
    #[default]
    Strategic,
}

/// Finalizers to add and to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an object")]
pub struct StageFinalizers {
    add: Vec<Item>,
    remove: Vec<Item>,
    empty: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct Item {
    value: String,
}

/// Functions for stage templates, in addition to those of all templates.
pub const STAGE_TEMPLATE_FUNCTIONS: &[&str] = &[
    "Now",
    "StartTime",
    "Version",
    "NodeName",
    "NodeIP",
    "NodePort",
    "NodeConditions",
    "NodeIPWith",
    "NodeIPsWith",
    "PodIP",
    "PodIPWith",
    "PodIPsWith",
];

impl Stage {
    /// Decodes the stages of a file.
    ///
    /// # Errors
    ///
    /// When a stage is invalid, with the position.
    pub fn from_document(document: &Document) -> Result<Vec<Stage>, LocatedError> {
        let stages: Vec<Wire> = document.decode_all()?;
        if stages.is_empty() {
            return Err(document.error_at(FieldPath::ROOT, "expected a Stage, found nothing"));
        }
        let read = |(part, wire): (usize, Wire)| {
            Stage::of(wire).map_err(|(path, text)| document.error_in_part(part, path, text))
        };
        stages.into_iter().enumerate().map(read).collect()
    }

    fn of(wire: Wire) -> Result<Stage, (FieldPath, String)> {
        let expected = |path: FieldPath, want: &str, found: &str| {
            (path, format!("expected {want}, found {found:?}"))
        };
        let at = |name: &str| FieldPath::ROOT.field(name);
        if wire.api_version != "kwok.x-k8s.io/v1alpha1" {
            return Err(expected(at("apiVersion"), "kwok.x-k8s.io/v1alpha1", &wire.api_version));
        }
        if wire.kind != "Stage" {
            return Err(expected(at("kind"), "Stage", &wire.kind));
        }
        let at = |name: &str| FieldPath::ROOT.field("spec").field(name);
        let Spec { resource_ref, selector, weight, weight_from, delay, next, steps, .. } =
            wire.spec;
        let kind = match (&*resource_ref.api_group, &*resource_ref.kind) {
            ("v1", "Pod") => Kind::Pod,
            ("v1", "Node") => Kind::Node,
            (group, kind) => {
                let found = format!("{group} {kind}");
                return Err(expected(at("resourceRef"), "a Pod or a Node of v1", &found));
            }
        };
        let delay = delay.unwrap_or_default();
        let delay_at = at("delay");
        let first = delay.duration(&delay_at)?;
        let jitter = delay.jitter(&delay_at)?;
        let mut all = Vec::new();
        match (next, steps) {
            (Some(_), Some(_)) => {
                return Err((at("steps"), "expected either next or steps".to_owned()));
            }
            (None, None) => return Err((at("next"), "expected next or steps".to_owned())),
            (Some(next), None) => all.push(next.step(&at("next"))?),
            (None, Some(steps)) => {
                for (n, step) in steps.into_iter().enumerate() {
                    all.push(step.step(&at("steps").index(n))?);
                }
            }
        }
        Ok(Stage {
            name: wire.metadata.name,
            kind,
            selector: selector.map(|it| it.requirements(&at("selector"))).transpose()?,
            weight,
            weight_from: weight_from.map(|it| it.query(&at("weightFrom"))).transpose()?,
            delay: first,
            jitter,
            steps: all,
        })
    }

    /// Whether the stage selects an object.
    pub fn selects(&self, object: &Value) -> bool {
        self.selector.as_ref().is_some_and(|all| all.iter().all(|it| it.is_met(object)))
    }

    /// Its weight among several matching stages.
    pub fn weight(&self, object: &Value) -> u64 {
        let said =
            self.weight_from.as_ref().and_then(|query| query.evaluate(object).first().copied());
        let said = said.and_then(|it| it.as_i64().or_else(|| it.as_str()?.parse().ok()));
        u64::try_from(said.unwrap_or(self.weight)).unwrap_or(0)
    }

    /// Its delay: random between the delay and the jitter duration if that is longer; else the jitter duration, if there is one.
    pub fn delay(&self, object: &Value, rng: &mut Rng, now: Timestamp) -> Duration {
        let delay = self.delay.of(object, now).unwrap_or(0);
        let milliseconds = match self.jitter.of(object, now) {
            Some(jitter) if jitter > delay => delay + rng.below(jitter - delay),
            Some(jitter) => jitter,
            None => delay,
        };
        Duration::from_millis(milliseconds)
    }
}

impl Requirement {
    fn is_met(&self, object: &Value) -> bool {
        let found = self.query.evaluate(object);
        let is_listed = |value: &&Value| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            self.values.contains(&text)
        };
        match self.operator {
            Operator::Exists => !found.is_empty(),
            Operator::DoesNotExist => found.is_empty(),
            Operator::In => found.iter().any(is_listed),
            Operator::NotIn => !found.iter().any(is_listed),
        }
    }
}

impl Span {
    /// In milliseconds; a moment that the object names counts from now.
    fn of(&self, object: &Value, now: Timestamp) -> Option<u64> {
        let said =
            self.from.as_ref().and_then(|query| query.evaluate(object).first().copied()?.as_str());
        let said = said.and_then(|text| match text.parse::<Timestamp>() {
            Ok(moment) => i64::try_from(now.duration_until(moment).as_millis()).ok(),
            Err(_) => parse_duration_nanos(text).ok().map(|nanos| nanos / 1_000_000),
        });
        said.or(self.milliseconds).map(|it| u64::try_from(it).unwrap_or(0))
    }
}

impl StageFinalizers {
    /// The new finalizers; None if nothing changes.
    pub fn apply(&self, old: &[String]) -> Option<Vec<String>> {
        let is_removed =
            |it: &&String| self.empty || self.remove.iter().any(|item| item.value == **it);
        let mut all: Vec<String> = old.iter().filter(|it| !is_removed(it)).cloned().collect();
        for item in &self.add {
            if !all.contains(&item.value) {
                all.push(item.value.clone());
            }
        }
        (all != old).then_some(all)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
struct Wire {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    metadata: Metadata,
    spec: Spec,
}

/// Labels and other metadata are ignored.
#[derive(Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
struct Spec {
    resource_ref: ResourceRef,
    selector: Option<Selector>,
    #[serde(default)]
    weight: i64,
    weight_from: Option<From>,
    delay: Option<Delay>,
    next: Option<Next>,
    steps: Option<Vec<Next>>,
    /// Whether KWOK continues immediately without waiting for the watch event. It makes no difference here.
    #[serde(default, rename = "immediateNextStage")]
    _immediate_next_stage: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
struct ResourceRef {
    #[serde(default = "v1")]
    api_group: String,
    kind: String,
}

fn v1() -> String {
    "v1".to_owned()
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
#[derive(Default)]
struct Selector {
    match_labels: BTreeMap<String, String>,
    match_annotations: BTreeMap<String, String>,
    match_expressions: Vec<Expression>,
}

/// KWOK has two ways to write one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
struct Expression {
    key: Option<String>,
    operator: Option<Operator>,
    #[serde(default)]
    values: Vec<String>,
    jq: Option<Jq>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
struct Jq {
    key: String,
    operator: Operator,
    #[serde(default)]
    values: Vec<String>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
#[derive(Default)]
struct From {
    expression_from: Option<String>,
    jq: Option<JqExpression>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct JqExpression {
    expression: String,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
#[derive(Default)]
struct Delay {
    duration_milliseconds: Option<i64>,
    duration_from: Option<From>,
    jitter_duration_milliseconds: Option<i64>,
    jitter_duration_from: Option<From>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
#[derive(Default)]
struct Next {
    event: Option<EventWire>,
    finalizers: Option<StageFinalizers>,
    delete: bool,
    status_template: String,
    patch: Option<PatchWire>,
    patches: Vec<PatchWire>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
#[derive(Default)]
struct EventWire {
    r#type: String,
    reason: String,
    message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
struct PatchWire {
    #[serde(default)]
    subresource: Subresource,
    #[serde(default)]
    root: String,
    #[serde(default)]
    r#type: PatchType,
    template: String,
}

#[derive(Clone, Copy, Default, Deserialize)]
enum Subresource {
    #[default]
    #[serde(rename = "")]
    None,
    #[serde(rename = "status")]
    Status,
}

type Placed<T> = Result<T, (FieldPath, String)>;

impl Selector {
    fn requirements(self, at: &FieldPath) -> Placed<Vec<Requirement>> {
        let exact = |of: &str, name: &str, value: String| {
            let name = Value::from(name).to_string();
            let query = JqQuery::parse(&format!(".metadata.{of}[{name}]"));
            let query = query.map_err(|text| (at.clone(), text))?;
            Ok(Requirement { query, operator: Operator::In, values: vec![value] })
        };
        let mut all = Vec::new();
        for (name, value) in self.match_labels {
            all.push(exact("labels", &name, value)?);
        }
        for (name, value) in self.match_annotations {
            all.push(exact("annotations", &name, value)?);
        }
        for (n, expression) in self.match_expressions.into_iter().enumerate() {
            let at = at.clone().field("matchExpressions").index(n);
            let (at, key, operator, values) = match expression {
                Expression { key: Some(key), operator: Some(operator), values, jq: None } => {
                    (at, key, operator, values)
                }
                Expression { key: None, operator: None, jq: Some(jq), .. } => {
                    (at.field("jq"), jq.key, jq.operator, jq.values)
                }
                _ => return Err((at, "expected key and operator, or jq".to_owned())),
            };
            let needs_values = matches!(operator, Operator::In | Operator::NotIn);
            if values.is_empty() == needs_values {
                let text = if needs_values { "expected values" } else { "expected no values" };
                return Err((at.field("values"), format!("{text} for {operator:?}")));
            }
            let query = JqQuery::parse(&key).map_err(|text| (at.field("key"), text))?;
            all.push(Requirement { query, operator, values });
        }
        Ok(all)
    }
}

impl From {
    fn query(&self, at: &FieldPath) -> Placed<JqQuery> {
        let (at, text) = match (&self.expression_from, &self.jq) {
            (Some(text), None) => (at.clone().field("expressionFrom"), text),
            (None, Some(jq)) => (at.clone().field("jq").field("expression"), &jq.expression),
            _ => return Err((at.clone(), "expected expressionFrom or jq".to_owned())),
        };
        JqQuery::parse(text).map_err(|text| (at, text))
    }
}

impl Delay {
    fn duration(&self, at: &FieldPath) -> Placed<Span> {
        let from =
            self.duration_from.as_ref().map(|it| it.query(&at.clone().field("durationFrom")));
        Ok(Span { milliseconds: self.duration_milliseconds, from: from.transpose()? })
    }

    fn jitter(&self, at: &FieldPath) -> Placed<Span> {
        let from = self.jitter_duration_from.as_ref();
        let from = from.map(|it| it.query(&at.clone().field("jitterDurationFrom")));
        Ok(Span { milliseconds: self.jitter_duration_milliseconds, from: from.transpose()? })
    }
}

impl Next {
    fn step(self, at: &FieldPath) -> Placed<StageNext> {
        let template = |text: &str, at: FieldPath| {
            GoTemplate::parse(text, STAGE_TEMPLATE_FUNCTIONS)
                .map_err(|error| (at, error.to_string()))
        };
        let mut patches = Vec::new();
        if !self.status_template.trim().is_empty() {
            let template = template(&self.status_template, at.clone().field("statusTemplate"))?;
            let form = PatchType::Strategic;
            patches.push(StagePatch {
                subresource: "status",
                root: "status".to_owned(),
                form,
                template,
            });
        }
        let one = self.patch.into_iter().map(|it| (at.clone().field("patch"), it));
        let several = self.patches.into_iter().enumerate();
        let several = several.map(|(n, it)| (at.clone().field("patches").index(n), it));
        for (at, wire) in one.chain(several) {
            let subresource =
                if matches!(wire.subresource, Subresource::Status) { "status" } else { "" };
            let template = template(&wire.template, at.field("template"))?;
            patches.push(StagePatch { subresource, root: wire.root, form: wire.r#type, template });
        }
        let event = self.event.map(|it| {
            let message = template(&it.message, at.clone().field("event").field("message"))?;
            Ok((it.r#type, it.reason, message))
        });
        let (finalizers, delete) = (self.finalizers, self.delete);
        Ok(StageNext { event: event.transpose()?, finalizers, patches, delete })
    }
}
