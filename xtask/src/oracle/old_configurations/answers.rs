//! The answers of the old schedulers: from their programs, or recorded.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::version::OldRelease;
use crate::oracle::process::Oracle;

/// Answers in the order of the questions.
pub enum Answers {
    /// From the programs; also kept if they are recorded.
    Programs { programs: BTreeMap<OldRelease, Oracle>, kept: Option<Vec<Value>> },
    /// From a file.
    Recorded(VecDeque<Value>),
}

impl Answers {
    /// Builds and starts the programs.
    pub fn from_programs(is_recorded: bool) -> Result<Answers> {
        let mut programs = BTreeMap::new();
        for release in OldRelease::ALL {
            programs.insert(release, Oracle::start(&release.program().build()?)?);
        }
        Ok(Answers::Programs { programs, kept: is_recorded.then(Vec::new) })
    }

    /// Reads recorded answers; returns the number of files of each version and the seed as well.
    pub fn read(file: &Path) -> Result<(Answers, u64, u64)> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let mut lines = text.lines().map(serde_json::from_str::<Value>);
        let head = lines.next().context("an empty file")??;
        let number = |field: &str| head[field].as_u64().with_context(|| format!("no {field}"));
        let (n, seed) = (number("cases")?, number("seed")?);
        let answers = lines.collect::<serde_json::Result<VecDeque<Value>>>();
        Ok((Answers::Recorded(answers.context("reading an answer")?), n, seed))
    }

    /// Writes the answers that were kept.
    pub fn write(&self, file: &Path, n: u64, seed: u64) -> Result<()> {
        let Answers::Programs { kept: Some(kept), .. } = self else { return Ok(()) };
        let mut text = format!("{}\n", json!({"cases": n, "seed": seed}));
        for answer in kept {
            writeln!(text, "{answer}")?;
        }
        std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))
    }

    /// The answer of a release; questions have the order in which they were recorded.
    pub fn ask(&mut self, release: OldRelease, question: &Value) -> Result<Value> {
        match self {
            Answers::Recorded(answers) => answers
                .pop_front()
                .context("there are more questions than recorded answers: record them again"),
            Answers::Programs { programs, kept } => {
                let program = programs.get_mut(&release).context("a started program")?;
                let answer = program.ask(question)?;
                if let Some(kept) = kept {
                    kept.push(answer.clone());
                }
                Ok(answer)
            }
        }
    }
}
