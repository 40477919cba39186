//! ImageLocality: prefers nodes that hold the pod's images already, big ones more, the more so the more nodes hold them.
//!
//! | | |
//! | --- | --- |
//! | extension points | Score |
//! | woken by | nothing: it does not filter |
//! | upstream | `plugins/imagelocality`, 1.36 |
//! | deviations | the number of nodes with an image is current; upstream's is as old as its copy of the node |
//! | cost | a hash lookup and a binary search an image and node, and asked node by node an allocation an image without tag; over columns O(nodes that hold one of the images) |

use std::sync::Arc;

use loadmaster_api::{PodSpec, Str};
use loadmaster_framework::points::{Fragment, Unsignable};
use loadmaster_framework::prepare::{OutOfRange, Reads, RowPart, RowSet};
use loadmaster_framework::table::ImageState;
use loadmaster_framework::{
    Cx, Failure, MAX_NODE_SCORE, NodeInfo, NodeTable, PluginDef, PluginError, PodInfo, Points,
    Prepare, Prepared, Row, Run, Score, Sign, World,
};
use serde_json::{Value, json};
use smallvec::SmallVec;

/// The plugin's name in configurations.
pub const NAME: &str = "ImageLocality";

/// How the plugin enters a registry.
pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

const MIB: i64 = 1024 * 1024;
/// Below this sum of sizes a node scores 0, and from this many bytes a container on 100 (upstream's thresholds).
const BYTES_MIN: i64 = 23 * MIB;
const BYTES_MAX_PER_CONTAINER: i64 = 1000 * MIB;

struct ImageLocality;

fn build(points: &mut Points, _: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(ImageLocality);
    points.score = Some(plugin.clone());
    points.prepare = Some(plugin.clone());
    points.sign = Some(plugin);
    points.wake_on_nothing();
    Ok(())
}

impl Score for ImageLocality {
    fn score(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        let nodes = cx.world.nodes();
        let spec = &pod.template.spec;
        let held = references(spec).filter_map(|reference| state_of(nodes, reference));
        let here = held.filter(|state| state.rows.binary_search(&node.row()).is_ok());
        Ok(score(here.map(|state| worth(state, nodes.len())).sum(), n_containers(spec)))
    }
}

impl Prepare for ImageLocality {
    fn prepare(&self, world: &mut World, pod: &PodInfo) -> Prepared {
        let spec = &pod.template.spec;
        let names: SmallVec<[Str; 2]> =
            references(spec).map(|name| Str::new(&canonical(name))).collect();
        let any = is_anywhere(&names, world.nodes());
        Prepared::Run(Box::new(ImageRun { names, any, n_containers: n_containers(spec) }))
    }
}

/// The images of a pod, once for each use.
struct ImageRun {
    names: SmallVec<[Str; 2]>,
    /// Whether a node held one of them when the run was made. While none does, every score is 0.
    any: bool,
    n_containers: i64,
}

impl ImageRun {
    fn states<'a>(&self, nodes: &'a NodeTable) -> SmallVec<[Holders<'a>; 4]> {
        let known = self.names.iter().filter_map(|name| nodes.image(name));
        known.map(|state| Holders { rows: &state.rows, worth: worth(state, nodes.len()) }).collect()
    }
}

/// The nodes that hold an image, and what it counts there.
struct Holders<'a> {
    rows: &'a [Row],
    worth: i64,
}

impl Run for ImageRun {
    fn reads(&self) -> Reads {
        Reads { score: self.any.then_some(RowPart::Node), node_set: self.any, ..Reads::default() }
    }

    fn score_row(&self, nodes: &NodeTable, row: Row) -> i64 {
        let held = self.names.iter().filter_map(|name| nodes.image(name));
        let here = held.filter(|state| state.rows.binary_search(&row).is_ok());
        score(here.map(|state| worth(state, nodes.len())).sum(), self.n_containers)
    }

    fn score_all(
        &self,
        nodes: &NodeTable,
        _: &RowSet,
        weight: i64,
        out: &mut [i64],
    ) -> Result<(), OutOfRange> {
        // Goes through the lists of rows side by side, so that only nodes with an image are visited.
        let mut states = self.states(nodes);
        while let Some(row) = states.iter().filter_map(|held| held.rows.first()).min().copied() {
            let mut sum = 0;
            for held in &mut states {
                if let Some((first, rest)) = held.rows.split_first()
                    && *first == row
                {
                    sum += held.worth;
                    held.rows = rest;
                }
            }
            out[row.index()] += weight * score(sum, self.n_containers);
        }
        Ok(())
    }

