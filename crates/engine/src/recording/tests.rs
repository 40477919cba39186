//! Random histories with faults are recorded, read and replayed; corrupted recordings are detected.

mod stateful_plugin;

use std::sync::Arc;

use loadmaster_api::{Encoding, ExtraFieldSelection, ExtraFieldsByKind, RawObject, Timestamp};
use loadmaster_config::{AllFeatureGates, check_configuration_value};
use loadmaster_framework::api_calls::{ObjectRef, Verb};
use loadmaster_stdx::{HashSeed, Rng};
use serde_json::{Value, json};

use stateful_plugin::STATEFUL;

use super::message::{self, EffectBody};
use super::*;
use crate::engine::{
    ApiError, ApiObject, ApiServerCall, CallId, CycleResult, DeletedObjectKey, Effect, Effects,
    Engine, EngineConfiguration, EngineEvent, EngineOptions, PermitDecision,
};
use crate::profile::Profile;
use crate::time::{MonoTime, Now};

fn engine(options: EngineOptions) -> Engine {
    Engine::new(profiles(0), AllFeatureGates::default().framework_gates(), options)
}

/// The profiles of several configurations.
fn profiles(variant: u64) -> Vec<Arc<Profile>> {
    let registry = loadmaster_plugins::in_tree_registry().with(STATEFUL);
    let gates = AllFeatureGates::default();
    let sort = if variant.is_multiple_of(2) { "Stateful" } else { "PrioritySort" };
    let profile = |name: &str| {
        json!({
            "schedulerName": name,
            "plugins": {
                "multiPoint": {"enabled": [{"name": "Stateful"}]},
                "queueSort": {"enabled": [{"name": sort}], "disabled": [{"name": "*"}]},
                "score": {"enabled": [{"name": "ImageLocality", "weight": variant % 3 + 1}]},
            },
            "pluginConfig": [{"name": "Stateful", "args": {"variant": variant / 4}}],
        })
    };
    let names = ["default-scheduler", "other"];
    let all: Vec<Value> =
        names[usize::from(variant % 5 == 4)..].iter().map(|it| profile(it)).collect();
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": all,
    });
    let checked = check_configuration_value(config, &registry, &gates).unwrap();
    let gates = gates.framework_gates();
    let profiles = checked.profiles.iter();
    let profiles = profiles.map(|it| Arc::new(Profile::new(it, &gates)));
    profiles.collect()
}

/// One of these configurations, by its number.
fn configuration(variant: &str) -> Result<EngineConfiguration, String> {
    let number = variant.parse::<u64>().map_err(|error| error.to_string())?;
    Ok(EngineConfiguration {
        profiles: profiles(number),
        initial_backoff: std::time::Duration::from_secs(1),
        max_backoff: std::time::Duration::from_secs(number),
        yaml: variant.to_owned(),
    })
}

fn options(seed: u64) -> EngineOptions {
    let hash_seed = HashSeed::new(seed);
    EngineOptions { seed, hash_seed, bind_window: 4, verify_every: 3, ..EngineOptions::default() }
}

/// An engine that is recorded while it handles random events.
struct History {
    engine: Engine,
    writer: RecordingWriter,
    log: Vec<u8>,
    rng: Rng,
    now: Now,
    calls: Vec<ApiServerCall>,
    /// Uids of pods, with their objects.
    pods: Vec<(String, Value)>,
    n_binds: u64,
    n_evictions: u64,
}

impl History {
    fn new(seed: u64) -> History {
        let options = options(seed);
        History {
            log: encode_preamble(&RecordingHeader::from_engine_options(&options)),
            engine: engine(options),
            writer: RecordingWriter::new(),
            rng: Rng::new(seed),
            now: Now { mono: MonoTime(7), wall: Timestamp(1_700_000_000_000_000_000) },
            calls: Vec::new(),
            pods: Vec::new(),
            n_binds: 0,
            n_evictions: 0,
        }
    }

    fn run(seed: u64, n_steps: u32) -> History {
        let mut history = History::new(seed);
        for nth in 0..3 {
            history.node(nth);
        }
        for nth in 0..n_steps {
            history.step(nth);
        }
        // A step may make no call.
        history.cycle();
        history.writer.write_end(RecordingEndReason::Stopped);
        history.cut();
        history
    }

    fn cut(&mut self) {
        let block = self.writer.take_block();
        self.log.extend_from_slice(&encode_block(&block));
    }

