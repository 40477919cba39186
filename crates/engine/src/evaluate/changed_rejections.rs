//! Why a node is rejected after a change of its pods, without PreFilter and Filter.

use loadmaster_framework::incremental::RowDependency;
use loadmaster_framework::{EvaluatorCx, NodeRow, Rejection};

use super::PluginRejection;
use super::evaluator_part::EvaluatorPart;
use super::incremental::Evaluator;
use crate::guard::ExtensionPoint;
use crate::profile::Profile;

/// A node's rejection after a change of its pods.
pub(crate) enum ChangedRejection {
    Same,
    Another(PluginRejection),
    /// Filter must be called; perhaps the node is not rejected any more.
    Unknown,
}

/// The plugins of a profile that may reject pods with equal keys, in the order of Filter, if each of them looks at one node only.
pub(crate) struct NodeFilters<'a>(Vec<(&'static str, &'a EvaluatorPart)>);

impl<'a> NodeFilters<'a> {
    pub fn new(profile: &Profile, evaluator: &'a Evaluator) -> NodeFilters<'a> {
        let parts = profile.filter.iter().filter_map(|member| {
            let part = evaluator.filter_part(member.plugin)?;
            Some((member.name, part))
        });
        NodeFilters(parts.collect())
    }

    /// The rejection of a node that was rejected before only its pods changed. No pod may be nominated to it.
    pub fn rejection(
        &self,
        cx: EvaluatorCx<'_>,
        row: NodeRow,
        before: &PluginRejection,
    ) -> ChangedRejection {
        for (name, part) in &self.0 {
            let is_rejecter = before.plugin == Some(*name);
            if !part.filter_depends_on_pods() {
                // It found the same as before.
                if is_rejecter {
                    return ChangedRejection::Same;
                }
                continue;
            }
            match part.enter(ExtensionPoint::Filter).filter_result(cx, row) {
                Some(Ok(())) if !is_rejecter => {}
                Some(Err(rejection)) if !matches!(rejection, Rejection::Failed(_)) => {
                    if is_rejecter && rejection == before.rejection {
                        return ChangedRejection::Same;
                    }
                    let plugin = Some(*name);
                    return ChangedRejection::Another(PluginRejection { plugin, rejection });
                }
                _ => return ChangedRejection::Unknown,
            }
        }
        ChangedRejection::Unknown
    }
}

impl EvaluatorPart {
    fn filter_depends_on_pods(&self) -> bool {
        let dependencies = self.dependencies;
        [dependencies.filter, dependencies.class].contains(&Some(RowDependency::Pods))
    }
}
