//! One question for all pods of a template: the plugins' runs put together.
//!
//! A row's total is a row-local score plus an offset that its class has in this decision. Everything that is normalised over
//! feasible nodes or hangs on sums over the cluster is in the class, so a placement touches one row and a small table.

use std::sync::Arc;

use loadmaster_framework::prepare::{
    Classes, OutOfRange, Prepared, Reads, RowPart, Run, Words, in_range,
};
use loadmaster_framework::table::NodeTable;
use loadmaster_framework::{Failure, PodInfo, PodTemplate, Rejection, Row, World};
use loadmaster_stdx::Map;

use super::Rejected;
use crate::guard::{self, Site};
use crate::profile::Profile;

/// A plugin's run, and what the profile uses of it.
pub(crate) struct Part {
    /// Index in the profile.
    plugin: usize,
    run: Box<dyn Run>,
    reads: Reads,
    filters: bool,
    /// 0 when the plugin does not score in this profile.
    weight: i64,
    /// Where its words begin in a class.
    offset: usize,
    n_words: usize,
}

impl Part {
    /// The run, whose turn it is now.
    #[inline]
    fn ask(&self, site: Site) -> &dyn Run {
        guard::turn(self.plugin, site);
        &*self.run
    }
}

/// The answers of a profile's plugins for one template.
pub(crate) struct Question {
    pub template: Arc<PodTemplate>,
    parts: Vec<Part>,
    /// Words a class.
    stride: usize,
    /// Plugins (by index in the profile) that must be asked node by node.
    pub one_by_one: Vec<usize>,
    /// Set when a plugin turns these pods down everywhere.
    pub rejected: Option<Rejected>,
    /// What every feasible node has: upstream gives 1 where no plugin scores.
    base: i64,
}

/// Which classes there are in one decision, and what each adds.
#[derive(Default)]
pub(crate) struct ClassTable {
    words: Vec<i64>,
    /// Rows of each class that passed every row-local filter.
    pub rows: Vec<u32>,
    ids: Map<Words, u32>,
    free: Vec<u32>,
    /// Result of the last [`Question::decide_classes`].
    pub feasible: Vec<bool>,
    pub offsets: Vec<i64>,
    scratch: Vec<i64>,
}

impl ClassTable {
    pub fn clear(&mut self) {
        self.words.clear();
        self.rows.clear();
        self.ids.clear();
        self.free.clear();
    }

    /// The class with these words, now with one more row.
    pub fn enter(&mut self, words: &Words) -> u32 {
        if let Some(id) = self.ids.get(words) {
            self.rows[*id as usize] += 1;
            return *id;
        }
        let stride = words.len();
        let id = match self.free.pop() {
            Some(id) => {
                let start = id as usize * stride;
                self.words[start..start + stride].copy_from_slice(words);
                self.rows[id as usize] = 1;
                id
            }
            None => {
                self.words.extend_from_slice(words);
                self.rows.push(1);
                self.rows.len() as u32 - 1
            }
        };
        self.ids.insert(words.clone(), id);
        id
    }

    /// A row leaves its class; an empty class is recycled.
    pub fn leave(&mut self, id: u32, stride: usize) {
        let rows = &mut self.rows[id as usize];
        *rows -= 1;
        if *rows == 0 {
            let start = id as usize * stride;
            self.ids.remove(&self.words[start..start + stride]);
            self.free.push(id);
        }
    }

    /// Number of classes, recycled ones included.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn words(&self, id: u32, stride: usize) -> &[i64] {
        let start = id as usize * stride;
        &self.words[start..start + stride]
    }
}

