//! `loadmaster up`.

use expect_test::{Expect, expect};

use crate::process::Folder;

const MANIFESTS: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, resources: {requests: {cpu: 100m}}}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: sum}
spec: {template: {spec: {containers: [{name: sum}]}}}
";

/// The run without what hangs on the machine's speed.
fn stable(text: &str) -> String {
    let lines = text.lines().map(|line| match line.split_once("a second") {
        _ if line.starts_with("  time") => "  time ..".to_owned(),
        Some((before, _)) => {
            format!("{} ..", before.rsplit_once("; ").map_or(before, |(before, _)| before))
        }
        None => line.to_owned(),
    });
    lines.map(|line| line + "\n").collect()
}

#[track_caller]
fn check(manifests: &str, args: &[&str], want: &Expect) {
    let folder = Folder::new().with("app.yaml", manifests);
    let mut all = vec!["up", "-f", "app.yaml"];
    all.extend(args);
    want.assert_eq(&stable(&folder.run(&all)));
}

#[test]
fn manifests_run() {
    check(
        MANIFESTS,
        &["--nodes", "3", "--check", "1"],
        &expect![[r#"
            loadmaster up: 3 nodes, 3 zones, seed 1
                0.0 s        0 running       4 starting       0 pending        0 succeeded         4 decisions
                1.0 s        1 running       3 starting       0 pending        0 succeeded         4 decisions
                2.0 s        4 running       0 starting       0 pending        0 succeeded         4 decisions
               10.2 s        3 running       0 starting       0 pending        1 succeeded         4 decisions

            settled after 10.2 s of cluster time: every pod has its node (3 on nodes)

              pods       3 running, 0 starting, 1 succeeded, 0 deleted
              decisions  4, 4 of them placements ..
              time ..
              checked    one decision in 1: no difference

              ZONE    NODES  PODS  CPU                    MEMORY
              zone-a      1     1  ░░░░░░░░░░░░░░░░  1 %  ░░░░░░░░░░░░░░░░  0 %
              zone-b      1     1  ░░░░░░░░░░░░░░░░  1 %  ░░░░░░░░░░░░░░░░  0 %
              zone-c      1     1  ░░░░░░░░░░░░░░░░  1 %  ░░░░░░░░░░░░░░░░  0 %

              FULLEST NODES  ZONE    PODS  CPU  MEMORY
              m8-000         zone-a     1  1 %     0 %
              m8-001         zone-b     1  1 %     0 %
              m16-002        zone-c     1  1 %     0 %
            exit 0
        "#]],
    );
}

#[test]
fn pods_that_stay_pending_are_a_finding() {
    let too_large = MANIFESTS.replace("cpu: 100m", "cpu: 500");
    let folder = Folder::new().with("app.yaml", &too_large);
    let text = folder.run(&["up", "-f", ".", "--nodes", "3"]);
    assert!(text.contains("0/3 nodes are available: 3 Insufficient cpu."), "{text}");
    assert!(text.ends_with("exit 1\n"), "{text}");
}

#[test]
fn the_sample_runs_and_every_decision_is_right() {
    let folder = Folder::new();
    let text = folder.run(&["up", "--nodes", "40", "--check", "50", "--seed", "3"]);
    assert!(text.contains("one decision in 50: no difference"), "{text}");
    assert!(text.ends_with("exit 1\n"), "{text}");
    let again = folder.run(&["up", "--nodes", "40", "--check", "50", "--seed", "3"]);
    // Lines before the summary come when somebody has waited long enough.
    let summary = |text: &str| stable(text.split_once("settled").unwrap().1);
    assert_eq!(summary(&again), summary(&text));
}

#[test]
fn bad_input_has_a_place() {
    check(
        "kind: Pod\n",
        &[],
        &expect![[r#"
            2> error: app.yaml:1:1: expected apiVersion and kind, found no apiVersion
            exit 2
        "#]],
    );
    check(
        "{apiVersion: v1, kind: Pot, metadata: {name: a}}\n",
        &[],
        &expect![[r#"
            2> error: app.yaml:1:24: kind: expected a kind of v1, found "Pot"
            exit 2
        "#]],
    );
    check(
        &MANIFESTS.replace("cpu: 100m", "cpu: 100 m"),
        &[],
        &expect![[r#"
            2> error: app.yaml:10:65: spec.template.spec.containers[0].resources.requests.cpu: invalid quantity "100 m": expected a number with an optional suffix such as m, Ki, M or e3
            exit 2
        "#]],
    );
    let dangling = "{apiVersion: v1, kind: Node, metadata: {name: a}}\n---\n\
                    {apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {nodeName: z}}\n";
    check(
        dangling,
        &[],
        &expect![[r#"
            2> error: app.yaml:3:67: spec.nodeName: expected one of the 1 nodes, found "z"
            exit 2
        "#]],
    );
    let alone = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  nodeName: z\n";
    check(
        alone,
        &[],
        &expect![[r#"
            2> error: app.yaml:5:13: spec.nodeName: no node is called "z"
            exit 2
        "#]],
    );
    let class =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  priorityClassName: high\n";
    check(
        class,
        &[],
        &expect![[r#"
            2> error: app.yaml:5:22: spec.priorityClassName: no PriorityClass with name high was found
            exit 2
        "#]],
    );
    let selector = MANIFESTS.replace(
        "spec: {containers: [{name: web",
        "spec: {affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone, \
         labelSelector: {matchExpressions: [{key: app, operator: Likes}]}}]}}, containers: [{name: web",
    );
    check(
        &selector,
        &[],
        &expect![[r#"
            2> error: app.yaml:10:121: spec.template.spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector: "Likes" is not a valid label selector operator
            exit 2
        "#]],
    );
    check(
        MANIFESTS,
        &["--nodes", "many"],
        &expect![[r#"
        2> error: invalid value 'many' for '--nodes <N>': invalid digit found in string
        2> 
        2> For more information, try '--help'.
        exit 2
    "#]],
    );
}

#[test]
fn standard_input_is_a_file_too() {
    let text = Folder::new().run_with_stdin(&["up", "-f", "-", "--nodes", "2"], MANIFESTS);
    assert!(text.contains("every pod has its node"), "{text}");
    assert!(text.ends_with("exit 0\n"), "{text}");
}
