//! The process of a container: its program and arguments, environment, user, root file system and mounts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::sandbox::API_SERVICE;
use crate::image::Unpacked;

/// Devices of every container.
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// What a volume is: a folder of this machine, and whether only reading is possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub folder: PathBuf,
    pub is_read_only: bool,
}

/// What is known when a container is started.
pub struct Context<'a> {
    pub pod: &'a Value,
    pub container: &'a Value,
    pub image: &'a Unpacked,
    /// By name.
    pub volumes: &'a BTreeMap<String, Volume>,
    pub host_name: &'a str,
    pub pod_address: &'a str,
    pub host_address: &'a str,
    /// For the root file system and other files of this container.
    pub folder: &'a Path,
    /// The process that keeps the namespaces of the pod.
    pub sandbox: u32,
}

impl Context<'_> {
    /// A field of the container's security context, or else of the pod's.
    fn security(&self, field: &str) -> &Value {
        let of_container = &self.container["securityContext"][field];
        match of_container {
            Value::Null => &self.pod["spec"]["securityContext"][field],
            given => given,
        }
    }

    /// The numbers of the user and the group.
    pub fn user(&self) -> Result<(u32, u32)> {
        let (user, group) = self.image.user()?;
        let number = |field: &str, other: u32| match self.security(field).as_u64() {
            None => Ok(other),
            Some(number) => u32::try_from(number).with_context(|| format!("{field} is too large")),
        };
        let user = number("runAsUser", user)?;
        ensure!(
            self.security("runAsNonRoot") != true || user != 0,
            "container has runAsNonRoot and image will run as root"
        );
        Ok((user, number("runAsGroup", group)?))
    }

    /// The environment: of the image, of the Service `kubernetes`, and of the manifest, later ones first.
    pub fn environment(&self) -> Result<BTreeMap<String, String>> {
        let mut all: BTreeMap<String, String> = BTreeMap::new();
        let mut set = |name: &str, value: String| all.insert(name.to_owned(), value);
        for (name, value) in self.image.environment() {
            set(name, value.to_owned());
        }
        set("HOSTNAME", self.host_name.to_owned());
        set("KUBERNETES_SERVICE_HOST", API_SERVICE.0.to_string());
        for name in ["KUBERNETES_SERVICE_PORT", "KUBERNETES_SERVICE_PORT_HTTPS"] {
            set(name, API_SERVICE.1.to_string());
        }
        ensure!(self.container["envFrom"].is_null(), "envFrom is not implemented");
        for entry in self.container["env"].as_array().into_iter().flatten() {
            let name = entry["name"].as_str().context("a variable without a name")?;
            let value = match &entry["valueFrom"] {
                Value::Null => expanded(entry["value"].as_str().unwrap_or_default(), &all),
                source => self
                    .field(source["fieldRef"]["fieldPath"].as_str().unwrap_or_default())
                    .with_context(|| format!("the variable {name}"))?,
            };
            all.insert(name.to_owned(), value);
        }
        Ok(all)
    }

    /// A field of the pod, for `fieldRef`.
    fn field(&self, path: &str) -> Result<String> {
        Ok(match path {
            "status.podIP" => self.pod_address.to_owned(),
            "status.hostIP" => self.host_address.to_owned(),
            _ => field(self.pod, path)?,
        })
    }

    /// Program and arguments.
    pub fn words(&self, environment: &BTreeMap<String, String>) -> Result<Vec<String>> {
        let list = |field: &str| -> Option<Vec<String>> {
            let words = self.container[field].as_array()?.iter().filter_map(Value::as_str);
            Some(words.map(|word| expanded(word, environment)).collect())
        };
        let entry_point = || self.image.entry_point().into_iter().map(str::to_owned).collect();
        let arguments = list("args").unwrap_or_default();
        let words: Vec<String> =
            list("command").unwrap_or_else(entry_point).into_iter().chain(arguments).collect();
        ensure!(!words.is_empty(), "no command");
        Ok(words)
    }

    /// The command that makes the namespaces and runs the program in them. It writes the id of the program's process to `pid_file`.
    pub fn command(&self, pid_file: &Path) -> Result<Command> {
        let environment = self.environment()?;
        let words = self.words(&environment)?;
        let mut command = Command::new("/usr/bin/nsenter");
        command.args(["--net", "--uts", "--ipc", "--pid"].map(|flag| {
            let name = &flag[2..];
            format!("{flag}=/proc/{}/ns/{name}", self.sandbox)
        }));
        command.args(["--", "/usr/bin/unshare", "--mount", "--propagation", "private", "--pid"]);
        command.args(["--", "/bin/sh", "-uc"]);
        command.arg(self.script(pid_file)?).arg("sh").args(words);
        command.env_clear().envs(environment);
        Ok(command)
    }

    /// A shell's script that mounts everything, and whose subshell, the first process of the container, becomes the program. The shell waits, and
    /// exits with its code, or with 128 and the signal that killed it: `unshare --fork` of util-linux 2.38 fails after a signal. All programs are
    /// called by their path, because the search path is that of the container.
    fn script(&self, pid_file: &Path) -> Result<String> {
        let folder = |name: &str| -> Result<PathBuf> {
            let path = self.folder.join(name);
            std::fs::create_dir_all(&path)
                .with_context(|| format!("creating {}", path.display()))?;
            Ok(path)
        };
        let (upper, work, root) = (folder("upper")?, folder("work")?, folder("root")?);
        let mut script = "(set -e\n".to_owned();
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            self.image.folder.display(),
            upper.display(),
            work.display()
        );
        writeln!(
            script,
            "/bin/mount -t overlay overlay -o {} {}",
            quoted(&options),
            quoted_path(&root)
        )?;
        let inside = |path: &str| root.join(path.trim_start_matches('/'));
        writeln!(script, "/bin/mkdir -p {0}/proc {0}/dev", quoted_path(&root))?;
        writeln!(script, "/bin/mount -t proc proc {}", quoted_path(&inside("proc")))?;
        writeln!(script, "/bin/mount -t tmpfs -o mode=755 tmpfs {}", quoted_path(&inside("dev")))?;
        for device in DEVICES {
            let place = quoted_path(&inside(&format!("dev/{device}")));
            writeln!(script, "/bin/touch {place}; /bin/mount --bind /dev/{device} {place}")?;
        }
        for mount in self.container["volumeMounts"].as_array().into_iter().flatten() {
            self.add_mount(&mut script, mount, &root)?;
        }
        if self.container["securityContext"]["readOnlyRootFilesystem"] == true {
            writeln!(script, "/bin/mount -o remount,ro {}", quoted_path(&root))?;
        }
        let file = quoted_path(pid_file);
        writeln!(script, "read -r pid rest </proc/self/stat")?;
        writeln!(script, "echo \"$pid\" >{file}.new; /bin/mv {file}.new {file}")?;
        let (user, group) = self.user()?;
        let directory = self.container["workingDir"].as_str();
        let directory = directory.unwrap_or_else(|| self.image.working_directory());
        write!(script, "exec {}", self.privileges()?)?;
        write!(
            script,
            "/usr/bin/unshare --root={} --wd={}",
            quoted_path(&root),
            quoted(directory)
        )?;
        writeln!(script, " --setgid={group} --setuid={user} -- \"$@\"\n)\nexit $?")?;
        Ok(script)
    }

    fn add_mount(&self, script: &mut String, mount: &Value, root: &Path) -> Result<()> {
        let name = mount["name"].as_str().context("a mount without a name")?;
        let volume = self.volumes.get(name).with_context(|| format!("no volume {name}"))?;
        let path = mount["mountPath"].as_str().context("a mount without a path")?;
        let sub_path = mount["subPath"].as_str().unwrap_or_default();
        ensure!(mount["subPathExpr"].is_null(), "subPathExpr is not implemented");
        let from = volume.folder.join(sub_path);
        let place = root.join(path.trim_start_matches('/'));
        let parent = quoted_path(place.parent().unwrap_or(root));
        let place = quoted_path(&place);
        if from.is_dir() {
            writeln!(script, "/bin/mkdir -p {place}")?;
        } else {
            writeln!(script, "/bin/mkdir -p {parent}; /bin/touch {place}")?;
        }
        writeln!(script, "/bin/mount --bind {} {place}", quoted_path(&from))?;
        if volume.is_read_only || mount["readOnly"] == true {
            writeln!(script, "/bin/mount -o remount,bind,ro {place}")?;
        }
        Ok(())
    }

    /// `setpriv` with what the security context takes away. Three capabilities are needed until the user changes; only root keeps them.
    fn privileges(&self) -> Result<String> {
        let context = &self.container["securityContext"];
        let mut flags = String::new();
        if context["allowPrivilegeEscalation"] == false {
            flags.push_str(" --no-new-privs");
        }
        let dropped = context["capabilities"]["drop"].as_array();
        if let Some(dropped) = dropped {
            ensure!(dropped == &["ALL"], "only the drop of ALL capabilities is implemented");
            flags.push_str(" --inh-caps=-all --bounding-set=-all,+sys_chroot,+setuid,+setgid");
        }
        ensure!(context["capabilities"]["add"].is_null(), "added capabilities are not implemented");
        Ok(if flags.is_empty() { flags } else { format!("/usr/bin/setpriv{flags} -- ") })
    }
}

