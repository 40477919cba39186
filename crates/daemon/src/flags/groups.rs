//! The flags of kube-scheduler 1.36, one struct per group of its help. An empty string means that the
//! flag is not set. Names, types and defaults are upstream's; the value names are upstream's type
//! names, which [`super::flagz`] uses to format values.

use std::net::IpAddr;

use clap::{ArgAction, Args};
use loadmaster_config::Duration;

use super::pflag::{self, NamedCertKey};

/// Configuration file and API server address.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Misc flags")]
pub struct MiscFlags {
    /// The path to the configuration file.
    #[arg(long, value_name = "string", default_value = "")]
    pub config: String,
    /// The address of the Kubernetes API server (overrides any value in kubeconfig).
    #[arg(long, value_name = "string", default_value = "")]
    pub master: String,
    /// If set, write the configuration values to this file and exit.
    #[arg(long, value_name = "string", default_value = "")]
    pub write_config_to: String,
}

/// Flags that kube-scheduler does not have.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = LOADMASTER_FLAGS)]
pub struct LoadmasterFlags {
    /// Shadow mode: write nothing to the cluster, and compare each decision with that of the active scheduler.
    #[arg(long, value_name = "bool", default_value = "false", value_parser = pflag::boolean, action = ArgAction::Set)]
    pub shadow: bool,
    /// In shadow mode, write a report to this file, as JSON, every 30 seconds and at the end: whether the other scheduler decides alike, and all
    /// that is known of each decision that nothing explains.
    #[arg(long, value_name = "string", default_value = "")]
    pub shadow_report: String,
    /// Record all events and decisions to this file, which must not exist, for the command `replay`. The file contains the pods,
    /// nodes and other objects of the cluster as received from the API server.
    #[arg(long, value_name = "string", default_value = "")]
    pub record: String,
    /// Maximum size of the recording, after which it ends; 0 means no limit.
    #[arg(long, value_name = "quantity", default_value = "0", value_parser = pflag::bytes)]
    pub record_max_size: u64,
    /// Verify one in this many decisions against per-node evaluation with every plugin; 0 disables it. A difference is a bug; it is
    /// logged and counted in loadmaster_decision_mismatches_total.
    #[arg(long, value_name = "int", default_value = "0", value_parser = pflag::integer::<u64>)]
    pub check_every: u64,
    /// Also run the controllers of scheduler-plugins, which write the status of PodGroups and ElasticQuotas, while this replica is the leader.
    #[arg(long, value_name = "bool", default_value = "false", value_parser = pflag::boolean, action = ArgAction::Set)]
    pub with_controllers: bool,
    /// Reload the configuration when the file of --config, or that of a Policy, changes; otherwise only after the signal SIGHUP.
    #[arg(long, value_name = "bool", default_value = "true", value_parser = pflag::boolean, action = ArgAction::Set)]
    pub watch_config: bool,
}

/// The help heading of [`LoadmasterFlags`].
pub(super) const LOADMASTER_FLAGS: &str = "Loadmaster flags";

