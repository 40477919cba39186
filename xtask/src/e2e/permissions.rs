//! `cargo xtask e2e permissions`: Loadmaster with every plugin runs with the roles that `config rbac` prints.
//!
//! No request may be denied according to the audit log, and each permission must be used. With `--leave-out`, each permission is left out
//! in turn: the API server must deny a request then.

mod cut_connections;
mod exercise;
mod roles;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use http::Method;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::api_client::ApiClient;
use super::audit::{self, AuditEntry};
use super::control_plane::{ControlPlane, ControlPlaneOptions};
use super::process::Process;
use super::scheduler::{Scheduler, SchedulerArgs, SchedulerKind, SchedulerSetup};
use super::{controller_manager, gangs, manifest, programs, special_pods};
use cut_connections::Proxy;
use exercise::Exercise;
use roles::{Permission, Roles};

/// Plugins that cannot be enabled beside the others, or not in v1; none of them needs a permission.
const OTHER_QUEUE_SORT: &[&str] = &["QOSSort", "PrioritySort"];
const NOT_IN_V1: &[&str] = &["AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits"];

/// The API servers: one that cannot stream a list, so that lists are requested, and one without events.k8s.io.
const API_SERVERS: [(&str, &str, IsCase); 2] = [
    ("without WatchList", "--feature-gates=WatchList=false", |it| !it.is_core_event()),
    (
        "without events.k8s.io/v1",
        "--runtime-config=events.k8s.io/v1=false",
        Permission::is_core_event,
    ),
];

type IsCase = fn(&Permission) -> bool;

/// Time until a case has failed. An Event whose connection is cut is written again after 10 s only, and so is the request that asks
/// which API for Events there is.
const CASE_TIMEOUT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(250);

/// Run Loadmaster with every plugin and the roles that `config rbac` prints, and check that no request is denied.
#[derive(Parser)]
pub struct Args {
    /// The loadmaster binary; by default that of the release profile.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<PathBuf>,
    /// Also leave out each permission in turn, and check that a request is denied.
    #[arg(long)]
    leave_out: bool,
}

/// Returns whether all cases passed.
pub async fn run(args: &Args) -> Result<bool> {
    let loadmaster = programs::loadmaster(args.loadmaster.as_deref())?;
    let mut good = true;
    for (name, flag, is_case) in API_SERVERS {
        let plane = ControlPlane::start(&ControlPlaneOptions {
            audit_policy: Some(audit::policy_for_accounts()),
            apiserver_flags: vec![flag.to_owned()],
            ..ControlPlaneOptions::default()
        })
        .await?;
        let cases = Cases::prepare(&plane, &loadmaster).await.context(name)?;
        good &= cases
            .run(args.leave_out, is_case)
            .await
            .with_context(|| format!("API server {name}"))?;
        drop(cases);
        if good {
            plane.finish();
        }
    }
    Ok(good)
}

struct Cases<'a> {
    plane: &'a ControlPlane,
    api: ApiClient,
    loadmaster: &'a Path,
    /// The profiles with every plugin.
    profiles: Value,
    /// A configuration file with them.
    config: PathBuf,
    /// It binds volumes to claims.
    _controllers: Process,
}