/// A field of a pod's metadata or spec.
pub fn field(pod: &Value, path: &str) -> Result<String> {
    const KNOWN: [&str; 5] = [
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
    ];
    ensure!(KNOWN.contains(&path), "the field {path:?} is not implemented");
    let value = pod.pointer(&format!("/{}", path.replace('.', "/"))).and_then(Value::as_str);
    Ok(value.unwrap_or_default().to_owned())
}

/// `$(NAME)` is the variable if there is one, `$$(NAME)` is `$(NAME)`; everything else stays.
fn expanded(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        result.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            result.push('$');
            rest = after;
            continue;
        }
        let name = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
        match name {
            Some((name, after)) => {
                match variables.get(name) {
                    Some(value) => result.push_str(value),
                    None => {
                        let _ = write!(result, "$({name})");
                    }
                }
                rest = after;
            }
            None => result.push('$'),
        }
    }
    result + rest
}

/// A word for the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn quoted_path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn variables_are_expanded() {
        let variables = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        let check = |text: &str, want: &str| assert_eq!(expanded(text, &variables), want, "{text}");
        check("--a=$(A)", "--a=1");
        check("$(A)$(B)", "1$(B)");
        check("$$(A) $$ $", "$(A) $ $");
        check("$A $(A", "$A $(A");
        check("", "");
    }

    #[test]
    fn words_are_quoted() {
        assert_eq!(quoted("a'b $c"), r"'a'\''b $c'");
    }

    #[test]
    fn fields() {
        let pod = json!({"metadata": {"name": "a"}, "spec": {"nodeName": "n"}});
        let check = |path: &str, want: Option<&str>| {
            assert_eq!(field(&pod, path).ok().as_deref(), want, "{path}");
        };
        check("metadata.name", Some("a"));
        check("spec.nodeName", Some("n"));
        check("metadata.uid", Some(""));
        check("spec.containers", None);
    }
}
