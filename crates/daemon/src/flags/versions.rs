//! The reported version and the emulated version.

use std::fmt;

/// The kube-scheduler version that Loadmaster is compatible with, with Loadmaster's version as build metadata.
pub const KUBERNETES_VERSION: &str = concat!("v1.36.3+loadmaster.", env!("CARGO_PKG_VERSION"));
/// The prefix of every reported version.
const KUBERNETES_RELEASE: &str = "v1.36.3";

/// A version of Kubernetes without its patch release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 1.
    pub major: u32,
    /// 36.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

const fn v1(minor: u32) -> Version {
    Version { major: 1, minor }
}

/// The version of this binary.
const BINARY: Version = v1(36);
/// The oldest version that can be emulated: three before the binary version.
const OLDEST: Version = v1(33);
const COMPONENT: &str = "kube";

/// Binary, emulation and minimum compatibility version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The binary version.
    pub binary: Version,
    /// The emulation version.
    pub emulated: Version,
    /// The minimum compatibility version.
    pub min_compatibility: Version,
}

impl Default for Versions {
    fn default() -> Self {
        Versions { binary: BINARY, emulated: BINARY, min_compatibility: v1(35) }
    }
}

/// An invalid version flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VersionsError {
    /// Not of the form `1.36`.
    #[error("illegal version string {0:?}: only major.minor is accepted")]
    Syntax(String),
    /// The component is not `kube`.
    #[error("component not registered: {0}")]
    Component(String),
    /// The emulation version is out of range.
    #[error("emulation version {0} is not between [{OLDEST}, {BINARY}.0]")]
    Emulated(Version),
    /// The minimum compatibility version is out of range.
    #[error("minCompatibilityVersion version {got} is not between [{OLDEST}, {emulated}]")]
    MinCompatibility {
        /// The requested version.
        got: Version,
        /// The emulation version, which is the upper bound.
        emulated: Version,
    },
}

impl Versions {
    /// Parses `--emulated-version` and `--min-compatibility-version`. The minimum compatibility version
    /// defaults to the version before the emulated one.
    pub fn parse(emulated: &[String], min: &[String]) -> Result<Versions, VersionsError> {
        let emulated = last(emulated)?.unwrap_or(BINARY);
        if !(OLDEST..=BINARY).contains(&emulated) {
            return Err(VersionsError::Emulated(emulated));
        }
        let min_compatibility = match last(min)? {
            Some(min) if (OLDEST..=emulated).contains(&min) => min,
            Some(min) => return Err(VersionsError::MinCompatibility { got: min, emulated }),
            None => v1(emulated.minor - 1).max(OLDEST),
        };
        Ok(Versions { binary: BINARY, emulated, min_compatibility })
    }
}

fn last(values: &[String]) -> Result<Option<Version>, VersionsError> {
    let mut version = None;
    for value in values {
        let (component, text) = value.split_once('=').unwrap_or((COMPONENT, value));
        if component != COMPONENT {
            return Err(VersionsError::Component(component.to_owned()));
        }
        let text = text.strip_prefix('v').unwrap_or(text);
        let parsed = text.split_once('.').and_then(|(major, minor)| {
            Some(Version { major: major.parse().ok()?, minor: minor.parse().ok()? })
        });
        version = Some(parsed.ok_or_else(|| VersionsError::Syntax(value.clone()))?);
    }
    Ok(version)
}

/// The meaning of the value of `--version`.
pub(super) enum VersionFlag {
    /// Run and report this version.
    Report(String),
    /// Print the program's version and exit.
    Print,
    /// Print this and exit.
    PrintRaw(String),
}

/// Parses the value of `--version`.
pub(super) fn parse_version_flag(value: &str) -> Result<VersionFlag, String> {
    if value == "raw" {
        let text = format!(
            "version.Info{{Major:\"1\", Minor:\"36\", GitVersion:{KUBERNETES_VERSION:?}, GoVersion:\"\", \
             Compiler:\"rustc\", Platform:\"{}\"}}\n",
            platform()
        );
        return Ok(VersionFlag::PrintRaw(text));
    }
    if value.starts_with('v') {
        let release = |version: &str| version.split(['-', '+']).next().map(str::to_owned);
        if release(value).as_deref() != Some(KUBERNETES_RELEASE) {
            return Err(format!(
                "error: invalid argument {value:?} for \"--version\" flag: version {value:?} must match \
                 major/minor/patch of default version {KUBERNETES_RELEASE:?}"
            ));
        }
        return Ok(VersionFlag::Report(value.to_owned()));
    }
    match super::pflag::boolean(value) {
        Ok(true) => Ok(VersionFlag::Print),
        Ok(false) => Ok(VersionFlag::Report(KUBERNETES_VERSION.to_owned())),
        Err(error) => {
            Err(format!("error: invalid argument {value:?} for \"--version\" flag: {error}"))
        }
    }
}

/// Operating system and architecture, by Go's names: `linux/amd64`.
pub(crate) fn platform() -> String {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{}/{arch}", std::env::consts::OS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(emulated: &str, min: &str, want: &str) {
        let list =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        let got = match Versions::parse(&list(emulated), &list(min)) {
            Ok(it) => format!("{} {} {}", it.binary, it.emulated, it.min_compatibility),
            Err(error) => error.to_string(),
        };
        assert_eq!(got, want);
    }

    #[test]
    fn emulation() {
        check("", "", "1.36 1.36 1.35");
        check("1.33", "", "1.36 1.33 1.33");
        check("kube=1.35", "1.34", "1.36 1.35 1.34");
        check("1.33 1.34", "", "1.36 1.34 1.33");
        check("1.20", "", "emulation version 1.20 is not between [1.33, 1.36.0]");
        check("1.37", "", "emulation version 1.37 is not between [1.33, 1.36.0]");
        check("foo=1.36", "", "component not registered: foo");
        check("1.35", "1.36", "minCompatibilityVersion version 1.36 is not between [1.33, 1.35]");
        check("1", "", "illegal version string \"1\": only major.minor is accepted");
    }
}
