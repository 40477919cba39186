//! The reflector's state machine by tables, and (in `fake_server`) with a simulated server that fails at random.

mod fake_server;

use std::time::Duration;

use expect_test::{Expect, expect};
use loadmaster_api::proto::{Object, Status, WatchEvent};
use loadmaster_api::{Namespace, ObjectMeta};
use loadmaster_stdx::Rng;

use super::{
    DecodedObject, KindUnavailableReason, ListWatchError, ReflectorAction, ReflectorEvent,
    ReflectorInput, ReflectorState, VersionedObject, WatchEnd,
};
use crate::kinds::Kind;

/// A namespace with its resourceVersion in a label, because decoded objects have none.
fn object(name: &str, uid: &str, version: u64) -> DecodedObject {
    let version = version.to_string();
    let labels = [("v", &*version)].map(|(k, v)| (k, v.into())).into_iter().collect();
    let (name, uid) = (name.into(), uid.into());
    let metadata = ObjectMeta { name, uid, labels, ..ObjectMeta::default() };
    Object::Namespace(Namespace { metadata }).into()
}

fn version_of(object: &Object) -> u64 {
    object.metadata().unwrap().labels.get("v").unwrap().parse().unwrap()
}

fn status(code: i32) -> ListWatchError {
    ListWatchError::Status(Status { code, message: "m".to_owned(), ..Status::default() })
}

/// `a.u@7`: object a with uid u and version 7.
fn parse(text: &str) -> VersionedObject {
    let (name, version) = text.split_once('@').unwrap();
    let (name, uid) = name.split_once('.').unwrap();
    let number = version.parse().unwrap();
    VersionedObject { object: object(name, uid, number), resource_version: version.to_owned() }
}

fn input(text: &str) -> ReflectorInput {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let event = |item: &str| {
        let VersionedObject { object, resource_version } = parse(item);
        (object, resource_version)
    };
    let failure = |rest: &str| match rest {
        "lost" => ListWatchError::Connection("lost".to_owned()),
        "undecodable" => ListWatchError::Decode("undecodable".to_owned()),
        code => status(code.parse().unwrap()),
    };
    match word {
        "item" => ReflectorInput::ListItem(parse(rest)),
        "page" => {
            let (version, token) = rest.split_once('>').unwrap_or((rest, ""));
            ReflectorInput::PageEnd {
                resource_version: version.to_owned(),
                continue_token: token.to_owned(),
            }
        }
        "nopage" => ReflectorInput::ListFailed(failure(rest)),
        "open" => ReflectorInput::WatchOpened,
        "+" => {
            let (object, resource_version) = event(rest);
            ReflectorInput::WatchEvent(WatchEvent::Added { object, resource_version })
        }
        "~" => {
            let (object, resource_version) = event(rest);
            ReflectorInput::WatchEvent(WatchEvent::Modified { object, resource_version })
        }
        "-" => {
            let (object, resource_version) = event(rest);
            ReflectorInput::WatchEvent(WatchEvent::Deleted { object, resource_version })
        }
        "mark" | "end" => ReflectorInput::WatchEvent(WatchEvent::Bookmark {
            resource_version: rest.to_owned(),
            ends_initial_events: word == "end",
        }),
        "error" => {
            let ListWatchError::Status(status) = failure(rest) else { unreachable!() };
            ReflectorInput::WatchEvent(WatchEvent::Error(status))
        }
        "closed" => ReflectorInput::WatchEnded(WatchEnd {
            open_for: Duration::from_millis(rest.parse().unwrap()),
            failure: None,
        }),
        "broken" => ReflectorInput::WatchEnded(WatchEnd {
            open_for: Duration::ZERO,
            failure: Some(failure(rest)),
        }),
        "woke" => ReflectorInput::BackoffElapsed,
        other => panic!("{other}"),
    }
}

fn describe_event(event: &ReflectorEvent) -> String {
    match event {
        ReflectorEvent::Upsert { object, .. } => {
            let metadata = object.metadata().unwrap();
            format!("set {}.{}@{}", metadata.name, metadata.uid, version_of(object))
        }
        ReflectorEvent::Delete { name, uid, .. } => format!("deleted {name}.{uid}"),
        ReflectorEvent::Synced(_) => "synced".to_owned(),
        ReflectorEvent::Available(_) => "available".to_owned(),
        ReflectorEvent::Unavailable { why, .. } => match why {
            KindUnavailableReason::Forbidden { rule } => format!("forbidden: {rule}"),
            KindUnavailableReason::NotServed => "absent".to_owned(),
            KindUnavailableReason::Failing { text } => format!("failing: {text}"),
        },
    }
}

