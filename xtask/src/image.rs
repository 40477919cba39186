//! `cargo xtask image`: container images without a container engine. The programs are built for musl libc and linked statically; an image has one
//! layer with a program and nothing that it does not need. Two builds of a commit are equal, byte by byte.

mod build;
mod check;
mod contents;
mod finished;
mod layer;
mod layout;
mod push;
mod sbom;
mod two_builds;
mod unpacked;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use flate2::Compression;
use serde_json::Value;

pub use unpacked::Unpacked;

use build::{Architecture, Toolchain};
use check::Programs;
use contents::{GROUP, IMAGES, Image, PASSWD};
use layer::{Entries, Entry, add_file, add_link};
use layout::{Layout, Release};
use push::Registry;

/// The greatest size of the scheduler's compressed layer.
const SCHEDULER_BYTES_MAX: usize = 15_000_000;

/// Arguments of `image`.
#[derive(clap::Args)]
pub struct Args {
    /// Write only these images.
    #[arg(value_name = "IMAGE")]
    names: Vec<String>,
    /// The tag of the images [default: the version of the workspace].
    #[arg(long)]
    tag: Option<String>,
    /// The architectures of the images.
    #[arg(long = "arch", value_enum, value_delimiter = ',', default_values_t = [Architecture::Amd64])]
    architectures: Vec<Architecture>,
    /// The folder for the OCI image layout [default: images in the target folder].
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Also write a tar archive for `docker load` and `ctr images import`.
    #[arg(long, value_name = "FILE")]
    archive: Option<PathBuf>,
    /// Push the images to this registry, with the credentials of Docker's configuration file: `localhost:5000`, `registry.example.com/team`.
    #[arg(long, value_name = "REGISTRY", value_parser = Registry::parse)]
    push: Option<Registry>,
    /// Read the images back, and run their programs in Linux namespaces: alone, and as the pods of manifests on a real API server, for which one
    /// must be root. Those of other architectures are not run.
    #[arg(long)]
    check: bool,
    /// Check images with the programs in this folder, such as target/release, and the shared libraries that they need; nothing is built.
    #[arg(long, value_name = "FOLDER", requires = "check", conflicts_with_all = ["architectures", "archive", "push"])]
    programs: Option<PathBuf>,
    /// Only build the images in two copies of the workspace, in two folders, and check that the results are equal.
    #[arg(long, conflicts_with_all = ["output", "archive", "push", "check"])]
    check_reproducible: bool,
}

/// Builds images, and writes them.
pub fn run(args: &Args) -> Result<bool> {
    let images = chosen(&args.names)?;
    let toolchain = Toolchain::find(crate::root()?)?;
    let release = release(args.tag.as_deref())?;
    if args.check_reproducible {
        let build = |copy: &Toolchain| build(&images, &args.architectures, copy, &release);
        return two_builds::are_equal(&toolchain, build);
    }
    let files = match &args.programs {
        Some(folder) => {
            let program = |package: &str| folder.join(package);
            from_programs(&images, program, &toolchain, &release)?
        }
        None => build(&images, &args.architectures, &toolchain, &release)?,
    };
    let folder = args.output.clone().unwrap_or_else(|| toolchain.target_folder().join("images"));
    layout::write_folder(&files, &folder)?;
    println!("OCI image layout: {}", folder.display());
    if let Some(archive) = &args.archive {
        std::fs::write(archive, layer::tar(&files, release.seconds)?)
            .with_context(|| format!("writing {}", archive.display()))?;
        println!("archive: {}", archive.display());
    }
    if args.check && !check(args, &images, &folder, &toolchain, &release)? {
        return Ok(false);
    }
    if let Some(registry) = &args.push {
        let config = docker_config()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("starting the network runtime")?;
        runtime.block_on(push::push(&files, registry, config.as_deref()))?;
    }
    Ok(true)
}

/// Reads images back, and runs their programs: alone, and as pods.
fn check(
    args: &Args,
    images: &[&Image],
    layout: &Path,
    toolchain: &Toolchain,
    release: &Release,
) -> Result<bool> {
    let scratch = toolchain.target_folder().join("images-unpacked");
    let programs = if args.programs.is_some() { Programs::Given } else { Programs::Built };
    let mut is_good = true;
    for &architecture in &args.architectures {
        let runnable =
            check::check(layout, images, &release.tag, architecture, &scratch, programs)?;
        if !runnable.is_empty() {
            is_good &= crate::e2e::check_images(&runnable)?;
        }
    }
    std::fs::remove_dir_all(&scratch).with_context(|| format!("removing {}", scratch.display()))?;
    Ok(is_good)
}

