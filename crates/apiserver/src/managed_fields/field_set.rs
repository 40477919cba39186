//! Sets of field paths, as a trie.

use std::cmp::Ordering;

use loadmaster_stdx::CollectByInsertion as _;
use loadmaster_stdx::SortCompactly as _;
use serde_json::{Map, Value};

use super::field_path::{PathElement, PathElementError};
use super::types::{TypeRef, Types};

/// A set of field paths. A path may be a member without the paths around or below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet(Vec<Node>);

/// All paths that begin with one element. Sorted by it; either a member itself or with something below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub element: PathElement,
    pub is_member: bool,
    pub below: FieldSet,
}

impl FieldSet {
    /// The set of one path of fields, such as `["spec", "replicas"]`.
    pub fn of(path: &[&str]) -> FieldSet {
        let mut set = FieldSet::default();
        let path: Vec<PathElement> = path.iter().map(|name| PathElement::field(name)).collect();
        set.insert(&path);
        set
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn nodes(&self) -> &[Node] {
        &self.0
    }

    pub(super) fn get(&self, element: &PathElement) -> Option<&Node> {
        let at = self.0.binary_search_by(|node| node.element.cmp(element)).ok()?;
        self.0.get(at)
    }

    /// Whether a path is a member.
    pub fn contains(&self, path: &[PathElement]) -> bool {
        match path {
            [] => false,
            [last] => self.get(last).is_some_and(|node| node.is_member),
            [first, rest @ ..] => self.get(first).is_some_and(|node| node.below.contains(rest)),
        }
    }

    /// Adds a path. The empty one, which is the whole object, is ignored.
    pub fn insert(&mut self, path: &[PathElement]) {
        let Some((first, rest)) = path.split_first() else { return };
        let at = match self.0.binary_search_by(|node| node.element.cmp(first)) {
            Ok(at) => at,
            Err(at) => {
                let fresh =
                    Node { element: first.clone(), is_member: false, below: FieldSet::default() };
                self.0.insert(at, fresh);
                at
            }
        };
        let node = &mut self.0[at];
        if rest.is_empty() {
            node.is_member = true;
        } else {
            node.below.insert(rest);
        }
    }

    /// What is in either.
    #[must_use]
    pub fn union(&self, other: &FieldSet) -> FieldSet {
        let mut out = Vec::with_capacity(self.0.len().max(other.0.len()));
        let (mut left, mut right) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
            match a.element.cmp(&b.element) {
                Ordering::Less => out.extend(left.next().cloned()),
                Ordering::Greater => out.extend(right.next().cloned()),
                Ordering::Equal => {
                    out.push(Node {
                        element: a.element.clone(),
                        is_member: a.is_member || b.is_member,
                        below: a.below.union(&b.below),
                    });
                    left.next();
                    right.next();
                }
            }
        }
        out.extend(left.chain(right).cloned());
        FieldSet(out)
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        let both = |node: &Node| {
            let twin = other.get(&node.element)?;
            let below = node.below.intersection(&twin.below);
            Node::retained(node, node.is_member && twin.is_member, below)
        };
        FieldSet(self.0.iter().filter_map(both).collect())
    }

    /// What is not in the other.
    #[must_use]
    pub fn difference(&self, other: &FieldSet) -> FieldSet {
        let left = |node: &Node| match other.get(&node.element) {
            None => Some(node.clone()),
            Some(twin) => Node::retained(
                node,
                node.is_member && !twin.is_member,
                node.below.difference(&twin.below),
            ),
        };
        FieldSet(self.0.iter().filter_map(left).collect())
    }

    /// What is neither in the other nor below a path in the other.
    #[must_use]
    pub fn without(&self, other: &FieldSet) -> FieldSet {
        let left = |node: &Node| match other.get(&node.element) {
            None => Some(node.clone()),
            Some(twin) if twin.is_member => None,
            Some(twin) => Node::retained(node, node.is_member, node.below.without(&twin.below)),
        };
        FieldSet(self.0.iter().filter_map(left).collect())
    }

