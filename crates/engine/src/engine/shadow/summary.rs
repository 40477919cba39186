//! What all comparisons together say: whether the other scheduler decides like ours.

use std::collections::BTreeMap;
use std::fmt;

use loadmaster_stdx::CollectByInsertion as _;
use loadmaster_stdx::SortCompactly as _;
use serde_json::{Value, json};

use crate::engine::shadow_comparison::{
    NodeScores, OrderOf, ScoreLoss, ShadowComparison, ShadowResult, Unexplained,
};

/// A verdict needs this many comparisons.
const N_COMPARED_MIN: u64 = 1000;

/// The schedulers agree if fewer than one in this many decisions is unexplained.
const ONE_IN: u64 = 1000;

/// How many unexplained decisions are kept with all details.
const N_TRACES_MAX: usize = 1000;

/// Another weight must make all decisions more likely by this, in thousandths of bits: so much, and so much per decision.
const MILLIBITS_MIN: i64 = 60_000;
const MILLIBITS_PER_DECISION: i64 = 20;

/// And by so many standard deviations of the sum, so that chance does not do it.
const DEVIATIONS_MIN: f64 = 3.0;

/// Plugins are named together if their weights make the decisions more likely by nearly as much: only the ratio of two weights matters where
/// the scores of all other plugins are equal.
const NEARLY: f64 = 0.8;

/// How many other weights are shown.
const N_SHOWN: usize = 3;

/// Counts of comparisons, and the unexplained ones.
#[derive(Clone, Debug, Default)]
pub struct ShadowSummary {
    results: BTreeMap<&'static str, ResultCount>,
    /// Same choices in an earlier state than that in which the binding arrived.
    n_in_earlier_states: u64,
    orders: BTreeMap<OrderOf, u64>,
    plugins: BTreeMap<&'static str, PluginDifferences>,
    rejections: BTreeMap<&'static str, u64>,
    /// How much more likely each other weight makes all decisions.
    weights: BTreeMap<(&'static str, (i64, i64)), Gain>,
    /// How many decisions that is based on.
    n_evidence: u64,
    traces: Vec<Trace>,
}

/// A sum over decisions, and the sum of the squares, in thousandths of bits.
#[derive(Clone, Copy, Debug, Default)]
struct Gain {
    millibits: i64,
    squares: f64,
}

impl Gain {
    fn add(&mut self, millibits: i64) {
        self.millibits += millibits;
        self.squares += (millibits as f64) * (millibits as f64);
    }

    /// Whether it is not by chance that the sum is above zero.
    fn is_significant(self) -> bool {
        self.millibits as f64 >= DEVIATIONS_MIN * self.squares.sqrt()
    }
}

/// How many comparisons have a result, and the points by which the chosen nodes' totals were lower.
#[derive(Clone, Copy, Debug, Default)]
struct ResultCount {
    n: u64,
    points: i64,
    points_max: i64,
}

/// How a plugin's weighted scores of chosen nodes differ from those of our best nodes, where the choice was not a best one.
#[derive(Clone, Copy, Debug, Default)]
struct PluginDifferences {
    n_lower: u64,
    points_lower: i64,
    n_higher: u64,
    points_higher: i64,
}

#[derive(Clone, Debug)]
struct Trace {
    /// The number of the recording's entry whose effects contain the comparison.
    entry: Option<u64>,
    comparison: ShadowComparison,
}

/// Whether the other scheduler decides like ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowVerdict {
    /// Too few decisions were compared.
    TooFew,
    /// Hardly a decision is unexplained.
    Agrees,
    /// More decisions are unexplained, or another weight of a plugin is clearly more likely than ours.
    Differs,
}

impl ShadowVerdict {
    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            ShadowVerdict::TooFew => "too few decisions",
            ShadowVerdict::Agrees => "agrees",
            ShadowVerdict::Differs => "differs",
        }
    }
}