/// Secure serving of the endpoints.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Secure serving flags")]
pub struct SecureServingFlags {
    /// The IP address on which to listen; all interfaces and IP address families if it is unspecified (0.0.0.0 or ::).
    #[arg(long, value_name = "ip", default_value = "0.0.0.0", value_parser = pflag::address)]
    pub bind_address: IpAddr,
    /// The port on which to serve HTTPS with authentication and authorization. If 0, do not serve HTTPS at all.
    #[arg(long, value_name = "int", default_value = "10259", value_parser = pflag::integer::<i64>)]
    pub secure_port: i64,
    /// The directory of the self-signed TLS certificate; if empty, it is kept in memory. Ignored if --tls-cert-file is set.
    #[arg(long, value_name = "string", default_value = "")]
    pub cert_dir: String,
    /// File with the x509 certificate for HTTPS (CA certificates, if any, follow the server certificate). Reloaded when it changes.
    #[arg(long, value_name = "string", default_value = "")]
    pub tls_cert_file: String,
    /// File with the x509 private key that matches --tls-cert-file.
    #[arg(long, value_name = "string", default_value = "")]
    pub tls_private_key_file: String,
    /// Cipher suites for TLS 1.2, by Go's names; the default is all supported ones. Suites without forward secrecy or with CBC, RC4 or 3DES are not supported.
    #[arg(long, value_name = "strings", value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,
    /// Key exchange curves, by Go's numbers: 23 (P-256), 24 (P-384), 29 (X25519).
    #[arg(long, value_name = "int32s", value_delimiter = ',', value_parser = pflag::integer::<i32>)]
    pub tls_curve_preferences: Vec<i32>,
    /// Minimum TLS version: VersionTLS12 (the default) or VersionTLS13; older versions are treated as VersionTLS12.
    #[arg(long, value_name = "string", default_value = "")]
    pub tls_min_version: String,
    /// Certificate and private key files, optionally with domain patterns: cert,key or cert,key:name,name. May be repeated.
    #[arg(long, value_name = "named-cert-key", value_parser = pflag::named_cert_key, action = ArgAction::Append)]
    pub tls_sni_cert_key: Vec<NamedCertKey>,
    /// Maximum number of concurrent streams in an HTTP/2 connection; 0 means 250.
    #[arg(long, value_name = "int", default_value = "0", value_parser = pflag::integer::<u32>)]
    pub http2_max_streams_per_connection: u32,
    /// Disable HTTP/2 serving.
    #[arg(long, value_name = "bool", default_value = "false", value_parser = pflag::boolean, action = ArgAction::Set)]
    pub disable_http2_serving: bool,
    /// Listen with SO_REUSEADDR. Loadmaster always does, like every Go program.
    #[arg(long, value_name = "bool", default_value = "false", value_parser = pflag::boolean, action = ArgAction::Set)]
    pub permit_address_sharing: bool,
    /// Listen with SO_REUSEPORT, so that several processes can listen on the same address and port.
    #[arg(long, value_name = "bool", default_value = "false", value_parser = pflag::boolean, action = ArgAction::Set)]
    pub permit_port_sharing: bool,
}

/// Authentication at the endpoints.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Authentication flags")]
pub struct AuthenticationFlags {
    /// Kubeconfig with permission to create tokenreviews.authentication.k8s.io. If empty, the scheduler's own credentials are used.
    #[arg(long, value_name = "string", default_value = "")]
    pub authentication_kubeconfig: String,
    /// Do not look up missing authentication configuration in the cluster (ConfigMap kube-system/extension-apiserver-authentication).
    #[arg(long, value_name = "bool", default_value = "false", value_parser = pflag::boolean, action = ArgAction::Set)]
    pub authentication_skip_lookup: bool,
    /// How long to cache responses of token reviews.
    #[arg(long, value_name = "duration", default_value = "10s")]
    pub authentication_token_webhook_cache_ttl: Duration,
    /// Start even if that ConfigMap cannot be read. All requests may then count as anonymous.
    #[arg(long, value_name = "bool", default_value = "true", value_parser = pflag::boolean, action = ArgAction::Set)]
    pub authentication_tolerate_lookup_failure: bool,
    /// CA bundle for client certificates: the common name of a client certificate signed by one of these CAs is the user name.
    #[arg(long, value_name = "string", default_value = "")]
    pub client_ca_file: String,
    /// Common names of client certificates that may set user names in request headers; if empty, any certificate signed by --requestheader-client-ca-file.
    #[arg(long, value_name = "strings", value_delimiter = ',')]
    pub requestheader_allowed_names: Vec<String>,
    /// CA bundle for client certificates of proxies that set user names in request headers.
    #[arg(long, value_name = "string", default_value = "")]
    pub requestheader_client_ca_file: String,
    /// Prefixes of request headers with extra fields of the user.
    #[arg(long, value_name = "strings", value_delimiter = ',', default_values_t = ["x-remote-extra-".to_owned()])]
    pub requestheader_extra_headers_prefix: Vec<String>,
    /// Request headers with the groups of the user.
    #[arg(long, value_name = "strings", value_delimiter = ',', default_values_t = ["x-remote-group".to_owned()])]
    pub requestheader_group_headers: Vec<String>,
    /// Request headers with the UID of the user; must include X-Remote-Uid if set.
    #[arg(long, value_name = "strings", value_delimiter = ',')]
    pub requestheader_uid_headers: Vec<String>,
    /// Request headers with the user name.
    #[arg(long, value_name = "strings", value_delimiter = ',', default_values_t = ["x-remote-user".to_owned()])]
    pub requestheader_username_headers: Vec<String>,
}

