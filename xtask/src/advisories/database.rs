//! The RustSec database: a checkout, or a table made from one.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use jiff::civil::Date;
use semver::{Version, VersionReq};
use toml_edit::{Document, Item};

/// The first lines of a table.
const TABLE_HEADER: &str = "\
# Advisories about the crates in the lock files, from https://github.com/RustSec/advisory-db (CC0-1.0; advisories imported from GitHub: CC-BY-4.0).
# How to renew it: docs/src/reference/security.md. Columns: id, crate, date, kind, patched and unaffected versions.
# `state`: the date of the newest advisory in the whole database then. `none`: a crate about which there was no advisory.
";
const N_COLUMNS: usize = 6;
/// The first column of the row with the state of the database.
const STATE: &str = "state";
/// The first column of the row of a crate without advisories.
const NONE: &str = "none";
/// Between the version requirements of a column: each of them has commas.
const OR: &str = " || ";
/// The kind of advisories that are about a vulnerability, not about lack of maintenance or the like.
const VULNERABILITY: &str = "vulnerability";

/// All advisories that were not withdrawn, by id.
#[derive(Debug)]
pub struct Database {
    pub advisories: Vec<Advisory>,
    /// The date of the newest advisory, also about crates that are not in the table: the database is not older than that.
    pub state: Date,
    /// The crates that a table is about. `None`: all, as in a checkout.
    pub packages: Option<BTreeSet<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advisory {
    pub id: String,
    pub package: String,
    pub date: Date,
    /// Why there is an advisory if not for a vulnerability: `unmaintained`, `unsound` or `notice`.
    pub informational: Option<String>,
    pub patched: Vec<VersionReq>,
    pub unaffected: Vec<VersionReq>,
}

impl Database {
    /// Reads a checkout, if the path is a directory, or else a table.
    pub fn read(path: &Path) -> Result<Database> {
        let mut database = match path.is_dir() {
            true => read_checkout(path)?,
            false => read_table(&fs::read_to_string(path)?)?,
        };
        database.advisories.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(database)
    }

    pub fn of_package(&self, name: &str) -> impl Iterator<Item = &Advisory> {
        self.advisories.iter().filter(move |advisory| advisory.package == name)
    }

    /// Whether the database has all advisories about a crate.
    pub fn covers(&self, name: &str) -> bool {
        self.packages.as_ref().is_none_or(|packages| packages.contains(name))
    }

    /// The part of the database about some crates.
    pub fn to_table(&self, packages: &BTreeSet<String>) -> String {
        let mut table = format!("{TABLE_HEADER}{STATE}\t{}\n", self.state);
        for name in packages.iter().filter(|name| self.covers(name)) {
            if self.of_package(name).next().is_none() {
                table += &format!("{NONE}\t{name}\n");
            }
        }
        for advisory in self.advisories.iter().filter(|it| packages.contains(&it.package)) {
            let join = |all: &[VersionReq]| {
                all.iter().map(ToString::to_string).collect::<Vec<_>>().join(OR)
            };
            let (patched, unaffected) = (join(&advisory.patched), join(&advisory.unaffected));
            let Advisory { id, package, date, .. } = advisory;
            let kind = advisory.kind_name();
            table += &format!("{id}\t{package}\t{date}\t{kind}\t{patched}\t{unaffected}\n");
        }
        table
    }
}

impl Advisory {
    pub fn kind_name(&self) -> &str {
        self.informational.as_deref().unwrap_or(VULNERABILITY)
    }

    /// A version is affected unless the advisory says that it is not.
    pub fn affects(&self, version: &Version) -> bool {
        !self.patched.iter().chain(&self.unaffected).any(|versions| versions.matches(version))
    }

    /// The page about it.
    pub fn url(&self) -> String {
        format!("https://rustsec.org/advisories/{}.html", self.id)
    }

    /// What helps: the versions that are not affected.
    pub fn remedy(&self) -> String {
        match self.patched.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ") {
            patched if patched.is_empty() => "there is no patched version".to_owned(),
            patched => format!("patched: {patched}"),
        }
    }
}