impl<'a> Cases<'a> {
    async fn prepare(plane: &'a ControlPlane, loadmaster: &'a Path) -> Result<Cases<'a>> {
        let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
        special_pods::wait_for_path(&api, "/api/v1/namespaces/kube-system").await?;
        gangs::objects::install_definitions(&api, loadmaster).await?;
        exercise::prepare(&api).await?;
        let flags = ["--controllers=persistentvolume-binder-controller"];
        let controllers =
            controller_manager::start(&plane.admin_kubeconfig(), plane.folder(), &flags)?;
        let profiles = json!([profile()]);
        let config = json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "profiles": profiles});
        let file = plane.folder().join("every-plugin.json");
        std::fs::write(&file, config.to_string()).context("writing the configuration")?;
        Ok(Cases { plane, api, loadmaster, profiles, config: file, _controllers: controllers })
    }

    /// Runs with all permissions, and with `leave_out` without each of those that are cases here.
    async fn run(&self, leave_out: bool, is_case: IsCase) -> Result<bool> {
        let (account, roles) = self.roles("scheduler")?;
        let permissions: Vec<Permission> =
            roles.permissions().into_iter().filter(is_case).collect();
        ensure!(!permissions.is_empty(), "config rbac prints no permissions");
        let missing = self.unused(&account, &roles, &permissions).await?;
        for permission in &missing {
            println!("not used: {permission}");
        }
        println!(
            "{} of {} permissions are used",
            permissions.len() - missing.len(),
            permissions.len()
        );
        let mut good = missing.is_empty();
        for (i, permission) in permissions.iter().enumerate().filter(|_| leave_out) {
            let (account, roles) = self.roles(&format!("without-{i}"))?;
            let is_denied = self.is_denied(&account, &roles.without(permission), permission).await;
            if is_denied.with_context(|| format!("without {permission}"))? {
                println!("denied as expected: {permission}");
            } else {
                println!("not missed: {permission}");
                good = false;
            }
        }
        Ok(good)
    }

    fn roles(&self, account: &str) -> Result<(String, Roles)> {
        Ok((account.to_owned(), Roles::printed(self.loadmaster, &self.config, account)?))
    }

    /// Runs with all permissions until all are used; returns those that are not. A denied request is an error.
    async fn unused(
        &self,
        account: &str,
        roles: &Roles,
        permissions: &[Permission],
    ) -> Result<Vec<Permission>> {
        let mut used = BTreeSet::new();
        let is_used = |entries: &[AuditEntry]| {
            let is_new = |at: &usize| entries.iter().any(|entry| permissions[*at].allows(entry));
            used.extend((0..permissions.len()).filter(is_new));
            if let Some(denied) = entries.iter().find(|entry| is_denied(entry)) {
                bail!("denied: {} {} in {:?}", denied.verb, denied.resource, denied.namespace);
            }
            Ok(used.len() == permissions.len())
        };
        self.exercise(account, roles, permissions, is_used).await?;
        Ok((0..permissions.len())
            .filter(|at| !used.contains(at))
            .map(|at| permissions[at].clone())
            .collect())
    }

    /// Whether a request is denied that needs the permission.
    async fn is_denied(&self, account: &str, roles: &Roles, left_out: &Permission) -> Result<bool> {
        let is_done = |entries: &[AuditEntry]| {
            Ok(entries.iter().any(|entry| is_denied(entry) && left_out.allows(entry)))
        };
        self.exercise(account, roles, std::slice::from_ref(left_out), is_done).await
    }

    /// Runs a scheduler with an account until `is_done` with the requests so far, or too long; returns whether it is done.
    async fn exercise(
        &self,
        account: &str,
        roles: &Roles,
        permissions: &[Permission],
        mut is_done: impl FnMut(&[AuditEntry]) -> Result<bool>,
    ) -> Result<bool> {
        let user = format!("system:serviceaccount:kube-system:{account}");
        roles.create(&self.api, &user).await?;
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler";
        self.api.request(Method::DELETE, lease, Vec::new()).await?;
        let logged = std::fs::metadata(self.plane.audit_log()).context("the audit log")?.len();
        let proxy = Proxy::start(self.plane.port()).await?;
        let mut scheduler = self.start_scheduler(account, &proxy).await?;
        let admin = self.plane.admin_token()?;
        let mut exercise = Exercise::start(&self.api, account).await?;
        let mut done = false;
        let started = Instant::now();
        while started.elapsed() < CASE_TIMEOUT {
            scheduler.process.check_running()?;
            let entries = audit::read_from(self.plane.audit_log(), logged)?;
            let own: Vec<AuditEntry> = entries.into_iter().filter(|it| it.user == user).collect();
            done = is_done(&own)?;
            if done {
                break;
            }
            // Only until a lost response was looked up: the other permissions need watches that stay open.
            let is_cutting = permissions.iter().any(|permission| {
                permission.needs_lost_responses() && !own.iter().any(|it| permission.allows(it))
            });
            exercise.proceed(&scheduler.url(), &admin, is_cutting.then_some(&proxy)).await?;
            tokio::time::sleep(PAUSE).await;
        }
        scheduler.process.terminate()?;
        scheduler.process.wait(special_pods::STEP_TIMEOUT).await?;
        exercise.finish().await?;
        Ok(done)
    }

    async fn start_scheduler(&self, account: &str, proxy: &Proxy) -> Result<Scheduler> {
        let token = manifest::account_token(&self.api, account).await?;
        let kubeconfig = self.plane.kubeconfig_for_url(account, &proxy.url(), &token)?;
        let setup = SchedulerSetup {
            leader_elect: true,
            extra_config: Map::from_iter([("profiles".to_owned(), self.profiles.clone())]),
            ..SchedulerSetup::new(account, self.plane.folder(), &kubeconfig)
        };
        let flags = ["--with-controllers".to_owned()];
        SchedulerArgs::only(self.loadmaster.to_owned()).start_with(
            SchedulerKind::Loadmaster,
            &setup,
            &flags,
        )
    }
}

fn is_denied(entry: &AuditEntry) -> bool {
    matches!(entry.code, 401 | 403)
}

/// A profile with every plugin.
fn profile() -> Value {
    let in_tree = loadmaster_plugins::in_tree_registry();
    let registry = loadmaster_scheduler_plugins::with_scheduler_plugins(in_tree.clone());
    let registry = loadmaster_legacy_plugins::with_legacy_plugins(registry);
    let names = registry.iter().map(|plugin| plugin.name);
    let names = names.filter(|name| in_tree.get(name).is_none());
    let names = names.filter(|name| !OTHER_QUEUE_SORT.contains(name) && !NOT_IN_V1.contains(name));
    let enabled: Vec<Value> = names.map(|name| json!({"name": name})).collect();
    let queue_sort = json!({"disabled": [{"name": "PrioritySort"}]});
    // The only arguments without a default.
    let shape = json!([{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]);
    let args = json!([{"name": "RequestedToCapacityRatio", "args": {"shape": shape}}]);
    json!({"schedulerName": "default-scheduler", "pluginConfig": args,
        "plugins": {"multiPoint": {"enabled": enabled}, "queueSort": queue_sort}})
}
