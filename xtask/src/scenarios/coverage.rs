//! Lists the reasons, scores and hints of plugins that no scenario covers.

use std::collections::BTreeSet;

use anyhow::Result;
use loadmaster_framework::cluster_event::ClusterEventWithHint;
use loadmaster_framework::{ActionType, ClusterEvent, EventResource};
use loadmaster_sim::cases::OracleCaseKind;
use loadmaster_sim::cases::local_oracle;
use loadmaster_sim::scenario::{ExpectedResult, RecordedResult};

use crate::oracle;

/// Plugins whose hints are always Skip.
const ONLY_SKIPS: [&str; 1] = ["DefaultPreemption"];

/// Plugins whose hint for an added object of this kind is always Queue.
const ADDITIONS_ALWAYS_QUEUE: [(&str, EventResource); 5] = [
    ("VolumeBinding", EventResource::StorageClass),
    ("VolumeBinding", EventResource::CsiNode),
    ("VolumeBinding", EventResource::CsiStorageCapacity),
    ("VolumeZone", EventResource::PersistentVolume),
    ("NodeDeclaredFeatures", EventResource::Node),
];

/// Why an event is not required to be covered.
fn is_left_out(event: &ClusterEvent) -> Option<&'static str> {
    (event.resource == EventResource::DeviceClass)
        .then_some("DynamicResources is not implemented yet")
}

/// Prints what is missing; returns whether nothing is.
pub fn missing() -> Result<bool> {
    let ours = oracle::local_oracle()?;
    let covered = Covered::new()?;
    let mut lines = Vec::new();
    let declared = loadmaster_plugins::DECLARED_REASONS.iter();
    let reasons = declared.flat_map(|(plugin, all)| all.iter().map(move |one| (plugin, one)));
    for (plugin, (code, reason)) in reasons {
        let start = format!("{plugin}, {}, ", code.name());
        let is_covered = |text: &String| {
            text.starts_with(&start)
                && text[start.len()..].split("; ").any(|text| text.starts_with(reason))
        };
        if !covered.filter_results.iter().any(is_covered) {
            lines.push(format!("reason: {start}{reason}"));
        }
    }
    for member in ours.default_profiles().iter().flat_map(|profile| &profile.score) {
        // Not implemented yet: its score is always 0.
        if member.name != "DynamicResources" && !covered.scored.contains(member.name) {
            lines.push(format!("score: {} with two different scores", member.name));
        }
    }
    for plugin in ours.default_profiles().iter().flat_map(|profile| &profile.plugins) {
        for registered in
            plugin.events.iter().flatten().filter(|event| is_left_out(&event.event).is_none())
        {
            lines.extend(covered.missing_hints(plugin.name, registered));
        }
    }
    match lines.as_slice() {
        [] => println!("missing: none"),
        lines => lines.iter().for_each(|line| println!("missing {line}")),
    }
    Ok(lines.is_empty())
}

/// What the files cover.
#[derive(Default)]
struct Covered {
    /// Plugin, code and reasons.
    filter_results: BTreeSet<String>,
    /// Plugins that scored two nodes differently.
    scored: BTreeSet<String>,
    /// Plugin, event, hint.
    hints: Vec<(String, ClusterEvent, String)>,
}

impl Covered {
    fn new() -> Result<Covered> {
        let mut covered = Covered::default();
        for (question, recorded) in super::all_recorded()? {
            match (recorded, &question.case.kind) {
                (RecordedResult::Expect(expect), _) => covered.expectation(*expect),
                (RecordedResult::Preempt(preempt), _) => {
                    let texts = preempt.rejection_reasons().into_iter();
                    let reason = |text| format!("DefaultPreemption, Unschedulable, {text}");
                    covered.filter_results.extend(texts.map(reason));
                }
                (RecordedResult::Hint(hint), OracleCaseKind::Hint(event)) => {
                    covered.hints.push((
                        event.plugin.clone(),
                        local_oracle::parse_cluster_event(event)?,
                        hint,
                    ));
                }
                _ => {}
            }
        }
        Ok(covered)
    }

    fn expectation(&mut self, expect: ExpectedResult) {
        self.filter_results.extend(expect.pre_enqueue.into_iter().chain(expect.pre_filter));
        self.filter_results.extend(expect.nodes.into_iter().flatten().map(|(_, result)| result));
        for (plugin, scores) in expect.scores.into_iter().flatten() {
            let different: BTreeSet<i64> = scores.values().copied().collect();
            if different.len() > 1 {
                self.scored.insert(plugin);
            }
        }
    }

    /// The actions of a registered event of which not every hint is covered.
    fn missing_hints(&self, plugin: &str, registered: &ClusterEventWithHint) -> Vec<String> {
        let wanted: &[&str] = match &registered.hint {
            _ if ONLY_SKIPS.contains(&plugin) => &["Skip"],
            Some(_) => &["Queue", "Skip"],
            None => &["Queue"],
        };
        let mut lines = Vec::new();
        // An update of an object that is neither a pod nor a node has no more precise action.
        let has_updates = registered.event.action.contains(ActionType::UPDATE);
        let bits = (0..13).map(|bit| ActionType(1 << bit));
        let actions: Vec<ActionType> = match has_updates {
            true => vec![ActionType::ADD, ActionType::DELETE, ActionType::UPDATE],
            false => bits.collect(),
        };
        for bit in actions.into_iter().filter(|action| registered.event.action.intersects(*action))
        {
            let resource = &registered.event.resource;
            let never_skips = bit == ActionType::ADD
                && ADDITIONS_ALWAYS_QUEUE.iter().any(|it| it.0 == plugin && it.1 == *resource);
            for hint in wanted.iter().filter(|hint| !(never_skips && **hint == "Skip")) {
                let is_covered = self.hints.iter().any(|(known, event, answer)| {
                    known == plugin
                        && answer == *hint
                        && event.action == bit
                        && registered.event.matches(event)
                });
                if !is_covered {
                    lines.push(format!(
                        "hint: {plugin} {} {bit}: {hint}",
                        registered.event.resource.name()
                    ));
                }
            }
        }
        lines
    }
}
