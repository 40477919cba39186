//! Validates custom objects against their schema, with upstream's messages and order. On an update, errors about a
//! part that did not change are dropped (ratcheting).

use loadmaster_stdx::CollectByInsertion as _;
use loadmaster_stdx::Map;
use serde_json::Value;

use super::formats;
use super::structural::{Additional, StructuralSchema};
use crate::status::Cause;

/// Validates an object, or its status if `within` is `status`. `old` is the state before.
pub fn validate(
    schema: &StructuralSchema,
    value: &Value,
    old: Option<&Value>,
    within: &str,
) -> Vec<Cause> {
    let checker = Checker { within };
    checker.node(schema, value, "", old).causes
}

struct Checker<'a> {
    /// Where the value stands in its object; empty for the object itself.
    within: &'a str,
}

/// Errors, and how many checks were made: among alternatives, the one with most checks is reported.
#[derive(Default)]
struct Outcome {
    causes: Vec<Cause>,
    n_checks: usize,
}

impl Outcome {
    fn merge(&mut self, other: Outcome) {
        self.causes.extend(other.causes);
        self.n_checks += other.n_checks;
    }

    fn is_valid(&self) -> bool {
        self.causes.is_empty()
    }
}

impl Checker<'_> {
    /// The name of a field in the object.
    fn field(&self, path: &str) -> String {
        match (self.within, path.trim_start_matches('.')) {
            ("", "") => "<nil>".to_owned(),
            (within, "") => within.to_owned(),
            ("", path) => path.to_owned(),
            (within, path) => format!("{within}.{path}"),
        }
    }

    fn invalid(&self, path: &str, value: &Value, what: &str) -> Cause {
        Cause::invalid(self.field(path), value, &format!("{path} in body {what}"))
    }

    fn wrong_type(&self, path: &str, wanted: &str, found: &str) -> Cause {
        let detail = format!("{path} in body must be of type {wanted}: {found:?}");
        Cause::type_invalid(self.field(path), &found.into(), &detail)
    }

    /// An error that has its field in the message only.
    fn loose(&self, detail: &str) -> Cause {
        Cause::invalid(self.field(""), &"".into(), detail)
    }

    fn node(
        &self,
        schema: &StructuralSchema,
        value: &Value,
        path: &str,
        old: Option<&Value>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        if value.is_null() {
            if !types(schema).is_empty() && !schema.nullable {
                outcome.causes.push(self.wrong_type(path, types(schema), "null"));
            }
        } else {
            outcome.causes.extend(self.kind(schema, value, path));
            self.junctors(schema, value, path, &mut outcome);
            match value {
                Value::String(text) => self.text(schema, text, path, &mut outcome.causes),
                Value::Number(_) => self.number(schema, value, path, &mut outcome.causes),
                Value::Array(entries) => self.list(schema, entries, path, old, &mut outcome),
                _ => {}
            }
            outcome.n_checks += 4;
        }
        if !schema.allowed.is_empty() && !schema.allowed.iter().any(|it| is_same(it, value)) {
            let text = |it: &Value| it.as_str().map_or_else(|| it.to_string(), str::to_owned);
            let allowed: Vec<String> = schema.allowed.iter().map(text).collect();
            let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
            outcome.causes.push(Cause::not_supported(self.field(path), value, &allowed));
        }
        if let Value::Object(_) = value {
            self.members(schema, value, path, old, &mut outcome);
        }
        if old == Some(value) {
            outcome.causes.clear();
        }
        outcome
    }

    fn kind(&self, schema: &StructuralSchema, value: &Value, path: &str) -> Option<Cause> {
        let format = checked_format(schema);
        let wanted = types(schema);
        if wanted.is_empty() && format.is_empty() {
            return None;
        }
        let wants = |name: &str| wanted.split(',').any(|it| it == name);
        let (found, found_format) = match value {
            Value::Bool(_) => ("boolean", ""),
            Value::String(_) => ("string", ""),
            Value::Number(n) if n.is_f64() => ("number", "float64"),
            Value::Number(_) => ("integer", "int64"),
            Value::Array(_) => ("array", ""),
            _ => ("object", ""),
        };
        let is_whole = value.as_f64().is_some_and(|n| n.fract() == 0.0) && wants("integer");
        let fits =
            wants(found) || found == "number" && is_whole || found == "integer" && wants("number");
        let is_text_or_list = matches!(value, Value::String(_) | Value::Array(_));
        if !is_text_or_list && !format.is_empty() && !fits && found_format != format {
            return Some(self.wrong_type(path, format, found_format));
        }
        let is_numeric = wants("number") || wants("integer");
        if !is_numeric && !format.is_empty() && is_text_or_list {
            return None;
        }
        (!fits).then(|| self.wrong_type(path, wanted, found))
    }

    fn junctors(
        &self,
        schema: &StructuralSchema,
        value: &Value,
        path: &str,
        outcome: &mut Outcome,
    ) {
        // Alternatives are never ratcheted.
        let results = |list: &[StructuralSchema]| -> Vec<Outcome> {
            list.iter().map(|it| self.node(it, value, path, None)).collect()
        };
        if !schema.any_of.is_empty() {
            let results = results(&schema.any_of);
            if !results.iter().any(Outcome::is_valid) {
                let text = format!("{path:?} must validate at least one schema (anyOf)");
                outcome.causes.push(self.loose(&text));
                outcome.merge(nearest(results));
            }
        }
        if !schema.one_of.is_empty() {
            let results = results(&schema.one_of);
            let n_valid = results.iter().filter(|it| it.is_valid()).count();
            if n_valid != 1 {
                let found = match n_valid {
                    0 => "Found none valid".to_owned(),
                    n => format!("Found {n} valid alternatives"),
                };
                let text =
                    format!("{path:?} must validate one and only one schema (oneOf). {found}");
                outcome.causes.push(self.loose(&text));
                if n_valid == 0 {
                    outcome.merge(nearest(results));
                }
            }
        }
        if !schema.all_of.is_empty() {
            let results = results(&schema.all_of);
            let n_valid = results.iter().filter(|it| it.is_valid()).count();
            results.into_iter().for_each(|it| outcome.merge(it));
            if n_valid != schema.all_of.len() {
                let more = if n_valid == 0 { ". None validated" } else { "" };
                let text = format!("{path:?} must validate all the schemas (allOf){more}");
                outcome.causes.push(self.loose(&text));
            }
        }
        if let Some(not) = &schema.not
            && self.node(not, value, path, None).is_valid()
        {
            outcome
                .causes
                .push(self.loose(&format!("{path:?} must not validate the schema (not)")));
        }
    }

    fn text(&self, schema: &StructuralSchema, text: &str, path: &str, causes: &mut Vec<Cause>) {
        let n_chars = text.chars().count() as i64;
        if let Some(max) = schema.max_length.filter(|max| n_chars > *max) {
            causes.push(Cause::too_long(self.field(path), max.max(0) as usize));
        } else if let Some(min) = schema.min_length.filter(|min| n_chars < *min) {
            let what = format!("should be at least {min} chars long");
            causes.push(self.invalid(path, &text.into(), &what));
        } else if let Some(pattern) = &schema.pattern.compiled
            && !pattern.is_match(text)
        {
            let what = format!("should match '{}'", schema.pattern.text);
            causes.push(self.invalid(path, &text.into(), &what));
        }
        let format = checked_format(schema);
        if !format.is_empty() && !formats::has_format(format, text) {
            causes.push(self.wrong_type(path, format, text));
        }
    }

    fn number(
        &self,
        schema: &StructuralSchema,
        value: &Value,
        path: &str,
        causes: &mut Vec<Cause>,
    ) {
        let Some(n) = value.as_f64() else { return };
        let is_typed = !schema.is_int_or_string && schema.kind == "integer";
        if is_typed {
            // Whole numbers may be written with a point.
            let is_whole = n.fract() == 0.0 && n.abs() < 9.2e18;
            let whole = value.as_i64().or(is_whole.then_some(n as i64));
            let (is_within, format) = match checked_format(schema) {
                "int32" => (whole.is_some_and(|n| i32::try_from(n).is_ok()), " with format int32"),
                "int64" => (whole.is_some(), " with format int64"),
                _ => (whole.is_some(), " (default format)"),
            };
            if !is_within {
                let text = format!("Checked value must be of type integer{format} in {path}");
                causes.push(self.loose(&text));
            }
        }
        if let Some(factor) = schema.multiple_of {
            let times = if factor < 1.0 { 1.0 / factor * n } else { n / factor };
            if factor <= 0.0 || (times - times.round()).abs() > 1e-9 * times.abs().max(1.0) {
                causes.push(self.invalid(
                    path,
                    value,
                    &format!("should be a multiple of {factor}"),
                ));
            }
        }
        if let Some(max) = schema.maximum {
            let is_over = if schema.exclusive_maximum { n >= max } else { n > max };
            let or_equal = if schema.exclusive_maximum { "" } else { " or equal to" };
            if is_over {
                causes.push(self.invalid(
                    path,
                    value,
                    &format!("should be less than{or_equal} {max}"),
                ));
            }
        }
        if let Some(min) = schema.minimum {
            let is_under = if schema.exclusive_minimum { n <= min } else { n < min };
            let or_equal = if schema.exclusive_minimum { "" } else { " or equal to" };
            if is_under {
                let what = format!("should be greater than{or_equal} {min}");
                causes.push(self.invalid(path, value, &what));
            }
        }
    }

    fn list(
        &self,
        schema: &StructuralSchema,
        entries: &[Value],
        path: &str,
        old: Option<&Value>,
        outcome: &mut Outcome,
    ) {
        if let Some(items) = schema.items() {
            let known = schema.known_entries(old);
            for (at, entry) in entries.iter().enumerate() {
                let old = schema.find_old_entry(entry, &known);
                outcome.merge(self.node(items, entry, &format!("{path}[{at}]"), old));
            }
        }
        let n = entries.len() as i64;
        if let Some(min) = schema.min_items.filter(|min| n < *min) {
            let what = format!("should have at least {min} items");
            outcome.causes.push(self.invalid(path, &n.into(), &what));
        }
        if let Some(max) = schema.max_items.filter(|max| n > *max) {
            outcome.causes.push(Cause::too_many(self.field(path), n, max));
        }
    }

    fn members(
        &self,
        schema: &StructuralSchema,
        value: &Value,
        path: &str,
        old: Option<&Value>,
        outcome: &mut Outcome,
    ) {
        let Some(members) = value.as_object() else { return };
        let n = members.len() as i64;
        if let Some(min) = schema.min_properties.filter(|min| n < *min) {
            let what = format!("should have at least {min} properties");
            outcome.causes.push(self.invalid(path, &n.into(), &what));
        }
        if let Some(max) = schema.max_properties.filter(|max| n > *max) {
            outcome.causes.push(Cause::too_many(self.field(path), n, max));
        }
        let is_atomic = schema.map_type.as_deref() == Some("atomic");
        let old = old.filter(|_| !is_atomic);
        for (name, value) in members {
            if let Some(inner) = schema.field(name) {
                let dot =
                    if path.is_empty() && schema.properties.contains_key(name) { "" } else { "." };
                let old = old.and_then(|it| it.get(name));
                outcome.merge(self.node(inner, value, &format!("{path}{dot}{name}"), old));
            } else if matches!(schema.additional_properties, Some(Additional::Allowed(false))) {
                let detail = format!("{path}.{name} in body is a forbidden property");
                outcome.causes.push(Cause::invalid(
                    self.field(path),
                    &name.as_str().into(),
                    &detail,
                ));
            }
        }
        for name in schema.required.iter().filter(|name| !members.contains_key(*name)) {
            outcome.causes.push(Cause::required(self.field(&format!("{path}.{name}")), ""));
        }
    }
}

