//! Bad files of every version: every error is reported, with its line. A line with an error says so in a comment, with a part of its text.

use loadmaster_api::document::Document;
use loadmaster_config::{AllFeatureGates, check_configuration};

use crate::testkit::registry_with_old_plugins;

/// Bodies with profiles, for v1alpha2 and later.
const WITH_PROFILES: &[&str] = &[
    "profiles: {}  # error: profiles: expected a sequence, found map",
    "profiles: text  # error: expected a sequence, found string \"text\"",
    "profiles:\n- text  # error: profiles[0]",
    "profiles:\n- schedulerName: [a]  # error: profiles[0].schedulerName: expected a string",
    "profiles:\n- schedulerName: ''  # error: schedulerName: Required value",
    "profiles:\n- schedulerName: a\n- schedulerName: a  # error: profiles[1].schedulerName: Duplicate value: \"a\"",
    "profiles:\n- schedulerName: a\n- plugins: {}  # error: profiles[1].schedulerName: Required value",
    "profiles:\n- shedulerName: a  # error: unknown field `shedulerName`; did you mean \"schedulerName\"?",
    "profiles:\n- plugin: {}  # error: unknown field `plugin`; did you mean \"plugins\"?",
    "profiles:\n- plugins:\n    filters: {}  # error: unknown field `filters`; did you mean \"filter\"?",
    "profiles:\n- plugins:\n    filter:\n      enable: []  # error: unknown field `enable`; did you mean \"enabled\"?",
    "profiles:\n- plugins:\n    filter:\n      enabled: NodeName  # error: plugins.filter.enabled: expected a sequence",
    "profiles:\n- plugins:\n    filter:\n      enabled:\n      - NodeName  # error: plugins.filter.enabled[0]: expected an object",
    "profiles:\n- plugins:\n    score:\n      enabled:\n      - {name: Mine, weight: heavy}  # error: score.enabled[0].weight: expected i32",
    "profiles:\n- plugins:\n    score:\n      enabled:\n      - {name: Mine, weigth: 2}  # error: unknown field `weigth`; did you mean \"weight\"?",
    "profiles:\n- plugins:\n    filter:\n      enabled:\n      - name: Mines  # error: FilterPlugin \"Mines\" does not exist; did you mean \"Mine\"?",
    "profiles:\n- plugins:\n    filter:\n      enabled:\n      - name: Nowhere  # error: FilterPlugin \"Nowhere\" does not exist",
    "profiles:\n- plugins:\n    permit:\n      enabled:\n      - name: Mine  # error: plugin \"Mine\" does not extend PermitPlugin plugin",
    "profiles:\n- plugins:\n    filter:\n      enabled:\n      - name: Mine\n      - name: Mine  # error: plugin \"Mine\" already registered",
    "profiles:\n- plugins:\n    bind:\n      disabled:  # error: at least one bind plugin is needed\n      - name: '*'",
    "profiles:\n- pluginConfig: {}  # error: pluginConfig: expected a sequence",
    "profiles:\n- pluginConfig:\n  - name: InterPodAffinity\n    arg: {}  # error: unknown field `arg`; did you mean \"args\"?",
    "profiles:\n- pluginConfig:\n  - name: InterPodAffinity\n    args: 5  # error: pluginConfig[0].args",
    "profiles:\n- pluginConfig:\n  - name: InterPodAffinity\n    args:\n      hardPodAffinityWeight: 101  # error: args.hardPodAffinityWeight: Invalid value: 101",
    "profiles:\n- pluginConfig:\n  - name: InterPodAffinity\n    args:\n      hardPodAffinityWeigth: 1  # error: unknown field `hardPodAffinityWeigth`; did you mean \"hardPodAffinityWeight\"?",
    "profiles:\n- pluginConfig:\n  - name: InterPodAffinity\n    args:\n      kind: NodeAffinityArgs  # error: args for plugin InterPodAffinity were not of type InterPodAffinityArgs",
    "profiles:\n- pluginConfig:\n  - name: DefaultPreemption\n  - name: DefaultPreemption  # error: pluginConfig[1]: Duplicate value",
    "leaderElection: 5  # error: leaderElection: expected an object",
    "leaderElection:\n  leaderElected: true  # error: unknown field `leaderElected`; did you mean \"leaderElect\"?",
    "leaderElection:\n  leaseDuration: 5  # error: leaderElection.leaseDuration: expected a duration",
    "leaderElection:\n  leaseDuration: 5s  # error: must be greater than `RenewDeadline`",
    "leaderElection:\n  resourceLock: lease  # error: resourceLock value must be \"leases\"",
    "clientConnection:\n  qps: fast  # error: clientConnection.qps",
    "clientConnection:\n  burst: -1  # error: clientConnection.burst: Invalid value: -1",
    "clientConnection:\n  kubeConfig: /k  # error: unknown field `kubeConfig`; did you mean \"kubeconfig\"?",
    "percentageOfNodesToScore: 101  # error: not in valid range [0-100]",
    "podInitialBackoffSeconds: 0  # error: must be greater than 0",
    "podInitialBackoffSeconds: 20\npodMaxBackoffSeconds: 5  # error: must be greater than or equal to PodInitialBackoffSeconds",
    "enableProfiling: maybe  # error: enableProfiling: expected a boolean",
    "extenders:\n- urlPrefix: http://a\n  prioritizeVerb: p\n  weight: -1  # error: extenders[0].weight: Invalid value: -1",
    "extenders:\n- urlPrefix: http://a  # error: only one extender can implement bind\n  bindVerb: b\n- urlPrefix: http://b\n  bindVerb: b\npodMaxBackoffSeconds: 0  # error: podMaxBackoffSeconds",
    "extenders:\n- urlPrefix: http://a\n  httpTimeout: [5]  # error: extenders[0].httpTimeout",
    "extenders:\n- urlPrefixes: http://a  # error: unknown field `urlPrefixes`; did you mean \"urlPrefix\"?",
    "leaderElection: []  # error: leaderElection: expected an object",
    "profiles:\n- plugins:\n    filter: []  # error: plugins.filter: expected an object",
    "extenders:\n- urlPrefix: http://a\n  managedResources:\n  - name: cpu  # error: is an invalid extended resource name",
    "profile: null  # error: unknown field `profile`; did you mean \"profiles\"?",
    "profiles:\n- shedulerName: null  # error: unknown field `shedulerName`; did you mean \"schedulerName\"?",
    "profiles:\n- plugins:\n    filters: null  # error: unknown field `filters`; did you mean \"filter\"?",
    "profiles:\n- plugins:\n    filter:\n      enable: null  # error: unknown field `enable`; did you mean \"enabled\"?",
    "profiles:\n- plugins:\n    score:\n      enabled:\n      - {name: Mine, weigth: null}  # error: unknown field `weigth`; did you mean \"weight\"?",
    "profiles:\n- pluginConfig:\n  - name: InterPodAffinity\n    arg: null  # error: unknown field `arg`; did you mean \"args\"?",
    "profiles:\n- pluginConfig:\n  - name: InterPodAffinity\n    args:\n      a.b: null  # error: unknown field `a.b`\n      hardPodAffinityWeight: null\n      hardPodAffinityWeigth: null  # error: unknown field `hardPodAffinityWeigth`; did you mean \"hardPodAffinityWeight\"?",
    "profiles:\n- pluginConfig:\n  - name: InterPodAffinity\n    args:\n      hardPodAffinityWeight: [101]  # error: args.hardPodAffinityWeight: expected i32, found sequence\n      hardPodAffinityWeigth: null  # error: unknown field `hardPodAffinityWeigth`; did you mean \"hardPodAffinityWeight\"?",
    "profiles:\n- pluginConfig:\n  - name: InterPodAffinity\n    args:\n      hardPodAffinityWeight: 101  # error: args.hardPodAffinityWeight: Invalid value: 101",
    "profiles:\n- pluginConfig:\n  - name: InterPodAffinity\n    args: [5]  # error: args: Invalid value",
    "leaderElection:\n  leaderElected: null  # error: unknown field `leaderElected`; did you mean \"leaderElect\"?",
    "clientConnection:\n  kubeConfig: null  # error: unknown field `kubeConfig`; did you mean \"kubeconfig\"?",
    "extenders:\n- urlPrefixes: null  # error: unknown field `urlPrefixes`; did you mean \"urlPrefix\"?\n- tlsConfig:\n    insecured: null  # error: unknown field `insecured`; did you mean \"insecure\"?\n- managedResources:\n  - name: a.b/c\n    names: null  # error: unknown field `names`; did you mean \"name\"?",
    "profiles: null\nextenders: null\nleaderElection: null\nclientConnection: {burst: null}",
    "profiles:\n- null\nextenders:\n- null\nleaderElection: {leaderElect: null, resourceName: null}",
    "profiles:\n- schedulerName: null\n  plugins:\n    score: null\n    filter: {enabled: null, disabled: null}\n    permit:\n      disabled: [null]\n  pluginConfig:\n  - {name: InterPodAffinity, args: null}\n  - {name: DefaultPreemption, args: {kind: null, apiVersion: null, minCandidateNodesAbsolute: null}}",
    "extenders:\n- {urlPrefix: http://a, filterVerb: null, httpTimeout: null, tlsConfig: null, managedResources: null}\n- {urlPrefix: http://b, tlsConfig: {insecure: null}}",
    "profiles:\n- []  # error: profiles[0]",
    "extenders:\n- []  # error: extenders[0]: expected an object",
    "paralelism: 5  # error: unknown field `paralelism`\nhealthzBindAdress: a  # error: unknown field `healthzBindAdress`\nprofiles:\n- bar: 1  # error: unknown field `bar`\n  plugins:\n    score: 5  # error: plugins.score: expected an object",
];

