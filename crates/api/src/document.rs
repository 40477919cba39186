//! Named texts in JSON or YAML, decoded so that every error names file, line, column and field.
//!
//! Positions cost nothing until something is wrong: a document is decoded in one pass that knows nothing of
//! them; after a failure the path to the faulty value is learned in a second pass, and its line and column in
//! a third.
//!
//! YAML is read as the API server's libraries read it: YAML 1.1 booleans, octal numbers with a leading zero,
//! merge keys; a key that stands twice in a map is an error. Maps and lists may be nested 127 levels deep in
//! JSON and 64 in YAML.

mod locate;
mod message;
mod path;
mod value;

use std::fmt;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::sync::Arc;

use loadmaster_stdx::{ErasedSeed, decode_with};
use serde::de::{DeserializeOwned, DeserializeSeed, Error as _};
use serde_path_to_error::Track;

pub(crate) use locate::Cursor;
pub use path::{FieldPath, FieldPathError, FieldPathSegment};

/// How deep maps and lists may be nested in YAML: its decoder takes up to 20 kB of stack a level.
const YAML_DEPTH_MAX: usize = 64;

/// Up to this length a text that looks like JSON is tried as YAML if it is not JSON.
const AMBIGUOUS_BYTES_MAX: usize = 1 << 16;

/// How a text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentFormat {
    /// One JSON value or several behind each other.
    Json,
    /// One YAML document or several, separated by `---`.
    Yaml,
}

/// A text with the name of the file it comes from. Clones share the text.
#[derive(Clone)]
pub struct Document(Arc<Inner>);

struct Inner {
    name: String,
    text: String,
    format: DocumentFormat,
}

/// Without the text, which may be long.
impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { name, text, format } = &*self.0;
        write!(f, "Document({name:?}, {} bytes of {format:?})", text.len())
    }
}

/// What is wrong in a document, and where. Lines and columns count from 1, columns in characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocatedError {
    /// Name of the document.
    pub file: String,
    /// Line of the faulty value.
    pub line: usize,
    /// Column of the faulty value.
    pub column: usize,
    /// Path to the faulty value from the root of its document.
    pub path: FieldPath,
    /// What was expected, and what was found.
    pub text: String,
}

impl fmt::Display for LocatedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LocatedError { file, line, column, path, text } = self;
        write!(f, "{file}:{line}:{column}: ")?;
        if !path.is_root() {
            write!(f, "{path}: ")?;
        }
        f.write_str(text)
    }
}

impl std::error::Error for LocatedError {}

/// Why a file could not become a document.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// The file could not be read.
    #[error("reading {name}")]
    Read {
        /// Name of the file.
        name: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The file is larger than allowed.
    #[error("{name} is too large: expected at most {bytes_max} bytes")]
    TooLarge {
        /// Name of the file.
        name: String,
        /// The limit.
        bytes_max: u64,
    },
    /// The file is not text.
    #[error(transparent)]
    NotText(LocatedError),
}

