//! Random histories of nested trials and dry runs, after which the world is as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

use loadmaster_framework::topology_counter::TopologyCounterId;
use loadmaster_framework::world::{Checkpoint, DryRun, Trial, WorldChange};
use loadmaster_framework::{NodeInfo, NodeRow};

use super::*;

/// What both kinds of trials have in common.
trait Steps: Deref<Target = World> {
    fn assume(&mut self, row: NodeRow, pod: Arc<PodInfo>);
    fn evict(&mut self, uid: &str) -> Option<Arc<PodInfo>>;
    fn nominate(&mut self, node: Str, pod: Arc<PodInfo>);
    fn clear_nomination(&mut self, uid: &str);
    fn checkpoint(&self) -> Checkpoint;
    fn undo_to(&mut self, checkpoint: Checkpoint);
    /// The world, if topology counters are kept up to date.
    fn world_mut(&mut self) -> Option<&mut World>;
}

macro_rules! steps {
    ($kind:ident, $world_mut:expr) => {
        impl Steps for $kind<'_> {
            fn assume(&mut self, row: NodeRow, pod: Arc<PodInfo>) {
                self.assume(row, pod);
            }
            fn evict(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
                self.evict(uid)
            }
            fn nominate(&mut self, node: Str, pod: Arc<PodInfo>) {
                self.nominate(node, pod);
            }
            fn clear_nomination(&mut self, uid: &str) {
                self.clear_nomination(uid);
            }
            fn checkpoint(&self) -> Checkpoint {
                self.checkpoint()
            }
            fn undo_to(&mut self, checkpoint: Checkpoint) {
                self.undo_to(checkpoint);
            }
            fn world_mut(&mut self) -> Option<&mut World> {
                let world_mut: for<'a> fn(&'a mut $kind<'_>) -> Option<&'a mut World> = $world_mut;
                world_mut(self)
            }
        }
    };
}

steps!(Trial, |trial| Some(trial.world_mut()));
steps!(DryRun, |_| None);

/// All state of a world except the change log, exactly, with the order of every list.
fn exact(world: &World, pods: &[Arc<PodInfo>], counters: &[TopologyCounterId]) -> String {
    let counters: Vec<_> =
        counters.iter().map(|id| world.topology_counter(*id).domains()).collect();
    let rows: Vec<_> = pods.iter().map(|pod| world.row_of_pod(&pod.uid)).collect();
    let n_assigned = world.n_assigned_pods();
    let version = world.nominations_version();
    let nominations = nominations(world);
    let sums = sums_by_app(world);
    format!(
        "{:#?} {counters:#?} {sums:?} {rows:?} {n_assigned} {version} {nominations:?}",
        world.nodes()
    )
}

fn nominations(world: &World) -> Vec<(String, Vec<String>)> {
    let names = |node: &Str| {
        world.nominated_pods_for_node(node).iter().map(|pod| pod.uid.to_string()).collect()
    };
    world.nominated_nodes().map(|node| (node.to_string(), names(node))).collect()
}

/// What a reader of the change log remembers: by row, its pods, up to a sequence number.
struct Reader {
    seq: u64,
    rows: Vec<String>,
}

impl Reader {
    fn new(world: &World) -> Reader {
        Reader { seq: world.next_change_seq(), rows: rows(world) }
    }

    /// Every row that is not as it was is in the change log.
    fn check(&self, world: &World) {
        let changes = world.changes_since(self.seq).expect("the log is long enough");
        for (at, (then, now)) in self.rows.iter().zip(rows(world)).enumerate() {
            let row = NodeRow(at as u32);
            let is_logged = changes
                .iter()
                .any(|change| matches!(change, WorldChange::Pods(changed, _) if *changed == row));
            assert!(*then == now || is_logged, "row {at}: {changes:?}");
        }
        assert!(changes.iter().all(|change| matches!(change, WorldChange::Pods(..))));
    }
}

fn rows(world: &World) -> Vec<String> {
    let all = (0..world.nodes().n_rows()).map(|at| NodeRow(at as u32));
    all.map(|row| {
        format!("{:?}", world.nodes().pods(row).iter().map(|it| &it.uid).collect::<Vec<_>>())
    })
    .collect()
}

fn node_sums(world: &World) -> BTreeSet<(String, [i64; 3], usize)> {
    let infos = world.node_infos().map(|node| {
        let sums = [node.requested("cpu"), node.requested("example.com/gpu"), node.n_pods()];
        (node.name().to_owned(), sums, node.host_ports().count())
    });
    infos.collect()
}

