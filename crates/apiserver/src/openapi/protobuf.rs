//! The protobuf form of OpenAPI v2 (`openapi.v2.Document` of gnostic-models), which client-go requests. Field numbers
//! are those of its `OpenAPIv2.proto`.

use serde_json::Value;

use super::v2::members;
use crate::object::list_entries;

/// The media type of the request, and of the answer.
pub const OPENAPI_V2_REQUEST_MEDIA_TYPE: &str =
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
pub const OPENAPI_V2_MEDIA_TYPE: &str =
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// A message being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.varint(u64::from(number) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, number: u32, message: &Message) {
        self.bytes(number, &message.0);
    }

    fn text(&mut self, number: u32, value: &Value) {
        if let Some(text) = value.as_str().filter(|text| !text.is_empty()) {
            self.bytes(number, text.as_bytes());
        }
    }

    fn texts(&mut self, number: u32, list: &Value) {
        for text in list_entries(list).iter().filter_map(Value::as_str) {
            self.bytes(number, text.as_bytes());
        }
    }

    fn flag(&mut self, number: u32, value: &Value) {
        if value == true {
            self.varint(u64::from(number) << 3);
            self.varint(1);
        }
    }

    fn double(&mut self, number: u32, value: &Value) {
        if let Some(n) = value.as_f64() {
            self.varint(u64::from(number) << 3 | 1);
            self.0.extend_from_slice(&n.to_le_bytes());
        }
    }

    fn integer(&mut self, number: u32, value: &Value) {
        if let Some(n) = value.as_i64() {
            self.varint(u64::from(number) << 3);
            self.varint(n as u64);
        }
    }

    /// Any value, as YAML, of which JSON is a part.
    fn any(&mut self, number: u32, value: &Value) {
        let mut any = Message::default();
        any.bytes(2, value.to_string().as_bytes());
        self.message(number, &any);
    }

    /// An entry of a map.
    fn named(&mut self, number: u32, name: &str, value: &Message) {
        let mut entry = Message::default();
        entry.bytes(1, name.as_bytes());
        entry.message(2, value);
        self.message(number, &entry);
    }

    fn extensions(&mut self, number: u32, of: &Value) {
        for (name, value) in members(of).filter(|(name, _)| name.starts_with("x-")) {
            let mut entry = Message::default();
            entry.bytes(1, name.as_bytes());
            entry.any(2, value);
            self.message(number, &entry);
        }
    }
}

/// A document in protobuf.
pub fn encode_openapi_document(it: &Value) -> Vec<u8> {
    let mut out = Message::default();
    out.text(1, &it["swagger"]);
    let mut info = Message::default();
    info.text(1, &it["info"]["title"]);
    info.text(2, &it["info"]["version"]);
    out.message(2, &info);
    let mut paths = Message::default();
    for (path, item) in members(&it["paths"]) {
        paths.named(2, path, &path_item(item));
    }
    out.message(8, &paths);
    let mut definitions = Message::default();
    for (name, it) in members(&it["definitions"]) {
        definitions.named(1, name, &schema(it));
    }
    out.message(9, &definitions);
    for requirement in list_entries(&it["security"]) {
        let mut message = Message::default();
        for (name, scopes) in members(requirement) {
            let mut list = Message::default();
            list.texts(1, scopes);
            message.named(1, name, &list);
        }
        out.message(12, &message);
    }
    let mut security = Message::default();
    for (name, it) in members(&it["securityDefinitions"]) {
        let mut key = Message::default();
        for (at, field) in ["type", "name", "in", "description"].iter().enumerate() {
            key.text(at as u32 + 1, &it[field]);
        }
        let mut item = Message::default();
        item.message(2, &key);
        security.named(1, name, &item);
    }
    out.message(13, &security);
    out.0
}

fn path_item(it: &Value) -> Message {
    let mut out = Message::default();
    for (number, method) in [
        (2, "get"),
        (3, "put"),
        (4, "post"),
        (5, "delete"),
        (6, "options"),
        (7, "head"),
        (8, "patch"),
    ] {
        if it[method].is_object() {
            out.message(number, &operation(&it[method]));
        }
    }
    parameters(&mut out, 9, &it["parameters"]);
    out.extensions(10, it);
    out
}

