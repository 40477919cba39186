//! `loadmaster new plugin`. `cargo xtask new-plugin` builds and runs what it writes.

use std::path::Path;

use expect_test::expect;

use crate::process::Folder;

#[test]
fn a_repository_is_written() {
    let folder = Folder::new();
    let text = folder.run(&["new", "plugin", "pool-scheduler"]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let root = root.canonicalize().unwrap().display().to_string();
    expect![[r"
        pool-scheduler/ is a scheduler with the plugin PoolScheduler:
          Cargo.toml
          src/main.rs
          src/plugin.rs
          scheduler.yaml
          cluster.yaml
          deploy/scheduler.yaml
          Dockerfile
          .dockerignore
          .gitignore
          README.md
          Cargo.lock
        It depends on Loadmaster in ROOT. Next:
          cd pool-scheduler
          cargo test
          cargo run -- up --config scheduler.yaml -f cluster.yaml
        exit 0
    "]]
    .assert_eq(&text.replace(&root, "ROOT"));
    let manifest = folder.read("pool-scheduler/Cargo.toml");
    assert!(manifest.contains(&format!("path = \"{root}/crates/loadmaster\"")), "{manifest}");
    let plugin = folder.read("pool-scheduler/src/plugin.rs");
    assert!(plugin.contains("const NAME: &str = \"PoolScheduler\";"), "{plugin}");

    // The manifests and the sample cluster are valid, and this binary has no plugin of this name.
    let config = folder.run(&["config", "check", "pool-scheduler/scheduler.yaml"]);
    let want = "2> error: pool-scheduler/scheduler.yaml:12:19: profiles[0].plugins.multiPoint.enabled[0].name: plugin \"PoolScheduler\" does not exist\nexit 2\n";
    assert_eq!(config, want);
    for (file, kinds) in [
        ("pool-scheduler/deploy/scheduler.yaml", "ServiceAccount ClusterRole ConfigMap Deployment"),
        ("pool-scheduler/cluster.yaml", "Node Deployment"),
    ] {
        let up = folder.run(&["up", "-f", file, "--nodes=1", "--exit-when-settled"]);
        assert!(!up.contains("error:") && !up.ends_with("exit 2\n"), "{file}: {up}");
        for kind in kinds.split(' ') {
            assert!(folder.read(file).contains(&format!("kind: {kind}\n")), "{file}: {kind}");
        }
    }
}

#[test]
fn the_path_of_the_checkout_is_used() {
    let folder = Folder::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    std::os::unix::fs::symlink(root, folder.path("lm")).unwrap();
    let text = folder.run(&["new", "plugin", "one", "--loadmaster", "./lm/"]);
    assert!(text.contains("depends on Loadmaster in ../lm. Next:"), "{text}");
    assert!(folder.read("one/Cargo.toml").contains("path = \"../lm/crates/loadmaster\""));
    assert!(folder.read("one/Dockerfile").contains("[\"Cargo.toml\", \"../lm/\"]"));
    assert!(folder.read("one/README.md").contains("(../lm/README.md)"));
    let absolute = folder.path("lm").display().to_string();
    let text = folder.run(&["new", "plugin", "two", "--loadmaster", &absolute]);
    assert!(text.ends_with("exit 0\n"), "{text}");
    let real = root.canonicalize().unwrap().display().to_string();
    assert!(folder.read("two/Cargo.toml").contains(&format!("path = \"{real}/crates/")));
}

#[test]
fn invalid_names_and_existing_folders_are_refused() {
    let folder = Folder::new().with("file", "");
    std::fs::create_dir(folder.path("empty")).unwrap();
    let check = |args: &[&str], want: &str| {
        let text = folder.run(&[&["new", "plugin"], args].concat());
        assert!(text.starts_with(&format!("2> error: {want}")), "{args:?}: {text}");
        assert!(text.ends_with("exit 2\n"), "{args:?}: {text}");
    };
    check(&["Pool"], "invalid name \"Pool\": expected lowercase letters, digits and '-'");
    check(&["../pool"], "invalid name \"../pool\": expected lowercase letters");
    check(&["node-name"], "invalid name \"node-name\": there is a plugin NodeName already");
    check(&["empty"], "empty exists already; it was not changed");
    check(&["file"], "file exists already; it was not changed");
    check(
        &["pool", "--loadmaster", "nope"],
        "--loadmaster nope: expected a checkout of Loadmaster: reading nope/crates/loadmaster/Cargo.toml: No such file",
    );
    check(&[], "the following required arguments were not provided");
    let mut left: Vec<_> = std::fs::read_dir(folder.path("."))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["empty", "file"]);
    assert_eq!(std::fs::read_dir(folder.path("empty")).unwrap().count(), 0);
}
