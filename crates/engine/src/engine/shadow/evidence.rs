//! What one decision says of the sizes of images and of weights.

use loadmaster_framework::{NodeRow, PodInfo, World};

use super::image_sizes::{ImageSizes, PodImage, restore_sizes};
use super::weights;
use crate::engine::shadow_comparison::WeightEvidence;
use crate::scheduler::{Scheduler, ScoreTable};

/// A decision in the state of the world in which it is evaluated.
pub(super) struct Decision<'a> {
    pub scheduler: &'a mut Scheduler,
    pub pod: &'a PodInfo,
    /// The chosen node.
    pub row: NodeRow,
    /// How many feasible nodes were looked for.
    pub n_wanted: usize,
    /// How many decisions this one stands for.
    pub stands_for: u32,
}

impl Decision<'_> {
    /// Adds to `sizes` how likely each size makes the decision, and returns how likely other weights make it with the likely sizes. `table`
    /// has the scores with our sizes.
    ///
    /// # Errors
    ///
    /// The failure of a plugin.
    pub fn evidence(
        self,
        world: &mut World,
        table: ScoreTable,
        sizes: &mut ImageSizes,
        images: &[PodImage],
    ) -> Result<Vec<WeightEvidence>, String> {
        let Decision { scheduler, pod, row, n_wanted, stands_for } = self;
        let Some(at) = table.index_of(row) else { return Ok(Vec::new()) };
        let with_ours = weights::bits(&table, at, n_wanted);
        for image in images {
            for size in image.candidates() {
                let Some(ours) = world.replace_image_size(&image.name, size) else { continue };
                let sized = (ours != size).then(|| scheduler.score_table(world, pod, None));
                world.replace_image_size(&image.name, ours);
                let Some(sized) = sized.transpose()? else { continue };
                let Some(at) = sized.index_of(row) else { continue };
                let gain = with_ours - weights::bits(&sized, at, n_wanted);
                sizes.add(
                    &image.name,
                    size,
                    (gain * 1000.0).round() as i64 * i64::from(stands_for),
                );
            }
        }
        let own_sizes = sizes.apply_likely(world, images);
        let sized = match own_sizes.is_empty() {
            true => Ok(table),
            false => scheduler.score_table(world, pod, None),
        };
        restore_sizes(world, &own_sizes);
        let sized = sized?;
        let at = sized.index_of(row);
        Ok(at.map_or_else(Vec::new, |at| weights::evidence(&sized, at, n_wanted)))
    }
}
