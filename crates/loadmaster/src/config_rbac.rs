//! `loadmaster config rbac`: prints the ClusterRole that a scheduler with a configuration needs.

use std::collections::BTreeMap;
use std::io::Write;

use loadmaster_client::Kind;
use loadmaster_config::CheckedConfiguration;
use loadmaster_engine::Profile;
use loadmaster_framework::{PolicyRule, Registry};
use loadmaster_scheduler_plugins::pod_group::GROUP;
use loadmaster_sim::world_loader;
use loadmaster_stdx::ErrorChain;
use serde::Serialize;

use crate::exit::{CommandResult, Exit, Failure};
use crate::input::{self, GateArgs};

/// Print the ClusterRole that a scheduler with this configuration needs.
///
/// It has the permissions of the scheduler itself, those to list and watch the kinds that the enabled plugins watch, and those that the
/// plugins require for themselves and their services; with --with-controllers also those of the controllers that `run --with-controllers` runs.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster config rbac scheduler.yaml | kubectl apply -f -
  loadmaster config rbac scheduler.yaml --name batch-scheduler --with-controllers")]
pub(crate) struct Args {
    /// KubeSchedulerConfiguration file in YAML or JSON; `-` reads standard input.
    file: String,
    /// Name of the ClusterRole.
    #[arg(long, value_name = "NAME", default_value = "loadmaster")]
    name: String,
    /// Also print the permissions of the controllers that `run --with-controllers` runs.
    #[arg(long)]
    with_controllers: bool,
    #[command(flatten)]
    gates: GateArgs,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ClusterRole<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: BTreeMap<&'static str, &'a str>,
    rules: Vec<PolicyRule>,
}

const HEAD: &str = "\
# The permissions of a scheduler. Bind this ClusterRole to its user or service account, and, for client certificates on its HTTPS
# endpoints, the Role extension-apiserver-authentication-reader of the namespace kube-system.";

