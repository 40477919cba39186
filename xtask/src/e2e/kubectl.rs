//! `cargo xtask e2e kubectl`: compares the output of the same kubectl commands on a real kube-apiserver and on the embedded one.
//!
//! Generated names, ages and ids are masked. Intended differences are listed in `conformance/kubectl/known.txt`; any other difference is
//! an error, printed in the same format.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use http::Method;
use serde_json::json;

use super::api_client::ApiClient;
use super::control_plane::{ControlPlane, ControlPlaneOptions};
use super::embedded_apiserver;
use super::programs::{self, Program};
use super::run_folder::RunFolder;
use super::special_pods;

/// Compare the output of the same kubectl commands on a real API server and on the embedded one.
#[derive(Parser)]
pub struct Args {
    /// Scripts of conformance/kubectl; all by default.
    #[arg(default_values = ["script", "daily", "custom"])]
    scripts: Vec<String>,
    /// The loadmaster binary; by default that of the release profile.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<PathBuf>,
}

pub async fn run(args: &Args) -> Result<bool> {
    use Program::{Etcd, KubeApiserver, Kubectl};
    programs::build(&[Etcd, KubeApiserver, Kubectl])?;
    let loadmaster = programs::loadmaster(args.loadmaster.as_deref())?;
    let scripts = crate::root()?.join("conformance/kubectl");
    let text = std::fs::read_to_string(scripts.join("known.txt")).context("reading known.txt")?;
    let known = parse_known_differences(&text)?;
    let mut n_unknown = 0;
    for script in &args.scripts {
        let path = scripts.join(format!("{script}.sh"));
        ensure!(path.exists(), "there is no {}", path.display());
        let (real, ours) = run_on_both(&path, &loadmaster).await?;
        let n_calls = real.lines().filter(|line| line.starts_with("$ ")).count();
        let found = differences(&real, &ours)?;
        let unknown: Vec<&String> =
            found.iter().filter(|it| !known.contains(it.trim_end())).collect();
        println!("{script}: {n_calls} commands, {} lines", real.lines().count());
        println!("  {} differences, {} of them unknown", found.len(), unknown.len());
        unknown.iter().for_each(|it| println!("{it}\n"));
        n_unknown += unknown.len();
    }
    Ok(n_unknown == 0)
}

/// Parses the intended differences; each is preceded by its reason, in lines that begin with `#`.
fn parse_known_differences(text: &str) -> Result<BTreeSet<String>> {
    let mut known = BTreeSet::new();
    for entry in text.split("\n\n").filter(|it| !it.trim().is_empty()) {
        let (why, lines): (Vec<&str>, Vec<&str>) =
            entry.lines().partition(|line| line.starts_with('#'));
        ensure!(!why.is_empty(), "a known difference without a reason:\n{entry}");
        known.insert(lines.join("\n").trim_end().to_owned());
    }
    Ok(known)
}

