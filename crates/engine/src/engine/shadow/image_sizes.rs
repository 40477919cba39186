//! Sizes of images as the other scheduler may know them: kube-scheduler counts an image with the size that the first node reported, on all
//! nodes, and which node was the first depends on when it started.

use loadmaster_api::Str;
use loadmaster_framework::{PodInfo, World};
use loadmaster_stdx::Map;

/// How many sizes of an image are tried.
const N_SIZES_MAX: usize = 16;

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

/// Which sizes have explained decisions, and how many of them.
#[derive(Default)]
pub(super) struct ImageSizes {
    votes: Map<Str, Map<i64, u64>>,
}

impl ImageSizes {
    /// This size explains a decision.
    pub fn vote(&mut self, image: &Str, size: i64) {
        *self.votes.entry(image.clone()).or_default().entry(size).or_default() += 1;
    }

    /// The size that explained most decisions.
    fn likely(&self, image: &str) -> Option<i64> {
        let votes = self.votes.get(image)?.iter();
        votes.max_by_key(|(size, n)| (**n, **size)).map(|(size, _)| *size)
    }

    /// The likely sizes explained another decision.
    pub fn confirm_likely(&mut self, images: &[PodImage]) {
        for image in images {
            if let Some(size) = self.likely(&image.name) {
                self.vote(&image.name, size);
            }
        }
    }

    /// Sets the likely sizes; returns those before, where they differ.
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
