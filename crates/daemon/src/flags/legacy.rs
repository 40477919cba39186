//! Flags of kube-scheduler versions before 1.36. Flags with an equivalent are translated and flags without
//! effect are ignored, both with a warning; removed flags are errors that name the alternative.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::{Options, pflag};

/// Values of legacy flags without an equivalent current flag. The first three are used only without `--config`, as in older versions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LegacyFlags {
    /// `--algorithm-provider`: ClusterAutoscalerProvider was given, which prefers nodes that are used.
    pub prefers_used_nodes: bool,
    /// `--scheduler-name`: the name of the only profile.
    pub scheduler_name: Option<String>,
    /// `--hard-pod-affinity-symmetric-weight`: an argument of InterPodAffinity.
    pub hard_pod_affinity_weight: Option<i32>,
    /// `--policy-config-file`: the file of a Policy.
    pub policy_config_file: String,
    /// `--policy-configmap`: the ConfigMap of a Policy.
    pub policy_configmap: String,
    /// `--policy-configmap-namespace`: its namespace.
    pub policy_configmap_namespace: String,
    /// `--use-legacy-policy-config`: the file takes precedence over the ConfigMap.
    pub use_legacy_policy_config: bool,
}

struct LegacyFlag {
    name: &'static str,
    is_bool: bool,
    meaning: Meaning,
}

