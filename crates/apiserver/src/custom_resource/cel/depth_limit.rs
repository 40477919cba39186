//! Limits on the length and nesting of expressions, checked before parsing: the parser uses stack for each operator
//! of a chain.

/// As cel-go's `ExpressionSizeCodePointLimit`.
const N_CHARS_MAX: usize = 100_000;

/// As cel-go's `MaxRecursionDepth`.
const DEPTH_MAX: usize = 250;

/// Rejects a text that is too long, or whose tree would be too deep: in `a + b + c` the first sum is nested in the
/// second one.
///
/// # Errors
///
/// With cel-go's message.
pub fn check_expression_limits(text: &str) -> Result<(), String> {
    let n_chars = text.chars().count();
    if n_chars > N_CHARS_MAX {
        return Err(format!(
            "expression code point size exceeds limit: size: {n_chars}, limit {N_CHARS_MAX}"
        ));
    }
    match depth(text) > DEPTH_MAX {
        true => Err(format!("expression recursion limit exceeded: {DEPTH_MAX}")),
        false => Ok(()),
    }
}

/// A chain that has not ended.
#[derive(Clone, Copy, Default)]
struct Chain {
    n_operators: usize,
    /// Behind the last operator.
    n_members: usize,
}

impl Chain {
    fn len(self) -> usize {
        self.n_operators + self.n_members
    }
}

/// How deep the tree can be at most.
fn depth(text: &str) -> usize {
    let (mut around, mut n_around, mut chain) = (Vec::new(), 0, Chain::default());
    let (mut deepest, mut at) = (0, 0);
    while let Some(c) = text[at..].chars().next() {
        let (before, rest) = text.split_at(at);
        let mut len = c.len_utf8();
        match c {
            '"' | '\'' => len = literal_len(rest, c, before.ends_with(['r', 'R'])).unwrap_or(1),
            '/' if rest.starts_with("//") => len = rest.find('\n').unwrap_or(rest.len()),
            '.' => chain.n_members += 1,
            '(' | '[' | '{' => {
                // The brackets of a call belong to its dot.
                chain.n_members += usize::from(c != '(');
                n_around += chain.len() + 1;
                around.push(std::mem::take(&mut chain));
            }
            ')' | ']' | '}' => {
                chain = around.pop().unwrap_or_default();
                n_around = n_around.saturating_sub(chain.len() + 1);
            }
            '?' if before.ends_with('.') => {}
            ',' | '?' | ':' | '&' | '|' => chain = Chain::default(),
            _ if "+-*/%<>=!".contains(c) || is_in(before, rest) => {
                chain = Chain { n_operators: chain.n_operators + 1, n_members: 0 };
            }
            _ => {}
        }
        deepest = deepest.max(n_around + chain.len());
        at += len;
    }
    deepest
}

/// Whether the operator `in` stands here.
fn is_in(before: &str, rest: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let after = rest.strip_prefix("in");
    after.is_some_and(|it| !it.starts_with(is_name)) && !before.ends_with(is_name)
}

/// The length of a text in quotes; none if it has no end, so that what follows is no text.
fn literal_len(text: &str, quote: char, is_raw: bool) -> Option<usize> {
    let triple = quote.to_string().repeat(3);
    let end = if text.starts_with(&triple) { triple.as_str() } else { &triple[..1] };
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(end.len()) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if !is_raw => is_escaped = true,
            '\n' | '\r' if end.len() == 1 => return None,
            _ if text[at..].starts_with(end) => return Some(at + end.len()),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths() {
        for (text, want) in [
            ("a", 0),
            ("a + b + c", 2),
            ("a.b.c", 2),
            ("a.?b.?c ? d : e", 2),
            ("a.b + c.d", 2),
            ("a.f(b.g(c))", 4),
            ("[1, 2, 3]", 2),
            ("a && b && c || d", 0),
            ("1 in a.min in b", 2),
            ("'+ + +' + r'\\' + '\\'+'", 2),
            ("\'\'\'it\'s + + \'\'\' + 1 // + +", 1),
            ("' + +", 2),
        ] {
            assert_eq!(depth(text), want, "{text}");
        }
    }
}
