//! `loadmaster new plugin`: writes the repository of a scheduler with a plugin.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use loadmaster_framework::Registry;

use crate::exit::{CommandResult, Exit, Failure};

/// Write the repository of a scheduler with a plugin of your own.
///
/// Creates the folder NAME in the current directory: a crate that depends on a checkout of Loadmaster by its path, a plugin with tests, a
/// configuration, manifests (service account, roles, ConfigMap, Deployment), a Dockerfile and a README. The plugin's name is NAME in
/// CamelCase. An existing folder is not changed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster new plugin pool-scheduler
  loadmaster new plugin pool-scheduler --loadmaster ../loadmaster")]
pub(crate) struct Args {
    /// The name of the folder, the crate, the image, the Kubernetes objects and the scheduler: lowercase letters, digits and `-`.
    name: String,
    /// The checkout of Loadmaster that the crate depends on. A relative path stays relative in the crate [default: the checkout that
    /// this program was built from].
    #[arg(long, value_name = "PATH")]
    loadmaster: Option<PathBuf>,
}

/// The files of the repository: path and template. `{{name}}` and so on are replaced in both.
const TEMPLATES: &[(&str, &str)] = &[
    ("Cargo.toml", include_str!("../templates/plugin/Cargo.toml.template")),
    ("src/main.rs", include_str!("../templates/plugin/src/main.rs")),
    ("src/plugin.rs", include_str!("../templates/plugin/src/plugin.rs")),
    ("scheduler.yaml", include_str!("../templates/plugin/scheduler.yaml")),
    ("cluster.yaml", include_str!("../templates/plugin/cluster.yaml")),
    ("deploy/scheduler.yaml", include_str!("../templates/plugin/deploy/scheduler.yaml")),
    ("Dockerfile", include_str!("../templates/plugin/Dockerfile")),
    (".dockerignore", include_str!("../templates/plugin/.dockerignore")),
    (".gitignore", include_str!("../templates/plugin/.gitignore")),
    ("README.md", include_str!("../templates/plugin/README.md")),
];

const CONFIGURATION: &str = include_str!("../templates/plugin/scheduler.yaml");

/// This crate in the checkout that it was compiled in, which may not exist where the program runs.
const BUILT_FROM: &str = env!("CARGO_MANIFEST_DIR");

pub(crate) fn run(args: &Args, registry: &Registry, out: &mut dyn Write) -> CommandResult<Exit> {
    let plugin = plugin_name(&args.name, registry).map_err(Failure::invalid_input)?;
    let checkout = Checkout::find(args.loadmaster.as_deref()).map_err(Failure::invalid_input)?;
    let files = files(&args.name, &plugin, &checkout);
    let folder = Path::new(&args.name);
    create(folder, &files).map_err(Failure::invalid_input)?;
    writeln!(out, "{}/ is a scheduler with the plugin {plugin}:", args.name)?;
    for (path, _) in &files {
        writeln!(out, "  {path}")?;
    }
    writeln!(out, "It depends on Loadmaster in {}. Next:", checkout.dependency)?;
    writeln!(out, "  cd {}", args.name)?;
    writeln!(out, "  cargo test")?;
    writeln!(out, "  cargo run -- up --config scheduler.yaml -f cluster.yaml")?;
    Ok(Exit::Done)
}

/// Words that are valid DNS labels, but not names of a crate or of a value in YAML.
const RESERVED: &[&str] = &[
    // Keywords of Rust that are not keywords of YAML as well.
    "abstract",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "const",
    "continue",
    "crate",
    "do",
    "dyn",
    "else",
    "enum",
    "extern",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "override",
    "priv",
    "pub",
    "ref",
    "return",
    "self",
    "static",
    "struct",
    "super",
    "trait",
    "try",
    "type",
    "typeof",
    "unsafe",
    "unsized",
    "use",
    "virtual",
    "where",
    "while",
    "yield",
    // Values of YAML.
    "true",
    "false",
    "null",
    "yes",
    "no",
    "on",
    "off",
    "y",
    "n",
    // Names that cargo does not accept for a crate or its binary.
    "test",
    "core",
    "std",
    "alloc",
    "proc-macro",
    "build",
    "deps",
    "examples",
    "incremental",
    // The crate's dependencies, and a name that changes what the program prints.
    "loadmaster",
    "serde",
    "serde-json",
    "kube-scheduler",
];

