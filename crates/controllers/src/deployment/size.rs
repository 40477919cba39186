//! How many replicas each ReplicaSet of a Deployment gets: arithmetic only.

use k8s_openapi::api::apps::v1::DeploymentSpec;

use crate::workload::scaled;

/// What a Deployment allows while it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Replicas that are wanted.
    pub wanted: i32,
    /// Replicas that may come on top.
    pub surge: i32,
    /// Replicas that may be missing.
    pub unavailable: i32,
    pub is_rolling: bool,
}

impl Room {
    pub(super) fn of(spec: &DeploymentSpec) -> Room {
        let wanted = spec.replicas.unwrap_or(1);
        let strategy = spec.strategy.as_ref();
        let is_rolling = strategy.and_then(|one| one.type_.as_deref()) != Some("Recreate");
        if !is_rolling {
            return Room { wanted, surge: 0, unavailable: 0, is_rolling };
        }
        let limits = strategy.and_then(|one| one.rolling_update.as_ref());
        let surge = scaled(limits.and_then(|one| one.max_surge.as_ref()), wanted, true);
        let unavailable =
            scaled(limits.and_then(|one| one.max_unavailable.as_ref()), wanted, false);
        // Rounding may leave neither; then nothing would ever move.
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        Room { wanted, surge, unavailable: unavailable.min(wanted), is_rolling }
    }

    /// The most replicas at a time.
    pub(super) fn most(self) -> i32 {
        self.wanted + self.surge
    }

    /// The fewest available replicas at a time.
    pub(super) fn fewest(self) -> i32 {
        self.wanted - self.unavailable
    }

    /// The size of the new set, given its size and that of all sets.
    pub(super) fn new_set(self, size: i32, all: i32) -> i32 {
        if !self.is_rolling {
            return self.wanted;
        }
        let free = self.most() - all;
        if free <= 0 { size } else { size + free.min(self.wanted - size) }
    }
}

/// The size of a set and how many of it are available, for [`shrink_unhealthy`] and [`shrink`]; oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Old {
    pub size: i32,
    pub available: i32,
}

/// Takes unavailable replicas off old sets, `most` in all; those go without harm. Returns how many went.
pub(super) fn shrink_unhealthy(old: &mut [Old], most: i32) -> i32 {
    let mut gone = 0;
    for set in old.iter_mut() {
        let step = (most - gone).min(set.size - set.available).max(0);
        set.size -= step;
        gone += step;
    }
    gone
}

/// Takes replicas off old sets, `most` in all. Returns how many went.
pub(super) fn shrink(old: &mut [Old], most: i32) -> i32 {
    let mut gone = 0;
    for set in old.iter_mut() {
        let step = (most - gone).min(set.size).max(0);
        set.size -= step;
        gone += step;
    }
    gone
}

/// A set to be scaled along with the others: its size and, if written down, the most replicas of the Deployment when it got that size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub size: i32,
    pub most_then: Option<i32>,
}

