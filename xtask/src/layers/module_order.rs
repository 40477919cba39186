//! The order of modules inside a crate: no module imports a sibling that imports it, directly or through other siblings.
//!
//! Siblings are the modules that one module declares; each counts as one with everything below it. An import belongs to the level
//! where its two ends part: `crate::a::b` that uses `crate::c::d` makes `a` depend on `c`. A module and the modules that it declares
//! may use each other. Names are followed through re-exports to the module that defines them, so that a detour hides nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use regex::Regex;

use super::module_source::{self, ModuleSource};
use crate::rust_tokens;

/// Modules of one crate, by path: the root's is empty.
pub struct ModuleTree {
    modules: BTreeMap<Vec<String>, Module>,
}

struct Module {
    file: PathBuf,
    source: ModuleSource,
}

/// One module's import of another, as it is printed.
#[derive(Clone, Debug)]
struct Import {
    /// The importing module's path.
    from: Vec<String>,
    /// The path of the module that defines what is imported.
    to: Vec<String>,
    file: PathBuf,
    line: usize,
}

/// Imports between the modules that one module declares: per importing module, the imported ones and the first import of each.
type Siblings = BTreeMap<String, BTreeMap<String, Import>>;

/// Reads files: their text by path.
type ReadFile<'a> = &'a dyn Fn(&Path) -> Result<String>;

impl ModuleTree {
    /// Reads the modules that are reachable from a crate's root file, such as `src/lib.rs`.
    pub fn read(root_file: &Path, read_file: ReadFile<'_>) -> Result<ModuleTree> {
        let mut tree = ModuleTree { modules: BTreeMap::new() };
        let folder = root_file.parent().context("a root file is in a folder")?;
        tree.add_file(Vec::new(), root_file, folder, &rust_tokens::regex()?, read_file)?;
        Ok(tree)
    }

    /// Adds a file's module and the modules that it declares, whose files are in `folder`.
    fn add_file(
        &mut self,
        path: Vec<String>,
        file: &Path,
        folder: &Path,
        tokens: &Regex,
        read_file: ReadFile<'_>,
    ) -> Result<()> {
        let source = module_source::read(&read_file(file)?, tokens);
        let mut waiting = vec![(path, folder.to_owned(), source)];
        while let Some((path, folder, mut source)) = waiting.pop() {
            let child = |name: &String| path.iter().chain([name]).cloned().collect::<Vec<_>>();
            for name in &source.in_files {
                let file = folder.join(format!("{name}.rs"));
                self.add_file(child(name), &file, &folder.join(name), tokens, read_file)?;
            }
            for (name, inline) in source.inline.drain(..) {
                waiting.push((child(&name), folder.join(&name), inline));
            }
            self.modules.insert(path, Module { file: file.to_owned(), source });
        }
        Ok(())
    }

    /// A shortest cycle of each group of siblings that import each other, with the place of each import.
    pub fn cycles(&self) -> Vec<String> {
        let mut printed = Vec::new();
        for (parent, siblings) in self.siblings() {
            let mut cycles: Vec<Vec<&str>> =
                siblings.keys().filter_map(|name| shortest_cycle(&siblings, name)).collect();
            cycles.sort_by_key(Vec::len);
            let mut reported: BTreeSet<&str> = BTreeSet::new();
            for cycle in cycles {
                if !reported.contains(cycle[0]) {
                    let group = group_of(&siblings, cycle[0]);
                    printed.push(print_cycle(&parent, &siblings, &cycle, group.len()));
                    reported.extend(group);
                }
            }
        }
        printed
    }

    /// Imports between the modules that the root declares, except of those in `shared`.
    pub fn imports_except_of(&self, shared: &[&str]) -> Vec<String> {
        let siblings = self.siblings().remove(&Vec::new()).unwrap_or_default();
        let imports = siblings.into_values().flatten();
        let others = imports.filter(|(to, _)| !shared.contains(&to.as_str()));
        others.map(|(_, import)| print_import(&import)).collect()
    }

    /// By declaring module: which of the modules that it declares import which.
    fn siblings(&self) -> BTreeMap<Vec<String>, Siblings> {
        let mut levels: BTreeMap<Vec<String>, Siblings> = BTreeMap::new();
        for import in self.imports() {
            let (from, to) = (&import.from, &import.to);
            let shared = from.iter().zip(to).take_while(|(a, b)| a == b).count();
            let siblings = levels.entry(from[..shared].to_vec()).or_default();
            let imported = siblings.entry(from[shared].clone()).or_default();
            imported.entry(to[shared].clone()).or_insert(import);
        }
        levels
    }

    /// All imports of a module by another that is neither above nor below it.
    fn imports(&self) -> Vec<Import> {
        let mut imports = Vec::new();
        for (from, module) in &self.modules {
            for (line, path) in &module.source.paths {
                if let Some(to) = self.definition(from, path, &mut BTreeSet::new())
                    && !to.starts_with(from)
                    && !from.starts_with(&to)
                {
                    let (from, file) = (from.clone(), module.file.clone());
                    imports.push(Import { from, to, file, line: *line });
                }
            }
        }
        imports
    }

