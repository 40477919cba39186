//! Flags that kube-scheduler had before 1.36. What still has a meaning is taken over, what never
//! mattered is dropped, both with a warning; what is gone is refused, with the way out.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::{Options, go};

/// What older flags say that no flag says any more; used only without `--config`, as it always was.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Older {
    /// `--scheduler-name`: the name of the only profile.
    pub scheduler_name: Option<String>,
    /// `--hard-pod-affinity-symmetric-weight`: an argument of InterPodAffinity.
    pub hard_pod_affinity_weight: Option<i32>,
}

struct Flag {
    name: &'static str,
    is_bool: bool,
    meaning: Meaning,
}

enum Meaning {
    /// It changes nothing, whatever it says; why.
    Nothing(&'static str),
    /// These values change nothing; any other asks for what is gone.
    Gone { harmless: &'static [&'static str], way_out: &'static str },
    /// It lives on elsewhere.
    Lives { successor: &'static str, take: fn(&mut Options, &str) -> Result<(), String> },
}

use Meaning::{Gone, Lives, Nothing};

const fn text(name: &'static str, meaning: Meaning) -> Flag {
    Flag { name, is_bool: false, meaning }
}

const fn switch(name: &'static str, meaning: Meaning) -> Flag {
    Flag { name, is_bool: true, meaning }
}

const TO_STDERR: &str = "logs go to standard error; redirect it";
const NO_FILES: &str = "it is about log files, of which there are none";
const NO_INSECURE: &str =
    "there is no serving without TLS any more; use --bind-address and --secure-port";
const POLICY: &str = "a Policy is not read since 1.23; say the same in a KubeSchedulerConfiguration and give it with --config";

/// From the flags of kube-scheduler 1.10 to 1.35.
const FLAGS: &[Flag] = &[
    switch("add-dir-header", Nothing("log lines name the file without its folder")),
    text("address", Nothing(NO_INSECURE)),
    text(
        "algorithm-provider",
        Gone {
            harmless: &["", "DefaultProvider"],
            way_out: "providers are gone since 1.22; for ClusterAutoscalerProvider set scoringStrategy.type \
                      MostAllocated of NodeResourcesFit in a KubeSchedulerConfiguration",
        },
    ),
    switch("alsologtostderr", Nothing("logs always go to standard error")),
    text("azure-container-registry-config", Nothing("a scheduler pulls no images")),
    text("bind-pods-burst", Lives { successor: "--kube-api-burst", take: burst }),
    text("bind-pods-qps", Lives { successor: "--kube-api-qps", take: qps }),
    switch("experimental-logging-sanitization", Nothing("secrets are never logged")),
    text("failure-domains", Nothing("topology keys are given by pods")),
    text("google-json-key", Nothing("there are no cloud providers")),
    text(
        "hard-pod-affinity-symmetric-weight",
        Lives {
            successor: "hardPodAffinityWeight of InterPodAffinity in a file for --config",
            take: hard_pod_affinity_weight,
        },
    ),
    text("lock-object-name", Lives { successor: "--leader-elect-resource-name", take: lock_name }),
    text(
        "lock-object-namespace",
        Lives { successor: "--leader-elect-resource-namespace", take: lock_namespace },
    ),
    text(
        "log-backtrace-at",
        Gone { harmless: &["", ":0"], way_out: "no backtraces are logged; use -v or --vmodule" },
    ),
    text("log-dir", Gone { harmless: &[""], way_out: TO_STDERR }),
    text("log-file", Gone { harmless: &[""], way_out: TO_STDERR }),
    text("log-file-max-size", Nothing(NO_FILES)),
    switch("logtostderr", Gone { harmless: &["true"], way_out: TO_STDERR }),
    switch("one-output", Nothing(NO_FILES)),
    text("policy-config-file", Gone { harmless: &[""], way_out: POLICY }),
    text("policy-configmap", Gone { harmless: &[""], way_out: POLICY }),
    text("policy-configmap-namespace", Nothing("it is about --policy-configmap, which is gone")),
    text("port", Gone { harmless: &["0"], way_out: NO_INSECURE }),
    text(
        "scheduler-name",
        Lives {
            successor: "profiles[0].schedulerName in a file for --config",
            take: scheduler_name,
        },
    ),
    switch(
        "skip-headers",
        Gone {
            harmless: &["false"],
            way_out: "log lines always have a header; use --logging-format=json to parse them",
        },
    ),
    switch("skip-log-headers", Nothing(NO_FILES)),
    text("stderrthreshold", Nothing("logs always go to standard error")),
    switch("use-legacy-policy-config", Gone { harmless: &["false"], way_out: POLICY }),
];

fn burst(options: &mut Options, value: &str) -> Result<(), String> {
    options.deprecated.kube_api_burst = go::integer(value)?;
    options.given.insert("kube-api-burst".to_owned());
    Ok(())
}

fn qps(options: &mut Options, value: &str) -> Result<(), String> {
    options.deprecated.kube_api_qps = go::float(value)?;
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
    options.older.scheduler_name = Some(value.to_owned());
    Ok(())
}

fn hard_pod_affinity_weight(options: &mut Options, value: &str) -> Result<(), String> {
    options.older.hard_pod_affinity_weight = Some(go::integer(value)?);
    Ok(())
}

/// Adds these flags, unseen in help.
pub(super) fn augment(command: Command) -> Command {
    command.args(FLAGS.iter().map(|flag| {
        let kind = if flag.is_bool { "bool" } else { "string" };
        Arg::new(flag.name).long(flag.name).value_name(kind).action(ArgAction::Set).hide(true)
    }))
}

/// Does what the given ones say.
pub(super) fn apply(matches: &ArgMatches, options: &mut Options) -> Result<(), String> {
    for flag in FLAGS {
        if matches.value_source(flag.name) != Some(ValueSource::CommandLine) {
            continue;
        }
        let mut value = matches.get_one::<String>(flag.name).cloned().unwrap_or_default();
        let fail = |why: &str| format!("error: --{}={value}: {why}", flag.name);
        if flag.is_bool {
            value = go::boolean(&value).map_err(|error| fail(&error))?.to_string();
        }
        let fail = |why: &str| format!("error: --{}={value}: {why}", flag.name);
        let warning = match &flag.meaning {
            Nothing(why) => format!("has no effect: {why}"),
            Gone { harmless, way_out } if harmless.contains(&value.as_str()) => {
                format!("has no effect at this value; otherwise: {way_out}")
            }
            Gone { way_out, .. } => return Err(fail(way_out)),
            Lives { successor, take } => {
                take(options, &value).map_err(|error| fail(&error))?;
                format!("is deprecated; use {successor}")
            }
        };
        options.warnings.push(format!("--{} {warning}", flag.name));
    }
    Ok(())
}