    /// The same with all declared fields that lead to a member as members.
    #[must_use]
    pub(super) fn with_named_fields(&self, types: &Types, of: Option<TypeRef>) -> FieldSet {
        let atom = of.map(|it| types.get(it));
        let node = |node: &Node| {
            let (mut is_member, mut below_type) = (node.is_member, None);
            match (&node.element, atom) {
                (PathElement::Field(name), Some(atom)) => {
                    if let Some(map) = &atom.map {
                        is_member |= !node.below.is_empty() && map.fields.contains_key(&**name);
                        below_type = map.type_of(name);
                    }
                }
                (PathElement::Key(_), Some(atom)) => {
                    below_type = atom.list.as_ref().map(|list| list.element);
                }
                _ => {}
            }
            Node {
                element: node.element.clone(),
                is_member,
                below: node.below.with_named_fields(types, below_type),
            }
        };
        FieldSet(self.0.iter().map(node).collect())
    }

    /// What lies under one of the patterns; `None` in a pattern stands for any element.
    #[must_use]
    pub(super) fn only(&self, patterns: &[&[Option<&str>]]) -> FieldSet {
        if patterns.iter().any(|pattern| pattern.is_empty()) {
            return self.clone();
        }
        let retained = |node: &Node| {
            let rest: Vec<&[Option<&str>]> = patterns
                .iter()
                .filter_map(|pattern| {
                    let (first, rest) = pattern.split_first()?;
                    let fits = first.is_none_or(
                        |name| matches!(&node.element, PathElement::Field(it) if **it == *name),
                    );
                    fits.then_some(rest)
                })
                .collect();
            if rest.is_empty() {
                return None;
            }
            Node::retained(node, node.is_member, node.below.only(&rest))
        };
        FieldSet(self.0.iter().filter_map(retained).collect())
    }

    /// All members: those of a level before those below it, each in order.
    pub fn paths(&self) -> Vec<Vec<PathElement>> {
        let mut out = Vec::new();
        self.collect(&mut Vec::new(), &mut out);
        out
    }

    fn collect(&self, path: &mut Vec<PathElement>, out: &mut Vec<Vec<PathElement>>) {
        for node in self.0.iter().filter(|node| node.is_member) {
            let mut member = path.clone();
            member.push(node.element.clone());
            out.push(member);
        }
        for node in &self.0 {
            path.push(node.element.clone());
            node.below.collect(path, out);
            path.pop();
        }
    }

    /// The value of `fieldsV1`.
    pub fn to_json(&self) -> Value {
        let member = |node: &Node| {
            let mut below = node.below.to_json();
            if node.is_member && !node.below.is_empty() {
                below["."] = Value::Object(Map::new());
            }
            (node.element.to_key(), below)
        };
        Value::Object(self.0.iter().map(member).collect_by_insertion())
    }

    /// Reads the value of `fieldsV1`.
    ///
    /// # Errors
    ///
    /// When it is no set of fields.
    pub fn from_json(value: &Value) -> Result<FieldSet, PathElementError> {
        Ok(read(value)?.0)
    }
}

impl Node {
    /// A node like this one, if anything is left of it.
    fn retained(&self, is_member: bool, below: FieldSet) -> Option<Node> {
        let is_left = is_member || !below.is_empty();
        is_left.then(|| Node { element: self.element.clone(), is_member, below })
    }
}

/// What lies below, and whether the place itself is a member: it is when nothing lies below.
fn read(value: &Value) -> Result<(FieldSet, bool), PathElementError> {
    let empty = Map::new();
    let members = match value {
        Value::Object(members) => members,
        Value::Null => &empty,
        _ => return Err(PathElementError::NotAnObject),
    };
    let mut nodes: Vec<Node> = Vec::with_capacity(members.len());
    let mut is_member = false;
    for (key, value) in members {
        if key == "." {
            is_member = true;
            continue;
        }
        let Some(element) = PathElement::parse(key)? else { continue };
        let (below, is_member) = read(value)?;
        nodes.push(Node { element, is_member, below });
    }
    nodes.sort_compactly_by(|a, b| a.element.cmp(&b.element));
    nodes.dedup_by(|later, first| {
        let is_same = later.element == first.element;
        if is_same {
            first.is_member |= later.is_member;
            first.below = first.below.union(&later.below);
        }
        is_same
    });
    let is_leaf = nodes.is_empty();
    Ok((FieldSet(nodes), is_member || is_leaf))
}