/// Sizes after a Deployment with several active sets was scaled: each keeps about its share. The sets are sorted by size, the largest first, and
/// what rounding leaves goes to the first. `replicas_now` stands in where no set says what the most was.
pub(super) fn in_proportion(sets: &[Share], room: Room, replicas_now: i32) -> Vec<i32> {
    let all: i32 = sets.iter().map(|set| set.size).sum();
    let allowed = if room.wanted > 0 { room.most() } else { 0 };
    let to_add = allowed - all;
    let mut added = 0;
    let mut sizes: Vec<i32> = Vec::new();
    for set in sets {
        let left = to_add - added;
        let share = fraction(*set, room, replicas_now);
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

fn fraction(set: Share, room: Room, replicas_now: i32) -> i32 {
    if room.wanted == 0 {
        return -set.size;
    }
    let most_then = set.most_then.filter(|most| *most != 0).unwrap_or(replicas_now);
    if most_then == 0 {
        return 0;
    }
    let size = f64::from(set.size) * f64::from(room.most()) / f64::from(most_then);
    size.round() as i32 - set.size
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    fn room(replicas: i32, surge: Value, unavailable: Value) -> Room {
        let spec = json!({"replicas": replicas, "selector": {}, "template": {}, "strategy": {
            "type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}});
        Room::of(&from_value(spec).unwrap())
    }

    #[test]
    fn limits_resolve_together() {
        let check = |replicas, surge, unavailable, want: (i32, i32)| {
            let room = room(replicas, surge, unavailable);
            assert_eq!((room.surge, room.unavailable), want, "of {replicas}");
        };
        check(10, json!("25%"), json!("25%"), (3, 2));
        check(2, json!("0%"), json!("1%"), (0, 1));
        check(1, json!("1%"), json!("25%"), (1, 0));
        check(4, json!(0), json!(0), (0, 1));
        check(3, json!(0), json!(10), (0, 3));
        check(0, json!(0), json!(1), (0, 0));
        let recreate = json!({"replicas": 3, "selector": {}, "template": {}, "strategy": {"type": "Recreate"}});
        let room = Room::of(&from_value(recreate).unwrap());
        assert_eq!(room, Room { wanted: 3, surge: 0, unavailable: 0, is_rolling: false });
    }

    #[test]
    fn the_new_set_grows_into_free_room() {
        let check = |replicas, surge: i32, size, all, want| {
            let room = room(replicas, json!(surge), json!(1));
            assert_eq!(room.new_set(size, all), want);
        };
        check(10, 3, 0, 10, 3);
        check(10, 3, 0, 13, 0);
        check(10, 3, 3, 11, 5);
        check(10, 3, 9, 10, 10);
        check(10, 0, 0, 10, 0);
        check(1, 1, 0, 0, 1);
    }

    #[test]
    fn old_sets_shrink_from_the_oldest() {
        let old = |sizes: &[(i32, i32)]| -> Vec<Old> {
            sizes
                .iter()
                .map(|(size, available)| Old { size: *size, available: *available })
                .collect()
        };
        let check = |sizes: &[(i32, i32)], most, unhealthy: &[i32], any: &[i32]| {
            let mut one = old(sizes);
            let gone = shrink_unhealthy(&mut one, most);
            assert_eq!(one.iter().map(|set| set.size).collect::<Vec<_>>(), unhealthy);
            assert_eq!(
                gone,
                sizes.iter().map(|(size, _)| size).sum::<i32>() - unhealthy.iter().sum::<i32>()
            );
            let mut two = old(sizes);
            shrink(&mut two, most);
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
    fn scaling_keeps_shares() {
        // Cases of upstream's TestScale: replicas, surge, sizes with the most at that time, what they become.
        let check = |replicas, surge: i32, sets: &[(i32, i32)], want: &[i32]| {
            let shares: Vec<Share> = sets
                .iter()
                .map(|(size, most)| Share { size: *size, most_then: Some(*most) })
                .collect();
            let room = room(replicas, json!(surge), json!(1));
            assert_eq!(in_proportion(&shares, room, 0), want, "{sets:?} for {replicas}");
        };
        check(12, 0, &[(5, 10), (5, 10)], &[6, 6]);
        check(20, 0, &[(5, 10), (3, 10), (2, 10)], &[10, 6, 4]);
        check(5, 0, &[(5, 10), (3, 10), (2, 10)], &[2, 2, 1]);
        check(4, 0, &[(8, 16), (4, 16), (4, 16)], &[2, 1, 1]);
        check(0, 0, &[(7, 10), (3, 10)], &[0, 0]);
        check(10, 0, &[(5, 10), (5, 10)], &[5, 5]);
        let unsaid = [Share { size: 4, most_then: None }, Share { size: 4, most_then: None }];
        assert_eq!(in_proportion(&unsaid, room(16, json!(0), json!(1)), 8), [8, 8]);
    }
}
