//! Credentials for a control plane: certificates, tokens and kubeconfig files.

#![expect(clippy::disallowed_types, reason = "a certificate is valid from now on")]

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use serde_json::{Value, json};

/// A user in the API server's token file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserIdentity {
    /// For example `system:kube-scheduler`.
    pub user: String,
    /// The user's groups, besides `system:authenticated`.
    pub groups: Vec<String>,
}

impl UserIdentity {
    /// A user of these groups.
    pub fn new(user: &str, groups: &[&str]) -> UserIdentity {
        UserIdentity {
            user: user.to_owned(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
        }
    }

    /// The administrator, in the group `system:masters`.
    pub fn admin() -> UserIdentity {
        UserIdentity::new("admin", &["system:masters"])
    }

    /// A file name: the user name, in which all characters except letters, digits and hyphens are replaced.
    pub fn file_stem(&self) -> String {
        let masked = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        self.user.chars().map(masked).collect()
    }
}

/// The files of certificates and tokens.
pub struct Credentials {
    folder: PathBuf,
    authority: Issuer<'static, KeyPair>,
}

impl Credentials {
    /// Creates a certificate authority, the server's certificate for loopback, and the key that signs service account tokens.
    pub fn create(folder: &Path) -> Result<Credentials> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "loadmaster-e2e");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_key = KeyPair::generate().context("creating the authority's key")?;
        let ca = params.self_signed(&ca_key).context("creating the authority's certificate")?;
        let authority = Issuer::new(params, ca_key);
        let credentials = Credentials { folder: folder.to_owned(), authority };
        credentials.write("ca.crt", &ca.pem())?;

        // The last one is the address of the Service `kubernetes`.
        let names = ["127.0.0.1", "localhost", "kubernetes.default.svc", "kubernetes", "10.96.0.1"];
        let names = names.map(str::to_owned).to_vec();
        let mut params = CertificateParams::new(names).context("naming the API server")?;
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().context("creating the API server's key")?;
        let server =
            params.signed_by(&key, &credentials.authority).context("signing its certificate")?;
        credentials.write("apiserver.crt", &server.pem())?;
        credentials.write("apiserver.key", &key.serialize_pem())?;

        let key = KeyPair::generate().context("creating the key of service accounts")?;
        credentials.write("service-accounts.key", &key.serialize_pem())?;
        credentials.write("service-accounts.pub", &key.public_key_pem())?;
        Ok(credentials)
    }

    /// A file of the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Creates a token for each user, in the token file and in a kubeconfig file per user.
    pub fn issue_tokens(&self, identities: &[UserIdentity], server: &str) -> Result<()> {
        let mut lines = String::new();
        for identity in identities {
            let token = random_token()?;
            let user = &identity.user;
            writeln!(lines, "{token},{user},{user},\"{}\"", identity.groups.join(","))?;
            self.write_kubeconfig(&identity.file_stem(), server, &token)?;
        }
        self.write("tokens.csv", &lines)
    }

    /// The token in `STEM.kubeconfig`.
    pub fn token(&self, stem: &str) -> Result<String> {
        let path = self.path(&format!("{stem}.kubeconfig"));
        let text = std::fs::read_to_string(&path);
        let text = text.with_context(|| format!("reading {}", path.display()))?;
        let kubeconfig: Value = serde_json::from_str(&text).context("reading a kubeconfig")?;
        let token = kubeconfig["users"][0]["user"]["token"].as_str();
        Ok(token.with_context(|| format!("{} has no token", path.display()))?.to_owned())
    }

    /// Writes a client certificate of this user that is valid from now on, for this long, to `STEM.crt`. The key in `STEM.key` stays.
    pub fn issue_certificate(&self, identity: &UserIdentity, lifetime: Duration) -> Result<()> {
        let stem = identity.file_stem();
        let key_path = self.path(&format!("{stem}.key"));
        if !key_path.exists() {
            let key = KeyPair::generate().context("creating a user's key")?;
            self.write(&format!("{stem}.key"), &key.serialize_pem())?;
        }
        let key = std::fs::read_to_string(&key_path).context("reading a user's key")?;
        let key = KeyPair::from_pem(&key).context("reading a user's key")?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, &identity.user);
        for group in &identity.groups {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        params.not_before = epoch + now;
        params.not_after = epoch + now + lifetime;
        let certificate = params.signed_by(&key, &self.authority);
        let certificate = certificate.context("signing a user's certificate")?;
        // Renamed, so that a reader sees the one or the other.
        self.write(&format!("{stem}.new"), &certificate.pem())?;
        let (new, path) = (self.path(&format!("{stem}.new")), self.path(&format!("{stem}.crt")));
        std::fs::rename(&new, &path).with_context(|| format!("writing {}", path.display()))
    }

    /// Writes `STEM.kubeconfig` for the user's certificate.
    pub fn write_certificate_kubeconfig(&self, stem: &str, server: &str) -> Result<PathBuf> {
        let (certificate, key) =
            (self.path(&format!("{stem}.crt")), self.path(&format!("{stem}.key")));
        let user = json!({"client-certificate": certificate, "client-key": key});
        self.write_kubeconfig_for(stem, server, &user)
    }

    /// Writes `STEM.kubeconfig` as JSON, which is valid YAML.
    pub fn write_kubeconfig(&self, stem: &str, server: &str, token: &str) -> Result<PathBuf> {
        self.write_kubeconfig_for(stem, server, &json!({"token": token}))
    }

    fn write_kubeconfig_for(&self, stem: &str, server: &str, user: &Value) -> Result<PathBuf> {
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": {
                "server": server, "certificate-authority": self.path("ca.crt")}}],
            "users": [{"name": stem, "user": user}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": stem}}],
            "current-context": "e2e",
        });
        let name = format!("{stem}.kubeconfig");
        self.write(&name, &format!("{kubeconfig:#}\n"))?;
        Ok(self.path(&name))
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.path(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }
}

/// 128 random bits in hexadecimal, so that other users of this machine cannot guess the token.
fn random_token() -> Result<String> {
    let mut bytes = [0_u8; 16];
    let source =
        std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    source.context("reading /dev/urandom")?;
    Ok(crate::hex(&bytes))
}
