//! `cargo xtask advisories`: fails on a dependency with an advisory of the RustSec database that has not been accepted.
//!
//! The database is a checkout of <https://github.com/RustSec/advisory-db>, or a table with its advisories about the crates in the lock files
//! (`--write`), for machines without a network. A crate that the table is not about is a finding. Nothing is downloaded.

mod database;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use semver::Version;
use toml_edit::Document;

use database::{Advisory, Database};

/// Advisories that were accepted: a line with the id, `|` and the reason for each.
const ACCEPTED: &str = "xtask/accepted-advisories.txt";

/// Where the database is if no flag says so.
const TABLE: &str = "xtask/advisories.tsv";

/// A database older than this is pointed out.
const OLD_DAYS: i32 = 90;

#[derive(clap::Args)]
pub struct Args {
    /// The database: a checkout of RustSec/advisory-db, or a table that `--write` wrote. By default xtask/advisories.tsv
    /// or the checkout of cargo-audit in $CARGO_HOME/advisory-db, whichever exists.
    #[arg(long, value_name = "PATH")]
    database: Option<PathBuf>,
    /// Write the advisories about the crates in the lock files as a table into this file, and check nothing.
    #[arg(long, value_name = "FILE", requires = "database")]
    write: Option<PathBuf>,
}

/// A version in a lock file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LockedPackage {
    lock_file: String,
    name: String,
    version: Version,
}

/// Accepted advisories and why, by id.
type Accepted = BTreeMap<String, String>;

pub fn run(args: &Args) -> Result<bool> {
    let root = crate::root()?;
    let Some(path) = args.database.clone().or_else(|| default_database(&root)) else {
        println!(
            "advisories: no database, nothing was checked. Clone https://github.com/RustSec/advisory-db, and give its folder to --database"
        );
        return Ok(true);
    };
    let database = Database::read(&path).with_context(|| path.display().to_string())?;
    let mut packages = Vec::new();
    for lock_file in crate::git(&["ls-files", "Cargo.lock", "*/Cargo.lock"])?.lines() {
        let text = fs::read_to_string(root.join(lock_file)).context(lock_file.to_owned())?;
        packages.extend(read_lock_file(lock_file, &text).context(lock_file.to_owned())?);
    }
    if let Some(file) = &args.write {
        let names: BTreeSet<String> = packages.iter().map(|it| it.name.clone()).collect();
        fs::write(file, database.to_table(&names)).with_context(|| file.display().to_string())?;
        println!("advisories: those about {} crates written to {}", names.len(), file.display());
        return Ok(true);
    }
    let accepted = read_accepted(&fs::read_to_string(root.join(ACCEPTED)).context(ACCEPTED)?)?;
    let affected = affected_packages(&packages, &database);
    let findings = findings(&packages, &affected, &accepted, &database);
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
    println!(
        "advisories: {} known, state of {}{}; {} locked packages, {} affected, {} to resolve",
        database.advisories.len(),
        database.state,
        age_note(database.state, today),
        packages.len(),
        affected.len(),
        findings.len()
    );
    for finding in &findings {
        println!("{finding}");
    }
    Ok(findings.is_empty())
}

fn default_database(root: &Path) -> Option<PathBuf> {
    let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo_home = cargo_home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let of_cargo_audit = cargo_home.map(|home| home.join("advisory-db"));
    [Some(root.join(TABLE)), of_cargo_audit].into_iter().flatten().find(|place| place.exists())
}

fn age_note(state: Date, today: Date) -> String {
    match (today - state).get_days() {
        days if days > OLD_DAYS => format!(" ({days} days ago: update the database)"),
        _ => String::new(),
    }
}

/// The packages from crates.io in a lock file: advisories are about these.
fn read_lock_file(lock_file: &str, text: &str) -> Result<Vec<LockedPackage>> {
    let document = Document::parse(text).context("reading TOML")?;
    let packages = document.get("package").and_then(|it| it.as_array_of_tables());
    let mut all = Vec::new();
    for package in packages.context("there are no packages")? {
        let field = |name: &str| package.get(name).and_then(|it| it.as_str());
        if field("source") != Some(crate::licenses::CRATES_IO) {
            continue;
        }
        let name = field("name").context("a package has no name")?;
        let version = field("version").with_context(|| format!("{name} has no version"))?;
        let version = version.parse().with_context(|| format!("the version of {name}"))?;
        let (lock_file, name) = (lock_file.to_owned(), name.to_owned());
        all.push(LockedPackage { lock_file, name, version });
    }
    Ok(all)
}

/// Reads the list of accepted advisories; `#` begins a comment line.
fn read_accepted(text: &str) -> Result<Accepted> {
    let mut accepted = Accepted::new();
    for (nth, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (id, reason) = line.split_once('|').unwrap_or((line, ""));
        let (id, reason) = (id.trim(), reason.trim());
        ensure!(!reason.is_empty(), "{ACCEPTED}:{}: {id} has no reason", nth + 1);
        if accepted.insert(id.to_owned(), reason.to_owned()).is_some() {
            bail!("{ACCEPTED}:{}: {id} is there twice", nth + 1);
        }
    }
    Ok(accepted)
}

fn affected_packages<'a>(
    packages: &'a [LockedPackage],
    database: &'a Database,
) -> Vec<(&'a LockedPackage, &'a Advisory)> {
    let of_package = |package: &'a LockedPackage| {
        let advisories = database.of_package(&package.name);
        let affecting = advisories.filter(|advisory| advisory.affects(&package.version));
        affecting.map(move |advisory| (package, advisory))
    };
    packages.iter().flat_map(of_package).collect()
}

