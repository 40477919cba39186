//! JSON paths as printer columns, scales and selectable fields use them: `.spec.replicas`, `.items[0].name`,
//! `.status.conditions[?(@.type=="Ready")].status`, `.metadata.labels['a\.b']`, `..name`, `[*]`.

use std::cmp::Ordering;
use std::fmt;

use serde_json::Value;

/// A compiled path.
#[derive(Clone, Debug, Default)]
pub struct Path {
    written: String,
    steps: Vec<Step>,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Field(String),
    /// From the end if negative.
    Index(i64),
    /// `[from:to]`, from the end if negative.
    Slice(Option<i64>, Option<i64>),
    All,
    /// Everything below.
    Deep,
    Filter {
        left: Operand,
        test: Test,
        right: Operand,
    },
}

#[derive(Clone, Debug)]
enum Operand {
    /// Below the entry that is tested.
    Path(Path),
    Value(Value),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Test {
    Exists,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

const TESTS: [(&str, Test); 6] = [
    ("==", Test::Equal),
    ("!=", Test::NotEqual),
    ("<=", Test::LessOrEqual),
    (">=", Test::GreaterOrEqual),
    ("<", Test::Less),
    (">", Test::Greater),
];

/// How deep filters may stand within filters.
const DEPTH_MAX: usize = 8;

/// No path is followed to more places: `..` behind `..` leads to each place in many ways.
const N_FOUND_MAX: usize = 100_000;

impl Path {
    /// Compiles a path; none if it cannot be read.
    pub fn parse(text: &str) -> Option<Path> {
        Path::parse_within(text, DEPTH_MAX)
    }

    fn parse_within(text: &str, depth: usize) -> Option<Path> {
        let depth = depth.checked_sub(1)?;
        let mut steps = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            rest = if let Some(after) = rest.strip_prefix("..") {
                steps.push(Step::Deep);
                let (name, after) = word(after);
                if !name.is_empty() {
                    steps.push(if name == "*" { Step::All } else { Step::Field(name) });
                }
                after
            } else if let Some(after) = rest.strip_prefix('.') {
                let (name, after) = word(after);
                if !name.is_empty() {
                    steps.push(if name == "*" { Step::All } else { Step::Field(name) });
                }
                after
            } else if let Some(after) = rest.strip_prefix('[') {
                let end = closing(after)?;
                steps.push(bracket(after[..end].trim(), depth)?);
                &after[end + 1..]
            } else {
                return None;
            };
        }
        Some(Path { written: text.to_owned(), steps })
    }

    /// All values that the path selects.
    pub fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![value];
        for step in &self.steps {
            let mut next = Vec::new();
            for value in found {
                step.take(value, &mut next);
                if next.len() > N_FOUND_MAX {
                    break;
                }
            }
            found = next;
        }
        found
    }

    /// The first value that the path selects.
    pub fn first_value<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        self.find(value).into_iter().next()
    }

    /// The selected value as text; empty if absent.
    pub fn text(&self, value: &Value) -> String {
        match self.first_value(value) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        }
    }

    /// Sets the value, creating objects on the way. Only for paths of plain names.
    pub fn set(&self, object: &mut Value, new: Value) {
        let mut place = object;
        for step in &self.steps {
            let Step::Field(name) = step else { return };
            place = crate::object::members_mut(place).entry(name).or_insert(Value::Null);
        }
        *place = new;
    }
}

/// A name up to the next dot or bracket; a backslash takes the next character as it is.
fn word(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '.' | '[' => return (name, &text[at..]),
            '\\' => name.extend(chars.next().map(|(_, c)| c)),
            _ => name.push(c),
        }
    }
    (name, "")
}

/// Where the bracket that was opened before is closed.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), _) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn bracket(inner: &str, depth: usize) -> Option<Step> {
    if inner == "*" {
        return Some(Step::All);
    }
    if let Some(quoted) = quoted(inner) {
        return Some(Step::Field(quoted.replace('\\', "")));
    }
    if let Some(filter) = inner.strip_prefix("?(").and_then(|it| it.strip_suffix(')')) {
        return self::filter(filter, depth);
    }
    let bound = |text: &str| match text.trim() {
        "" => Some(None),
        text => text.parse().ok().map(Some),
    };
    match inner.split_once(':') {
        Some((from, to)) => Some(Step::Slice(bound(from)?, bound(to)?)),
        None => inner.parse().ok().map(Step::Index),
    }
}

fn quoted(text: &str) -> Option<&str> {
    let strip = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
    strip('\'').or_else(|| strip('"'))
}

fn filter(text: &str, depth: usize) -> Option<Step> {
    for (sign, test) in TESTS {
        if let Some((left, right)) = text.split_once(sign) {
            let (left, right) = (operand(left.trim(), depth)?, operand(right.trim(), depth)?);
            return Some(Step::Filter { left, test, right });
        }
    }
    let left = operand(text.trim(), depth)?;
    Some(Step::Filter { left, test: Test::Exists, right: Operand::Value(Value::Null) })
}

fn operand(text: &str, depth: usize) -> Option<Operand> {
    if let Some(path) = text.strip_prefix('@') {
        return Path::parse_within(path, depth).map(Operand::Path);
    }
    if let Some(text) = quoted(text) {
        return Some(Operand::Value(text.into()));
    }
    serde_json::from_str(text).ok().map(Operand::Value)
}

