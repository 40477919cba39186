//! `loadmaster config rbac`: prints the roles that a scheduler with a configuration needs, and their bindings.

#[cfg(test)]
mod deployed_files;
mod manifests;
#[cfg(test)]
mod recorded_manifests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::Write;

use loadmaster_client::Kind;
use loadmaster_config::CheckedConfiguration;
use loadmaster_config::v1::Extender;
use loadmaster_engine::{Profile, world_loader};
use loadmaster_framework::{PolicyRule, Registry};
use loadmaster_scheduler_plugins::pod_group::GROUP;

use crate::controllers;
use crate::exit::{CommandResult, Exit};
use crate::input::{ConfigurationFiles, GateArgs};
use manifests::{RoleNames, ServiceAccount};

/// Print the roles that a scheduler with this configuration needs.
///
/// A ClusterRole has the permissions of the scheduler itself, those to list and watch the kinds that the enabled plugins watch, and those that
/// the plugins require for themselves and their services; with --with-controllers also those of the controllers that `run --with-controllers`
/// runs. Roles have what is in one namespace: the Lease of leader election, and the ConfigMap for delegated authentication. With
/// --service-account, the account and the bindings of the roles to it are printed, too.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster config rbac scheduler.yaml --service-account kube-system/loadmaster | kubectl apply -f -
  loadmaster config rbac scheduler.yaml --name batch-scheduler --with-controllers
  loadmaster config rbac --controllers --name loadmaster-controllers")]
pub(crate) struct Args {
    /// KubeSchedulerConfiguration of any version, or Policy, in YAML or JSON; `-` reads standard input.
    #[arg(required_unless_present = "controllers")]
    file: Option<String>,
    /// The Policy, in place of the file or ConfigMap that the configuration names.
    #[arg(long, value_name = "FILE")]
    policy: Option<String>,
    /// Name of the roles and of their bindings.
    #[arg(long, value_name = "NAME", default_value = "loadmaster")]
    name: String,
    /// Also print this ServiceAccount, and bind the roles to it.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = ServiceAccount::parse)]
    service_account: Option<ServiceAccount>,
    /// Also print the permissions of the controllers that `run --with-controllers` runs.
    #[arg(long)]
    with_controllers: bool,
    /// Print the permissions of the program `loadmaster controllers`, which has no configuration, in place of the scheduler's.
    #[arg(long, conflicts_with_all = ["file", "policy", "with_controllers"])]
    controllers: bool,
    #[command(flatten)]
    gates: GateArgs,
}

pub(crate) fn run(args: &Args, registry: &Registry, out: &mut dyn Write) -> CommandResult<Exit> {
    let permissions = match &args.file {
        Some(file) => permissions_of_configuration(args, file, registry)?,
        None => permissions_of_controllers(),
    };
    let names = RoleNames { roles: &args.name, account: args.service_account.as_ref() };
    manifests::write(&permissions, &names, out)?;
    Ok(Exit::Done)
}

/// The rules of a ClusterRole, and of one Role per namespace.
#[derive(Default)]
struct Permissions {
    cluster: Vec<PolicyRule>,
    namespaced: BTreeMap<String, Vec<PolicyRule>>,
}

impl Permissions {
    /// Adds a rule of the ClusterRole, unless it is there.
    fn add(&mut self, rule: PolicyRule) {
        if !self.cluster.contains(&rule) {
            self.cluster.push(rule);
        }
    }

    fn add_in_namespace(&mut self, namespace: &str, rule: PolicyRule) {
        self.namespaced.entry(namespace.to_owned()).or_default().push(rule);
    }

    /// What leader election with a Lease needs. A request that creates an object cannot be restricted by name.
    fn add_lease(&mut self, namespace: &str, name: &str) {
        let lease = |verbs| PolicyRule::new(&["coordination.k8s.io"], &["leases"], verbs);
        self.add_in_namespace(namespace, lease(&["create"]));
        self.add_in_namespace(namespace, lease(&["get", "update"]).with_resource_names(&[name]));
    }

    fn add_config_map(&mut self, namespace: &str, name: &str) {
        let rule = PolicyRule::new(&[""], &["configmaps"], &["get"]).with_resource_names(&[name]);
        self.add_in_namespace(namespace, rule);
    }

    /// `list` and `watch` for resources, given as group and resource: a rule per group.
    fn add_watches<'a>(&mut self, watched: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let mut by_group: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (group, resource) in watched {
            let of_group = by_group.entry(group).or_default();
            if !of_group.contains(&resource) {
                of_group.push(resource);
            }
        }
        for (group, resources) in by_group {
            self.add(PolicyRule::new(&[group], &resources, &["list", "watch"]));
        }
    }
}

