//! `loadmaster explain --server`: a running Loadmaster is asked.

use std::io::Write;
use std::path::PathBuf;

use loadmaster_client::answer::status_of;
use loadmaster_client::{Credentials, Options, Remote, RemoteOptions};
use loadmaster_engine::engine::progress::{Progress, State};
use loadmaster_engine::explain::Explanation;
use loadmaster_stdx::Chain;
use serde::de::DeserializeOwned;

use super::{Args, Timings, full_name, print, table};
use crate::exit::{Answer, Exit, Failure};

/// Which server, and as whom it is asked: kubectl's words.
#[derive(clap::Args)]
pub(super) struct ServerArgs {
    /// Ask a running Loadmaster, on its secure port [default port: 10259]. With --kubeconfig or --context, as that user.
    #[arg(long, value_name = "URL", conflicts_with_all = ["from", "config", "feature_gates"])]
    pub server: Option<String>,
    /// Why the last attempt of the running Loadmaster failed, and what the pod waits for.
    #[arg(long, requires = "server")]
    pub last: bool,
    /// Certificates that may have signed the server's [default: the kubeconfig's, if one is given, else the system's].
    #[arg(long, value_name = "FILE", requires = "server")]
    certificate_authority: Option<PathBuf>,
    /// The name in the server's certificate, where it is not the host's.
    #[arg(long, value_name = "NAME", requires = "server")]
    tls_server_name: Option<String>,
    /// Believe any server: whoever is on the way can read and change everything.
    #[arg(long, requires = "server")]
    insecure_skip_tls_verify: bool,
    /// Prove who asks by this token; others on this machine can see it.
    #[arg(long, requires = "server", conflicts_with_all = ["token_file", "client_certificate", "kubeconfig", "context"])]
    token: Option<String>,
    /// Prove who asks by the token in this file.
    #[arg(long, value_name = "FILE", requires = "server", conflicts_with_all = ["client_certificate", "kubeconfig", "context"])]
    token_file: Option<PathBuf>,
    /// Prove who asks by this certificate.
    #[arg(long, value_name = "FILE", requires_all = ["server", "client_key"], conflicts_with_all = ["kubeconfig", "context"])]
    client_certificate: Option<PathBuf>,
    /// Its key.
    #[arg(long, value_name = "FILE", requires = "client_certificate")]
    client_key: Option<PathBuf>,
}

/// Rules that a ClusterRole needs.
const RULE: &str = "{nonResourceURLs: [\"/explain/*\"], verbs: [get]}";

pub(super) fn run(
    args: &Args,
    server: &str,
    timings: &mut Timings,
    out: &mut dyn Write,
) -> Answer<Exit> {
    let remote = Remote::find(&options(args, server));
    let remote = remote.map_err(|error| Failure::input(Chain(&error)))?;
    let name = full_name(args, remote.default_namespace())?;
    timings.lap("preparing");
    let exit = if args.remote.last {
        let progress: Progress = match ask(&remote, &format!("/explain/{name}?last"))? {
            Told::Found(progress) => progress,
            Told::Elsewhere(text) => return Err(Failure::input(text)),
        };
        print(args, &progress, || table::progress(&progress), out)?;
        if progress.last.is_some() { Exit::Done } else { Exit::Finding }
    } else {
        let explanation: Explanation = match ask(&remote, &format!("/explain/{name}"))? {
            Told::Found(explanation) => explanation,
            Told::Elsewhere(text) => {
                writeln!(out, "{text}")?;
                return Ok(Exit::Finding);
            }
        };
        print(args, &explanation, || table::lines(&explanation, "", args.all), out)?;
        if explanation.best.is_empty() { Exit::Finding } else { Exit::Done }
    };
    timings.lap("asking");
    Ok(exit)
}

fn options(args: &Args, server: &str) -> RemoteOptions {
    let ServerArgs { token, token_file, client_certificate, client_key, .. } = &args.remote;
    let credentials = match (token, token_file, client_certificate, client_key) {
        (Some(token), ..) => Credentials::Token(token.clone()),
        (_, Some(file), ..) => Credentials::TokenFile(file.clone()),
        (_, _, Some(certificate), Some(key)) => {
            Credentials::Certificate { certificate: certificate.clone(), key: key.clone() }
        }
        _ if args.kubeconfig.is_some() || args.context.is_some() => {
            let (kubeconfig, context) = (args.kubeconfig.clone(), args.context.clone());
            Credentials::Kubeconfig(Options { kubeconfig, context })
        }
        _ => Credentials::None,
    };
    RemoteOptions {
        server: server.to_owned(),
        certificate_authority: args.remote.certificate_authority.clone(),
        tls_server_name: args.remote.tls_server_name.clone(),
        insecure_skip_tls_verify: args.remote.insecure_skip_tls_verify,
        credentials,
        user_agent: concat!("loadmaster/", env!("CARGO_PKG_VERSION"), " explain").to_owned(),
    }
}

/// What the server says of a pod.
enum Told<T> {
    Found(T),
    /// The pod has its node; where, in a sentence.
    Elsewhere(String),
}

fn ask<T: DeserializeOwned>(remote: &Remote, path: &str) -> Answer<Told<T>> {
    let server = remote.server();
    let reply = remote.get(path).map_err(|error| {
        let text = Chain(&error).to_string();
        let hint = match text.contains("invalid peer certificate") {
            true => "; --certificate-authority says whose certificates are believed",
            false => "",
        };
        Failure::input(format_args!("{text}{hint}"))
    })?;
    let said = || {
        let text = status_of(reply.status, &reply.body).message;
        text.chars().filter(|letter| !letter.is_control()).collect::<String>()
    };
    match reply.status {
        200 => serde_json::from_slice(&reply.body).map(Told::Found).map_err(|error| {
            Failure::input(format_args!("{server}: not an answer of Loadmaster: {error}"))
        }),
        409 => Ok(Told::Elsewhere(said())),
        401 => Err(Failure::input(format_args!("{server} does not accept these credentials"))),
        403 => Err(Failure::input(format_args!("{server}: {} (missing rule: {RULE})", said()))),
        404 => Err(Failure::input(said())),
        status => Err(Failure::input(format_args!("{server} answered {status}: {}", said()))),
    }
}

/// In words.
pub(super) fn state(progress: &Progress) -> String {
    let Progress { node, attempts, .. } = progress;
    match progress.state {
        State::Assigned => format!("is on {node}"),
        State::Binding => format!("is being bound to {node}"),
        State::Permit => format!("has a place on {node}, and is held by Permit"),
        State::Gated => "is held before the queue by PreEnqueue".to_owned(),
        State::Active if *attempts == 0 => "was not tried yet; it is in activeQ".to_owned(),
        State::Active => "is in activeQ, about to be tried".to_owned(),
        State::Backoff => "is in backoffQ".to_owned(),
        State::Unschedulable => "waits in unschedulablePods".to_owned(),
        State::InFlight => "is being tried".to_owned(),
    }
}