    fn step(&mut self, nth: u32) {
        self.now.mono.0 += self.rng.below(400_000_000);
        // The wall clock may be set back.
        self.now.wall.0 += self.rng.range(-1_000_000, 400_000_000);
        match self.rng.below(16) {
            0 => self.node(self.rng.clone().below(5)),
            1 if self.rng.one_in(4) => {
                let name = format!("n{}", self.rng.below(5));
                self.apply(EngineEvent::Delete(DeletedObjectKey::Node((&*name).into())), None);
            }
            1..=4 => self.pod(nth),
            5 if !self.pods.is_empty() => {
                let at = self.rng.below(self.pods.len() as u64) as usize;
                let (uid, _) = self.pods.swap_remove(at);
                self.apply(EngineEvent::Delete(DeletedObjectKey::Pod((&*uid).into())), None);
            }
            6 => self.rare_event(),
            7..=9 => self.answer(),
            10 => {
                let before = self.begin_call(|writer, now| writer.write_handle_timeouts(now));
                let mut effects = before;
                self.engine.handle_timeouts(self.now, &mut effects);
                self.left(effects, None);
            }
            _ => self.cycle(),
        }
        if self.rng.one_in(20) {
            self.cut();
        }
    }

    fn begin_call(&mut self, write: impl FnOnce(&mut RecordingWriter, Now)) -> Effects {
        write(&mut self.writer, self.now);
        Effects::new()
    }

    fn cycle(&mut self) {
        let mut effects = self.begin_call(|writer, now| writer.write_cycle(now));
        let cycled = self.engine.cycle(self.now, &mut effects);
        self.left(effects, Some(cycled));
    }

    fn apply(&mut self, event: EngineEvent, raw: Option<&RawObject>) {
        self.writer.write_apply_event(self.now, &event, raw).unwrap();
        let mut effects = Effects::new();
        self.engine.apply_event(self.now, event, &mut effects);
        self.left(effects, None);
    }

    fn left(&mut self, effects: Effects, cycled: Option<CycleResult>) {
        self.writer.write_effects(&effects, cycled);
        for effect in effects {
            self.n_binds += u64::from(bind_request_of_effect(&effect).is_some());
            if let Effect::Call(call) = effect {
                self.n_evictions += u64::from(call.request.verb == Verb::Delete);
                self.calls.push(call);
            }
        }
    }

    fn node(&mut self, nth: u64) {
        let cpu = self.rng.range(1, 4);
        let raw = raw(&json!({
            "metadata": {"name": format!("n{nth}"), "uid": format!("n{nth}"), "labels": {"zone": format!("z{}", nth % 2)}},
            "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}},
        }));
        self.apply(
            EngineEvent::Upsert(ApiObject::Node(Arc::new(raw.decode().unwrap()))),
            Some(&raw),
        );
    }

    fn pod(&mut self, nth: u32) {
        let uid = format!("u{nth}");
        let spread = json!([{
            "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "a"}},
        }]);
        let object = json!({
            "metadata": {"name": format!("p{nth}"), "namespace": "shop", "uid": uid, "labels": {"app": "a"}, "generation": 1},
            "spec": {
                "priority": self.rng.range(0, 2) * 100,
                "containers": [{"name": "c", "resources": {"requests": {"cpu": format!("{}m", self.rng.range(1, 8) * 250)}}}],
                "topologySpreadConstraints": if self.rng.one_in(3) { spread } else { json!([]) },
            },
        });
        self.pods.push((uid, object.clone()));
        self.set_pod(&object);
    }

    fn set_pod(&mut self, object: &Value) {
        let raw = raw(object);
        self.apply(
            EngineEvent::Upsert(ApiObject::Pod(Box::new(raw.decode().unwrap()))),
            Some(&raw),
        );
    }

