//! The store compared with a model that has every past state.

use std::collections::BTreeMap;

use loadmaster_api::{LabelSelector, Selector};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::*;

type State = BTreeMap<String, Value>;

/// Every state by revision, whole.
struct Model {
    states: BTreeMap<u64, State>,
}

impl Model {
    fn at(&self, revision: u64) -> &State {
        self.states.range(..=revision).next_back().expect("a state at the start").1
    }
}

/// A watcher, and its view of the state from the events it got.
struct Watcher {
    cursor: Cursor,
    colour: Option<&'static str>,
    prefix: &'static str,
    believed: State,
    last: u64,
}

fn draft(key: &str, colour: &str, count: u64) -> Draft {
    // Half of them so long that they are packed.
    let note = format!("{colour} {count} ").repeat(if count.is_multiple_of(2) { 300 } else { 3 });
    let value = json!({"metadata": {"labels": {"colour": colour}}, "count": count, "note": note});
    let labels = [("colour", colour.into())].into_iter().collect();
    Draft::new(key.to_owned(), labels, Box::new([colour.into()]), &value).expect("encodes")
}

fn filter(colour: Option<&str>, by_field: bool) -> Filter {
    let Some(colour) = colour else { return Filter::everything() };
    if by_field {
        let test =
            FieldRequirement { field: FilterField::Slot(0), equals: true, value: colour.into() };
        return Filter { fields: vec![test], ..Filter::everything() };
    }
    let selector: LabelSelector =
        serde_json::from_value(json!({"matchLabels": {"colour": colour}})).expect("a selector");
    let labels = Selector::new(Some(&selector)).expect("compiles");
    Filter { labels, ..Filter::everything() }
}

fn parsed(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("stored bytes are JSON")
}

fn selected(state: &State, prefix: &str, colour: Option<&str>) -> State {
    let wanted = |key: &String, value: &Value| {
        key.starts_with(prefix)
            && colour.is_none_or(|colour| value["metadata"]["labels"]["colour"] == colour)
    };
    state.iter().filter(|(k, v)| wanted(k, v)).map(|(k, v)| (k.clone(), v.clone())).collect()
}

fn as_state(objects: &[Arc<Object>]) -> State {
    objects.iter().map(|o| (o.key().to_owned(), parsed(&o.json()))).collect()
}

const KEYS: &[&str] = &["a/x", "a/y", "a-b/x", "b/x", "b/y", "b/z"];
const COLOURS: &[&str] = &["red", "blue"];
const PREFIXES: &[&str] = &["", "a/", "b/"];

/// One random write, applied to the model with the same outcome.
fn write(store: &mut Store, table: TableId, other: TableId, model: &mut Model, rng: &mut Rng) {
    if rng.one_in(5) {
        let revision = store.get(other, "o").map(|object| object.revision());
        let expect = revision.map_or(Precondition::Absent, Precondition::Revision);
        store.put(other, expect, draft("o", "red", 0)).expect("nothing is in the way");
        return;
    }
    let key = *rng.pick(KEYS);
    let mut state = model.at(store.revision()).clone();
    let stored = store.get(table, key).map(|object| object.revision());
    assert_eq!(stored.is_some(), state.contains_key(key));
    let before = store.revision();
    let stale = rng.one_in(6);
    let outcome = match stored {
        Some(revision) if rng.one_in(3) => {
            let asked = if stale { revision - 1 } else { revision };
            store.remove(table, key, asked, None).map(|_| drop(state.remove(key)))
        }
        _ => {
            let colour: &str = rng.pick::<&str>(COLOURS);
            let fresh = draft(key, colour, rng.below(9));
            let expect = match stored {
                None if stale => Precondition::Revision(before),
                None => Precondition::Absent,
                Some(_) if stale => Precondition::Absent,
                Some(revision) => Precondition::Revision(revision),
            };
            store.put(table, expect, fresh).map(|object| {
                drop(state.insert(key.to_owned(), parsed(&object.json())));
            })
        }
    };
    assert_eq!(outcome.is_err(), stale, "{outcome:?}");
    assert_eq!(store.revision(), before + u64::from(!stale));
    if !stale {
        model.states.insert(store.revision(), state);
    }
}

fn read(store: &Store, model: &Model, watcher: &mut Watcher, rng: &mut Rng) {
    let n_max = 1 + rng.below(4) as usize;
    match watcher.cursor.read(store, store.revision(), n_max) {
        Ok(deliveries) => {
            for delivery in deliveries {
                assert!(delivery.revision > watcher.last, "out of order or twice");
                watcher.last = delivery.revision;
                let key = delivery.object.key().to_owned();
                let shown = parsed(&delivery.object.json_at(delivery.revision));
                assert_eq!(
                    shown["metadata"]["resourceVersion"],
                    Value::String(delivery.revision.to_string())
                );
                let was_known = watcher.believed.contains_key(&key);
                assert_eq!(was_known, delivery.kind != ChangeKind::Added, "{key}");
                match delivery.kind {
                    ChangeKind::Deleted => drop(watcher.believed.remove(&key)),
                    _ => drop(watcher.believed.insert(key, shown)),
                }
            }
        }
        Err(RevisionError::Compacted { .. }) => *watcher = start(store, model, watcher, rng),
        Err(other) => panic!("{other}"),
    }
    let model_state = selected(model.at(watcher.cursor.revision()), watcher.prefix, watcher.colour);
    assert_eq!(watcher.believed, model_state);
}

