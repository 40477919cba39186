//! jq queries: the subset that KWOK stages use. No I/O.
//!
//! `.a.b`, `.a["b"]`, `.a.[].b`, `.a[0]`, and behind a `|` more of these or `select( .a == "b" )`.

use serde_json::Value;

/// A parsed jq query.
#[derive(Clone, Debug, PartialEq)]
pub struct JqQuery(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Nth(usize),
    All,
    Select { query: JqQuery, value: Value, is_equal: bool },
}

impl JqQuery {
    /// Parses a query.
    ///
    /// # Errors
    ///
    /// When it is invalid, with the reason.
    pub fn parse(text: &str) -> Result<JqQuery, String> {
        let mut rest = text;
        let query = pipe(&mut rest)?;
        if rest.trim_start().is_empty() {
            Ok(query)
        } else {
            Err(format!("unexpected {:?} in {text:?}", rest.trim()))
        }
    }

    /// The values that the query selects, without null and absent ones.
    pub fn evaluate<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![root];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| step.take(value)).collect();
        }
        found.retain(|value| !value.is_null());
        found
    }
}

impl Step {
    fn take<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match self {
            Step::Field(name) => value.get(name).into_iter().collect(),
            Step::Nth(n) => value.get(*n).into_iter().collect(),
            Step::All => match value {
                Value::Array(items) => items.iter().collect(),
                Value::Object(map) => map.values().collect(),
                _ => Vec::new(),
            },
            Step::Select { query, value: want, is_equal } => {
                let has = query.evaluate(value).contains(&want);
                (has == *is_equal).then_some(value).into_iter().collect()
            }
        }
    }
}

fn eat(rest: &mut &str, mark: &str) -> bool {
    let after = rest.trim_start().strip_prefix(mark);
    if let Some(after) = after {
        *rest = after;
    }
    after.is_some()
}

fn pipe(rest: &mut &str) -> Result<JqQuery, String> {
    let mut steps = Vec::new();
    loop {
        if eat(rest, "select") {
            steps.push(select(rest)?);
        } else {
            path(rest, &mut steps)?;
        }
        if !eat(rest, "|") {
            return Ok(JqQuery(steps));
        }
    }
}

fn select(rest: &mut &str) -> Result<Step, String> {
    let wrong = || "expected select( .field == \"value\" )".to_owned();
    if !eat(rest, "(") {
        return Err(wrong());
    }
    let mut steps = Vec::new();
    path(rest, &mut steps)?;
    let is_equal = eat(rest, "==");
    if !is_equal && !eat(rest, "!=") {
        return Err(wrong());
    }
    let value = literal(rest).ok_or_else(wrong)?;
    if eat(rest, ")") {
        Ok(Step::Select { query: JqQuery(steps), value, is_equal })
    } else {
        Err(wrong())
    }
}

/// A value in JSON.
fn literal(rest: &mut &str) -> Option<Value> {
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
    let value = values.next()?.ok()?;
    *rest = rest.get(values.byte_offset()..)?;
    Some(value)
}

fn path(rest: &mut &str, steps: &mut Vec<Step>) -> Result<(), String> {
    *rest = rest.trim_start();
    if !rest.starts_with('.') {
        return Err(format!("expected a path such as .a.b, found {rest:?}"));
    }
    loop {
        if let Some(after) = rest.strip_prefix('.') {
            *rest = after;
            let len = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            if len > 0 {
                steps.push(Step::Field(rest[..len].to_owned()));
                *rest = &rest[len..];
            } else if rest.starts_with('"') {
                let Some(Value::String(name)) = literal(rest) else {
                    return Err(format!("expected a name, found {rest:?}"));
                };
                steps.push(Step::Field(name));
            }
        } else if let Some(after) = rest.strip_prefix('[') {
            *rest = after;
            steps.push(if rest.trim_start().starts_with(']') {
                Step::All
            } else {
                match literal(rest) {
                    Some(Value::String(name)) => Step::Field(name),
                    Some(Value::Number(n)) if n.is_u64() => Step::Nth(
                        n.as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX),
                    ),
                    _ => return Err(format!("expected [], a name or a number, found {rest:?}")),
                }
            });
            if !eat(rest, "]") {
                return Err(format!("expected ], found {rest:?}"));
            }
        } else {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn queries() {
        #[track_caller]
        fn check(query: &str, want: &str) {
            let root = json!({"a": {"b": 1, "x/y.z": "q", "null": null}, "list": [{"t": "A", "s": "1"}, {"t": "B", "s": "2"}, {"t": "A"}]});
            let got = JqQuery::parse(query).map(|query| {
                query
                    .evaluate(&root)
                    .into_iter()
                    .map(Value::to_string)
                    .collect::<Vec<_>>()
                    .join(" ")
            });
            assert_eq!(got.unwrap_or_else(|error| format!("! {error}")), want, "{query}");
        }
        check(".a.b", "1");
        check(".a[\"x/y.z\"]", "\"q\"");
        check(".a.[\"x/y.z\"]", "\"q\"");
        check(".a.\"x/y.z\"", "\"q\"");
        check(".a.null", "");
        check(".none.at.all", "");
        check(".list.[].s", "\"1\" \"2\"");
        check(".list[].t", "\"A\" \"B\" \"A\"");
        check(".list[1].s", "\"2\"");
        check(".list[7].s", "");
        check(".list.[] | select( .t == \"A\" ) | .s", "\"1\"");
        check(".list.[]|select(.t!=\"A\")|.s", "\"2\"");
        check(".a.[]", "1 \"q\"");
        check(
            ".",
            "{\"a\":{\"b\":1,\"null\":null,\"x/y.z\":\"q\"},\"list\":[{\"s\":\"1\",\"t\":\"A\"},{\"s\":\"2\",\"t\":\"B\"},{\"t\":\"A\"}]}",
        );
        check("a.b", "! expected a path such as .a.b, found \"a.b\"");
        check(".a | length", "! expected a path such as .a.b, found \"length\"");
        check(".a[", "! expected [], a name or a number, found \"\"");
        check(".a | select(.b)", "! expected select( .field == \"value\" )");
        check(".a b", "! unexpected \"b\" in \".a b\"");
    }
}
