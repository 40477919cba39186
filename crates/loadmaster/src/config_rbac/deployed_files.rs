//! The files in `deploy/` that this program writes: the roles of each configuration there, the definitions of custom resources, and the rules
//! from which the Helm chart makes the roles of a configuration. `UPDATE_EXPECT=1` writes them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use expect_test::expect_file;
use loadmaster_api::document::Document;
use loadmaster_config::{
    AllFeatureGates, CheckedConfiguration, ConfigurationDocuments, check_documents_with_overrides,
};
use loadmaster_framework::{PolicyRule, Registry};
use serde::Serialize;

use super::tests::printed_with;
use super::*;

/// A file or folder in `deploy/`.
fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path)
}

/// The plugins of the program `loadmaster`, without those of older versions.
fn registry() -> Registry {
    let registry = loadmaster_plugins::in_tree_registry();
    loadmaster_scheduler_plugins::with_scheduler_plugins(registry)
}

#[test]
fn the_overlays_have_the_roles_of_their_configuration() {
    let mut n_checked = 0;
    for entry in std::fs::read_dir(deploy("kustomize/overlays")).unwrap() {
        let folder = entry.unwrap().path();
        let configuration = folder.join("scheduler.yaml");
        if !configuration.exists() {
            continue;
        }
        let file = configuration.display().to_string();
        let args = [file.as_str(), "--service-account", "kube-system/loadmaster"];
        expect_file![folder.join("rbac.yaml")].assert_eq(&printed_with(&registry(), &args));
        n_checked += 1;
    }
    assert!(n_checked >= 5, "{n_checked}");
}

#[test]
fn the_controllers_have_their_roles() {
    let name = "loadmaster-controllers";
    let args =
        ["--controllers", "--name", name, "--service-account", &format!("kube-system/{name}")];
    let file = deploy("kustomize/overlays/with-controllers/controllers-rbac.yaml");
    expect_file![file].assert_eq(&printed_with(&registry(), &args));
}

#[test]
fn the_definitions_of_custom_resources() {
    let mut out = Vec::new();
    crate::crds::run(&crate::crds::Args {}, &mut out).unwrap();
    let printed = String::from_utf8(out).unwrap();
    for file in ["kustomize/overlays/with-controllers/crds.yaml", "helm/loadmaster/crds/crds.yaml"]
    {
        expect_file![deploy(file)].assert_eq(&printed);
    }
}

/// What the Helm chart knows of the permissions.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ChartRules {
    /// The ClusterRole without what depends on plugins.
    scheduler: Vec<PolicyRule>,
    /// The plugins that are enabled by default.
    default: Vec<String>,
    /// What each plugin needs besides.
    plugins: BTreeMap<String, Vec<PolicyRule>>,
    controllers: Vec<PolicyRule>,
    controllers_lease: Vec<PolicyRule>,
    /// Plugins of scheduler-plugins that a configuration must not enable.
    not_implemented: Vec<String>,
}

/// Checks a configuration with these fields.
fn checked(fields: &str, registry: &Registry) -> Result<CheckedConfiguration, String> {
    let head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
    let document = Document::new("scheduler.yaml", format!("{head}{fields}"));
    let documents = ConfigurationDocuments { configuration: Some(&document), policy: None };
    check_documents_with_overrides(documents, registry, &AllFeatureGates::default(), |_| ())
        .map_err(|errors| errors.iter().map(|error| format!("{error}\n")).collect())
}

fn profiles(checked: &CheckedConfiguration) -> Vec<Profile> {
    world_loader::build_profiles(checked, &AllFeatureGates::default().framework_gates())
}

/// The rules of one plugin of a profile.
fn rules_of_plugin(profile: &Profile, name: &str) -> Vec<PolicyRule> {
    let plugin = profile.plugins.iter().find(|plugin| plugin.name == name).unwrap();
    let mut permissions = Permissions::default();
    permissions
        .add_watches(plugin.watched_kinds.iter().map(|kind| (&*kind.group, &*kind.resource)));
    plugin.policy_rules.iter().for_each(|rule| permissions.add(rule.clone()));
    if profile.post_filter.iter().any(|it| it.name == name) && preempts(name) {
        permissions.add(PolicyRule::new(&[""], &["pods"], &["delete"]));
    }
    permissions.cluster
}

/// A profile with this plugin, and without those that cannot be enabled beside it.
fn profile_with(name: &str, registry: &Registry) -> Profile {
    let enabled = format!("enabled: [{{name: {name}}}]");
    let attempts = [
        format!("{{plugins: {{multiPoint: {{{enabled}}}}}}}"),
        format!("{{plugins: {{multiPoint: {{{enabled}, disabled: [{{name: PrioritySort}}]}}}}}}"),
    ];
    let mut errors = String::new();
    for attempt in attempts {
        match checked(&format!("profiles: [{attempt}]\n"), registry) {
            Ok(checked) => return profiles(&checked).remove(0),
            Err(error) => errors += &error,
        }
    }
    panic!("{name}: {errors}")
}

#[test]
fn the_rules_of_the_chart() {
    const NOT_IMPLEMENTED: [&str; 9] = [
        "LoadVariationRiskBalancing",
        "LowRiskOverCommitment",
        "NetworkOverhead",
        "NodeMetadata",
        "NodeResourceTopologyMatch",
        "Peaks",
        "SySched",
        "TargetLoadPacking",
        "TopologicalSort",
    ];
    let registry = registry();
    let defaults = checked("", &registry).unwrap();
    let default_profile = profiles(&defaults).remove(0);
    let default: Vec<String> =
        default_profile.plugins.iter().map(|plugin| plugin.name.to_owned()).collect();
    let mut scheduler = Permissions::default();
    scheduler.add_watches(
        Kind::SCHEDULING.iter().map(|kind| (kind.resource().group, kind.resource().resource)),
    );
    add_scheduler_rules(&mut scheduler, &defaults, &[]);
    let mut plugins = BTreeMap::new();
    for plugin in registry.iter() {
        let rules = if default.iter().any(|name| name == plugin.name) {
            rules_of_plugin(&default_profile, plugin.name)
        } else {
            rules_of_plugin(&profile_with(plugin.name, &registry), plugin.name)
        };
        if !rules.is_empty() {
            plugins.insert(plugin.name.to_owned(), rules);
        }
    }
    let mut controllers = permissions_of_controllers();
    let lease = controllers.namespaced.remove(controllers::LEASE_NAMESPACE).unwrap();
    let is_missing = |name: &&str| registry.get(name).is_none();
    let rules = ChartRules {
        scheduler: scheduler.cluster,
        default,
        plugins,
        controllers: controllers.cluster,
        controllers_lease: lease,
        not_implemented: NOT_IMPLEMENTED
            .into_iter()
            .filter(is_missing)
            .map(str::to_owned)
            .collect(),
    };
    let text = serde_saphyr::to_string(&rules).unwrap();
    let head = "# Written by a test of the crate loadmaster: the permissions of the scheduler, of each plugin, and of the controllers.";
    expect_file![deploy("helm/loadmaster/files/rules.yaml")]
        .assert_eq(&format!("{head}\n{}\n", text.trim_end()));
}