fn types(schema: &StructuralSchema) -> &str {
    if schema.is_int_or_string { "integer,string" } else { &schema.kind }
}

/// The format of a node if it is one that is checked for its type.
fn checked_format(schema: &StructuralSchema) -> &str {
    let format = schema.format.as_str();
    let is_checked = match types(schema) {
        "" | "string" => formats::is_known(format),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    };
    if is_checked { format } else { "" }
}

/// Numbers are equal in whatever form.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        _ => a == b,
    }
}

fn nearest(results: Vec<Outcome>) -> Outcome {
    let best =
        results.into_iter().reduce(|best, it| if it.n_checks > best.n_checks { it } else { best });
    best.unwrap_or_default()
}

/// Complaints about lists of type set and map whose entries are not unique.
pub fn validate_list_uniqueness(
    schema: &StructuralSchema,
    value: &Value,
    path: &str,
    causes: &mut Vec<Cause>,
) {
    match value {
        Value::Array(entries) => {
            match schema.list_type.as_deref() {
                Some("set") => repeated(entries, path, causes),
                Some("map") => {
                    let key = |entry: &Value| -> Value {
                        let keys = schema.list_keys.iter();
                        let found =
                            keys.filter_map(|key| Some((key.clone(), entry.get(key)?.clone())));
                        Value::Object(found.collect_by_insertion())
                    };
                    let keys: Vec<Value> = entries.iter().map(key).collect();
                    repeated(&keys, path, causes);
                }
                _ => {}
            }
            if let Some(items) = schema.items() {
                for (at, entry) in entries.iter().enumerate() {
                    validate_list_uniqueness(items, entry, &format!("{path}[{at}]"), causes);
                }
            }
        }
        Value::Object(members) => {
            for (name, value) in members {
                let inner = match schema.properties.get(name) {
                    Some(own) => {
                        let dot = if path.is_empty() { "" } else { "." };
                        Some((own, format!("{path}{dot}{name}")))
                    }
                    None => schema.additional().map(|it| (it, format!("{path}[{name}]"))),
                };
                if let Some((inner, path)) = inner {
                    validate_list_uniqueness(inner, value, &path, causes);
                }
            }
        }
        _ => {}
    }
}

