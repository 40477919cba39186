//! `cargo xtask words`: fails on names and sentences that a reader of the Kubernetes documentation would not understand (STYLE.md, rule 2).
//!
//! `xtask/words.txt` is the list, a word or phrase per line with what to write instead. Names are compared part by part (`seat_of` and `SeatIdx`
//! are both found by `seat`), in Rust files and in the files' own names; sentences are searched in comments, string literals and Markdown.

use std::fs;

use anyhow::{Context as _, Result, bail};
use regex::Regex;

use crate::{root, rust_tokens};

const LIST: &str = "xtask/words.txt";

/// One line of the list.
struct Rule {
    pattern: Regex,
    instead: String,
}

/// The list, read and compiled.
struct Rules {
    names: Vec<Rule>,
    phrases: Vec<Rule>,
    /// Identifiers that somebody else named, such as `StatusCode::GONE`.
    allowed: Vec<String>,
    tokens: Regex,
    comment_marks: Regex,
}

/// Checks every file that git tracks.
pub fn run() -> Result<bool> {
    let root = root()?;
    let rules = Rules::read(&fs::read_to_string(root.join(LIST)).context(LIST)?)?;
    let files = crate::git(&["ls-files", "-z"])?;
    let (mut n_files, mut n_findings) = (0, 0);
    for path in files.split_terminator('\0').filter(|path| *path != LIST) {
        let findings = match path.rsplit_once('.') {
            Some((_, "rs")) => rules.in_rust(&fs::read_to_string(root.join(path))?),
            Some((_, "md")) => rules.in_text(&fs::read_to_string(root.join(path))?),
            _ => Vec::new(),
        };
        for (line, what) in rules.in_name(path).into_iter().map(|what| (1, what)).chain(findings) {
            println!("{path}:{line}: {what}");
            n_findings += 1;
        }
        n_files += 1;
    }
    println!("words: {n_files} files, {n_findings} to replace");
    Ok(n_findings == 0)
}

impl Rules {
    fn read(list: &str) -> Result<Rules> {
        let mut rules = Rules {
            names: Vec::new(),
            phrases: Vec::new(),
            allowed: Vec::new(),
            tokens: rust_tokens::regex()?,
            comment_marks: Regex::new(r"//[/!]?")?,
        };
        for (at, line) in list.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            // The separator has a blank on each side; a `|` without them belongs to a pattern.
            let mut parts = line.splitn(3, " | ").map(str::trim);
            let place = || format!("{LIST}:{}: expected `name | WORD | INSTEAD`", at + 1);
            let (kind, what, instead) = (
                parts.next().with_context(place)?,
                parts.next().with_context(place)?,
                parts.next().with_context(place)?.to_owned(),
            );
            match kind {
                "name" => {
                    let pattern = Regex::new(&format!("^(?:{what})$")).with_context(place)?;
                    rules.names.push(Rule { pattern, instead });
                }
                "text" => {
                    let words = what.replace(' ', r"\s+");
                    let pattern =
                        Regex::new(&format!(r"(?i)\b(?:{words})\b")).with_context(place)?;
                    rules.phrases.push(Rule { pattern, instead });
                }
                "allow" => rules.allowed.push(what.to_owned()),
                _ => bail!("{LIST}:{}: {kind:?} is none of name, text, allow", at + 1),
            }
        }
        Ok(rules)
    }

    /// Findings in a Rust file, with their lines.
    fn in_rust(&self, source: &str) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        for token in self.tokens.captures_iter(source) {
            if let Some(name) = token.name("name") {
                found.extend(self.in_name(name.as_str()).into_iter().map(|it| (name.start(), it)));
            } else if let Some(text) = token.name("comment").or_else(|| token.name("string")) {
                // Comment marks become blanks of the same length: offsets stay valid, and a phrase may continue on the next line.
                let marks = |mark: &regex::Captures<'_>| " ".repeat(mark[0].len());
                let prose = self.comment_marks.replace_all(text.as_str(), marks);
                found.extend(self.phrases_in(&prose).map(|(at, it)| (text.start() + at, it)));
            }
        }
        with_lines(source, found)
    }

    /// Findings in a text, with their lines.
    fn in_text(&self, text: &str) -> Vec<(usize, String)> {
        with_lines(text, self.phrases_in(text).collect())
    }

    fn phrases_in(&self, text: &str) -> impl Iterator<Item = (usize, String)> {
        self.phrases.iter().flat_map(move |rule| {
            rule.pattern.find_iter(text).map(|found| {
                let phrase = found.as_str().split_whitespace().collect::<Vec<_>>().join(" ");
                (found.start(), format!("{phrase:?}: write {}", rule.instead))
            })
        })
    }

    /// Findings in an identifier or a path.
    fn in_name(&self, name: &str) -> Vec<String> {
        if self.allowed.iter().any(|allowed| allowed == name) {
            return Vec::new();
        }
        let parts = parts(name);
        let rule = |part: &String| self.names.iter().find(|rule| rule.pattern.is_match(part));
        let finding =
            |part: &String| rule(part).map(|it| format!("`{name}`: write {}", it.instead));
        parts.iter().filter_map(finding).collect()
    }
}

