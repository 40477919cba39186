//! The score of a node: how full its storage would be, by class (gate StorageCapacityScoring).

use loadmaster_api::Str;
use smallvec::SmallVec;

use super::node_volumes::{CompiledClaims, NodeVolumes};
use crate::utilization_shape::Shape;

/// Upstream's `volumeCapacityScorer`.
#[derive(Debug)]
pub(super) struct VolumeCapacityScorer {
    /// Maps the utilization of a class to its score.
    pub shape: Shape,
}

/// Bytes requested, and bytes there.
type ClassResources<'a> = SmallVec<[(&'a Str, i64, i64); 2]>;

impl VolumeCapacityScorer {
    /// The score of a node with these volumes, in `0..=100`; 0 when nothing is known about its storage.
    pub fn score(&self, claims: &CompiledClaims, volumes: &NodeVolumes) -> i64 {
        let mut classes = ClassResources::new();
        let request = |at: usize| claims.claim(at).request.map_or(0, |request| request.value());
        if volumes.bindings.is_empty() {
            for (at, capacity) in &volumes.provisions {
                // Two claims share the capacity of a class.
                if let Some(capacity) = capacity {
                    let class = class_entry(&mut classes, &claims.claim(*at).class);
                    (class.1, class.2) = (class.1.wrapping_add(request(*at)), *capacity);
                }
            }
        }
        for (at, volume) in &volumes.bindings {
            let class = class_entry(&mut classes, &volume.class_name);
            class.1 = class.1.wrapping_add(request(*at));
            class.2 = class.2.wrapping_add(volume.capacity.value());
        }
        if classes.is_empty() {
            return 0;
        }
        let scores =
            classes.iter().map(|(_, requested, there)| self.class_score(*requested, *there));
        (scores.sum::<i64>() as f64 / classes.len() as f64).round() as i64
    }

    fn class_score(&self, requested: i64, there: i64) -> i64 {
        let is_full = there == 0 || requested > there;
        self.shape.at(if is_full { 100 } else { requested.wrapping_mul(100).wrapping_div(there) })
    }
}

fn class_entry<'a, 'c>(
    classes: &'c mut ClassResources<'a>,
    name: &'a Str,
) -> &'c mut (&'a Str, i64, i64) {
    let at = classes.iter().position(|(known, ..)| *known == name).unwrap_or_else(|| {
        classes.push((name, 0, 0));
        classes.len() - 1
    });
    &mut classes[at]
}
