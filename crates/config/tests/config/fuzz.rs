//! Fuzzing: no input makes the crate panic.

use loadmaster_api::document::Document;
use loadmaster_config::{AllFeatureGates, Duration, check_configuration};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::testkit::{HEADER, registry};

/// A configuration with nearly every kind of field.
const BODY: &str = "\
parallelism: 4
leaderElection: {leaderElect: true, leaseDuration: 15s, resourceLock: leases}
clientConnection: {qps: 50.5, burst: 3}
podMaxBackoffSeconds: 20
profiles:
- schedulerName: a
  percentageOfNodesToScore: 0
  plugins:
    multiPoint: {enabled: [{name: Mine, weight: 2}], disabled: [{name: NodeName}]}
    score: {disabled: [{name: '*'}], enabled: [{name: ImageLocality, weight: 9}]}
  pluginConfig:
  - {name: InterPodAffinity, args: {hardPodAffinityWeight: 5}}
  - {name: DefaultPreemption, args: {kind: DefaultPreemptionArgs}}
- schedulerName: b
extenders:
- {urlPrefix: 'http://x', weight: 1, httpTimeout: 1s, managedResources: [{name: a/b}], tlsConfig: {certData: YQ==}}
";

/// Characters of the syntax of a configuration.
const CHARACTERS: &str = "[\\[\\]{}:, \\-'\"a0*\n]{0,3}";
const WORDS: &[&str] = &[
    "null",
    "-1",
    "[]",
    "{}",
    "''",
    "1e400",
    "99999999999999999999",
    "NodeName",
    "*",
    "0",
    "true",
    "~",
];

fn check_does_not_panic(text: String) {
    let document = Document::new("config.yaml", text);
    if let Ok(checked) = check_configuration(&document, &registry(), &AllFeatureGates::default()) {
        assert!(checked.config.to_v1_yaml().is_ok());
    }
}

proptest! {
    #[test]
    fn any_text_does_not_panic(text in "\\PC*") {
        check_does_not_panic(text);
    }

    #[test]
    fn any_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_does_not_panic(format!("{HEADER}{}", String::from_utf8_lossy(&bytes)));
    }

    #[test]
    fn a_configuration_with_random_edits_does_not_panic(edits in prop::collection::vec((any::<Index>(), CHARACTERS), 1..4)) {
        let mut text: Vec<char> = format!("{HEADER}{BODY}").chars().collect();
        for (at, with) in edits {
            let at = at.index(text.len());
            text.splice(at..=at, with.chars());
        }
        check_does_not_panic(text.into_iter().collect());
    }

    #[test]
    fn a_configuration_with_a_replaced_word_does_not_panic(at in any::<Index>(), word in select(WORDS)) {
        let text = format!("{HEADER}{BODY}");
        let mut words: Vec<&str> = text.split(' ').collect();
        let at = at.index(words.len());
        words[at] = word;
        check_does_not_panic(words.join(" "));
    }

    #[test]
    fn durations_round_trip(nanos in any::<i64>()) {
        let text = format!("{nanos}ns");
        let duration: Duration = text.parse().unwrap();
        prop_assert_eq!(duration.as_nanos(), nanos);
        prop_assert_eq!(duration.to_string().parse::<Duration>(), Ok(duration));
    }

    #[test]
    fn any_duration_does_not_panic(text in "[-+0-9.hmsnu\u{b5} ]*") {
        drop(text.parse::<Duration>());
    }

    #[test]
    fn any_gates_do_not_panic(flag in "(kube:)?[A-Za-z]{0,8}=?(true|false|,)*") {
        drop(AllFeatureGates::parse([flag.as_str()]));
    }
}