impl Question {
    /// Asks every plugin that filters or scores to prepare.
    pub fn new(profile: &Profile, world: &mut World, pod: &PodInfo) -> Result<Question, Failure> {
        let mut question = Question {
            template: pod.template.clone(),
            parts: Vec::new(),
            stride: 0,
            one_by_one: Vec::new(),
            rejected: None,
            base: i64::from(profile.score.is_empty()),
        };
        for (index, plugin) in profile.plugins.iter().enumerate() {
            let used = Used::by(profile, index);
            if !used.filters && used.weight == 0 {
                continue;
            }
            let prepared = match &plugin.prepare {
                Some(prepare) if used.whole => {
                    let prepared = guard::section(|| {
                        guard::turn(index, Site::Prepare);
                        prepare.prepare(world, pod)
                    });
                    prepared.map_err(|caught| caught.note(profile).1)
                }
                _ => Ok(Prepared::OneByOne),
            };
            match prepared {
                Ok(Prepared::Skip) => {}
                Ok(Prepared::OneByOne) => question.one_by_one.push(index),
                Ok(Prepared::Rejected(rejection)) if used.filters => {
                    question.remember(Rejected { plugin: Some(plugin.name), rejection });
                }
                Ok(Prepared::Rejected(_)) => {}
                Ok(Prepared::Run(run)) => question.add(index, run, used),
                Err(failure) => {
                    question.release(profile, world);
                    return Err(failure);
                }
            }
        }
        Ok(question)
    }

    fn add(&mut self, plugin: usize, run: Box<dyn Run>, used: Used) {
        guard::turn(plugin, Site::Prepare);
        let reads = run.reads();
        let n_words = if reads.class.is_some() { run.n_words() } else { 0 };
        let offset = self.stride;
        self.stride += n_words;
        let Used { filters, weight, .. } = used;
        self.parts.push(Part { plugin, run, reads, filters, weight, offset, n_words });
    }

    /// As PreFilter does: an unresolvable rejection ends it, of the others the last one counts.
    fn remember(&mut self, rejected: Rejected) {
        let ended = self
            .rejected
            .as_ref()
            .is_some_and(|r| matches!(r.rejection, Rejection::Unresolvable(_)));
        if !ended {
            self.rejected = Some(rejected);
        }
    }

    /// Gives back what the runs took from the world. What one that panics took stays.
    pub fn release(mut self, profile: &Profile, world: &mut World) {
        for part in &mut self.parts {
            let released = guard::section(|| {
                guard::turn(part.plugin, Site::Prepare);
                part.run.release(world);
            });
            if let Err(caught) = released {
                caught.note(profile);
            }
        }
    }

    /// Whether PreFilter would narrow the nodes.
    pub fn narrows(&self) -> bool {
        self.parts.iter().any(|part| part.filters && part.ask(Site::Prepare).narrows())
    }

    /// Words a class.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Whether the meaning of what was prepared changed.
    pub fn is_stale(&self, world: &World) -> bool {
        self.parts.iter().any(|part| part.ask(Site::Prepare).is_stale(world))
    }

    /// Whether row-local answers hang on the set of nodes.
    pub fn reads_node_set(&self) -> bool {
        self.parts.iter().any(|part| part.reads.node_set)
    }

    /// Takes the rows out of `set` that fail a row-local filter.
    pub fn filter_all(&self, nodes: &NodeTable, set: &mut [u8]) {
        for part in self.parts.iter().filter(|part| part.filters && part.reads.filter.is_some()) {
            part.ask(Site::Filter).filter_all(nodes, set);
        }
    }

    /// Adds the row-local scores of the members of `set`.
    pub fn score_all(
        &self,
        nodes: &NodeTable,
        set: &[u8],
        out: &mut [i64],
    ) -> Result<(), OutOfRange> {
        for part in self.parts.iter().filter(|part| part.weight != 0 && part.reads.score.is_some())
        {
            part.ask(Site::Score).score_all(nodes, set, part.weight, out)?;
        }
        Ok(())
    }

    /// The row-local verdict as far as it hangs on `which`.
    pub fn filter_row(&self, nodes: &NodeTable, row: Row, which: RowPart) -> bool {
        let mut parts =
            self.parts.iter().filter(|part| part.filters && part.reads.filter == Some(which));
        parts.all(|part| part.ask(Site::Filter).filter_row(nodes, row))
    }