impl ShadowSummary {
    /// Adds a comparison; `entry` is the number of the recording's entry that contains it.
    pub fn add(&mut self, comparison: &ShadowComparison, entry: Option<u64>) {
        let result = &comparison.result;
        self.n_evidence += u64::from(comparison.n_evidence);
        for it in &comparison.evidence {
            let gain = self.weights.entry((it.plugin, it.factor)).or_default();
            gain.add(it.millibits * i64::from(comparison.n_evidence));
        }
        let count = self.results.entry(result.name()).or_default();
        count.n += 1;
        if let Some(loss) = result.loss() {
            count.points += loss.best - loss.total;
            count.points_max = count.points_max.max(loss.best - loss.total);
            self.add_differences(loss);
        }
        match result {
            ShadowResult::SameChoicePossible { n_bindings, .. } => {
                self.n_in_earlier_states += u64::from(*n_bindings > 0);
            }
            ShadowResult::ExplainedByOrder { order, .. } => {
                *self.orders.entry(*order).or_default() += 1;
            }
            ShadowResult::Unexplained(trace) => {
                self.add_unexplained(trace);
                if self.traces.len() < N_TRACES_MAX {
                    self.traces.push(Trace { entry, comparison: comparison.clone() });
                }
            }
            _ => {}
        }
    }

    fn add_differences(&mut self, loss: &ScoreLoss) {
        for it in &loss.by {
            let plugin = self.plugins.entry(it.plugin).or_default();
            if it.chosen < it.best {
                plugin.n_lower += 1;
                plugin.points_lower += it.best - it.chosen;
            } else {
                plugin.n_higher += 1;
                plugin.points_higher += it.chosen - it.best;
            }
        }
    }

    fn add_unexplained(&mut self, trace: &Unexplained) {
        if let Some((plugin, _)) = &trace.rejected_by {
            *self.rejections.entry(plugin).or_default() += 1;
        }
    }

    fn count(&self, name: &str) -> ResultCount {
        self.results.get(name).copied().unwrap_or_default()
    }

    /// Number of all comparisons, also those without a result.
    pub fn n_compared(&self) -> u64 {
        self.results.values().map(|count| count.n).sum()
    }

    /// Number of comparisons that were examined.
    fn n_examined(&self) -> u64 {
        self.n_compared() - self.count("not_examined").n - self.count("undecided").n
    }

    /// Number of unexplained decisions.
    pub fn n_unexplained(&self) -> u64 {
        self.count("unexplained").n
    }

    /// Whether the schedulers decide alike.
    pub fn verdict(&self) -> ShadowVerdict {
        if self.n_compared() - self.count("undecided").n < N_COMPARED_MIN {
            ShadowVerdict::TooFew
        } else if self.n_unexplained() * ONE_IN < self.n_examined()
            && self.likely_weights().is_empty()
        {
            ShadowVerdict::Agrees
        } else {
            ShadowVerdict::Differs
        }
    }

    /// Other weights that are clearly more likely than ours, one per plugin, the most likely one first: the factor, and thousandths of bits.
    fn likely_weights(&self) -> Vec<(&'static str, (i64, i64), i64)> {
        let least = MILLIBITS_MIN + MILLIBITS_PER_DECISION * self.n_evidence as i64;
        let mut best: BTreeMap<&'static str, ((i64, i64), i64)> = BTreeMap::new();
        let is_likely = |gain: &Gain| gain.millibits >= least && gain.is_significant();
        for ((plugin, factor), gain) in self.weights.iter().filter(|(_, it)| is_likely(it)) {
            let known = best.entry(plugin).or_insert((*factor, gain.millibits));
            if gain.millibits > known.1 {
                *known = (*factor, gain.millibits);
            }
        }
        let mut all: Vec<_> =
            best.into_iter().map(|(plugin, (factor, bits))| (plugin, factor, bits)).collect();
        all.sort_compactly_by_key(|(_, _, millibits)| std::cmp::Reverse(*millibits));
        all
    }

