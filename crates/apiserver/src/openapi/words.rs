//! What OpenAPI says in words about types and fields, and which values a field has that is not set, or may have: upstream's,
//! in `schema/words.txt`, looked at when somebody asks for OpenAPI and not before.

use std::borrow::Cow;
use std::sync::LazyLock;

use loadmaster_stdx::Map;
use serde_json::Value;

static WORDS: LazyLock<Words> = LazyLock::new(|| Words::of(include_str!("../schema/words.txt")));

struct Words {
    /// Of the file; numbers in it begin with one.
    lines: Vec<&'static str>,
    /// The line of each type, by its name in OpenAPI.
    types: Map<&'static str, usize>,
}

/// Adds description, values and default to the schema of a type, or of one of its fields.
pub fn add_to(schema: &mut Value, type_name: &str, field: Option<&str>) {
    WORDS.add_to(schema, type_name, field);
}

impl Words {
    fn of(text: &'static str) -> Words {
        let lines: Vec<&str> = text.lines().collect();
        let named = lines.iter().enumerate().filter(|(_, line)| !line.starts_with([' ', '#']));
        let name = |line: &&'static str| line.split('\t').next().unwrap_or_default();
        let types = named.map(|(at, line)| (name(line), at)).collect();
        Words { lines, types }
    }

    fn add_to(&self, schema: &mut Value, type_name: &str, field: Option<&str>) {
        let Some(&at) = self.types.get(type_name) else { return };
        let line = match field {
            None => self.lines.get(at).copied(),
            Some(field) => self.lines[at + 1..]
                .iter()
                .map_while(|line| line.strip_prefix(' '))
                .find(|line| line.strip_prefix(field).is_some_and(|rest| rest.starts_with('\t'))),
        };
        let mut columns = line.unwrap_or_default().split('\t').skip(1);
        for name in ["enum", "default"] {
            let json = columns.next().filter(|it| !it.is_empty());
            if let Some(value) = json.and_then(|it| serde_json::from_str(it).ok()) {
                schema[name] = value;
            }
        }
        let text = self.text(columns.next().unwrap_or_default());
        if !text.is_empty() {
            schema["description"] = text.into();
        }
    }

    /// A text as it stands in the file, or that of the line it names.
    fn text(&self, written: &'static str) -> Cow<'static, str> {
        let other = written.strip_prefix('=').and_then(|number| number.parse::<usize>().ok());
        let written = match other {
            Some(number) => number
                .checked_sub(1)
                .and_then(|at| self.lines.get(at)?.rsplit('\t').next())
                .unwrap_or_default(),
            None => written,
        };
        if written.contains('\\') { unescaped(written).into() } else { written.into() }
    }
}

fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(letter) = rest.next() {
        match (letter, rest.clone().next()) {
            ('\\', Some(escape)) => {
                rest.next();
                out.push(match escape {
                    'n' => '\n',
                    't' => '\t',
                    other => other,
                });
            }
            _ => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn words_are_found() {
        let words = Words::of(
            "# x\n# y\na.A\t\t\tone\n b\t[\"X\",\"\"]\t\ttwo\\n\\t\\\\n\n bc\t\t{}\t=3\n c\t\t\t=0\na.B\t\t\t=4\n d\t\t\tthree",
        );
        let check = |name: &str, field: Option<&str>, want: Value| {
            let mut schema = json!({});
            words.add_to(&mut schema, name, field);
            assert_eq!(schema, want, "{name} {field:?}");
        };
        check("a.A", None, json!({"description": "one"}));
        check("a.A", Some("b"), json!({"description": "two\n\t\\n", "enum": ["X", ""]}));
        check("a.A", Some("bc"), json!({"description": "one", "default": {}}));
        check("a.A", Some("c"), json!({}));
        check("a.A", Some("d"), json!({}));
        check("a.B", None, json!({"description": "two\n\t\\n"}));
        check("a.B", Some("d"), json!({"description": "three"}));
        check("a.C", None, json!({}));
    }

    #[test]
    fn every_line_of_the_table_is_understood() {
        for line in WORDS.lines.iter().filter(|line| !line.starts_with('#')) {
            let columns: Vec<&str> = line.split('\t').collect();
            assert_eq!(columns.len(), 4, "{line}");
            for json in columns[1..3].iter().filter(|it| !it.is_empty()) {
                serde_json::from_str::<Value>(json).expect("JSON");
            }
            if let Some(number) = columns[3].strip_prefix('=') {
                let number: usize = number.parse().expect("a number");
                assert!(number == 0 || number > 2 && !WORDS.lines[number - 1].contains("\t="));
            }
        }
    }
}
