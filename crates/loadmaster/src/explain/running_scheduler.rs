//! `loadmaster explain --server`: queries a running Loadmaster.

use std::io::Write;
use std::path::PathBuf;

use loadmaster_client::status::decode_status;
use loadmaster_client::{Credentials, RemoteScheduler, RemoteSchedulerOptions};
use loadmaster_engine::engine::scheduling_state::{PodSchedulingState, PodState};
use loadmaster_engine::explain::Explanation;
use loadmaster_stdx::ErrorChain;
use serde::de::DeserializeOwned;

use super::selection::Selection;
use super::{Args, Timings, print, table};
use crate::exit::{CommandResult, Exit, Failure};

/// The server and the credentials, with kubectl's flag names.
#[derive(clap::Args)]
pub(super) struct ServerArgs {
    /// URL of a running Loadmaster, on its secure port [default port: 10259]. With --kubeconfig or --context, that user's credentials are used.
    #[arg(long, value_name = "URL", conflicts_with_all = ["from", "config", "feature_gates"])]
    pub server: Option<String>,
    /// Show why the last scheduling attempt of the running Loadmaster failed, and which events requeue the pod.
    #[arg(long, requires = "server")]
    pub last: bool,
    /// Path to a cert file for the certificate authority of the server [default: that of the kubeconfig if one is given, else the system's].
    #[arg(long, value_name = "FILE", requires = "server")]
    certificate_authority: Option<PathBuf>,
    /// Server name to use for server certificate validation. If it is not provided, the hostname used to contact the server is used.
    #[arg(long, value_name = "NAME", requires = "server")]
    tls_server_name: Option<String>,
    /// If true, the server's certificate will not be checked for validity. This will make your HTTPS connections insecure.
    #[arg(long, requires = "server")]
    insecure_skip_tls_verify: bool,
    /// Bearer token for authentication to the server. Other users of this machine can see it in the process list.
    #[arg(long, requires = "server", conflicts_with_all = ["token_file", "client_certificate", "kubeconfig", "context"])]
    token: Option<String>,
    /// File with a bearer token for authentication to the server.
    #[arg(long, value_name = "FILE", requires = "server", conflicts_with_all = ["client_certificate", "kubeconfig", "context"])]
    token_file: Option<PathBuf>,
    /// Path to a client certificate file for TLS.
    #[arg(long, value_name = "FILE", requires_all = ["server", "client_key"], conflicts_with_all = ["kubeconfig", "context"])]
    client_certificate: Option<PathBuf>,
    /// Path to a client key file for TLS.
    #[arg(long, value_name = "FILE", requires = "client_certificate")]
    client_key: Option<PathBuf>,
}

/// The rule that a ClusterRole needs.
const RULE: &str = "{nonResourceURLs: [\"/explain/*\"], verbs: [get]}";

pub(super) fn run(
    args: &Args,
    server: &str,
    timings: &mut Timings,
    out: &mut dyn Write,
) -> CommandResult<Exit> {
    let remote = RemoteScheduler::new(&options(args, server));
    let remote = remote.map_err(|error| Failure::invalid_input(ErrorChain(&error)))?;
    let Selection::Pod(name) = Selection::new(args, remote.default_namespace())? else {
        return Err(Failure::invalid_input("with --server one pod is explained, by its name"));
    };
    let names = [name.as_str()];
    timings.lap("preparing");
    let exit = if args.remote.last {
        let progress: PodSchedulingState = match get(&remote, &format!("/explain/{name}?last"))? {
            RemoteResult::Found(progress) => progress,
            RemoteResult::Assigned(text) => return Err(Failure::invalid_input(text)),
        };
        print(args, &names, &progress, || table::progress(&progress), out)?;
        if progress.last.is_some() { Exit::Done } else { Exit::Finding }
    } else {
        let explanation: Explanation = match get(&remote, &format!("/explain/{name}"))? {
            RemoteResult::Found(explanation) => explanation,
            RemoteResult::Assigned(text) => {
                writeln!(out, "{text}")?;
                return Ok(Exit::Finding);
            }
        };
        let lines = || table::lines(&explanation, "", args.extent());
        print(args, &names, &explanation, lines, out)?;
        if explanation.best.is_empty() { Exit::Finding } else { Exit::Done }
    };
    timings.lap("asking");
    Ok(exit)
}

