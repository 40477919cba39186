//! The kubeconfigs and serving certificates that a server has written to files, and the renewal of the certificates.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use loadmaster_apiserver::http::{CERTIFICATE_RENEW_AFTER, Pki};
use loadmaster_apiserver::kubeconfig::kubeconfig;
use loadmaster_serving::private_file;
use serde_json::Value;

use super::{cannot_write, failed, kubeconfig as files};
use crate::exit::{CommandResult, Failure, print_to_stderr};

/// How often to check whether certificates are due. A computer may have been suspended meanwhile.
const CHECK_INTERVAL: Duration = Duration::from_secs(600);

/// A user with a client certificate, and the name of its entries in a kubeconfig.
#[derive(Clone, Copy)]
pub(super) struct KubeconfigUser<'a> {
    pub user: &'a str,
    /// May be empty.
    pub group: &'a str,
    pub name: &'a str,
}

/// The kubeconfigs of a server, and the serving certificates of other servers of its cluster.
pub(super) struct IssuedCertificates {
    pki: Arc<Pki>,
    url: String,
    state: RwLock<State>,
}

struct State {
    kubeconfigs: Vec<IssuedKubeconfig>,
    serving: Vec<ServingCertificate>,
    renew_at: Timestamp,
}

/// The serving certificate of a component and its key, in files that the component reads again when they change.
#[derive(Clone)]
struct ServingCertificate {
    component: String,
    certificate: PathBuf,
    key: PathBuf,
}

#[derive(Clone)]
struct IssuedKubeconfig {
    user: String,
    group: String,
    name: String,
    path: PathBuf,
}

impl IssuedCertificates {
    pub fn new(pki: Arc<Pki>, url: &str, now: Timestamp) -> IssuedCertificates {
        let renew_at = now + CERTIFICATE_RENEW_AFTER;
        let state = State { kubeconfigs: Vec::new(), serving: Vec::new(), renew_at };
        IssuedCertificates { pki, url: url.to_owned(), state: RwLock::new(state) }
    }

    /// A kubeconfig with a new client certificate for the file at `path`, which the caller writes; from then on the certificate is renewed
    /// there.
    pub fn issue(
        &self,
        who: KubeconfigUser<'_>,
        path: &Path,
        now: Timestamp,
    ) -> CommandResult<Value> {
        let KubeconfigUser { user, group, name } = who;
        let issued = IssuedKubeconfig {
            user: user.to_owned(),
            group: group.to_owned(),
            name: name.to_owned(),
            path: path.to_owned(),
        };
        let config = self.config(&issued, now)?;
        self.state.write().unwrap_or_else(PoisonError::into_inner).kubeconfigs.push(issued);
        Ok(config)
    }

    /// Writes a serving certificate and its key to these files, and renews them there.
    pub fn issue_serving(
        &self,
        component: &str,
        certificate: &Path,
        key: &Path,
        now: Timestamp,
    ) -> CommandResult<()> {
        let issued = ServingCertificate {
            component: component.to_owned(),
            certificate: certificate.to_owned(),
            key: key.to_owned(),
        };
        self.write_serving(&issued, now)?;
        self.state.write().unwrap_or_else(PoisonError::into_inner).serving.push(issued);
        Ok(())
    }

    fn write_serving(&self, issued: &ServingCertificate, now: Timestamp) -> CommandResult<()> {
        let pair = self.pki.serving(&issued.component, now);
        let pair = pair.map_err(|error| failed("setting up TLS", &error))?;
        let write = |path: &Path, text: &str| {
            private_file::replace(path, None, text).map_err(|error| cannot_write(path, &error))
        };
        // Whoever reads a new key and an old certificate keeps what it had, and reads them again later.
        write(&issued.key, &pair.key_pem)?;
        write(&issued.certificate, &pair.certificate_pem)
    }

