use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn claim(node: &str, device: u32, memory: u64) -> Claim {
    Claim { namespace: "n".into(), name: "p".into(), node: node.into(), device, memory }
}

/// Node `a` with so many devices of so much memory.
fn node(count: u32, device_memory: u64) -> Devices {
    let mut devices = Devices::default();
    let memory = device_memory * u64::from(count);
    devices.set_capacity("a", Some(Capacity { memory, count }));
    devices
}

#[track_caller]
fn check_fit(devices: &Devices, memory: u64, want: Result<u32, Misfit>) {
    assert_eq!(devices.fit("a", memory).map(|(device, _)| device), want, "{memory}");
}

#[test]
fn the_device_with_the_least_room_that_is_enough() {
    let mut devices = node(3, 8);
    check_fit(&devices, 8, Ok(0));
    check_fit(&devices, 9, Err(Misfit::Insufficient));
    devices.confirm("u1", claim("a", 1, 5));
    devices.confirm("u2", claim("a", 2, 3));
    check_fit(&devices, 3, Ok(1));
    check_fit(&devices, 4, Ok(2));
    check_fit(&devices, 6, Ok(0));
    devices.set_unhealthy("a", BTreeSet::from([0]));
    check_fit(&devices, 6, Err(Misfit::Insufficient));
    devices.set_unhealthy("a", BTreeSet::new());
    check_fit(&devices, 6, Ok(0));
}

#[test]
fn a_node_without_shared_devices_is_skipped() {
    let mut devices = node(1, 8);
    devices.set_capacity("a", None);
    check_fit(&devices, 1, Err(Misfit::NotShared { node: "a".into() }));
    devices.confirm("u1", claim("a", 0, 5));
    check_fit(&devices, 1, Err(Misfit::NotShared { node: "a".into() }));
    devices.set_capacity("a", Some(Capacity { memory: 8, count: 0 }));
    check_fit(&devices, 1, Err(Misfit::Insufficient));
}

/// The original kept the devices it saw first.
#[test]
fn a_capacity_that_changes_counts_at_once() {
    let mut devices = node(2, 8);
    devices.confirm("u1", claim("a", 1, 6));
    devices.set_capacity("a", Some(Capacity { memory: 4, count: 1 }));
    check_fit(&devices, 5, Err(Misfit::Insufficient));
    check_fit(&devices, 4, Ok(0));
    devices.set_capacity("a", Some(Capacity { memory: 8, count: 2 }));
    assert_eq!(devices.claims("a").count(), 1);
    check_fit(&devices, 1, Ok(0));
    devices.set_capacity("a", Some(Capacity { memory: 20, count: 2 }));
    check_fit(&devices, 4, Ok(1));
}

#[test]
fn what_is_assumed_is_held_until_it_is_forgotten_or_news_come() {
    let mut devices = node(1, 8);
    assert_eq!(devices.assume("u1", claim("a", 9, 5)), Ok((0, 8)));
    assert_eq!(devices.assume("u1", claim("a", 9, 1)), Err(Misfit::BeingBound));
    assert_eq!(devices.assume("u2", claim("a", 9, 5)), Err(Misfit::Insufficient));
    assert!(devices.settled().is_empty());
    devices.forget("u1");
    assert_eq!(devices.assume("u2", claim("a", 9, 5)), Ok((0, 8)));
    devices.bound("u2");
    assert_eq!(devices.settled(), ["u2"]);
    // Bound is bound, whatever a slower caller thinks.
    devices.forget("u2");
    check_fit(&devices, 4, Err(Misfit::Insufficient));
    devices.release("u2");
    check_fit(&devices, 8, Ok(0));
}

#[derive(Clone, Debug)]
enum Step {
    Capacity(u8, Option<Capacity>),
    Unhealthy(u8, BTreeSet<u32>),
    Confirm(u8, u8, u32, u64),
    Release(u8),
    Assume(u8, u8, u64),
    Bound(u8),
    Forget(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let (node, pod) = (0..3_u8, 0..8_u8);
    let capacity = (0..40_u64, 0..4_u32).prop_map(|(memory, count)| Capacity { memory, count });
    let devices = proptest::collection::btree_set(0..4_u32, 0..3);
    prop_oneof![
        2 => (node.clone(), proptest::option::weighted(0.9, capacity))
            .prop_map(|(n, c)| Step::Capacity(n, c)),
        1 => (node.clone(), devices).prop_map(|(n, d)| Step::Unhealthy(n, d)),
        2 => (pod.clone(), node.clone(), 0..4_u32, 0..12_u64)
            .prop_map(|(p, n, d, m)| Step::Confirm(p, n, d, m)),
        2 => pod.clone().prop_map(Step::Release),
        8 => (pod.clone(), node, 1..12_u64).prop_map(|(p, n, m)| Step::Assume(p, n, m)),
        2 => pod.clone().prop_map(Step::Bound),
        2 => pod.prop_map(Step::Forget),
    ]
}

/// The same in plain lists: nothing is kept that can be summed up.
#[derive(Default)]
struct Twin {
    capacities: BTreeMap<String, Capacity>,
    unhealthy: BTreeMap<String, BTreeSet<u32>>,
    /// Uid, claim, whether it is being bound.
    pods: Vec<(String, Claim, bool)>,
}

impl Twin {
    fn used(&self, node: &str, device: u32) -> u64 {
        let here = self.pods.iter().filter(|(_, it, _)| it.node == node && it.device == device);
        here.map(|(_, claim, _)| claim.memory).sum()
    }

