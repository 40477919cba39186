//! The rendered manifests in `deploy/rendered`: the scheduler's arguments and configuration are valid, and its account has the permissions that
//! this configuration needs, and no others. `cargo xtask e2e manifests` writes them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use loadmaster_daemon::flags::Program;
use loadmaster_daemon::load_startup_config;
use loadmaster_framework::Registry;
use serde_json::Value;

use super::tests::{printed_with, temporary_folder};

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path)
}

fn registry() -> Registry {
    let registry = loadmaster_plugins::in_tree_registry();
    let registry = loadmaster_legacy_plugins::with_legacy_plugins(registry);
    loadmaster_scheduler_plugins::with_scheduler_plugins(registry)
}

fn objects(text: &str) -> Vec<Value> {
    let documents = text.split("\n---\n");
    documents.map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn find<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap()
}

fn texts(list: &Value) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items.map(|item| item.as_str().unwrap().to_owned()).collect()
}

/// The scheduler's container, and the pod that it is in.
fn scheduler(objects: &[Value]) -> (&Value, &Value) {
    let pods = objects.iter().filter_map(|object| match object["kind"].as_str() {
        Some("Deployment") => Some(&object["spec"]["template"]["spec"]),
        Some("Pod") => Some(&object["spec"]),
        _ => None,
    });
    pods.flat_map(|pod| {
        let containers = pod["containers"].as_array().into_iter().flatten();
        containers.map(move |container| (container, pod))
    })
    .find(|(container, _)| container["command"][0] == "/bin/kube-scheduler")
    .unwrap()
}

/// The flags after the name of the program.
fn flags(container: &Value) -> Vec<String> {
    let command = texts(&container["command"]).into_iter().skip(1);
    command.chain(texts(&container["args"])).collect()
}

/// The file that --config names in the container, as the key of a ConfigMap that is mounted there.
fn configuration<'a>(objects: &'a [Value], container: &Value, pod: &Value) -> &'a str {
    let flags = flags(container);
    let path = flags.iter().find_map(|flag| flag.strip_prefix("--config=")).unwrap();
    let (folder, key) = path.rsplit_once('/').unwrap();
    let named = |list: &'static str, field: &'static str, value: &str| {
        let mut items = if list == "volumeMounts" { &container[list] } else { &pod[list] }
            .as_array()
            .into_iter()
            .flatten();
        items.find(|item| item[field] == value).unwrap().clone()
    };
    let mount = named("volumeMounts", "mountPath", folder);
    let volume = named("volumes", "name", mount["name"].as_str().unwrap());
    let config_map = objects
        .iter()
        .find(|object| {
            object["kind"] == "ConfigMap"
                && object["metadata"]["name"] == volume["configMap"]["name"]
        })
        .unwrap();
    config_map["data"][key].as_str().unwrap()
}

/// A permission: where, group, resource, name and verb.
type Permission = [String; 5];

/// What roles allow.
fn permissions(objects: &[&Value]) -> BTreeSet<Permission> {
    let mut all = BTreeSet::new();
    for object in objects {
        let place = object["metadata"]["namespace"].as_str().unwrap_or_default();
        for rule in object["rules"].as_array().into_iter().flatten() {
            let mut names = texts(&rule["resourceNames"]);
            if names.is_empty() {
                names.push(String::new());
            }
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    for name in &names {
                        for verb in texts(&rule["verbs"]) {
                            let place = place.to_owned();
                            all.insert([
                                place,
                                group.clone(),
                                resource.clone(),
                                name.clone(),
                                verb,
                            ]);
                        }
                    }
                }
            }
        }
    }
    all
}

