//! `cargo xtask e2e kubectl`: the same calls of kubectl to a real kube-apiserver and to the embedded one, and what they say compared.
//!
//! Names, ages and ids that chance decides are masked. Differences that are meant stand in `conformance/kubectl/known.txt`; any other is a
//! finding, printed as it would stand there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use http::Method;
use serde_json::json;

use super::api::Api;
use super::control_plane::{ControlPlane, Options};
use super::embedded;
use super::folder::Folder;
use super::programs::{self, Program};
use super::special;

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

pub async fn run(args: &Args) -> Result<bool> {
    use Program::{Etcd, KubeApiserver, Kubectl};
    programs::build(&[Etcd, KubeApiserver, Kubectl])?;
    let loadmaster = programs::loadmaster(args.loadmaster.as_deref())?;
    let scripts = crate::root()?.join("conformance/kubectl");
    let text = std::fs::read_to_string(scripts.join("known.txt")).context("reading known.txt")?;
    let known = known(&text)?;
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

/// The differences that are meant; above each stands why, in lines that begin with `#`.
fn known(text: &str) -> Result<BTreeSet<String>> {
    let mut known = BTreeSet::new();
    for entry in text.split("\n\n").filter(|it| !it.trim().is_empty()) {
        let (why, lines): (Vec<&str>, Vec<&str>) =
            entry.lines().partition(|line| line.starts_with('#'));
        ensure!(!why.is_empty(), "a known difference without a reason:\n{entry}");
        known.insert(lines.join("\n").trim_end().to_owned());
    }
    Ok(known)
}

/// What the calls of a script say on a fresh real server, and on a fresh embedded one.
async fn play(script: &Path, loadmaster: &Path) -> Result<(String, String)> {
    let plane = ControlPlane::start(&Options::default()).await?;
    let api = Api::new(&plane.admin_kubeconfig()).await?;
    refuse_repairs(&api).await.context("refusing Events of repairs")?;
    let folder = Folder::temporary(&std::env::temp_dir())?;
    // The administrator is the same on both, and shows himself in the same way.
    let tokens = plane.folder().join("tokens.csv");
    let flags = [format!("--token-auth-file={}", tokens.display())];
    let (server, kubeconfig) = embedded::start(loadmaster, folder.path(), &flags).await?;
    for call in [
        format!("config set-credentials e2e --token={}", plane.admin_token()?),
        "config set-context --current --user=e2e".to_owned(),
    ] {
        let mut command = Command::new(Program::Kubectl.path()?);
        command.arg("--kubeconfig").arg(&kubeconfig).args(call.split(' '));
        let output = command.output().context("running kubectl")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    // At the same time: most of it is waiting.
    let real = plane.admin_kubeconfig();
    let (real, ours) = tokio::try_join!(said(script, &real), said(script, &kubeconfig))?;
    drop(server);
    drop(folder.removed());
    plane.finish();
    Ok((real, ours))
}

/// Lets a real server refuse what its own repair of service addresses says: it looks at a service now and then before the service's
/// address is entered, by chance, and writes an Event about that.
async fn refuse_repairs(api: &Api) -> Result<()> {
    const REPAIRS: &str = "allocator-repair-controller";
    const NAME: &str = "e2e-no-repairs";
    let is_other = format!("!object.?reportingController.orValue('').endsWith('{REPAIRS}')");
    let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy", "metadata": {"name": NAME}, "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": ["events.k8s.io"],
                "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["events"]}]},
            "validations": [{"expression": is_other}]}});
    api.create(policies, &policy).await?;
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": NAME},
        "spec": {"policyName": NAME, "validationActions": ["Deny"]}});
    api.create(&policies.replace("policies", "policybindings"), &binding).await?;
    let about = json!({"apiVersion": "v1", "kind": "Service", "namespace": "default", "name": "kubernetes"});
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": NAME}, "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal",
        "reason": "Test", "action": "Test", "regarding": about,
        "reportingController": format!("x{REPAIRS}"), "reportingInstance": "x"});
    let path = "/apis/events.k8s.io/v1/namespaces/default/events?dryRun=All";
    special::until("the policy to hold", special::PATIENCE, async || {
        let answer = api.ask(Method::POST, path, event.to_string().into_bytes()).await?;
        Ok(answer.status == 422)
    })
    .await
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
    Ok(in_order(&String::from_utf8(output.stdout).context("what kubectl said")?))
}

/// Sorts what upstream finds by walking through maps: complaints about one object, a list of lines that begin with `*`; why `kubectl
/// drain` leaves pods where they are, and what is beyond a LimitRange, lists in brackets.
fn in_order(said: &str) -> String {
    let mut lines: Vec<String> = said.lines().map(reasons_in_order).collect();
    for complaints in lines.chunk_by_mut(|a, b| a.starts_with("* ") && b.starts_with("* ")) {
        complaints.sort_unstable();
    }
    lines.join("\n") + "\n"
}

/// Reasons have commas of their own: what stands between any two is sorted, which is the same whichever reason came first.
fn reasons_in_order(line: &str) -> String {
    const LISTS: [(&str, &str); 2] = [("", "[cannot delete "), ("is forbidden: ", "[")];
    let list = LISTS.iter().find_map(|(before, start)| {
        let from = line.find(&format!("{before}{start}"))? + before.len() + 1;
        Some(from..line.rfind(']').filter(|end| *end > from)?)
    });
    let Some(list) = list else { return line.to_owned() };
    let mut parts: Vec<&str> = line[list.clone()].split(", ").collect();
    parts.sort_unstable();
    format!("{}{}{}", &line[..list.start], parts.join(", "), &line[list.end..])
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
    Ok(places(&String::from_utf8_lossy(&output.stdout)))
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
    fn complaints_are_sorted() {
        assert_eq!(in_order("b\n* d\n* c\na\n* f\n"), "b\n* c\n* d\na\n* f\n");
        let check = |said: &str, want: &str| assert_eq!(in_order(said), format!("{want}\n"));
        let drained = "error: [cannot delete a: z, cannot delete b: x, y], going on";
        check("error: [cannot delete b: x, y, cannot delete a: z], going on", drained);
        let limited =
            "pods \"p\" is forbidden: [but limit is 2, but limit is 3, most cpu, most memory]";
        check(
            "pods \"p\" is forbidden: [most cpu, but limit is 2, most memory, but limit is 3]",
            limited,
        );
        check(
            "pods \"p\" is forbidden: [most memory, but limit is 3, most cpu, but limit is 2]",
            limited,
        );
        for other in ["[cannot delete b", "] [cannot delete b", "a[c, b]d", "is forbidden: []"] {
            check(other, other);
        }
    }

    #[test]
    fn what_is_known_has_its_reason() {
        let read = |text: &str| known(text).ok().map(|all| all.into_iter().collect::<Vec<_>>());
        let text = "# Why.\n< a\n---\n> b\n\n# Two\n# lines.\n> c\n";
        assert_eq!(read(text), Some(vec!["< a\n---\n> b".to_owned(), "> c".to_owned()]));
        assert_eq!(read(""), Some(vec![]));
        assert_eq!(read("< a\n"), None);
    }
}
