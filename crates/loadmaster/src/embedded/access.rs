//! Authentication, authorization, admission and audit flags of the embedded API server, named as in kube-apiserver.

use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use loadmaster_apiserver::audit::{AuditLog, AuditPolicy};
use loadmaster_apiserver::authentication::{SigningKey, read_token_file};
use loadmaster_apiserver::authorization::AuthorizationMode;
use loadmaster_apiserver::http::{HttpLimits, Pki};
use loadmaster_apiserver::{AdmissionPlugins, ApiServer, ClusterOptions};
use loadmaster_serving::private_file;

use super::issued_certificates::{IssuedCertificates, KubeconfigUser};
use super::kubeconfig::{AllKubeconfigEntries, add, check};
use super::{NAME, failed};
use crate::exit::{CommandResult, Failure};

/// Flags for authentication, authorization, admission and audit.
#[derive(clap::Args)]
pub(crate) struct AccessArgs {
    /// Authorization mode.
    #[arg(long, value_name = "MODE", value_enum, default_value_t = ModeArg::Rbac)]
    authorization_mode: ModeArg,
    /// Enables anonymous requests, as the user system:anonymous. Without RBAC they may read health and version only.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    anonymous_auth: bool,
    /// Static token file, with lines of the form token,user,uid,"group,group".
    #[arg(long, value_name = "FILE")]
    token_auth_file: Option<PathBuf>,
    /// PEM file with the ECDSA P-256 private key that signs service account tokens [default: a generated key, stored in --data-dir if it
    /// is set].
    #[arg(long, value_name = "FILE")]
    service_account_signing_key_file: Option<PathBuf>,
    /// Add a context for this user to a kubeconfig file, as --kubeconfig does, for example system:kube-scheduler=scheduler.kubeconfig. The
    /// context is named USER@loadmaster. May be repeated.
    #[arg(long, value_name = "USER[/GROUP]=FILE")]
    kubeconfig_as: Vec<String>,
    /// Admission plugins to enable: ServiceAccount, TaintNodesByCondition (both need controllers).
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    enable_admission_plugins: Vec<String>,
    /// Admission plugins to disable: LimitRanger, ResourceQuota, StorageObjectInUseProtection.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    disable_admission_plugins: Vec<String>,
    /// Time to retain events; 0s retains them forever [default: 1h; 5m for the sample workload of `up`].
    #[arg(long, value_name = "TIME", value_parser = time_to_live)]
    event_ttl: Option<SignedDuration>,
    /// File to which one line per request is written [default: no audit log]. A new file can be read only by its owner; a symbolic link is
    /// rejected.
    #[arg(long, value_name = "FILE")]
    audit_log_path: Option<PathBuf>,
    /// File with an audit.k8s.io/v1 Policy that selects the requests to log, with the levels None and Metadata [default: all requests].
    #[arg(long, value_name = "FILE", requires = "audit_log_path")]
    audit_policy_file: Option<PathBuf>,
    /// The maximum number of requests in flight, not counting watches. When it is exceeded, requests are rejected with status 429.
    #[arg(long, value_name = "N", default_value_t = HttpLimits::default().in_flight)]
    max_requests_inflight: usize,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ModeArg {
    #[value(name = "RBAC")]
    Rbac,
    #[value(name = "AlwaysAllow")]
    AlwaysAllow,
}

/// A parsed `--kubeconfig-as`.
struct KubeconfigFlag<'a> {
    user: &'a str,
    group: &'a str,
    path: &'a Path,
}

impl KubeconfigFlag<'_> {
    fn parse(given: &str) -> CommandResult<KubeconfigFlag<'_>> {
        let parts = given
            .split_once('=')
            .filter(|(user, path)| !user.is_empty() && !user.starts_with('/') && !path.is_empty());
        let (user, path) = parts.ok_or_else(|| {
            Failure::invalid_input(format!(
                "--kubeconfig-as {given}: not USER=FILE or USER/GROUP=FILE"
            ))
        })?;
        let (user, group) = user.split_once('/').unwrap_or((user, ""));
        Ok(KubeconfigFlag { user, group, path: Path::new(path) })
    }
}

fn context_of(user: &str) -> String {
    format!("{user}@{NAME}")
}

fn time_to_live(text: &str) -> Result<SignedDuration, String> {
    let nanos =
        loadmaster_stdx::duration::parse_duration_nanos(text).map_err(|error| error.to_string())?;
    let is_good = nanos == 0 || nanos >= 1_000_000_000;
    is_good.then(|| SignedDuration::from_nanos(nanos)).ok_or("less than a second".to_owned())
}