fn describe_action(next: ReflectorAction) -> String {
    match next {
        ReflectorAction::List { resource_version, continue_token, limit } => {
            format!("LIST rv={resource_version:?} continue={continue_token:?} limit={limit}")
        }
        ReflectorAction::Watch { resource_version, initial_events, .. } => {
            let stream = if initial_events { " with initial events" } else { "" };
            format!("WATCH rv={resource_version:?}{stream}")
        }
        ReflectorAction::Backoff(_) => "PAUSE".to_owned(),
    }
}

/// `script` are the inputs in order; `want` also has the resulting events, and the next action whenever it changes.
#[track_caller]
fn check(streams: bool, script: &[&str], want: &Expect) {
    let mut state = ReflectorState::new(Kind::Namespace, streams, &Rng::new(1));
    let mut text = String::new();
    let mut last = String::new();
    let mut line = |line: String| text.push_str(&format!("{line}\n"));
    let mut events = Vec::new();
    for step in std::iter::once(&"").chain(script) {
        if !step.is_empty() {
            line(format!("  {step}"));
            if !state.handle_input(Duration::ZERO, input(step), &mut events) {
                line("close".to_owned());
            }
        }
        for event in events.drain(..) {
            line(describe_event(&event));
        }
        let now = describe_action(state.next_action());
        if now != last {
            line(now.clone());
            last = now;
        }
    }
    want.assert_eq(&text);
}

