use clap::Parser as _;
use expect_test::{Expect, expect};
use loadmaster_framework::{ExtensionPoints, Gvr, PluginDef, PluginError, WatchRequirement};
use serde_json::Value;

use super::*;

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let groups = Gvr::new("example.com", "v1", "podgroups");
    points.watch::<Value>(groups, WatchRequirement::Optional);
    points.require_permissions(
        PolicyRule::new(&["example.com"], &["podgroups/status"], &["patch"])
            .with_resource_names(&["a"]),
    )
}

fn registry() -> Registry {
    let registry = loadmaster_plugins::in_tree_registry();
    loadmaster_legacy_plugins::with_legacy_plugins(registry).with(PluginDef {
        name: "PodGroup",
        build,
        args: None,
    })
}

#[derive(clap::Parser)]
#[command(no_binary_name = true)]
struct CommandLine {
    #[command(flatten)]
    args: Args,
}

/// What the command prints with these arguments.
pub(super) fn printed_with(registry: &Registry, args: &[&str]) -> String {
    let CommandLine { args } = CommandLine::try_parse_from(args).unwrap();
    let mut out = Vec::new();
    run(&args, registry, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn printed(args: &[&str]) -> String {
    printed_with(&registry(), args)
}

/// What it prints for a v1 configuration with these fields.
fn printed_for(fields: &str, args: &[&str]) -> String {
    let head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
    printed_for_file("scheduler.yaml", &format!("{head}{fields}"), args)
}

fn printed_for_file(name: &str, text: &str, args: &[&str]) -> String {
    let folder = temporary_folder(name);
    let file = folder.join(name);
    std::fs::write(&file, text).unwrap();
    let file = file.display().to_string();
    let printed = printed(&[&[file.as_str()], args].concat());
    std::fs::remove_dir_all(&folder).unwrap();
    printed
}

/// A folder of its own for each call.
pub(super) fn temporary_folder(name: &str) -> std::path::PathBuf {
    static N_MADE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let nth = N_MADE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let folder = format!("config-rbac-{}-{nth}-{name}", std::process::id());
    let folder = std::env::temp_dir().join(folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The rules of all roles, a line each: where, groups, resources, names, verbs.
fn rules(printed: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for document in printed.split("\n---\n") {
        let object: Value = serde_saphyr::from_str(document).unwrap();
        let place = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => format!("in {namespace}"),
            None => "cluster".to_owned(),
        };
        for rule in object["rules"].as_array().into_iter().flatten() {
            let list = |field: &str| {
                let items = rule[field].as_array().into_iter().flatten();
                let items: Vec<&str> = items.filter_map(Value::as_str).collect();
                items.join(",")
            };
            let names = list("resourceNames");
            let names = if names.is_empty() { names } else { format!(" {names}") };
            let (groups, resources, verbs) = (list("apiGroups"), list("resources"), list("verbs"));
            lines.push(format!("{place}: {groups}/{resources}{names}: {verbs}"));
        }
    }
    lines
}

/// The rules that a configuration adds (+) to those of the defaults without leader election, and does not need (-).
#[track_caller]
fn check(fields: &str, args: &[&str], want: &Expect) {
    check_printed(&printed_for(fields, args), want);
}

#[track_caller]
fn check_printed(printed: &str, want: &Expect) {
    let (before, after) = (rules(&printed_for(NO_ELECTION, &[])), rules(printed));
    let added =
        after.iter().filter(|rule| !before.contains(rule)).map(|rule| format!("+ {rule}\n"));
    let unneeded =
        before.iter().filter(|rule| !after.contains(rule)).map(|rule| format!("- {rule}\n"));
    want.assert_eq(&added.chain(unneeded).collect::<String>());
}

const NO_ELECTION: &str = "leaderElection: {leaderElect: false}\n";

#[test]
fn the_roles_of_the_default_configuration() {
    let all = rules(&printed_for("", &[])).join("\n") + "\n";
    expect![[r#"
        cluster: /pods,nodes,namespaces,services,replicationcontrollers,persistentvolumeclaims,persistentvolumes: list,watch
        cluster: apps/replicasets,statefulsets: list,watch
        cluster: policy/poddisruptionbudgets: list,watch
        cluster: storage.k8s.io/storageclasses,csinodes,volumeattachments,csistoragecapacities,csidrivers: list,watch
        cluster: /pods: get,delete
        cluster: /pods/binding: create
        cluster: /pods/status: patch
        cluster: ,events.k8s.io/events: create,patch
        cluster: authentication.k8s.io/tokenreviews: create
        cluster: authorization.k8s.io/subjectaccessreviews: create
        cluster: /persistentvolumes,persistentvolumeclaims: update
        in kube-system: /configmaps extension-apiserver-authentication: get
        in kube-system: coordination.k8s.io/leases: create
        in kube-system: coordination.k8s.io/leases kube-scheduler: get,update
    "#]].assert_eq(&all);
}

#[test]
fn rules_depend_on_the_configuration() {
    // A Lease of its own, in its namespace.
    check(
        "leaderElection: {resourceName: batch, resourceNamespace: team}\n",
        &[],
        &expect![[r#"
        + in team: coordination.k8s.io/leases: create
        + in team: coordination.k8s.io/leases batch: get,update
    "#]],
    );
    // Two profiles with the same plugin need its rules once.
    let profile = |name| {
        format!(
            "- schedulerName: {name}\n  plugins: {{multiPoint: {{enabled: [{{name: PodGroup}}]}}}}\n"
        )
    };
    let fields = format!("{NO_ELECTION}profiles:\n{}{}", profile("a"), profile("b"));
    check(
        &fields,
        &[],
        &expect![[r#"
        + cluster: example.com/podgroups: list,watch
        + cluster: example.com/podgroups/status a: patch
    "#]],
    );
    // No preemption, and no volumes.
    let disabled = "profiles: [{plugins: {multiPoint: {disabled: [{name: DefaultPreemption}, {name: VolumeBinding}]}}}]\n";
    check(
        &format!("{NO_ELECTION}{disabled}"),
        &[],
        &expect![[r#"
        + cluster: storage.k8s.io/storageclasses,csinodes,volumeattachments: list,watch
        + cluster: /pods: get
        - cluster: storage.k8s.io/storageclasses,csinodes,volumeattachments,csistoragecapacities,csidrivers: list,watch
        - cluster: /pods: get,delete
        - cluster: /persistentvolumes,persistentvolumeclaims: update
    "#]],
    );
    check(
        NO_ELECTION,
        &["--with-controllers"],
        &expect![[r#"
        + cluster: scheduling.x-k8s.io/elasticquotas,podgroups: list,watch
        + cluster: scheduling.x-k8s.io/elasticquotas/status,podgroups/status: patch
    "#]],
    );
}

#[test]
fn an_extender_that_binds_every_pod_replaces_the_permission_to_bind() {
    let check = |more: &str, want: &Expect| {
        let extender =
            format!("extenders: [{{urlPrefix: 'http://127.0.0.1:1', bindVerb: bind{more}}}]\n");
        check(&format!("{NO_ELECTION}{extender}"), &[], want);
    };
    check(
        "",
        &expect![[r#"
        - cluster: /pods/binding: create
    "#]],
    );
    check(", ignorable: true", &expect![""]);
    check(", managedResources: [{name: example.com/gpu}]", &expect![""]);
}

#[test]
fn a_policy_in_a_config_map_is_read() {
    let configuration = "\
apiVersion: kubescheduler.config.k8s.io/v1alpha1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
algorithmSource: {policy: {configMap: {namespace: team, name: policy}}}
";
    let folder = temporary_folder("policy");
    let policy = folder.join("policy.json");
    std::fs::write(&policy, r#"{"kind": "Policy", "apiVersion": "v1"}"#).unwrap();
    let policy = policy.display().to_string();
    let printed = printed_for_file("old.yaml", configuration, &["--policy", &policy]);
    std::fs::remove_dir_all(&folder).unwrap();
    check_printed(
        &printed,
        &expect![[r#"
        + in team: /configmaps policy: get
    "#]],
    );
}

#[test]
fn the_controllers_have_roles_of_their_own() {
    let printed = printed(&["--controllers", "--name", "groups"]);
    expect![[r#"
        cluster: /pods: list,watch
        cluster: scheduling.x-k8s.io/elasticquotas,podgroups: list,watch
        cluster: scheduling.x-k8s.io/elasticquotas/status,podgroups/status: patch
        cluster: /events: create
        in kube-system: coordination.k8s.io/leases: create
        in kube-system: coordination.k8s.io/leases sched-plugins-controllers: get,update
    "#]]
    .assert_eq(&(rules(&printed).join("\n") + "\n"));
}

#[test]
fn roles_are_bound_to_the_service_account() {
    let all = printed(&["--controllers", "--name", "groups", "--service-account", "team/robot"]);
    expect![[r##"
        # Written by `loadmaster config rbac`: the permissions that this configuration needs, and no others.
        apiVersion: v1
        kind: ServiceAccount
        metadata:
          name: robot
          namespace: team
        ---
        apiVersion: rbac.authorization.k8s.io/v1
        kind: ClusterRole
        metadata:
          name: groups
        rules:
        - apiGroups:
          - ""
          resources:
          - pods
          verbs:
          - list
          - watch
        - apiGroups:
          - scheduling.x-k8s.io
          resources:
          - elasticquotas
          - podgroups
          verbs:
          - list
          - watch
        - apiGroups:
          - scheduling.x-k8s.io
          resources:
          - elasticquotas/status
          - podgroups/status
          verbs:
          - patch
        - apiGroups:
          - ""
          resources:
          - events
          verbs:
          - create
        ---
        apiVersion: rbac.authorization.k8s.io/v1
        kind: ClusterRoleBinding
        metadata:
          name: groups
        roleRef:
          apiGroup: rbac.authorization.k8s.io
          kind: ClusterRole
          name: groups
        subjects:
        - kind: ServiceAccount
          namespace: team
          name: robot
        ---
        apiVersion: rbac.authorization.k8s.io/v1
        kind: Role
        metadata:
          name: groups
          namespace: kube-system
        rules:
        - apiGroups:
          - coordination.k8s.io
          resources:
          - leases
          verbs:
          - create
        - apiGroups:
          - coordination.k8s.io
          resources:
          - leases
          resourceNames:
          - sched-plugins-controllers
          verbs:
          - get
          - update
        ---
        apiVersion: rbac.authorization.k8s.io/v1
        kind: RoleBinding
        metadata:
          name: groups
          namespace: kube-system
        roleRef:
          apiGroup: rbac.authorization.k8s.io
          kind: Role
          name: groups
        subjects:
        - kind: ServiceAccount
          namespace: team
          name: robot
    "##]].assert_eq(&all);
}

#[test]
fn invalid_arguments() {
    #[track_caller]
    fn check(args: &[&str], want: &str) {
        let error = CommandLine::try_parse_from(args).err().unwrap().to_string();
        assert!(error.contains(want), "{error}");
    }
    check(&[], "<FILE>");
    check(&["a.yaml", "--controllers"], "cannot be used with");
    check(&["--controllers", "--with-controllers"], "cannot be used with");
    for account in ["robot", "/robot", "team/", "a/b/c", ""] {
        check(&["a.yaml", "--service-account", account], "expected NAMESPACE/NAME");
    }
}