impl AccessArgs {
    /// Builds the server's setup from the flags and their files. `stored_key` is the path and text of the signing key in the data folder;
    /// `event_ttl` is the default of --event-ttl.
    pub fn server_setup(
        &self,
        stored_key: Option<(&Path, &str)>,
        event_ttl: SignedDuration,
    ) -> CommandResult<ClusterOptions> {
        let mode = match self.authorization_mode {
            ModeArg::Rbac => AuthorizationMode::Rbac,
            ModeArg::AlwaysAllow => AuthorizationMode::AlwaysAllow,
        };
        let parsed = |path: &Path, pem: &str| {
            SigningKey::from_pem(pem)
                .map_err(|error| failed(&format!("reading {}", path.display()), &error))
        };
        let signing_key = match (&self.service_account_signing_key_file, stored_key) {
            (Some(path), _) => Some(parsed(path, &read(path)?)?),
            (None, Some((path, pem))) => Some(parsed(path, pem)?),
            (None, None) => None,
        };
        Ok(ClusterOptions {
            mode,
            anonymous: self.anonymous_auth,
            signing_key,
            admission: self.admission()?,
            event_ttl: self.event_ttl.unwrap_or(event_ttl),
            audit: self.audit()?,
        })
    }

    /// The limits of the HTTP server.
    pub fn http_limits(&self) -> HttpLimits {
        HttpLimits { in_flight: self.max_requests_inflight, ..HttpLimits::default() }
    }

    /// Adds the users of the token file to the server, and the users of --kubeconfig-as to their kubeconfig files.
    pub fn add_users(
        &self,
        server: &ApiServer,
        pki: &Pki,
        issued: &IssuedCertificates,
        stay: bool,
    ) -> CommandResult<AllKubeconfigEntries> {
        if let Some(path) = &self.token_auth_file {
            let users = read_token_file(&read(path)?)
                .map_err(|error| failed(&format!("reading {}", path.display()), &error))?;
            for (token, user) in users {
                server.tokens().add(&token, user);
            }
        }
        let mut entries = AllKubeconfigEntries::default();
        for given in &self.kubeconfig_as {
            let KubeconfigFlag { user, group, path } = KubeconfigFlag::parse(given)?;
            let name = context_of(user);
            let who = KubeconfigUser { user, group, name: &name };
            let config = issued.issue(who, path, Timestamp::now())?;
            entries.push(add(path, &name, &config, stay)?);
        }
        server
            .publish_client_ca(pki.ca_certificate_pem())
            .map_err(|error| failed("setting up the cluster", &error))?;
        Ok(entries)
    }

    /// Checks that all users of --kubeconfig-as can be added to their kubeconfig files.
    pub fn check_kubeconfigs(&self) -> CommandResult<()> {
        self.kubeconfig_as.iter().try_for_each(|given| {
            let KubeconfigFlag { user, path, .. } = KubeconfigFlag::parse(given)?;
            check(path, &context_of(user))
        })
    }

    fn admission(&self) -> CommandResult<AdmissionPlugins> {
        let mut admission = AdmissionPlugins::default();
        for (names, on, flag) in [
            (&self.enable_admission_plugins, true, "--enable-admission-plugins"),
            (&self.disable_admission_plugins, false, "--disable-admission-plugins"),
        ] {
            for name in names {
                if !admission.set_enabled(name, on) {
                    return Err(Failure::invalid_input(format!(
                        "{flag} {name}: unknown admission plugin, expected one of: {}",
                        AdmissionPlugins::NAMES.join(", ")
                    )));
                }
            }
        }
        Ok(admission)
    }

    fn audit(&self) -> CommandResult<Option<AuditLog>> {
        let Some(path) = &self.audit_log_path else { return Ok(None) };
        let policy = match &self.audit_policy_file {
            None => AuditPolicy::everything(),
            Some(path) => AuditPolicy::read(&read(path)?)
                .map_err(|error| failed(&format!("reading {}", path.display()), &error))?,
        };
        let file = private_file::open_options().create(true).append(true).open(path);
        let file = file.map_err(|error| failed(&format!("writing {}", path.display()), &error))?;
        Ok(Some(AuditLog::new(policy, Box::new(file))))
    }
}

fn read(path: &Path) -> CommandResult<String> {
    std::fs::read_to_string(path)
        .map_err(|error| failed(&format!("reading {}", path.display()), &error))
}