fn read_checkout(path: &Path) -> Result<Database> {
    let mut advisories = Vec::new();
    for package in fs::read_dir(path.join("crates")).context("reading the folder crates")? {
        for file in fs::read_dir(package?.path())? {
            let file = file?.path();
            if file.extension().is_some_and(|extension| extension == "md") {
                let name = || file.display().to_string();
                let text = fs::read_to_string(&file).with_context(name)?;
                advisories.extend(read_advisory(&text).with_context(name)?);
            }
        }
    }
    let newest = advisories.iter().map(|advisory| advisory.date).max();
    let state = newest.context("there are no advisories: not a checkout of advisory-db")?;
    Ok(Database { advisories, state, packages: None })
}

/// Reads a file of the database: TOML between lines of backquotes, and Markdown. `None` if the advisory was withdrawn.
fn read_advisory(text: &str) -> Result<Option<Advisory>> {
    let text = text.replace("\r\n", "\n");
    let rest = text.strip_prefix("```toml\n").context("it does not begin with TOML")?;
    let (toml, _) = rest.split_once("\n```").context("the TOML does not end")?;
    let document = Document::parse(toml).context("reading TOML")?;
    let advisory = document.get("advisory").context("there is no [advisory]")?;
    let optional = |name: &str| advisory.get(name).and_then(Item::as_str).map(str::to_owned);
    let required = |name: &str| optional(name).with_context(|| format!("{name} is missing"));
    if advisory.get("withdrawn").is_some() {
        return Ok(None);
    }
    let versions = |name: &str| {
        let list = document.get("versions").and_then(|versions| versions.get(name));
        let list = list.and_then(Item::as_array).into_iter().flatten();
        list.map(|versions| {
            let versions = versions.as_str().with_context(|| format!("{name}: not a string"))?;
            versions.parse().with_context(|| format!("{name}: {versions:?}"))
        })
        .collect::<Result<Vec<VersionReq>>>()
    };
    Ok(Some(Advisory {
        id: required("id")?,
        package: required("package")?,
        date: required("date")?.parse().context("date")?,
        informational: optional("informational"),
        patched: versions("patched")?,
        unaffected: versions("unaffected")?,
    }))
}

pub fn read_table(text: &str) -> Result<Database> {
    let (mut advisories, mut state, mut packages) = (Vec::new(), None, BTreeSet::new());
    for (nth, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        let place = || format!("line {}", nth + 1);
        match line.split_once('\t') {
            Some((STATE, date)) => state = Some(date.parse().context("date").with_context(place)?),
            Some((NONE, name)) => _ = packages.insert(name.to_owned()),
            _ => {
                let advisory = read_row(line).with_context(place)?;
                packages.insert(advisory.package.clone());
                advisories.push(advisory);
            }
        }
    }
    let state = state.context("there is no row `state`: not a table of advisories")?;
    Ok(Database { advisories, state, packages: Some(packages) })
}