/// Authorization at the endpoints.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Authorization flags")]
pub struct AuthorizationFlags {
    /// HTTP paths that are allowed without authorization; a trailing * matches any suffix.
    #[arg(long, value_name = "strings", value_delimiter = ',', default_values_t = ["/healthz", "/readyz", "/livez"].map(str::to_owned))]
    pub authorization_always_allow_paths: Vec<String>,
    /// Kubeconfig with permission to create subjectaccessreviews.authorization.k8s.io. If empty, the scheduler's own credentials are used.
    #[arg(long, value_name = "string", default_value = "")]
    pub authorization_kubeconfig: String,
    /// How long to cache 'authorized' responses.
    #[arg(long, value_name = "duration", default_value = "10s")]
    pub authorization_webhook_cache_authorized_ttl: Duration,
    /// How long to cache 'unauthorized' responses.
    #[arg(long, value_name = "duration", default_value = "10s")]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,
}

/// Deprecated flags, replaced by fields of the configuration file; all but the last one are ignored with `--config`.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Deprecated flags")]
pub struct DeprecatedFlags {
    /// Serve the endpoints below /debug/. Ignored with --config.
    #[arg(long, value_name = "bool", default_value = "true", value_parser = pflag::boolean, action = ArgAction::Set)]
    pub profiling: bool,
    /// Has no effect in Loadmaster: contention profiling is a feature of the Go runtime. Ignored with --config.
    #[arg(long, value_name = "bool", default_value = "true", value_parser = pflag::boolean, action = ArgAction::Set)]
    pub contention_profiling: bool,
    /// Path to the kubeconfig file. Ignored with --config.
    #[arg(long, value_name = "string", default_value = "")]
    pub kubeconfig: String,
    /// Content type of requests to the API server. Ignored with --config.
    #[arg(long, value_name = "string", default_value = "application/vnd.kubernetes.protobuf")]
    pub kube_api_content_type: String,
    /// Requests per second to the API server. Ignored with --config.
    #[arg(long, value_name = "float32", default_value = "50", value_parser = pflag::float)]
    pub kube_api_qps: f32,
    /// Burst of requests to the API server. Ignored with --config.
    #[arg(long, value_name = "int32", default_value = "100", value_parser = pflag::integer::<i32>)]
    pub kube_api_burst: i32,
    /// Maximum time that a pod stays in unschedulablePods before it is moved to activeQ or backoffQ.
    #[arg(long, value_name = "duration", default_value = "5m0s")]
    pub pod_max_in_unschedulable_pods_duration: Duration,
}

/// Leader election. These flags override the configuration file.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Leader election flags")]
pub struct LeaderElectionFlags {
    /// Start leader election and schedule only while holding the Lease.
    #[arg(long, value_name = "bool", default_value = "true", value_parser = pflag::boolean, action = ArgAction::Set)]
    pub leader_elect: bool,
    /// How long non-leaders wait after the last observed renewal before they try to acquire the Lease.
    #[arg(long, value_name = "duration", default_value = "15s")]
    pub leader_elect_lease_duration: Duration,
    /// How long the leader retries to renew the Lease before it gives up leadership.
    #[arg(long, value_name = "duration", default_value = "10s")]
    pub leader_elect_renew_deadline: Duration,
    /// Time between attempts to acquire or renew the Lease.
    #[arg(long, value_name = "duration", default_value = "2s")]
    pub leader_elect_retry_period: Duration,
    /// Kind of the lock object; only 'leases' is supported.
    #[arg(long, value_name = "string", default_value = "leases")]
    pub leader_elect_resource_lock: String,
    /// Name of the Lease.
    #[arg(long, value_name = "string", default_value = "kube-scheduler")]
    pub leader_elect_resource_name: String,
    /// Namespace of the Lease.
    #[arg(long, value_name = "string", default_value = "kube-system")]
    pub leader_elect_resource_namespace: String,
}

