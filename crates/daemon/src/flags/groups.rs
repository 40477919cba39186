//! The flags of kube-scheduler 1.36, one struct a group of its help. In strings, empty means not
//! given. Names, types and defaults are upstream's; the value names are upstream's type names, by
//! which [`super::listing`] knows how to print a value.

use std::net::IpAddr;

use clap::{ArgAction, Args};
use loadmaster_config::Duration;

use super::go::{self, NamedCertKey};

/// What to run.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Misc flags")]
pub struct Misc {
    /// Read the scheduler's configuration from this file.
    #[arg(long, value_name = "string", default_value = "")]
    pub config: String,
    /// Talk to the API server at this address, whatever the kubeconfig says.
    #[arg(long, value_name = "string", default_value = "")]
    pub master: String,
    /// Write the configuration with all its defaults to this file, and exit.
    #[arg(long, value_name = "string", default_value = "")]
    pub write_config_to: String,
}

/// What kube-scheduler does not have.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = OWN)]
pub struct Own {
    /// Decide nothing and write nothing: judge every decision of the scheduler that is there.
    #[arg(long, value_name = "bool", default_value = "false", value_parser = go::boolean, action = ArgAction::Set)]
    pub shadow: bool,
    /// Record all that is seen and decided to this file, which must not exist, for `loadmaster replay`. It holds the cluster's
    /// pods, nodes and so on as the API server sends them.
    #[arg(long, value_name = "string", default_value = "")]
    pub record: String,
    /// End the recording before the file is larger than this; 0: never.
    #[arg(long, value_name = "quantity", default_value = "0", value_parser = go::bytes)]
    pub record_max_size: u64,
    /// Hold one decision in so many against asking every plugin about every node; 0: none. A difference is a bug, and is logged
    /// and counted as one.
    #[arg(long, value_name = "int", default_value = "0", value_parser = go::integer::<u64>)]
    pub check_every: u64,
}

/// The heading of [`Own`].
pub(super) const OWN: &str = "Loadmaster flags";

/// How the endpoints are served.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Secure serving flags")]
pub struct SecureServing {
    /// Listen on this address; all interfaces and both address families if it is 0.0.0.0 or ::.
    #[arg(long, value_name = "ip", default_value = "0.0.0.0", value_parser = go::address)]
    pub bind_address: IpAddr,
    /// Serve HTTPS on this port, with authentication and authorization; 0 serves nothing.
    #[arg(long, value_name = "int", default_value = "10259", value_parser = go::integer::<i64>)]
    pub secure_port: i64,
    /// Keep a self-signed certificate in this directory; without it, in memory. Not used with --tls-cert-file.
    #[arg(long, value_name = "string", default_value = "")]
    pub cert_dir: String,
    /// Certificate for HTTPS, followed by its chain, in PEM. It is read again when it changes.
    #[arg(long, value_name = "string", default_value = "")]
    pub tls_cert_file: String,
    /// Private key of --tls-cert-file, in PEM.
    #[arg(long, value_name = "string", default_value = "")]
    pub tls_private_key_file: String,
    /// Allow these cipher suites for TLS 1.2 only, by Go's names. Suites without forward secrecy, with CBC, RC4 or 3DES are never served.
    #[arg(long, value_name = "strings", value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,
    /// Allow these key exchanges only, by Go's numbers: 23 (P-256), 24 (P-384), 29 (X25519).
    #[arg(long, value_name = "int32s", value_delimiter = ',', value_parser = go::integer::<i32>)]
    pub tls_curve_preferences: Vec<i32>,
    /// Oldest TLS version: VersionTLS12 (the default) or VersionTLS13; older ones are taken for VersionTLS12.
    #[arg(long, value_name = "string", default_value = "")]
    pub tls_min_version: String,
    /// Certificate and key for some names: cert,key or cert,key:name,name. May be repeated.
    #[arg(long, value_name = "named-cert-key", value_parser = go::named_cert_key, action = ArgAction::Append)]
    pub tls_sni_cert_key: Vec<NamedCertKey>,
    /// Most streams at a time in an HTTP/2 connection; 0 means 250.
    #[arg(long, value_name = "int", default_value = "0", value_parser = go::integer::<u32>)]
    pub http2_max_streams_per_connection: u32,
    /// Serve HTTP/1.1 only.
    #[arg(long, value_name = "bool", default_value = "false", value_parser = go::boolean, action = ArgAction::Set)]
    pub disable_http2_serving: bool,
    /// Listen with SO_REUSEADDR. Loadmaster, as every Go program, always does.
    #[arg(long, value_name = "bool", default_value = "false", value_parser = go::boolean, action = ArgAction::Set)]
    pub permit_address_sharing: bool,
    /// Listen with SO_REUSEPORT, so that several processes may listen on one port.
    #[arg(long, value_name = "bool", default_value = "false", value_parser = go::boolean, action = ArgAction::Set)]
    pub permit_port_sharing: bool,
}

