//! Who may do what at the embedded API server: flags, named as kube-apiserver's where it has them.

use std::path::{Path, PathBuf};

use jiff::SignedDuration;
use loadmaster_apiserver::audit::{Audit, Policy};
use loadmaster_apiserver::auth::{SigningKey, read_token_file};
use loadmaster_apiserver::authorize::Mode;
use loadmaster_apiserver::http::{Bounds, Pki};
use loadmaster_apiserver::kubeconfig::kubeconfig;
use loadmaster_apiserver::{Admission, ApiServer, Setup};

use super::kubeconfig::{AllEntries, add, check};
use super::{NAME, failed};
use crate::exit::{Answer, Failure};

/// Who may do what.
#[derive(clap::Args)]
pub(crate) struct AccessArgs {
    /// How requests are decided on: by roles and bindings, or not at all.
    #[arg(long, value_name = "MODE", value_enum, default_value_t = ModeArg::Rbac)]
    authorization_mode: ModeArg,
    /// Whether requests without credentials are those of system:anonymous; without RBAC they may ask for health and version only.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    anonymous_auth: bool,
    /// A file of tokens: token,user,uid,"group,group" a line.
    #[arg(long, value_name = "FILE")]
    token_auth_file: Option<PathBuf>,
    /// The key that signs the tokens of service accounts (PEM, ECDSA on P-256) [default: a
    /// new one, kept in --data-dir].
    #[arg(long, value_name = "FILE")]
    service_account_signing_key_file: Option<PathBuf>,
    /// Also add a context for this user to a kubeconfig, as --kubeconfig does, such as system:kube-scheduler=scheduler.kubeconfig. Its
    /// name is USER@loadmaster. May be given several times.
    #[arg(long, value_name = "USER[/GROUP]=FILE")]
    kubeconfig_as: Vec<String>,
    /// Admission plugins to switch on: ServiceAccount, TaintNodesByCondition (both need controllers).
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    enable_admission_plugins: Vec<String>,
    /// Admission plugins to switch off: LimitRanger, ResourceQuota, StorageObjectInUseProtection.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    disable_admission_plugins: Vec<String>,
    /// How long Events stay after their last write; 0s keeps them [default: 1h; 5m for the sample workload of up].
    #[arg(long, value_name = "TIME", value_parser = time_to_live)]
    event_ttl: Option<SignedDuration>,
    /// Where to write a line a request [default: nowhere].
    #[arg(long, value_name = "FILE")]
    audit_log_path: Option<PathBuf>,
    /// Which requests to write down, as an audit.k8s.io/v1 Policy with the levels None and Metadata [default: all].
    #[arg(long, value_name = "FILE", requires = "audit_log_path")]
    audit_policy_file: Option<PathBuf>,
    /// Requests under way at a time, watches aside; others are told to come again (429).
    #[arg(long, value_name = "N", default_value_t = Bounds::default().in_flight)]
    max_requests_inflight: usize,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ModeArg {
    #[value(name = "RBAC")]
    Rbac,
    #[value(name = "AlwaysAllow")]
    AlwaysAllow,
}

/// A user and its kubeconfig, as `--kubeconfig-as` names them.
struct As<'a> {
    user: &'a str,
    group: &'a str,
    path: &'a Path,
}

impl As<'_> {
    fn parse(given: &str) -> Answer<As<'_>> {
        let parts = given
            .split_once('=')
            .filter(|(user, path)| !user.is_empty() && !user.starts_with('/') && !path.is_empty());
        let (user, path) = parts.ok_or_else(|| {
            Failure::input(format!("--kubeconfig-as {given}: not USER=FILE or USER/GROUP=FILE"))
        })?;
        let (user, group) = user.split_once('/').unwrap_or((user, ""));
        Ok(As { user, group, path: Path::new(path) })
    }
}

fn context_of(user: &str) -> String {
    format!("{user}@{NAME}")
}

fn time_to_live(text: &str) -> Result<SignedDuration, String> {
    let nanos = loadmaster_stdx::duration::parse_nanos(text).map_err(|error| error.to_string())?;
    let is_good = nanos == 0 || nanos >= 1_000_000_000;
    is_good.then(|| SignedDuration::from_nanos(nanos)).ok_or("less than a second".to_owned())
}

