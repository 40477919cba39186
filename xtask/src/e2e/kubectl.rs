//! `cargo xtask e2e kubectl`: the same calls of kubectl to a real kube-apiserver and to the embedded one, and what they say compared.
//!
//! Names, ages and ids that chance decides are masked. Differences that are meant stand in `conformance/kubectl/known.txt`; any other is a
//! finding, printed as it would stand there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;

use super::control_plane::{ControlPlane, Options, free_port};
use super::credentials::Identity;
use super::folder::Folder;
use super::process::Process;
use super::programs::{self, Program};

/// Make the same calls of kubectl to a real API server and to the embedded one, and compare what they say.
#[derive(Parser)]
pub struct Args {
    /// Scripts of conformance/kubectl; all of them if none is named.
    #[arg(default_values = ["script", "daily", "custom"])]
    scripts: Vec<String>,
    /// Loadmaster's binary; that of the release profile when not given.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<PathBuf>,
}

const START: Duration = Duration::from_secs(30);

pub async fn run(args: &Args) -> Result<bool> {
    use Program::{Etcd, KubeApiserver, Kubectl};
    programs::build(&[Etcd, KubeApiserver, Kubectl])?;
    let loadmaster = match &args.loadmaster {
        Some(path) => path.clone(),
        None => programs::release_binary()?,
    };
    let scripts = crate::root()?.join("conformance/kubectl");
    let known = std::fs::read_to_string(scripts.join("known.txt")).context("reading known.txt")?;
    let known: BTreeSet<&str> = known.split("\n\n").map(str::trim_end).collect();
    let mut n_unknown = 0;
    for script in &args.scripts {
        let path = scripts.join(format!("{script}.sh"));
        ensure!(path.exists(), "there is no {}", path.display());
        let (real, ours) = play(&path, &loadmaster).await?;
        let n_calls = real.lines().filter(|line| line.starts_with("$ ")).count();
        let found = differences(&real, &ours)?;
        let unknown: Vec<&String> =
            found.iter().filter(|it| !known.contains(it.trim_end())).collect();
        println!("{script}: {n_calls} calls, {} lines", real.lines().count());
        println!("  {} differences, {} of them not known", found.len(), unknown.len());
        unknown.iter().for_each(|it| println!("{it}\n"));
        n_unknown += unknown.len();
    }
    Ok(n_unknown == 0)
}

/// What the calls of a script say on a fresh real server, and on a fresh embedded one.
async fn play(script: &Path, loadmaster: &Path) -> Result<(String, String)> {
    let plane = ControlPlane::start(&Options::default()).await?;
    let real = said(script, &plane.admin_kubeconfig()).await?;
    let folder = Folder::temporary(&std::env::temp_dir())?;
    let kubeconfig = folder.path().join("kubeconfig");
    let mut command = Command::new(loadmaster);
    command.arg("apiserver").arg(format!("--port={}", free_port()?));
    command.arg("--kubeconfig").arg(&kubeconfig);
    // The administrator is the same on both.
    command.arg("--token-auth-file").arg(plane.folder().join("tokens.csv"));
    let mut server =
        Process::start("loadmaster", &mut command, &folder.path().join("apiserver.log"))?;
    const PAUSE: Duration = Duration::from_millis(100);
    for _ in 0..START.as_millis() / PAUSE.as_millis() {
        server.check_running()?;
        if kubeconfig.exists() {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    let (user, token) = (Identity::admin().user, plane.admin_token()?);
    for call in [
        format!("config set-credentials {user} --token={token}"),
        format!("config set-context --current --user={user}"),
    ] {
        let mut command = Command::new(Program::Kubectl.path()?);
        command.arg("--kubeconfig").arg(&kubeconfig).args(call.split(' '));
        let output = command.output().context("running kubectl")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let ours = said(script, &kubeconfig).await?;
    drop(server);
    drop(folder.removed());
    plane.finish();
    Ok((real, ours))
}

/// Runs a script, and masks what it says.
async fn said(script: &Path, kubeconfig: &Path) -> Result<String> {
    // kubectl keeps what it has learnt about servers in the home folder.
    let home = Folder::temporary(&std::env::temp_dir())?;
    let mask = script.with_file_name("mask.sed");
    let mut command = Command::new("bash");
    command.args(["-c", "bash \"$1\" \"$2\" \"$3\" 2>&1 | sed -E -f \"$4\"", "bash"]);
    command.arg(script).arg(Program::Kubectl.path()?).arg(kubeconfig).arg(mask);
    command.env("HOME", home.path());
    let done = tokio::task::spawn_blocking(move || command.output());
    let output = done.await.context("waiting for the script")?.context("running the script")?;
    drop(home.removed());
    String::from_utf8(output.stdout).context("what kubectl said")
}

/// What one said and the other did not, place by place, as diff writes it but for the line numbers.
fn differences(real: &str, ours: &str) -> Result<Vec<String>> {
    let folder = Folder::temporary(&std::env::temp_dir())?;
    let paths = ["real", "ours"].map(|name| folder.path().join(name));
    for (path, text) in paths.iter().zip([real, ours]) {
        std::fs::write(path, text).context("writing what was said")?;
    }
    let output = Command::new("diff").args(&paths).output().context("running diff")?;
    drop(folder.removed());
    if output.status.code().is_none_or(|code| code > 1) {
        bail!("diff: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(without_moved(places(&String::from_utf8_lossy(&output.stdout))))
}

/// Leaves out pairs of places of which one says what the other does not: entries of `managedFields` stand in the order of their times,
/// which are whole seconds.
fn without_moved(places: Vec<String>) -> Vec<String> {
    fn lines(place: &str, sign: char) -> Option<Vec<&str>> {
        let mut lines: Vec<&str> =
            place.lines().map(|line| line.strip_prefix(sign)).collect::<Option<_>>()?;
        lines.sort_unstable();
        Some(lines)
    }
    let is_moved = |one: &str, other: &str| {
        let (gone, come) = (lines(one, '<'), lines(other, '>'));
        gone.is_some_and(|it| {
            Some(&it) == come.as_ref() && it.iter().any(|it| it.contains("operation:"))
        })
    };
    let mut left: Vec<String> = Vec::new();
    for place in places {
        match left.last() {
            Some(last) if is_moved(last, &place) || is_moved(&place, last) => drop(left.pop()),
            _ => left.push(place),
        }
    }
    left
}

fn places(diff: &str) -> Vec<String> {
    let mut places: Vec<String> = Vec::new();
    for line in diff.lines() {
        match places.last_mut() {
            Some(last) if line.starts_with(['<', '>', '-', '\\']) => {
                last.extend([if last.is_empty() { "" } else { "\n" }, line]);
            }
            _ => places.push(String::new()),
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_the_lines_of_one_place() {
        let diff = "3c3\n< a\n---\n> b\n7a8,9\n> c\n> \n";
        assert_eq!(places(diff), ["< a\n---\n> b", "> c\n> "]);
        assert_eq!(places(""), [""; 0]);
    }

    #[test]
    fn an_entry_in_another_place_is_no_difference() {
        let check = |places: &[&str], want: &[&str]| {
            let places = places.iter().map(|it| (*it).to_owned()).collect();
            assert_eq!(without_moved(places), want);
        };
        check(&["< a\n< operation: x", "> operation: x\n> a", "< b"], &["< b"]);
        check(&["> operation: x", "< operation: x"], &[]);
        check(&["< a", "> a"], &["< a", "> a"]);
        check(&["< operation: x", "> operation: y"], &["< operation: x", "> operation: y"]);
    }
}
