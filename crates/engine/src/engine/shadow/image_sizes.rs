//! Sizes of images as the other scheduler may know them: kube-scheduler counts an image with the size that the first node reported, on all
//! nodes, and which node was the first depends on when it started.

use std::collections::BTreeMap;

use loadmaster_api::Str;
use loadmaster_framework::{PodInfo, World};
use loadmaster_stdx::Map;

/// How many sizes of an image are tried.
const N_SIZES_MAX: usize = 8;

/// An image of a pod that nodes report with different sizes.
pub(super) struct PodImage {
    pub name: Str,
    sizes: Vec<i64>,
}

impl PodImage {
    /// Sizes to try, at most [`N_SIZES_MAX`] of them: the smallest, the largest, and some between.
    pub fn candidates(&self) -> impl Iterator<Item = i64> {
        let n = self.sizes.len();
        let n_tried = n.min(N_SIZES_MAX);
        (0..n_tried).map(move |nth| self.sizes[nth * (n - 1) / (n_tried - 1).max(1)])
    }
}

/// The images of a pod that nodes report with different sizes.
pub(super) fn pod_images(world: &World, pod: &PodInfo) -> Vec<PodImage> {
    let spec = &pod.template.spec;
    let containers = spec.init_containers.iter().chain(&spec.containers).map(|it| &it.image);
    let volumes = spec.volumes.iter().filter_map(|volume| Some(&volume.image.as_ref()?.reference));
    let mut images: Vec<PodImage> = Vec::new();
    for reference in containers.chain(volumes) {
        // As written, or with the tag that nodes report.
        for name in [reference.clone(), Str::new(&format!("{reference}:latest"))] {
            let Some(state) = world.nodes().image(&name) else { continue };
            if state.sizes.len() > 1 && images.iter().all(|known| known.name != name) {
                images.push(PodImage { name, sizes: state.sizes.keys().copied().collect() });
            }
        }
    }
    images
}

/// Sets sizes back that [`ImageSizes::apply_likely`] returned.
pub(super) fn restore_sizes(world: &mut World, sizes: &[(Str, i64)]) {
    for (name, size) in sizes {
        world.replace_image_size(name, *size);
    }
}

/// A size is likely if it makes all decisions more likely by this than our own size, in thousandths of bits.
const MILLIBITS_MIN: i64 = 5_000;

/// How much more likely than our own each size makes all decisions, in thousandths of bits.
#[derive(Default)]
pub(super) struct ImageSizes {
    gains: Map<Str, BTreeMap<i64, i64>>,
}

impl ImageSizes {
    /// Adds how much more likely a size makes a decision.
    pub fn add(&mut self, image: &Str, size: i64, millibits: i64) {
        *self.gains.entry(image.clone()).or_default().entry(size).or_default() += millibits;
    }

    /// The size that makes all decisions most likely, unless it is our own.
    fn likely(&self, image: &str) -> Option<i64> {
        let gains = self.gains.get(image)?.iter();
        let most = gains.max_by_key(|(_, millibits)| **millibits);
        most.filter(|(_, millibits)| **millibits >= MILLIBITS_MIN).map(|(size, _)| *size)
    }

    /// Sets the likely sizes; returns our own, where they differ.
    pub fn apply_likely(&self, world: &mut World, images: &[PodImage]) -> Vec<(Str, i64)> {
        let mut before = Vec::new();
        for PodImage { name, sizes } in images {
            let Some(size) = self.likely(name).filter(|size| sizes.contains(size)) else {
                continue;
            };
            match world.replace_image_size(name, size) {
                Some(own) if own != size => before.push((name.clone(), own)),
                _ => {}
            }
        }
        before
    }
}
