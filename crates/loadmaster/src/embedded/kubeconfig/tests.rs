use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A folder for one test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NTH: AtomicU32 = AtomicU32::new(0);
        let nth = NTH.fetch_add(1, Ordering::Relaxed);
        let name = format!("loadmaster-kubeconfig-{}-{nth}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn with(text: &str) -> Folder {
        let folder = Folder::new();
        fs::write(folder.file(), text).unwrap();
        folder
    }

    fn file(&self) -> PathBuf {
        self.0.join("config")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.file()).unwrap()
    }

    fn config(&self) -> Value {
        Document::new("config", self.text()).decode_value().unwrap()
    }

    fn mode(&self) -> u32 {
        fs::metadata(self.file()).unwrap().permissions().mode() & 0o777
    }

    fn add(&self) -> CommandResult<KubeconfigEntries> {
        add(&self.file(), "loadmaster", &ours("A"), false)
    }

    /// The names of all files.
    fn names(&self) -> Vec<String> {
        let files = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            files.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn config(name: &str, server: &str, authority: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Config", "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": authority}}],
        "users": [{"name": name, "user": {"token": name}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}]})
}

fn ours(authority: &str) -> Value {
    config("loadmaster", "https://127.0.0.1:1234", authority)
}

const PROD: &str = "# of the company
apiVersion: v1
kind: Config
preferences: {colors: true}
current-context: prod
clusters:
- name: prod
  cluster: {server: 'https://prod.example.com', certificate-authority: ca.crt, extensions: [{name: x, extension: {on: 'yes', n: 1.5}}]}
users:
- name: admin
  user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: login, args: ['0123', 'null', '~', '1e3', 'a: b', ' ', '']}}
contexts:
- name: prod
  context: {cluster: prod, user: admin, namespace: shop}
unknown: [1, {a: [[]], b: null}]
";

