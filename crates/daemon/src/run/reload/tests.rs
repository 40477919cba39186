use std::os::unix::fs::symlink;

use expect_test::{Expect, expect};

use super::*;
use crate::flags::{ParsedCommandLine, Program, parse_flags};

fn options(flags: &[&str]) -> Options {
    match parse_flags(&Program::kube_scheduler(), flags.to_vec()).unwrap() {
        ParsedCommandLine::Run(options) => *options,
        ParsedCommandLine::Print(text) => panic!("{text}"),
    }
}

fn folder(name: &str) -> std::path::PathBuf {
    let folder =
        std::env::temp_dir().join(format!("loadmaster-reload-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn fields_that_cannot_change_are_named_and_the_others_apply() {
    let folder = folder("fields");
    let registry = loadmaster_plugins::in_tree_registry();
    let first = options(&[]).load_config(&registry).unwrap().config;
    let check = |text: &str, want: &Expect| {
        let file = folder.join("scheduler.yaml");
        let header =
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
        std::fs::write(&file, format!("{header}{text}")).unwrap();
        let flag = format!("--config={}", file.display());
        let prepared = Prepared::new(&options(&[&flag]), &registry, first.clone()).map(|it| {
            let profiles = &it.request.configuration.profiles;
            let names: Vec<&str> = profiles.iter().map(|it| &*it.scheduler_name).collect();
            let backoff = it.request.configuration.max_backoff;
            let qps = it.loaded.config.client_connection.qps;
            format!("{names:?} {backoff:?} qps {qps}, needs a restart: {:?}", it.needs_restart)
        });
        let text = match prepared {
            Ok(text) => text,
            Err(error) => error.replace(&folder.display().to_string(), "DIR"),
        };
        want.assert_eq(&text);
    };
    check("", &expect![[r#"["default-scheduler"] 10s qps 50, needs a restart: []"#]]);
    check(
        "podMaxBackoffSeconds: 20\nprofiles: [{schedulerName: a}, {schedulerName: b}]\n",
        &expect![[r#"["a", "b"] 20s qps 50, needs a restart: []"#]],
    );
    check(
        "clientConnection: {qps: 1, burst: 2}\nleaderElection: {leaseDuration: 20s}\nprofiles: [{schedulerName: a}]\n",
        &expect![[
            r#"["a"] 10s qps 50, needs a restart: ["clientConnection.burst", "clientConnection.qps", "leaderElection.leaseDuration"]"#
        ]],
    );
    check(
        "profiles: [{schedulerNam: a}]\n",
        &expect![[
            r#"DIR/scheduler.yaml:3:27: profiles[0].schedulerNam: unknown field `schedulerNam`, expected one of `schedulerName`, `percentageOfNodesToScore`, `plugins`, `pluginConfig`; did you mean "schedulerName"?"#
        ]],
    );
    check("profiles: [\n", &expect!["DIR/scheduler.yaml:3:11: profiles: unclosed bracket '['"]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_written_replaced_or_swapped_file_has_changed_and_a_touched_one_has_not() {
    let folder = folder("files");
    let (one, two, link, file) =
        (folder.join("1"), folder.join("2"), folder.join("..data"), folder.join("scheduler.yaml"));
    for (version, text) in [(&one, "a"), (&two, "b")] {
        std::fs::create_dir(version).unwrap();
        std::fs::write(version.join("scheduler.yaml"), text).unwrap();
    }
    // As kubelet writes the volume of a ConfigMap.
    symlink("1", &link).unwrap();
    symlink("..data/scheduler.yaml", &file).unwrap();
    let mut files = WatchedFiles::new(&options(&[&format!("--config={}", file.display())]));
    let mut check = |want: bool, what: &str| {
        let (next, has_changed) = std::mem::replace(&mut files, WatchedFiles(Vec::new())).check();
        files = next;
        assert_eq!(has_changed, want, "{what}");
    };
    check(false, "nothing");
    let swap = |to: &str| {
        symlink(to, folder.join("..tmp")).unwrap();
        std::fs::rename(folder.join("..tmp"), &link).unwrap();
    };
    swap("2");
    check(true, "swapped");
    check(false, "nothing since");
    std::fs::write(two.join("scheduler.yaml"), "b").unwrap();
    check(false, "the same content");
    std::fs::write(two.join("scheduler.yaml"), "c").unwrap();
    check(true, "written");
    std::fs::remove_file(&link).unwrap();
    check(true, "removed");
    swap("1");
    check(true, "there again");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_status_shows_the_last_success_and_the_last_error() {
    let mut status = ReloadStatus::default();
    expect![[r#"
        Last successful reload: never
    "#]]
    .assert_eq(&status.lines());
    status.last_success = Some(Timestamp::from_second(1_700_000_000).unwrap());
    status.needs_restart = vec!["leaderElection.leaseDuration".to_owned()];
    let error = "f:1:2: one\nf:3:4: two".to_owned();
    status.last_error = Some((Timestamp::from_second(1_700_000_100).unwrap(), error));
    expect![[r#"
        Last successful reload: 2023-11-14T22:13:20Z
        Needs a restart: leaderElection.leaseDuration
        Last failed reload: 2023-11-14T22:15:00Z: f:1:2: one; f:3:4: two
    "#]]
    .assert_eq(&status.lines());
}

#[test]
fn keys_and_passwords_are_neither_shown_nor_recorded() {
    let folder = folder("secrets");
    let file = folder.join("scheduler.yaml");
    let text = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
                extenders: [{urlPrefix: 'https://me:hidden@e', filterVerb: f, tlsConfig: {certData: Y2VydA==, keyData: aGlkZGVu}}]\n";
    std::fs::write(&file, text).unwrap();
    let config_flag = format!("--config={}", file.display());
    let options = options(&[&config_flag, "--master=https://me:hidden@api"]);
    let loaded = options.load_config(&loadmaster_plugins::in_tree_registry()).unwrap();
    let configuration =
        crate::run::build_configuration(&loaded.config, &loaded.profiles, &loaded.gates).unwrap();
    let engine_options = crate::run::engine_options(&loaded, &options.loadmaster);
    let header = crate::run::recording::header(&loaded, &engine_options, &[]).unwrap();
    let metrics = Arc::new(Metrics::new(&crate::metrics::MetricsSettings::default()).unwrap());
    let endpoints = crate::serve::EndpointsConfig::new(&options, &loaded, metrics);
    for shown in [
        configuration.yaml.clone(),
        header.configuration.clone(),
        (endpoints.configz)(),
        ReloadStatus::new(&loaded.config).configz,
    ] {
        assert!(shown.contains("https://me:***@e") && shown.contains("Y2VydA=="), "{shown}");
        assert!(!shown.contains("hidden") && !shown.contains("aGlkZGVu"), "{shown}");
    }
    let flags = options.all_flag_values();
    let master = flags.iter().find(|(name, _)| name == "master");
    assert_eq!(master.map(|(_, value)| &**value), Some("https://me:***@api"));
    std::fs::remove_dir_all(folder).unwrap();
}
