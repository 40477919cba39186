//! Validation of flags and their combinations, with upstream's error messages.

use super::{MetricsFlags, Options, Versions};

/// The version before this one.
const PREVIOUS: &str = "1.35";

pub(super) fn validate(options: &Options) -> Vec<String> {
    let mut errors = Vec::new();
    let features = &options.features;
    if let Err(error) =
        Versions::parse(&features.emulated_version, &features.min_compatibility_version)
    {
        errors.push(error.to_string());
    }
    serving(options, &mut errors);
    request_headers(options, &mut errors);
    always_allow_paths(options, &mut errors);
    metrics(&options.metrics, &mut errors);
    let legacy = &options.legacy;
    if legacy.use_legacy_policy_config && legacy.policy_config_file.is_empty() {
        let text =
            "policyConfigFile: Required value: required when --use-legacy-policy-config is true";
        errors.push(text.to_owned());
    }
    if options.loadmaster.record.is_empty() && options.loadmaster.record_max_size > 0 {
        errors.push("--record-max-size requires --record".to_owned());
    }
    if !options.loadmaster.shadow_report.is_empty() && !options.loadmaster.shadow {
        errors.push("--shadow-report requires --shadow".to_owned());
    }
    errors
}

fn serving(options: &Options, errors: &mut Vec<String>) {
    let serving = &options.serving;
    if !(0..=65535).contains(&serving.secure_port) {
        errors.push(format!(
            "--secure-port {} must be between 0 and 65535, inclusive. 0 for turning off secure port",
            serving.secure_port
        ));
    }
    match (serving.tls_cert_file.is_empty(), serving.tls_private_key_file.is_empty()) {
        (false, true) | (true, false) => {
            errors.push("missing filename for serving cert".to_owned());
        }
        _ => {}
    }
}

fn request_headers(options: &Options, errors: &mut Vec<String>) {
    let it = &options.authentication;
    for (flag, values) in [
        ("requestheader-username-headers", &it.requestheader_username_headers),
        ("requestheader-group-headers", &it.requestheader_group_headers),
        ("requestheader-extra-headers-prefix", &it.requestheader_extra_headers_prefix),
        ("requestheader-allowed-names", &it.requestheader_allowed_names),
        ("requestheader-uid-headers", &it.requestheader_uid_headers),
    ] {
        if values.iter().any(|value| value.trim().is_empty()) {
            errors.push(format!("empty value in {flag:?}"));
        }
    }
    let uid = &it.requestheader_uid_headers;
    if !uid.is_empty() && !uid.iter().any(|header| header.eq_ignore_ascii_case("X-Remote-Uid")) {
        errors.push(
            "--requestheader-uid-headers is set without specifying the standard X-Remote-Uid header - API \
             aggregation will not work"
                .to_owned(),
        );
    }
}

fn always_allow_paths(options: &Options, errors: &mut Vec<String>) {
    for path in &options.authorization.authorization_always_allow_paths {
        let path = path.trim_start_matches('/');
        if path.find('*').is_some_and(|idx| idx + 1 != path.len()) {
            errors.push(format!("only trailing * allowed in {path:?}"));
        }
    }
}

fn metrics(flags: &MetricsFlags, errors: &mut Vec<String>) {
    let shown = &flags.show_hidden_metrics_for_version;
    if !shown.is_empty() && shown != PREVIOUS {
        errors.push(format!(
            "metrics.showHiddenMetricsForVersion: Invalid value: {shown:?}: must be omitted or have the value \
             '{PREVIOUS}'; only the previous minor version is allowed"
        ));
    }
    for (key, _) in flags.allow_metric_labels.iter().flatten() {
        if !is_metric_label(key) {
            errors.push(format!(
                "metrics.allowListMapping: Invalid value: {key:?}: must have keys with format `metricName,labelName` \
                 where metricName matches \"[a-zA-Z_:][a-zA-Z0-9_:]*\" and labelName matches \"[a-zA-Z_][a-zA-Z0-9_]*\""
            ));
        }
    }
}

/// Whether this is `metric,label`.
pub(crate) fn is_metric_label(key: &str) -> bool {
    let is_name = |text: &str, colon: bool| {
        let letter = |c: char| c == '_' || c.is_ascii_alphabetic() || (colon && c == ':');
        text.starts_with(letter) && text.chars().all(|c| letter(c) || c.is_ascii_digit())
    };
    key.split_once(',')
        .is_some_and(|(metric, label)| is_name(metric, true) && is_name(label, false))
}