/// The names of all images.
pub fn names() -> Vec<&'static str> {
    IMAGES.iter().map(|image| image.name).collect()
}

/// All images with finished programs, by package, written into a folder and read back.
pub fn finished(
    program: impl Fn(&str) -> PathBuf,
    folder: &Path,
) -> Result<Vec<(&'static str, Unpacked)>> {
    let images = chosen(&[])?;
    let toolchain = Toolchain::find(crate::root()?)?;
    let release = release(None)?;
    let files = from_programs(&images, program, &toolchain, &release)?;
    let layout = folder.join("layout");
    layout::write_folder(&files, &layout)?;
    let architecture = Architecture::of_host()?.name();
    let mut unpacked = Vec::new();
    for image in images {
        let reference = format!("{}:{}", image.name, release.tag);
        let folder = folder.join(image.name);
        unpacked.push((image.name, Unpacked::read(&layout, &reference, architecture, folder)?));
    }
    Ok(unpacked)
}

/// The images with these names; all without names.
fn chosen(names: &[String]) -> Result<Vec<&'static Image>> {
    let known = || IMAGES.iter().map(|image| image.name).collect::<Vec<_>>().join(", ");
    for name in names {
        let is_known = IMAGES.iter().any(|image| image.name == name);
        ensure!(is_known, "there is no image {name:?}; the images are {}", known());
    }
    let is_chosen = |image: &&Image| names.is_empty() || names.iter().any(|it| it == image.name);
    Ok(IMAGES.iter().filter(is_chosen).collect())
}

/// Builds images for all architectures; returns the files of their layout.
fn build(
    images: &[&Image],
    architectures: &[Architecture],
    toolchain: &Toolchain,
    release: &Release,
) -> Result<Entries> {
    // All packages, also for some images only: which features a crate has depends on what is built with it.
    let mut packages: Vec<&str> = IMAGES.iter().map(|image| image.package).collect();
    packages.sort_unstable();
    packages.dedup();
    let mut architectures = architectures.to_vec();
    architectures.sort_unstable();
    architectures.dedup();
    let mut layout = Layout::new(Compression::best());
    for architecture in architectures {
        let programs = toolchain.build(architecture, &packages)?;
        let tree = toolchain.tree(architecture, &packages)?;
        for image in images {
            let path = programs.join(image.package);
            let reading = || path.display().to_string();
            let program = std::fs::read(&path).with_context(reading)?;
            build::check_static(&program, architecture).with_context(reading)?;
            let sbom = sbom(image, &tree, toolchain, release)?;
            let entries = entries(toolchain.root(), image, program, sbom)?;
            let n_bytes = layout.add_image(image, architecture.name(), &entries, release)?;
            println!(
                "{}:{} {}: {:.1} MB",
                image.name,
                release.tag,
                architecture.name(),
                n_bytes as f64 / 1e6
            );
            ensure!(
                image.package != "loadmaster" || n_bytes <= SCHEDULER_BYTES_MAX,
                "the layer of {} has {n_bytes} bytes, more than {SCHEDULER_BYTES_MAX}",
                image.name
            );
        }
    }
    layout.finish()
}

/// Images of this machine's architecture with the programs of these packages, which are finished; returns the files of their layout.
fn from_programs(
    images: &[&Image],
    program: impl Fn(&str) -> PathBuf,
    toolchain: &Toolchain,
    release: &Release,
) -> Result<Entries> {
    let architecture = Architecture::of_host()?;
    let packages: Vec<&str> = IMAGES.iter().map(|image| image.package).collect();
    let tree = toolchain.tree(architecture, &packages)?;
    let mut layout = Layout::new(Compression::fast());
    for image in images {
        let path = program(image.package);
        let Ok(content) = std::fs::read(&path) else {
            bail!(
                "there is no program {}: `cargo build --release --package {}` builds it",
                path.display(),
                image.package
            )
        };
        let sbom = sbom(image, &tree, toolchain, release)?;
        let mut entries = entries(toolchain.root(), image, content, sbom)?;
        finished::add_libraries(&mut entries, &path)
            .with_context(|| format!("the libraries of {}", path.display()))?;
        layout.add_image(image, architecture.name(), &entries, release)?;
    }
    layout.finish()
}

