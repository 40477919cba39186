//! The part of Go's text templates that files of scheduler_perf use: `{{ .Index }}`, `{{ .Count }}`, and functions of whole numbers.

use anyhow::{Context as _, Result, bail};

/// Fills in a template for the object with this index, of so many.
pub fn render(template: &str, index: u32, count: u32) -> Result<String> {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, action)) = rest.split_once("{{") {
        let (action, after) = action.split_once("}}").context("a template without }}")?;
        text.push_str(before);
        text.push_str(&evaluate(action, index, count)?.to_string());
        rest = after;
    }
    Ok(text + rest)
}

/// The value of a number, a field, or a function of these.
fn evaluate(action: &str, index: u32, count: u32) -> Result<i64> {
    let value = |word: &str| match word {
        ".Index" => Ok(i64::from(index)),
        ".Count" => Ok(i64::from(count)),
        other => other.parse().with_context(|| format!("{other:?} in a template")),
    };
    let words: Vec<&str> = action.split_whitespace().collect();
    let Some((function, arguments)) = words.split_first() else { bail!("an empty action") };
    if arguments.is_empty() {
        return value(function);
    }
    let numbers = arguments.iter().map(|it| value(it)).collect::<Result<Vec<i64>>>()?;
    let result = match (*function, numbers.as_slice()) {
        ("AddInt", numbers) => numbers.iter().try_fold(0_i64, |sum, it| sum.checked_add(*it)),
        ("MultiplyInt", numbers) => numbers.iter().try_fold(1_i64, |all, it| all.checked_mul(*it)),
        ("SubtractInt", [a, b]) => a.checked_sub(*b),
        ("DivideInt", [a, b]) => a.checked_div(*b),
        ("Mod", [a, b]) => a.checked_rem(*b),
        _ => bail!("{action:?} in a template"),
    };
    result.with_context(|| format!("{action:?} in a template has no value"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_replaced() {
        for (template, expected) in [
            ("name: a", "name: a"),
            ("name: a-{{ .Index }}-{{.Count}}", "name: a-13-40"),
            ("port: 8{{ Mod .Index 12 }}", "port: 81"),
            ("memory: {{ DivideInt 30000 .Count }}Mi", "memory: 750Mi"),
            (
                "{{AddInt .Index 1 2}} {{SubtractInt .Index 20}} {{MultiplyInt .Index 2}}",
                "16 -7 26",
            ),
        ] {
            assert_eq!(render(template, 13, 40).unwrap(), expected);
        }
        for wrong in [
            "{{ .Index",
            "{{ .Name }}",
            "{{ DivideInt 1 0 }}",
            "{{ Mod 1 }}",
            "{{ }}",
            "{{ printf 1 }}",
        ] {
            assert!(render(wrong, 13, 40).is_err(), "{wrong}");
        }
    }
}