#[cfg(test)]
mod tests {
    use loadmaster_stdx::Rng;
    use serde_json::json;

    use super::*;

    #[test]
    fn forms_are_read_and_written() {
        let cases = [
            (json!({}), json!({})),
            (
                json!({"f:a": {".": {}, "f:b": {}}, "f:c": {"f:d": {}}}),
                json!({"f:a": {".": {}, "f:b": {}}, "f:c": {"f:d": {}}}),
            ),
            // What a later version may know is dropped.
            (json!({"f:a": {}, "r:b": {"f:c": {}}}), json!({"f:a": {}})),
            (json!({"f:a": {".": {}}, "f:b": null}), json!({"f:a": {}, "f:b": {}})),
            (json!({"v:1": {"f:a": {}}, "v:1.0": {}}), json!({"v:1": {".": {}, "f:a": {}}})),
        ];
        for (given, want) in cases {
            assert_eq!(FieldSet::from_json(&given).expect("a set").to_json(), want, "{given}");
        }
        assert_eq!(FieldSet::from_json(&json!({"f:a": 1})), Err(PathElementError::NotAnObject));
    }

    #[test]
    fn patterns() {
        let set = json!({"f:spec": {"f:a": {}, "f:list": {"k:{\"name\":\"x\"}": {"f:kept": {"f:z": {}}, "f:gone": {}}}}});
        let set = FieldSet::from_json(&set).expect("a set");
        let only = set.only(&[&[Some("spec"), Some("list"), None, Some("kept")]]);
        assert_eq!(
            only.to_json(),
            json!({"f:spec": {"f:list": {"k:{\"name\":\"x\"}": {"f:kept": {"f:z": {}}}}}})
        );
    }

    /// Paths of up to three elements out of three.
    fn random(rng: &mut Rng) -> Vec<Vec<PathElement>> {
        let element = |n: u64| match n % 3 {
            0 => PathElement::field("a"),
            1 => PathElement::Key(vec![("k".into(), 1.into())]),
            _ => PathElement::Value("x".into()),
        };
        let n_paths = rng.next_u64() % 6;
        (0..n_paths)
            .map(|_| (0..=rng.next_u64() % 3).map(|_| element(rng.next_u64())).collect())
            .collect()
    }

    #[test]
    fn operations_agree_with_lists_of_paths() {
        let mut rng = Rng::new(7);
        for _ in 0..3_000 {
            let (a, b) = (random(&mut rng), random(&mut rng));
            let set = |paths: &[Vec<PathElement>]| {
                let mut set = FieldSet::default();
                paths.iter().for_each(|path| set.insert(path));
                set
            };
            let (left, right) = (set(&a), set(&b));
            let chosen = |keep: &dyn Fn(&Vec<PathElement>) -> bool| {
                set(&a.iter().filter(|path| keep(path)).cloned().collect::<Vec<_>>())
            };
            let both: Vec<_> = a.iter().chain(&b).cloned().collect();
            assert_eq!(left.union(&right), set(&both));
            assert_eq!(left.intersection(&right), chosen(&|path| b.contains(path)));
            assert_eq!(left.difference(&right), chosen(&|path| !b.contains(path)));
            assert_eq!(
                left.without(&right),
                chosen(&|path| !b.iter().any(|other| path.starts_with(other)))
            );
            assert!(a.iter().all(|path| left.contains(path)));
            assert_eq!(set(&left.paths()), left);
            assert_eq!(FieldSet::from_json(&left.to_json()), Ok(left));
        }
    }
}
