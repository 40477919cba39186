//! `loadmaster explain` as a plugin of kubectl.

use expect_test::expect;
use serde_json::json;

use crate::process::Folder;

#[test]
fn a_plugin_of_kubectl() {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"},
        "status": {"allocatable": {"cpu": "4", "pods": "110"}}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "db-0", "namespace": "shop"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "5"}}}]}});
    let cluster = json!({"apiVersion": "v1", "kind": "List", "items": [node, pod]}).to_string();
    let folder = Folder::new().with("cluster.json", &cluster).with_kubectl_plugin();
    let run = |args: &[&str]| folder.run(args);
    expect![[r#"
        shop/db-0 fits none of 1 node
          0/1 nodes are available: 1 Insufficient cpu.
          profile default-scheduler
          NodeResourcesFit: needs=5 cpu, too much for 1 of 1 nodes; a is nearest, with 4
            of 4 free

          NODES  REJECTED BY       PREEMPTION   REASON
              1  NodeResourcesFit  cannot help  Insufficient cpu
                 a: needs=5 cpu, 4 of 4 free

          preemption: 0/1 nodes are available: 1 Preemption is not helpful for
          scheduling.

          would fit after one of these changes:
          - lower its request of cpu from 5 to 4 (fits on a)
        exit 1
    "#]]
    .assert_eq(&run(&["-n", "shop", "explain", "pod/db-0", "--from", "cluster.json"]));
    let help = run(&["explain", "--help"]);
    let of = |word: &str| {
        help.lines().filter(|it| it.contains(word)).take(2).collect::<Vec<_>>().join("\n")
    };
    expect![[r#"
        Usage: kubectl loadmaster explain [OPTIONS] [[NAMESPACE/]POD | KIND/NAME]...
          kubectl loadmaster explain shop/web-7d9c5"#]]
    .assert_eq(&of("kubectl loadmaster explain"));
    expect!["2> error: unrecognized subcommand 'nonsense'"]
        .assert_eq(run(&["nonsense"]).lines().next().unwrap_or_default());
    expect![[r#"
        2> error: finding a cluster: failed to read kubeconfig none: No such file or directory (os error 2)
        exit 2
    "#]].assert_eq(&run(&["--context", "nowhere", "explain", "web", "--kubeconfig", "none"]));
}