struct History {
    rng: Rng,
    pods: Vec<Arc<PodInfo>>,
    counters: Vec<TopologyCounterId>,
    readers: Vec<Reader>,
    /// No version stands for two different lists of nominations.
    versions: BTreeMap<u64, Vec<(String, Vec<String>)>>,
}

impl History {
    fn new(seed: u64, world: &mut World) -> History {
        let mut rng = Rng::new(seed);
        world.sum_pods(&SUMS_BY_APP.1);
        for nth in 0..5 {
            world.upsert_node(Arc::new(node(&mut rng, &format!("n{nth}"))));
        }
        // A free row, and one that was used again.
        world.remove_node("n2");
        world.remove_node("n1");
        world.upsert_node(Arc::new(node(&mut rng, "again")));
        let pods = (0..16).map(|nth| Arc::new(random_pod(&mut rng, world, nth)));
        let pods: Vec<_> = pods.collect();
        let counters = ["p", "q"].map(|app| world.acquire_topology_counter(pods_of_app(app)));
        let mut history = History {
            rng,
            pods,
            counters: counters.to_vec(),
            readers: Vec::new(),
            versions: BTreeMap::new(),
        };
        for _ in 0..12 {
            let (row, pod) = (history.row(world), history.pod());
            world.add_pod(row, pod);
        }
        history
    }

    fn exact(&mut self, world: &World) -> String {
        let known = self.versions.entry(world.nominations_version());
        assert_eq!(*known.or_insert_with(|| nominations(world)), nominations(world));
        exact(world, &self.pods, &self.counters)
    }

    fn pod(&mut self) -> Arc<PodInfo> {
        self.rng.pick(&self.pods).clone()
    }

    fn row(&mut self, world: &World) -> NodeRow {
        let rows: Vec<NodeRow> = world.nodes().rows().collect();
        *self.rng.pick(&rows)
    }

    fn step(&mut self, trial: &mut impl Steps) {
        let pod = self.pod();
        match self.rng.below(8) {
            0..=2 => trial.assume(self.row(trial), pod),
            3..=4 => {
                let was = trial.assigned_pod(&pod.uid).cloned();
                let evicted = trial.evict(&pod.uid);
                assert_eq!(was.map(|it| it.uid.clone()), evicted.map(|it| it.uid.clone()));
            }
            5..=6 => {
                let node = *self.rng.pick(&["n0", "n3", "elsewhere"]);
                trial.nominate(Str::new(node), pod);
            }
            _ => trial.clear_nomination(&pod.uid),
        }
        let rows = self.pods.iter().map(|pod| {
            let has_it = |node: &NodeInfo<'_>| node.pods().any(|known| known.uid == pod.uid);
            (trial.row_of_pod(&pod.uid), trial.node_infos().find(has_it).map(|node| node.row()))
        });
        assert!(rows.clone().all(|(known, found)| known == found));
        assert_eq!(trial.n_assigned_pods(), rows.filter(|(_, found)| found.is_some()).count());
        if let Some(world) = trial.world_mut() {
            if self.rng.one_in(4) {
                assert_eq!(describe_world(world), describe_world(&mut rebuilt(world)));
            }
            if self.rng.one_in(3) {
                self.readers.push(Reader::new(world));
            }
        } else {
            // A dry run updates all but the counters.
            let rebuilt = rebuilt(trial);
            assert_eq!(node_sums(trial), node_sums(&rebuilt));
            assert_eq!(sums_by_app(trial), sums_by_app(&rebuilt));
        }
    }

    /// Some steps, checkpoints and nested trials.
    fn steps(&mut self, trial: &mut impl Steps, depth: u32) {
        let mut checkpoints: Vec<(Checkpoint, String)> = Vec::new();
        for _ in 0..self.rng.below(14) {
            match self.rng.below(6) {
                0 => checkpoints.push((trial.checkpoint(), self.exact(trial))),
                1 if !checkpoints.is_empty() => {
                    let at = self.rng.below(checkpoints.len() as u64) as usize;
                    trial.undo_to(checkpoints[at].0);
                    assert_eq!(self.exact(trial), checkpoints[at].1);
                    checkpoints.truncate(at + 1);
                }
                2 if depth > 0 => {
                    if let Some(world) = trial.world_mut() {
                        self.nested(world, depth - 1);
                    }
                }
                _ => self.step(trial),
            }
        }
    }