/// Feature gates and emulated versions.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Feature gate flags")]
pub struct FeatureGateFlags {
    /// Feature gates to enable or disable: Name=true,Name=false, optionally with the prefix kube:. May be repeated.
    #[arg(long, value_name = "gates", action = ArgAction::Append)]
    pub feature_gates: Vec<String>,
    /// Version to emulate: 1.33 to 1.36, optionally with the prefix kube=. Feature gates keep the defaults of 1.36.
    #[arg(long, value_name = "strings", value_delimiter = ',')]
    pub emulated_version: Vec<String>,
    /// Minimum version of control plane components to be compatible with: 1.33 up to the emulated version, optionally with the prefix kube=.
    #[arg(long, value_name = "strings", value_delimiter = ',')]
    pub min_compatibility_version: Vec<String>,
}

/// Metrics.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Metrics flags")]
pub struct MetricsFlags {
    /// Allowed values of a metric label: metric,label=value,value. Other values become "unexpected".
    #[arg(long, value_name = "map", value_parser = pflag::pairs, action = ArgAction::Append)]
    pub allow_metric_labels: Vec<Vec<(String, String)>>,
    /// YAML manifest with the same under allowListMapping; --allow-metric-labels takes precedence.
    #[arg(long, value_name = "string", default_value = "")]
    pub allow_metric_labels_manifest: String,
    /// Fully qualified names of metrics to disable.
    #[arg(long, value_name = "strings", value_delimiter = ',')]
    pub disabled_metrics: Vec<String>,
    /// Previous version whose hidden metrics to show; only 1.35 is accepted, and no metrics are hidden.
    #[arg(long, value_name = "string", default_value = "")]
    pub show_hidden_metrics_for_version: String,
}

/// Logging.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Logs flags")]
pub struct LogFlags {
    /// Maximum time between log flushes.
    #[arg(long, value_name = "duration", default_value = "5s")]
    pub log_flush_frequency: Duration,
    /// Size of the buffer for info messages with --log-json-split-stream; 0 disables buffering (requires the LoggingAlphaOptions feature gate).
    #[arg(long, value_name = "quantity", default_value = "0", value_parser = pflag::bytes)]
    pub log_json_info_buffer_size: u64,
    /// In JSON format, write error messages to stderr and info messages to stdout (requires the LoggingAlphaOptions feature gate).
    #[arg(long, value_name = "bool", default_value = "false", value_parser = pflag::boolean, action = ArgAction::Set)]
    pub log_json_split_stream: bool,
    /// Size of the buffer for info messages with --log-text-split-stream; 0 disables buffering (requires the LoggingAlphaOptions feature gate).
    #[arg(long, value_name = "quantity", default_value = "0", value_parser = pflag::bytes)]
    pub log_text_info_buffer_size: u64,
    /// In text format, write error messages to stderr and info messages to stdout (requires the LoggingAlphaOptions feature gate).
    #[arg(long, value_name = "bool", default_value = "false", value_parser = pflag::boolean, action = ArgAction::Set)]
    pub log_text_split_stream: bool,
    /// Log format: text or json.
    #[arg(long, value_name = "string", default_value = "text")]
    pub logging_format: String,
    /// Log level verbosity.
    #[arg(short, long = "v", value_name = "Level", default_value = "0", value_parser = pflag::level)]
    pub verbosity: u32,
    /// Verbosity of single source files: pattern=N,pattern=N (only for text log format).
    #[arg(long, value_name = "pattern=N", value_delimiter = ',', value_parser = pflag::file_level)]
    pub vmodule: Vec<(String, u32)>,
}