fn options(args: &Args, server: &str) -> RemoteSchedulerOptions {
    let ServerArgs { token, token_file, client_certificate, client_key, .. } = &args.remote;
    let credentials = match (token, token_file, client_certificate, client_key) {
        (Some(token), ..) => Credentials::Token(token.clone()),
        (_, Some(file), ..) => Credentials::TokenFile(file.clone()),
        (_, _, Some(certificate), Some(key)) => {
            Credentials::Certificate { certificate: certificate.clone(), key: key.clone() }
        }
        _ if args.cluster.is_given() => Credentials::Kubeconfig(args.cluster.source()),
        _ => Credentials::None,
    };
    RemoteSchedulerOptions {
        server: server.to_owned(),
        certificate_authority: args.remote.certificate_authority.clone(),
        tls_server_name: args.remote.tls_server_name.clone(),
        insecure_skip_tls_verify: args.remote.insecure_skip_tls_verify,
        credentials,
        user_agent: concat!("loadmaster/", env!("CARGO_PKG_VERSION"), " explain").to_owned(),
    }
}

/// The server's response for a pod.
enum RemoteResult<T> {
    Found(T),
    /// The pod is already assigned; a message that says where.
    Assigned(String),
}

fn get<T: DeserializeOwned>(
    remote: &RemoteScheduler,
    path: &str,
) -> CommandResult<RemoteResult<T>> {
    let server = remote.server();
    let reply = remote.http_get(path).map_err(|error| {
        let text = ErrorChain(&error).to_string();
        let hint = match text.contains("invalid peer certificate") {
            true => "; give the server's CA with --certificate-authority, or a kubeconfig that has it with --kubeconfig",
            false => "",
        };
        Failure::invalid_input(format_args!("{text}{hint}"))
    })?;
    let message = || {
        let text = decode_status(reply.status, &reply.body).message;
        text.chars().filter(|letter| !letter.is_control()).collect::<String>()
    };
    match reply.status {
        200 => loadmaster_stdx::json::from_slice(&reply.body).map(RemoteResult::Found).map_err(
            |error| {
                Failure::invalid_input(format_args!(
                    "{server}: not a response of Loadmaster: {error}"
                ))
            },
        ),
        409 => Ok(RemoteResult::Assigned(message())),
        401 => Err(Failure::invalid_input(format_args!("{server}: unauthorized"))),
        403 => Err(Failure::invalid_input(format_args!(
            "{server}: {} (missing rule: {RULE})",
            message()
        ))),
        404 => Err(Failure::invalid_input(message())),
        status => Err(Failure::invalid_input(format_args!(
            "{server} returned status {status}: {}",
            message()
        ))),
    }
}

/// The state of a pod as text.
pub(super) fn state(progress: &PodSchedulingState) -> String {
    let PodSchedulingState { node, attempts, .. } = progress;
    match progress.state {
        PodState::Assigned => format!("is assigned to {node}"),
        PodState::Binding => format!("is being bound to {node}"),
        PodState::Permit => format!("has a reservation on {node}, and waits at Permit"),
        PodState::Gated => "is gated by PreEnqueue".to_owned(),
        PodState::Active if *attempts == 0 => "is in activeQ, without an attempt yet".to_owned(),
        PodState::Active => "is in activeQ".to_owned(),
        PodState::Backoff => "is in backoffQ".to_owned(),
        PodState::Unschedulable => "is in unschedulablePods".to_owned(),
        PodState::InFlight => "is in flight (being scheduled)".to_owned(),
    }
}