/// Bodies of v1alpha1.
const V1ALPHA1: &[&str] = &[
    "profiles: []  # error: unknown field `profiles`",
    "schedulerName: 5  # error: schedulerName: expected a string",
    "schedulersName: a  # error: unknown field `schedulersName`; did you mean \"schedulerName\"?",
    "hardPodAffinitySymmetricWeight: 101  # error: hardPodAffinitySymmetricWeight: Invalid value: 101",
    "hardPodAffinitySymmetricWeight: much  # error: hardPodAffinitySymmetricWeight: expected i32",
    "disablePreemption: 1  # error: disablePreemption: Invalid value: 1: must be a boolean",
    "algorithmSource: 5  # error: algorithmSource: Invalid value: 5: must be an object",
    "algorithmSource:\n  provider: Default  # error: algorithm provider \"Default\" is not registered; did you mean \"DefaultProvider\"?",
    "algorithmSource:\n  providers: DefaultProvider  # error: unknown field `providers`; did you mean \"provider\"?",
    "algorithmSource:\n  policy:\n    file: {path: /p}  # error: algorithmSource.policy: Required value",
    "plugins:\n  preScore: {}  # error: unknown field `preScore`",
    "plugins:\n  postFilter:\n    enabled:\n    - name: NodeName  # error: does not extend PreScorePlugin",
    "plugins:\n  filter:\n    enabled:\n    - name: NodeLabels  # error: plugins.filter.enabled[0].name: FilterPlugin \"NodeLabels\" does not exist; did you mean \"NodeLabel\"?",
    "pluginConfig:\n- name: InterPodAffinity\n  args:\n    hardPodAffinityWeight: -1  # error: pluginConfig[0].args.hardPodAffinityWeight",
    "leaderElection:\n  resourceName: a\n  lockObjectName: b  # error: do not match",
    "schedulersName: null  # error: unknown field `schedulersName`; did you mean \"schedulerName\"?",
    "algorithmSource:\n  providers: null  # error: unknown field `providers`; did you mean \"provider\"?",
    "plugins:\n  preScore: null  # error: unknown field `preScore`",
    "leaderElection:\n  lockObject: null  # error: unknown field `lockObject`",
    "schedulerName: null\nalgorithmSource: null\nhardPodAffinitySymmetricWeight: null\nleaderElection: {resourceName: a, lockObjectName: null}\nhealthzBindAddress: null\ndisablePreemption: null\nbindTimeoutSeconds: null\nplugins: null\npluginConfig: null",
    "leaderElection: {resourceName: null, lockObjectName: a}\nhardPodAffinitySymmetricWeight: 5\npluginConfig:\n- {name: InterPodAffinity, args: {hardPodAffinityWeight: null}}\n- null",
];