/// Reports each value that occurs again, once.
fn repeated(entries: &[Value], path: &str, causes: &mut Vec<Cause>) {
    let mut counts: Map<&Value, usize> = Map::default();
    for (at, entry) in entries.iter().enumerate() {
        let n = counts.entry(entry).or_default();
        *n += 1;
        if *n == 2 {
            causes.push(Cause::duplicate(format!("{path}[{at}]"), entry));
        }
    }
}

/// Complaints about embedded objects, which need a version and a kind.
pub fn validate_embedded_objects(
    schema: &StructuralSchema,
    value: &Value,
    path: &str,
    causes: &mut Vec<Cause>,
) {
    match value {
        Value::Object(members) => {
            if schema.is_embedded {
                for name in ["apiVersion", "kind"] {
                    match members.get(name) {
                        None => causes.push(Cause::required(format!("{path}.{name}"), "")),
                        Some(value) if value == "" => {
                            let field = format!("{path}.{name}");
                            causes.push(Cause::invalid(field, value, "must not be empty"));
                        }
                        Some(_) => {}
                    }
                }
            }
            for (name, value) in members {
                if let Some(inner) = schema.field(name) {
                    let dot = if path.is_empty() { "" } else { "." };
                    validate_embedded_objects(inner, value, &format!("{path}{dot}{name}"), causes);
                }
            }
        }
        Value::Array(entries) => {
            let Some(items) = schema.items() else { return };
            for (at, entry) in entries.iter().enumerate() {
                validate_embedded_objects(items, entry, &format!("{path}[{at}]"), causes);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