/// Who asks.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Authentication flags")]
pub struct Authentication {
    /// Kubeconfig of the API server that reviews tokens and knows the client CAs. Without it and outside of a cluster, nobody is known.
    #[arg(long, value_name = "string", default_value = "")]
    pub authentication_kubeconfig: String,
    /// Do not look for missing settings in the cluster, ConfigMap kube-system/extension-apiserver-authentication.
    #[arg(long, value_name = "bool", default_value = "false", value_parser = go::boolean, action = ArgAction::Set)]
    pub authentication_skip_lookup: bool,
    /// How long an answer about a token holds.
    #[arg(long, value_name = "duration", default_value = "10s")]
    pub authentication_token_webhook_cache_ttl: Duration,
    /// Start even if that ConfigMap cannot be read. All requests may then count as anonymous.
    #[arg(long, value_name = "bool", default_value = "true", value_parser = go::boolean, action = ArgAction::Set)]
    pub authentication_tolerate_lookup_failure: bool,
    /// Take the common name of a client certificate for the user, if one of these CAs signed it.
    #[arg(long, value_name = "string", default_value = "")]
    pub client_ca_file: String,
    /// Common names of the proxies that may name users in headers; empty: all that --requestheader-client-ca-file signed.
    #[arg(long, value_name = "strings", value_delimiter = ',')]
    pub requestheader_allowed_names: Vec<String>,
    /// CAs of the proxies that may name users in headers.
    #[arg(long, value_name = "string", default_value = "")]
    pub requestheader_client_ca_file: String,
    /// Prefixes of headers with more about the user.
    #[arg(long, value_name = "strings", value_delimiter = ',', default_values_t = ["x-remote-extra-".to_owned()])]
    pub requestheader_extra_headers_prefix: Vec<String>,
    /// Headers with the user's groups.
    #[arg(long, value_name = "strings", value_delimiter = ',', default_values_t = ["x-remote-group".to_owned()])]
    pub requestheader_group_headers: Vec<String>,
    /// Headers with the user's UID; X-Remote-Uid must be among them.
    #[arg(long, value_name = "strings", value_delimiter = ',')]
    pub requestheader_uid_headers: Vec<String>,
    /// Headers with the user's name.
    #[arg(long, value_name = "strings", value_delimiter = ',', default_values_t = ["x-remote-user".to_owned()])]
    pub requestheader_username_headers: Vec<String>,
}

/// Who may.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Authorization flags")]
pub struct Authorization {
    /// Paths anybody may get; a trailing * stands for any rest.
    #[arg(long, value_name = "strings", value_delimiter = ',', default_values_t = ["/healthz", "/readyz", "/livez"].map(str::to_owned))]
    pub authorization_always_allow_paths: Vec<String>,
    /// Kubeconfig of the API server that decides who may. Without it and outside of a cluster, only those paths are served.
    #[arg(long, value_name = "string", default_value = "")]
    pub authorization_kubeconfig: String,
    /// How long a yes holds.
    #[arg(long, value_name = "duration", default_value = "10s")]
    pub authorization_webhook_cache_authorized_ttl: Duration,
    /// How long a no holds.
    #[arg(long, value_name = "duration", default_value = "10s")]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,
}

/// What a configuration file says in other words; ignored with `--config`, but for the last one.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Deprecated flags")]
pub struct Deprecated {
    /// Serve /debug/. Ignored with --config.
    #[arg(long, value_name = "bool", default_value = "true", value_parser = go::boolean, action = ArgAction::Set)]
    pub profiling: bool,
    /// Means something to Go programs only. Ignored with --config.
    #[arg(long, value_name = "bool", default_value = "true", value_parser = go::boolean, action = ArgAction::Set)]
    pub contention_profiling: bool,
    /// Kubeconfig of the API server to schedule for. Ignored with --config.
    #[arg(long, value_name = "string", default_value = "")]
    pub kubeconfig: String,
    /// How requests to the API server are encoded. Ignored with --config.
    #[arg(long, value_name = "string", default_value = "application/vnd.kubernetes.protobuf")]
    pub kube_api_content_type: String,
    /// Requests a second to the API server. Ignored with --config.
    #[arg(long, value_name = "float32", default_value = "50", value_parser = go::float)]
    pub kube_api_qps: f32,
    /// Requests at once to the API server. Ignored with --config.
    #[arg(long, value_name = "int32", default_value = "100", value_parser = go::integer::<i32>)]
    pub kube_api_burst: i32,
    /// Longest stay of a pod among the unschedulable ones before it is tried again.
    #[arg(long, value_name = "duration", default_value = "5m0s")]
    pub pod_max_in_unschedulable_pods_duration: Duration,
}