impl Document {
    /// A document with this name, which error messages begin with.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Document {
        let (name, mut text) = (name.into(), text.into());
        if text.starts_with('\u{feff}') {
            text.drain(..'\u{feff}'.len_utf8());
        }
        let format = format_of(&text);
        Document(Arc::new(Inner { name, text, format }))
    }

    /// Reads a file, or standard input if the name is `-`.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, holds more than `bytes_max` bytes, or is not UTF-8.
    pub fn read(name: &str, bytes_max: Option<u64>) -> Result<Document, DocumentError> {
        if name == "-" {
            return Document::from_reader(name, io::stdin().lock(), bytes_max);
        }
        let open = || {
            let file = std::fs::File::open(name)?;
            let len = file.metadata()?.len();
            Ok((file, len))
        };
        match open() {
            Ok((file, len)) => {
                let expected = bytes_max.map_or(len, |bytes_max| len.min(bytes_max));
                let mut buffer = Vec::new();
                // Only a hint: a file may say that it is larger than memory.
                let _ = buffer.try_reserve(usize::try_from(expected).unwrap_or_default());
                Document::fill(name, buffer, file, bytes_max)
            }
            Err(source) => Err(DocumentError::Read { name: name.to_owned(), source }),
        }
    }

    /// Reads all that `reader` has.
    ///
    /// # Errors
    ///
    /// As [`Document::read`].
    pub fn from_reader(
        name: &str,
        reader: impl Read,
        bytes_max: Option<u64>,
    ) -> Result<Document, DocumentError> {
        Document::fill(name, Vec::new(), reader, bytes_max)
    }

    fn fill(
        name: &str,
        mut bytes: Vec<u8>,
        reader: impl Read,
        bytes_max: Option<u64>,
    ) -> Result<Document, DocumentError> {
        let name = name.to_owned();
        // One byte more than allowed detects a file that is too large.
        let limit = bytes_max.map_or(u64::MAX, |bytes_max| bytes_max.saturating_add(1));
        if let Err(source) = reader.take(limit).read_to_end(&mut bytes) {
            return Err(DocumentError::Read { name, source });
        }
        if let Some(bytes_max) = bytes_max
            && bytes.len() as u64 > bytes_max
        {
            return Err(DocumentError::TooLarge { name, bytes_max });
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Document::new(name, text)),
            Err(error) => {
                let valid =
                    String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
                let (line, column) = locate::position(&valid, valid.len());
                let text = "expected text in UTF-8".to_owned();
                Err(DocumentError::NotText(LocatedError {
                    file: name,
                    line,
                    column,
                    path: FieldPath::ROOT,
                    text,
                }))
            }
        }
    }

    /// The name of the document, for example a file name, or `-` for standard input.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The text, without a byte order mark.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// How the text is written.
    pub fn format(&self) -> DocumentFormat {
        self.0.format
    }

    /// Whether there is nothing but blanks, comments and separators.
    pub fn is_empty(&self) -> bool {
        self.format() == DocumentFormat::Yaml && self.yaml_parts().is_empty()
    }

    /// Decodes the only value of this document.
    ///
    /// # Errors
    ///
    /// When there is no value or more than one, when it is not well-formed, or when it is not a `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, LocatedError> {
        self.decode_seed(std::marker::PhantomData)
    }

    /// Decodes all values of this document in their order; empty ones are left out.
    ///
    /// # Errors
    ///
    /// When one of them is not well-formed, or not a `T`.
    pub fn decode_all<T: DeserializeOwned>(&self) -> Result<Vec<T>, LocatedError> {
        self.decode_each(|| std::marker::PhantomData).into_iter().collect()
    }

    /// Decodes the only value of this document, whatever its shape.
    ///
    /// # Errors
    ///
    /// When there is no value or more than one, when it is not well-formed, or when a key stands twice in one
    /// map.
    pub fn decode_value(&self) -> Result<serde_json::Value, LocatedError> {
        self.decode_seed(value::AnyValue)
    }

    /// Decodes all values of this document in their order, whatever their shapes; empty ones are left out.
    ///
    /// # Errors
    ///
    /// When one is not well-formed, or a key stands twice in one map.
    pub fn decode_values(&self) -> Result<Vec<serde_json::Value>, LocatedError> {
        self.decode_each(|| value::AnyValue).into_iter().collect()
    }

    /// As [`Document::decode_values`], with an error for each value that is not well-formed. Of a JSON document
    /// nothing is read after the first error.
    pub fn decode_values_or_errors(&self) -> Vec<Result<serde_json::Value, LocatedError>> {
        self.decode_each(|| value::AnyValue)
    }

    /// Line and column of the value at `path`, or of its nearest ancestor that is written in the text. None
    /// if there is no value at all.
    pub fn locate(&self, path: &FieldPath) -> Option<(usize, usize)> {
        self.locate_in_part(0, path)
    }

    /// As [`Document::locate`] in value number `part` (from 0, empty ones not counted) of several.
    pub fn locate_in_part(&self, part: usize, path: &FieldPath) -> Option<(usize, usize)> {
        Some(self.find(part, path)?.value)
    }

    /// An error about the value at `path`, with its line and column.
    pub fn error_at(&self, path: FieldPath, text: impl Into<String>) -> LocatedError {
        self.error_in_part(0, path, text)
    }

    /// An error about the value at `path` in value number `part`, with its line and column.
    pub fn error_in_part(
        &self,
        part: usize,
        path: FieldPath,
        text: impl Into<String>,
    ) -> LocatedError {
        let (line, column) = self.locate_in_part(part, &path).unwrap_or((1, 1));
        LocatedError { file: self.name().to_owned(), line, column, path, text: text.into() }
    }

    fn decode_seed<'de, S: DeserializeSeed<'de>>(
        &'de self,
        seed: S,
    ) -> Result<S::Value, LocatedError> {
        match self.format() {
            DocumentFormat::Json => {
                let mut decoder = self.json_decoder();
                let value = self.json_seed(0, &mut decoder, seed)?;
                match decoder.end() {
                    Ok(()) => Ok(value),
                    Err(error) => Err(self.json_error(0, FieldPath::ROOT, &error)),
                }
            }
            DocumentFormat::Yaml => match *self.yaml_parts() {
                [] => Err(self.error_at(FieldPath::ROOT, "expected a document, found nothing")),
                [part] => self.yaml_seed(0, part, seed),
                [..] => Err(self.error_in_part(
                    1,
                    FieldPath::ROOT,
                    "expected the end, found another document",
                )),
            },
        }
    }

    fn decode_each<'de, S: DeserializeSeed<'de>>(
        &'de self,
        seed: impl Fn() -> S,
    ) -> Vec<Result<S::Value, LocatedError>> {
        match self.format() {
            DocumentFormat::Json => {
                let mut decoder = self.json_decoder();
                let mut values = Vec::new();
                loop {
                    values.push(self.json_seed(values.len(), &mut decoder, seed()));
                    if values.last().is_none_or(Result::is_err) || decoder.end().is_ok() {
                        return values;
                    }
                }
            }
            DocumentFormat::Yaml => {
                let parts = self.yaml_parts().into_iter().enumerate();
                parts.map(|(nth, part)| self.yaml_seed(nth, part, seed())).collect()
            }
        }
    }

    /// A decoder for the values of a JSON document.
    pub(crate) fn json_decoder(&self) -> JsonDecoder<'_> {
        serde_json::Deserializer::from_str(self.text())
    }

    /// Takes value number `part` from `decoder`, watching the path.
    pub(crate) fn json_seed<'de, S: DeserializeSeed<'de>>(
        &self,
        part: usize,
        decoder: &mut JsonDecoder<'de>,
        seed: S,
    ) -> Result<S::Value, LocatedError> {
        let value = decode_with(seed, |seed| self.json_erased(part, decoder, seed))?;
        value.ok_or_else(|| self.nothing_decoded(part))
    }

    /// Not generic, as [`Document::yaml_erased`]: other crates have types, and only this one has decoders.
    fn json_erased<'de>(
        &self,
        part: usize,
        decoder: &mut JsonDecoder<'de>,
        seed: ErasedSeed<'_, 'de>,
    ) -> Result<(), LocatedError> {
        let mut track = Track::new();
        let tracked = serde_path_to_error::Deserializer::new(decoder, &mut track);
        let result = seed.deserialize(tracked);
        result.map_err(|error| self.json_error(part, FieldPath::from(&track.path()), &error))
    }

    /// Decodes a YAML document, watching the path.
    pub(crate) fn yaml_seed<'de, S: DeserializeSeed<'de>>(
        &self,
        nth: usize,
        part: YamlPart<'de>,
        seed: S,
    ) -> Result<S::Value, LocatedError> {
        let value = decode_with(seed, |seed| self.yaml_erased(nth, part, seed))?;
        value.ok_or_else(|| self.nothing_decoded(nth))
    }

    fn yaml_erased<'de>(
        &self,
        nth: usize,
        part: YamlPart<'de>,
        seed: ErasedSeed<'_, 'de>,
    ) -> Result<(), LocatedError> {
        let mut track = Track::new();
        let result = serde_saphyr::with_deserializer_from_str_with_options(
            part.text,
            yaml_options(),
            |decoder| seed.deserialize(serde_path_to_error::Deserializer::new(decoder, &mut track)),
        );
        result.map_err(|error| self.yaml_error(nth, part, FieldPath::from(&track.path()), &error))
    }

    fn nothing_decoded(&self, part: usize) -> LocatedError {
        self.error_in_part(part, FieldPath::ROOT, "nothing was decoded")
    }

    /// The documents of a YAML stream that hold something.
    pub(crate) fn yaml_parts(&self) -> Vec<YamlPart<'_>> {
        yaml_parts(self.text())
    }

    /// The text from JSON value number `part` on.
    pub(crate) fn json_part(&self, part: usize) -> Option<&str> {
        Some(&self.text()[locate::json_part(self.text(), part)?..])
    }

    /// Places an error of serde_json.
    pub(crate) fn json_error(
        &self,
        part: usize,
        path: FieldPath,
        error: &serde_json::Error,
    ) -> LocatedError {
        let text = message::json(error);
        // The second of two equal keys is where the decoder stopped, the path leads to the first.
        let by_path = error.is_data() && !message::is_duplicate(&text);
        let found = self.find(part, &path).filter(|found| by_path && found.exact);
        let (line, column) = match found {
            Some(found) => message::choose(&text, found),
            None => self.json_position(error),
        };
        // Of a text that is no JSON the path so far would say little.
        let path = if error.is_data() { path } else { FieldPath::ROOT };
        LocatedError { file: self.name().to_owned(), line, column, path, text }
    }

    /// Line and column in characters; serde_json counts bytes.
    fn json_position(&self, error: &serde_json::Error) -> (usize, usize) {
        let line = error.line().max(1);
        let text = self.text().split('\n').nth(line - 1).unwrap_or_default();
        let (_, column) = locate::position(text, error.column().max(1) - 1);
        (line, column)
    }

    fn yaml_error(
        &self,
        nth: usize,
        part: YamlPart<'_>,
        path: FieldPath,
        error: &serde_saphyr::Error,
    ) -> LocatedError {
        let error = message::innermost(error);
        let text = message::yaml(error, part.text);
        let path = if matches!(error, serde_saphyr::Error::Budget { .. }) {
            FieldPath::ROOT
        } else {
            path
        };
        let own = error
            .location()
            .map(|at| (at.line() as usize + part.lines_before, (at.column() as usize).max(1)));
        let found = self.find(nth, &path).filter(|found| found.exact);
        let (line, column) = match found {
            Some(found) if message::is_about_value(error) => message::choose(&text, found),
            found => own.or(found.map(|found| found.value)).unwrap_or((part.lines_before + 1, 1)),
        };
        LocatedError { file: self.name().to_owned(), line, column, path, text }
    }

    fn find(&self, part: usize, path: &FieldPath) -> Option<locate::Found> {
        match self.format() {
            DocumentFormat::Json => locate::find_json(self.text(), part, path),
            DocumentFormat::Yaml => {
                let parts = self.yaml_parts();
                let part = parts.get(part)?;
                let mut found = locate::find_yaml(part.text, path)?;
                found.value.0 += part.lines_before;
                if let Some((line, _)) = &mut found.key {
                    *line += part.lines_before;
                }
                Some(found)
            }
        }
    }
}