    /// The plugin that rejects the chosen nodes of at least half of the unexplained decisions; or else those that the other scheduler may have
    /// with another weight: one, or several that explain its decisions nearly equally well.
    pub fn differing_plugins(&self) -> Vec<&'static str> {
        if self.verdict() != ShadowVerdict::Differs {
            return Vec::new();
        }
        let rejecting = self.rejections.iter().max_by_key(|(_, n)| **n);
        if let Some((plugin, _)) = rejecting.filter(|(_, n)| 2 * **n >= self.n_unexplained()) {
            return vec![plugin];
        }
        let weights = self.likely_weights();
        let most = weights.first().map_or(0, |(_, _, millibits)| *millibits);
        let nearly = weights.into_iter().filter(|it| it.2 as f64 >= NEARLY * most as f64);
        nearly.map(|(plugin, ..)| plugin).collect()
    }

    /// The report of `--shadow-report`.
    pub fn to_json(&self) -> Value {
        let results = self.results.iter().map(|(name, count)| {
            let ResultCount { n, points, points_max } = count;
            let value = json!({"pods": n, "pointsLost": points, "mostPointsLost": points_max});
            ((*name).to_owned(), value)
        });
        let plugins = self.plugins.iter().map(|(plugin, it)| {
            let value = json!({
                "podsLower": it.n_lower, "pointsLower": it.points_lower,
                "podsHigher": it.n_higher, "pointsHigher": it.points_higher});
            ((*plugin).to_owned(), value)
        });
        let weights = self.likely_weights().into_iter().map(|(plugin, factor, millibits)| {
            json!({"plugin": plugin, "weightFactor": factor_text(factor), "bits": millibits / 1000})
        });
        json!({
            "verdict": self.verdict().name(),
            "differingPlugins": self.differing_plugins(),
            "comparedPods": self.n_compared(),
            "results": results.collect_by_insertion::<serde_json::Map<_, _>>(),
            "sameChoiceInEarlierState": self.n_in_earlier_states,
            "explainedByOrderOf": self.orders.iter().map(|(order, n)| (order.name().to_owned(), json!(n))).collect_by_insertion::<serde_json::Map<_, _>>(),
            "scoresOfChosenNodes": plugins.collect_by_insertion::<serde_json::Map<_, _>>(),
            "likelyWeights": weights.collect::<Vec<_>>(),
            "rejectedBy": self.rejections,
            "unexplained": self.traces.iter().map(trace_json).collect::<Vec<_>>(),
        })
    }
}

fn factor_text((numerator, denominator): (i64, i64)) -> String {
    match denominator {
        1 => numerator.to_string(),
        _ => format!("{numerator}/{denominator}"),
    }
}

fn trace_json(trace: &Trace) -> Value {
    let comparison = &trace.comparison;
    let ShadowResult::Unexplained(it) = &comparison.result else { return Value::Null };
    let scores = |node: &NodeScores| {
        let scores = node.scores.iter().map(|(plugin, score)| ((*plugin).to_owned(), json!(score)));
        json!({"node": node.node.as_str(), "total": node.total, "scores": scores.collect_by_insertion::<serde_json::Map<_, _>>()})
    };
    json!({
        "pod": comparison.pod,
        "profile": comparison.profile.as_str(),
        "node": comparison.node.as_str(),
        "recordingEntry": trace.entry,
        "rejectedBy": it.rejected_by.as_ref().map(|(plugin, reasons)| json!({"plugin": plugin, "reasons": reasons})),
        "chosen": it.chosen.as_ref().map(scores),
        "best": it.best_nodes.iter().map(scores).collect::<Vec<_>>(),
        "feasibleNodes": it.n_feasible,
        "betterNodes": it.n_better,
        "sampledNodes": it.n_wanted,
        "comparedStates": it.n_states,
        "bindings": it.bindings,
    })
}

