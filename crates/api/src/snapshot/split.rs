//! A long JSON list, decoded on all cores.
//!
//! The text is cut between items, at places that only look like it: where what stands between the first two
//! items, with the beginning of an item behind it, comes again. Every piece is then decoded as items with
//! commas between them, ending exactly where the piece ends. If all pieces pass, the cuts were right, since
//! reading them behind each other would have passed through the same states. If one does not, the guess
//! was wrong or the text is faulty; either way nothing is kept, and the caller reads the text as a whole,
//! which also knows how to say what is wrong. So the result never depends on the number of threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use loadmaster_stdx::HashSeed;
use serde::de::{DeserializeSeed, IgnoredAny};

use super::kinds::{self, KindHandling};
use super::load::{Loader, ObjectSeed, TypeMeta};
use super::{ObjectOrigin, Snapshot, Types, each_json, quick};
use crate::document::{Cursor, Document};
use crate::interned_str::Str;

/// How long a piece is, about: long enough that starting on one costs nothing, short enough that all threads
/// end at about the same time.
pub(super) const CHUNK_BYTES: usize = 2 << 20;

/// More threads than this would wait for memory.
const THREADS_MAX: usize = 8;

/// Adds the objects of `document` to the snapshot if it is one long list without a fault. Says whether it was;
/// if not, nothing has been added.
pub(super) fn read(
    loader: &mut Loader,
    nth: usize,
    document: &Document,
    chunk_bytes: usize,
) -> bool {
    let text = document.text();
    if text.len() < chunk_bytes.saturating_mul(2) {
        return false;
    }
    let Some(list) = List::find(text) else { return false };
    let pieces = list.cut(chunk_bytes);
    let Some(read) = read_pieces(&pieces, list.implied.as_ref(), ObjectOrigin::new(nth, 0)) else {
        return false;
    };
    let Some(rest) = read.last().map(|piece| piece.rest) else { return false };
    // The list without its items: is it a list at all, and what comes behind it?
    let frame = Document::new(document.name(), [&text[..list.start], rest].concat());
    let mut around = Loader::new();
    if each_json(&mut around, nth, &frame, &Types::default(), quick).is_err() {
        return false;
    }
    let snapshot = &mut loader.snapshot;
    snapshot.pods.reserve(read.iter().map(|piece| piece.objects.pods.len()).sum());
    let mut first = 0;
    for piece in read {
        snapshot.append(piece.objects, first);
        first += piece.n_items;
    }
    snapshot.append(around.snapshot, 0);
    true
}

/// How items follow each other, as the first two show it.
struct List<'t> {
    text: &'t str,
    /// Where the items begin.
    start: usize,
    /// From the end of an item to the end of the first key of the next.
    between: &'t str,
    /// What follows that key: all up to the second key, or, if a text is in between, all behind that text.
    then: &'t str,
    has_text: bool,
    /// The type of items that have none of their own.
    implied: Option<TypeMeta>,
}

impl<'t> List<'t> {
    /// Reads the beginning of a list. None if this is something else, or has fewer than two items.
    fn find(text: &'t str) -> Option<List<'t>> {
        let mut cursor = Cursor { text, at: 0 };
        let (mut version, mut kind) = (None, None);
        enter(&mut cursor, b'{')?;
        loop {
            let key = string(&mut cursor)?;
            enter(&mut cursor, b':')?;
            match key {
                "items" => break,
                "apiVersion" if version.is_none() => version = Some(string(&mut cursor)?),
                "kind" if kind.is_none() => kind = Some(string(&mut cursor)?),
                "apiVersion" | "kind" => return None,
                _ => cursor.skip_value()?,
            }
            enter(&mut cursor, b',')?;
        }
        let implied = match (version, kind) {
            // Only then `items` are items.
            (Some(version), Some(kind)) if kinds::class_of(version, kind) == KindHandling::List => {
                kinds::item_kind(kind).map(|item| (Str::new(version), Str::new(item)))
            }
            (Some(_), Some(_)) => return None,
            _ => None,
        };
        enter(&mut cursor, b'[')?;
        let start = cursor.at;
        cursor.skip_value()?;
        let end = cursor.at;
        enter(&mut cursor, b',')?;
        enter(&mut cursor, b'{')?;
        cursor.skip_string()?;
        let between = &text[end..cursor.at];
        let mut then = cursor.at;
        enter(&mut cursor, b':')?;
        let has_text = cursor.skip_string().is_some();
        if has_text {
            then = cursor.at;
            enter(&mut cursor, b',')?;
        } else {
            enter(&mut cursor, b'{')?;
        }
        cursor.skip_string()?;
        let then = &text[then..cursor.at];
        Some(List { text, start, between, then, has_text, implied })
    }

    /// Pieces of about `chunk_bytes`, without the commas between them. The last one goes on to the end of the
    /// text.
    fn cut(&self, chunk_bytes: usize) -> Vec<&'t str> {
        let mut pieces = Vec::new();
        let mut start = self.start;
        while let Some((end, next)) = self.next_cut(start.saturating_add(chunk_bytes)) {
            pieces.push(&self.text[start..end]);
            start = next;
        }
        pieces.push(&self.text[start..]);
        pieces
    }