/// The text of a JSON error without its position: what was expected, then what was found.
pub fn json_error_text(error: &serde_json::Error) -> String {
    message::json(error)
}

/// What a decoder says, in the words of this module: `invalid type: A, expected B` becomes `expected B, found A`.
pub fn reword_decode_error(text: &str) -> String {
    message::expected_first(text)
}

/// A decoder of JSON text.
pub(crate) type JsonDecoder<'de> = serde_json::Deserializer<serde_json::de::StrRead<'de>>;

/// One document of a YAML stream.
#[derive(Clone, Copy)]
pub(crate) struct YamlPart<'a> {
    /// Its text, with the separator in front of it.
    pub(crate) text: &'a str,
    /// Lines of the stream in front of it.
    lines_before: usize,
}

/// Cuts a stream at its separators. By the rules of YAML a line that begins with `---` or `...` is never part
/// of a value, not even of a block of text.
fn yaml_parts(text: &str) -> Vec<YamlPart<'_>> {
    let mut parts = Vec::new();
    let (mut start, mut start_line, mut at) = (0, 0, 0);
    let mut is_blank = true;
    let lines = text.split_inclusive('\n').chain([""]);
    for (nth_line, line) in lines.enumerate() {
        let (begins, ends) = (is_marker(line, "---"), is_marker(line, "..."));
        if begins || ends || at == text.len() {
            if !is_blank {
                parts.push(YamlPart { text: &text[start..at], lines_before: start_line });
            }
            let skipped = if ends { line.len() } else { 0 };
            (start, start_line) = (at + skipped, nth_line + usize::from(ends));
            is_blank = true;
        }
        at += line.len();
        let content = if begins { &line[3..] } else { line }.trim();
        is_blank &= ends || content.is_empty() || content.starts_with(['#', '%']);
    }
    parts
}