/// The roles that are bound to a ServiceAccount.
fn roles_of<'a>(objects: &'a [Value], account: &Value) -> Vec<&'a Value> {
    let bindings = objects.iter().filter(|object| {
        object["kind"].as_str().is_some_and(|kind| kind.ends_with("Binding"))
            && object["subjects"][0]["name"] == *account
    });
    bindings
        .map(|binding| {
            let role = objects.iter().find(|object| {
                object["kind"] == binding["roleRef"]["kind"]
                    && object["metadata"]["name"] == binding["roleRef"]["name"]
                    && object["metadata"]["namespace"] == binding["metadata"]["namespace"]
            });
            role.unwrap()
        })
        .collect()
}

#[track_caller]
fn check_flags(flags: Vec<String>, name: &str) {
    let flags: Vec<OsString> = flags.into_iter().map(OsString::from).collect();
    let plan = load_startup_config(&Program::kube_scheduler(), &flags, &registry());
    assert!(plan.is_ok(), "{name}: {flags:?}");
}

#[test]
fn rendered_schedulers_start_with_their_arguments_and_have_the_least_roles() {
    let folder = temporary_folder("rendered");
    let mut n_checked = 0;
    for entry in std::fs::read_dir(deploy("rendered")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.display().to_string();
        let objects = objects(&std::fs::read_to_string(&path).unwrap());
        let (container, pod) = scheduler(&objects);
        let file = folder.join("scheduler.yaml");
        std::fs::write(&file, configuration(&objects, container, pod)).unwrap();
        let file = file.display().to_string();
        let local = |flag: String| match flag.starts_with("--config=") {
            true => format!("--config={file}"),
            false => flag,
        };
        check_flags(flags(container).into_iter().map(local).collect(), &name);

        let printed = printed_with(&registry(), &[&file]);
        let printed: Vec<Value> = self::objects(&printed);
        let wanted = permissions(&printed.iter().collect::<Vec<_>>());
        let found = permissions(&roles_of(&objects, &pod["serviceAccountName"]));
        let missing: Vec<_> = wanted.difference(&found).collect();
        let needless: Vec<_> = found.difference(&wanted).collect();
        assert!(missing.is_empty() && needless.is_empty(), "{name}: {missing:?}, {needless:?}");
        n_checked += 1;
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(n_checked >= 14, "{n_checked}");
}

#[test]
fn rendered_controllers_have_the_least_roles() {
    let printed = objects(&printed_with(&registry(), &["--controllers"]));
    let wanted = permissions(&printed.iter().collect::<Vec<_>>());
    for name in ["kustomize-with-controllers", "helm-with-controllers"] {
        let text = std::fs::read_to_string(deploy(&format!("rendered/{name}.yaml"))).unwrap();
        let objects = objects(&text);
        let account = Value::from("loadmaster-controllers");
        assert_eq!(permissions(&roles_of(&objects, &account)), wanted, "{name}");
    }
}

#[test]
fn the_static_pod_has_valid_flags() {
    let text = std::fs::read_to_string(deploy("static-pod/kube-scheduler.yaml")).unwrap();
    let objects = objects(&text);
    assert_eq!(find(&objects, "Pod")["spec"]["hostNetwork"], true);
    check_flags(flags(scheduler(&objects).0), "the static pod");
}

#[test]
fn the_systemd_unit_has_valid_flags() {
    let text = std::fs::read_to_string(deploy("systemd/loadmaster.service")).unwrap();
    // A line that ends with a backslash continues.
    let text = text.replace("\\\n", " ");
    let command = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let mut words = command.split_whitespace().map(str::to_owned);
    assert_eq!(words.next().as_deref(), Some("/usr/local/bin/loadmaster"));
    assert_eq!(words.next().as_deref(), Some("run"));
    let folder = temporary_folder("unit");
    let file = folder.join("scheduler.yaml");
    let configuration =
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
    std::fs::write(&file, configuration).unwrap();
    let file = file.display().to_string();
    let local = |word: String| word.replace("/etc/loadmaster/scheduler.yaml", &file);
    check_flags(words.map(local).collect(), "the unit");
    std::fs::remove_dir_all(&folder).unwrap();
}
