//! The election against tables, and two candidates over a network that loses and delays.

use std::time::Duration;

use loadmaster_stdx::Rng;

use super::{Ask, Election, LeaseNews, LeaseOptions, Now, Record, Timing, Told};

const TIMING: Timing = Timing {
    lease_duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn now(at_ms: u64) -> Now {
    Now { mono: ms(at_ms), wall_us: 1_000_000 + at_ms as i64 }
}

fn held_by(holder: &str, renewed_us: i64) -> Record {
    Record { holder: holder.to_owned(), duration_s: 15, renewed_us, ..Record::default() }
}

/// At each time: what is asked, and what is answered. `wait` and `over` have no answer.
#[track_caller]
fn check(script: &[(u64, &str, Option<Told>)], want_news: &[&str]) -> Election {
    let mut election = Election::new("me".to_owned(), TIMING, Rng::new(3));
    let mut news = Vec::new();
    for (at, want, told) in script {
        if *want == "release" {
            election.release();
            continue;
        }
        let asked = match election.next(now(*at), &mut news) {
            Ask::Get => "get".to_owned(),
            Ask::Create(record) => format!("create {} x{}", record.holder, record.transitions),
            Ask::Update(record) => {
                format!("update {:?} x{} {}s", record.holder, record.transitions, record.duration_s)
            }
            Ask::Wait(_) => "wait".to_owned(),
            Ask::Over => "over".to_owned(),
        };
        assert_eq!(asked, *want, "at {at} ms");
        if let Some(told) = told {
            election.told(now(*at), told.clone(), &mut news);
        }
    }
    let news: Vec<String> = news
        .into_iter()
        .map(|news| match news {
            LeaseNews::Leading => "leading".to_owned(),
            LeaseNews::Lost => "lost".to_owned(),
            LeaseNews::NewLeader(leader) => format!("leader {leader:?}"),
        })
        .collect();
    assert_eq!(news, want_news);
    election
}

#[test]
fn a_lease_that_is_missing_is_created_and_renewed() {
    check(
        &[
            (0, "get", Some(Told::Missing)),
            (10, "create me x0", Some(Told::Written)),
            (20, "wait", None),
            (2_010, "update \"me\" x0 15s", Some(Told::Written)),
            // A renewal that fails is followed by a look.
            (4_010, "update \"me\" x0 15s", Some(Told::Failed)),
            (4_020, "get", Some(Told::Found(held_by("me", 5)))),
            (4_030, "update \"me\" x0 15s", Some(Told::Written)),
            (4_040, "wait", None),
            (6_030, "update \"me\" x0 15s", Some(Told::Failed)),
            (6_040, "get", Some(Told::Failed)),
            (6_050, "wait", None),
            (8_030, "update \"me\" x0 15s", Some(Told::Failed)),
            (8_040, "get", Some(Told::Failed)),
            // Ten seconds after the first failed try.
            (16_029, "update \"me\" x0 15s", None),
        ],
        &["leading", "leader \"me\""],
    );
}

#[test]
fn a_leader_that_cannot_renew_gives_up() {
    check(
        &[
            (0, "get", Some(Told::Missing)),
            (0, "create me x0", Some(Told::Written)),
            (2_000, "update \"me\" x0 15s", Some(Told::Failed)),
            (11_999, "get", Some(Told::Failed)),
            (12_000, "over", None),
        ],
        &["leading", "leader \"me\"", "lost"],
    );
}

#[test]
fn an_answer_that_was_slow_in_coming_does_not_make_two_leaders() {
    let mut election = Election::new("me".to_owned(), TIMING, Rng::new(3));
    let mut news = Vec::new();
    election.next(now(0), &mut news);
    election.told(now(0), Told::Missing, &mut news);
    election.next(now(0), &mut news);
    election.told(now(5_000), Told::Written, &mut news);
    let gives_up_at = election.give_up_at();
    // Another one sees the record as soon as it is written, and nothing new after that.
    for seed in 0..50 {
        let mut other = Election::new("other".to_owned(), TIMING, Rng::new(seed));
        let takes_over_at = (50..30_000).step_by(10).find(|at| {
            match other.next(now(*at), &mut news) {
                Ask::Get => other.told(now(*at), Told::Found(held_by("me", 1)), &mut news),
                Ask::Update(_) => return true,
                _ => {}
            }
            false
        });
        let takes_over_at = ms(takes_over_at.unwrap());
        assert!(gives_up_at < takes_over_at, "{gives_up_at:?} {takes_over_at:?}");
    }
}

#[test]
fn a_lease_is_taken_over_when_its_record_stood_still() {
    let other = |renewed| Some(Told::Found(held_by("other", renewed)));
    check(
        &[
            (0, "get", other(1)),
            (999, "wait", None),
            (1_000, "get", other(1)),
            (5_000, "get", other(2)),
            (19_999, "get", other(2)),
            (20_999, "get", other(2)),
            // Fifteen seconds after the renewal was seen.
            (21_000, "update \"me\" x1 15s", Some(Told::Failed)),
            // A write that failed is not repeated for two seconds at least.
            (23_000, "wait", None),
            (26_000, "get", other(2)),
            (26_001, "update \"me\" x1 15s", Some(Told::Written)),
        ],
        &["leader \"other\"", "leading", "leader \"me\""],
    );
}

#[test]
fn a_lease_that_is_given_back_is_taken_at_once() {
    check(
        &[
            (0, "get", Some(Told::Found(held_by("other", 1)))),
            (1_000, "get", Some(Told::Found(held_by("", 2)))),
            (1_001, "update \"me\" x1 15s", Some(Told::Written)),
        ],
        &["leader \"other\"", "leading", "leader \"me\""],
    );
}

#[test]
fn giving_back() {
    check(
        &[
            (0, "get", Some(Told::Missing)),
            (0, "create me x0", Some(Told::Written)),
            (100, "release", None),
            (100, "get", Some(Told::Found(held_by("me", 1)))),
            (100, "update \"\" x0 1s", Some(Told::Written)),
            (100, "over", None),
        ],
        &["leading", "leader \"me\"", "lost"],
    );
    // Who does not lead has nothing to give.
    check(
        &[
            (0, "get", Some(Told::Found(held_by("other", 1)))),
            (100, "release", None),
            (100, "over", None),
        ],
        &["leader \"other\""],
    );
    // Nor who finds it gone.
    check(
        &[
            (0, "get", Some(Told::Missing)),
            (0, "create me x0", Some(Told::Written)),
            (100, "release", None),
            (100, "get", Some(Told::Found(held_by("other", 1)))),
            (100, "over", None),
        ],
        &["leading", "leader \"me\"", "lost"],
    );
}

#[test]
fn a_leader_that_sees_another_one_stops_at_once() {
    check(
        &[
            (0, "get", Some(Told::Missing)),
            (0, "create me x0", Some(Told::Written)),
            (2_000, "update \"me\" x0 15s", Some(Told::Failed)),
            (2_010, "get", Some(Told::Found(held_by("other", 9)))),
            (2_020, "over", None),
        ],
        &["leading", "leader \"me\"", "lost", "leader \"other\""],
    );
}

#[test]
fn identities_differ_and_look_like_upstreams() {
    let (a, b) = (LeaseOptions::identity("host"), LeaseOptions::identity("host"));
    assert_ne!(a, b);
    let uuid = a.strip_prefix("host_").unwrap();
    let lens: Vec<usize> = uuid.split('-').map(str::len).collect();
    assert_eq!(lens, [8, 4, 4, 4, 12]);
    assert_eq!(&uuid[14..15], "4");
}

/// The object on the server: its version, and its record.
#[derive(Default)]
struct Store {
    version: u64,
    record: Option<Record>,
}

/// A request that is on its way, or its answer.
struct Message {
    /// When it arrives, and whether it is the answer already.
    at: Duration,
    from: usize,
    number: u64,
    what: What,
}

enum What {
    Request(Ask, u64),
    Answer(Told, u64),
}

struct Candidate {
    election: Election,
    /// Its clock is ahead of the others' by so much.
    offset: Duration,
    /// The version that was read or written last.
    version: u64,
    /// The request at hand, and when it is given up.
    waiting: Option<(u64, Duration)>,
    wake_at: Duration,
    /// Until then nothing it sends arrives.
    cut_off_until: Duration,
}

/// Carries a request out.
fn serve(store: &mut Store, ask: &Ask, version: u64) -> (Told, u64) {
    match ask {
        Ask::Get => match &store.record {
            Some(record) => (Told::Found(record.clone()), store.version),
            None => (Told::Missing, 0),
        },
        Ask::Create(record) if store.record.is_none() => {
            *store = Store { version: store.version + 1, record: Some(record.clone()) };
            (Told::Written, store.version)
        }
        Ask::Update(record) if store.version == version && store.record.is_some() => {
            *store = Store { version: store.version + 1, record: Some(record.clone()) };
            (Told::Written, store.version)
        }
        _ => (Told::Failed, version),
    }
}

/// Runs two or three candidates, for so long over a bad network, then over a good one. Answers how long somebody led in the good time.
fn simulate(seed: u64) -> Duration {
    const BAD: Duration = Duration::from_secs(600);
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
        let is_bad = at < BAD;
        // Mostly good: who is not cut off must be able to make use of it.
        let delay = |rng: &mut Rng| match rng.below(if is_bad { 20 } else { 1 }) {
            0..17 => ms(1 + rng.below(50)),
            17..19 => ms(rng.below(9_000)),
            // So late that nobody waits for it any more.
            _ => ms(rng.below(40_000)),
        };
        let mut arrived: Vec<Message> =
            messages.extract_if(.., |message| message.at <= at).collect();
        arrived.sort_by_key(|message| message.at);
        for Message { from, number, what, .. } in arrived {
            match what {
                What::Request(ask, version) => {
                    let (told, version) = serve(&mut store, &ask, version);
                    // The worst moment: a renewal is answered late, and no later one arrives.
                    if is_bad && rng.one_in(10) {
                        candidates[from].cut_off_until = at + ms(rng.below(25_000));
                        let what = What::Answer(told, version);
                        let late = at + ms(3_000 + rng.below(2_000));
                        messages.push(Message { at: late, from, number, what });
                        continue;
                    }
                    if !(is_bad && rng.one_in(20)) {
                        let what = What::Answer(told, version);
                        messages.push(Message { at: at + delay(&mut rng), from, number, what });
                    }
                }
                What::Answer(told, version) => {
                    let candidate = &mut candidates[from];
                    if candidate.waiting.is_none_or(|(waiting, _)| waiting != number) {
                        continue;
                    }
                    candidate.waiting = None;
                    candidate.version = version;
                    let now =
                        Now { mono: at + candidate.offset, wall_us: rng.next_u64() as i64 >> 20 };
                    candidate.election.told(now, told, &mut Vec::new());
                    candidate.wake_at = at;
                }
            }
        }
        for (from, candidate) in candidates.iter_mut().enumerate() {
            let now = Now { mono: at + candidate.offset, wall_us: rng.next_u64() as i64 >> 20 };
            match candidate.waiting {
                Some((_, until)) if at < until => continue,
                Some(_) => {
                    candidate.waiting = None;
                    candidate.election.told(now, Told::Failed, &mut Vec::new());
                }
                None if at < candidate.wake_at => continue,
                None => {}
            }
            // A restart, with a fresh identity, brings a new candidate.
            match candidate.election.next(now, &mut Vec::new()) {
                Ask::Wait(wait) => candidate.wake_at = at + wait,
                Ask::Over => {
                    number += 1;
                    let identity = format!("c{from}.{number}");
                    candidate.election =
                        Election::new(identity, TIMING, rng.split(&number.to_string()));
                    candidate.wake_at = at + ms(rng.below(3_000));
                }
                ask => {
                    number += 1;
                    let limit = candidate.election.give_up_at().saturating_sub(now.mono);
                    candidate.waiting = Some((number, at + limit.min(ms(5_000))));
                    if !(is_bad && (rng.one_in(20) || at < candidate.cut_off_until)) {
                        let what = What::Request(ask, candidate.version);
                        messages.push(Message { at: at + delay(&mut rng), from, number, what });
                    }
                }
            }
        }
        let n_leading =
            candidates.iter().filter(|candidate| candidate.election.is_leading()).count();
        assert!(n_leading <= 1, "seed {seed}: {n_leading} leaders at {at:?}");
        if !is_bad {
            led += STEP * n_leading as u32;
        }
    }
    led
}

#[test]
fn there_are_never_two_leaders_and_always_one_in_the_end() {
    for seed in 0..60 {
        // In the good time one must be found within a lease and a pause (or two, if a late message renews it for nobody), and then stay.
        let led = simulate(seed);
        assert!(led >= Duration::from_secs(80 - 40), "seed {seed}: somebody led for {led:?}");
    }
}
