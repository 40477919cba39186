//! `cargo xtask oracle --apply N`: compares objects and their managed fields after random updates and server-side applies between
//! apimachinery's field manager and ours.

mod cases;

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use loadmaster_apiserver::managed_fields::{
    ApplyError, FieldManager, ResetFields, TypeRef, Types, VersionedTypes, built_in,
    conflict_message, set_managed_fields,
};
use loadmaster_apiserver::schema::{Kind, Kinds};
use loadmaster_apiserver::store::{Store, StoreLimits};
use serde_json::{Value, json};

/// Runs `n` cases of a seed, or one of them; returns whether there was no difference.
pub fn run(n: u64, seed: u64, only: Option<u64>) -> Result<bool> {
    println!("oracle: --seed {seed} --apply {n}");
    let mut child = Command::new(build()?)
        .current_dir(crate::root()?.join("conformance"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the oracle")?;
    let mut stdin = child.stdin.take().context("no pipe to the oracle")?;
    let mut lines = BufReader::new(child.stdout.take().context("no pipe from the oracle")?).lines();
    let kinds = Kinds::new(&mut Store::new(StoreLimits::default()), &[]);
    let (mut n_operations, mut n_failures, mut n_conflicts, mut n_different) = (0, 0, 0, 0);
    for id in only.map_or(0..n, |id| id..id + 1) {
        let (kind, operations) = cases::case(seed, id);
        let kind = kinds.iter().find(|it| it.kind == kind).context("a kind")?;
        let question = json!({"apiVersion": kind.api_version(), "kind": kind.kind,
            "operations": operations});
        writeln!(stdin, "{question}").context("sending a case to the oracle")?;
        let line = lines
            .next()
            .context("the oracle ended early")?
            .context("reading the oracle's answer")?;
        let theirs: Vec<Value> =
            serde_json::from_str(&line).context("reading the oracle's answer")?;
        let mine = answers(kind, &operations);
        n_operations += theirs.len();
        n_failures += theirs.iter().filter(|it| it["error"].is_string()).count();
        n_conflicts += theirs.iter().filter(|it| it["causes"].is_array()).count();
        let different = theirs.iter().zip(&mine).position(|(a, b)| sorted(a) != sorted(b));
        if let Some(at) = different {
            n_different += 1;
            println!("\n== case {id}, operation {at}: {}", operations[at]);
            if at > 0 {
                println!("before: {}", mine[at - 1]);
            }
            println!("theirs: {}\nours:   {}", sorted(&theirs[at]), sorted(&mine[at]));
            if n_different == 5 {
                break;
            }
        } else if only.is_some() {
            for (operation, answer) in operations.iter().zip(&mine) {
                println!("{operation}\n=> {answer}");
            }
        }
    }
    drop(stdin);
    child.wait().context("waiting for the oracle")?;
    println!("{n_operations} operations, {n_failures} failed, {n_conflicts} of them for conflicts");
    println!("{n_different} cases with a difference");
    Ok(n_different == 0)
}

fn build() -> Result<PathBuf> {
    let module = crate::root()?.join("conformance");
    let go = Command::new("go")
        .args(["build", "-o", "bin/apply", "./cmd/apply"])
        .current_dir(&module)
        .status()
        .context("running go; the oracle needs Go 1.26 or newer")?;
    if !go.success() {
        bail!("go build failed in {}", module.display());
    }
    Ok(module.join("bin/apply"))
}

/// An answer with sorted lists: the order of managed fields depends on their times, that of causes and of errors on a map.
fn sorted(answer: &Value) -> Value {
    let mut answer = answer.clone();
    for list in ["/object/metadata/managedFields", "/causes"] {
        if let Some(Value::Array(entries)) = answer.pointer_mut(list) {
            entries.sort_by_key(ToString::to_string);
        }
    }
    if let Some((head, _)) =
        answer["error"].as_str().and_then(|text| text.split_once(": field not declared in schema"))
    {
        // Upstream stops at the first undeclared field, in the random order of a map.
        let field = head.rsplit(char::is_whitespace).next().unwrap_or_default();
        answer["error"] = format!("{field}: field not declared in schema").into();
    }
    if let Some(text) = answer["error"].as_str()
        && let Some((head, errors)) = text.split_once("errors:\n")
    {
        let mut errors: Vec<&str> = errors.lines().collect();
        errors.sort_unstable();
        answer["error"] = format!("{head}errors:\n{}", errors.join("\n")).into();
    }
    answer
}

fn answers(kind: &Kind, operations: &[Value]) -> Vec<Value> {
    let mut live = None;
    let mut answers = Vec::with_capacity(operations.len());
    for operation in operations {
        match perform(kind, live.as_ref(), operation) {
            Ok(mut object) => {
                object["metadata"]["uid"] = "u".into();
                answers.push(json!({"object": shown(&object)}));
                live = Some(object);
            }
            Err(ApplyError::Conflicts(conflicts)) => {
                let causes: Vec<Value> = conflicts
                    .iter()
                    .map(|it| {
                        json!({"reason": "FieldManagerConflict", "field": it.field(),
                            "message": format!("conflict with {}", it.owner())})
                    })
                    .collect();
                answers.push(json!({"error": conflict_message(&conflicts), "causes": causes}));
            }
            Err(ApplyError::Invalid(why) | ApplyError::Other(why)) => {
                answers.push(json!({"error": why}));
            }
        }
    }
    answers
}

fn shown(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(Value::Array(entries)) = object.pointer_mut("/metadata/managedFields") {
        for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
            entry.remove("time");
        }
    }
    object
}

fn perform(kind: &Kind, live: Option<&Value>, operation: &Value) -> Result<Value, ApplyError> {
    let text = |name: &str| operation[name].as_str().unwrap_or_default();
    let api_version = kind.api_version();
    let subresource = text("subresource");
    let field_manager = FieldManager {
        versions: &SingleVersion { kind, api_version: &api_version },
        api_version: &api_version,
        kind: kind.kind,
        subresource,
        reset: ResetFields::of(kind, subresource),
        now: "2026-01-02T03:04:05Z".to_owned(),
    };
    let nothing = field_manager.versions.nothing(&api_version);
    let before = live.unwrap_or(&nothing);
    let mut object = operation["object"].clone();
    if operation["apply"] == true {
        return field_manager.apply(before, &object, text("manager"), operation["force"] == true);
    }
    if live.is_some() {
        object["metadata"]["uid"] = "u".into();
    }
    let list = field_manager.update(before, &object, text("manager"));
    set_managed_fields(&mut object, list);
    Ok(object)
}

/// A kind with only one version.
struct SingleVersion<'a> {
    kind: &'a Kind,
    api_version: &'a str,
}

impl VersionedTypes for SingleVersion<'_> {
    fn form(&self, api_version: &str) -> Option<(&Types, TypeRef)> {
        (api_version == self.api_version)
            .then(|| (built_in(), Types::of_built_in(self.kind.type_id)))
    }

    fn convert(&self, object: &Value, _: &str) -> Value {
        object.clone()
    }

    fn nothing(&self, api_version: &str) -> Value {
        json!({"apiVersion": api_version, "kind": self.kind.kind})
    }
}