/// Policies, in YAML.
const POLICIES: &[&str] = &[
    "predicate: []  # error: unknown field `predicate`; did you mean \"predicates\"?",
    "predicates: {}  # error: predicates: expected a sequence",
    "predicates:\n- GeneralPredicates  # error: predicates[0]: expected an object",
    "predicates:\n- nam: GeneralPredicates  # error: unknown field `nam`",
    "predicates:\n- name: GeneralPredicate  # error: predicate type not found for \"GeneralPredicate\"; did you mean \"GeneralPredicates\"?",
    "predicates:\n- name: podfitsresources  # error: did you mean \"PodFitsResources\"?",
    "predicates:\n- name: Nothing  # error: predicate type not found for \"Nothing\"",
    "predicates:\n- name: A\n  argument: {}  # error: exactly 1 predicate argument is required",
    "predicates:\n- name: A\n  argument: {serviceAffinity: {labels: [a]}, labelsPresence: {labels: [a]}}  # error: exactly 1 predicate argument",
    "predicates:\n- name: A\n  argument:\n    labelPresence: {}  # error: unknown field `labelPresence`; did you mean \"labelsPresence\"?\n  #\n- name: B  # error: predicate type not found",
    "predicates:\n- name: A\n  argument:\n    labelsPresence:\n      labels: a  # error: labelsPresence.labels: expected a sequence",
    "predicates:\n- name: A\n  argument:\n    labelsPresence:\n      labels: [a]\n      presence: always  # error: presence: expected a boolean",
    "priorities:\n- name: LeastRequestedPriority  # error: priorities[0].weight: Invalid value: 0",
    "priorities:\n- name: LeastRequestedPriority\n  weight: -5  # error: should have a positive weight",
    "priorities:\n- name: LeastRequestedPriority\n  weight: 922337203685477580  # error: or it has overflown",
    "priorities:\n- name: LeastRequestedPriority\n  weight: many  # error: priorities[0].weight: expected i64",
    "priorities:\n- name: LeastRequested  # error: did you mean \"LeastRequestedPriority\"?\n  weight: 1",
    "priorities:\n- name: A\n  weight: 1\n  argument: {labelPreference: {label: a}}\n- name: B\n  weight: 2  # error: has a different weight with \"A\"\n  argument: {labelPreference: {label: b}}",
    "priorities:\n- name: A\n  weight: 1\n  argument: {requestedToCapacityRatioArguments: {shape: [{utilization: 0, score: 0}]}}\n- name: B  # error: redeclares custom priority\n  weight: 1\n  argument: {requestedToCapacityRatioArguments: {shape: [{utilization: 0, score: 0}]}}",
    "priorities:\n- name: A\n  weight: 1\n  argument: {serviceAntiAffinity: {labels: a}}  # error: unknown field `labels`; did you mean \"label\"?",
    "hardPodAffinitySymmetricWeight: 101  # error: not in valid range [0-100]",
    "hardPodAffinitySymmetricWeight: -1  # error: not in valid range [0-100]",
    "alwaysCheckAllPredicates: yes please  # error: alwaysCheckAllPredicates: expected a boolean",
    "extenders:\n- urlPrefix: http://a\n  httpTimeout: 5s  # error: a number of nanoseconds is expected",
    "extenders:\n- urlPrefix: http://a\n  enableHttp: true  # error: unknown field `enableHttp`; did you mean \"enableHTTPS\"?",
    "extenders:\n- urlPrefix: http://a\n  prioritizeVerb: p\n  weight: 0  # error: must have a positive weight",
    "extenders:\n- URLPREFIX: [a]  # error: extenders[0].URLPREFIX: expected a string",
    "extenders:\n- urlPrefix: http://a\n  managedResources:\n  - Name: cpu  # error: managedResources[0].Name: Invalid value: \"cpu\"",
    "predicate: null  # error: unknown field `predicate`; did you mean \"predicates\"?",
    "predicates:\n- name: GeneralPredicates\n  arguments: null  # error: unknown field `arguments`; did you mean \"argument\"?",
    "predicates:\n- name: A\n  argument:\n    labelPresence: null  # error: unknown field `labelPresence`; did you mean \"labelsPresence\"?\n    labelsPresence: {labels: [a]}",
    "priorities:\n- name: A\n  weight: 1\n  argument:\n    labelPreference: {label: a, labels: null}  # error: unknown field `labels`; did you mean \"label\"?",
    "priorities:\n- name: A\n  weight: 1\n  argument: {requestedToCapacityRatioArguments: {shape: [{utilization: 0, score: 0}], resource: null}}  # error: unknown field `resource`; did you mean \"resources\"?",
    "extenders:\n- urlPrefix: http://a\n  enableHttp: null  # error: unknown field `enableHttp`; did you mean \"enableHTTPS\"?",
    "predicates: null\npriorities: null\nextenders: null\nhardPodAffinitySymmetricWeight: null\nalwaysCheckAllPredicates: null",
    "predicates:\n- {name: HostName, argument: null}\n- {name: A, argument: {labelsPresence: null, serviceAffinity: {labels: null}}}\nextenders:\n- null\n- {apiVersion: null, URLPrefix: null, httpTimeout: null}",
    "predicates:\n- [HostName]  # error: predicates[0]: expected an object",
    "priorities:\n- name: A\n  weight: 1\n  argument: [a]  # error: priorities[0].argument: expected an object",
    "extenders:\n- []  # error: extenders[0]: expected a map",
];