pub(crate) fn run(args: &Args, registry: &Registry, out: &mut dyn Write) -> CommandResult<Exit> {
    let gates = args.gates.parse()?;
    let checked = input::read_configuration(&args.file, registry, &gates)?;
    let profiles = world_loader::build_profiles(&checked, &gates.framework_gates());
    let mut rules = scheduler_rules(&checked);
    for rule in profiles.iter().flat_map(plugin_rules) {
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    if args.with_controllers {
        rules.extend(controller_rules());
    }
    let role = ClusterRole {
        api_version: "rbac.authorization.k8s.io/v1",
        kind: "ClusterRole",
        metadata: BTreeMap::from([("name", args.name.as_str())]),
        rules,
    };
    let text = serde_saphyr::to_string(&role)
        .map_err(|error| Failure::invalid_input(ErrorChain(&error)))?;
    writeln!(out, "{HEAD}\n{}", text.trim_end())?;
    Ok(Exit::Done)
}

/// What every scheduler needs.
fn scheduler_rules(checked: &CheckedConfiguration) -> Vec<PolicyRule> {
    let mut watched: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for kind in Kind::SCHEDULING {
        watched.entry(kind.resource().group).or_default().push(kind.resource().resource);
    }
    let mut rules: Vec<PolicyRule> = watched
        .iter()
        .map(|(group, resources)| PolicyRule::new(&[group], resources, &["list", "watch"]))
        .collect();
    rules.extend([
        // Whether an eviction or a bind whose response was lost has happened; preemption.
        PolicyRule::new(&[""], &["pods"], &["get", "delete"]),
        PolicyRule::new(&[""], &["pods/binding"], &["create"]),
        PolicyRule::new(&[""], &["pods/status"], &["patch"]),
        // The core group is used by API servers without events.k8s.io/v1.
        PolicyRule::new(&["", "events.k8s.io"], &["events"], &["create", "patch"]),
        // Who may read the HTTPS endpoints.
        PolicyRule::new(&["authentication.k8s.io"], &["tokenreviews"], &["create"]),
        PolicyRule::new(&["authorization.k8s.io"], &["subjectaccessreviews"], &["create"]),
    ]);
    let election = &checked.config.leader_election;
    if election.leader_elect {
        let lease = |verbs| PolicyRule::new(&["coordination.k8s.io"], &["leases"], verbs);
        let name = election.resource_name.as_str();
        rules.push(lease(&["create"]));
        rules.push(lease(&["get", "update"]).with_resource_names(&[name]));
    }
    rules
}

/// What the controllers of scheduler-plugins need besides.
fn controller_rules() -> [PolicyRule; 2] {
    let rule = |resources: [&str; 2], verbs: &[&str]| PolicyRule::new(&[GROUP], &resources, verbs);
    [
        rule(["elasticquotas", "podgroups"], &["list", "watch"]),
        rule(["elasticquotas/status", "podgroups/status"], &["patch"]),
    ]
}

/// What the plugins of a profile need.
fn plugin_rules(profile: &Profile) -> Vec<PolicyRule> {
    let watched = profile.watches.iter().map(|watch| {
        PolicyRule::new(&[&watch.kind.group], &[&watch.kind.resource], &["list", "watch"])
    });
    let required = profile.plugins.iter().flat_map(|plugin| plugin.policy_rules.iter().cloned());
    watched.chain(required).collect()
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn the_role_has_the_rules_of_the_scheduler_and_of_enabled_plugins() {
        let def = PluginDef { name: "PodGroup", build, args: None };
        let registry = loadmaster_plugins::in_tree_registry().with(def);
        let folder = std::env::temp_dir().join(format!("config-rbac-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let printed_with = |config: &str, with_controllers: bool| {
            let file = folder.join("scheduler.yaml");
            let head =
                "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
            std::fs::write(&file, format!("{head}{config}")).unwrap();
            let args = Args {
                file: file.display().to_string(),
                name: "batch".to_owned(),
                with_controllers,
                gates: GateArgs::default(),
            };
            let mut out = Vec::new();
            assert!(run(&args, &registry, &mut out).is_ok());
            String::from_utf8(out).unwrap()
        };
        let printed = |config: &str| printed_with(config, false);
        let plain = printed("leaderElection: {leaderElect: false}\n");
        expect_test::expect![[r##"
            # The permissions of a scheduler. Bind this ClusterRole to its user or service account, and, for client certificates on its HTTPS
            # endpoints, the Role extension-apiserver-authentication-reader of the namespace kube-system.
            apiVersion: rbac.authorization.k8s.io/v1
            kind: ClusterRole
            metadata:
              name: batch
            rules:
            - apiGroups:
              - ""
              resources:
              - pods
              - nodes
              - namespaces
              - services
              - replicationcontrollers
              verbs:
              - list
              - watch
            - apiGroups:
              - apps
              resources:
              - replicasets
              - statefulsets
              verbs:
              - list
              - watch
            - apiGroups:
              - policy
              resources:
              - poddisruptionbudgets
              verbs:
              - list
              - watch
            - apiGroups:
              - ""
              resources:
              - pods
              verbs:
              - get
              - delete
            - apiGroups:
              - ""
              resources:
              - pods/binding
              verbs:
              - create
            - apiGroups:
              - ""
              resources:
              - pods/status
              verbs:
              - patch
            - apiGroups:
              - ""
              - events.k8s.io
              resources:
              - events
              verbs:
              - create
              - patch
            - apiGroups:
              - authentication.k8s.io
              resources:
              - tokenreviews
              verbs:
              - create
            - apiGroups:
              - authorization.k8s.io
              resources:
              - subjectaccessreviews
              verbs:
              - create
            - apiGroups:
              - ""
              resources:
              - persistentvolumeclaims
              verbs:
              - list
              - watch
            - apiGroups:
              - ""
              resources:
              - persistentvolumes
              verbs:
              - list
              - watch
            - apiGroups:
              - storage.k8s.io
              resources:
              - storageclasses
              verbs:
              - list
              - watch
            - apiGroups:
              - storage.k8s.io
              resources:
              - csinodes
              verbs:
              - list
              - watch
            - apiGroups:
              - storage.k8s.io
              resources:
              - volumeattachments
              verbs:
              - list
              - watch
            - apiGroups:
              - storage.k8s.io
              resources:
              - csistoragecapacities
              verbs:
              - list
              - watch
            - apiGroups:
              - storage.k8s.io
              resources:
              - csidrivers
              verbs:
              - list
              - watch
            - apiGroups:
              - ""
              resources:
              - persistentvolumes
              - persistentvolumeclaims
              verbs:
              - update
        "##]].assert_eq(&plain);
        // Two profiles with the same plugin need its rules once; a lease needs its own.
        let profile = |name| {
            format!(
                "- schedulerName: {name}\n  plugins: {{multiPoint: {{enabled: [{{name: PodGroup}}]}}}}\n"
            )
        };
        let more = printed(&format!("profiles:\n{}{}", profile("a"), profile("b")));
        let rules = |text: &str| -> Vec<String> {
            text.split("\n- apiGroups:").map(|rule| rule.trim_end().to_owned()).collect()
        };
        let known = rules(&plain);
        let added = rules(&more).into_iter().filter(|rule| !known.contains(rule));
        let added: String = added.map(|rule| format!("\n- apiGroups:{rule}")).collect();
        expect_test::expect![[r#"

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
              - kube-scheduler
              verbs:
              - get
              - update
            - apiGroups:
              - example.com
              resources:
              - podgroups
              verbs:
              - list
              - watch
            - apiGroups:
              - example.com
              resources:
              - podgroups/status
              resourceNames:
              - a
              verbs:
              - patch
        "#]]
        .assert_eq(&format!("{added}\n"));
        let with_controllers = printed_with("leaderElection: {leaderElect: false}\n", true);
        let added = rules(&with_controllers).into_iter().filter(|rule| !known.contains(rule));
        let added: String = added.map(|rule| format!("\n- apiGroups:{rule}")).collect();
        expect_test::expect![[r#"

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
        "#]]
        .assert_eq(&format!("{added}\n"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
