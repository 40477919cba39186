//! Which version is reported, and which one is stood in for.

use std::fmt;

/// The kube-scheduler that this scheduler equals, with our own version as build metadata.
pub const KUBERNETES_VERSION: &str = concat!("v1.36.3+loadmaster.", env!("CARGO_PKG_VERSION"));
/// What every reported version starts with.
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
/// The oldest that can be emulated: three before.
const OLDEST: Version = v1(33);
const COMPONENT: &str = "kube";

/// What this scheduler says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// What was built.
    pub binary: Version,
    /// What it stands in for.
    pub emulated: Version,
    /// The oldest it works with.
    pub min_compatibility: Version,
}

impl Default for Versions {
    fn default() -> Self {
        Versions { binary: BINARY, emulated: BINARY, min_compatibility: v1(35) }
    }
}

/// A version flag that cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VersionsError {
    /// Not `1.36`.
    #[error("illegal version string {0:?}: only major.minor is accepted")]
    Syntax(String),
    /// Not `kube=`.
    #[error("component not registered: {0}")]
    Component(String),
    /// Too old or too new to stand in for.
    #[error("emulation version {0} is not between [{OLDEST}, {BINARY}.0]")]
    Emulated(Version),
    /// Too old or too new to work with.
    #[error("minCompatibilityVersion version {got} is not between [{OLDEST}, {emulated}]")]
    MinCompatibility {
        /// What was asked for.
        got: Version,
        /// The upper bound.
        emulated: Version,
    },
}

impl Versions {
    /// From `--emulated-version` and `--min-compatibility-version`. The oldest version to work with is
    /// by default the one before the emulated one.
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

/// What `--version` asks for.
pub(super) enum Asked {
    /// Run, reporting this version.
    Report(String),
    /// Print this and exit.
    Print(String),
}

/// Reads the value of `--version`.
pub(super) fn asked(value: &str) -> Result<Asked, String> {
    if value == "raw" {
        let text = format!(
            "version.Info{{Major:\"1\", Minor:\"36\", GitVersion:{KUBERNETES_VERSION:?}, GoVersion:\"\", \
             Compiler:\"rustc\", Platform:\"{}\"}}\n",
            platform()
        );
        return Ok(Asked::Print(text));
    }
    if value.starts_with('v') {
        let release = |version: &str| version.split(['-', '+']).next().map(str::to_owned);
        if release(value).as_deref() != Some(KUBERNETES_RELEASE) {
            return Err(format!(
                "error: invalid argument {value:?} for \"--version\" flag: version {value:?} must match \
                 major/minor/patch of default version {KUBERNETES_RELEASE:?}"
            ));
        }
        return Ok(Asked::Report(value.to_owned()));
    }
    match super::go::boolean(value) {
        Ok(true) => Ok(Asked::Print(format!("Kubernetes {KUBERNETES_VERSION}\n"))),
        Ok(false) => Ok(Asked::Report(KUBERNETES_VERSION.to_owned())),
        Err(error) => {
            Err(format!("error: invalid argument {value:?} for \"--version\" flag: {error}"))
        }
    }
}

/// Operating system and processor by Go's names: `linux/amd64`.
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