const NAME_LENGTH_MAX: usize = 63;

/// The name of the plugin in the configuration: the name of the repository in CamelCase.
fn plugin_name(name: &str, registry: &Registry) -> Result<String, String> {
    let is_lower = |c: u8| c.is_ascii_lowercase();
    let is_valid = name.len() <= NAME_LENGTH_MAX
        && name.bytes().next().is_some_and(is_lower)
        && name.bytes().all(|c| is_lower(c) || c.is_ascii_digit() || c == b'-')
        && !name.ends_with('-');
    if !is_valid {
        return Err(format!(
            "invalid name {name:?}: expected lowercase letters, digits and '-', beginning with a letter and not ending with '-', \
             at most {NAME_LENGTH_MAX} characters, because it is the name of a crate and of Kubernetes objects"
        ));
    }
    if RESERVED.contains(&name) {
        return Err(format!("invalid name {name:?}: the word is reserved; choose another name"));
    }
    let mut plugin = String::new();
    for word in name.split('-') {
        let mut letters = word.chars();
        plugin.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        plugin.push_str(letters.as_str());
    }
    if registry.get(&plugin).is_some() {
        return Err(format!(
            "invalid name {name:?}: there is a plugin {plugin} already; choose another name"
        ));
    }
    Ok(plugin)
}

/// A checkout of Loadmaster.
#[derive(Debug)]
struct Checkout {
    /// Its path in the manifest of the crate: absolute, or relative to the folder of the crate.
    dependency: String,
    /// The versions of the crates that it was tested with: its Cargo.lock, if it has one.
    lock: Option<String>,
}

impl Checkout {
    /// The checkout at a path, or the one that this program was built from.
    fn find(given: Option<&Path>) -> Result<Checkout, String> {
        let Some(given) = given else {
            // Without `crates/loadmaster`.
            let root = Path::new(BUILT_FROM).ancestors().nth(2).unwrap_or(Path::new(BUILT_FROM));
            return Checkout::at(root, None).map_err(|_| {
                format!(
                    "the checkout of Loadmaster that this program was built from is no longer in {}; clone Loadmaster, and \
                     give the path with --loadmaster PATH",
                    root.display()
                )
            });
        };
        // The new folder is in the current directory.
        let relative = given.is_relative().then(|| Path::new("..").join(given));
        Checkout::at(given, relative).map_err(|why| {
            format!("--loadmaster {}: expected a checkout of Loadmaster: {why}", given.display())
        })
    }

    fn at(path: &Path, relative: Option<PathBuf>) -> Result<Checkout, String> {
        let manifest = path.join("crates/loadmaster/Cargo.toml");
        let text = fs::read_to_string(&manifest)
            .map_err(|error| format!("reading {}: {error}", manifest.display()))?;
        if !text.lines().any(|line| line == "name = \"loadmaster\"") {
            return Err(format!("{} is the manifest of another crate", manifest.display()));
        }
        let dependency = match relative {
            // Without `.` in the middle and `/` at the end.
            Some(relative) => relative.components().collect(),
            None => path.canonicalize().map_err(|error| error.to_string())?,
        };
        let dependency = dependency.to_str().ok_or("the path is not valid UTF-8")?.to_owned();
        Ok(Checkout { dependency, lock: fs::read_to_string(path.join("Cargo.lock")).ok() })
    }
}