fn permissions_of_configuration(
    args: &Args,
    file: &str,
    registry: &Registry,
) -> CommandResult<Permissions> {
    let gates = args.gates.parse()?;
    let files = ConfigurationFiles::read(file, args.policy.as_deref())?;
    let checked = files.check(registry, &gates)?;
    let profiles = world_loader::build_profiles(&checked, &gates.framework_gates());
    let mut permissions = Permissions::default();
    let of_plugins = profiles.iter().flat_map(|profile| &profile.watches);
    let of_controllers = if args.with_controllers { &CONTROLLER_KINDS[..] } else { &[] };
    let watched = Kind::SCHEDULING
        .iter()
        .map(|kind| (kind.resource().group, kind.resource().resource))
        .chain(of_plugins.map(|watch| (&*watch.kind.group, &*watch.kind.resource)))
        .chain(of_controllers.iter().map(|resource| (GROUP, *resource)));
    permissions.add_watches(watched);
    add_scheduler_rules(&mut permissions, &checked, &profiles);
    for plugin in profiles.iter().flat_map(|profile| &profile.plugins) {
        plugin.policy_rules.iter().for_each(|rule| permissions.add(rule.clone()));
    }
    if args.with_controllers {
        permissions.add(controller_status_rule());
    }
    if let Some((namespace, name)) = files.policy_config_map()? {
        permissions.add_config_map(&namespace, &name);
    }
    Ok(permissions)
}

/// The ConfigMap with the CAs of clients, and its namespace.
const AUTHENTICATION: (&str, &str) = ("kube-system", "extension-apiserver-authentication");

/// What a scheduler needs besides the kinds that it watches.
fn add_scheduler_rules(
    permissions: &mut Permissions,
    checked: &CheckedConfiguration,
    profiles: &[Profile],
) {
    let config = &checked.config;
    // Whether an eviction or a bind whose response was lost has happened.
    let mut pod_verbs = vec!["get"];
    let mut post_filter = profiles.iter().flat_map(|profile| &profile.post_filter);
    if post_filter.any(|plugin| preempts(plugin.name)) {
        pod_verbs.push("delete");
    }
    permissions.add(PolicyRule::new(&[""], &["pods"], &pod_verbs));
    if !config.extenders.iter().any(binds_every_pod) {
        permissions.add(PolicyRule::new(&[""], &["pods/binding"], &["create"]));
    }
    permissions.add(PolicyRule::new(&[""], &["pods/status"], &["patch"]));
    // The core group is used by API servers without events.k8s.io/v1.
    permissions.add(PolicyRule::new(&["", "events.k8s.io"], &["events"], &["create", "patch"]));
    // Who may read the HTTPS endpoints.
    permissions.add(PolicyRule::new(&["authentication.k8s.io"], &["tokenreviews"], &["create"]));
    let reviews = ["subjectaccessreviews"];
    permissions.add(PolicyRule::new(&["authorization.k8s.io"], &reviews, &["create"]));
    let (namespace, name) = AUTHENTICATION;
    permissions.add_config_map(namespace, name);
    let election = &config.leader_election;
    if election.leader_elect {
        permissions.add_lease(&election.resource_namespace, &election.resource_name);
    }
}

/// Whether a PostFilter plugin may evict pods.
fn preempts(plugin: &str) -> bool {
    // It only rejects the pods of a group.
    plugin != loadmaster_scheduler_plugins::coscheduling::NAME
}

/// Whether Bind plugins are never called: an extender binds all pods, and its errors are not ignored.
fn binds_every_pod(extender: &Extender) -> bool {
    !extender.bind_verb.is_empty() && extender.managed_resources.is_empty() && !extender.ignorable
}

/// What the controllers of scheduler-plugins watch, besides pods.
const CONTROLLER_KINDS: [&str; 2] = ["elasticquotas", "podgroups"];

fn controller_status_rule() -> PolicyRule {
    PolicyRule::new(&[GROUP], &["elasticquotas/status", "podgroups/status"], &["patch"])
}

/// What `loadmaster controllers` needs, with leader election.
fn permissions_of_controllers() -> Permissions {
    let mut permissions = Permissions::default();
    let kinds = CONTROLLER_KINDS.iter().map(|resource| (GROUP, *resource));
    permissions.add_watches([("", "pods")].into_iter().chain(kinds));
    permissions.add(controller_status_rule());
    // Events about quotas, in core/v1.
    permissions.add(PolicyRule::new(&[""], &["events"], &["create"]));
    permissions.add_lease(controllers::LEASE_NAMESPACE, controllers::LEASE_NAME);
    permissions
}