    /// The row-local score as far as it hangs on `which`.
    pub fn score_row(
        &self,
        nodes: &NodeTable,
        row: Row,
        which: RowPart,
    ) -> Result<i64, OutOfRange> {
        let parts =
            self.parts.iter().filter(|part| part.weight != 0 && part.reads.score == Some(which));
        parts
            .map(|part| Ok(part.weight * in_range(part.ask(Site::Score).score_row(nodes, row))?))
            .sum()
    }

    /// Whether any words hang on the pods of a row.
    pub fn words_follow_pods(&self) -> bool {
        self.parts.iter().any(|part| part.reads.class == Some(RowPart::Pods))
    }

    /// The words of a row.
    pub fn words(&self, world: &World, row: Row, out: &mut Words) {
        out.clear();
        for part in self.parts.iter().filter(|part| part.n_words > 0) {
            part.ask(Site::Prepare).class_row(world, row, out);
        }
    }

    /// The words of a row whose pods changed, given those it had.
    pub fn update_words(&self, world: &World, row: Row, before: &[i64], out: &mut Words) {
        out.clear();
        for part in self.parts.iter().filter(|part| part.n_words > 0) {
            if part.reads.class == Some(RowPart::Pods) {
                part.ask(Site::Prepare).class_row(world, row, out);
            } else {
                out.extend_from_slice(&before[part.offset..part.offset + part.n_words]);
            }
        }
    }

    /// Works out which classes are feasible.
    pub fn filter_classes(&self, world: &World, table: &mut ClassTable) {
        let n = table.len();
        table.feasible.clear();
        table.feasible.extend(table.rows.iter().map(|rows| *rows > 0));
        for part in self.parts.iter().filter(|part| part.filters && part.n_words > 0) {
            for class in 0..n {
                if table.feasible[class] {
                    let start = class * self.stride + part.offset;
                    let words = &table.words[start..start + part.n_words];
                    table.feasible[class] = part.ask(Site::Filter).class_filter(world, words);
                }
            }
        }
    }

    /// Works out what each feasible class adds to the scores of its rows.
    pub fn score_classes(&self, world: &World, table: &mut ClassTable) -> Result<(), OutOfRange> {
        let n = table.len();
        table.offsets.clear();
        table.offsets.resize(n, self.base);
        table.scratch.clear();
        table.scratch.resize(n, 0);
        for part in self.parts.iter().filter(|part| part.weight != 0 && part.run.scores_classes()) {
            let classes = Classes {
                words: &table.words,
                stride: self.stride,
                offset: part.offset,
                n_words: part.n_words,
                rows: &table.rows,
                feasible: &table.feasible,
            };
            part.ask(Site::Score).class_score(world, &classes, &mut table.scratch);
            for class in 0..n {
                if table.feasible[class] {
                    table.offsets[class] += part.weight * in_range(table.scratch[class])?;
                }
            }
        }
        Ok(())
    }
}

/// What a profile uses of a plugin.
#[derive(Clone, Copy)]
struct Used {
    filters: bool,
    weight: i64,
    /// The plugin takes part in its Pre points exactly where it takes part in the points they prepare; otherwise its
    /// incremental form would say something else.
    whole: bool,
}

impl Used {
    fn by(profile: &Profile, index: usize) -> Used {
        let pre_filters = profile.pre_filter.iter().any(|member| member.plugin == index);
        let filters = profile.filter.iter().any(|member| member.plugin == index);
        let pre_scores = profile.pre_score.iter().any(|member| member.plugin == index);
        let weight =
            profile.score.iter().find(|m| m.plugin == index).map_or(0, |member| member.weight);
        let plugin = &profile.plugins[index];
        let whole = (pre_filters == plugin.has_pre_filter)
            && (filters == plugin.has_filter)
            && (pre_scores == plugin.has_pre_score || weight == 0 && !pre_scores);
        Used { filters: filters || pre_filters, weight, whole }
    }
}