fn read_row(line: &str) -> Result<Advisory> {
    let columns: Vec<&str> = line.split('\t').collect();
    let [id, package, date, kind, patched, unaffected] = columns[..] else {
        bail!("{} columns, not {N_COLUMNS}", columns.len());
    };
    let versions = |column: &str| {
        let all = column.split(OR).filter(|versions| !versions.is_empty());
        all.map(|versions| versions.parse().with_context(|| versions.to_owned()))
            .collect::<Result<Vec<VersionReq>>>()
    };
    Ok(Advisory {
        id: id.to_owned(),
        package: package.to_owned(),
        date: date.parse().context("date")?,
        informational: (kind != VULNERABILITY).then(|| kind.to_owned()),
        patched: versions(patched)?,
        unaffected: versions(unaffected)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADVISORY: &str = r##"```toml
[advisory]
id = "RUSTSEC-2030-0001"
package = "parser"
date = "2030-01-02"
categories = ["denial-of-service"]

[affected.functions]
"parser::parse" = ["< 1.4.0"]

[versions]
patched = [
    ">= 1.2.3, < 1.3.0", # the old branch
    '>= 1.4.0',
]
unaffected = ["< 1.0"]
```

# Panics on long input

```toml
[versions]
```
"##;

    #[test]
    fn an_advisory_is_the_same_from_a_checkout_and_from_a_table() {
        let advisory = read_advisory(ADVISORY).unwrap().unwrap();
        assert_eq!(advisory.kind_name(), "vulnerability");
        let unmaintained =
            ADVISORY.replace("categories", "informational = \"unmaintained\"\ncategories");
        let unmaintained = read_advisory(&unmaintained).unwrap().unwrap();
        assert_eq!(unmaintained.kind_name(), "unmaintained");
        let none = ADVISORY.replace("[versions]\npatched", "[other]\npatched");
        let none = read_advisory(&none).unwrap().unwrap();
        assert!(none.patched.is_empty() && none.affects(&"9.0.0".parse().unwrap()));

        let state = "2030-02-03".parse().unwrap();
        let other = Advisory { package: "other".to_owned(), ..advisory.clone() };
        let advisories = vec![advisory, unmaintained, none, other];
        let database = Database { advisories, state, packages: None };
        let packages = ["parser", "printer"].map(str::to_owned).into();
        let table = database.to_table(&packages);
        expect_test::expect![[r"
            state	2030-02-03
            none	printer
            RUSTSEC-2030-0001	parser	2030-01-02	vulnerability	>=1.2.3, <1.3.0 || >=1.4.0	<1.0
            RUSTSEC-2030-0001	parser	2030-01-02	unmaintained	>=1.2.3, <1.3.0 || >=1.4.0	<1.0
            RUSTSEC-2030-0001	parser	2030-01-02	vulnerability		
        "]]
        .assert_eq(table.strip_prefix(TABLE_HEADER).unwrap());
        let read = read_table(&table).unwrap();
        assert_eq!(read.advisories, database.advisories[..3]);
        assert_eq!((read.state, &read.packages), (state, &Some(packages)));

        // A table made from a table is not about more crates.
        let more = ["parser", "printer", "other"].map(str::to_owned).into();
        assert_eq!(read.to_table(&more), table);
    }

    #[test]
    fn affected_are_all_versions_but_those_named() {
        let advisory = read_advisory(ADVISORY).unwrap().unwrap();
        for (version, want) in [
            ("0.9.9", false),
            ("1.0.0", true),
            ("1.2.2", true),
            ("1.2.3", false),
            ("1.2.9", false),
            ("1.3.0", true),
            ("1.4.0", false),
            ("1.4.0-rc.1", true),
            ("2.0.0+build", false),
        ] {
            assert_eq!(advisory.affects(&version.parse().unwrap()), want, "{version}");
        }
    }

    #[test]
    fn withdrawn_advisories_are_left_out_and_invalid_ones_are_errors() {
        let changed = |from: &str, to: &str| read_advisory(&ADVISORY.replace(from, to));
        let withdrawn = changed("categories", "withdrawn = \"2030-02-01\"\ncategories");
        assert_eq!(withdrawn.unwrap(), None);
        for (from, to, want) in [
            ("```toml\n[adv", "[adv", "it does not begin with TOML"),
            ("[advisory]", "[else]", "there is no [advisory]"),
            ("package = ", "crate = ", "package is missing"),
            ("2030-01-02", "soon", "date"),
            ("'>= 1.4.0'", "'newer'", "patched: \"newer\""),
            ("'>= 1.4.0'", "14", "patched: not a string"),
        ] {
            assert_eq!(changed(from, to).unwrap_err().to_string(), want, "{from}");
        }
    }

    #[test]
    fn damaged_tables_are_errors() {
        let row = "R-1\tparser\t2030-01-02\tvulnerability\t>=1.3\t<1.0\nstate\t2031-01-02";
        assert_eq!(read_table(row).unwrap().advisories.len(), 1);
        for (from, to, want) in [
            ("\t<", " <", "line 1: 5 columns, not 6"),
            ("2030", "30", "line 1: date"),
            ("2031", "31", "line 2: date"),
            ("state", "# state", "there is no row `state`"),
            (">=1.3", "1.x.y", "line 1: 1.x.y"),
        ] {
            let error = format!("{:#}", read_table(&row.replace(from, to)).unwrap_err());
            assert!(error.starts_with(want), "{error}");
        }
    }
}
