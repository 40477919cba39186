//! The election by tables, and with several candidates over a simulated network that drops and delays messages.

use std::time::Duration;

use loadmaster_stdx::Rng;

use super::{
    ClockReading, Election, ElectionAction, LeaderElectionEvent, LeaderElectionOptions,
    LeaderElectionRecord, LeaderElectionTiming, LeaseReply,
};

const TIMING: LeaderElectionTiming = LeaderElectionTiming {
    lease_duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn now(at_ms: u64) -> ClockReading {
    ClockReading { mono: ms(at_ms), wall_us: 1_000_000 + at_ms as i64 }
}

fn held_by(holder: &str, renewed_us: i64) -> LeaderElectionRecord {
    LeaderElectionRecord {
        holder: holder.to_owned(),
        duration_s: 15,
        renewed_us,
        ..LeaderElectionRecord::default()
    }
}

/// At each time in ms: the expected action, and the reply to it. `wait` and `over` have no reply.
#[track_caller]
fn check(script: &[(u64, &str, Option<LeaseReply>)], want_events: &[&str]) -> Election {
    let mut election = Election::new("me".to_owned(), TIMING, Rng::new(3));
    let mut events = Vec::new();
    for (at, want, reply) in script {
        if *want == "release" {
            election.release();
            continue;
        }
        let action = match election.next_action(now(*at), &mut events) {
            ElectionAction::Get => "get".to_owned(),
            ElectionAction::Create(record) => {
                format!("create {} x{}", record.holder, record.transitions)
            }
            ElectionAction::Update(record) => {
                format!("update {:?} x{} {}s", record.holder, record.transitions, record.duration_s)
            }
            ElectionAction::Wait(_) => "wait".to_owned(),
            ElectionAction::Stop => "over".to_owned(),
        };
        assert_eq!(action, *want, "at {at} ms");
        if let Some(reply) = reply {
            election.handle_reply(now(*at), reply.clone(), &mut events);
        }
    }
    let events: Vec<String> = events
        .into_iter()
        .map(|event| match event {
            LeaderElectionEvent::StartedLeading => "leading".to_owned(),
            LeaderElectionEvent::StoppedLeading => "lost".to_owned(),
            LeaderElectionEvent::NewLeader(leader) => format!("leader {leader:?}"),
        })
        .collect();
    assert_eq!(events, want_events);
    election
}

#[test]
fn a_missing_lease_is_created_and_renewed() {
    check(
        &[
            (0, "get", Some(LeaseReply::NotFound)),
            (10, "create me x0", Some(LeaseReply::Written)),
            (20, "wait", None),
            (2_010, "update \"me\" x0 15s", Some(LeaseReply::Written)),
            // After a failed renewal the lease is read.
            (4_010, "update \"me\" x0 15s", Some(LeaseReply::Failed)),
            (4_020, "get", Some(LeaseReply::Found(held_by("me", 5)))),
            (4_030, "update \"me\" x0 15s", Some(LeaseReply::Written)),
            (4_040, "wait", None),
            (6_030, "update \"me\" x0 15s", Some(LeaseReply::Failed)),
            (6_040, "get", Some(LeaseReply::Failed)),
            (6_050, "wait", None),
            (8_030, "update \"me\" x0 15s", Some(LeaseReply::Failed)),
            (8_040, "get", Some(LeaseReply::Failed)),
            // Less than ten seconds after the first failed attempt.
            (16_029, "update \"me\" x0 15s", None),
        ],
        &["leading", "leader \"me\""],
    );
}

#[test]
fn a_leader_that_cannot_renew_stops_leading() {
    check(
        &[
            (0, "get", Some(LeaseReply::NotFound)),
            (0, "create me x0", Some(LeaseReply::Written)),
            (2_000, "update \"me\" x0 15s", Some(LeaseReply::Failed)),
            (11_999, "get", Some(LeaseReply::Failed)),
            (12_000, "over", None),
        ],
        &["leading", "leader \"me\"", "lost"],
    );
}

#[test]
fn a_slow_reply_does_not_lead_to_two_leaders() {
    let mut election = Election::new("me".to_owned(), TIMING, Rng::new(3));
    let mut events = Vec::new();
    election.next_action(now(0), &mut events);
    election.handle_reply(now(0), LeaseReply::NotFound, &mut events);
    election.next_action(now(0), &mut events);
    election.handle_reply(now(5_000), LeaseReply::Written, &mut events);
    let gives_up_at = election.give_up_at();
    // Another candidate reads the record as soon as it is written, and no renewal after that.
    for seed in 0..50 {
        let mut other = Election::new("other".to_owned(), TIMING, Rng::new(seed));
        let takes_over_at = (50..30_000).step_by(10).find(|at| {
            match other.next_action(now(*at), &mut events) {
                ElectionAction::Get => {
                    other.handle_reply(now(*at), LeaseReply::Found(held_by("me", 1)), &mut events)
                }
                ElectionAction::Update(_) => return true,
                _ => {}
            }
            false
        });
        let takes_over_at = ms(takes_over_at.unwrap());
        assert!(gives_up_at < takes_over_at, "{gives_up_at:?} {takes_over_at:?}");
    }
}

#[test]
fn a_lease_is_acquired_when_its_record_has_not_changed_for_its_duration() {
    let other = |renewed| Some(LeaseReply::Found(held_by("other", renewed)));
    check(
        &[
            (0, "get", other(1)),
            (999, "wait", None),
            (1_000, "get", other(1)),
            (5_000, "get", other(2)),
            (19_999, "get", other(2)),
            (20_999, "get", other(2)),
            // Fifteen seconds after the renewal was observed.
            (21_000, "update \"me\" x1 15s", Some(LeaseReply::Failed)),
            // A failed write is not retried for at least two seconds.
            (23_000, "wait", None),
            (26_000, "get", other(2)),
            (26_001, "update \"me\" x1 15s", Some(LeaseReply::Written)),
        ],
        &["leader \"other\"", "leading", "leader \"me\""],
    );
}

#[test]
fn a_released_lease_is_acquired_at_once() {
    check(
        &[
            (0, "get", Some(LeaseReply::Found(held_by("other", 1)))),
            (1_000, "get", Some(LeaseReply::Found(held_by("", 2)))),
            (1_001, "update \"me\" x1 15s", Some(LeaseReply::Written)),
        ],
        &["leader \"other\"", "leading", "leader \"me\""],
    );
}

#[test]
fn a_leader_releases_its_lease() {
    check(
        &[
            (0, "get", Some(LeaseReply::NotFound)),
            (0, "create me x0", Some(LeaseReply::Written)),
            (100, "release", None),
            (100, "get", Some(LeaseReply::Found(held_by("me", 1)))),
            (100, "update \"\" x0 1s", Some(LeaseReply::Written)),
            (100, "over", None),
        ],
        &["leading", "leader \"me\"", "lost"],
    );
    // A candidate has nothing to release.
    check(
        &[
            (0, "get", Some(LeaseReply::Found(held_by("other", 1)))),
            (100, "release", None),
            (100, "over", None),
        ],
        &["leader \"other\""],
    );
    // Nor a leader whose lease another replica has acquired.
    check(
        &[
            (0, "get", Some(LeaseReply::NotFound)),
            (0, "create me x0", Some(LeaseReply::Written)),
            (100, "release", None),
            (100, "get", Some(LeaseReply::Found(held_by("other", 1)))),
            (100, "over", None),
        ],
        &["leading", "leader \"me\"", "lost"],
    );
}

#[test]
fn a_leader_that_sees_another_one_stops_at_once() {
    check(
        &[
            (0, "get", Some(LeaseReply::NotFound)),
            (0, "create me x0", Some(LeaseReply::Written)),
            (2_000, "update \"me\" x0 15s", Some(LeaseReply::Failed)),
            (2_010, "get", Some(LeaseReply::Found(held_by("other", 9)))),
            (2_020, "over", None),
        ],
        &["leading", "leader \"me\"", "lost", "leader \"other\""],
    );
}

#[test]
fn identities_are_unique_and_formatted_as_upstream() {
    let (a, b) = (LeaderElectionOptions::identity("host"), LeaderElectionOptions::identity("host"));
    assert_ne!(a, b);
    let uuid = a.strip_prefix("host_").unwrap();
    let lens: Vec<usize> = uuid.split('-').map(str::len).collect();
    assert_eq!(lens, [8, 4, 4, 4, 12]);
    assert_eq!(&uuid[14..15], "4");
}

/// The Lease on the server: its resourceVersion and its record.
#[derive(Default)]
struct Store {
    version: u64,
    record: Option<LeaderElectionRecord>,
}

/// A request in flight, or its reply.
struct Message {
    /// When it arrives.
    at: Duration,
    from: usize,
    number: u64,
    content: Content,
}

enum Content {
    Request(ElectionAction, u64),
    Reply(LeaseReply, u64),
}

struct Candidate {
    election: Election,
    /// How far its clock is ahead.
    offset: Duration,
    /// The resourceVersion last read or written.
    version: u64,
    /// The current request, and its timeout.
    waiting: Option<(u64, Duration)>,
    wake_at: Duration,
    /// Until then its requests are lost.
    cut_off_until: Duration,
}

/// Executes a request.
fn serve(store: &mut Store, action: &ElectionAction, version: u64) -> (LeaseReply, u64) {
    match action {
        ElectionAction::Get => match &store.record {
            Some(record) => (LeaseReply::Found(record.clone()), store.version),
            None => (LeaseReply::NotFound, 0),
        },
        ElectionAction::Create(record) if store.record.is_none() => {
            *store = Store { version: store.version + 1, record: Some(record.clone()) };
            (LeaseReply::Written, store.version)
        }
        ElectionAction::Update(record) if store.version == version && store.record.is_some() => {
            *store = Store { version: store.version + 1, record: Some(record.clone()) };
            (LeaseReply::Written, store.version)
        }
        _ => (LeaseReply::Failed, version),
    }
}

/// Runs two or three candidates, first over a faulty network, then over a reliable one. Returns for how long there was a leader in
/// the second part.
fn simulate(seed: u64) -> Duration {
    const FAULTY: Duration = Duration::from_secs(600);
    const END: Duration = Duration::from_secs(680);
    const STEP: Duration = Duration::from_millis(20);
    let mut rng = Rng::new(seed);
    let n = 2 + rng.below(2) as usize;
    let mut number = 0;
    let (mut store, mut messages) = (Store::default(), Vec::<Message>::new());
    let mut candidates: Vec<Candidate> = (0..n)
        .map(|nth| Candidate {
            election: Election::new(format!("c{nth}"), TIMING, rng.split(&format!("{nth}"))),
            offset: Duration::from_secs(rng.below(10_000)),
            version: 0,
            waiting: None,
            wake_at: Duration::ZERO,
            cut_off_until: Duration::ZERO,
        })
        .collect();
    let (mut at, mut led) = (Duration::ZERO, Duration::ZERO);
    while at < END {
        at += STEP;
        let is_faulty = at < FAULTY;
        // Mostly short delays: a candidate that is not cut off must be able to lead.
        let delay = |rng: &mut Rng| match rng.below(if is_faulty { 20 } else { 1 }) {
            0..17 => ms(1 + rng.below(50)),
            17..19 => ms(rng.below(9_000)),
            // Later than every timeout.
            _ => ms(rng.below(40_000)),
        };
        let mut arrived: Vec<Message> =
            messages.extract_if(.., |message| message.at <= at).collect();
        arrived.sort_by_key(|message| message.at);
        for Message { from, number, content, .. } in arrived {
            match content {
                Content::Request(action, version) => {
                    let (reply, version) = serve(&mut store, &action, version);
                    // The worst case: the reply to a renewal is late, and no later request arrives.
                    if is_faulty && rng.one_in(10) {
                        candidates[from].cut_off_until = at + ms(rng.below(25_000));
                        let content = Content::Reply(reply, version);
                        let late = at + ms(3_000 + rng.below(2_000));
                        messages.push(Message { at: late, from, number, content });
                        continue;
                    }
                    if !(is_faulty && rng.one_in(20)) {
                        let content = Content::Reply(reply, version);
                        messages.push(Message { at: at + delay(&mut rng), from, number, content });
                    }
                }
                Content::Reply(reply, version) => {
                    let candidate = &mut candidates[from];
                    if candidate.waiting.is_none_or(|(waiting, _)| waiting != number) {
                        continue;
                    }
                    candidate.waiting = None;
                    candidate.version = version;
                    let now = ClockReading {
                        mono: at + candidate.offset,
                        wall_us: rng.next_u64() as i64 >> 20,
                    };
                    candidate.election.handle_reply(now, reply, &mut Vec::new());
                    candidate.wake_at = at;
                }
            }
        }
        for (from, candidate) in candidates.iter_mut().enumerate() {
            let now =
                ClockReading { mono: at + candidate.offset, wall_us: rng.next_u64() as i64 >> 20 };
            match candidate.waiting {
                Some((_, until)) if at < until => continue,
                Some(_) => {
                    candidate.waiting = None;
                    candidate.election.handle_reply(now, LeaseReply::Failed, &mut Vec::new());
                }
                None if at < candidate.wake_at => continue,
                None => {}
            }
            // A restarted replica has a new identity.
            match candidate.election.next_action(now, &mut Vec::new()) {
                ElectionAction::Wait(wait) => candidate.wake_at = at + wait,
                ElectionAction::Stop => {
                    number += 1;
                    let identity = format!("c{from}.{number}");
                    candidate.election =
                        Election::new(identity, TIMING, rng.split(&number.to_string()));
                    candidate.wake_at = at + ms(rng.below(3_000));
                }
                action => {
                    number += 1;
                    let limit = candidate.election.give_up_at().saturating_sub(now.mono);
                    candidate.waiting = Some((number, at + limit.min(ms(5_000))));
                    if !(is_faulty && (rng.one_in(20) || at < candidate.cut_off_until)) {
                        let content = Content::Request(action, candidate.version);
                        messages.push(Message { at: at + delay(&mut rng), from, number, content });
                    }
                }
            }
        }
        let n_leading =
            candidates.iter().filter(|candidate| candidate.election.is_leading()).count();
        assert!(n_leading <= 1, "seed {seed}: {n_leading} leaders at {at:?}");
        if !is_faulty {
            led += STEP * n_leading as u32;
        }
    }
    led
}

#[test]
fn there_is_never_more_than_one_leader_and_finally_one() {
    for seed in 0..60 {
        // Over the reliable network a leader is elected within a lease duration and a retry period (or two, if a late message
        // renews the lease), and stays.
        let led = simulate(seed);
        assert!(led >= Duration::from_secs(80 - 40), "seed {seed}: there was a leader for {led:?}");
    }
}