#[test]
fn a_paged_list_then_a_watch() {
    check(
        false,
        &[
            "item a.1@3",
            "page 9>more",
            "item b.1@4",
            "page 9",
            "open",
            "~ a.1@10",
            "- b.1@11",
            "mark 20",
            "closed 300000",
            "open",
            "~ a.1@10",
            "closed 300000",
        ],
        &expect![[r#"
            LIST rv="0" continue="" limit=500
              item a.1@3
            set a.1@3
              page 9>more
            LIST rv="" continue="more" limit=500
              item b.1@4
            set b.1@4
              page 9
            synced
            WATCH rv="9"
              open
              ~ a.1@10
            set a.1@10
            WATCH rv="10"
              - b.1@11
            deleted b.1
            WATCH rv="11"
              mark 20
            WATCH rv="20"
              closed 300000
              open
              ~ a.1@10
            WATCH rv="10"
              closed 300000
        "#]],
    );
}

#[test]
fn a_watch_list_continues_as_a_watch() {
    check(
        true,
        &[
            "open",
            "+ a.1@3",
            "+ b.1@2",
            "end 9",
            "- b.1@12",
            "closed 300000",
            "broken 410",
            "woke",
            "open",
            "+ a.2@15",
            "end 16",
        ],
        &expect![[r#"
            WATCH rv="" with initial events
              open
              + a.1@3
            set a.1@3
              + b.1@2
            set b.1@2
              end 9
            synced
            WATCH rv="9"
              - b.1@12
            deleted b.1
            WATCH rv="12"
              closed 300000
              broken 410
            PAUSE
              woke
            WATCH rv="" with initial events
              open
              + a.2@15
            deleted a.1
            set a.2@15
              end 16
            synced
            WATCH rv="16"
        "#]],
    );
}

#[test]
fn a_relist_sends_missed_changes() {
    check(
        false,
        &[
            "item a.1@3",
            "item b.1@4",
            "item c.1@5",
            "page 9",
            "error 410",
            "closed 10",
            "woke",
            "item a.1@3",
            "item b.1@8",
            "item c.2@7",
            "page 12",
        ],
        &expect![[r#"
            LIST rv="0" continue="" limit=500
              item a.1@3
            set a.1@3
              item b.1@4
            set b.1@4
              item c.1@5
            set c.1@5
              page 9
            synced
            WATCH rv="9"
              error 410
            close
            PAUSE
              closed 10
              woke
            LIST rv="" continue="" limit=500
              item a.1@3
              item b.1@8
            set b.1@8
              item c.2@7
            deleted c.1
            set c.2@7
              page 12
            synced
            WATCH rv="12"
        "#]],
    );
}

#[test]
fn a_server_without_watch_list_is_listed_in_pages() {
    check(
        true,
        &[
            "broken 422",
            "item a.1@3",
            "page 9",
            "broken undecodable",
            "woke",
            "broken 400",
            "page 10",
            "open",
        ],
        &expect![[r#"
            WATCH rv="" with initial events
              broken 422
            LIST rv="0" continue="" limit=500
              item a.1@3
            set a.1@3
              page 9
            synced
            WATCH rv="9"
              broken undecodable
            failing: undecodable
            PAUSE
              woke
            WATCH rv="9" with initial events
              broken 400
            LIST rv="9" continue="" limit=0
              page 10
            deleted a.1
            synced
            WATCH rv="10"
              open
            available
        "#]],
    );
}

#[test]
fn a_forbidden_kind_reports_the_missing_permission() {
    check(
        true,
        &[
            "broken 403",
            "nopage 403",
            "woke",
            "nopage 403",
            "woke",
            "nopage 404",
            "woke",
            "page 7",
            "broken 403",
            "woke",
            "broken 403",
            "woke",
            "open",
        ],
        &expect![[r#"
            WATCH rv="" with initial events
              broken 403
            LIST rv="0" continue="" limit=500
              nopage 403
            forbidden: list namespaces in core at cluster scope
            PAUSE
              woke
            LIST rv="0" continue="" limit=500
              nopage 403
            PAUSE
              woke
            LIST rv="0" continue="" limit=500
              nopage 404
            absent
            PAUSE
              woke
            LIST rv="0" continue="" limit=500
              page 7
            available
            synced
            WATCH rv="7"
              broken 403
            forbidden: watch namespaces in core at cluster scope
            PAUSE
              woke
            WATCH rv="7"
              broken 403
            PAUSE
              woke
            WATCH rv="7"
              open
            available
        "#]],
    );
}

#[test]
fn a_list_that_expires_is_restarted_from_the_most_recent_version() {
    check(
        false,
        &[
            "item a.1@3",
            "page 9>more",
            "nopage 410",
            "item b.1@4",
            "page 9>more",
            "nopage 410",
            "nopage 410",
            "woke",
            "item b.1@4",
            "page 30",
        ],
        &expect![[r#"
            LIST rv="0" continue="" limit=500
              item a.1@3
            set a.1@3
              page 9>more
            LIST rv="" continue="more" limit=500
              nopage 410
            LIST rv="" continue="" limit=500
              item b.1@4
            set b.1@4
              page 9>more
            LIST rv="" continue="more" limit=500
              nopage 410
            LIST rv="" continue="" limit=500
              nopage 410
            failing: 410 m
            PAUSE
              woke
            LIST rv="" continue="" limit=500
              item b.1@4
              page 30
            deleted a.1
            available
            synced
            WATCH rv="30"
        "#]],
    );
}

#[test]
fn a_watch_that_the_server_refuses_is_retried_a_limited_number_of_times() {
    check(
        false,
        &[
            "page 5",
            "closed 10",
            "woke",
            "broken 500",
            "woke",
            "broken 400",
            "woke",
            "broken 500",
            "woke",
            "open",
            "broken 500",
            "woke",
        ],
        &expect![[r#"
            LIST rv="0" continue="" limit=500
              page 5
            synced
            WATCH rv="5"
              closed 10
            PAUSE
              woke
            WATCH rv="5"
              broken 500
            failing: 500 m
            PAUSE
              woke
            WATCH rv="5"
              broken 400
            failing: 400 m
            PAUSE
              woke
            WATCH rv="5"
              broken 500
            failing: 500 m
            PAUSE
              woke
            WATCH rv="5"
              open
            available
              broken 500
            failing: 500 m
            PAUSE
              woke
            LIST rv="5" continue="" limit=0
        "#]],
    );
}

#[test]
fn there_is_no_relist_while_the_server_is_unavailable() {
    let mut state = ReflectorState::new(Kind::Namespace, false, &Rng::new(1));
    let mut handle = |step: &str| {
        state.handle_input(Duration::ZERO, input(step), &mut Vec::new());
        describe_action(state.next_action())
    };
    assert_eq!(handle("page 5"), r#"WATCH rv="5""#);
    for failure in ["lost", "401", "429", "502", "503", "504"].repeat(10) {
        assert_eq!(handle(&format!("broken {failure}")), "PAUSE");
        assert_eq!(handle("woke"), r#"WATCH rv="5""#, "{failure}");
    }
    // The resourceVersion is gone.
    assert_eq!(handle("broken 410"), "PAUSE");
    assert_eq!(handle("woke"), r#"LIST rv="" continue="" limit=500"#);
}

#[test]
fn pauses_last_as_long_as_the_server_asks_for_but_not_longer_than_a_minute() {
    #[track_caller]
    fn check(
        failed: fn(ListWatchError) -> ReflectorInput,
        retry_after_seconds: i32,
        want_s: (u64, u64),
    ) {
        let mut state = ReflectorState::new(Kind::Namespace, false, &Rng::new(1));
        let busy = Status { code: 429, retry_after_seconds, ..Status::default() };
        let mut events = Vec::new();
        let input = failed(ListWatchError::Status(busy));
        state.handle_input(Duration::ZERO, input, &mut events);
        let ReflectorAction::Backoff(pause) = state.next_action() else { panic!("no pause") };
        assert!(
            pause >= Duration::from_secs(want_s.0) && pause <= Duration::from_secs(want_s.1),
            "{pause:?}"
        );
    }
    let ended = |failure| {
        let failure = Some(failure);
        ReflectorInput::WatchEnded(WatchEnd { open_for: Duration::ZERO, failure })
    };
    for failed in [ReflectorInput::ListFailed, ended] {
        check(failed, 0, (0, 2));
        check(failed, -5, (0, 2));
        check(failed, 7, (7, 7));
        check(failed, 86_400, (60, 60));
    }
}