fn names(config: &Value, list: &str) -> Vec<String> {
    let items = config[list].as_array().into_iter().flatten();
    items.map(|item| item["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn other_entries_are_kept_and_the_context_is_restored() {
    #[track_caller]
    fn check(before: &str, contexts: &[&str]) {
        let folder = Folder::with(before);
        let document = Document::new("config", before);
        let old = if document.is_empty() { json!({}) } else { document.decode_value().unwrap() };
        let entries = folder.add().unwrap();
        let new = folder.config();
        assert_eq!(names(&new, "contexts"), contexts);
        assert_eq!(new["current-context"], "loadmaster");
        assert_eq!((&new["apiVersion"], &new["kind"]), (&json!("v1"), &json!("Config")));
        for (field, value) in old.as_object().unwrap() {
            let is_list = LISTS.iter().any(|(list, _)| list == field);
            for (nth, item) in value.as_array().into_iter().flatten().enumerate() {
                let is_ours = is_list && item["name"] == "loadmaster";
                assert!(is_ours || new[field][nth] == *item, "{field}");
            }
            assert!(is_list || field == CURRENT || new[field] == *value, "{field}");
        }
        drop(entries);
        let end = folder.config();
        let left: Vec<&str> = contexts.iter().copied().filter(|it| *it != "loadmaster").collect();
        assert_eq!(names(&end, "contexts"), left);
        let current = &old["current-context"];
        let current = if left.iter().any(|it| current == *it) { current } else { &json!("") };
        assert_eq!(end["current-context"], *current);
        assert_eq!(folder.names(), ["config"], "no lock and no unfinished file");
    }
    check(PROD, &["prod", "loadmaster"]);
    check("", &["loadmaster"]);
    check("# nothing yet\n---\n", &["loadmaster"]);
    check("apiVersion: v1\nkind: Config\nclusters: null\n", &["loadmaster"]);
    check("clusters: []\nusers: []\n", &["loadmaster"]);
    // Entries left behind by a server that was killed.
    check(&ours("B").to_string(), &["loadmaster"]);
    check(
        &format!("{}\n", Document::new("", PROD).decode_value().unwrap()),
        &["prod", "loadmaster"],
    );
}

#[test]
fn json_stays_json() {
    let folder = Folder::with(&config("prod", "https://prod.example.com", "P").to_string());
    let _entries = folder.add().unwrap();
    assert!(folder.text().starts_with('{'));
}

#[test]
fn a_file_that_is_not_a_kubeconfig_is_rejected_and_not_changed() {
    #[track_caller]
    fn check(text: &str, want: &str) {
        let folder = Folder::with(text);
        for outcome in [super::check(&folder.file(), "loadmaster"), folder.add().map(drop)] {
            let Err(Failure::Input(lines)) = outcome else { panic!("{text:?} was accepted") };
            let line = lines.concat().replace(&folder.file().display().to_string(), "config");
            assert!(line.starts_with(&format!("config:{want}")), "{line}");
        }
        assert_eq!(folder.text(), text);
        assert_eq!(folder.names(), ["config"]);
    }
    check("open to all\n", "1:1: expected a kubeconfig");
    check("- a\n", "1:1: expected a kubeconfig");
    check("a: 1\n", "1:1: apiVersion: expected a kubeconfig, with apiVersion: v1");
    check("apiVersion: v1\nkind: Pod\n", "2:7: kind: expected a kubeconfig, with kind: Config");
    check("apiVersion: v2\nkind: Config\n", "1:13: apiVersion: ");
    check("kind: Config\napiVersion: v1\nclusters: {}\n", "3:11: clusters: expected a list");
    check("users:\n- user: {}\n", "2:3: users[0]: expected an item with name and user");
    check("contexts: []\ncurrent-context: 1\n", "2:18: current-context: expected a name");
    check("kind: Config\nclusters: [\n", "");
    check("kind: Config\nkind: Config\n", "2:");
    check("clusters: []\n---\nclusters: []\n", "3:1: expected the end");
    let theirs = config("loadmaster", "https://prod.example.com", "P").to_string();
    check(&theirs, "1:");
    check(
        "contexts:\n- {name: loadmaster, context: {cluster: prod}}\n",
        "2:3: contexts[0]: the name",
    );
}

#[test]
fn directories_broken_links_and_locked_files_are_rejected() {
    #[track_caller]
    fn check(folder: &Folder, want: &str) {
        let Err(Failure::Input(lines)) = folder.add().map(drop) else { panic!("{want}") };
        assert!(lines.concat().contains(want), "{lines:?}");
    }
    let folder = Folder::new();
    fs::create_dir(folder.file()).unwrap();
    check(&folder, "not a regular file");
    let folder = Folder::new();
    symlink("nowhere", folder.file()).unwrap();
    check(&folder, "the symbolic link leads to a file that does not exist");
    let folder = Folder::with(PROD);
    fs::write(folder.0.join("config.lock"), "").unwrap();
    check(&folder, "another program is changing the file; if there is none, remove ");
    assert_eq!(folder.text(), PROD);
}

#[test]
fn only_the_owner_can_read_the_file() {
    #[track_caller]
    fn check(before: Option<u32>, want: u32) {
        let folder = Folder::new();
        if let Some(mode) = before {
            fs::write(folder.file(), PROD).unwrap();
            fs::set_permissions(folder.file(), fs::Permissions::from_mode(mode)).unwrap();
        }
        let _entries = folder.add().unwrap();
        assert_eq!(folder.mode(), want, "{before:?}");
    }
    check(None, 0o600);
    check(Some(0o644), 0o600);
    check(Some(0o600), 0o600);
    check(Some(0o440), 0o400);
}

#[test]
fn an_unfinished_file_of_a_killed_process_is_replaced() {
    let folder = Folder::with(PROD);
    fs::write(folder.0.join(format!("config.{}.tmp", std::process::id())), "cut o").unwrap();
    let _entries = folder.add().unwrap();
    assert_eq!(folder.names(), ["config"]);
    assert!(folder.text().contains("127.0.0.1:1234"));
}

#[test]
fn symbolic_links_are_followed() {
    let folder = Folder::new();
    fs::create_dir(folder.0.join("real")).unwrap();
    fs::write(folder.0.join("real/kubeconfig"), PROD).unwrap();
    symlink("real/kubeconfig", folder.file()).unwrap();
    let entries = folder.add().unwrap();
    assert!(folder.file().is_symlink());
    let real = || fs::read_to_string(folder.0.join("real/kubeconfig")).unwrap();
    assert!(real().contains("127.0.0.1:1234"));
    drop(entries);
    assert!(folder.file().is_symlink() && !real().contains("127.0.0.1:1234"));
}

#[test]
fn a_created_file_is_removed_if_it_has_no_other_entries() {
    let folder = Folder::new();
    drop(folder.add().unwrap());
    assert_eq!(folder.names(), [""; 0]);
    let entries = folder.add().unwrap();
    let mut config = folder.config();
    config["contexts"].as_array_mut().unwrap().push(json!({"name": "prod", "context": {}}));
    fs::write(folder.file(), config.to_string()).unwrap();
    drop(entries);
    assert_eq!(names(&folder.config(), "contexts"), ["prod"]);
}

#[test]
fn concurrent_changes_are_kept() {
    let folder = Folder::with(PROD);
    let first = folder.add().unwrap();
    // Another server with the same file.
    let second = add(&folder.file(), "loadmaster", &ours("B"), false).unwrap();
    drop(first);
    assert_eq!(names(&folder.config(), "clusters"), ["prod", "loadmaster"]);
    let mut config = folder.config();
    config["current-context"] = json!("other");
    fs::write(folder.file(), config.to_string()).unwrap();
    drop(second);
    assert_eq!(folder.config()["current-context"], "other");
    assert_eq!(names(&folder.config(), "clusters"), ["prod"]);
}

#[test]
fn several_users_share_a_file() {
    let folder = Folder::with(PROD);
    let mut all = AllKubeconfigEntries::default();
    for name in ["bob@loadmaster", "loadmaster"] {
        let config = config(name, "https://127.0.0.1:1234", "A");
        all.push(add(&folder.file(), name, &config, false).unwrap());
    }
    let config = folder.config();
    assert_eq!(names(&config, "users"), ["admin", "bob@loadmaster", "loadmaster"]);
    assert_eq!(config["current-context"], "loadmaster");
    drop(all);
    let config = folder.config();
    assert_eq!(
        (names(&config, "users"), &config["current-context"]),
        (vec!["admin".into()], &json!("prod"))
    );
}

#[test]
fn entries_stay_with_a_data_folder() {
    let folder = Folder::new();
    drop(add(&folder.file(), "loadmaster", &ours("A"), true).unwrap());
    assert_eq!(names(&folder.config(), "contexts"), ["loadmaster"]);
}
