//! What the plugins can say, held against what the scenarios show.

use std::collections::BTreeSet;

use anyhow::Result;
use loadmaster_framework::event::EventWithHint;
use loadmaster_framework::{Action, ClusterEvent, EventResource};
use loadmaster_sim::cases::Ask;
use loadmaster_sim::cases::answer::{self, Answerer};
use loadmaster_sim::scenario::{Expect, Recorded};

/// Plugins whose hints never wake a pod.
const ONLY_SKIPS: [&str; 1] = ["DefaultPreemption"];

/// Hints that are not shown, and why.
fn is_left_out(event: &ClusterEvent) -> Option<&'static str> {
    (event.resource == EventResource::DeviceClass).then_some("devices are not decided yet")
}

/// Answers whether nothing is missing.
pub fn missing() -> Result<bool> {
    let ours = Answerer::new(loadmaster_plugins::in_tree())?;
    let shown = Shown::new()?;
    let mut lines = Vec::new();
    let declared = loadmaster_plugins::REASONS.iter();
    let reasons = declared.flat_map(|(plugin, all)| all.iter().map(move |one| (plugin, one)));
    for (plugin, (code, reason)) in reasons {
        let start = format!("{plugin}, {}, ", code.name());
        let is_shown = |text: &String| {
            text.starts_with(&start)
                && text[start.len()..].split("; ").any(|text| text.starts_with(reason))
        };
        if !shown.verdicts.iter().any(is_shown) {
            lines.push(format!("reason: {start}{reason}"));
        }
    }
    for member in ours.default_profiles().iter().flat_map(|profile| &profile.score) {
        // Devices are not decided yet: the score is 0 everywhere.
        if member.name != "DynamicResources" && !shown.scored.contains(member.name) {
            lines.push(format!("score: {} with two different scores", member.name));
        }
    }
    for plugin in ours.default_profiles().iter().flat_map(|profile| &profile.plugins) {
        for registered in
            plugin.events.iter().flatten().filter(|event| is_left_out(&event.event).is_none())
        {
            lines.extend(shown.missing_hints(plugin.name, registered));
        }
    }
    match lines.as_slice() {
        [] => println!("missing: none"),
        lines => lines.iter().for_each(|line| println!("missing {line}")),
    }
    Ok(lines.is_empty())
}

/// What the files show.
#[derive(Default)]
struct Shown {
    /// Plugin, code and reasons.
    verdicts: BTreeSet<String>,
    /// Plugins that preferred one node over another.
    scored: BTreeSet<String>,
    /// Plugin, event, hint.
    hints: Vec<(String, ClusterEvent, String)>,
}

impl Shown {
    fn new() -> Result<Shown> {
        let mut shown = Shown::default();
        for (question, recorded) in super::all_recorded()? {
            match (recorded, &question.case.ask) {
                (Recorded::Expect(expect), _) => shown.expectation(*expect),
                (Recorded::Preempt(preempt), _) => {
                    let texts = preempt.reasons().into_iter();
                    let reason = |text| format!("DefaultPreemption, Unschedulable, {text}");
                    shown.verdicts.extend(texts.map(reason));
                }
                (Recorded::Hint(hint), Ask::Hint(event)) => {
                    shown.hints.push((event.plugin.clone(), answer::cluster_event(event)?, hint));
                }
                _ => {}
            }
        }
        Ok(shown)
    }

    fn expectation(&mut self, expect: Expect) {
        self.verdicts.extend(expect.held_by.into_iter().chain(expect.pre_filter));
        self.verdicts.extend(expect.nodes.into_iter().flatten().map(|(_, verdict)| verdict));
        for (plugin, scores) in expect.scores.into_iter().flatten() {
            let different: BTreeSet<i64> = scores.values().copied().collect();
            if different.len() > 1 {
                self.scored.insert(plugin);
            }
        }
    }

    /// Actions of a registration of which not every answer is shown.
    fn missing_hints(&self, plugin: &str, registered: &EventWithHint) -> Vec<String> {
        let wanted: &[&str] = match &registered.hint {
            _ if ONLY_SKIPS.contains(&plugin) => &["Skip"],
            Some(_) => &["Queue", "Skip"],
            None => &["Queue"],
        };
        let mut lines = Vec::new();
        for bit in (0..13)
            .map(|bit| Action(1 << bit))
            .filter(|bit| registered.event.action.intersects(*bit))
        {
            for hint in wanted {
                let is_shown = self.hints.iter().any(|(known, event, answer)| {
                    known == plugin
                        && answer == hint
                        && event.action == bit
                        && registered.event.matches(event)
                });
                if !is_shown {
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