/// One screen.
impl fmt::Display for ShadowSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.n_compared();
        writeln!(f, "Shadow: {n} decisions of the other scheduler were compared")?;
        let mut line = |title: &str, name: &str, detail: String| {
            let count = self.count(name);
            let percent = 100.0 * count.n as f64 / n.max(1) as f64;
            let lost = match count.points {
                0 => String::new(),
                points => {
                    let mean = points as f64 / count.n.max(1) as f64;
                    format!("  points lost: {mean:.1} per pod, at most {}", count.points_max)
                }
            };
            writeln!(f, "  {title:32}{:>9} {percent:7.2} %{lost}{detail}", count.n)
        };
        let earlier = match self.n_in_earlier_states {
            0 => String::new(),
            n => format!("  {n} of them in an earlier state"),
        };
        line("same choice possible", "same_choice_possible", earlier)?;
        line("better node missed by sampling", "better_node_missed", String::new())?;
        let orders = self.orders.iter().map(|(order, n)| format!("  {}: {n}", order.name()));
        line("explained by order", "explained_by_order", orders.collect())?;
        line("unexplained", "unexplained", String::new())?;
        line("not examined", "not_examined", String::new())?;
        line("undecided", "undecided", String::new())?;
        if !self.plugins.is_empty() {
            writeln!(
                f,
                "Where the node was not a best one, its weighted scores in comparison with the best node's:"
            )?;
        }
        for (plugin, it) in &self.plugins {
            writeln!(
                f,
                "  {plugin:32}lower for {} pods ({} points), higher for {} ({} points)",
                it.n_lower, it.points_lower, it.n_higher, it.points_higher
            )?;
        }
        self.write_verdict(f)
    }
}