/// `nodeOf`, `node_of` and `node/of` are `node` and `of`.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_lower = false;
    for letter in name.chars() {
        let begins = !letter.is_ascii_alphanumeric() || (letter.is_ascii_uppercase() && was_lower);
        if begins {
            parts.push(String::new());
        }
        was_lower = letter.is_ascii_lowercase();
        if let Some(last) = parts.last_mut().filter(|_| letter.is_ascii_alphanumeric()) {
            last.push(letter.to_ascii_lowercase());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Places become line numbers, counted from 1.
fn with_lines(text: &str, found: Vec<(usize, String)>) -> Vec<(usize, String)> {
    let line = |at: usize| text[..at].bytes().filter(|byte| *byte == b'\n').count() + 1;
    found.into_iter().map(|(at, what)| (line(at), what)).collect()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    const LIST: &str = "# what it is\n\nname | gizmo|widget | part\ntext | [0-9,]+ miles a day | per day\nallow | widget_area | of a library\n";

    #[track_caller]
    fn check(source: &str, expected: &[&str]) {
        let rules = Rules::read(LIST).expect("the list is right");
        let mut lines = String::new();
        for (line, what) in rules.in_rust(source) {
            writeln!(lines, "{line}: {what}").expect("writing to a string");
        }
        assert_eq!(lines.lines().collect::<Vec<_>>(), expected, "{source}");
    }

    #[test]
    fn names_are_compared_part_by_part() {
        check("fn gizmo_of() {}", &["1: `gizmo_of`: write part"]);
        check("struct A;\nenum GizmoItem {}", &["2: `GizmoItem`: write part"]);
        check("const LATE_GIZMO: u8 = 1;", &["1: `LATE_GIZMO`: write part"]);
        check("let gizmology = f.widget_area();", &[]);
        check("fn of<'gizmo>() {}", &["1: `gizmo`: write part"]);
    }

    #[test]
    fn phrases_are_found_in_comments_and_strings_also_across_lines() {
        check("// binds 100 miles a day", &["1: \"100 miles a day\": write per day"]);
        check(
            "x();\n/// binds 1,000\n/// miles a day",
            &["2: \"1,000 miles a day\": write per day"],
        );
        check("let a = \"5 miles a day\";", &["1: \"5 miles a day\": write per day"]);
        check("let a = r#\"say \"5 Miles a day\"\"#;", &["1: \"5 Miles a day\": write per day"]);
        check("let miles = 5; let a = day;", &[]);
        check("// gizmo is a word in prose, and no name", &[]);
    }

    #[test]
    fn a_line_that_is_no_rule_is_an_error_with_its_place() {
        let error = Rules::read("name | gizmo").err().map(|error| format!("{error:#}"));
        assert_eq!(error.as_deref(), Some("xtask/words.txt:1: expected `name | WORD | INSTEAD`"));
        assert!(Rules::read("noun | gizmo | part").is_err());
        assert!(Rules::read("text | ( | x").is_err());
    }
}