/// The paths and texts of the repository's files.
fn files(name: &str, plugin: &str, checkout: &Checkout) -> Vec<(&'static str, String)> {
    let loadmaster = &checkout.dependency;
    let quoted = loadmaster.replace('\\', "\\\\").replace('"', "\\\"");
    let fill = |text: &str| {
        text.replace("{{name}}", name)
            .replace("{{plugin}}", plugin)
            .replace("{{loadmaster}}", loadmaster)
            .replace("{{loadmaster-quoted}}", &quoted)
            .replace("{{rust-version}}", env!("CARGO_PKG_RUST_VERSION"))
    };
    // The ConfigMap has the configuration file, without its first comment.
    let configuration = CONFIGURATION.lines().filter(|line| !line.starts_with('#'));
    let configuration: String = configuration.map(|line| format!("    {line}\n")).collect();
    let template = |&(path, text): &(&'static str, &str)| {
        (path, fill(&text.replace("{{scheduler.yaml}}", &configuration)))
    };
    let mut files: Vec<_> = TEMPLATES.iter().map(template).collect();
    files.extend(checkout.lock.clone().map(|lock| ("Cargo.lock", lock)));
    files
}

/// Creates the folder with its files; on an error there is no folder that was not there before.
fn create(folder: &Path, files: &[(&str, String)]) -> Result<(), String> {
    fs::create_dir(folder).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            format!("{} exists already; it was not changed", folder.display())
        }
        _ => format!("creating {}: {error}", folder.display()),
    })?;
    let written = files.iter().try_for_each(|(path, text)| {
        let path = folder.join(path);
        let parent = path.parent().map_or(Ok(()), fs::create_dir_all);
        parent
            .and_then(|()| fs::write(&path, text))
            .map_err(|error| format!("writing {}: {error}", path.display()))
    });
    if written.is_err() {
        // The first error is reported, whatever can be removed.
        let _ = fs::remove_dir_all(folder);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let registry = loadmaster_plugins::in_tree_registry();
        let longest = "a".repeat(NAME_LENGTH_MAX);
        for (name, want) in
            [("pool", "Pool"), ("pool-scheduler", "PoolScheduler"), ("a1-2b", "A12b")]
        {
            assert_eq!(plugin_name(name, &registry).unwrap(), want);
        }
        assert!(plugin_name(&longest, &registry).is_ok());
        let too_long = longest + "a";
        for name in ["", "Pool", "1a", "-a", "a-", "a_b", "a.b", "a/b", "..", "é", "a b", &too_long]
        {
            let error = plugin_name(name, &registry).unwrap_err();
            assert!(error.contains("expected lowercase letters, digits and '-'"), "{error}");
        }
        for (name, want) in [
            ("fn", "reserved"),
            ("true", "reserved"),
            ("test", "reserved"),
            ("serde-json", "reserved"),
            ("node-affinity", "there is a plugin NodeAffinity already"),
        ] {
            let error = plugin_name(name, &registry).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn everything_in_the_templates_is_replaced() {
        let checkout = Checkout { dependency: "../my \"lm\"".to_owned(), lock: None };
        let files = files("pool-scheduler", "PoolScheduler", &checkout);
        for (path, text) in &files {
            assert!(!text.contains("{{") && text.ends_with('\n'), "{path}: {text}");
        }
        let text = |wanted: &str| &files.iter().find(|(path, _)| *path == wanted).unwrap().1;
        assert!(text("Cargo.toml").contains(r#"path = "../my \"lm\"/crates/loadmaster""#));
        assert!(
            text("deploy/scheduler.yaml").contains("    profiles:\n      - schedulerName: pool")
        );
    }

    #[test]
    fn the_checkout_is_found() {
        let own = Checkout::find(None).unwrap();
        assert!(Path::new(&own.dependency).is_absolute() && own.lock.is_some(), "{own:?}");
        assert_eq!(Checkout::find(Some(Path::new("../.././"))).unwrap().dependency, "../../..");
        for (path, want) in [("/nope", "reading /nope/crates/loadmaster/Cargo.toml"), ("src", "")] {
            let error = Checkout::find(Some(Path::new(path))).unwrap_err();
            let start = format!("--loadmaster {path}: expected a checkout of Loadmaster: ");
            assert!(error.starts_with(&start) && error.contains(want), "{error}");
        }
    }
}