/// Which of several schedulers works. What is given here is stronger than the file.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Leader election flags")]
pub struct LeaderElection {
    /// Schedule only while holding a Lease.
    #[arg(long, value_name = "bool", default_value = "true", value_parser = go::boolean, action = ArgAction::Set)]
    pub leader_elect: bool,
    /// How long others wait after the last renewal before they take the Lease.
    #[arg(long, value_name = "duration", default_value = "15s")]
    pub leader_elect_lease_duration: Duration,
    /// How long the leader tries to renew before it stops.
    #[arg(long, value_name = "duration", default_value = "10s")]
    pub leader_elect_renew_deadline: Duration,
    /// Time between tries.
    #[arg(long, value_name = "duration", default_value = "2s")]
    pub leader_elect_retry_period: Duration,
    /// Kind of the lock; only leases.
    #[arg(long, value_name = "string", default_value = "leases")]
    pub leader_elect_resource_lock: String,
    /// Name of the Lease.
    #[arg(long, value_name = "string", default_value = "kube-scheduler")]
    pub leader_elect_resource_name: String,
    /// Namespace of the Lease.
    #[arg(long, value_name = "string", default_value = "kube-system")]
    pub leader_elect_resource_namespace: String,
}

/// What is on.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Feature gate flags")]
pub struct Features {
    /// Gates to switch: Name=true,Name=false, each perhaps with the prefix kube:. May be repeated.
    #[arg(long, value_name = "gates", action = ArgAction::Append)]
    pub feature_gates: Vec<String>,
    /// Version to stand in for: 1.33 to 1.36, perhaps with the prefix kube=. Gates keep the defaults of 1.36.
    #[arg(long, value_name = "strings", value_delimiter = ',')]
    pub emulated_version: Vec<String>,
    /// Oldest version of other components to work with: 1.33 to the emulated one, perhaps with the prefix kube=.
    #[arg(long, value_name = "strings", value_delimiter = ',')]
    pub min_compatibility_version: Vec<String>,
}

/// What `/metrics` shows.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Metrics flags")]
pub struct MetricsFlags {
    /// Values a label may have: metric,label=value,value. Others are counted as "unexpected".
    #[arg(long, value_name = "map", value_parser = go::pairs, action = ArgAction::Append)]
    pub allow_metric_labels: Vec<Vec<(String, String)>>,
    /// YAML file with the same under allowListMapping; the flag is stronger.
    #[arg(long, value_name = "string", default_value = "")]
    pub allow_metric_labels_manifest: String,
    /// Metrics not to show, by full name.
    #[arg(long, value_name = "strings", value_delimiter = ',')]
    pub disabled_metrics: Vec<String>,
    /// Show metrics that were hidden in this version; only 1.35. There are none.
    #[arg(long, value_name = "string", default_value = "")]
    pub show_hidden_metrics_for_version: String,
}

/// What is logged, and how.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Logs flags")]
pub struct LogFlags {
    /// Longest time that a buffered line waits.
    #[arg(long, value_name = "duration", default_value = "5s")]
    pub log_flush_frequency: Duration,
    /// Bytes of information that --log-json-split-stream holds back before writing (with gate LoggingAlphaOptions).
    #[arg(long, value_name = "quantity", default_value = "0", value_parser = go::bytes)]
    pub log_json_info_buffer_size: u64,
    /// In JSON format, information goes to standard output, only errors to standard error (with gate LoggingAlphaOptions).
    #[arg(long, value_name = "bool", default_value = "false", value_parser = go::boolean, action = ArgAction::Set)]
    pub log_json_split_stream: bool,
    /// Bytes of information that --log-text-split-stream holds back before writing (with gate LoggingAlphaOptions).
    #[arg(long, value_name = "quantity", default_value = "0", value_parser = go::bytes)]
    pub log_text_info_buffer_size: u64,
    /// In text format, information goes to standard output, only errors to standard error (with gate LoggingAlphaOptions).
    #[arg(long, value_name = "bool", default_value = "false", value_parser = go::boolean, action = ArgAction::Set)]
    pub log_text_split_stream: bool,
    /// text or json.
    #[arg(long, value_name = "string", default_value = "text")]
    pub logging_format: String,
    /// How much is logged.
    #[arg(short, long = "v", value_name = "Level", default_value = "0", value_parser = go::level)]
    pub verbosity: u32,
    /// Levels of single source files: pattern=N,pattern=N; text format only.
    #[arg(long, value_name = "pattern=N", value_delimiter = ',', value_parser = go::file_level)]
    pub vmodule: Vec<(String, u32)>,
}
