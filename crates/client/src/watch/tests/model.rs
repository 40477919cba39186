//! A small server that fails at random, and what a listener believes of it.

use std::collections::BTreeMap;
use std::time::Duration;

use loadmaster_api::proto::WatchEvent;
use loadmaster_stdx::Rng;

use super::super::{Change, Do, Ended, Failure, Item, Machine, News};
use super::{object, status, version_of};
use crate::kinds::Kind;

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
