//! Tests of command lines.

use super::*;

fn run(line: &str) -> Result<Options, String> {
    let args = std::iter::once(COMMAND_NAME).chain(line.split_whitespace());
    match parse_command_line(args) {
        Ok(ParsedCommandLine::Run(options)) => Ok(*options),
        Ok(ParsedCommandLine::Print(text)) => Err(format!("printed: {text}")),
        Err(error) => Err(error.to_string()),
    }
}

#[track_caller]
fn check(line: &str, flag: &str, want: &str) {
    let options = run(line).unwrap();
    let (_, value) = options.all_flag_values().iter().find(|(name, _)| name == flag).unwrap();
    assert_eq!(value, want, "{line}");
    assert_eq!(options.is_given(flag), !line.is_empty(), "{line}");
}

#[track_caller]
fn check_error(line: &str, want: &str) {
    let error = run(line).unwrap_err();
    assert!(error.contains(want), "{line}: {error}");
}

#[test]
fn the_command_is_well_formed() {
    command().debug_assert();
}

/// The names and defaults that `kube-scheduler --help` of 1.36.3 shows, but for `feature-gates` etc.
#[test]
fn all_flags_of_1_36_and_their_defaults() {
    let listing = run("").unwrap();
    let listing: Vec<String> =
        listing.all_flag_values().iter().map(|(name, value)| format!("{name}={value}")).collect();
    expect_test::expect_file!["../../tests/flagz.txt"].assert_eq(&(listing.join("\n") + "\n"));
}

#[test]
fn values_are_parsed_like_pflag() {
    for (line, flag, want) in [
        ("", "leader-elect", "true"),
        ("--leader-elect=false", "leader-elect", "false"),
        ("--leader-elect=F", "leader-elect", "false"),
        ("--leader-elect=false --leader-elect", "leader-elect", "true"),
        ("--leader_elect=0", "leader-elect", "false"),
        ("--secure-port 0", "secure-port", "0"),
        ("--secure-port=1 --secure-port=2", "secure-port", "2"),
        ("-v=2", "v", "2"),
        ("-v 2", "v", "2"),
        ("-v2", "v", "2"),
        ("--v=9", "v", "9"),
        ("--kube-api-burst -1", "kube-api-burst", "-1"),
        ("--leader-elect-lease-duration=90s", "leader-elect-lease-duration", "1m30s"),
        (
            "--authorization-always-allow-paths=/a,/b --authorization-always-allow-paths=/c",
            "authorization-always-allow-paths",
            "[/a,/b,/c]",
        ),
        ("--requestheader-group-headers=", "requestheader-group-headers", "[]"),
        ("--tls-curve-preferences=29,23", "tls-curve-preferences", "[29,23]"),
        ("--config=", "config", ""),
        ("--vmodule=queue=4,cache*=5", "vmodule", "queue=4,cache*=5"),
        ("--feature-gates=A=true --feature-gates=B=false", "feature-gates", "A=true,B=false"),
    ] {
        check(line, flag, want);
    }
    let options = run("--requestheader-group-headers= --vmodule=a=1,b=2").unwrap();
    assert!(options.authentication.requestheader_group_headers.is_empty());
    assert_eq!(options.logs.vmodule, [("a".to_owned(), 1), ("b".to_owned(), 2)]);
}