    fn is_stale(&self, world: &World) -> bool {
        !self.any && is_anywhere(&self.names, world.nodes())
    }
}

impl Sign for ImageLocality {
    /// Images of volumes are not among the names; as upstream.
    fn sign(&self, pod: &PodInfo) -> Result<Vec<Fragment>, Unsignable> {
        let spec = &pod.template.spec;
        let containers = spec.containers.iter().chain(&spec.init_containers);
        let mut names: Vec<String> =
            containers.map(|container| canonical(&container.image)).collect();
        names.sort_unstable();
        names.dedup();
        Ok(vec![Fragment { key: "v1.Pod.Spec.CanonicalImageNames()", value: json!(names) }])
    }
}

/// Images of init containers, containers and volumes, as the pod spells them.
fn references(spec: &PodSpec) -> impl Iterator<Item = &Str> {
    let containers =
        spec.init_containers.iter().chain(&spec.containers).map(|container| &container.image);
    containers
        .chain(spec.volumes.iter().filter_map(|volume| Some(&volume.image.as_ref()?.reference)))
}

fn n_containers(spec: &PodSpec) -> i64 {
    (spec.init_containers.len() + spec.containers.len()) as i64
}

fn is_anywhere(names: &[Str], nodes: &NodeTable) -> bool {
    names.iter().any(|name| nodes.image(name).is_some())
}

fn state_of<'a>(nodes: &'a NodeTable, reference: &str) -> Option<&'a ImageState> {
    if has_tag(reference) { nodes.image(reference) } else { nodes.image(&canonical(reference)) }
}

/// Whether there is a colon behind the last slash.
fn has_tag(reference: &str) -> bool {
    reference.rsplit('/').next().is_some_and(|name| name.contains(':'))
}

/// The name as nodes report it: with a tag.
fn canonical(reference: &str) -> String {
    if has_tag(reference) { reference.to_owned() } else { format!("{reference}:latest") }
}

/// The size of an image, scaled down so that the few nodes that hold a rare image do not get every pod.
fn worth(image: &ImageState, n_nodes: usize) -> i64 {
    let spread = image.rows.len() as f64 / n_nodes as f64;
    (image.size_bytes as f64 * spread) as i64
}

fn score(bytes: i64, n_containers: i64) -> i64 {
    let bytes_max = BYTES_MAX_PER_CONTAINER * n_containers;
    // Not `clamp`: without containers the upper bound is below the lower one.
    let bytes = if bytes < BYTES_MIN { BYTES_MIN } else { bytes.min(bytes_max) };
    MAX_NODE_SCORE * (bytes - BYTES_MIN) / (bytes_max - BYTES_MIN)
}

#[cfg(test)]
mod tests {
    use loadmaster_framework::testkit::Bench;

    use super::*;

