//! The machine against tables, and (in `model`) against a small server that fails at random.

mod model;

use std::time::Duration;

use expect_test::{Expect, expect};
use loadmaster_api::proto::{Object, Status, WatchEvent};
use loadmaster_api::{Namespace, ObjectMeta};
use loadmaster_stdx::Rng;

use super::{Change, Do, Ended, Failure, Item, Machine, News, Read, Unavailable};
use crate::kinds::Kind;

/// A namespace whose label tells its version, since objects do not carry theirs.
fn object(name: &str, uid: &str, version: u64) -> Read {
    let version = version.to_string();
    let labels = [("v", &*version)].map(|(k, v)| (k, v.into())).into_iter().collect();
    let (name, uid) = (name.into(), uid.into());
    let metadata = ObjectMeta { name, uid, labels, ..ObjectMeta::default() };
    Object::Namespace(Namespace { metadata }).into()
}

fn version_of(object: &Object) -> u64 {
    object.metadata().unwrap().labels.get("v").unwrap().parse().unwrap()
}

fn status(code: i32) -> Failure {
    Failure::Status(Status { code, message: "m".to_owned(), ..Status::default() })
}

/// `a.u@7`: object a with uid u and version 7.
fn parse(text: &str) -> Item {
    let (name, version) = text.split_once('@').unwrap();
    let (name, uid) = name.split_once('.').unwrap();
    let number = version.parse().unwrap();
    Item { object: object(name, uid, number), resource_version: version.to_owned() }
}

fn news(text: &str) -> News {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let event = |item: &str| {
        let Item { object, resource_version } = parse(item);
        (object, resource_version)
    };
    let failure = |rest: &str| match rest {
        "lost" => Failure::Connection("lost".to_owned()),
        "garbled" => Failure::Decode("garbled".to_owned()),
        code => status(code.parse().unwrap()),
    };
    match word {
        "item" => News::Listed(parse(rest)),
        "page" => {
            let (version, token) = rest.split_once('>').unwrap_or((rest, ""));
            News::Page { resource_version: version.to_owned(), continue_token: token.to_owned() }
        }
        "nopage" => News::NoPage(failure(rest)),
        "open" => News::Opened,
        "+" => {
            let (object, resource_version) = event(rest);
            News::Event(WatchEvent::Added { object, resource_version })
        }
        "~" => {
            let (object, resource_version) = event(rest);
            News::Event(WatchEvent::Modified { object, resource_version })
        }
        "-" => {
            let (object, resource_version) = event(rest);
            News::Event(WatchEvent::Deleted { object, resource_version })
        }
        "mark" | "end" => News::Event(WatchEvent::Bookmark {
            resource_version: rest.to_owned(),
            ends_initial_events: word == "end",
        }),
        "error" => {
            let Failure::Status(status) = failure(rest) else { unreachable!() };
            News::Event(WatchEvent::Error(status))
        }
        "closed" => News::End(Ended {
            open_for: Duration::from_millis(rest.parse().unwrap()),
            failure: None,
        }),
        "broken" => News::End(Ended { open_for: Duration::ZERO, failure: Some(failure(rest)) }),
        "woke" => News::Woke,
        other => panic!("{other}"),
    }
}

fn told(change: &Change) -> String {
    match change {
        Change::Set { object, .. } => {
            let metadata = object.metadata().unwrap();
            format!("set {}.{}@{}", metadata.name, metadata.uid, version_of(object))
        }
        Change::Gone { name, uid, .. } => format!("gone {name}.{uid}"),
        Change::Synced(_) => "synced".to_owned(),
        Change::Available(_) => "available".to_owned(),
        Change::Unavailable { why, .. } => match why {
            Unavailable::Forbidden { rule } => format!("forbidden: {rule}"),
            Unavailable::Absent => "absent".to_owned(),
            Unavailable::Failing { text } => format!("failing: {text}"),
        },
    }
}

fn asked(next: Do) -> String {
    match next {
        Do::List { resource_version, continue_token, limit } => {
            format!("LIST rv={resource_version:?} continue={continue_token:?} limit={limit}")
        }
        Do::Watch { resource_version, initial_events, .. } => {
            let stream = if initial_events { " from the beginning" } else { "" };
            format!("WATCH rv={resource_version:?}{stream}")
        }
        Do::Pause(_) => "PAUSE".to_owned(),
    }
}

/// News in their order; what they lead to, and what is asked next whenever that changes.
#[track_caller]
fn check(streams: bool, script: &[&str], want: &Expect) {
    let mut machine = Machine::new(Kind::Namespace, streams, &Rng::new(1));
    let mut text = String::new();
    let mut last = String::new();
    let mut line = |line: String| text.push_str(&format!("{line}\n"));
    let mut changes = Vec::new();
    for step in std::iter::once(&"").chain(script) {
        if !step.is_empty() {
            line(format!("  {step}"));
            if !machine.hear(Duration::ZERO, news(step), &mut changes) {
                line("close".to_owned());
            }
        }
        for change in changes.drain(..) {
            line(told(&change));
        }
        let now = asked(machine.ask());
        if now != last {
            line(now.clone());
            last = now;
        }
    }
    want.assert_eq(&text);
}

#[test]
fn pages_then_a_watch() {
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
            gone b.1
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
fn a_streamed_list_is_followed_on_the_same_watch() {
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
            WATCH rv="" from the beginning
              open
              + a.1@3
            set a.1@3
              + b.1@2
            set b.1@2
              end 9
            synced
            WATCH rv="9"
              - b.1@12
            gone b.1
            WATCH rv="12"
              closed 300000
              broken 410
            PAUSE
              woke
            WATCH rv="" from the beginning
              open
              + a.2@15
            gone a.1
            set a.2@15
              end 16
            synced
            WATCH rv="16"
        "#]],
    );
}

#[test]
fn what_went_unseen_is_told_after_a_new_list() {
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
            gone c.1
            set c.2@7
              page 12
            synced
            WATCH rv="12"
        "#]],
    );
}

#[test]
fn servers_without_streams_are_asked_for_pages() {
    check(
        true,
        &[
            "broken 422",
            "item a.1@3",
            "page 9",
            "broken garbled",
            "woke",
            "broken 400",
            "page 10",
            "open",
        ],
        &expect![[r#"
            WATCH rv="" from the beginning
              broken 422
            LIST rv="0" continue="" limit=500
              item a.1@3
            set a.1@3
              page 9
            synced
            WATCH rv="9"
              broken garbled
            failing: garbled
            PAUSE
              woke
            WATCH rv="9" from the beginning
              broken 400
            LIST rv="9" continue="" limit=0
              page 10
            gone a.1
            synced
            WATCH rv="10"
              open
            available
        "#]],
    );
}

#[test]
fn what_is_forbidden_is_said_in_words() {
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
            WATCH rv="" from the beginning
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
fn lists_that_expire_on_the_way_begin_anew_from_the_newest() {
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
            gone a.1
            available
            synced
            WATCH rv="30"
        "#]],
    );
}

#[test]
fn watches_that_break_are_resumed_but_not_for_ever() {
    check(
        false,
        &[
            "page 5",
            "closed 10",
            "woke",
            "broken 429",
            "woke",
            "broken lost",
            "woke",
            "broken 500",
            "woke",
            "broken lost",
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
              broken 429
            failing: 429 m
            PAUSE
              woke
            WATCH rv="5"
              broken lost
            failing: lost
            PAUSE
              woke
            WATCH rv="5"
              broken 500
            failing: 500 m
            PAUSE
              woke
            WATCH rv="5"
              broken lost
            failing: lost
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