    /// The API server replies to a call, with success or an error.
    fn answer(&mut self) {
        if self.calls.is_empty() {
            return;
        }
        let at = self.rng.below(self.calls.len() as u64) as usize;
        let call = self.calls.swap_remove(at);
        let refused = |code| Err(ApiError { code, message: "no".to_owned() });
        let reply = match self.rng.below(8) {
            0 => refused(409),
            1 => refused(0),
            2 => refused(500),
            _ => Ok(json!({"kind": "Status", "status": "Success"})),
        };
        let is_done = reply.is_ok();
        let (bind, is_delete) = (
            bind_request_of_effect(&Effect::Call(call.clone()))
                .map(|it| (it.uid.to_owned(), it.node.to_owned())),
            call.request.verb == loadmaster_framework::api_calls::Verb::Delete,
        );
        let name = call.request.name.clone();
        self.apply(EngineEvent::Replied { call: call.id, reply }, None);
        if !is_done {
            return;
        }
        if let Some((uid, node)) = bind {
            let known = self.pods.iter_mut().find(|(it, _)| *it == uid);
            if let Some((_, object)) = known {
                object["spec"]["nodeName"] = node.into();
                let object = object.clone();
                self.set_pod(&object);
            }
        } else if is_delete {
            let at = self.pods.iter().position(|(_, it)| it["metadata"]["name"] == *name);
            if let Some(at) = at {
                let (uid, _) = self.pods.swap_remove(at);
                self.apply(EngineEvent::Delete(DeletedObjectKey::Pod((&*uid).into())), None);
            }
        }
    }

    /// Applies an event that seldom occurs.
    fn rare_event(&mut self) {
        let uid: Box<str> = self.pods.last().map_or("none", |(uid, _)| uid).into();
        let object = ObjectRef {
            group: "storage.k8s.io".into(),
            resource: "things".into(),
            namespace: "shop".into(),
            name: "x".into(),
        };
        let event = match self.rng.below(8) {
            6 | 7 => {
                let variant = self.rng.below(10).to_string();
                EngineEvent::Reconfigured(Arc::new(configuration(&variant).unwrap()))
            }
            0 => EngineEvent::Activate(vec![uid, "none".into()]),
            1 => EngineEvent::Permit { uid, plugin: None, decision: PermitDecision::Allow },
            2 => EngineEvent::Permit {
                uid,
                plugin: Some("P".into()),
                decision: PermitDecision::Reject("no".to_owned()),
            },
            3 => EngineEvent::ObjectChanged { object, value: Some(json!({"a": [1, null]})) },
            4 => EngineEvent::ObjectChanged { object, value: None },
            _ => EngineEvent::Replied { call: CallId(1 << 40), reply: Ok(Value::Null) },
        };
        self.apply(event, None);
    }
}

fn raw(object: &Value) -> RawObject {
    RawObject::new(Encoding::Json, object.to_string().as_bytes())
}

/// Reads a whole recording, in pieces of random size.
fn read(
    log: &[u8],
    seed: u64,
) -> Result<(RecordingHeader, Vec<RecordingEntry>, RecordingEnd), RecordingError> {
    let (mut reader, mut rng) = (RecordingReader::new(), Rng::new(seed));
    let (mut header, mut entries, mut rest) = (None, Vec::new(), log);
    loop {
        while let Some(piece) = reader.read_item()? {
            match piece {
                RecordingItem::Header(it) => assert!(header.replace(*it).is_none()),
                RecordingItem::Entry(entry) => entries.push(entry),
            }
        }
        if rest.is_empty() {
            let tail = reader.recording_end()?;
            return Ok((header.unwrap(), entries, tail));
        }
        let (piece, after) = rest.split_at((rng.below(5_000) as usize + 1).min(rest.len()));
        reader.push_bytes(piece);
        rest = after;
    }
}

fn replay(
    engine: Engine,
    entries: Vec<RecordingEntry>,
    tail: RecordingEnd,
) -> Result<ReplayReport, Box<ReplayDifference>> {
    let mut replay = Replay::new(engine, Box::new(configuration));
    for entry in entries {
        replay.replay_entry(entry, &mut |_, _| ())?;
    }
    replay.finish(tail)
}

#[test]
fn random_histories_replay_without_difference() {
    let (mut n_binds, mut n_evictions) = (0, 0);
    for seed in 0..24 {
        let history = History::run(seed, 300);
        let (header, entries, tail) = read(&history.log, seed).unwrap();
        assert_eq!(header, RecordingHeader::from_engine_options(&options(seed)));
        assert_eq!(tail, RecordingEnd::Complete(RecordingEndReason::Stopped));
        // Another order in hash maps changes nothing.
        let hash_seed = HashSeed::new(header.hash_seed + seed % 2);
        let options = EngineOptions { hash_seed, ..header.engine_options() };
        let report =
            replay(engine(options), entries, tail).unwrap_or_else(|it| panic!("seed {seed}: {it}"));
        assert_eq!(report.n_binds, history.n_binds);
        assert_eq!(report.last, Some(history.now));
        n_binds += history.n_binds;
        n_evictions += history.n_evictions;
    }
    assert!(n_binds > 200 && n_evictions > 10, "{n_binds} binds, {n_evictions} evictions");
}

