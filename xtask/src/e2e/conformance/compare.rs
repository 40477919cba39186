//! Matches responses with expected values, and holds the variables of a case.

use std::collections::BTreeMap;

use serde_json::Value;

/// The values captured by a case.
#[derive(Clone, Debug, Default)]
pub struct Variables(BTreeMap<String, Value>);

impl Variables {
    pub fn set(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// Replaces the variables in a text.
    pub fn fill_text(&self, text: &str) -> String {
        let mut filled = text.to_owned();
        // Longer names first: one may be a prefix of another.
        let mut names: Vec<&String> = self.0.keys().collect();
        names.sort_by_key(|name| std::cmp::Reverse(name.len()));
        for name in names {
            if let Some(text) = scalar_text(&self.0[name]) {
                filled = filled.replace(&format!("${name}"), &text);
            }
        }
        filled
    }

    /// Replaces the variables in a value.
    pub fn fill(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => match text.strip_prefix('$').and_then(|name| self.get(name)) {
                Some(value) => value.clone(),
                None => self.fill_text(text).into(),
            },
            Value::Array(items) => items.iter().map(|it| self.fill(it)).collect(),
            Value::Object(members) => {
                members.iter().map(|(name, it)| (self.fill_text(name), self.fill(it))).collect()
            }
            other => other.clone(),
        }
    }

    /// Matches a value, and captures new variables. An error is the first difference, with its path.
    pub fn match_value(&mut self, part: &Value, found: &Value) -> Result<(), String> {
        self.match_at(part, Some(found), "")
    }

    fn match_at(&mut self, part: &Value, found: Option<&Value>, at: &str) -> Result<(), String> {
        let shown = || found.map_or("nothing".to_owned(), ToString::to_string);
        let differs = |want: &str| Err(format!("{at}: {} where {want} should be", shown()));
        let is_absent = found.is_none_or(Value::is_null);
        match part {
            Value::String(text) if text == "ABSENT" => {
                if is_absent {
                    Ok(())
                } else {
                    differs("nothing")
                }
            }
            Value::String(text) if text == "_" => {
                if is_absent {
                    differs("something")
                } else {
                    Ok(())
                }
            }
            Value::String(text) if text.starts_with('~') => {
                let want = self.fill_text(&text[1..]);
                let contains =
                    found.and_then(scalar_text).is_some_and(|found| found.contains(&want));
                if contains { Ok(()) } else { differs(&format!("~{want}")) }
            }
            Value::String(text) if text.starts_with('$') && self.is_new(text) => match found {
                Some(found) if !is_absent => {
                    self.set(&text[1..], found.clone());
                    Ok(())
                }
                _ => differs("something"),
            },
            Value::Object(members) => {
                for (name, part) in members {
                    let name = self.fill_text(name);
                    let found = found.and_then(|found| found.get(&name));
                    self.match_at(part, found, &format!("{at}.{name}"))?;
                }
                Ok(())
            }
            Value::Array(parts) => {
                let Some(items) = found.and_then(Value::as_array) else { return differs("a list") };
                if items.len() != parts.len() {
                    return differs(&format!("{} items", parts.len()));
                }
                for (nth, (part, item)) in parts.iter().zip(items).enumerate() {
                    self.match_at(part, Some(item), &format!("{at}[{nth}]"))?;
                }
                Ok(())
            }
            other => {
                let want = self.fill(other);
                if found == Some(&want) { Ok(()) } else { differs(&want.to_string()) }
            }
        }
    }

    fn is_new(&self, text: &str) -> bool {
        let name = &text[1..];
        name.chars().all(|it| it.is_ascii_alphanumeric()) && self.get(name).is_none()
    }
}

/// A string or number as text.
pub fn scalar_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Applies a JSON merge patch: null removes a member.
pub fn merge(into: &mut Value, with: &Value) {
    let Value::Object(members) = with else {
        *into = with.clone();
        return;
    };
    for (name, value) in members {
        match value {
            Value::Null => {
                if let Value::Object(into) = into {
                    into.remove(name);
                }
            }
            _ => merge(&mut into[name.as_str()], value),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn partial_objects_are_matched() {
        let mut variables = Variables::default();
        variables.set("ns", "n1".into());
        let found = json!({"a": {"b": "n1-x", "c": [1, {"d": "text"}]}, "e": null, "f": 7});
        let mut check = |part: Value, want: Result<(), &str>| {
            let got = variables.match_value(&part, &found);
            assert_eq!(got.as_ref().map_err(String::as_str).copied(), want, "{part}");
        };
        check(json!({"a": {"b": "$ns-x", "c": [1, {"d": "_"}]}}), Ok(()));
        check(json!({"e": "ABSENT", "g": "ABSENT", "a": {"b": "~n1"}}), Ok(()));
        check(json!({"f": "$seven"}), Ok(()));
        check(json!({"f": "$seven"}), Ok(()));
        check(json!({"a": {"b": "$seven"}}), Err(".a.b: \"n1-x\" where 7 should be"));
        check(json!({"f": 8}), Err(".f: 7 where 8 should be"));
        check(json!({"f": "ABSENT"}), Err(".f: 7 where nothing should be"));
        check(json!({"e": "_"}), Err(".e: null where something should be"));
        check(json!({"a": {"c": [1]}}), Err(".a.c: [1,{\"d\":\"text\"}] where 1 items should be"));
        check(json!({"a": {"b": "~zz"}}), Err(".a.b: \"n1-x\" where ~zz should be"));
    }

    #[test]
    fn merging() {
        let mut value = json!({"a": {"b": 1, "c": 2}});
        merge(&mut value, &json!({"a": {"b": null, "d": {"e": 3}}}));
        assert_eq!(value, json!({"a": {"c": 2, "d": {"e": 3}}}));
    }
}