const KIND: &str = "kind: KubeSchedulerConfiguration\n";

#[test]
fn every_error_of_a_bad_file_has_its_line() {
    let mut n_files = 0;
    let mut failures = Vec::new();
    let mut check = |header: &str, body: &str| {
        n_files += 1;
        failures.extend(difference(header, body));
    };
    for version in ["v1alpha2", "v1beta1", "v1beta2", "v1beta3", "v1"] {
        let header = format!("apiVersion: kubescheduler.config.k8s.io/{version}\n{KIND}");
        WITH_PROFILES.iter().for_each(|body| check(&header, body));
    }
    let header = format!("apiVersion: kubescheduler.config.k8s.io/v1alpha1\n{KIND}");
    V1ALPHA1.iter().for_each(|body| check(&header, body));
    POLICIES.iter().for_each(|body| check("apiVersion: v1\nkind: Policy\n", body));
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    assert!(n_files >= 200, "{n_files} files");
}

/// What is missing among the errors of a file, or too much.
fn difference(header: &str, body: &str) -> Option<String> {
    let text = format!("{header}{body}\n");
    let document = Document::new("f", text.clone());
    let errors: Vec<String> = match check_configuration(
        &document,
        &registry_with_old_plugins(),
        &AllFeatureGates::default(),
    ) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    };
    let wanted = text.lines().enumerate().filter_map(|(idx, line)| {
        let (_, text) = line.split_once("# error: ")?;
        Some((format!("f:{}:", idx + 1), text))
    });
    let wanted: Vec<(String, &str)> = wanted.collect();
    // "unknown field `x`; did you mean" leaves out the list of known fields.
    let has = |error: &str, part: &str| part.split("; ").all(|part| error.contains(part));
    let missing = wanted
        .iter()
        .any(|(at, part)| !errors.iter().any(|error| error.starts_with(at) && has(error, part)));
    let is_bare = errors.iter().any(|error| error.matches(':').count() < 3);
    (missing || is_bare || errors.len() != wanted.len())
        .then(|| format!("{text}--- got\n{}\n", errors.join("\n")))
}