impl ShadowSummary {
    fn write_verdict(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.verdict() {
            ShadowVerdict::TooFew => {
                write!(f, "Too few decisions for a verdict: at least {N_COMPARED_MIN} are needed.")
            }
            ShadowVerdict::Agrees => write!(
                f,
                "The schedulers decide alike: fewer than one in {ONE_IN} decisions is unexplained. You can switch."
            ),
            ShadowVerdict::Differs => {
                let n = self.n_unexplained();
                write!(f, "The schedulers DIFFER: do not switch before this is explained.")?;
                // A burst leaves decisions unexplained as well.
                let n_not_examined = self.count("not_examined").n;
                if n_not_examined > 0 {
                    write!(
                        f,
                        "\n  {n_not_examined} decisions were not examined, because too many were made at the same time: repeat this with fewer pods at a time."
                    )?;
                }
                for (plugin, n_rejected) in &self.rejections {
                    write!(
                        f,
                        "\n  {plugin} rejects the chosen node here: {n_rejected} of {n} unexplained decisions"
                    )?;
                }
                for (plugin, factor, millibits) in self.likely_weights().into_iter().take(N_SHOWN) {
                    let (factor, bits) = (factor_text(factor), millibits / 1000);
                    write!(
                        f,
                        "\n  {plugin} with {factor} times our weight makes its decisions more likely, by {bits} bits"
                    )?;
                }
                let plugins = self.differing_plugins();
                if !plugins.is_empty() {
                    write!(f, "\n  Compare the configuration of {} first.", plugins.join(" and "))?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::shadow_comparison::{ScoreDifference, WeightEvidence};

    fn comparison(result: ShadowResult) -> ShadowComparison {
        ShadowComparison {
            pod: "default/web".to_owned(),
            profile: "default-scheduler".into(),
            node: "a".into(),
            result,
            evidence: Vec::new(),
            n_evidence: 0,
        }
    }

    fn same() -> ShadowResult {
        ShadowResult::SameChoicePossible { n_best: 3, n_bindings: 0 }
    }

    fn loss(plugin: &'static str, chosen: i64, best: i64) -> Option<ScoreLoss> {
        let by = vec![ScoreDifference { plugin, chosen, best }];
        Some(ScoreLoss { total: 300 + chosen, best: 300 + best, best_node: "b".into(), by })
    }

    fn summary_of(results: &[(u32, ShadowResult)]) -> ShadowSummary {
        let mut summary = ShadowSummary::default();
        for (n, result) in results {
            (0..*n).for_each(|nth| summary.add(&comparison(result.clone()), Some(nth.into())));
        }
        summary
    }

    fn rejected(plugin: &'static str) -> ShadowResult {
        let rejected_by = Some((plugin, vec!["no".to_owned()]));
        ShadowResult::Unexplained(Box::new(Unexplained { rejected_by, ..Unexplained::default() }))
    }

    #[test]
    fn one_screen() {
        let missed = ShadowResult::BetterNodeMissed {
            n_wanted: 100,
            n_feasible: 300,
            loss: loss("ImageLocality", 2, 5),
        };
        let order = ShadowResult::ExplainedByOrder {
            order: OrderOf::Bindings,
            loss: loss("NodeResourcesFit", 80, 81),
        };
        let summary = summary_of(&[(1700, same()), (290, missed), (9, order), (1, rejected("X"))]);
        expect_test::expect![[r#"
            Shadow: 2000 decisions of the other scheduler were compared
              same choice possible                 1700   85.00 %
              better node missed by sampling        290   14.50 %  points lost: 3.0 per pod, at most 3
              explained by order                      9    0.45 %  points lost: 1.0 per pod, at most 1  bindings: 9
              unexplained                             1    0.05 %
              not examined                            0    0.00 %
              undecided                               0    0.00 %
            Where the node was not a best one, its weighted scores in comparison with the best node's:
              ImageLocality                   lower for 290 pods (870 points), higher for 0 (0 points)
              NodeResourcesFit                lower for 9 pods (9 points), higher for 0 (0 points)
            The schedulers decide alike: fewer than one in 1000 decisions is unexplained. You can switch."#]]
        .assert_eq(&summary.to_string());
    }

    #[test]
    fn verdicts() {
        let check = |results: &[(u32, ShadowResult)], verdict, plugin| {
            let summary = summary_of(results);
            let found = (summary.verdict(), summary.differing_plugins().first().copied());
            assert_eq!(found, (verdict, plugin), "{summary}");
        };
        let undecided = ShadowResult::Undecided { message: "broken".to_owned() };
        check(&[(999, same())], ShadowVerdict::TooFew, None);
        check(&[(999, same()), (9, undecided)], ShadowVerdict::TooFew, None);
        check(&[(1000, same())], ShadowVerdict::Agrees, None);
        check(&[(1998, same()), (1, rejected("X"))], ShadowVerdict::Agrees, None);
        check(&[(1998, same()), (2, rejected("X"))], ShadowVerdict::Differs, Some("X"));
        // What was not examined counts on neither side.
        let not_examined = ShadowResult::NotExamined;
        let many = [(900, same()), (500, not_examined), (1, rejected("X"))];
        check(&many, ShadowVerdict::Differs, Some("X"));
        let text = summary_of(&many).to_string();
        assert!(text.contains("\n  500 decisions were not examined, because"), "{text}");
    }

    #[test]
    fn another_weight_must_be_clearly_more_likely() {
        let check = |millibits: &[(&'static str, i64)], n: u32, plugins: &[&str]| {
            let mut summary = summary_of(&[(1000, same())]);
            let evidence = |(plugin, millibits): &(&'static str, i64)| {
                let of = |factor| WeightEvidence { plugin, factor, millibits: *millibits };
                [of((2, 1)), of((3, 1))]
            };
            let evidence: Vec<_> = millibits.iter().flat_map(evidence).collect();
            let one = ShadowComparison { evidence, n_evidence: 4, ..comparison(same()) };
            (0..n).for_each(|_| summary.add(&one, None));
            assert_eq!(summary.differing_plugins(), plugins, "{millibits:?}");
            let differs = summary.verdict() == ShadowVerdict::Differs;
            assert_eq!(differs, !plugins.is_empty());
        };
        // 62 bits of 100 decisions.
        check(&[("X", 619)], 25, &[]);
        check(&[("X", 620)], 25, &["X"]);
        check(&[("X", -620)], 25, &[]);
        // As many bits of few decisions may be chance.
        check(&[("X", 4_000)], 8, &[]);
        check(&[("X", 4_000)], 9, &["X"]);
        // The ratio of the weights of two plugins may be what matters.
        check(&[("X", 2_000), ("Y", 1_590), ("Z", 1_610)], 25, &["X", "Z"]);
    }
}
