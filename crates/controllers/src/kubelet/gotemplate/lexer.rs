//! From text to tokens.

use super::GoTemplateError;

/// A piece of a template.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TemplatePart {
    Text(String),
    Action { tokens: Vec<Token>, line: usize },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Word(String),
    /// `.name`; glued to what stands before it if there is no blank between.
    Field {
        name: String,
        glued: bool,
    },
    /// `.` alone.
    Dot,
    /// `$name`; the name is empty for `$`.
    Variable(String),
    Text(String),
    Number(serde_json::Number),
    /// `(`, `)`, `|`, `,`, `=`, `:=`.
    Mark(&'static str),
}

const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];

/// Cuts a template into texts and actions. Comments are left out.
pub(super) fn split_template(source: &str) -> Result<Vec<TemplatePart>, GoTemplateError> {
    let mut pieces = Vec::new();
    let (mut rest, mut line, mut trims) = (source, 1, false);
    loop {
        let (mut text, after) =
            rest.split_once("{{").map_or((rest, None), |(text, after)| (text, Some(after)));
        let n_lines = text.matches('\n').count();
        if std::mem::take(&mut trims) {
            text = text.trim_start_matches(BLANKS);
        }
        if after.is_some_and(|after| after.starts_with("- ") || after.starts_with("-\n")) {
            text = text.trim_end_matches(BLANKS);
        }
        if !text.is_empty() {
            pieces.push(TemplatePart::Text(text.to_owned()));
        }
        let Some(after) = after else { return Ok(pieces) };
        line += n_lines;
        let wrong = |text: &str| GoTemplateError { line, text: text.to_owned() };
        let body = after.strip_prefix('-').filter(|it| it.starts_with(BLANKS)).unwrap_or(after);
        let len = end_of(body).ok_or_else(|| wrong("an action without }}"))?;
        let mut inside = &body[..len];
        if let Some(shorter) = inside.strip_suffix('-').filter(|it| it.ends_with(BLANKS)) {
            inside = shorter;
            trims = true;
        }
        if !inside.trim().starts_with("/*") {
            let tokens = tokens(inside).map_err(|text| wrong(&text))?;
            pieces.push(TemplatePart::Action { tokens, line });
        }
        line += inside.matches('\n').count();
        rest = &body[len + 2..];
    }
}

/// Where `}}` stands, outside of texts.
fn end_of(body: &str) -> Option<usize> {
    let (mut quote, mut escaped) = (None, false);
    for (at, c) in body.char_indices() {
        match quote {
            Some('"') if escaped => escaped = false,
            Some('"') if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '"' || c == '`' => quote = Some(c),
            None if body[at..].starts_with("}}") => return Some(at),
            None => {}
        }
    }
    None
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        let trimmed = rest.trim_start_matches(BLANKS);
        let glued = trimmed.len() == rest.len() && !tokens.is_empty();
        rest = trimmed;
        let Some(first) = rest.chars().next() else { return Ok(tokens) };
        let len = match first {
            '.' => {
                let name = name_of(&rest[1..]);
                let len = 1 + name.len();
                tokens.push(if name.is_empty() {
                    Token::Dot
                } else {
                    Token::Field { name: name.to_owned(), glued }
                });
                len
            }
            '$' => {
                let name = name_of(&rest[1..]);
                tokens.push(Token::Variable(name.to_owned()));
                1 + name.len()
            }
            '"' | '`' => {
                let (value, len) = quoted(rest)?;
                tokens.push(Token::Text(value));
                len
            }
            '0'..='9' | '-' | '+' => {
                let len = rest
                    .find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c)))
                    .unwrap_or(rest.len());
                let number = rest[..len].trim_start_matches('+').parse();
                tokens.push(Token::Number(
                    number.map_err(|_| format!("{:?} is no number", &rest[..len]))?,
                ));
                len
            }
            c if is_name(c) => {
                let name = name_of(rest);
                tokens.push(Token::Word(name.to_owned()));
                name.len()
            }
            _ => {
                let mark =
                    [":=", "=", "(", ")", "|", ","].into_iter().find(|mark| rest.starts_with(mark));
                let mark = mark.ok_or_else(|| format!("unexpected {first:?}"))?;
                tokens.push(Token::Mark(mark));
                mark.len()
            }
        };
        rest = &rest[len..];
    }
}

fn name_of(text: &str) -> &str {
    &text[..text.find(|c| !is_name(c)).unwrap_or(text.len())]
}

/// A text in quotes, and the length of its source.
fn quoted(text: &str) -> Result<(String, usize), String> {
    if let Some(raw) = text.strip_prefix('`') {
        let len = raw.find('`').ok_or("a text without its end")?;
        return Ok((raw[..len].to_owned(), len + 2));
    }
    // Of Go's escapes those that JSON has, too.
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<String>();
    let value = values.next().and_then(Result::ok).ok_or("a text that cannot be read")?;
    Ok((value, values.byte_offset()))
}
