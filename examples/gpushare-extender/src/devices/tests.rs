use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn claim(node: &str, device: u32, memory: u64) -> Claim {
    Claim { namespace: "n".into(), name: "p".into(), node: node.into(), device, memory }
}

/// Node `a` with `count` devices of `device_memory` each.
fn node(count: u32, device_memory: u64) -> Devices {
    let mut devices = Devices::default();
    let memory = device_memory * u64::from(count);
    devices.set_capacity("a", Some(Capacity { memory, count }));
    devices
}

#[track_caller]
fn check_fit(devices: &Devices, memory: u64, want: Result<u32, FitError>) {
    assert_eq!(devices.fit("a", memory).map(|(device, _)| device), want, "{memory}");
}

#[test]
fn the_device_with_the_least_sufficient_free_memory_is_selected() {
    let mut devices = node(3, 8);
    check_fit(&devices, 8, Ok(0));
    check_fit(&devices, 9, Err(FitError::Insufficient));
    devices.confirm("u1", claim("a", 1, 5));
    devices.confirm("u2", claim("a", 2, 3));
    check_fit(&devices, 3, Ok(1));
    check_fit(&devices, 4, Ok(2));
    check_fit(&devices, 6, Ok(0));
    devices.set_unhealthy("a", BTreeSet::from([0]));
    check_fit(&devices, 6, Err(FitError::Insufficient));
    devices.set_unhealthy("a", BTreeSet::new());
    check_fit(&devices, 6, Ok(0));
}

#[test]
fn a_node_without_shared_devices_is_skipped() {
    let mut devices = node(1, 8);
    devices.set_capacity("a", None);
    check_fit(&devices, 1, Err(FitError::NotShared { node: "a".into() }));
    devices.confirm("u1", claim("a", 0, 5));
    check_fit(&devices, 1, Err(FitError::NotShared { node: "a".into() }));
    devices.set_capacity("a", Some(Capacity { memory: 8, count: 0 }));
    check_fit(&devices, 1, Err(FitError::Insufficient));
}

/// The original ignored changes of the capacity.
#[test]
fn a_changed_capacity_takes_effect_at_once() {
    let mut devices = node(2, 8);
    devices.confirm("u1", claim("a", 1, 6));
    devices.set_capacity("a", Some(Capacity { memory: 4, count: 1 }));
    check_fit(&devices, 5, Err(FitError::Insufficient));
    check_fit(&devices, 4, Ok(0));
    devices.set_capacity("a", Some(Capacity { memory: 8, count: 2 }));
    assert_eq!(devices.claims("a").count(), 1);
    check_fit(&devices, 1, Ok(0));
    devices.set_capacity("a", Some(Capacity { memory: 20, count: 2 }));
    check_fit(&devices, 4, Ok(1));
}

#[test]
fn an_assumed_claim_stays_until_forget_or_release() {
    let mut devices = node(1, 8);
    assert_eq!(devices.assume("u1", claim("a", 9, 5)), Ok((0, 8)));
    assert_eq!(devices.assume("u1", claim("a", 9, 1)), Err(FitError::BindingInProgress));
    assert_eq!(devices.assume("u2", claim("a", 9, 5)), Err(FitError::Insufficient));
    assert!(devices.confirmed_pods().is_empty());
    devices.forget("u1");
    assert_eq!(devices.assume("u2", claim("a", 9, 5)), Ok((0, 8)));
    devices.finish_binding("u2");
    assert_eq!(devices.confirmed_pods(), ["u2"]);
    // A bound pod is not forgotten by a slower caller.
    devices.forget("u2");
    check_fit(&devices, 4, Err(FitError::Insufficient));
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

/// The reference model: plain lists, all sums are computed again each time.
#[derive(Default)]
struct ReferenceModel {
    capacities: BTreeMap<String, Capacity>,
    unhealthy: BTreeMap<String, BTreeSet<u32>>,
    /// Uid, claim, whether it is being bound.
    pods: Vec<(String, Claim, bool)>,
}

impl ReferenceModel {
    fn used(&self, node: &str, device: u32) -> u64 {
        let here = self.pods.iter().filter(|(_, it, _)| it.node == node && it.device == device);
        here.map(|(_, claim, _)| claim.memory).sum()
    }

    fn choose(&self, node: &str, memory: u64) -> Result<(u32, u64), FitError> {
        let not_shared = FitError::NotShared { node: node.to_owned() };
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
        let (_, device) = best.ok_or(FitError::Insufficient)?;
        Ok((device, capacity.memory / u64::from(capacity.count)))
    }

    fn release(&mut self, uid: &str) {
        self.pods.retain(|(other, _, _)| other != uid);
    }

    fn apply(&mut self, step: &Step) -> Option<Result<(u32, u64), FitError>> {
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
                    return Some(Err(FitError::BindingInProgress));
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

fn apply(devices: &mut Devices, step: &Step) -> Option<Result<(u32, u64), FitError>> {
    let (name, uid) = (|node: &u8| format!("node-{node}"), |pod: &u8| format!("uid-{pod}"));
    match step {
        Step::Capacity(node, capacity) => devices.set_capacity(&name(node), *capacity),
        Step::Unhealthy(node, unhealthy) => devices.set_unhealthy(&name(node), unhealthy.clone()),
        Step::Confirm(pod, node, device, memory) => {
            devices.confirm(&uid(pod), claim(&name(node), *device, *memory));
        }
        Step::Release(pod) => devices.release(&uid(pod)),
        Step::Assume(pod, node, memory) => {
            return Some(devices.assume(&uid(pod), claim(&name(node), 77, *memory)));
        }
        Step::Bound(pod) => devices.finish_binding(&uid(pod)),
        Step::Forget(pod) => devices.forget(&uid(pod)),
    }
    None
}

proptest! {
    /// Every result, claim and confirmed pod equals that of the reference model.
    #[test]
    fn devices_equal_the_reference_model(steps in vec(step(), 0..60)) {
        let (mut devices, mut model) = (Devices::default(), ReferenceModel::default());
        for step in &steps {
            let want = model.apply(step);
            prop_assert_eq!(apply(&mut devices, step), want, "{:?}", step);
            let mut settled: Vec<_> = model.pods.iter().filter(|it| !it.2).map(|it| it.0.clone()).collect();
            settled.sort();
            prop_assert_eq!(devices.confirmed_pods(), settled);
            for (name, node) in &devices.nodes {
                for device in 0..4 {
                    prop_assert_eq!(node.used(device), model.used(name, device));
                }
            }
            prop_assert_eq!(devices.claims.len(), model.pods.len());
        }
    }

    /// After any sequence of assume, forget and release with constant capacities, no device is over its memory, and unhealthy devices
    /// are unused.
    #[test]
    fn no_device_is_overcommitted(
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
