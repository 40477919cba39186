//! Which nodes kube-scheduler may have looked at when it scores only a part of them (`percentageOfNodesToScore`).
//!
//! It filters nodes in node order, from a start that only it knows, until it has found as many feasible ones as it needs. Its workers take
//! chunks of nodes in order; when enough are found, each of them stops somewhere in its chunk. So a sample is a row of consecutive chunks, of
//! which as many as there are workers may be incomplete.

/// Upstream's default `parallelism`: the number of workers.
const N_WORKERS: usize = 16;

/// How many starts of each kind are tried.
const N_STARTS_MAX: usize = 64;

/// What is known of a node, in node order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SampledNode {
    Infeasible,
    /// Feasible, and not better than the chosen node, or the chosen node itself.
    Possible,
    /// Feasible and better than the chosen node: a sample with it would not have led to the choice.
    Better,
}

/// A sample of `n_wanted` feasible nodes with the chosen node and without any better one, as positions in node order; the one with the fewest
/// incomplete chunks that was found.
pub(super) fn find_sample(
    nodes: &[SampledNode],
    chosen: usize,
    n_wanted: usize,
) -> Option<Vec<usize>> {
    let chunk = chunk_len(nodes.len());
    let mut best: Option<(usize, usize)> = None;
    for start in starts(nodes, chosen, n_wanted) {
        let Some(n_incomplete) = sample_from(nodes, start, chunk, chosen, n_wanted, |_| {}) else {
            continue;
        };
        if best.is_none_or(|(fewest, _)| n_incomplete < fewest) {
            best = Some((n_incomplete, start));
        }
        if n_incomplete == 0 {
            break;
        }
    }
    let (_, start) = best?;
    let mut sample = Vec::with_capacity(n_wanted);
    sample_from(nodes, start, chunk, chosen, n_wanted, |at| sample.push(at))?;
    Some(sample)
}

/// Upstream's `chunkSizeFor`: the number of nodes that a worker takes at once.
fn chunk_len(n_nodes: usize) -> usize {
    n_nodes.isqrt().min(n_nodes / N_WORKERS + 1).max(1)
}

/// Starts of searches: behind better nodes, so that the chosen node is the first or the last one of the sample, and everywhere in between.
fn starts(nodes: &[SampledNode], chosen: usize, n_wanted: usize) -> impl Iterator<Item = usize> {
    let n = nodes.len();
    let better: Vec<usize> = (0..n).filter(|at| nodes[*at] == SampledNode::Better).collect();
    let step = better.len().div_ceil(N_STARTS_MAX).max(1);
    let behind: Vec<usize> = better.iter().step_by(step).map(|at| (at + 1) % n).collect();
    let is_possible = |at: &usize| nodes[*at] == SampledNode::Possible;
    let before = (0..n).map(|back| (chosen + n - back) % n).filter(is_possible);
    let first = before.take(n_wanted).last().unwrap_or(chosen);
    let others = (0..n).step_by((n / N_STARTS_MAX).max(1));
    [first, chosen].into_iter().chain(behind).chain(others)
}

/// Searches from this start, and leaves out the rest of a chunk from the first better node on. Returns the number of incomplete chunks, if
/// there is such a sample with the chosen node.
fn sample_from(
    nodes: &[SampledNode],
    start: usize,
    chunk: usize,
    chosen: usize,
    n_wanted: usize,
    mut found: impl FnMut(usize),
) -> Option<usize> {
    let n = nodes.len();
    let (mut n_found, mut n_incomplete, mut has_chosen) = (0, 0, false);
    for begin in (0..n).step_by(chunk) {
        for at in begin..(begin + chunk).min(n) {
            let at = (start + at) % n;
            match nodes[at] {
                SampledNode::Infeasible => continue,
                SampledNode::Better => {
                    n_incomplete += 1;
                    break;
                }
                SampledNode::Possible => {}
            }
            found(at);
            n_found += 1;
            has_chosen |= at == chosen;
            if n_found == n_wanted {
                return has_chosen.then_some(n_incomplete);
            }
        }
        // One more worker is needed for the chunk that completes the sample.
        if n_incomplete >= N_WORKERS {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `.` infeasible, `o` possible, `c` chosen, `x` better.
    fn nodes(picture: &str) -> (Vec<SampledNode>, usize) {
        let node = |it| match it {
            '.' => SampledNode::Infeasible,
            'x' => SampledNode::Better,
            _ => SampledNode::Possible,
        };
        (picture.chars().map(node).collect(), picture.find('c').unwrap())
    }

    #[test]
    fn a_sample_leaves_out_better_nodes() {
        let check = |picture: &str, n_wanted, want: Option<&[usize]>| {
            let (nodes, chosen) = nodes(picture);
            let sample = find_sample(&nodes, chosen, n_wanted);
            assert_eq!(sample.as_deref(), want, "{picture}");
        };
        check("ooco", 4, Some(&[3, 0, 1, 2]));
        check("ooco", 5, None);
        check("xocox", 3, Some(&[1, 2, 3]));
        check("xo.c.oox", 4, Some(&[1, 3, 5, 6]));
        // Around the end of the list.
        check("cooxxoo", 5, Some(&[5, 6, 0, 1, 2]));
        check("xxxc", 2, None);
    }

    #[test]
    fn at_most_all_workers_leave_a_chunk_incomplete() {
        // Chunks of 17 nodes. A better node at the end of each chunk costs one node each.
        let at_end = "ooooooooooooooooox";
        let check = |n_chunks: usize, n_wanted, want| {
            let picture = at_end[1..].repeat(n_chunks).replacen('o', "c", 1);
            let (nodes, chosen) = nodes(&picture);
            assert_eq!(chunk_len(nodes.len()), 17, "{n_chunks}");
            assert_eq!(find_sample(&nodes, chosen, n_wanted).is_some(), want, "{n_wanted}");
        };
        check(17, 100, true);
        check(17, 16 * 16, true);
        check(17, 16 * 16 + 1, false);
    }
}
