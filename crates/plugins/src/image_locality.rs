//! ImageLocality: prefers nodes that already have the pod's images. Large images count more, and images on many nodes too.
//!
//! | | |
//! | --- | --- |
//! | extension points | Score |
//! | woken by | no event: it does not filter |
//! | upstream | `plugins/imagelocality`, 1.36 |
//! | deviations | the number of nodes with an image is always current; upstream's dates from the last update of the node |
//! | cost | one hash lookup and one binary search per image and node, and in the per-node form one allocation per image without a tag; over columns O(nodes that have one of the images) |

use std::sync::Arc;

use loadmaster_api::{SharedPodSpec, Str};
use loadmaster_framework::extension_points::{SignFragment, UnsignablePod};
use loadmaster_framework::incremental::{
    ResultDependencies, RowDependency, RowMask, ScoreOutOfRange,
};
use loadmaster_framework::node_table::ImageState;
use loadmaster_framework::{
    Cx, EvaluatorCx, ExtensionPoints, Failure, Incremental, MAX_NODE_SCORE, NodeInfo, NodeRow,
    NodeTable, PluginDef, PluginError, PluginEvaluator, PodInfo, PrepareCx, PrepareResult, Score,
    Sign,
};
use serde_json::{Value, json};
use smallvec::SmallVec;

/// The plugin's name in configurations.
pub const NAME: &str = "ImageLocality";

/// The plugin's entry in the registry.
pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

const MIB: i64 = 1024 * 1024;
/// A node scores 0 up to this sum of sizes, and 100 from this many bytes per container on (upstream's thresholds).
const BYTES_MIN: i64 = 23 * MIB;
const BYTES_MAX_PER_CONTAINER: i64 = 1000 * MIB;

struct ImageLocality;

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(ImageLocality);
    points.score = Some(plugin.clone());
    points.incremental = Some(plugin.clone());
    points.sign = Some(plugin);
    points.register_no_events();
    Ok(())
}

impl Score for ImageLocality {
    fn score(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        let nodes = cx.world.nodes();
        let spec = &pod.template.spec;
        let held = image_references(spec).filter_map(|reference| image_state(nodes, reference));
        let here = held.filter(|state| state.rows.binary_search(&node.row()).is_ok());
        Ok(score(
            here.map(|state| scaled_image_score(state, nodes.len())).sum(),
            n_containers(spec),
        ))
    }
}

impl Incremental for ImageLocality {
    type Key = PodImages;

    fn key(&self, _cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<PodImages> {
        let spec = &pod.template.spec;
        let names = image_references(spec).map(|name| Str::new(&normalized_image_name(name)));
        Some(PodImages { names: names.collect(), n_containers: n_containers(spec) })
    }

    fn key_is_of_spec(&self, _: &SharedPodSpec) -> bool {
        true
    }

    fn key_reads_resources(&self) -> bool {
        false
    }

    fn prepare(&self, cx: &mut PrepareCx<'_>, images: &PodImages) -> PrepareResult {
        let on_any_node = is_on_any_node(&images.names, cx.world().nodes());
        PrepareResult::Evaluator(Box::new(ImageLocalityEvaluator {
            images: images.clone(),
            on_any_node,
        }))
    }
}

/// The images of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PodImages {
    /// With tags; one entry per use.
    names: SmallVec<[Str; 2]>,
    n_containers: i64,
}

struct ImageLocalityEvaluator {
    images: PodImages,
    /// Whether a node had one of them when this evaluator was built. While no node has one, every score is 0.
    on_any_node: bool,
}

impl ImageLocalityEvaluator {
    /// The nodes from the row `first` on that have each image.
    fn states<'a>(&self, nodes: &'a NodeTable, first: NodeRow) -> SmallVec<[ImageNodes<'a>; 4]> {
        let known = self.images.names.iter().filter_map(|name| nodes.image(name));
        known
            .map(|state| ImageNodes {
                rows: &state.rows[state.rows.partition_point(|row| *row < first)..],
                scaled_image_score: scaled_image_score(state, nodes.len()),
            })
            .collect()
    }
}

/// The nodes that have an image, and what the image adds to their score.
struct ImageNodes<'a> {
    rows: &'a [NodeRow],
    scaled_image_score: i64,
}

impl PluginEvaluator for ImageLocalityEvaluator {
    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies {
            score: self.on_any_node.then_some(RowDependency::Node),
            node_set: self.on_any_node,
            ..ResultDependencies::default()
        }
    }

    fn score_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> i64 {
        let nodes = cx.nodes();
        let held = self.images.names.iter().filter_map(|name| nodes.image(name));
        let here = held.filter(|state| state.rows.binary_search(&row).is_ok());
        let sum = here.map(|state| scaled_image_score(state, nodes.len())).sum();
        score(sum, self.images.n_containers)
    }

    fn score_rows(
        &self,
        cx: EvaluatorCx<'_>,
        first: NodeRow,
        _: &RowMask,
        weight: i64,
        out: &mut [i64],
    ) -> Result<(), ScoreOutOfRange> {
        // Merges the sorted lists of rows, so that only nodes with an image are visited.
        let mut states = self.states(cx.nodes(), first);
        while let Some(row) = states.iter().filter_map(|held| held.rows.first()).min().copied() {
            let mut sum = 0;
            for held in &mut states {
                if let Some((first, rest)) = held.rows.split_first()
                    && *first == row
                {
                    sum += held.scaled_image_score;
                    held.rows = rest;
                }
            }
            let Some(total) = out.get_mut(row.index() - first.index()) else { break };
            *total += weight * score(sum, self.images.n_containers);
        }
        Ok(())
    }

    fn is_stale(&self, cx: EvaluatorCx<'_>) -> bool {
        !self.on_any_node && is_on_any_node(&self.images.names, cx.nodes())
    }
}

