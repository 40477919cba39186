//! The number of replicas of each ReplicaSet of a Deployment. No I/O.

use k8s_openapi::api::apps::v1::DeploymentSpec;

use crate::workload::scaled_value;

/// The limits of a rollout: replicas, `maxSurge` and `maxUnavailable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RolloutLimits {
    /// Desired replicas.
    pub wanted: i32,
    /// Replicas above the desired number (`maxSurge`).
    pub surge: i32,
    /// Replicas that may be unavailable (`maxUnavailable`).
    pub unavailable: i32,
    pub is_rolling: bool,
}

impl RolloutLimits {
    pub(super) fn from_spec(spec: &DeploymentSpec) -> RolloutLimits {
        let wanted = spec.replicas.unwrap_or(1);
        let strategy = spec.strategy.as_ref();
        let is_rolling = strategy.and_then(|one| one.type_.as_deref()) != Some("Recreate");
        if !is_rolling {
            return RolloutLimits { wanted, surge: 0, unavailable: 0, is_rolling };
        }
        let limits = strategy.and_then(|one| one.rolling_update.as_ref());
        let surge = scaled_value(limits.and_then(|one| one.max_surge.as_ref()), wanted, true);
        let unavailable =
            scaled_value(limits.and_then(|one| one.max_unavailable.as_ref()), wanted, false);
        // Rounding may leave neither; then nothing would ever move.
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        RolloutLimits { wanted, surge, unavailable: unavailable.min(wanted), is_rolling }
    }

    /// The most replicas at a time.
    pub(super) fn max_replicas(self) -> i32 {
        self.wanted + self.surge
    }

    /// The fewest available replicas at a time.
    pub(super) fn min_available(self) -> i32 {
        self.wanted - self.unavailable
    }

    /// The size of the new set, given its size and that of all sets.
    pub(super) fn new_replica_set_size(self, size: i32, all: i32) -> i32 {
        if !self.is_rolling {
            return self.wanted;
        }
        let free = self.max_replicas() - all;
        if free <= 0 { size } else { size + free.min(self.wanted - size) }
    }
}

/// The size and available replicas of an old ReplicaSet, for [`cleanup_unhealthy_replicas`] and [`scale_down_old_replica_sets`]; oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OldReplicaSet {
    pub size: i32,
    pub available: i32,
}

/// Removes at most `most` unavailable replicas from old ReplicaSets. Returns how many were removed.
pub(super) fn cleanup_unhealthy_replicas(old: &mut [OldReplicaSet], most: i32) -> i32 {
    let mut gone = 0;
    for set in old.iter_mut() {
        let step = (most - gone).min(set.size - set.available).max(0);
        set.size -= step;
        gone += step;
    }
    gone
}

/// Removes at most `most` replicas from old ReplicaSets. Returns how many were removed.
pub(super) fn scale_down_old_replica_sets(old: &mut [OldReplicaSet], most: i32) -> i32 {
    let mut gone = 0;
    for set in old.iter_mut() {
        let step = (most - gone).min(set.size).max(0);
        set.size -= step;
        gone += step;
    }
    gone
}

/// An active ReplicaSet to be scaled proportionally: its size and, from its annotation, the maximum replicas of the Deployment at that time.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActiveReplicaSet {
    pub size: i32,
    pub most_then: Option<i32>,
}

/// Sizes after a Deployment with several active ReplicaSets was scaled: each keeps its proportion. They are sorted by size, the largest first, and
/// the first gets the rounding remainder. `replicas_now` is used where the annotation is missing.
pub(super) fn scale_proportionally(
    sets: &[ActiveReplicaSet],
    rollout_limits: RolloutLimits,
    replicas_now: i32,
) -> Vec<i32> {
    let all: i32 = sets.iter().map(|set| set.size).sum();
    let allowed = if rollout_limits.wanted > 0 { rollout_limits.max_replicas() } else { 0 };
    let to_add = allowed - all;
    let mut added = 0;
    let mut sizes: Vec<i32> = Vec::new();
    for set in sets {
        let left = to_add - added;
        let share = fraction(*set, rollout_limits, replicas_now);
        let step = match to_add {
            0 => 0,
            _ if set.size == 0 || left == 0 => 0,
            1.. => share.min(left),
            _ => share.max(left),
        };
        sizes.push(set.size + step);
        added += step;
    }
    if let Some(first) = sizes.first_mut().filter(|_| to_add != 0) {
        *first = (*first + to_add - added).max(0);
    }
    sizes
}