enum Meaning {
    /// The flag has no effect, whatever its value; the reason.
    NoEffect(&'static str),
    /// These values are accepted and have no effect; any other value is an error.
    Removed { ignored_values: &'static [&'static str], alternative: &'static str },
    /// Another flag or field replaces it.
    Replaced { successor: &'static str, apply: fn(&mut Options, &str) -> Result<(), String> },
}

use Meaning::{NoEffect, Removed, Replaced};

const fn string_flag(name: &'static str, meaning: Meaning) -> LegacyFlag {
    LegacyFlag { name, is_bool: false, meaning }
}

const fn bool_flag(name: &'static str, meaning: Meaning) -> LegacyFlag {
    LegacyFlag { name, is_bool: true, meaning }
}

const TO_STDERR: &str = "logs go to standard error; redirect it";
const NO_FILES: &str = "log files are not supported";
const NO_INSECURE: &str = "insecure serving was removed; use --bind-address and --secure-port";
const POLICY: &str =
    "a KubeSchedulerConfiguration with --config; `loadmaster config convert` makes one of a Policy";

/// The flags of kube-scheduler 1.10 to 1.35 that 1.36 does not have.
const FLAGS: &[LegacyFlag] = &[
    bool_flag("add-dir-header", NoEffect("log lines contain the file name without its directory")),
    string_flag("address", NoEffect(NO_INSECURE)),
    string_flag(
        "algorithm-provider",
        Replaced {
            successor: "a KubeSchedulerConfiguration with --config",
            apply: algorithm_provider,
        },
    ),
    bool_flag("alsologtostderr", NoEffect("logs always go to standard error")),
    string_flag("azure-container-registry-config", NoEffect("the scheduler pulls no images")),
    string_flag("bind-pods-burst", Replaced { successor: "--kube-api-burst", apply: burst }),
    string_flag("bind-pods-qps", Replaced { successor: "--kube-api-qps", apply: qps }),
    bool_flag("experimental-logging-sanitization", NoEffect("secrets are never logged")),
    string_flag("failure-domains", NoEffect("topology keys are set by pods")),
    string_flag("google-json-key", NoEffect("cloud providers are not supported")),
    string_flag(
        "hard-pod-affinity-symmetric-weight",
        Replaced {
            successor: "hardPodAffinityWeight of InterPodAffinity in a file for --config",
            apply: hard_pod_affinity_weight,
        },
    ),
    string_flag(
        "lock-object-name",
        Replaced { successor: "--leader-elect-resource-name", apply: lock_name },
    ),
    string_flag(
        "lock-object-namespace",
        Replaced { successor: "--leader-elect-resource-namespace", apply: lock_namespace },
    ),
    string_flag(
        "log-backtrace-at",
        Removed {
            ignored_values: &["", ":0"],
            alternative: "no backtraces are logged; use -v or --vmodule",
        },
    ),
    string_flag("log-dir", Removed { ignored_values: &[""], alternative: TO_STDERR }),
    string_flag("log-file", Removed { ignored_values: &[""], alternative: TO_STDERR }),
    string_flag("log-file-max-size", NoEffect(NO_FILES)),
    bool_flag("logtostderr", Removed { ignored_values: &["true"], alternative: TO_STDERR }),
    bool_flag("one-output", NoEffect(NO_FILES)),
    string_flag("policy-config-file", Replaced { successor: POLICY, apply: policy_config_file }),
    string_flag("policy-configmap", Replaced { successor: POLICY, apply: policy_configmap }),
    string_flag(
        "policy-configmap-namespace",
        Replaced { successor: POLICY, apply: policy_configmap_namespace },
    ),
    string_flag("port", NoEffect(NO_INSECURE)),
    string_flag(
        "scheduler-name",
        Replaced {
            successor: "profiles[0].schedulerName in a file for --config",
            apply: scheduler_name,
        },
    ),
    bool_flag(
        "skip-headers",
        Removed {
            ignored_values: &["false"],
            alternative: "log lines always have a header; use --logging-format=json to parse them",
        },
    ),
    bool_flag("skip-log-headers", NoEffect(NO_FILES)),
    string_flag("stderrthreshold", NoEffect("logs always go to standard error")),
    bool_flag(
        "use-legacy-policy-config",
        Replaced { successor: POLICY, apply: use_legacy_policy_config },
    ),
];

fn burst(options: &mut Options, value: &str) -> Result<(), String> {
    options.deprecated.kube_api_burst = pflag::integer(value)?;
    options.given.insert("kube-api-burst".to_owned());
    Ok(())
}

fn qps(options: &mut Options, value: &str) -> Result<(), String> {
    options.deprecated.kube_api_qps = pflag::float(value)?;
    options.given.insert("kube-api-qps".to_owned());
    Ok(())
}

fn lock_name(options: &mut Options, value: &str) -> Result<(), String> {
    if options.given.insert("leader-elect-resource-name".to_owned()) {
        value.clone_into(&mut options.leader_election.leader_elect_resource_name);
    }
    Ok(())
}

fn lock_namespace(options: &mut Options, value: &str) -> Result<(), String> {
    if options.given.insert("leader-elect-resource-namespace".to_owned()) {
        value.clone_into(&mut options.leader_election.leader_elect_resource_namespace);
    }
    Ok(())
}

fn scheduler_name(options: &mut Options, value: &str) -> Result<(), String> {
    options.legacy.scheduler_name = Some(value.to_owned());
    Ok(())
}

fn hard_pod_affinity_weight(options: &mut Options, value: &str) -> Result<(), String> {
    options.legacy.hard_pod_affinity_weight = Some(pflag::integer(value)?);
    Ok(())
}

/// DefaultProvider is what there is without the flag.
fn algorithm_provider(options: &mut Options, value: &str) -> Result<(), String> {
    options.legacy.prefers_used_nodes = match value {
        "" | "DefaultProvider" => false,
        "ClusterAutoscalerProvider" => true,
        _ => {
            return Err(format!(
                "algorithm provider {value:?} is not registered: DefaultProvider or ClusterAutoscalerProvider is expected"
            ));
        }
    };
    Ok(())
}

fn policy_config_file(options: &mut Options, value: &str) -> Result<(), String> {
    value.clone_into(&mut options.legacy.policy_config_file);
    Ok(())
}

fn policy_configmap(options: &mut Options, value: &str) -> Result<(), String> {
    value.clone_into(&mut options.legacy.policy_configmap);
    Ok(())
}

fn policy_configmap_namespace(options: &mut Options, value: &str) -> Result<(), String> {
    value.clone_into(&mut options.legacy.policy_configmap_namespace);
    Ok(())
}

fn use_legacy_policy_config(options: &mut Options, value: &str) -> Result<(), String> {
    options.legacy.use_legacy_policy_config = pflag::boolean(value)?;
    Ok(())
}

/// Adds these flags, hidden in help.
pub(super) fn augment(command: Command) -> Command {
    command.args(FLAGS.iter().map(|flag| {
        let kind = if flag.is_bool { "bool" } else { "string" };
        Arg::new(flag.name).long(flag.name).value_name(kind).action(ArgAction::Set).hide(true)
    }))
}

/// Applies the legacy flags that were set.
pub(super) fn apply(matches: &ArgMatches, options: &mut Options) -> Result<(), String> {
    for flag in FLAGS {
        if matches.value_source(flag.name) != Some(ValueSource::CommandLine) {
            continue;
        }
        let mut value = matches.get_one::<String>(flag.name).cloned().unwrap_or_default();
        let fail = |why: &str| format!("error: --{}={value}: {why}", flag.name);
        if flag.is_bool {
            value = pflag::boolean(&value).map_err(|error| fail(&error))?.to_string();
        }
        let fail = |why: &str| format!("error: --{}={value}: {why}", flag.name);
        let warning = match &flag.meaning {
            NoEffect(why) => format!("has no effect: {why}"),
            Removed { ignored_values, alternative } if ignored_values.contains(&value.as_str()) => {
                format!("has no effect at this value; otherwise: {alternative}")
            }
            Removed { alternative, .. } => return Err(fail(alternative)),
            Replaced { successor, apply } => {
                apply(options, &value).map_err(|error| fail(&error))?;
                format!("is deprecated; use {successor}")
            }
        };
        options.warnings.push(format!("--{} {warning}", flag.name));
    }
    Ok(())
}
