//! A simulated API server that fails at random, and a store that a reflector fills from it.

use std::collections::BTreeMap;
use std::time::Duration;

use loadmaster_api::proto::WatchEvent;
use loadmaster_stdx::Rng;

use super::super::{
    ListWatchError, ReflectorAction, ReflectorEvent, ReflectorInput, ReflectorState,
    VersionedObject, WatchEnd,
};
use super::{object, status, version_of};
use crate::kinds::Kind;

/// A server with a limited history, which serves stale lists where the request allows that.
struct Server {
    now: u64,
    /// Name to uid and version.
    objects: BTreeMap<String, (String, u64)>,
    log: Vec<(u64, LogEntry)>,
    /// Versions before this one have expired.
    oldest: u64,
    /// All past states, for stale lists.
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

    fn events_after(&self, version: u64) -> impl Iterator<Item = ReflectorInput> {
        self.log.iter().filter(move |(at, _)| *at > version).map(|(at, entry)| {
            let resource_version = at.to_string();
            ReflectorInput::WatchEvent(match entry.clone() {
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

    /// The inputs that result from an action; lists are stale where the action allows that.
    fn serve(&self, action: &ReflectorAction, rng: &mut Rng) -> Vec<ReflectorInput> {
        let item = |(name, (uid, version)): (&String, &(String, u64))| VersionedObject {
            object: object(name, uid, *version),
            resource_version: version.to_string(),
        };
        match action {
            ReflectorAction::Backoff(_) => vec![ReflectorInput::BackoffElapsed],
            ReflectorAction::List { resource_version, continue_token, limit } => {
                // A token is the version and the last name of the previous page.
                let (at, after) = match continue_token.split_once('/') {
                    Some((at, after)) => (at.parse().unwrap(), after.to_owned()),
                    None => (self.pick(resource_version, rng), String::new()),
                };
                if !continue_token.is_empty() && at < self.oldest {
                    return vec![ReflectorInput::ListFailed(status(410))];
                }
                let len = if *limit == 0 { usize::MAX } else { 2 };
                let state = &self.past[&at];
                let page: Vec<_> =
                    state.iter().filter(|(name, _)| **name > after).take(len).collect();
                let last = page.last().map(|(name, _)| (*name).clone()).unwrap_or_default();
                let has_more = state.iter().any(|(name, _)| *name > last) && !last.is_empty();
                let mut inputs: Vec<ReflectorInput> =
                    page.into_iter().map(item).map(ReflectorInput::ListItem).collect();
                let continue_token = if has_more { format!("{at}/{last}") } else { String::new() };
                inputs.push(ReflectorInput::PageEnd {
                    resource_version: at.to_string(),
                    continue_token,
                });
                inputs
            }
            ReflectorAction::Watch { resource_version, initial_events: true, .. } => {
                let at = match &**resource_version {
                    "" => self.now,
                    version => self.pick(version, rng),
                };
                let mut inputs = vec![ReflectorInput::WatchOpened];
                inputs.extend(self.past[&at].iter().map(item).map(
                    |VersionedObject { object, resource_version }| {
                        ReflectorInput::WatchEvent(WatchEvent::Added { object, resource_version })
                    },
                ));
                let (resource_version, ends_initial_events) = (at.to_string(), true);
                inputs.push(ReflectorInput::WatchEvent(WatchEvent::Bookmark {
                    resource_version,
                    ends_initial_events,
                }));
                inputs.extend(self.events_after(at));
                inputs
            }
            ReflectorAction::Watch { resource_version, .. } => {
                let version: u64 = resource_version.parse().unwrap();
                if version < self.oldest {
                    return vec![ReflectorInput::WatchEnded(WatchEnd {
                        open_for: Duration::ZERO,
                        failure: Some(status(410)),
                    })];
                }
                let mut inputs = vec![ReflectorInput::WatchOpened];
                inputs.extend(self.events_after(version));
                let (resource_version, ends_initial_events) = (self.now.to_string(), false);
                inputs.push(ReflectorInput::WatchEvent(WatchEvent::Bookmark {
                    resource_version,
                    ends_initial_events,
                }));
                inputs
            }
        }
    }

    /// A random version that is not older than the requested one.
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

fn fault(rng: &mut Rng) -> ListWatchError {
    match rng.below(6) {
        0 => ListWatchError::Connection("lost".to_owned()),
        1 => ListWatchError::Decode("undecodable".to_owned()),
        2 => status(410),
        3 => status(422),
        4 => status(429),
        _ => status(500),
    }
}

/// The objects by the reflector's events; each event is checked.
#[derive(Default)]
struct Store(BTreeMap<String, (String, u64)>);

impl Store {
    fn apply(&mut self, event: ReflectorEvent) {
        match event {
            ReflectorEvent::Upsert { object, .. } => {
                let metadata = object.metadata().unwrap();
                let version = version_of(&object);
                let before =
                    self.0.insert(metadata.name.to_string(), (metadata.uid.to_string(), version));
                if let Some((uid, before)) = before {
                    assert_eq!(uid, *metadata.uid, "an object was replaced without a Delete");
                    assert!(before < version, "a version was sent again or undone");
                }
            }
            ReflectorEvent::Delete { name, uid, .. } => {
                let (known, _) = self.0.remove(&*name).expect("a Delete of an unknown object");
                assert_eq!(known, *uid);
            }
            ReflectorEvent::Synced(_)
            | ReflectorEvent::Available(_)
            | ReflectorEvent::Unavailable { .. } => {}
        }
    }
}

#[test]
fn the_store_becomes_consistent_with_the_server_despite_faults() {
    for seed in 0..600 {
        let mut rng = Rng::new(seed);
        let streams = rng.one_in(2);
        let mut state = ReflectorState::new(Kind::Namespace, streams, &rng.split("machine"));
        let (mut server, mut store) = (Server::new(), Store::default());
        let (mut now, mut events) = (Duration::ZERO, Vec::new());
        for round in 0..80 {
            let is_fault_free = round >= 60;
            let action = state.next_action();
            if let ReflectorAction::Backoff(pause) = &action {
                now += *pause;
            }
            if !is_fault_free {
                for _ in 0..rng.below(4) {
                    server.change(&mut rng);
                }
            }
            let mut inputs = server.serve(&action, &mut rng);
            let is_pause = matches!(action, ReflectorAction::Backoff(_));
            let mut failure = None;
            if !is_fault_free && !is_pause && rng.one_in(3) {
                inputs.truncate(rng.below(inputs.len() as u64 + 1) as usize);
                failure = Some(fault(&mut rng));
            }
            let mut ended =
                inputs.iter().any(|input| matches!(input, ReflectorInput::WatchEnded(_)));
            for input in inputs {
                let keep_open = state.handle_input(now, input, &mut events);
                events.drain(..).for_each(|event| store.apply(event));
                if !keep_open {
                    break;
                }
            }
            match (action, failure) {
                (ReflectorAction::List { .. }, Some(failure)) => {
                    state.handle_input(now, ReflectorInput::ListFailed(failure), &mut events);
                }
                (ReflectorAction::Watch { .. }, failure) if !ended => {
                    ended = true;
                    let open_for = Duration::from_secs(rng.below(3));
                    if let (Some(ListWatchError::Status(status)), true) = (&failure, rng.one_in(2))
                    {
                        let error = ReflectorInput::WatchEvent(WatchEvent::Error(status.clone()));
                        assert!(!state.handle_input(now, error, &mut events));
                        state.handle_input(
                            now,
                            ReflectorInput::WatchEnded(WatchEnd { open_for, failure: None }),
                            &mut events,
                        );
                    } else {
                        state.handle_input(
                            now,
                            ReflectorInput::WatchEnded(WatchEnd { open_for, failure }),
                            &mut events,
                        );
                    }
                }
                _ => {}
            }
            assert!(
                ended || !events.iter().any(|event| matches!(event, ReflectorEvent::Upsert { .. }))
            );
            events.drain(..).for_each(|event| store.apply(event));
        }
        assert_eq!(store.0, server.objects, "seed {seed}");
        assert_eq!(state.n_objects(), server.objects.len());
    }
}
