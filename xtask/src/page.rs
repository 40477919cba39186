//! The code blocks of a documentation page, for checks that follow the page literally.

use anyhow::{Result, bail, ensure};

/// A code block, by what a reader does with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// To be saved: a block after a line that consists of the file's path, "`PATH`:".
    File { path: String, text: String },
    /// To be run: a block in `sh`.
    Command(String),
    /// To be compared with the output of the command before it: a block in `text`.
    Output(String),
}

/// The steps of a page in their order. Blocks in `console` are only to be read.
pub fn steps(page: &str) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    let mut path = None;
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else {
            let named = line.strip_prefix('`').and_then(|rest| rest.strip_suffix("`:"));
            // There may be a blank line between the name and its block.
            path = named.or(path.filter(|_| line.is_empty()));
            continue;
        };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let text = block.join("\n") + "\n";
        steps.push(match (path.take(), kind) {
            (Some(path), _) => Step::File { path: path.to_owned(), text },
            (None, "sh") => Step::Command(text.trim_end().to_owned()),
            (None, "text") => Step::Output(text),
            (None, "console") => continue,
            (None, other) => bail!("a block in {other:?} without a file name"),
        });
    }
    Ok(steps)
}

/// An error unless each line of `shown`, the block of a page, is a line of the output. Spaces do not count; `...` stands for any words.
pub fn check_output(shown: &str, output: &str) -> Result<()> {
    for line in shown.lines().filter(|line| !line.trim().is_empty()) {
        let is_there = output.lines().any(|it| matches(&words(line), &words(it)));
        ensure!(is_there, "the page shows {line:?}, the output does not have it:\n{output}");
    }
    Ok(())
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn matches(shown: &[&str], words: &[&str]) -> bool {
    match shown.split_first() {
        None => words.is_empty(),
        Some((&"...", rest)) => (0..=words.len()).any(|n| matches(rest, &words[n..])),
        Some((first, rest)) => {
            words.split_first().is_some_and(|(word, others)| word == first && matches(rest, others))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_parsed() {
        let page = "\
            `a/b.rs`:\n\n```rust,ignore\nfn main() {}\n```\n\nText with `code`:\n\n```sh\ncargo test\n```\n\
            ```text\nname 3\n```\n```console\n$ ls\n```\n";
        let want = [
            Step::File { path: "a/b.rs".to_owned(), text: "fn main() {}\n".to_owned() },
            Step::Command("cargo test".to_owned()),
            Step::Output("name 3\n".to_owned()),
        ];
        assert_eq!(steps(page).unwrap(), want);
        assert!(steps("```yaml\na: 1\n```\n").is_err());
    }

    #[test]
    fn lines_are_found_in_the_output() {
        let check = |shown: &str, is_there: bool| {
            let output = "NAME   AGE\nweb-1  3s\n";
            assert_eq!(check_output(shown, output).is_ok(), is_there, "{shown:?}");
        };
        check("NAME AGE\n\nweb-1 3s\n", true);
        check("web-1 ...", true);
        check("... 3s", true);
        check("web-1 3s ...", true);
        check("web-1", false);
        check("web-2 ...", false);
    }
}
