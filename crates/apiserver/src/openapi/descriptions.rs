//! Descriptions of types and fields in OpenAPI: our own, from `descriptions.txt`, for what a user of a scheduler looks up. Other types and
//! fields have none.

use std::sync::LazyLock;

use loadmaster_stdx::Map;

/// The description of `apiVersion` in every kind.
pub const API_VERSION_DESCRIPTION: &str = "The group and version of the object's schema.";
/// The description of `kind` in every kind.
pub const KIND_DESCRIPTION: &str = "The type of the object.";

/// By type, and by field; the name of a type's own description is empty.
static DESCRIPTIONS: LazyLock<Map<(&str, &str), &str>> =
    LazyLock::new(|| parse(include_str!("descriptions.txt")));

/// The description of a type such as `core/v1.Pod`.
pub fn type_description(type_name: &str) -> Option<&'static str> {
    DESCRIPTIONS.get(&(type_name, "")).copied()
}

/// The description of a field of a type.
pub fn field_description(type_name: &str, field: &str) -> Option<&'static str> {
    DESCRIPTIONS.get(&(type_name, field)).copied()
}

fn parse(text: &'static str) -> Map<(&'static str, &'static str), &'static str> {
    let mut descriptions = Map::default();
    let mut type_name = "";
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, description) = line.trim_start().split_once(' ').unwrap_or_default();
        let field = if line.starts_with(' ') { name } else { "" };
        if field.is_empty() {
            type_name = name;
        }
        descriptions.insert((type_name, field), description);
    }
    descriptions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::schema;

    #[test]
    fn every_description_is_of_a_type_or_field_in_the_schema() {
        let n_lines = include_str!("descriptions.txt").lines().filter(|it| !it.starts_with('#'));
        assert_eq!(DESCRIPTIONS.len(), n_lines.count(), "a name is there twice");
        for ((type_name, field), description) in &*DESCRIPTIONS {
            let id = schema().find(type_name).expect("a type");
            let mut fields = schema().get(id).fields.iter().map(|it| it.name);
            assert!(field.is_empty() || fields.any(|it| it == *field), "{type_name} {field}");
            assert!(description.ends_with('.'), "{type_name} {field}");
        }
    }

    #[test]
    fn types_and_fields_have_descriptions() {
        assert_eq!(type_description("core/v1.Node"), Some("A machine that runs pods."));
        assert_eq!(field_description("core/v1.Taint", "key"), Some("The name of the taint."));
        assert_eq!(field_description("core/v1.Taint", "other"), None);
        assert_eq!(type_description("core/v1.Secret"), None);
    }
}