#[test]
fn other_options_are_detected() {
    let mut n_found = 0;
    for seed in 0..4 {
        let log = History::run(seed, 400).log;
        let differs = |other: EngineOptions| {
            let (_, entries, tail) = read(&log, seed).unwrap();
            replay(engine(other), entries, tail).is_err()
        };
        assert!(differs(EngineOptions { bind_window: 1, ..options(seed) }), "seed {seed}");
        // If no two nodes are equally good, the seed makes no difference.
        n_found += u32::from(differs(options(seed + 1)));
    }
    assert!(n_found > 0);
}

#[test]
fn fields_that_plugins_need_are_decoded_from_the_recording() {
    let object = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "u", "annotations": {"k": "v"}},
        "spec": {"containers": [{"name": "c"}]},
    });
    let pod = serde_json::from_value(object.clone()).unwrap();
    let mut history = History::new(0);
    history.apply(EngineEvent::Upsert(ApiObject::Pod(Box::new(pod))), Some(&raw(&object)));
    history.cut();
    let extra = |needs: ExtraFieldsByKind| {
        let mut reader = RecordingReader::new();
        reader.set_extra_fields(needs);
        reader.push_bytes(&history.log);
        loop {
            match reader.read_item().unwrap() {
                Some(RecordingItem::Entry(RecordingEntry::Call {
                    call: EngineCall::Apply(EngineEvent::Upsert(ApiObject::Pod(pod))),
                    ..
                })) => return pod.extra,
                Some(_) => {}
                None => panic!("the pod is missing"),
            }
        }
    };
    assert_eq!(extra(ExtraFieldsByKind::default()), None);
    let pods = ExtraFieldSelection { annotations: true, object: true };
    let read = extra(ExtraFieldsByKind { pods, ..ExtraFieldsByKind::default() }).unwrap();
    assert_eq!(read.annotations.get("k").map(|value| &**value), Some("v"));
    assert_eq!(read.object, object);
}

/// Changes the recorded effects of one entry.
fn change_effects(entries: &mut [RecordingEntry], change: impl Fn(&mut RecordedEffects) -> bool) {
    let changed = entries.iter_mut().any(|entry| match entry {
        RecordingEntry::Effects(left) => change(left),
        _ => false,
    });
    assert!(changed, "nothing to change");
}

#[test]
fn a_changed_decision_is_detected() {
    let history = History::run(3, 200);
    let check = |change: &dyn Fn(&mut RecordedEffects) -> bool, want: &str| {
        let (header, mut entries, tail) = read(&history.log, 1).unwrap();
        change_effects(&mut entries, change);
        let difference = replay(engine(header.engine_options()), entries, tail).unwrap_err();
        let ReplayDifference { pod, recorded, replayed, .. } = *difference;
        let text = format!("{}: {recorded} | {replayed}", pod.unwrap_or_default());
        assert!(text.contains(want), "{text}");
    };
    check(
        &|left| {
            left.effects.iter_mut().any(|effect| match &mut effect.body {
                Some(EffectBody::Call(call)) if call.subresource == "binding" => {
                    call.body = call.body.as_ref().map(|body| body.replace("\"n", "\"other"));
                    true
                }
                _ => false,
            })
        },
        "create pods/binding shop/p",
    );
    let is_bind = |effect: &message::Effect| match &effect.body {
        Some(EffectBody::Call(call)) => call.subresource == "binding",
        _ => false,
    };
    check(
        &|left| {
            let n = left.effects.len();
            left.effects.retain(|effect| !is_bind(effect));
            left.effects.len() < n
        },
        "| call ",
    );
    check(
        &|left| {
            let was_idle = left.cycled == Some(1);
            left.cycled = left.cycled.map(|_| 0);
            was_idle
        },
        "a scheduling attempt ran | no pod was ready",
    );
    // Effects of a call that were not recorded.
    check(
        &|left| !left.effects.is_empty() && std::mem::take(left) != RecordedEffects::default(),
        "nothing |",
    );
}