/// What has to be done, a line each.
fn findings(
    packages: &[LockedPackage],
    affected: &[(&LockedPackage, &Advisory)],
    accepted: &Accepted,
    database: &Database,
) -> Vec<String> {
    let open = affected.iter().filter(|(_, advisory)| !accepted.contains_key(&advisory.id));
    let open = open.map(|(package, advisory)| {
        let LockedPackage { lock_file, name, version } = package;
        let (kind, remedy, url) = (advisory.kind_name(), advisory.remedy(), advisory.url());
        format!("{lock_file}: {name} {version}: {kind}, {remedy}: {url}")
    });
    let unknown = packages.iter().filter(|package| !database.covers(&package.name));
    let unknown = unknown.map(|LockedPackage { lock_file, name, .. }| {
        format!("{lock_file}: {name} is not in the table of advisories: renew the table")
    });
    let is_affected = |id: &String| affected.iter().any(|(_, advisory)| advisory.id == *id);
    let unused = accepted
        .keys()
        .filter(|id| !is_affected(id) && database.advisories.iter().any(|it| it.id == **id))
        .map(|id| format!("{ACCEPTED}: {id} affects no locked package: remove the line"));
    open.chain(unknown).chain(unused).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK_FILE: &str = r#"
version = 4

[[package]]
name = "ours"
version = "0.1.0"

[[package]]
name = "parser"
version = "1.2.3"
source = "registry+https://github.com/rust-lang/crates.io-index"
checksum = "00"

[[package]]
name = "parser"
version = "2.0.0+spec-1"
source = "registry+https://github.com/rust-lang/crates.io-index"
"#;

    #[test]
    fn affected_versions_are_found_unless_accepted() {
        let packages = read_lock_file("Cargo.lock", LOCK_FILE).unwrap();
        let names: Vec<String> =
            packages.iter().map(|it| format!("{} {}", it.name, it.version)).collect();
        assert_eq!(names, ["parser 1.2.3", "parser 2.0.0+spec-1"]);

        let table = "state\t2030-02-01\n\
                     R-1\tparser\t2030-01-02\tvulnerability\t>=1.3\t\n\
                     R-2\tparser\t2030-01-03\tunmaintained\t\t<2.0.0\n\
                     R-3\tours\t2030-01-04\tvulnerability\t\t\n";
        let database = database::read_table(table).unwrap();
        let affected = affected_packages(&packages, &database);
        let findings = |accepted: &str| {
            findings(&packages, &affected, &read_accepted(accepted).unwrap(), &database).join("\n")
        };
        expect_test::expect![[r"
            Cargo.lock: parser 1.2.3: vulnerability, patched: >=1.3: https://rustsec.org/advisories/R-1.html
            Cargo.lock: parser 2.0.0+spec-1: unmaintained, there is no patched version: https://rustsec.org/advisories/R-2.html"]]
        .assert_eq(&findings(""));
        expect_test::expect![[r"
            Cargo.lock: parser 1.2.3: vulnerability, patched: >=1.3: https://rustsec.org/advisories/R-1.html
            xtask/accepted-advisories.txt: R-3 affects no locked package: remove the line"]]
        .assert_eq(&findings("# why\nR-2 | replaced soon\nR-3 | none\nR-9 | not in this database"));
        assert_eq!(findings("R-1 | never called\nR-2 | replaced soon"), "");
    }

    #[test]
    fn crates_that_are_not_in_the_table_are_findings() {
        let packages = read_lock_file("Cargo.lock", LOCK_FILE).unwrap();
        let found = |table: &str| {
            let database = database::read_table(table).unwrap();
            findings(&packages[..1], &[], &Accepted::new(), &database)
        };
        assert_eq!(found("state\t2030-02-01\nnone\tparser\n"), [""; 0]);
        assert_eq!(
            found("state\t2030-02-01\nnone\tprinter\n"),
            ["Cargo.lock: parser is not in the table of advisories: renew the table"]
        );
    }

    #[test]
    fn accepted_advisories_need_a_reason_and_are_listed_once() {
        for (text, want) in [
            ("R-1", "xtask/accepted-advisories.txt:1: R-1 has no reason"),
            ("#\nR-1 | ", "xtask/accepted-advisories.txt:2: R-1 has no reason"),
            ("R-1 | a\nR-1 | b", "xtask/accepted-advisories.txt:2: R-1 is there twice"),
        ] {
            assert_eq!(read_accepted(text).unwrap_err().to_string(), want);
        }
    }

    #[test]
    fn lock_files_that_cannot_be_read_are_errors() {
        for text in ["", "package = 1", "[[package]]\nname = ", "[metadata]"] {
            assert!(read_lock_file("Cargo.lock", text).is_err(), "{text}");
        }
        let invalid = LOCK_FILE.replace("1.2.3", "1.2");
        let error = read_lock_file("Cargo.lock", &invalid).unwrap_err().to_string();
        assert!(error.contains("parser"), "{error}");
    }

    #[test]
    fn an_old_database_is_pointed_out() {
        let state = "2030-01-01".parse().unwrap();
        assert_eq!(age_note(state, "2030-03-01".parse().unwrap()), "");
        let note = age_note(state, "2031-01-01".parse().unwrap());
        assert_eq!(note, " (365 days ago: update the database)");
    }
}
