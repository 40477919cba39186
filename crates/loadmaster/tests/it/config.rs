//! `loadmaster config check`.

use expect_test::expect;

use crate::process::Folder;

const HEAD: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

#[test]
fn defaults_are_printed() {
    let folder = Folder::new().with("scheduler.yaml", HEAD);
    let printed = folder.run(&["config", "check", "scheduler.yaml"]);
    assert!(printed.contains("schedulerName: default-scheduler"), "{printed}");
    assert!(printed.contains("percentageOfNodesToScore: 0"), "{printed}");
    assert!(printed.ends_with("exit 0\n"), "{printed}");
    let json = folder.run(&["config", "check", "scheduler.yaml", "-o", "json"]);
    assert!(json.starts_with(r#"{"kind":"KubeSchedulerConfiguration""#), "{json}");
    let again = Folder::new().run_with_stdin(&["config", "check", "-"], HEAD);
    assert_eq!(again, printed);
}

#[test]
fn errors_have_a_position() {
    let unknown = format!("{HEAD}profiles:\n- schedulerName: a\n  plugin: {{}}\n");
    let folder = Folder::new().with("scheduler.yaml", &unknown);
    expect![[r#"
        2> error: scheduler.yaml:5:11: profiles[0].plugin: unknown field `plugin`, expected one of `schedulerName`, `percentageOfNodesToScore`, `plugins`, `pluginConfig`; did you mean "plugins"?
        exit 2
    "#]].assert_eq(&folder.run(&["config", "check", "scheduler.yaml"]));

    let weight =
        format!("{HEAD}profiles:\n- plugins: {{score: {{enabled: [{{name: Nowhere}}]}}}}\n");
    let folder = Folder::new().with("scheduler.yaml", &weight);
    expect![[r#"
        2> error: scheduler.yaml:4:38: profiles[0].plugins.score.enabled[0].name: ScorePlugin "Nowhere" does not exist
        exit 2
    "#]].assert_eq(&folder.run(&["config", "check", "scheduler.yaml"]));

    expect![[r#"
        2> error: reading nowhere.yaml: No such file or directory (os error 2)
        exit 2
    "#]]
    .assert_eq(&folder.run(&["config", "check", "nowhere.yaml"]));
    expect![[r#"
        2> error: --feature-gates: unrecognized feature gate: Nonsense
        exit 2
    "#]]
    .assert_eq(&folder.run(&[
        "config",
        "check",
        "scheduler.yaml",
        "--feature-gates",
        "Nonsense=true",
    ]));
}