#[test]
fn a_truncated_recording_is_read_up_to_its_end() {
    let log = History::run(1, 40).log;
    let (_, whole, _) = read(&log, 1).unwrap();
    let (mut n_torn, mut n_open) = (0, 0);
    for len in 0..log.len() {
        match read(&log[..len], 1) {
            Err(RecordingError::NotARecording) => assert!(n_torn + n_open == 0, "at {len}"),
            Err(other) => panic!("at {len}: {other}"),
            Ok((header, entries, tail)) => {
                n_open += u32::from(tail == RecordingEnd::Unfinished);
                n_torn += u32::from(matches!(tail, RecordingEnd::Truncated { .. }));
                assert!(entries.len() < whole.len());
                if len % 64 == 0 {
                    replay(engine(header.engine_options()), entries, tail).unwrap();
                }
            }
        }
    }
    assert!(n_open >= 2 && n_torn > 1000, "{n_open} open, {n_torn} torn");
}

#[test]
fn a_corrupted_byte_is_detected() {
    let log = History::run(2, 40).log;
    let (mut rng, mut kinds) = (Rng::new(1), std::collections::BTreeSet::new());
    for at in 0..log.len() {
        let mut changed = log.clone();
        changed[at] ^= 1 << rng.below(8);
        let error = read(&changed, 1).expect_err("a changed byte");
        let text = error.to_string();
        kinds.insert(text.split(": expected").nth(1).unwrap_or_default().to_owned());
        let starts = text.starts_with("at byte ") || text.starts_with("in the block at byte ");
        assert!(starts && text.contains("expected"), "at {at}: {text}");
    }
    assert!(kinds.len() >= 4, "{kinds:?}");
}

#[test]
fn arbitrary_bytes_do_not_panic() {
    let mut rng = Rng::new(5);
    for _ in 0..2_000 {
        // Blocks with valid checksums and random content.
        let nonsense: Vec<u8> = (0..rng.below(60)).map(|_| rng.next_u64() as u8).collect();
        let mut log =
            encode_preamble(&RecordingHeader::from_engine_options(&EngineOptions::default()));
        log.extend_from_slice(&encode_block(&nonsense));
        let Ok((header, entries, tail)) = read(&log, 1) else { continue };
        let _ = replay(engine(header.engine_options()), entries, tail);
    }
    assert!(matches!(read(b"", 1), Err(RecordingError::NotARecording)));
    assert!(matches!(read(b"apiVersion: v1\nkind: List\n", 1), Err(RecordingError::NotARecording)));
    let error = read(b"loadmaster log 2\nsomething else", 1).unwrap_err();
    assert_eq!(error.to_string(), "at byte 15: expected format 1 of a recording, found \"2\"");
}

#[test]
fn an_object_without_its_bytes_cannot_be_recorded() {
    let node = raw(&json!({"metadata": {"name": "a"}})).decode().unwrap();
    let event = EngineEvent::Upsert(ApiObject::Node(Arc::new(node)));
    let now = Now { mono: MonoTime(1), wall: Timestamp(1) };
    let mut writer = RecordingWriter::new();
    assert_eq!(writer.write_apply_event(now, &event, None), Err(MissingObjectBytes));
    assert!(writer.is_empty());
}

/// The replay compares times; this test covers extreme values.
#[test]
fn any_time_is_preserved() {
    let times = [(0, 0), (u64::MAX, i64::MAX), (0, i64::MIN), (1, -1), (u64::MAX, i64::MIN)];
    let times = times.map(|(mono, wall)| Now { mono: MonoTime(mono), wall: Timestamp(wall) });
    let mut writer = RecordingWriter::new();
    times.iter().for_each(|now| writer.write_handle_timeouts(*now));
    let log = [
        encode_preamble(&RecordingHeader::from_engine_options(&EngineOptions::default())),
        encode_block(&writer.take_block()),
    ]
    .concat();
    let (_, entries, tail) = read(&log, 1).unwrap();
    let read = entries.iter().map(|entry| match entry {
        RecordingEntry::Call { now, call: EngineCall::HandleTimeouts } => *now,
        other => panic!("{other:?}"),
    });
    assert!(read.eq(times) && tail == RecordingEnd::Unfinished);
}

#[test]
fn recordings_without_a_hash_seed_have_the_fixed_one() {
    let header = RecordingHeader::from_engine_options(&options(7));
    let mut json = serde_json::to_value(&header).unwrap();
    assert_eq!(json["hashSeed"], 7);
    json.as_object_mut().unwrap().remove("hashSeed");
    let old: RecordingHeader = serde_json::from_value(json).unwrap();
    assert_eq!(old.engine_options().hash_seed, HashSeed::FIXED);
    assert_eq!(old, RecordingHeader { hash_seed: 0, ..header });
}