impl Sign for ImageLocality {
    /// The images of volumes are not included, as upstream.
    fn sign(&self, pod: &PodInfo) -> Result<Vec<SignFragment>, UnsignablePod> {
        let spec = &pod.template.spec;
        let containers = spec.containers.iter().chain(&spec.init_containers);
        let mut names: Vec<String> =
            containers.map(|container| normalized_image_name(&container.image)).collect();
        names.sort_unstable();
        names.dedup();
        Ok(vec![SignFragment { key: "v1.Pod.Spec.CanonicalImageNames()", value: json!(names) }])
    }
}

/// Images of init containers, containers and volumes, as written in the pod spec.
fn image_references(spec: &SharedPodSpec) -> impl Iterator<Item = &Str> {
    let containers =
        spec.init_containers.iter().chain(&spec.containers).map(|container| &container.image);
    containers
        .chain(spec.volumes.iter().filter_map(|volume| Some(&volume.image.as_ref()?.reference)))
}

fn n_containers(spec: &SharedPodSpec) -> i64 {
    (spec.init_containers.len() + spec.containers.len()) as i64
}

fn is_on_any_node(names: &[Str], nodes: &NodeTable) -> bool {
    names.iter().any(|name| nodes.image(name).is_some())
}

fn image_state<'a>(nodes: &'a NodeTable, reference: &str) -> Option<&'a ImageState> {
    if has_tag(reference) {
        nodes.image(reference)
    } else {
        nodes.image(&normalized_image_name(reference))
    }
}

/// Whether there is a colon behind the last slash.
fn has_tag(reference: &str) -> bool {
    reference.rsplit('/').next().is_some_and(|name| name.contains(':'))
}

/// The name as nodes report it, with a tag (upstream's `normalizedImageName`).
fn normalized_image_name(reference: &str) -> String {
    if has_tag(reference) { reference.to_owned() } else { format!("{reference}:latest") }
}

/// The size of an image scaled by the share of nodes that have it, so that the few nodes with a rare image do not get
/// every pod (upstream's `scaledImageScore`).
fn scaled_image_score(image: &ImageState, n_nodes: usize) -> i64 {
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
    use loadmaster_framework::testkit::PluginTestBench;

    use super::*;

    /// Names and size in MiB of the images on a node.
    type NodeImages<'a> = &'a [(&'a [&'a str], i64)];

    fn node(name: &str, images: NodeImages<'_>) -> Value {
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
    fn check(nodes: &[NodeImages<'_>], pod: Value, want: &[i64]) {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        for (at, images) in nodes.iter().enumerate() {
            bench.node(node(&format!("n{at}"), images)).unwrap();
        }
        let scores: Vec<i64> =
            bench.score(pod).unwrap().into_iter().map(|(_, score)| score).collect();
        assert_eq!(scores, want);
    }

    #[test]
    fn score_depends_on_size_and_spread() {
        check(&[&[], &[]], pod(&["a"]), &[0, 0]);
        // Half of the nodes have it: half its size counts.
        check(&[&[(&["a:latest"], 1000)], &[]], pod(&["a"]), &[48, 0]);
        check(&[&[(&["a:latest"], 1000)], &[(&["a:latest"], 1000)]], pod(&["a"]), &[100, 100]);
        check(&[&[(&["a:latest"], 9000)]], pod(&["a"]), &[100]);
        check(&[&[(&["a:latest"], 23)]], pod(&["a"]), &[0]);
        check(&[&[(&["a:latest"], 40)]], pod(&["a"]), &[1]);
        // Every container raises the upper threshold, and every use of an image counts.
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
        let nodes: &[NodeImages<'_>] = &[&[(&["b:latest"], 1000), (&["d:latest"], 500)]];
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
        let small: NodeImages<'_> = &[(&["a:latest"], 100)];
        let big: NodeImages<'_> = &[(&["a:latest"], 900)];
        check(&[small, big], pod(&["a"]), &[7, 7]);
        check(&[big, small], pod(&["a"]), &[89, 89]);
        check(&[&[(&["a:latest"], 100), (&["a:latest"], 900)]], pod(&["a"]), &[7]);
    }

    #[test]
    fn an_evaluator_built_before_any_node_had_the_image_becomes_stale() {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        bench.node(node("n0", &[])).unwrap();
        let web = bench.parse_pod(pod(&["a"])).unwrap();
        let PrepareResult::Evaluator(evaluator) = bench.prepare_incremental(&web) else {
            unreachable!()
        };
        let is_stale = |bench: &PluginTestBench| evaluator.is_stale(bench.evaluator_cx());
        assert_eq!(evaluator.dependencies(), ResultDependencies::default());
        assert!(!is_stale(&bench));
        bench.node(node("n1", &[(&["b:latest"], 100)])).unwrap();
        assert!(!is_stale(&bench));
        bench.node(node("n0", &[(&["a:latest"], 100)])).unwrap();
        assert!(is_stale(&bench));
    }

    #[test]
    fn signature() {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        let spec = json!({"containers": [{"name": "c", "image": "b:5000/x"}, {"name": "d", "image": "a:1"}],
            "initContainers": [{"name": "i", "image": "a:1"}]});
        let signed = bench.sign(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
        assert_eq!(
            signed,
            json!({"v1.Pod.Spec.CanonicalImageNames()": ["a:1", "b:5000/x:latest"]})
        );
    }
}
