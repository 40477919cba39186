//! Sets of completion indexes, in the short form of a Job's status: `0-3,5,7,8`.

use std::collections::BTreeSet;

/// Parses the short form; numbers from `completions` on and invalid parts are ignored.
pub(super) fn parse(text: &str, completions: i32) -> BTreeSet<i32> {
    let mut all = BTreeSet::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
            all.extend(first.max(0)..=last.min(completions - 1));
        }
    }
    all
}

/// Writes the short form: runs of three and more are joined by a dash.
pub(super) fn print(all: &BTreeSet<i32>) -> String {
    let mut runs: Vec<(i32, i32)> = Vec::new();
    for index in all {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => runs.push((*index, *index)),
        }
    }
    let run = |(first, last): (i32, i32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    runs.into_iter().map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_forms() {
        let check = |text: &str, completions: i32, want: &str| {
            assert_eq!(print(&parse(text, completions)), want, "{text}");
        };
        check("", 5, "");
        check("0", 5, "0");
        check("0,1", 5, "0,1");
        check("0,1,2", 5, "0-2");
        check("0-9", 5, "0-4");
        check("1,3-4,6", 10, "1,3,4,6");
        check("7,x,3-", 10, "7");
        check("5-3", 10, "");
    }
}