    /// Names and size in MiB of the images on a node.
    type Held<'a> = &'a [(&'a [&'a str], i64)];

    fn node(name: &str, images: Held<'_>) -> Value {
        let images: Vec<Value> = images
            .iter()
            .map(|(names, mib)| json!({"names": names, "sizeBytes": mib * MIB}))
            .collect();
        json!({"metadata": {"name": name}, "status": {"images": images}})
    }

    fn pod(images: &[&str]) -> Value {
        let containers: Vec<Value> =
            images.iter().map(|image| json!({"name": "c", "image": image})).collect();
        json!({"metadata": {"name": "web"}, "spec": {"containers": containers}})
    }

    #[track_caller]
    fn check(nodes: &[Held<'_>], pod: Value, want: &[i64]) {
        let mut bench = Bench::new(&DEF, json!({})).unwrap();
        for (at, images) in nodes.iter().enumerate() {
            bench.node(node(&format!("n{at}"), images)).unwrap();
        }
        let scores: Vec<i64> =
            bench.score(pod).unwrap().into_iter().map(|(_, score)| score).collect();
        assert_eq!(scores, want);
    }

    #[test]
    fn sizes_and_spread() {
        check(&[&[], &[]], pod(&["a"]), &[0, 0]);
        // Half of the nodes hold it: half its size counts.
        check(&[&[(&["a:latest"], 1000)], &[]], pod(&["a"]), &[48, 0]);
        check(&[&[(&["a:latest"], 1000)], &[(&["a:latest"], 1000)]], pod(&["a"]), &[100, 100]);
        check(&[&[(&["a:latest"], 9000)]], pod(&["a"]), &[100]);
        check(&[&[(&["a:latest"], 23)]], pod(&["a"]), &[0]);
        check(&[&[(&["a:latest"], 40)]], pod(&["a"]), &[1]);
        // Every container raises the bar, every use counts.
        check(&[&[(&["a:latest"], 1000)]], pod(&["a", "b"]), &[49]);
        check(&[&[(&["a:latest"], 1000)]], pod(&["a", "a"]), &[100]);
        check(
            &[&[(&["a:1"], 500), (&["b:2"], 500)], &[(&["b:2"], 500)]],
            pod(&["a:1", "b:2"]),
            &[36, 24],
        );
    }

    #[test]
    fn names() {
        let held = |name| {
            check(
                &[&[(&["x", "r:5000/a:latest", "b:1", "c@sha256:1"], 1000)]],
                pod(&[name]),
                &[100],
            )
        };
        held("r:5000/a");
        held("r:5000/a:latest");
        held("b:1");
        held("c@sha256:1");
        check(&[&[(&["x", "r:5000/a:latest"], 1000)]], pod(&["x"]), &[0]);
        check(&[&[(&["b:1"], 1000)]], pod(&["b"]), &[0]);
    }

    #[test]
    fn init_containers_and_volumes() {
        let volume = |image: &str| json!({"name": "v", "image": {"reference": image}});
        let spec = json!({"containers": [{"name": "c", "image": "a"}],
            "initContainers": [{"name": "i", "image": "b"}], "volumes": [volume("d"), {"name": "w"}]});
        let nodes: &[Held<'_>] = &[&[(&["b:latest"], 1000), (&["d:latest"], 500)]];
        check(nodes, json!({"metadata": {"name": "web"}, "spec": spec}), &[74]);
        // Without containers upstream's bounds cross.
        check(
            nodes,
            json!({"metadata": {"name": "web"}, "spec": {"volumes": [volume("d")]}}),
            &[100],
        );
        check(nodes, json!({"metadata": {"name": "web"}}), &[0]);
    }

    #[test]
    fn the_first_node_to_report_an_image_sets_its_size() {
        let small: Held<'_> = &[(&["a:latest"], 100)];
        let big: Held<'_> = &[(&["a:latest"], 900)];
        check(&[small, big], pod(&["a"]), &[7, 7]);
        check(&[big, small], pod(&["a"]), &[89, 89]);
        check(&[&[(&["a:latest"], 100), (&["a:latest"], 900)]], pod(&["a"]), &[7]);
    }

    #[test]
    fn a_run_made_before_any_node_held_the_image_is_stale_after() {
        let mut bench = Bench::new(&DEF, json!({})).unwrap();
        bench.node(node("n0", &[])).unwrap();
        let web = bench.pod(pod(&["a"])).unwrap();
        let prepare = bench.points().prepare.clone().unwrap();
        let Prepared::Run(run) = prepare.prepare(&mut bench.world, &web) else { unreachable!() };
        assert_eq!(run.reads(), Reads::default());
        assert!(!run.is_stale(&bench.world));
        bench.node(node("n1", &[(&["b:latest"], 100)])).unwrap();
        assert!(!run.is_stale(&bench.world));
        bench.node(node("n0", &[(&["a:latest"], 100)])).unwrap();
        assert!(run.is_stale(&bench.world));
    }

    #[test]
    fn signature() {
        let mut bench = Bench::new(&DEF, json!({})).unwrap();
        let spec = json!({"containers": [{"name": "c", "image": "b:5000/x"}, {"name": "d", "image": "a:1"}],
            "initContainers": [{"name": "i", "image": "a:1"}]});
        let signed = bench.sign(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
        assert_eq!(
            signed,
            json!({"v1.Pod.Spec.CanonicalImageNames()": ["a:1", "b:5000/x:latest"]})
        );
    }
}
