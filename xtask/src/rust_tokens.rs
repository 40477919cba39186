//! The tokens of Rust source that `words` and `layers` read: comments, strings, names, and the marks around paths and items.

use anyhow::Result;
use regex::Regex;

/// Matches one token, in the group `comment`, `string`, `name` or `mark`; consecutive comment lines are one token.
///
/// Character literals are matched without a group, so that their quotes begin no string. Numbers, other operators and the quotes of
/// lifetimes are skipped.
pub fn regex() -> Result<Regex> {
    Ok(Regex::new(
        r###"(?s)(?P<comment>//[^\n]*(?:\n[ \t]*//[^\n]*)*|/\*.*?\*/)|(?P<string>b?r##".*?"##|b?r#".*?"#|b?r".*?"|b?"(?:\\.|[^"\\])*")|b?'(?:\\.[^']*|[^'\\])'|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<mark>::|[{}()\[\]<>;,#!*])"###,
    )?)
}