impl AccessArgs {
    /// What the flags and the files they name say. `kept` is the signing key of an earlier life, with its place; Events stay for
    /// `event_ttl` unless a flag says otherwise.
    pub fn setup(&self, kept: Option<(&Path, &str)>, event_ttl: SignedDuration) -> Answer<Setup> {
        let mode = match self.authorization_mode {
            ModeArg::Rbac => Mode::Rbac,
            ModeArg::AlwaysAllow => Mode::AlwaysAllow,
        };
        let parsed = |path: &Path, pem: &str| {
            SigningKey::from_pem(pem)
                .map_err(|error| failed(&format!("reading {}", path.display()), &error))
        };
        let signing_key = match (&self.service_account_signing_key_file, kept) {
            (Some(path), _) => Some(parsed(path, &read(path)?)?),
            (None, Some((path, pem))) => Some(parsed(path, pem)?),
            (None, None) => None,
        };
        Ok(Setup {
            mode,
            anonymous: self.anonymous_auth,
            signing_key,
            admission: self.admission()?,
            event_ttl: self.event_ttl.unwrap_or(event_ttl),
            audit: self.audit()?,
        })
    }

    /// How much clients may have under way.
    pub fn bounds(&self) -> Bounds {
        Bounds { in_flight: self.max_requests_inflight, ..Bounds::default() }
    }

    /// Makes the users known that flags and files name, and adds them to their kubeconfigs.
    pub fn introduce(
        &self,
        server: &ApiServer,
        pki: &Pki,
        url: &str,
        stay: bool,
    ) -> Answer<AllEntries> {
        if let Some(path) = &self.token_auth_file {
            let users = read_token_file(&read(path)?)
                .map_err(|error| failed(&format!("reading {}", path.display()), &error))?;
            for (token, user) in users {
                server.tokens().add(&token, user);
            }
        }
        let mut entries = AllEntries::default();
        for given in &self.kubeconfig_as {
            let As { user, group, path } = As::parse(given)?;
            let identity =
                pki.client(user, group).map_err(|error| failed("setting up TLS", &error))?;
            let name = context_of(user);
            let config = kubeconfig(&name, url, pki.authority_pem(), &identity);
            entries.push(add(path, &name, &config, stay)?);
        }
        server
            .publish_authority(pki.authority_pem())
            .map_err(|error| failed("setting up the cluster", &error))?;
        Ok(entries)
    }

    /// Says whether all users can be added to their kubeconfigs.
    pub fn check_kubeconfigs(&self) -> Answer<()> {
        self.kubeconfig_as.iter().try_for_each(|given| {
            let As { user, path, .. } = As::parse(given)?;
            check(path, &context_of(user))
        })
    }

    fn admission(&self) -> Answer<Admission> {
        let mut admission = Admission::default();
        for (names, on, flag) in [
            (&self.enable_admission_plugins, true, "--enable-admission-plugins"),
            (&self.disable_admission_plugins, false, "--disable-admission-plugins"),
        ] {
            for name in names {
                if !admission.switch(name, on) {
                    return Err(Failure::input(format!(
                        "{flag} {name}: none of those that can be switched: {}",
                        Admission::NAMES.join(", ")
                    )));
                }
            }
        }
        Ok(admission)
    }

    fn audit(&self) -> Answer<Option<Audit>> {
        let Some(path) = &self.audit_log_path else { return Ok(None) };
        let policy = match &self.audit_policy_file {
            None => Policy::everything(),
            Some(path) => Policy::read(&read(path)?)
                .map_err(|error| failed(&format!("reading {}", path.display()), &error))?,
        };
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|error| failed(&format!("writing {}", path.display()), &error))?;
        Ok(Some(Audit::new(policy, Box::new(file))))
    }
}

fn read(path: &Path) -> Answer<String> {
    std::fs::read_to_string(path)
        .map_err(|error| failed(&format!("reading {}", path.display()), &error))
}