fn operation(it: &Value) -> Message {
    let mut out = Message::default();
    out.texts(1, &it["tags"]);
    out.text(3, &it["description"]);
    out.text(5, &it["operationId"]);
    out.texts(6, &it["produces"]);
    out.texts(7, &it["consumes"]);
    parameters(&mut out, 8, &it["parameters"]);
    let mut responses = Message::default();
    for (code, it) in members(&it["responses"]) {
        let mut response = Message::default();
        response.text(1, &it["description"]);
        if it["schema"].is_object() {
            let mut item = Message::default();
            item.message(1, &schema(&it["schema"]));
            response.message(2, &item);
        }
        let mut value = Message::default();
        value.message(1, &response);
        responses.named(1, code, &value);
    }
    out.message(9, &responses);
    out.texts(10, &it["schemes"]);
    out.extensions(13, it);
    out
}

fn parameters(out: &mut Message, number: u32, list: &Value) {
    for it in list_entries(list) {
        let mut parameter = Message::default();
        if it["in"] == "body" {
            parameter.message(1, &body_parameter(it));
        } else {
            let mut inner = Message::default();
            let (kind, is_path) = if it["in"] == "path" { (4, true) } else { (3, false) };
            inner.message(kind, &plain_parameter(it, is_path));
            parameter.message(2, &inner);
        }
        let mut item = Message::default();
        item.message(1, &parameter);
        out.message(number, &item);
    }
}

fn body_parameter(it: &Value) -> Message {
    let mut out = Message::default();
    out.text(1, &it["description"]);
    out.text(2, &it["name"]);
    out.text(3, &it["in"]);
    out.flag(4, &it["required"]);
    out.message(5, &schema(&it["schema"]));
    out
}

/// A parameter of the path, or of the query, whose numbers are one higher from the type on.
fn plain_parameter(it: &Value, is_path: bool) -> Message {
    let shift = u32::from(!is_path);
    let mut out = Message::default();
    out.flag(1, &it["required"]);
    out.text(2, &it["in"]);
    out.text(3, &it["description"]);
    out.text(4, &it["name"]);
    out.text(5 + shift, &it["type"]);
    out.text(6 + shift, &it["format"]);
    out.flag(19 + shift, &it["uniqueItems"]);
    out
}

fn schema(it: &Value) -> Message {
    let mut out = Message::default();
    for (number, field) in [(1, "$ref"), (2, "format"), (3, "title"), (4, "description")] {
        out.text(number, &it[field]);
    }
    if let Some(default) = it.get("default") {
        out.any(5, default);
    }
    for (number, field) in [(6, "multipleOf"), (7, "maximum"), (9, "minimum")] {
        out.double(number, &it[field]);
    }
    for (number, field) in [(8, "exclusiveMaximum"), (10, "exclusiveMinimum"), (16, "uniqueItems")]
    {
        out.flag(number, &it[field]);
    }
    for (number, field) in [
        (11, "maxLength"),
        (12, "minLength"),
        (14, "maxItems"),
        (15, "minItems"),
        (17, "maxProperties"),
        (18, "minProperties"),
    ] {
        out.integer(number, &it[field]);
    }
    out.text(13, &it["pattern"]);
    out.texts(19, &it["required"]);
    for value in list_entries(&it["enum"]) {
        out.any(20, value);
    }
    match &it["additionalProperties"] {
        Value::Null => {}
        allowed => {
            let mut item = Message::default();
            match allowed {
                Value::Bool(_) => item.flag(2, allowed),
                _ => item.message(1, &schema(allowed)),
            }
            out.message(21, &item);
        }
    }
    if let Some(kind) = it["type"].as_str() {
        let mut item = Message::default();
        item.bytes(1, kind.as_bytes());
        out.message(22, &item);
    }
    if it["items"].is_object() {
        let mut items = Message::default();
        items.message(1, &schema(&it["items"]));
        out.message(23, &items);
    }
    for part in list_entries(&it["allOf"]) {
        out.message(24, &schema(part));
    }
    let mut properties = Message::default();
    for (name, it) in members(&it["properties"]) {
        properties.named(1, name, &schema(it));
    }
    if !properties.0.is_empty() {
        out.message(25, &properties);
    }
    out.extensions(31, it);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_in_protobuf() {
        let it = json!({"type": "object", "required": ["a"],
            "properties": {"a": {"$ref": "#/definitions/b"}}, "x-k": "set"});
        // Numbers above 15 take two bytes of tag.
        let want = [
            &[0x9a, 1, 1][..],
            b"a",
            &[0xb2, 1, 8, 0x0a, 6],
            b"object",
            &[0xca, 1, 24, 0x0a, 22, 0x0a, 1],
            b"a",
            &[0x12, 17, 0x0a, 15],
            b"#/definitions/b",
            &[0xfa, 1, 14, 0x0a, 3],
            b"x-k",
            &[0x12, 7, 0x12, 5],
            b"\"set\"",
        ]
        .concat();
        assert_eq!(schema(&it).0, want);
    }
}
