//! The copies of `deploy/monitoring/` that kustomize and helm need where they read files: the alerts as a PrometheusRule, and the files of the
//! chart.

use anyhow::{Context as _, Result};

const ALERTS: &str = "deploy/monitoring/alerts.yaml";
const DASHBOARD: &str = "deploy/monitoring/dashboard.json";

/// Paths below the root of the repository, with their contents.
fn copies() -> Result<[(&'static str, String); 3]> {
    let (alerts, dashboard) = (read(ALERTS)?, read(DASHBOARD)?);
    // The comments are for those who change the alerts.
    let rules: Vec<&str> =
        alerts.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    let header = format!("# Written by `cargo xtask e2e manifests --write` from {ALERTS}.\n");
    let indented: String = rules
        .iter()
        .map(|line| if line.is_empty() { "\n".to_owned() } else { format!("  {line}\n") })
        .collect();
    Ok([
        (
            "deploy/monitoring/prometheus-rule.yaml",
            format!("{header}{PROMETHEUS_RULE}spec:\n{indented}"),
        ),
        ("deploy/helm/loadmaster/files/alerts.yaml", format!("{header}{}\n", rules.join("\n"))),
        ("deploy/helm/loadmaster/files/dashboard.json", dashboard),
    ])
}

const PROMETHEUS_RULE: &str = "\
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: loadmaster
  namespace: kube-system
  labels:
    app.kubernetes.io/name: loadmaster
    app.kubernetes.io/component: scheduler
";

/// Writes the copies.
pub fn write() -> Result<()> {
    for (path, text) in copies()? {
        let file = crate::root()?.join(path);
        std::fs::write(file, text).with_context(|| format!("writing {path}"))?;
    }
    Ok(())
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(crate::root()?.join(path)).with_context(|| format!("reading {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copies_are_up_to_date() {
        for (path, text) in copies().unwrap() {
            let is_same = read(path).unwrap() == text;
            assert!(is_same, "{path}: run `cargo xtask e2e manifests --write`");
        }
    }

    #[test]
    fn the_object_has_the_groups_of_the_rule_file() {
        let parse = |text: &str| serde_saphyr::from_str::<serde_json::Value>(text).unwrap();
        let file = parse(&read(ALERTS).unwrap());
        let object = parse(&read("deploy/monitoring/prometheus-rule.yaml").unwrap());
        assert_eq!(object["spec"], file);
        assert!(!file["groups"][0]["rules"].as_array().unwrap().is_empty());
    }
}
