//! The machine against tables, and against a small server that fails at random.

use std::collections::BTreeMap;
use std::time::Duration;

use expect_test::{Expect, expect};
use loadmaster_api::proto::{Object, Status, WatchEvent};
use loadmaster_api::{Namespace, ObjectMeta};
use loadmaster_stdx::Rng;

use super::{Change, Do, Ended, Failure, Item, Machine, News, Unavailable};
use crate::kinds::Kind;

/// A namespace whose label tells its version, since objects do not carry theirs.
fn object(name: &str, uid: &str, version: u64) -> Object {
    let version = version.to_string();
    let labels = [("v", &*version)].map(|(k, v)| (k, v.into())).into_iter().collect();
    let (name, uid) = (name.into(), uid.into());
    Object::Namespace(Namespace {
        metadata: ObjectMeta { name, uid, labels, ..ObjectMeta::default() },
    })
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

/// A server that keeps its history, forgets the oldest of it, and serves old lists to who accepts them.
struct Server {
    now: u64,
    /// Name to uid and version.
    objects: BTreeMap<String, (String, u64)>,
    log: Vec<(u64, LogEntry)>,
    /// Versions before this one are forgotten.
    oldest: u64,
    /// All states, for lists of the past.
    past: BTreeMap<u64, BTreeMap<String, (String, u64)>>,
}

#[derive(Clone)]
enum LogEntry {
    Set(String, String, bool),
    Gone(String, String),
}

impl Server {
    fn new() -> Server {
        let past = [(1, BTreeMap::new())].into();
        Server { now: 1, objects: BTreeMap::new(), log: Vec::new(), oldest: 1, past }
    }

    fn change(&mut self, rng: &mut Rng) {
        self.now += 1;
        let name = format!("o{}", rng.below(6));
        let entry = match self.objects.get_mut(&name) {
            None => {
                let uid = format!("u{}", self.now);
                self.objects.insert(name.clone(), (uid.clone(), self.now));
                LogEntry::Set(name, uid, true)
            }
            Some((uid, version)) if rng.one_in(2) => {
                *version = self.now;
                LogEntry::Set(name, uid.clone(), false)
            }
            Some((uid, _)) => {
                let uid = uid.clone();
                self.objects.remove(&name);
                LogEntry::Gone(name, uid)
            }
        };
        self.log.push((self.now, entry));
        self.past.insert(self.now, self.objects.clone());
        if rng.one_in(8) {
            self.oldest = self.oldest.max(self.now.saturating_sub(rng.below(10)));
        }
    }

    fn events_after(&self, version: u64) -> impl Iterator<Item = News> {
        self.log.iter().filter(move |(at, _)| *at > version).map(|(at, entry)| {
            let resource_version = at.to_string();
            News::Event(match entry.clone() {
                LogEntry::Set(name, uid, true) => {
                    WatchEvent::Added { object: object(&name, &uid, *at), resource_version }
                }
                LogEntry::Set(name, uid, false) => {
                    WatchEvent::Modified { object: object(&name, &uid, *at), resource_version }
                }
                LogEntry::Gone(name, uid) => {
                    WatchEvent::Deleted { object: object(&name, &uid, *at), resource_version }
                }
            })
        })
    }

    /// News for what is asked; the server may be older than it is for lists that allow it. None when a fault strikes.
    fn serve(&self, ask: &Do, rng: &mut Rng) -> Vec<News> {
        let item = |(name, (uid, version)): (&String, &(String, u64))| Item {
            object: object(name, uid, *version),
            resource_version: version.to_string(),
        };
        match ask {
            Do::Pause(_) => vec![News::Woke],
            Do::List { resource_version, continue_token, limit } => {
                // A token is the version and the last name of the page before.
                let (at, after) = match continue_token.split_once('/') {
                    Some((at, after)) => (at.parse().unwrap(), after.to_owned()),
                    None => (self.pick(resource_version, rng), String::new()),
                };
                if !continue_token.is_empty() && at < self.oldest {
                    return vec![News::NoPage(status(410))];
                }
                let len = if *limit == 0 { usize::MAX } else { 2 };
                let state = &self.past[&at];
                let page: Vec<_> =
                    state.iter().filter(|(name, _)| **name > after).take(len).collect();
                let last = page.last().map(|(name, _)| (*name).clone()).unwrap_or_default();
                let has_more = state.iter().any(|(name, _)| *name > last) && !last.is_empty();
                let mut news: Vec<News> = page.into_iter().map(item).map(News::Listed).collect();
                let continue_token = if has_more { format!("{at}/{last}") } else { String::new() };
                news.push(News::Page { resource_version: at.to_string(), continue_token });
                news
            }
            Do::Watch { resource_version, initial_events: true, .. } => {
                let at = match &**resource_version {
                    "" => self.now,
                    version => self.pick(version, rng),
                };
                let mut news = vec![News::Opened];
                news.extend(self.past[&at].iter().map(item).map(
                    |Item { object, resource_version }| {
                        News::Event(WatchEvent::Added { object, resource_version })
                    },
                ));
                let (resource_version, ends_initial_events) = (at.to_string(), true);
                news.push(News::Event(WatchEvent::Bookmark {
                    resource_version,
                    ends_initial_events,
                }));
                news.extend(self.events_after(at));
                news
            }
            Do::Watch { resource_version, .. } => {
                let version: u64 = resource_version.parse().unwrap();
                if version < self.oldest {
                    return vec![News::End(Ended {
                        open_for: Duration::ZERO,
                        failure: Some(status(410)),
                    })];
                }
                let mut news = vec![News::Opened];
                news.extend(self.events_after(version));
                let (resource_version, ends_initial_events) = (self.now.to_string(), false);
                news.push(News::Event(WatchEvent::Bookmark {
                    resource_version,
                    ends_initial_events,
                }));
                news
            }
        }
    }

    /// A version that satisfies "not older than".
    fn pick(&self, at_least: &str, rng: &mut Rng) -> u64 {
        match at_least {
            "" => self.now,
            text => {
                let least: u64 = text.parse::<u64>().unwrap().max(1);
                least + rng.below(self.now - least + 1)
            }
        }
    }
}

fn fault(rng: &mut Rng) -> Failure {
    match rng.below(6) {
        0 => Failure::Connection("lost".to_owned()),
        1 => Failure::Decode("garbled".to_owned()),
        2 => status(410),
        3 => status(422),
        4 => status(429),
        _ => status(500),
    }
}

/// What a listener believes, checked at each change.
#[derive(Default)]
struct Picture(BTreeMap<String, (String, u64)>);

impl Picture {
    fn take(&mut self, change: Change) {
        match change {
            Change::Set { object, .. } => {
                let metadata = object.metadata().unwrap();
                let version = version_of(&object);
                let before =
                    self.0.insert(metadata.name.to_string(), (metadata.uid.to_string(), version));
                if let Some((uid, before)) = before {
                    assert_eq!(uid, *metadata.uid, "replaced without having gone");
                    assert!(before < version, "told again or undone");
                }
            }
            Change::Gone { name, uid, .. } => {
                let (known, _) = self.0.remove(&*name).expect("gone without having been");
                assert_eq!(known, *uid);
            }
            Change::Synced(_) | Change::Available(_) | Change::Unavailable { .. } => {}
        }
    }
}

#[test]
fn the_picture_becomes_what_the_server_has_whatever_fails() {
    for seed in 0..600 {
        let mut rng = Rng::new(seed);
        let streams = rng.one_in(2);
        let mut machine = Machine::new(Kind::Namespace, streams, &rng.split("machine"));
        let (mut server, mut picture) = (Server::new(), Picture::default());
        let (mut now, mut changes) = (Duration::ZERO, Vec::new());
        for round in 0..80 {
            let is_calm = round >= 60;
            let ask = machine.ask();
            if let Do::Pause(pause) = &ask {
                now += *pause;
            }
            if !is_calm {
                for _ in 0..rng.below(4) {
                    server.change(&mut rng);
                }
            }
            let mut news = server.serve(&ask, &mut rng);
            let is_pause = matches!(ask, Do::Pause(_));
            let mut failure = None;
            if !is_calm && !is_pause && rng.one_in(3) {
                news.truncate(rng.below(news.len() as u64 + 1) as usize);
                failure = Some(fault(&mut rng));
            }
            let mut ended = news.iter().any(|news| matches!(news, News::End(_)));
            for piece in news {
                let go_on = machine.hear(now, piece, &mut changes);
                changes.drain(..).for_each(|change| picture.take(change));
                if !go_on {
                    break;
                }
            }
            match (ask, failure) {
                (Do::List { .. }, Some(failure)) => {
                    machine.hear(now, News::NoPage(failure), &mut changes);
                }
                (Do::Watch { .. }, failure) if !ended => {
                    ended = true;
                    let open_for = Duration::from_secs(rng.below(3));
                    if let (Some(Failure::Status(status)), true) = (&failure, rng.one_in(2)) {
                        let error = News::Event(WatchEvent::Error(status.clone()));
                        assert!(!machine.hear(now, error, &mut changes));
                        machine.hear(
                            now,
                            News::End(Ended { open_for, failure: None }),
                            &mut changes,
                        );
                    } else {
                        machine.hear(now, News::End(Ended { open_for, failure }), &mut changes);
                    }
                }
                _ => {}
            }
            assert!(ended || !changes.iter().any(|change| matches!(change, Change::Set { .. })));
            changes.drain(..).for_each(|change| picture.take(change));
        }
        assert_eq!(picture.0, server.objects, "seed {seed}");
        assert_eq!(machine.n_known(), server.objects.len());
    }
}
