//! What one Rust file says about modules: those that it declares, the names that it imports and defines, and the paths that it uses.
//!
//! Code that is compiled for tests only (`#[cfg(test)]`) is left out, comments and strings with it.

use std::collections::BTreeMap;

use regex::Regex;

/// One module, in a file of its own or inline.
#[derive(Debug, Default)]
pub struct ModuleSource {
    /// Declared as `mod name;`: in another file.
    pub in_files: Vec<String>,
    /// Declared as `mod name { .. }`.
    pub inline: Vec<(String, ModuleSource)>,
    /// Names made by `use`, re-exports among them, and the path of each.
    pub imports: BTreeMap<String, Vec<String>>,
    /// Paths of `use path::*`.
    pub globs: Vec<Vec<String>>,
    /// Items defined here, by name.
    pub defined: Vec<String>,
    /// Every path of two or more parts, imported or written in place, with its line.
    pub paths: Vec<(usize, Vec<String>)>,
}

/// A name or a mark, and its line.
struct Token<'a> {
    text: &'a str,
    line: usize,
    is_name: bool,
}

/// Words after which a name is defined.
const DEFINES: &[&str] =
    &["const", "enum", "fn", "macro_rules", "static", "struct", "trait", "type", "union"];

/// First words of items; other things with an attribute are fields, variants and match arms, which end at a comma.
const ITEMS: &[&str] = &[
    "async", "const", "enum", "extern", "fn", "impl", "mod", "pub", "static", "struct", "trait",
    "type", "union", "use",
];

/// Reads a file's text; `tokens` is [`crate::rust_tokens::regex`].
pub fn read(text: &str, tokens: &Regex) -> ModuleSource {
    let mut found = Vec::new();
    let (mut line, mut counted_to) = (1, 0);
    for token in tokens.captures_iter(text) {
        let name = token.name("name");
        if let Some(part) = name.or_else(|| token.name("mark")) {
            line += text[counted_to..part.start()].matches('\n').count();
            counted_to = part.start();
            found.push(Token { text: part.as_str(), line, is_name: name.is_some() });
        }
    }
    read_module(&found)
}

fn read_module(tokens: &[Token<'_>]) -> ModuleSource {
    let mut module = ModuleSource::default();
    let is = |at: usize, mark: &str| tokens.get(at).is_some_and(|token| token.text == mark);
    let name_at =
        |at: usize| tokens.get(at).filter(|token| token.is_name).map(|it| it.text.to_owned());
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.text {
            "#" if is(at + 1, "[") => {
                let end = closing(tokens, at + 1);
                let is_test = is_for_tests(&tokens[at..end]);
                at = if is_test { end_of_item(tokens, end + 1) } else { end + 1 };
            }
            "mod" => match name_at(at + 1) {
                Some(name) if is(at + 2, "{") => {
                    let end = closing(tokens, at + 2);
                    module.inline.push((name, read_module(&tokens[at + 3..end])));
                    at = end + 1;
                }
                Some(name) if is(at + 2, ";") => {
                    module.in_files.push(name);
                    at += 3;
                }
                _ => at += 1,
            },
            // `impl Trait + use<'a>` names lifetimes, not a path.
            "use" if is(at + 1, "<") => at += 1,
            "use" => at = read_use(tokens, at + 1, &[], &mut module),
            "macro_rules" if is(at + 1, "!") => {
                module.defined.extend(name_at(at + 2));
                at += 3;
            }
            word if DEFINES.contains(&word) => {
                module.defined.extend(name_at(at + 1));
                at += 1;
            }
            _ if token.is_name && is(at + 1, "::") && !(at > 0 && is(at - 1, "::")) => {
                let mut path = vec![token.text.to_owned()];
                let line = token.line;
                at += 1;
                while let (true, Some(part)) = (is(at, "::"), name_at(at + 1)) {
                    path.push(part);
                    at += 2;
                }
                if path.len() > 1 {
                    module.paths.push((line, path));
                }
            }
            _ => at += 1,
        }
    }
    module
}

