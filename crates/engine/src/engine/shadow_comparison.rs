//! The result of a comparison with another scheduler's decision.

use std::fmt;

use loadmaster_api::Str;

/// Our evaluation of a pod that another scheduler bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShadowComparison {
    /// `namespace/name`.
    pub pod: String,
    /// The schedulerName of the profile that evaluated it.
    pub profile: Str,
    /// The node to which it was bound.
    pub node: Str,
    pub result: ShadowResult,
    /// How much more likely other weights make the decision. Every mismatch has it, and a part of the others.
    pub evidence: Vec<WeightEvidence>,
    /// How many decisions the evidence stands for.
    pub n_evidence: u32,
}

/// Whether our scheduler could have made the other one's decision, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShadowResult {
    /// The node was one of `n_best` best nodes, in the state before the last `n_bindings` bindings.
    SameChoicePossible { n_best: usize, n_bindings: usize },
    /// A better node was not among the `n_wanted` feasible ones that the other scheduler looked for: there is such a sample of the nodes in
    /// which the chosen one is a best node.
    BetterNodeMissed { n_wanted: usize, n_feasible: usize, loss: Option<ScoreLoss> },
    /// The node is a best one if something came in another order than here.
    ExplainedByOrder { order: OrderOf, loss: Option<ScoreLoss> },
    /// Nothing that is known of kube-scheduler explains the decision.
    Unexplained(Box<Unexplained>),
    /// There were more mismatches at a time than can be examined.
    NotExamined,
    /// No decision can be computed here: a plugin failed, or an extender takes part.
    Undecided { message: String },
}

/// What came in another order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OrderOf {
    /// Bindings arrived in another order than the decisions were made.
    Bindings,
    /// Another node was the first to report an image, whose size there counts for all nodes.
    Images,
    /// A node changed while the pod was pending or being bound.
    Nodes,
}

impl OrderOf {
    /// All values.
    pub const ALL: [OrderOf; 3] = [OrderOf::Bindings, OrderOf::Images, OrderOf::Nodes];

    /// A short name.
    pub fn name(self) -> &'static str {
        match self {
            OrderOf::Bindings => "bindings",
            OrderOf::Images => "images",
            OrderOf::Nodes => "nodes",
        }
    }
}

/// The totals of the chosen node and of a best one, in the state in which the binding arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoreLoss {
    pub total: i64,
    pub best: i64,
    pub best_node: Str,
    /// The plugins whose scores of the two nodes differ.
    pub by: Vec<ScoreDifference>,
}

/// A plugin whose weighted scores of the two nodes differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoreDifference {
    pub plugin: &'static str,
    pub chosen: i64,
    pub best: i64,
}

/// All that is needed to look at a decision that nothing explains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unexplained {
    /// The plugin that rejects the node, and its reasons.
    pub rejected_by: Option<(&'static str, Vec<String>)>,
    pub loss: Option<ScoreLoss>,
    /// The scores of the chosen node, if it is feasible.
    pub chosen: Option<NodeScores>,
    /// The scores of some of the best nodes.
    pub best_nodes: Vec<NodeScores>,
    pub n_feasible: usize,
    /// Number of nodes with a higher total than the chosen one.
    pub n_better: usize,
    /// How many feasible nodes the other scheduler looked for.
    pub n_wanted: usize,
    /// Number of states that were compared.
    pub n_states: usize,
    /// Bindings to the chosen node and the best nodes shortly before and after, as `pod on node`.
    pub bindings: Vec<String>,
}

/// The weighted scores of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeScores {
    pub node: Str,
    pub total: i64,
    pub scores: Vec<(&'static str, i64)>,
}

/// What a decision says of a plugin's weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightEvidence {
    pub plugin: &'static str,
    /// What the weight is multiplied by: numerator and denominator.
    pub factor: (i64, i64),
    /// How much more likely that makes the decision: the logarithm of the ratio, in thousandths of bits.
    pub millibits: i64,
}

impl ShadowResult {
    /// The value of the metric label `result`.
    pub fn name(&self) -> &'static str {
        match self {
            ShadowResult::SameChoicePossible { .. } => "same_choice_possible",
            ShadowResult::BetterNodeMissed { .. } => "better_node_missed",
            ShadowResult::ExplainedByOrder { .. } => "explained_by_order",
            ShadowResult::Unexplained(_) => "unexplained",
            ShadowResult::NotExamined => "not_examined",
            ShadowResult::Undecided { .. } => "undecided",
        }
    }

    /// How much lower the total of the chosen node was, if it was feasible and lower.
    pub fn loss(&self) -> Option<&ScoreLoss> {
        match self {
            ShadowResult::BetterNodeMissed { loss, .. }
            | ShadowResult::ExplainedByOrder { loss, .. } => loss.as_ref(),
            ShadowResult::Unexplained(trace) => trace.loss.as_ref(),
            _ => None,
        }
    }
}

impl fmt::Display for ScoreLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScoreLoss { total, best, best_node, by } = self;
        write!(f, "; its total is {total}, {best_node} has {best}")?;
        for ScoreDifference { plugin, chosen, best } in by {
            write!(f, "; {plugin} {chosen} against {best}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ShadowComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}: ", self.pod, self.node)?;
        match &self.result {
            ShadowResult::SameChoicePossible { n_best, n_bindings } => {
                write!(f, "same choice possible, one of {n_best} best nodes")?;
                match n_bindings {
                    0 => {}
                    1 => f.write_str(" before the last binding")?,
                    n => write!(f, " before the last {n} bindings")?,
                }
            }
            ShadowResult::BetterNodeMissed { n_wanted, n_feasible, .. } => {
                write!(f, "better node missed by sampling {n_wanted} of {n_feasible} nodes")?;
            }
            ShadowResult::ExplainedByOrder { order, .. } => {
                write!(f, "explained by the order of {}", order.name())?;
            }
            ShadowResult::Unexplained(trace) => {
                let Unexplained { n_better, n_feasible, n_states, .. } = &**trace;
                write!(
                    f,
                    "unexplained; {n_better} of {n_feasible} nodes are better; {n_states} states"
                )?;
                if let Some((plugin, reasons)) = &trace.rejected_by {
                    write!(f, "; {plugin} rejects it: {}", reasons.join(", "))?;
                }
            }
            ShadowResult::NotExamined => f.write_str("not examined: too many mismatches")?,
            ShadowResult::Undecided { message } => f.write_str(message)?,
        }
        self.result.loss().map_or(Ok(()), |loss| loss.fmt(f))
    }
}