    /// A trial or a dry run, which is kept or undone.
    fn nested(&mut self, world: &mut World, depth: u32) {
        let before = self.exact(world);
        if self.rng.one_in(2) {
            let seq = world.next_change_seq();
            let mut outer = DryRun::new(world);
            self.steps(&mut outer, 0);
            outer.undo();
            assert_eq!(world.changes_since(seq), Some(&[][..]));
            assert_eq!(self.exact(world), before);
            return;
        }
        let mut trial = Trial::new(world);
        self.steps(&mut trial, depth);
        let after = self.exact(&trial);
        if self.rng.one_in(3) {
            trial.keep();
            assert_eq!(self.exact(world), after);
        } else {
            trial.undo();
            assert_eq!(self.exact(world), before);
        }
        self.readers.iter().for_each(|reader| reader.check(world));
    }
}

fn random_pod(rng: &mut Rng, world: &mut World, nth: u64) -> PodInfo {
    let mut object = pod(rng, &format!("p{nth}"));
    object.spec.change(|spec| {
        let container = &mut spec.containers[0];
        // Host ports that several pods use, and one that a pod uses twice.
        let port = container.ports[0].clone();
        container.ports.push(port);
        if rng.one_in(3) {
            let name = format!("example.com/only-{}", rng.below(4));
            let more = json!({"cpu": "1", name: "2"});
            container.resources.requests = serde_json::from_value(more).expect("requests");
        }
    });
    world.parse_pod(&object).expect("a pod")
}

#[test]
fn an_undone_trial_leaves_no_trace() {
    for seed in 0..40 {
        let mut world = World::default();
        let mut history = History::new(seed, &mut world);
        for _ in 0..6 {
            history.readers.clear();
            history.nested(&mut world, 2);
            assert_eq!(describe_world(&mut world), describe_world(&mut rebuilt(&world)));
            // The world changes for real in between.
            let (row, pod) = (history.row(&world), history.pod());
            if history.rng.one_in(2) {
                world.add_pod(row, pod);
            } else {
                world.add_nominated_pod(Str::new("n0"), pod);
            }
        }
    }
}

#[test]
fn a_dry_run_is_undone_to_a_checkpoint() {
    let mut world = World::default();
    let mut history = History::new(1, &mut world);
    let (row, before) = (history.row(&world), history.exact(&world));
    let mut outer = DryRun::new(&mut world);
    let victim = outer.nodes().pods(row).first().cloned().expect("a pod");
    outer.evict(&victim.uid);
    let between = history.exact(&outer);
    let checkpoint = outer.checkpoint();
    outer.assume(row, victim.clone());
    outer.nominate(Str::new("n0"), victim);
    outer.undo_to(checkpoint);
    assert_eq!(history.exact(&outer), between);
    drop(outer);
    assert_eq!(history.exact(&world), before);
}

#[test]
fn a_panic_undoes_a_trial() {
    let mut world = World::default();
    let mut history = History::new(2, &mut world);
    let (row, pod) = (history.row(&world), history.pod());
    let panic_in = |world: &mut World, is_dry_run: bool| {
        let mut trial = Trial::new(world);
        if !is_dry_run {
            trial.assume(row, pod.clone());
        }
        let mut dry_run = DryRun::new(trial.world_mut());
        dry_run.assume(row, pod.clone());
        dry_run.evict(&pod.uid);
        panic!("on purpose");
    };
    for is_dry_run in [true, false] {
        let before = history.exact(&world);
        let panicked = catch_unwind(AssertUnwindSafe(|| panic_in(&mut world, is_dry_run)));
        assert!(panicked.is_err());
        assert_eq!(history.exact(&world), before);
        // Nothing is open: what follows is not undone, and nodes may change.
        world.add_pod(row, pod.clone());
        assert_eq!(world.row_of_pod(&pod.uid), Some(row));
        world.remove_pod(&pod.uid);
        world.upsert_node(Arc::new(node(&mut history.rng, "later")));
        world.remove_node("later");
    }
}

#[test]
fn only_pods_and_nominations_change_in_a_trial() {
    let mut world = World::default();
    let mut history = History::new(3, &mut world);
    let pod = history.pod();
    let row = history.row(&world);
    world.add_pod(row, pod.clone());
    let node = Arc::new(node(&mut history.rng, "n0"));
    type Change<'a> = &'a dyn Fn(&mut World);
    let changes: [Change<'_>; 3] = [
        &|world| _ = world.upsert_node(node.clone()),
        &|world| drop(world.remove_node("n0")),
        &|world| _ = world.refresh_pod(&pod),
    ];
    let before = history.exact(&world);
    for change in changes {
        let mut trial = Trial::new(&mut world);
        let changed = catch_unwind(AssertUnwindSafe(|| change(trial.world_mut())));
        assert!(changed.is_err());
        drop(trial);
        assert_eq!(history.exact(&world), before);
    }
}