    fn choose(&self, node: &str, memory: u64) -> Result<(u32, u64), Misfit> {
        let not_shared = Misfit::NotShared { node: node.to_owned() };
        let capacity = self.capacities.get(node).ok_or(not_shared)?;
        let mut best: Option<(u64, u32)> = None;
        for device in 0..capacity.count {
            let of_device = capacity.memory / u64::from(capacity.count);
            let used = self.used(node, device);
            let is_unhealthy = self.unhealthy.get(node).is_some_and(|it| it.contains(&device));
            if !is_unhealthy && used + memory <= of_device {
                let candidate = (of_device - used, device);
                best = Some(best.map_or(candidate, |best| best.min(candidate)));
            }
        }
        let (_, device) = best.ok_or(Misfit::Insufficient)?;
        Ok((device, capacity.memory / u64::from(capacity.count)))
    }

    fn release(&mut self, uid: &str) {
        self.pods.retain(|(other, _, _)| other != uid);
    }

    fn take(&mut self, step: &Step) -> Option<Result<(u32, u64), Misfit>> {
        let (name, uid) = (|node: &u8| format!("node-{node}"), |pod: &u8| format!("uid-{pod}"));
        match step {
            Step::Capacity(node, capacity) => {
                self.capacities.remove(&name(node));
                self.capacities.extend(capacity.map(|it| (name(node), it)));
            }
            Step::Unhealthy(node, devices) => {
                self.unhealthy.insert(name(node), devices.clone());
            }
            Step::Confirm(pod, node, device, memory) => {
                self.release(&uid(pod));
                self.pods.push((uid(pod), claim(&name(node), *device, *memory), false));
            }
            Step::Release(pod) => self.release(&uid(pod)),
            Step::Assume(pod, node, memory) => {
                if self.pods.iter().any(|(it, _, assumed)| *it == uid(pod) && *assumed) {
                    return Some(Err(Misfit::BeingBound));
                }
                let chosen = self.choose(&name(node), *memory);
                if let Ok((device, _)) = chosen {
                    self.release(&uid(pod));
                    self.pods.push((uid(pod), claim(&name(node), device, *memory), true));
                }
                return Some(chosen);
            }
            Step::Bound(pod) => {
                let it = self.pods.iter_mut().find(|(it, _, _)| *it == uid(pod));
                it.into_iter().for_each(|(_, _, assumed)| *assumed = false);
            }
            Step::Forget(pod) => self.pods.retain(|(it, _, assumed)| *it != uid(pod) || !assumed),
        }
        None
    }
}

fn apply(devices: &mut Devices, step: &Step) -> Option<Result<(u32, u64), Misfit>> {
    let (name, uid) = (|node: &u8| format!("node-{node}"), |pod: &u8| format!("uid-{pod}"));
    match step {
        Step::Capacity(node, capacity) => devices.set_capacity(&name(node), *capacity),
        Step::Unhealthy(node, gone) => devices.set_unhealthy(&name(node), gone.clone()),
        Step::Confirm(pod, node, device, memory) => {
            devices.confirm(&uid(pod), claim(&name(node), *device, *memory));
        }
        Step::Release(pod) => devices.release(&uid(pod)),
        Step::Assume(pod, node, memory) => {
            return Some(devices.assume(&uid(pod), claim(&name(node), 77, *memory)));
        }
        Step::Bound(pod) => devices.bound(&uid(pod)),
        Step::Forget(pod) => devices.forget(&uid(pod)),
    }
    None
}

proptest! {
    /// Every answer, claim and settled pod is the twin's.
    #[test]
    fn devices_equal_their_naive_twin(steps in vec(step(), 0..60)) {
        let (mut devices, mut twin) = (Devices::default(), Twin::default());
        for step in &steps {
            let want = twin.take(step);
            prop_assert_eq!(apply(&mut devices, step), want, "{:?}", step);
            let mut settled: Vec<_> = twin.pods.iter().filter(|it| !it.2).map(|it| it.0.clone()).collect();
            settled.sort();
            prop_assert_eq!(devices.settled(), settled);
            for (name, node) in &devices.nodes {
                for device in 0..4 {
                    prop_assert_eq!(node.used(device), twin.used(name, device));
                }
            }
            prop_assert_eq!(devices.claims.len(), twin.pods.len());
        }
    }

    /// Whatever is assumed, forgotten and released: as long as capacities stay, no device is over its memory, and unhealthy ones
    /// get nothing.
    #[test]
    fn no_device_is_ever_over_its_memory(
        capacities in vec((0..40_u64, 0..4_u32), 3),
        unhealthy in 0..4_u32,
        steps in vec(step(), 0..80),
    ) {
        let mut devices = Devices::default();
        for (i, (memory, count)) in capacities.iter().enumerate() {
            let capacity = Capacity { memory: *memory, count: *count };
            devices.set_capacity(&format!("node-{i}"), Some(capacity));
            devices.set_unhealthy(&format!("node-{i}"), BTreeSet::from([unhealthy]));
        }
        for step in &steps {
            if matches!(step, Step::Capacity(..) | Step::Unhealthy(..) | Step::Confirm(..)) {
                continue;
            }
            apply(&mut devices, step);
            for (i, (memory, count)) in capacities.iter().enumerate() {
                let name = format!("node-{i}");
                for device in 0..4 {
                    let on_it = devices.claims(&name).filter(|claim| claim.device == device);
                    let (n, used) = on_it.fold((0, 0), |(n, used), it| (n + 1, used + it.memory));
                    prop_assert!(used * u64::from(*count) <= *memory, "{name} {device}: {used}");
                    prop_assert!(device != unhealthy || n == 0, "{name} {device} is unhealthy");
                }
            }
        }
    }
}
