//! `cargo xtask e2e rbac`: a scheduler as a service account with the built-in roles of schedulers and nothing else.
//!
//! It does all that a scheduler does: leads, binds, says why a pod does not fit, preempts, binds a volume on demand, and asks who may
//! read its metrics. Then the audit log must not have a refused request.

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use http::Method;
use serde_json::json;

use super::api::Api;
use super::bound::BoundPods;
use super::control_plane::{ControlPlane, Options};
use super::scheduler::{Chosen, Kind, Scheduler, Setup};
use super::workload::Workload;
use super::{audit, grants, load, manifest, special};

const NAMESPACE: &str = "e2e";
/// The service account, in kube-system.
const ACCOUNT: &str = "e2e-scheduler";
/// And how the API server calls it.
const USER: &str = "system:serviceaccount:kube-system:e2e-scheduler";

/// Schedule with the rights of upstream's built-in roles only, and look for refused requests.
#[derive(Parser)]
pub struct Args {
    /// Which pods.
    #[arg(long, default_value = "mixed")]
    workload: Workload,
    /// How many nodes.
    #[arg(long, default_value_t = 200)]
    nodes: u32,
    /// How many pods.
    #[arg(long, default_value_t = 500)]
    pods: u32,
    /// Also bind a volume on demand, with upstream's controller for the rest of it.
    #[arg(long)]
    volume: bool,
    #[command(flatten)]
    chosen: Chosen,
}

/// Answers whether nothing was refused.
pub async fn run(args: &Args) -> Result<bool> {
    args.workload.check_size(args.nodes, args.pods)?;
    let mut good = true;
    for kind in args.chosen.kinds()? {
        good &= run_one(args, kind).await.with_context(|| kind.name())?;
    }
    Ok(good)
}

async fn run_one(args: &Args, kind: Kind) -> Result<bool> {
    let audit_policy = Some(audit::policy_of_everything());
    let plane = ControlPlane::start(&Options { audit_policy, ..Options::default() }).await?;
    let worked = work(args, kind, &plane).await;
    // Above all when it did not work: this may be why.
    let entries = audit::read(plane.audit_log())?;
    let n = entries.iter().filter(|entry| entry.user == USER).count();
    println!("{}: {n} requests as {USER}", kind.name());
    let refusals = audit::refusals(&entries, USER);
    for (refused, n) in &refusals {
        println!("{}: {n} x {refused}", kind.name());
    }
    worked?;
    ensure!(n > args.pods as usize, "the scheduler did not work as {USER}");
    if refusals.is_empty() {
        println!("{}: nothing was refused", kind.name());
        plane.finish();
    }
    Ok(refusals.is_empty())
}

/// All that a scheduler does.
async fn work(args: &Args, kind: Kind, plane: &ControlPlane) -> Result<()> {
    let api = Api::new(&plane.admin_kubeconfig()).await?;
    let token = account_token(&api).await?;
    let kubeconfig = plane.kubeconfig_for_token(ACCOUNT, &token)?;
    load::fill(&api, NAMESPACE, args.nodes, args.workload, args.pods).await?;
    let mut bound = BoundPods::watch(&api, NAMESPACE).await?;
    let setup =
        Setup { leader_elect: true, ..Setup::new(kind.name(), plane.folder(), &kubeconfig) };
    let mut scheduler = args.chosen.start(kind, &setup)?;
    let all = bound.until(args.pods as usize, special::PATIENCE).await?;
    scheduler.process.check_running()?;
    ensure!(all, "only {} of {} pods were bound", bound.seen().len(), args.pods);
    special::unschedulable(&api, NAMESPACE).await.context("a pod that fits nowhere")?;
    special::preemption(&api, NAMESPACE).await.context("preemption")?;
    if args.volume {
        special::volume_on_demand(&api, NAMESPACE, plane).await.context("a volume on demand")?;
    }
    metrics_are_for_those_who_may(&scheduler, plane).await?;
    // Terminated, so that giving the lease back is in the log.
    scheduler.process.terminate()?;
    let status = scheduler.process.wait(special::PATIENCE).await?;
    ensure!(status.success(), "it ended with {status} after SIGTERM");
    Ok(())
}

/// Makes the service account, gives it the roles, and asks for a token.
async fn account_token(api: &Api) -> Result<String> {
    let accounts = "/api/v1/namespaces/kube-system/serviceaccounts";
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}});
    api.create(accounts, &account).await.context("making the service account")?;
    grants::scheduler_roles(api, &grants::service_account(ACCOUNT)).await?;
    manifest::account_token(api, ACCOUNT).await
}

/// The scheduler asks the API server who that is and what he may.
async fn metrics_are_for_those_who_may(scheduler: &Scheduler, plane: &ControlPlane) -> Result<()> {
    let admin = plane.admin_token()?;
    for (who, token, want) in [("the admin", Some(admin.as_str()), 200), ("anybody", None, 403)] {
        let api = Api::unverified(&scheduler.url(), token)?;
        let got = api.ask(Method::GET, "/metrics", Vec::new()).await?.status;
        ensure!(got == want, "{who} got answer {got} from /metrics, not {want}");
    }
    Ok(())
}