    fn config(&self, issued: &IssuedKubeconfig, now: Timestamp) -> CommandResult<Value> {
        let identity = self.pki.client(&issued.user, &issued.group, now);
        let identity = identity.map_err(|error| failed("setting up TLS", &error))?;
        Ok(kubeconfig(&issued.name, &self.url, self.pki.ca_certificate_pem(), &identity))
    }

    /// Renews all certificates in their files, when half of their time is over.
    fn renew_if_due(&self, now: Timestamp) {
        let (kubeconfigs, serving) = {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            if now < state.renew_at {
                return;
            }
            state.renew_at = now + CERTIFICATE_RENEW_AFTER;
            (state.kubeconfigs.clone(), state.serving.clone())
        };
        for issued in kubeconfigs {
            let renewed = self
                .config(&issued, now)
                .and_then(|config| files::renew_user(&issued.path, &issued.name, &config));
            warn_unless_renewed("client", renewed);
        }
        for issued in serving {
            warn_unless_renewed("serving", self.write_serving(&issued, now));
        }
    }

    /// Renews certificates for ever.
    pub async fn keep_renewed(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(CHECK_INTERVAL);
        loop {
            ticks.tick().await;
            let issued = Arc::clone(&self);
            // Writing a file waits for its lock.
            let _ =
                tokio::task::spawn_blocking(move || issued.renew_if_due(Timestamp::now())).await;
        }
    }
}

fn warn_unless_renewed(what: &str, renewed: CommandResult<()>) {
    if let Err(Failure::Input(lines)) = renewed {
        lines.iter().for_each(|line| {
            print_to_stderr(&format!("warning: the {what} certificate was not renewed: {line}"));
        });
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn client_certificates_are_renewed_in_their_files() {
        let folder =
            std::env::temp_dir().join(format!("issued-kubeconfigs-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("config");
        let start: Timestamp = "2026-05-01T12:00:00Z".parse().unwrap();
        let pki = Arc::new(Pki::new(&["localhost"], start).unwrap());
        let issued = IssuedCertificates::new(pki, "https://127.0.0.1:1", start);
        let who = KubeconfigUser { user: "ann", group: "a", name: "loadmaster" };
        let config = issued.issue(who, &path, start).unwrap();
        let _entries = files::add(&path, "loadmaster", &config, false).unwrap();
        let check = |hours: i64, want_renewed: bool| {
            let read = || std::fs::read_to_string(&path).unwrap();
            let before = read();
            issued.renew_if_due(start + SignedDuration::from_hours(hours));
            assert_eq!(read() != before, want_renewed, "after {hours} h");
        };
        check(83, false);
        check(84, true);
        check(85, false);
        check(168, true);
        // Another server has replaced the entries, whose users are not ours any more.
        let mut other = config.clone();
        other["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:2".into();
        let _other = files::add(&path, "loadmaster", &other, true).unwrap();
        check(1_000, false);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn serving_certificates_are_renewed_in_their_files() {
        let folder = std::env::temp_dir().join(format!("issued-serving-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let [certificate, key] = ["crt", "key"].map(|name| folder.join(name));
        let start: Timestamp = "2026-05-01T12:00:00Z".parse().unwrap();
        let pki = Arc::new(Pki::new(&["localhost"], start).unwrap());
        let issued = IssuedCertificates::new(pki, "https://127.0.0.1:1", start);
        issued.issue_serving("scheduler", &certificate, &key, start).unwrap();
        let read = || [&certificate, &key].map(|path| std::fs::read_to_string(path).unwrap());
        for (hours, want_renewed) in [(83, false), (84, true), (85, false), (168, true)] {
            let before = read();
            issued.renew_if_due(start + SignedDuration::from_hours(hours));
            let after = read();
            assert_eq!(before[0] != after[0], want_renewed, "certificate after {hours} h");
            assert_eq!(before[1] != after[1], want_renewed, "key after {hours} h");
        }
        for path in [&certificate, &key] {
            let mode = std::fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", path.display());
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