#[test]
fn invalid_flags_are_rejected() {
    for (line, want) in [
        ("--nope", "unexpected argument '--nope'"),
        ("-x", "unexpected argument '-x'"),
        ("arg", r#""kube-scheduler" does not take any arguments, got ["arg"]"#),
        ("--leader-elect false", r#"does not take any arguments, got ["false"]"#),
        ("--leader-elect=maybe", r#"strconv.ParseBool: parsing "maybe": invalid syntax"#),
        ("--secure-port=x", r#"strconv.ParseInt: parsing "x": invalid syntax"#),
        ("--secure-port", "a value is required for '--secure-port"),
        ("--bind-address=foo", r#"failed to parse IP: "foo""#),
        ("--leader-elect-retry-period=5", r#"time: missing unit in duration "5""#),
        ("-v=x", r#"strconv.ParseUint: parsing "x": invalid syntax"#),
        ("--version=v9.9.9", r#"must match major/minor/patch of default version "v1.36.3""#),
        ("--version=foo", r#"strconv.ParseBool: parsing "foo": invalid syntax"#),
    ] {
        check_error(line, want);
    }
}

#[test]
fn versions_and_help_are_printed() {
    let printed = |line: &str| run(line).unwrap_err();
    assert_eq!(printed("--version"), format!("printed: Kubernetes {KUBERNETES_VERSION}\n"));
    assert!(
        printed("--version=raw").starts_with("printed: version.Info{Major:\"1\", Minor:\"36\"")
    );
    assert!(printed("-h").contains("Leader election flags:"));
    assert_eq!(run("--version=v1.36.3-mine").unwrap().reported_version, "v1.36.3-mine");
    assert_eq!(run("--version=false").unwrap().reported_version, KUBERNETES_VERSION);
}

#[test]
fn invalid_combinations_are_rejected() {
    #[track_caller]
    fn check(line: &str, want: &[&str]) {
        assert_eq!(run(line).unwrap().validate(), want, "{line}");
    }
    check("", &[]);
    check(
        "--secure-port=99999",
        &[
            "--secure-port 99999 must be between 0 and 65535, inclusive. 0 for turning off secure port",
        ],
    );
    check("--tls-cert-file=/a", &["missing filename for serving cert"]);
    check("--tls-cert-file=/a --tls-private-key-file=/b", &[]);
    check("--emulated-version=1.35 --min-compatibility-version=1.35", &[]);
    check("--emulated-version=1.37", &["emulation version 1.37 is not between [1.33, 1.36.0]"]);
    check(
        "--requestheader-group-headers=a,,b",
        &["empty value in \"requestheader-group-headers\""],
    );
    check(
        "--requestheader-uid-headers=foo",
        &[
            "--requestheader-uid-headers is set without specifying the standard X-Remote-Uid header - API aggregation will not work",
        ],
    );
    check("--authorization-always-allow-paths=/a*b,/c*", &["only trailing * allowed in \"a*b\""]);
    check("--show-hidden-metrics-for-version=1.35", &[]);
    check(
        "--show-hidden-metrics-for-version=1.34",
        &[
            "metrics.showHiddenMetricsForVersion: Invalid value: \"1.34\": must be omitted or have the value '1.35'; only the previous minor version is allowed",
        ],
    );
    check("--allow-metric-labels=m,l=v", &[]);
    check(
        "--allow-metric-labels=foo=bar",
        &[
            "metrics.allowListMapping: Invalid value: \"foo\": must have keys with format `metricName,labelName` where metricName matches \"[a-zA-Z_:][a-zA-Z0-9_:]*\" and labelName matches \"[a-zA-Z_][a-zA-Z0-9_]*\"",
        ],
    );
}

#[test]
fn flags_of_older_versions_are_accepted_or_rejected() {
    #[track_caller]
    fn accepted(line: &str, warnings: &[&str]) {
        assert_eq!(run(line).unwrap().warnings, warnings, "{line}");
    }
    accepted(
        "--config=F --port=0 --logtostderr=true --v=9",
        &[
            "--logtostderr has no effect at this value; otherwise: logs go to standard error; redirect it",
            "--port has no effect: insecure serving was removed; use --bind-address and --secure-port",
        ],
    );
    accepted("--authentication-kubeconfig=F --authorization-kubeconfig=F --config=F -v=9", &[]);
    accepted(
        "--alsologtostderr",
        &["--alsologtostderr has no effect: logs always go to standard error"],
    );
    accepted(
        "--stderrthreshold=2",
        &["--stderrthreshold has no effect: logs always go to standard error"],
    );
    accepted(
        "--address=127.0.0.1",
        &[
            "--address has no effect: insecure serving was removed; use --bind-address and --secure-port",
        ],
    );
    accepted(
        "--scheduler-name=mine",
        &["--scheduler-name is deprecated; use profiles[0].schedulerName in a file for --config"],
    );
    for (line, want) in [
        ("--logtostderr=false", "error: --logtostderr=false: logs go to standard error"),
        ("--log-file=/x", "error: --log-file=/x: logs go to standard error"),
        (
            "--algorithm-provider=Default",
            "DefaultProvider or ClusterAutoscalerProvider is expected",
        ),
        ("--hard-pod-affinity-symmetric-weight=x", "strconv.ParseInt"),
        ("--skip-headers", "use --logging-format=json"),
    ] {
        check_error(line, want);
    }
    let policy = run(
        "--policy-config-file=f --policy-configmap=m --policy-configmap-namespace=n --use-legacy-policy-config=true",
    )
    .unwrap();
    let want = LegacyFlags {
        policy_config_file: "f".to_owned(),
        policy_configmap: "m".to_owned(),
        policy_configmap_namespace: "n".to_owned(),
        use_legacy_policy_config: true,
        ..LegacyFlags::default()
    };
    assert_eq!(policy.legacy, want);
    assert_eq!(policy.warnings.len(), 4);
    let errors = run("--use-legacy-policy-config").unwrap().validate();
    assert!(errors[0].starts_with("policyConfigFile: Required value"), "{errors:?}");
    let lock = run("--lock-object-name=a --lock-object-namespace=b").unwrap();
    assert_eq!(lock.leader_election.leader_elect_resource_name, "a");
    assert_eq!(lock.leader_election.leader_elect_resource_namespace, "b");
    let both = run("--lock-object-name=a --leader-elect-resource-name=c").unwrap();
    assert_eq!(both.leader_election.leader_elect_resource_name, "c");
}

#[test]
fn loadmaster_flags() {
    let Ok(ParsedCommandLine::Run(options)) = parse_command_line([
        "kube-scheduler",
        "--shadow",
        "--shadow-report=r",
        "--record=f",
        "--record-max-size=5Mi",
        "--check-every=9",
        "--with-controllers",
    ]) else {
        panic!()
    };
    let flags = &options.loadmaster;
    assert!(flags.shadow && flags.record == "f" && flags.record_max_size == 5 << 20);
    assert_eq!(flags.check_every, 9);
    assert_eq!(flags.shadow_report, "r");
    assert!(flags.with_controllers);
    assert!(options.validate().is_empty());
    assert!(!options.all_flag_values().iter().any(|(name, _)| name == "record"));
    let Ok(ParsedCommandLine::Run(options)) =
        parse_command_line(["kube-scheduler", "--record-max-size=5Mi"])
    else {
        panic!()
    };
    assert_eq!(options.validate(), ["--record-max-size requires --record"]);
    let Ok(ParsedCommandLine::Run(options)) =
        parse_command_line(["kube-scheduler", "--shadow-report=r"])
    else {
        panic!()
    };
    assert_eq!(options.validate(), ["--shadow-report requires --shadow"]);
    let Ok(ParsedCommandLine::Print(help)) = parse_command_line(["kube-scheduler", "--help"])
    else {
        panic!()
    };
    assert!(help.starts_with("Runs the scheduler, which assigns pods to nodes"), "{help}");
    assert!(help.contains("Loadmaster flags:") && help.contains("--record <string>"), "{help}");
}

#[test]
fn an_authors_program_answers_under_its_own_name() {
    let program = Program {
        name: "pool-scheduler".to_owned(),
        version: "pool-scheduler 2.1 (Kubernetes 1.36)".to_owned(),
        after_help: "Commands:\n  explain".to_owned(),
    };
    let printed = |flag: &str| match parse_flags(&program, [flag]) {
        Ok(ParsedCommandLine::Print(text)) => text,
        Ok(ParsedCommandLine::Run(_)) => panic!("{flag} runs"),
        Err(error) => error.to_string(),
    };
    assert_eq!(printed("--version"), "pool-scheduler 2.1 (Kubernetes 1.36)\n");
    assert!(printed("--version=raw").starts_with("version.Info{"));
    let help = printed("--help");
    assert!(help.contains("Usage: pool-scheduler [OPTIONS]"), "{help}");
    assert!(help.trim_end().ends_with("Commands:\n  explain"), "{help}");
    let unknown = printed("--nope");
    assert!(unknown.contains("Usage: pool-scheduler") && unknown.contains("--nope"), "{unknown}");
    let rest = printed("word");
    assert!(
        rest.contains(r#""pool-scheduler" does not take any arguments, got ["word"]"#),
        "{rest}"
    );
}