impl Step {
    fn take<'a>(&self, value: &'a Value, found: &mut Vec<&'a Value>) {
        match self {
            Step::Field(name) => found.extend(value.get(name)),
            Step::Index(at) => found.extend(value.as_array().and_then(|list| nth(list, *at))),
            Step::Slice(from, to) => {
                let Some(list) = value.as_array() else { return };
                let bound = |at: Option<i64>, absent: usize| match at {
                    None => absent,
                    Some(at) if at < 0 => list.len().saturating_sub(at.unsigned_abs() as usize),
                    Some(at) => (at as usize).min(list.len()),
                };
                let (from, to) = (bound(*from, 0), bound(*to, list.len()));
                found.extend(list.get(from..to).unwrap_or_default());
            }
            Step::All => children(value, found),
            Step::Deep => {
                found.push(value);
                let mut below = Vec::new();
                children(value, &mut below);
                below.into_iter().for_each(|it| self.take(it, found));
            }
            Step::Filter { left, test, right } => {
                let passes = |entry: &&Value| match (left.of(entry), right.of(entry), test) {
                    (left, _, Test::Exists) => left.is_some(),
                    (Some(left), Some(right), test) => test.holds(left, right),
                    _ => false,
                };
                found.extend(value.as_array().into_iter().flatten().filter(passes));
            }
        }
    }
}

fn nth(list: &[Value], at: i64) -> Option<&Value> {
    let from_end = || list.len().checked_sub(at.unsigned_abs() as usize);
    list.get(if at < 0 { from_end()? } else { at as usize })
}

fn children<'a>(value: &'a Value, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(members) => found.extend(members.values()),
        Value::Array(entries) => found.extend(entries),
        _ => {}
    }
}

impl Operand {
    fn of<'a>(&'a self, entry: &'a Value) -> Option<&'a Value> {
        match self {
            Operand::Path(path) => path.first_value(entry),
            Operand::Value(value) => Some(value),
        }
    }
}

impl Test {
    fn holds(self, left: &Value, right: &Value) -> bool {
        let order = match (left, right) {
            (Value::Number(a), Value::Number(b)) => {
                a.as_f64().zip(b.as_f64()).and_then(|(a, b)| a.partial_cmp(&b))
            }
            (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
            _ if left == right => Some(Ordering::Equal),
            _ => None,
        };
        match self {
            Test::Exists => true,
            Test::Equal => order == Some(Ordering::Equal),
            Test::NotEqual => order != Some(Ordering::Equal),
            Test::Less => order == Some(Ordering::Less),
            Test::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Test::Greater => order == Some(Ordering::Greater),
            Test::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(path: &str, want: &str) {
        let object = json!({"metadata": {"labels": {"a.b/c": "label"}}, "spec": {"n": 3, "l": [1, 2, 3]},
            "status": {"conditions": [{"type": "A", "status": "False"}, {"type": "B", "status": "True", "n": 4}]}});
        let got = match Path::parse(path) {
            None => "unreadable".to_owned(),
            Some(path) => {
                let found: Vec<String> =
                    path.find(&object).iter().map(|it| it.to_string()).collect();
                found.join(" ")
            }
        };
        assert_eq!(got, want, "{path}");
    }

    #[test]
    fn paths_lead_to_values() {
        check(".spec.n", "3");
        check(".spec.l[0]", "1");
        check(".spec.l[-1]", "3");
        check(".spec.l[4]", "");
        check(".spec.l[1:]", "2 3");
        check(".spec.l[*]", "1 2 3");
        check(".spec.missing.more", "");
        check(".metadata.labels['a.b/c']", r#""label""#);
        check(r".metadata.labels.a\.b/c", r#""label""#);
        check(".status.conditions[?(@.type==\"B\")].status", r#""True""#);
        check(".status.conditions[?(@.type=='C')].status", "");
        check(".status.conditions[?(@.n>3)].type", r#""B""#);
        check(".status.conditions[?(@.n)].type", r#""B""#);
        check(
            "..status",
            r#"{"conditions":[{"status":"False","type":"A"},{"n":4,"status":"True","type":"B"}]} "False" "True""#,
        );
        check(".a[", "unreadable");
        check("spec", "unreadable");
        check(".spec.l[?(@[?(@.a)])]", "");
        check(&format!("{}.a{}", "[?(@".repeat(10_000), ")]".repeat(10_000)), "unreadable");
    }

    #[test]
    fn recursive_paths_end() {
        let mut object = json!({});
        for _ in 0..60 {
            object = json!({"a": object});
        }
        let path = Path::parse(&"..".repeat(60)).expect("a path");
        let n_found = path.find(&object).len();
        assert!((N_FOUND_MAX..N_FOUND_MAX + 100).contains(&n_found), "{n_found}");
    }

    #[test]
    fn values_are_set_at_a_path() {
        let mut object = json!({});
        Path::parse(".spec.a.b").expect("a path").set(&mut object, 3.into());
        assert_eq!(object, json!({"spec": {"a": {"b": 3}}}));
    }
}
