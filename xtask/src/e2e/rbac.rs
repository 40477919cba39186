//! `cargo xtask e2e rbac`: runs a scheduler as a service account with only the built-in roles of schedulers.
//!
//! It becomes leader, binds pods, reports an unschedulable pod, preempts, binds a volume with delayed binding, and authorizes readers of
//! its metrics. No request may be denied according to the audit log.

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use http::Method;
use serde_json::json;

use super::api_client::ApiClient;
use super::bound_pods::BoundPods;
use super::control_plane::{ControlPlane, ControlPlaneOptions};
use super::scheduler::{Scheduler, SchedulerArgs, SchedulerKind, SchedulerSetup};
use super::workload::Workload;
use super::{audit, load_objects, manifest, scheduler_role_bindings, special_pods};

const NAMESPACE: &str = "e2e";
/// The service account, in kube-system.
const ACCOUNT: &str = "e2e-scheduler";
/// The user name of the service account.
const USER: &str = "system:serviceaccount:kube-system:e2e-scheduler";

/// Run schedulers with only upstream's built-in roles, and check that no request is denied.
#[derive(Parser)]
pub struct Args {
    /// The kind of pods.
    #[arg(long, default_value = "mixed")]
    workload: Workload,
    /// Number of nodes.
    #[arg(long, default_value_t = 200)]
    nodes: u32,
    /// Number of pods.
    #[arg(long, default_value_t = 500)]
    pods: u32,
    /// Also test a volume with delayed binding, with upstream's volume controller.
    #[arg(long)]
    volume: bool,
    #[command(flatten)]
    chosen: SchedulerArgs,
}

/// Returns whether no request was denied.
pub async fn run(args: &Args) -> Result<bool> {
    args.workload.check_size(args.nodes, args.pods)?;
    let mut good = true;
    for kind in args.chosen.kinds()? {
        good &= run_one(args, kind).await.with_context(|| kind.name())?;
    }
    Ok(good)
}

async fn run_one(args: &Args, kind: SchedulerKind) -> Result<bool> {
    let audit_policy = Some(audit::policy_for_all_requests());
    let plane = ControlPlane::start(&ControlPlaneOptions {
        audit_policy,
        ..ControlPlaneOptions::default()
    })
    .await?;
    let worked = work(args, kind, &plane).await;
    // Also after a failure: denied requests may be the cause.
    let entries = audit::read(plane.audit_log())?;
    let n = entries.iter().filter(|entry| entry.user == USER).count();
    println!("{}: {n} requests as {USER}", kind.name());
    let denied = audit::denied_requests(&entries, USER);
    for (request, n) in &denied {
        println!("{}: {n} x {request}", kind.name());
    }
    worked?;
    ensure!(n > args.pods as usize, "the scheduler did not work as {USER}");
    if denied.is_empty() {
        println!("{}: no request was denied", kind.name());
        plane.finish();
    }
    Ok(denied.is_empty())
}

/// Exercises all functions of a scheduler.
async fn work(args: &Args, kind: SchedulerKind, plane: &ControlPlane) -> Result<()> {
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    let token = account_token(&api).await?;
    let kubeconfig = plane.kubeconfig_for_token(ACCOUNT, &token)?;
    load_objects::fill(&api, NAMESPACE, args.nodes, args.workload, args.pods).await?;
    let mut bound = BoundPods::watch(&api, NAMESPACE).await?;
    let setup = SchedulerSetup {
        leader_elect: true,
        ..SchedulerSetup::new(kind.name(), plane.folder(), &kubeconfig)
    };
    let mut scheduler = args.chosen.start(kind, &setup)?;
    let all = bound.wait_for(args.pods as usize, special_pods::STEP_TIMEOUT).await?;
    scheduler.process.check_running()?;
    ensure!(all, "only {} of {} pods were bound", bound.bound_at().len(), args.pods);
    let unschedulable = special_pods::check_unschedulable_pod(&api, NAMESPACE, "default-scheduler");
    unschedulable.await.context("an unschedulable pod")?;
    special_pods::check_preemption(&api, NAMESPACE).await.context("preemption")?;
    if args.volume {
        special_pods::check_volume_on_demand(&api, NAMESPACE, plane)
            .await
            .context("a volume on demand")?;
    }
    metrics_require_authorization(&scheduler, plane).await?;
    // Terminate it, so that the release of the lease is in the audit log.
    scheduler.process.terminate()?;
    let status = scheduler.process.wait(special_pods::STEP_TIMEOUT).await?;
    ensure!(status.success(), "the exit status after SIGTERM is {status}");
    Ok(())
}

/// Creates the service account, binds its roles, and requests a token.
async fn account_token(api: &ApiClient) -> Result<String> {
    let accounts = "/api/v1/namespaces/kube-system/serviceaccounts";
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}});
    api.create(accounts, &account).await.context("creating the service account")?;
    scheduler_role_bindings::bind_scheduler_roles(
        api,
        &scheduler_role_bindings::service_account(ACCOUNT),
    )
    .await?;
    manifest::account_token(api, ACCOUNT).await
}

/// Checks that the scheduler uses delegated authentication and authorization.
async fn metrics_require_authorization(scheduler: &Scheduler, plane: &ControlPlane) -> Result<()> {
    let admin = plane.admin_token()?;
    for (who, token, want) in
        [("the administrator", Some(admin.as_str()), 200), ("an anonymous user", None, 403)]
    {
        let api = ApiClient::insecure(&scheduler.url(), token)?;
        let got = api.request(Method::GET, "/metrics", Vec::new()).await?.status;
        ensure!(got == want, "{who} got status {got} from /metrics, not {want}");
    }
    Ok(())
}