    /// The module that defines what `path` means in the module `from`; none if that is another crate.
    ///
    /// `seen` holds the names that were looked up on the way, each with its module: imports may go in circles.
    fn definition<'a>(
        &'a self,
        from: &[String],
        path: &'a [String],
        seen: &mut BTreeSet<(Vec<String>, String)>,
    ) -> Option<Vec<String>> {
        let mut at = from.to_vec();
        let mut rest = path;
        while let Some((first, others)) = rest.split_first() {
            match first.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                _ => break,
            }
            rest = others;
        }
        let is_of_this_crate = rest.len() < path.len();
        self.look_up(&at, rest, seen).or(is_of_this_crate.then_some(at))
    }

    /// The module that defines `path`, whose first name is looked up in the module `at`; none if nothing there has this name.
    fn look_up(
        &self,
        at: &[String],
        path: &[String],
        seen: &mut BTreeSet<(Vec<String>, String)>,
    ) -> Option<Vec<String>> {
        let (name, rest) = path.split_first()?;
        if !seen.insert((at.to_vec(), name.clone())) {
            return None;
        }
        let child = at.iter().chain([name]).cloned().collect::<Vec<_>>();
        if self.modules.contains_key(&child) {
            return self.look_up(&child, rest, seen).or(Some(child));
        }
        let source = &self.modules.get(at)?.source;
        if let Some(import) = source.imports.get(name) {
            let path = import.iter().chain(rest).cloned().collect::<Vec<_>>();
            return self.definition(at, &path, seen);
        }
        if source.defined.contains(name) {
            return Some(at.to_vec());
        }
        source.globs.iter().find_map(|glob| {
            let module = self.definition(at, glob, seen)?;
            self.look_up(&module, path, seen)
        })
    }
}

/// The shortest way from a module back to itself.
fn shortest_cycle<'a>(siblings: &'a Siblings, start: &'a str) -> Option<Vec<&'a str>> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut waiting = VecDeque::from([start]);
    while let Some(at) = waiting.pop_front() {
        for next in siblings.get(at).into_iter().flat_map(BTreeMap::keys) {
            if next == start {
                let mut cycle = vec![at];
                while let Some(before) = came_from.get(cycle[cycle.len() - 1]) {
                    cycle.push(before);
                }
                cycle.reverse();
                return Some(cycle);
            }
            if !came_from.contains_key(next.as_str()) {
                came_from.insert(next, at);
                waiting.push_back(next);
            }
        }
    }
    None
}

/// All modules that import `member` and are imported by it, directly or not; `member` is one of them.
fn group_of<'a>(siblings: &'a Siblings, member: &str) -> BTreeSet<&'a str> {
    let reachable = |start: &str| {
        let mut reached: BTreeSet<&'a str> = BTreeSet::new();
        let mut waiting: Vec<&str> = vec![start];
        while let Some(at) = waiting.pop() {
            for next in siblings.get(at).into_iter().flat_map(BTreeMap::keys) {
                if reached.insert(next) {
                    waiting.push(next);
                }
            }
        }
        reached
    };
    reachable(member).into_iter().filter(|other| reachable(other).contains(member)).collect()
}

fn print_cycle(parent: &[String], siblings: &Siblings, cycle: &[&str], n_group: usize) -> String {
    let parent = parent.iter().fold("crate".to_owned(), |path, name| format!("{path}::{name}"));
    let ends = cycle.iter().zip(cycle.iter().cycle().skip(1));
    let mut text =
        format!("modules of {parent} import each other: {} -> {}", cycle.join(" -> "), cycle[0]);
    if n_group > cycle.len() {
        let _ = write!(text, " (a shortest cycle; {n_group} modules import each other)");
    }
    for (from, to) in ends {
        if let Some(import) = siblings.get(*from).and_then(|imported| imported.get(*to)) {
            let _ = write!(text, "\n  {}", print_import(import));
        }
    }
    text
}

