//! The answers of the old schedulers: from their programs, or recorded.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
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

/// The first line of a file of answers: to which questions they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedQuestions {
    pub subject: Subject,
    /// How many there are of each version.
    pub cases: u64,
    pub seed: u64,
}

/// What questions are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    OldConfigurations,
    OldDecisions,
}

impl Subject {
    const ALL: [Subject; 2] = [Subject::OldConfigurations, Subject::OldDecisions];

    fn name(self) -> &'static str {
        match self {
            Subject::OldConfigurations => "old-configurations",
            Subject::OldDecisions => "old-decisions",
        }
    }
}

impl RecordedQuestions {
    fn read(line: &str) -> Result<RecordedQuestions> {
        let head: Value = serde_json::from_str(line)?;
        let number = |field: &str| head[field].as_u64().with_context(|| format!("no {field}"));
        let subject = Subject::ALL.into_iter().find(|it| head["subject"] == it.name());
        let subject = subject.context("the subject is neither old configurations nor decisions")?;
        Ok(RecordedQuestions { subject, cases: number("cases")?, seed: number("seed")? })
    }

    fn line(self) -> String {
        let RecordedQuestions { subject, cases, seed } = self;
        json!({"subject": subject.name(), "cases": cases, "seed": seed}).to_string()
    }
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

    /// Reads recorded answers.
    pub fn read(file: &Path) -> Result<(RecordedQuestions, Answers)> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let mut lines = text.lines();
        let questions = RecordedQuestions::read(lines.next().unwrap_or_default())
            .with_context(|| format!("reading the first line of {}", file.display()))?;
        let answers = lines.map(serde_json::from_str).collect::<serde_json::Result<_>>();
        let answers = answers.with_context(|| format!("reading an answer of {}", file.display()));
        Ok((questions, Answers::Recorded(answers?)))
    }

    /// Writes the answers that were kept.
    pub fn write(&self, file: &Path, questions: RecordedQuestions) -> Result<()> {
        let Answers::Programs { kept: Some(kept), .. } = self else { return Ok(()) };
        let mut text = format!("{}\n", questions.line());
        for answer in kept {
            writeln!(text, "{answer}")?;
        }
        std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))
    }

    /// Whether only the questions that were recorded can be asked.
    pub fn are_recorded(&self) -> bool {
        matches!(self, Answers::Recorded(_))
    }

    /// Checks that every recorded answer was used.
    pub fn check_all_used(&self) -> Result<()> {
        match self {
            Answers::Recorded(rest) if !rest.is_empty() => {
                bail!(
                    "there are {} more recorded answers than questions: record them again",
                    rest.len()
                )
            }
            _ => Ok(()),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_says_what_was_asked() {
        for subject in Subject::ALL {
            let questions = RecordedQuestions { subject, cases: 25, seed: 7 };
            assert_eq!(RecordedQuestions::read(&questions.line()).expect("a line"), questions);
        }
        let error = |line: &str| format!("{:#}", RecordedQuestions::read(line).unwrap_err());
        assert_eq!(error(r#"{"subject": "old-decisions", "seed": 1}"#), "no cases");
        assert!(error(r#"{"subject": "x"}"#).starts_with("the subject is neither"));
    }
}