fn sbom(image: &Image, tree: &str, toolchain: &Toolchain, release: &Release) -> Result<Value> {
    let lock = toolchain.root().join("Cargo.lock");
    let lock =
        std::fs::read_to_string(&lock).with_context(|| format!("reading {}", lock.display()))?;
    sbom::document(image.package, tree, &lock, &toolchain.rustc_version, release)
}

/// Docker's configuration file, if there is one.
fn docker_config() -> Result<Option<String>> {
    let folder = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".docker"));
    let Some(path) = folder.or_else(home).map(|folder| folder.join("config.json")) else {
        return Ok(None);
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}

/// All that is in an image.
fn entries(root: &Path, image: &Image, program: Vec<u8>, sbom: Value) -> Result<Entries> {
    let license = std::fs::read(root.join("LICENSE")).context("reading LICENSE")?;
    let sbom = serde_json::to_vec(&sbom).context("writing JSON")?;
    let mut entries = Entries::new();
    add_file(&mut entries, image.program, 0o755, program);
    for (path, target) in image.links {
        add_link(&mut entries, path, target);
    }
    add_file(&mut entries, "/etc/passwd", 0o644, PASSWD.into());
    add_file(&mut entries, "/etc/group", 0o644, GROUP.into());
    add_file(&mut entries, &format!("/usr/share/sbom/{}.cdx.json", image.package), 0o644, sbom);
    let license_path = format!("/usr/share/licenses/{}/LICENSE", image.package);
    add_file(&mut entries, &license_path, 0o644, license);
    // For recordings, and for programs that write where nothing is mounted.
    entries.insert("tmp".to_owned(), Entry::Folder { mode: 0o1777 });
    Ok(entries)
}

/// The commit, and what it determines.
fn release(tag: Option<&str>) -> Result<Release> {
    let version = env!("CARGO_PKG_VERSION");
    let tag = tag.unwrap_or(version);
    check_tag(tag)?;
    let changes = crate::git(&["status", "--porcelain", "--untracked-files=no"])?;
    let revision = crate::git(&["rev-parse", "HEAD"])?;
    let seconds = match std::env::var_os("SOURCE_DATE_EPOCH") {
        Some(seconds) => seconds.to_string_lossy().into_owned(),
        None => crate::git(&["log", "-1", "--format=%ct"])?,
    };
    Ok(Release {
        tag: tag.to_owned(),
        version: version.to_owned(),
        revision: if changes.is_empty() { revision } else { revision + "-dirty" },
        seconds: seconds.parse().with_context(|| {
            format!("SOURCE_DATE_EPOCH: expected seconds since 1970, found {seconds:?}")
        })?,
    })
}

/// A tag as the OCI distribution specification has it.
fn check_tag(tag: &str) -> Result<()> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_valid = tag.len() <= 128
        && tag.starts_with(is_word)
        && tag.chars().all(|c| is_word(c) || matches!(c, '.' | '-'));
    ensure!(
        is_valid,
        "--tag {tag:?}: expected at most 128 letters, digits, `_`, `.` and `-`, with a letter, digit or `_` first"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags() {
        let long = "x".repeat(129);
        for (tag, want) in [
            ("v1", true),
            ("0.1.0-rc_1", true),
            ("", false),
            (".1", false),
            ("a:b", false),
            ("ä", false),
            (&long[..128], true),
            (&long, false),
        ] {
            assert_eq!(check_tag(tag).is_ok(), want, "{tag}");
        }
    }

    #[test]
    fn images_are_chosen_by_name() {
        let names = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            chosen(&names).map(|images| images.iter().map(|image| image.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap().len(), IMAGES.len());
        assert_eq!(names(&["sample-extender"]).unwrap(), ["sample-extender"]);
        assert!(
            names(&["nope"]).unwrap_err().to_string().starts_with("there is no image \"nope\"")
        );
    }

    #[test]
    fn an_image_has_its_program_and_nothing_to_run_beside_it() {
        let root = crate::root().unwrap();
        let entries = entries(&root, &IMAGES[0], b"program".to_vec(), Value::Null).unwrap();
        let executable: Vec<&str> = entries
            .iter()
            .filter(|(_, entry)| match entry {
                Entry::File { mode, .. } => mode & 0o111 != 0,
                Entry::Link { .. } => true,
                Entry::Folder { .. } => false,
            })
            .map(|(path, _)| path.as_str())
            .collect();
        assert_eq!(executable, ["bin/kube-scheduler", "bin/loadmaster"]);
        assert_eq!(entries["tmp"], Entry::Folder { mode: 0o1777 });
    }
}
