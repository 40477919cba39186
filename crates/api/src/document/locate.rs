//! Finding the line and column of a value: only after something went wrong, so that nobody pays for
//! positions in advance. Neither walker recurses.

use granit_parser::{Event, Parser, Span, StrInput};

use super::path::{FieldPath, FieldPathSegment};

/// Where a path leads in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Line and column of the value, or of its nearest ancestor in the text.
    pub(super) value: (usize, usize),
    /// Of the key in front of it, if it has one.
    pub(super) key: Option<(usize, usize)>,
    /// Whether the path led all the way.
    pub(super) exact: bool,
}

/// Line and column, counted from 1, of the byte at `offset`.
pub(super) fn position(text: &str, offset: usize) -> (usize, usize) {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    let before = &text[..offset];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
}

/// The byte at which value number `part` of concatenated JSON values begins.
pub(super) fn json_part(text: &str, part: usize) -> Option<usize> {
    let mut cursor = Cursor { text, at: 0 };
    for _ in 0..part {
        cursor.blanks();
        cursor.skip_value()?;
    }
    cursor.blanks();
    (cursor.at < text.len()).then_some(cursor.at)
}

/// Follows `path` into value number `part` of concatenated JSON values.
pub(super) fn find_json(text: &str, part: usize, path: &FieldPath) -> Option<Found> {
    let mut cursor = Cursor { text, at: json_part(text, part)? };
    let (mut value, mut key, mut exact) = (cursor.at, None, true);
    for segment in path.segments() {
        let step = match segment {
            FieldPathSegment::Field(name) => cursor.enter_object(name),
            FieldPathSegment::Index(index) => cursor.enter_array(*index).map(|()| None),
        };
        let Some(step_key) = step else {
            exact = false;
            break;
        };
        (value, key) = (cursor.at, step_key);
    }
    let at = |offset: usize| position(text, offset);
    Some(Found { value: at(value), key: key.map(at), exact })
}

/// Walks over JSON that has been read before, at least up to where it was found wrong.
pub(crate) struct Cursor<'a> {
    pub(crate) text: &'a str,
    pub(crate) at: usize,
}

impl Cursor<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    pub(crate) fn eat(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    pub(crate) fn blanks(&mut self) {
        while self.peek().is_some_and(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// From an object to the value of its first key called `name`; returns where the key begins.
    fn enter_object(&mut self, name: &str) -> Option<Option<usize>> {
        self.eat(b'{')?;
        loop {
            self.blanks();
            let key = self.at;
            self.skip_string()?;
            let raw = &self.text[key..self.at];
            self.blanks();
            self.eat(b':')?;
            self.blanks();
            if is_string(raw, name) {
                return self.peek().map(|_| Some(key));
            }
            self.skip_value()?;
            self.blanks();
            self.eat(b',')?;
        }
    }

    fn enter_array(&mut self, index: usize) -> Option<()> {
        self.eat(b'[')?;
        self.blanks();
        for _ in 0..index {
            self.skip_value()?;
            self.blanks();
            self.eat(b',')?;
            self.blanks();
        }
        (self.peek()? != b']').then_some(())
    }

    pub(crate) fn skip_string(&mut self) -> Option<()> {
        self.eat(b'"')?;
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Some(())
    }

    pub(crate) fn skip_value(&mut self) -> Option<()> {
        let mut depth = 0usize;
        loop {
            match self.peek()? {
                b'"' => self.skip_string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                b' ' | b'\t' | b'\n' | b'\r' | b',' | b':' if depth > 0 => self.at += 1,
                b',' | b':' => return None,
                _ => self.skip_word(),
            }
            if depth == 0 {
                return Some(());
            }
        }
    }

    /// A number, `true`, `false`, `null`, or something wrong.
    fn skip_word(&mut self) {
        let ends =
            |byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r') || b",:{}[]\"".contains(&byte);
        while self.peek().is_some_and(|byte| !ends(byte)) {
            self.at += 1;
        }
    }
}

fn is_string(raw: &str, wanted: &str) -> bool {
    if raw.contains('\\') {
        return serde_json::from_str::<String>(raw).is_ok_and(|text| text == wanted);
    }
    raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"')) == Some(wanted)
}

/// Follows `path` into one YAML document. Lines are those of `text`.
pub(super) fn find_yaml(text: &str, path: &FieldPath) -> Option<Found> {
    let mut events = Events(Parser::new_from_str(text));
    let mut node = events.root()?;
    let mut found = Found { value: start(&node.1), key: None, exact: true };
    for segment in path.segments() {
        let step = match (&node.0, segment) {
            (Event::MappingStart(..), FieldPathSegment::Field(name)) => events.enter_mapping(name),
            (Event::SequenceStart(..), FieldPathSegment::Index(index)) => {
                events.enter_sequence(*index)
            }
            _ => None,
        };
        let Some((key, below)) = step else {
            return Some(Found { exact: false, ..found });
        };
        found = Found { value: start(&below.1), key: key.as_ref().map(start), exact: true };
        node = below;
    }
    Some(found)
}

/// Whether all of `text` is YAML.
pub(super) fn is_yaml(text: &str) -> bool {
    Parser::new_from_str(text).all(|event| event.is_ok())
}

fn start(span: &Span) -> (usize, usize) {
    (span.start.line(), span.start.col() + 1)
}

type Node<'a> = (Event<'a>, Span);

/// The nodes of a YAML document; an error ends them.
struct Events<'a>(Parser<'a, StrInput<'a>>);

impl<'a> Events<'a> {
    fn next(&mut self) -> Option<Node<'a>> {
        loop {
            let (event, span) = self.0.next()?.ok()?;
            if !matches!(event, Event::Comment(..) | Event::Anchor(..)) {
                return Some((event, span));
            }
        }
    }

    fn root(&mut self) -> Option<Node<'a>> {
        loop {
            let node = self.next()?;
            if !matches!(node.0, Event::StreamStart | Event::DocumentStart(..)) {
                return Some(node);
            }
        }
    }

    /// Inside a mapping: the key called `name` and its value.
    fn enter_mapping(&mut self, name: &str) -> Option<(Option<Span>, Node<'a>)> {
        loop {
            let key = self.next()?;
            let is_wanted = match &key.0 {
                Event::MappingEnd => return None,
                Event::Scalar(text, ..) => text == name,
                _ => false,
            };
            self.skip(&key)?;
            let value = self.next()?;
            if is_wanted {
                return Some((Some(key.1), value));
            }
            self.skip(&value)?;
        }
    }

    fn enter_sequence(&mut self, index: usize) -> Option<(Option<Span>, Node<'a>)> {
        for _ in 0..index {
            let item = self.next()?;
            if matches!(item.0, Event::SequenceEnd) {
                return None;
            }
            self.skip(&item)?;
        }
        let item = self.next()?;
        (!matches!(item.0, Event::SequenceEnd)).then_some((None, item))
    }

    /// Passes the rest of a node whose first event has been taken.
    fn skip(&mut self, node: &Node<'a>) -> Option<()> {
        let mut depth = depth_change(&node.0);
        while depth > 0 {
            depth += depth_change(&self.next()?.0);
        }
        Some(())
    }
}

fn depth_change(event: &Event<'_>) -> i32 {
    match event {
        Event::MappingStart(..) | Event::SequenceStart(..) => 1,
        Event::MappingEnd | Event::SequenceEnd => -1,
        _ => 0,
    }
}