/// Reads the tree of a `use` from `at`, below `prefix`; returns where it ends.
fn read_use(
    tokens: &[Token<'_>],
    mut at: usize,
    prefix: &[String],
    module: &mut ModuleSource,
) -> usize {
    let mut path = prefix.to_vec();
    let mut line = 0;
    while let Some(token) = tokens.get(at) {
        match token.text {
            "::" => at += 1,
            "*" => {
                module.paths.push((token.line, path.clone()));
                module.globs.push(path);
                return at + 1;
            }
            "{" => {
                let end = closing(tokens, at);
                at += 1;
                while at < end {
                    // A tree ends at its comma.
                    at = read_use(tokens, at, &path, module) + 1;
                }
                return end + 1;
            }
            "as" => {
                let alias = tokens.get(at + 1).map(|it| it.text.to_owned());
                import(path, alias, line, module);
                return at + 2;
            }
            // `use a::{self}` imports `a`.
            "self" if !path.is_empty() => at += 1,
            name if token.is_name => {
                path.push(name.to_owned());
                line = token.line;
                at += 1;
            }
            _ => break,
        }
        line = line.max(token.line);
    }
    import(path, None, line, module);
    at
}

fn import(path: Vec<String>, alias: Option<String>, line: usize, module: &mut ModuleSource) {
    let Some(name) = alias.or_else(|| path.last().cloned()) else {
        return;
    };
    module.paths.push((line, path.clone()));
    module.imports.insert(name, path);
}

/// Whether an attribute says `cfg(test)`, alone or with other conditions.
fn is_for_tests(attribute: &[Token<'_>]) -> bool {
    let says = |word: &str| attribute.iter().any(|token| token.text == word);
    attribute.get(2).is_some_and(|token| token.text == "cfg")
        && says("test")
        && !says("not")
        && !says("any")
}

/// The place of the bracket that closes the one at `open`.
fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len()
}

/// The place after the item, field, variant or statement that begins at `at`, with the rest of its attributes.
fn end_of_item(tokens: &[Token<'_>], mut at: usize) -> usize {
    while tokens.get(at).is_some_and(|token| token.text == "#") {
        at = closing(tokens, at + 1) + 1;
    }
    let is_item = tokens.get(at).is_some_and(|token| ITEMS.contains(&token.text));
    while let Some(token) = tokens.get(at) {
        match token.text {
            ";" => return at + 1,
            "," if !is_item => return at + 1,
            "}" | ")" | "]" => return at,
            "{" => return closing(tokens, at) + 1,
            "(" | "[" => at = closing(tokens, at) + 1,
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rust_tokens;

    /// Checks the paths, each after its line, of a file's own module.
    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let module = read(text, &rust_tokens::regex().expect("the expression is right"));
        let paths = module.paths.iter().map(|(line, path)| format!("{line} {}", path.join("::")));
        assert_eq!(paths.collect::<Vec<_>>(), expected, "{text}");
    }

    #[test]
    fn paths_of_imports() {
        check("use crate::a::B;", &["1 crate::a::B"]);
        check("pub(crate) use a::B as C;", &["1 a::B"]);
        check(
            "use crate::{a::{self, B as _}, c::*,\n    D};\nuse e;",
            &["1 crate::a", "1 crate::a::B", "1 crate::c", "2 crate::D", "3 e"],
        );
        check("fn f() -> impl Fn() + use<'a, T> { a::b() }", &["1 a::b"]);
    }

    #[test]
    fn paths_in_place() {
        check(
            "fn f(x: super::A) -> Vec::<crate::b::C> {\n  d::e!() }",
            &["1 super::A", "1 crate::b::C", "2 d::e"],
        );
        check("type A = <B as c::D>::E;", &["1 c::D"]);
        check(
            "// a::b\n/* c::d */ const E: &str = \"f::g\"; const H: &[u8] = br#\"i \"j::k\"\"#;",
            &[],
        );
    }

    #[test]
    fn code_for_tests_is_left_out() {
        check("#[cfg(test)]\nmod tests {\n use a::b; }\nuse c::d;", &["4 c::d"]);
        check(
            "#[cfg(test)]\n#[allow(x)]\npub(super) fn f(a: a::B) -> [u8; 2] { c::d() }\nuse e::f;",
            &["4 e::f"],
        );
        check("struct A { #[cfg(test)] b: c::D, e: f::G }", &["1 f::G"]);
        check(
            "#[cfg(not(test))]\nuse a::b;\n#[cfg(any(test, unix))]\nuse c::d;",
            &["2 a::b", "4 c::d"],
        );
    }

    #[test]
    fn declared_modules_and_names() {
        let text = "mod a; pub mod b { use c::D; mod e; }\n#[cfg(test)] mod tests;\npub use f::G as H; use i::*; struct J; macro_rules! k { () => {} }";
        let module = read(text, &rust_tokens::regex().expect("the expression is right"));
        assert_eq!(module.in_files, ["a"]);
        assert_eq!(module.inline[0].0, "b");
        assert_eq!(module.inline[0].1.in_files, ["e"]);
        assert_eq!(
            module.imports.into_iter().collect::<Vec<_>>(),
            [("H".to_owned(), vec!["f".to_owned(), "G".to_owned()])]
        );
        assert_eq!(module.globs, [["i"]]);
        assert_eq!(module.defined, ["J", "k"]);
    }
}