/// Lists and watches from there, as an informer does.
fn start(store: &Store, model: &Model, old: &Watcher, rng: &mut Rng) -> Watcher {
    let table = TableId(0);
    let filter = filter(old.colour, rng.one_in(2));
    let span = ListOptions { prefix: old.prefix, ..ListOptions::default() };
    let page = store.list(table, &span, &filter).expect("now can be read");
    let believed = as_state(&page.objects);
    assert_eq!(believed, selected(model.at(page.revision), old.prefix, old.colour));
    let cursor = store.watch(table, page.revision, old.prefix, filter).expect("now");
    Watcher { cursor, believed, last: page.revision, ..*old }
}

/// A list at some revision in pages, against the model.
fn page_through(store: &Store, model: &Model, rng: &mut Rng) {
    let at = 1 + rng.below(store.revision() + 1);
    let (prefix, colour) = (*rng.pick(PREFIXES), *rng.pick(&[None, Some("red")]));
    let filter = filter(colour, true);
    let limit = 1 + rng.below(3) as usize;
    let (mut all, mut after) = (Vec::new(), None::<Arc<str>>);
    loop {
        let span = ListOptions { prefix, after: after.as_deref(), limit, at: Some(at) };
        let page = match store.list(TableId(0), &span, &filter) {
            Ok(page) => page,
            Err(RevisionError::Future { .. }) => return assert!(at > store.revision()),
            Err(RevisionError::Compacted { compacted, .. }) => return assert!(at < compacted),
        };
        all.extend(page.objects);
        if page.next.is_none() {
            break;
        }
        after = page.next;
    }
    assert!(all.is_sorted_by(|a, b| a.key() < b.key()));
    assert_eq!(as_state(&all), selected(model.at(at), prefix, colour));
}

#[test]
fn watchers_and_lists_agree_with_a_store_of_all_states() {
    for seed in 0..120 {
        let mut rng = Rng::new(seed);
        let limits = match seed % 3 {
            0 => StoreLimits::default(),
            1 => StoreLimits { n_changes_max: 5, ..StoreLimits::default() },
            _ => StoreLimits { superseded_bytes_max: 2_000, ..StoreLimits::default() },
        };
        let mut store = Store::new(limits);
        let (table, other) = (store.add_table("t"), store.add_table("other"));
        let mut model = Model { states: [(1, State::new())].into() };
        let mut watchers = Vec::new();
        for n in 0..6 {
            let (colour, prefix) = ([None, Some("red")][n % 2], PREFIXES[n / 2]);
            let cursor = store.watch(table, 1, prefix, filter(colour, false)).expect("at start");
            watchers.push(Watcher { cursor, colour, prefix, believed: State::new(), last: 0 });
        }
        for _ in 0..150 {
            match rng.below(8) {
                0..=3 => write(&mut store, table, other, &mut model, &mut rng),
                4 if rng.one_in(6) => store.compact(table, rng.below(store.revision() + 1)),
                4 | 5 => page_through(&store, &model, &mut rng),
                _ => {
                    let at = rng.below(6) as usize;
                    read(&store, &model, &mut watchers[at], &mut rng);
                }
            }
        }
    }
}

#[test]
fn the_log_is_bounded() {
    let mut store = Store::new(StoreLimits { n_changes_max: 10, superseded_bytes_max: usize::MAX });
    let table = store.add_table("t");
    let mut revision = None;
    for n in 0..100 {
        let expect = revision.map_or(Precondition::Absent, Precondition::Revision);
        let object = store.put(table, expect, draft("a/x", "red", n)).expect("free");
        revision = Some(object.revision());
    }
    assert_eq!(store.tables[0].log.len(), 10);
    let span = ListOptions { at: Some(50), ..ListOptions::default() };
    let unreadable = store.list(table, &span, &Filter::everything()).expect_err("long ago");
    assert_eq!(unreadable, RevisionError::Compacted { asked: 50, compacted: 91 });
    let unreadable = store.watch(table, 200, "", Filter::everything()).expect_err("to come");
    assert_eq!(unreadable, RevisionError::Future { asked: 200, newest: 101 });
}

#[test]
fn older_revisions_are_cached() {
    let mut store = Store::new(StoreLimits { n_changes_max: 30, ..StoreLimits::default() });
    let table = store.add_table("t");
    let put = |store: &mut Store, key: &str| {
        let expect = store
            .get(table, key)
            .map_or(Precondition::Absent, |it| Precondition::Revision(it.revision()));
        store
            .put(table, expect, draft(key, "red", store.revision()))
            .expect("nothing is in the way")
    };
    let list = |store: &Store, at: u64| {
        let span = ListOptions { at: Some(at), ..ListOptions::default() };
        let page = store.list(table, &span, &Filter::everything()).expect("is readable");
        page.objects.iter().map(|it| it.revision()).collect::<Vec<_>>()
    };
    put(&mut store, "a");
    let first = store.revision();
    let want = list(&store, first);
    for key in ["a", "b", "a", "c"] {
        put(&mut store, key);
        assert_eq!(list(&store, first), want, "{key}");
    }
    let known = |store: &Store| {
        let all = store.tables[0].undone.borrow();
        all.iter().map(|it| (it.at, it.up_to, it.keys.len())).collect::<Vec<_>>()
    };
    assert_eq!(known(&store), [(first, store.revision(), 3)]);
    for _ in 0..20 {
        put(&mut store, "b");
        list(&store, store.revision() - 1);
    }
    let all = known(&store);
    assert_eq!((all.len(), all[0].0), (N_UNDONE_MAX, store.revision() - 8));
    (0..40).for_each(|_| drop(put(&mut store, "b")));
    assert_eq!(known(&store), [], "nobody may ask for these any longer");
}