/// The output of a script on a new real server, and on a new embedded one.
async fn run_on_both(script: &Path, loadmaster: &Path) -> Result<(String, String)> {
    let options = ControlPlaneOptions::without_service_account_admission();
    let plane = ControlPlane::start(&options).await?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    deny_repair_events(&api).await.context("denying Events of repair controllers")?;
    let folder = RunFolder::temporary(&std::env::temp_dir())?;
    // The administrator has the same user name and credentials on both.
    let tokens = plane.folder().join("tokens.csv");
    let flags = [format!("--token-auth-file={}", tokens.display())];
    let (server, kubeconfig) = embedded_apiserver::start(loadmaster, folder.path(), &flags).await?;
    for call in [
        format!("config set-credentials e2e --token={}", plane.admin_token()?),
        "config set-context --current --user=e2e".to_owned(),
    ] {
        let mut command = Command::new(Program::Kubectl.path()?);
        command.arg("--kubeconfig").arg(&kubeconfig).args(call.split(' '));
        let output = command.output().context("running kubectl")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    // Concurrently, because the scripts mostly wait.
    let real = plane.admin_kubeconfig();
    let (real, ours) =
        tokio::try_join!(script_output(script, &real), script_output(script, &kubeconfig))?;
    drop(server);
    drop(folder.remove_on_drop());
    plane.finish();
    Ok((real, ours))
}

/// Makes a real server deny the Events of its repair controllers, and deletes those of its start: the controllers sometimes observe a service
/// before its IP is allocated, and write an Event about that.
async fn deny_repair_events(api: &ApiClient) -> Result<()> {
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
    special_pods::wait_until("the policy to be enforced", special_pods::STEP_TIMEOUT, async || {
        let response = api.request(Method::POST, path, event.to_string().into_bytes()).await?;
        Ok(response.status == 422)
    })
    .await?;
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let deleted = api.request(Method::DELETE, events, Vec::new()).await?;
    ensure!(deleted.status == 200, "deleting Events: status {}", deleted.status);
    Ok(())
}

/// Runs a script and masks its output.
async fn script_output(script: &Path, kubeconfig: &Path) -> Result<String> {
    // kubectl caches discovery in the home folder.
    let home = RunFolder::temporary(&std::env::temp_dir())?;
    let mask = script.with_file_name("mask.sed");
    let mut command = Command::new("bash");
    command.args(["-c", "bash \"$1\" \"$2\" \"$3\" 2>&1 | sed -E -f \"$4\"", "bash"]);
    command.arg(script).arg(Program::Kubectl.path()?).arg(kubeconfig).arg(mask);
    command.env("HOME", home.path());
    let done = tokio::task::spawn_blocking(move || command.output());
    let output = done.await.context("waiting for the script")?.context("running the script")?;
    drop(home.remove_on_drop());
    let text = String::from_utf8(output.stdout).context("decoding the output of kubectl")?;
    Ok(sort_unordered_output(&without_descriptions(&text)))
}

/// Leaves out the descriptions that `kubectl explain` prints, which are the embedded server's own, and keeps everything else: names and types of
/// fields, `-required-` and enum values.
fn without_descriptions(output: &str) -> String {
    let (mut is_explain, mut section) = (false, "");
    let mut structure = String::new();
    for line in output.lines() {
        if line.starts_with("$ ") {
            is_explain = line.starts_with("$ kubectl explain ");
        }
        if !line.is_empty() && !line.starts_with(' ') {
            section = line;
        } else if is_explain && section == "DESCRIPTION:"
            || is_explain && section == "FIELDS:" && !is_field_or_enum(line)
        {
            continue;
        }
        structure.extend([line, "\n"]);
    }
    structure
}

/// Whether a line below `FIELDS:` is a field's name and type, or its enum values.
fn is_field_or_enum(line: &str) -> bool {
    line.contains("\t<") || line.trim_start().starts_with("enum: ")
}

/// Sorts output that upstream prints in the random order of a map: error lists, whose lines begin with `*`, and lists in brackets:
/// pods that `kubectl drain` cannot delete, and violations of a LimitRange.
fn sort_unordered_output(output_text: &str) -> String {
    let mut lines: Vec<String> = output_text.lines().map(sort_bracketed_list).collect();
    for error_list in lines.chunk_by_mut(|a, b| a.starts_with("* ") && b.starts_with("* ")) {
        error_list.sort_unstable();
    }
    lines.join("\n") + "\n"
}

/// Reasons may contain commas: the parts between commas are sorted, which gives the same result for any order of the reasons.
fn sort_bracketed_list(line: &str) -> String {
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

/// The differences, one per hunk, in the format of diff without line numbers.
fn differences(real: &str, ours: &str) -> Result<Vec<String>> {
    let folder = RunFolder::temporary(&std::env::temp_dir())?;
    let paths = ["real", "ours"].map(|name| folder.path().join(name));
    for (path, text) in paths.iter().zip([real, ours]) {
        std::fs::write(path, text).context("writing the output")?;
    }
    let output = Command::new("diff").args(&paths).output().context("running diff")?;
    drop(folder.remove_on_drop());
    if output.status.code().is_none_or(|code| code > 1) {
        bail!("diff: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(diff_hunks(&String::from_utf8_lossy(&output.stdout)))
}

fn diff_hunks(diff: &str) -> Vec<String> {
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
    fn differences_are_diff_hunks() {
        let diff = "3c3\n< a\n---\n> b\n7a8,9\n> c\n> \n";
        assert_eq!(diff_hunks(diff), ["< a\n---\n> b", "> c\n> "]);
        assert_eq!(diff_hunks(""), [""; 0]);
    }

    #[test]
    fn descriptions_are_left_out_and_structure_is_not() {
        let output_text = "$ kubectl explain taint\nKIND:       Node\n\nFIELD: effect <string>\nENUM:\n    NoExecute\n\nDESCRIPTION:\n    A mark.\n    \n    More.\n    \nFIELDS:\n  effect\t<string> -required-\n  enum: NoExecute, NoSchedule\n    Text.\n\n  key\t<string>\n    <no description>\n\n\n= 0\n$ kubectl get x\nFIELDS:\n  a\n= 0\n";
        let want = "$ kubectl explain taint\nKIND:       Node\n\nFIELD: effect <string>\nENUM:\n    NoExecute\n\nDESCRIPTION:\nFIELDS:\n  effect\t<string> -required-\n  enum: NoExecute, NoSchedule\n  key\t<string>\n= 0\n$ kubectl get x\nFIELDS:\n  a\n= 0\n";
        assert_eq!(without_descriptions(output_text), want);
    }

    #[test]
    fn unordered_output_is_sorted() {
        assert_eq!(sort_unordered_output("b\n* d\n* c\na\n* f\n"), "b\n* c\n* d\na\n* f\n");
        let check = |output_text: &str, want: &str| {
            assert_eq!(sort_unordered_output(output_text), format!("{want}\n"))
        };
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
    fn every_known_difference_has_a_reason() {
        let read = |text: &str| {
            parse_known_differences(text).ok().map(|all| all.into_iter().collect::<Vec<_>>())
        };
        let text = "# Why.\n< a\n---\n> b\n\n# Two\n# lines.\n> c\n";
        assert_eq!(read(text), Some(vec!["< a\n---\n> b".to_owned(), "> c".to_owned()]));
        assert_eq!(read(""), Some(vec![]));
        assert_eq!(read("< a\n"), None);
    }
}