    /// Where, as it seems, an item ends behind `at` and the next one begins.
    fn next_cut(&self, mut at: usize) -> Option<(usize, usize)> {
        let text = self.text;
        while at < text.len() && !text.is_char_boundary(at) {
            at += 1;
        }
        let comma = self.between.find(',')?;
        loop {
            let end = at + text.get(at..)?.find(self.between)?;
            let mut cursor = Cursor { text, at: end + self.between.len() };
            at = cursor.at;
            if self.has_text {
                enter(&mut cursor, b':').and_then(|()| cursor.skip_string());
            }
            let follows = text.get(cursor.at..).is_some_and(|text| text.starts_with(self.then));
            if follows && text[..end].ends_with('}') {
                return Some((end, end + comma + 1));
            }
        }
    }
}

/// Goes over `byte` and the blanks around it.
fn enter(cursor: &mut Cursor<'_>, byte: u8) -> Option<()> {
    cursor.blanks();
    cursor.eat(byte)?;
    cursor.blanks();
    Some(())
}

/// Goes over a string and returns it, if it is written without escapes.
fn string<'t>(cursor: &mut Cursor<'t>) -> Option<&'t str> {
    let start = cursor.at + 1;
    cursor.skip_string()?;
    let text = cursor.text.get(start..cursor.at - 1)?;
    (!text.contains('\\')).then_some(text)
}

/// What stood in a piece.
struct Piece<'t> {
    objects: Snapshot,
    n_items: u32,
    /// What is left behind the items: nothing, or the end of the list and all that follows.
    rest: &'t str,
}

/// Decodes pieces on as many threads as there are cores. None if one of them is not what it should be.
fn read_pieces<'t>(
    pieces: &[&'t str],
    implied: Option<&TypeMeta>,
    origin: ObjectOrigin,
) -> Option<Vec<Piece<'t>>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(nth) else { return Some(done) };
            let is_last = nth + 1 == pieces.len();
            let Some(read) = read_piece(piece, is_last, implied, origin) else {
                // Nobody needs the rest any more.
                next.store(pieces.len(), Ordering::Relaxed);
                return None;
            };
            done.push((nth, read));
        }
    };
    let hash_seed = HashSeed::of_thread();
    let work_with_seed = || {
        hash_seed.set_for_thread();
        work()
    };
    let n_threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let parts = thread::scope(|scope| {
        let others: Vec<_> = (1..n_threads.min(pieces.len()))
            .filter_map(|_| thread::Builder::new().spawn_scoped(scope, work_with_seed).ok())
            .collect();
        let own = work();
        // A panic of a thread counts as a failure: the text is then read as a whole.
        let others = others.into_iter().map(|thread| thread.join().ok().flatten());
        [own].into_iter().chain(others).collect::<Option<Vec<_>>>()
    });
    let mut read: Vec<_> = parts?.into_iter().flatten().collect();
    read.sort_unstable_by_key(|(nth, _)| *nth);
    Some(read.into_iter().map(|(_, read)| read).collect())
}

/// Decodes the items of a piece.
fn read_piece<'t>(
    piece: &'t str,
    is_last: bool,
    implied: Option<&TypeMeta>,
    origin: ObjectOrigin,
) -> Option<Piece<'t>> {
    let mut loader = Loader::new();
    loader.type_comes_first = true;
    let mut cursor = Cursor { text: piece, at: 0 };
    for n_items in 1.. {
        loader.origin = origin.at(n_items - 1);
        let mut decoder = serde_json::Deserializer::from_str(&piece[cursor.at..]);
        let seed = ObjectSeed { loader: &mut loader, implied, is_item: true };
        seed.deserialize(&mut decoder).ok()?;
        cursor.at += decoder.into_iter::<IgnoredAny>().byte_offset();
        if cursor.at == piece.len() && !is_last {
            return Some(Piece { objects: loader.snapshot, n_items, rest: "" });
        }
        cursor.blanks();
        let rest = &piece[cursor.at..];
        if is_last && rest.starts_with(']') {
            return Some(Piece { objects: loader.snapshot, n_items, rest });
        }
        cursor.eat(b',')?;
    }
    None
}