fn fraction(set: ActiveReplicaSet, rollout_limits: RolloutLimits, replicas_now: i32) -> i32 {
    if rollout_limits.wanted == 0 {
        return -set.size;
    }
    let max_replicas_annotation = set.most_then.filter(|most| *most != 0).unwrap_or(replicas_now);
    if max_replicas_annotation == 0 {
        return 0;
    }
    let size = f64::from(set.size) * f64::from(rollout_limits.max_replicas())
        / f64::from(max_replicas_annotation);
    size.round() as i32 - set.size
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    fn rollout_limits(replicas: i32, surge: Value, unavailable: Value) -> RolloutLimits {
        let spec = json!({"replicas": replicas, "selector": {}, "template": {}, "strategy": {
            "type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}});
        RolloutLimits::from_spec(&from_value(spec).unwrap())
    }

    #[test]
    fn limits_resolve_together() {
        let check = |replicas, surge, unavailable, want: (i32, i32)| {
            let rollout_limits = rollout_limits(replicas, surge, unavailable);
            assert_eq!((rollout_limits.surge, rollout_limits.unavailable), want, "of {replicas}");
        };
        check(10, json!("25%"), json!("25%"), (3, 2));
        check(2, json!("0%"), json!("1%"), (0, 1));
        check(1, json!("1%"), json!("25%"), (1, 0));
        check(4, json!(0), json!(0), (0, 1));
        check(3, json!(0), json!(10), (0, 3));
        check(0, json!(0), json!(1), (0, 0));
        let recreate = json!({"replicas": 3, "selector": {}, "template": {}, "strategy": {"type": "Recreate"}});
        let rollout_limits = RolloutLimits::from_spec(&from_value(recreate).unwrap());
        assert_eq!(
            rollout_limits,
            RolloutLimits { wanted: 3, surge: 0, unavailable: 0, is_rolling: false }
        );
    }

    #[test]
    fn the_new_replica_set_scales_up_within_max_surge() {
        let check = |replicas, surge: i32, size, all, want| {
            let rollout_limits = rollout_limits(replicas, json!(surge), json!(1));
            assert_eq!(rollout_limits.new_replica_set_size(size, all), want);
        };
        check(10, 3, 0, 10, 3);
        check(10, 3, 0, 13, 0);
        check(10, 3, 3, 11, 5);
        check(10, 3, 9, 10, 10);
        check(10, 0, 0, 10, 0);
        check(1, 1, 0, 0, 1);
    }

    #[test]
    fn old_replica_sets_are_scaled_down_from_the_oldest() {
        let old = |sizes: &[(i32, i32)]| -> Vec<OldReplicaSet> {
            sizes
                .iter()
                .map(|(size, available)| OldReplicaSet { size: *size, available: *available })
                .collect()
        };
        let check = |sizes: &[(i32, i32)], most, unhealthy: &[i32], any: &[i32]| {
            let mut one = old(sizes);
            let gone = cleanup_unhealthy_replicas(&mut one, most);
            assert_eq!(one.iter().map(|set| set.size).collect::<Vec<_>>(), unhealthy);
            assert_eq!(
                gone,
                sizes.iter().map(|(size, _)| size).sum::<i32>() - unhealthy.iter().sum::<i32>()
            );
            let mut two = old(sizes);
            scale_down_old_replica_sets(&mut two, most);
            assert_eq!(two.iter().map(|set| set.size).collect::<Vec<_>>(), any);
        };
        check(&[(5, 3), (5, 5)], 4, &[3, 5], &[1, 5]);
        check(&[(3, 0), (5, 1)], 4, &[0, 4], &[0, 4]);
        check(&[(3, 3)], 5, &[3], &[0]);
        check(&[(3, 0)], 0, &[3], &[3]);
        // More available than wanted is no reason to grow.
        check(&[(3, 5)], 2, &[3], &[1]);
    }

    #[test]
    fn scaling_is_proportional() {
        // Cases of upstream's TestScale: replicas, surge, sizes with the most at that time, what they become.
        let check = |replicas, surge: i32, sets: &[(i32, i32)], want: &[i32]| {
            let shares: Vec<ActiveReplicaSet> = sets
                .iter()
                .map(|(size, most)| ActiveReplicaSet { size: *size, most_then: Some(*most) })
                .collect();
            let rollout_limits = rollout_limits(replicas, json!(surge), json!(1));
            assert_eq!(
                scale_proportionally(&shares, rollout_limits, 0),
                want,
                "{sets:?} for {replicas}"
            );
        };
        check(12, 0, &[(5, 10), (5, 10)], &[6, 6]);
        check(20, 0, &[(5, 10), (3, 10), (2, 10)], &[10, 6, 4]);
        check(5, 0, &[(5, 10), (3, 10), (2, 10)], &[2, 2, 1]);
        check(4, 0, &[(8, 16), (4, 16), (4, 16)], &[2, 1, 1]);
        check(0, 0, &[(7, 10), (3, 10)], &[0, 0]);
        check(10, 0, &[(5, 10), (5, 10)], &[5, 5]);
        let unsaid = [
            ActiveReplicaSet { size: 4, most_then: None },
            ActiveReplicaSet { size: 4, most_then: None },
        ];
        assert_eq!(
            scale_proportionally(&unsaid, rollout_limits(16, json!(0), json!(1)), 8),
            [8, 8]
        );
    }
}