fn is_marker(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

fn format_of(text: &str) -> DocumentFormat {
    let blank = [' ', '\t', '\r', '\n'];
    let inside = match text.trim_start_matches(blank) {
        text if text.starts_with('{') => text[1..].trim_start_matches(blank),
        text if text.starts_with('[') => "",
        _ => return DocumentFormat::Yaml,
    };
    if !(inside.is_empty() || inside.starts_with(['"', '}'])) {
        return DocumentFormat::Yaml;
    }
    let is_json = || {
        let mut values =
            serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
        values.all(|value| value.is_ok())
    };
    if text.len() <= AMBIGUOUS_BYTES_MAX && !is_json() && locate::is_yaml(text) {
        return DocumentFormat::Yaml;
    }
    DocumentFormat::Json
}

/// Decodes one YAML document as `serde_saphyr::from_str` does, with a decoder that is compiled here: for texts that have no file.
///
/// # Errors
///
/// Those of `serde_saphyr`.
pub fn from_yaml<T: DeserializeOwned>(text: &str) -> Result<T, serde_saphyr::Error> {
    let decoded = decode_with(PhantomData, |seed| from_yaml_erased(text, seed))?;
    decoded.ok_or_else(|| serde_saphyr::Error::custom("nothing was decoded"))
}

fn from_yaml_erased<'de>(
    text: &'de str,
    seed: ErasedSeed<'_, 'de>,
) -> Result<(), serde_saphyr::Error> {
    serde_saphyr::with_deserializer_from_str(text, |decoder| seed.deserialize(decoder))
}

fn yaml_options() -> serde_saphyr::Options {
    // Of the limits against hostile texts those on size go, since the text is in memory already; those on
    // nesting and on the expansion of aliases stay.
    let budget = serde_saphyr::budget! {
        max_depth: YAML_DEPTH_MAX,
        max_events: usize::MAX,
        max_nodes: usize::MAX,
        max_total_scalar_bytes: usize::MAX,
    };
    serde_saphyr::options! {
        budget: budget,
        emit_comments: false,
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::Error,
        legacy_octal_numbers: true,
        with_snippet: false,
    }
}

#[cfg(test)]
mod tests;