fn print_import(import: &Import) -> String {
    let (from, to) = (import.from.join("::"), import.to.join("::"));
    format!("{}:{}: {from} uses {to}", import.file.display(), import.line)
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    /// Files of a crate: each begins with a line `== name`.
    fn tree(files: &str) -> ModuleTree {
        let read_file = |path: &Path| {
            let begin = format!("== {}\n", path.display());
            let Some((_, text)) = files.split_once(&begin) else { bail!("no {begin}") };
            Ok(text.split("== ").next().unwrap_or_default().to_owned())
        };
        ModuleTree::read(Path::new("lib.rs"), &read_file).expect("all files are given")
    }

    #[track_caller]
    fn check(files: &str, expected: &[&str]) {
        let found = tree(files).cycles();
        let lines: Vec<&str> = found.iter().flat_map(|cycle| cycle.lines()).collect();
        assert_eq!(lines, expected, "{files}");
    }

    #[test]
    fn modules_in_order_pass() {
        check(
            "== lib.rs\nmod a;\nmod b;\n== a.rs\nuse crate::b::B;\n== b.rs\npub struct B;\n",
            &[],
        );
        // A module and the modules that it declares may use each other.
        check(
            "== lib.rs\nmod a;\n== a.rs\nmod b;\nuse b::B;\nstruct A;\n== a/b.rs\nuse super::A;\n",
            &[],
        );
        // Names of other crates.
        check(
            "== lib.rs\nmod a;\nmod std;\n== a.rs\nuse regex::a;\nuse a::x;\n== std.rs\nuse regex::b;\n",
            &[],
        );
    }

    #[test]
    fn a_cycle_is_found_with_the_place_of_each_import() {
        check(
            "== lib.rs\nmod a;\nmod b;\n== a.rs\n\nuse crate::b::B;\n== b.rs\nfn f() -> super::a::A {}\n",
            &[
                "modules of crate import each other: a -> b -> a",
                "  a.rs:2: a uses b",
                "  b.rs:1: b uses a",
            ],
        );
    }

    #[test]
    fn the_shortest_cycle_of_each_group_is_shown() {
        let files = "== lib.rs\nmod a;\nmod b;\nmod c;\nmod d;\n== a.rs\nuse crate::{b::B, d::D};\n\
            == b.rs\nuse crate::c::C;\n== c.rs\nuse crate::a::A;\n== d.rs\nuse crate::a::A;\n";
        check(
            files,
            &[
                "modules of crate import each other: a -> d -> a (a shortest cycle; 4 modules import each other)",
                "  a.rs:1: a uses d",
                "  d.rs:1: d uses a",
            ],
        );
    }

    #[test]
    fn a_folder_is_one_module_and_has_an_order_of_its_own() {
        check(
            "== lib.rs\nmod a;\nmod b;\n== a.rs\nmod x;\nmod y;\n== a/x.rs\nuse crate::b::B;\n\
             == a/y.rs\n== b.rs\nuse crate::a::y::Y;\n",
            &[
                "modules of crate import each other: a -> b -> a",
                "  a/x.rs:1: a::x uses b",
                "  b.rs:1: b uses a::y",
            ],
        );
        check(
            "== lib.rs\nmod a;\n== a.rs\nmod x;\nmod y;\n== a/x.rs\nuse super::y::Y;\n== a/y.rs\nuse crate::a::x::X;\n",
            &[
                "modules of crate::a import each other: x -> y -> x",
                "  a/x.rs:1: a::x uses a::y",
                "  a/y.rs:1: a::y uses a::x",
            ],
        );
    }

    #[test]
    fn names_are_followed_to_their_definition() {
        let expected = [
            "modules of crate import each other: a -> b -> a",
            "  a.rs:1: a uses b",
            "  b.rs:1: b uses a",
        ];
        let a = "== a.rs\nuse crate::b::B;\n";
        // Through a re-export of the root, through a glob, under another name, and through an import of the parent.
        check(
            &format!("== lib.rs\nmod a;\nmod b;\npub use a::A;\n{a}== b.rs\nuse crate::A;\n"),
            &expected,
        );
        let with_glob =
            "== lib.rs\nmod a;\nmod b;\npub use a::*;\n== a.rs\nuse crate::b::B; struct A;\n";
        check(&format!("{with_glob}== b.rs\nuse crate::A;\n"), &expected);
        check(&format!("== lib.rs\nmod a;\nmod b;\n{a}== b.rs\nuse crate::a as z;\n"), &expected);
        check(
            &format!("== lib.rs\nmod a;\nmod b;\nuse a::A;\n{a}== b.rs\nuse super::A;\n"),
            &expected,
        );
        // What the root defines itself is used by all.
        check(&format!("== lib.rs\nmod a;\nmod b;\nstruct A;\n{a}== b.rs\nuse crate::A;\n"), &[]);
        // Imports in a circle define nothing.
        check(
            "== lib.rs\nmod a;\nmod b;\n== a.rs\npub use crate::b::*;\n== b.rs\npub use self::x::*;\n",
            &[],
        );
    }

    #[test]
    fn imports_of_shared_modules_are_allowed() {
        let tree = tree(
            "== lib.rs\nmod fit;\nmod ports;\nmod shared;\n== fit.rs\nuse crate::shared::f;\n\
             == ports.rs\nuse crate::fit::Fit;\n== shared.rs\npub fn f() {}\n",
        );
        assert_eq!(tree.imports_except_of(&["shared"]), ["ports.rs:1: ports uses fit"]);
        assert_eq!(tree.imports_except_of(&["shared", "fit"]), [""; 0]);
    }
}
