//! Where in the file a field of the converted configuration comes from, for errors.

/// The document that a field comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The KubeSchedulerConfiguration.
    Configuration,
    /// The legacy Policy.
    Policy,
}

/// Paths in the v1 form, with the documents and paths that they come from.
#[derive(Debug, Default)]
pub(crate) struct Origins(Vec<Origin>);

#[derive(Debug)]
struct Origin {
    /// In the v1 form.
    path: String,
    source: Source,
    /// In the document.
    origin: String,
    /// What is below `path` has no fields of its own in the document.
    is_whole: bool,
}

impl Origins {
    /// The field at `path`, and all that is below it, stands at `origin` in the configuration.
    pub fn insert(&mut self, path: impl Into<String>, origin: impl Into<String>) {
        self.push(path.into(), origin.into(), false);
    }

    /// The field at `path`, and all that is below it, comes from the whole of `origin` in the configuration.
    pub fn insert_whole(&mut self, path: impl Into<String>, origin: impl Into<String>) {
        self.push(path.into(), origin.into(), true);
    }

    fn push(&mut self, path: String, origin: String, is_whole: bool) {
        self.0.push(Origin { path, source: Source::Configuration, origin, is_whole });
    }

    /// Adds the origins of a Policy.
    pub fn extend_from_policy(&mut self, policy: Origins) {
        let of_policy = policy.0.into_iter().map(|it| Origin { source: Source::Policy, ..it });
        self.0.extend(of_policy);
    }

    /// Forgets where the field at `path` and all that is below it comes from.
    pub fn remove(&mut self, path: &str) {
        self.0.retain(|it| below(&it.path, path).is_none());
    }

    /// Adapts the origins to a list whose elements have other indexes now; `new_idx` returns `None` for those that are gone.
    pub fn move_elements(&mut self, list: &str, new_idx: impl Fn(usize) -> Option<usize>) {
        self.0.retain_mut(|it| {
            let element = below(&it.path, list).and_then(|rest| rest.strip_prefix('['));
            let Some((idx, rest)) = element.and_then(|element| element.split_once(']')) else {
                return true;
            };
            let Some(idx) = idx.parse().ok().and_then(&new_idx) else { return false };
            it.path = format!("{list}[{idx}]{rest}");
            true
        });
    }

    /// The document and the path in it: that of the innermost field that moved, and the rest of `path`; `path` in the configuration
    /// if nothing moved.
    pub fn origin_of(&self, path: &str) -> (Source, String) {
        let moved = self.0.iter().filter_map(|it| Some((it, below(path, &it.path)?)));
        match moved.max_by_key(|(it, _)| it.path.len()) {
            None => (Source::Configuration, path.to_owned()),
            Some((it, _)) if it.is_whole => (it.source, it.origin.clone()),
            Some((it, rest)) if it.origin.is_empty() => {
                (it.source, rest.trim_start_matches('.').to_owned())
            }
            Some((it, rest)) => (it.source, format!("{}{rest}", it.origin)),
        }
    }
}

/// The rest of `path` if it is `parent` or below it.
fn below<'a>(path: &'a str, parent: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(parent)?;
    (parent.is_empty() || rest.is_empty() || rest.starts_with(['.', '['])).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_field_that_moved_counts() {
        let mut origins = Origins::default();
        origins.insert("profiles[0]", "");
        origins.insert("profiles[0].plugins.filter.enabled[7]", "plugins.filter.enabled[1]");
        origins.insert_whole("profiles[0].pluginConfig[1].args", "bindTimeoutSeconds");
        for (path, want) in [
            ("parallelism", "parallelism"),
            ("profiles[0]", ""),
            ("profiles[0].schedulerName", "schedulerName"),
            ("profiles[0].plugins.filter.enabled[7].name", "plugins.filter.enabled[1].name"),
            ("profiles[0].plugins.filter.enabled[71].name", "plugins.filter.enabled[71].name"),
            ("profiles[0].pluginConfig[1].args.bindTimeoutSeconds", "bindTimeoutSeconds"),
            ("profiles[01]", "profiles[01]"),
        ] {
            assert_eq!(origins.origin_of(path).1, want, "{path}");
        }
    }

    #[test]
    fn elements_that_move_take_their_origins_with_them() {
        let mut origins = Origins::default();
        origins.insert("list[0].a", "x");
        origins.insert("list[1].a", "y");
        origins.insert("lists[0].a", "z");
        origins.insert("removed[0].a", "r");
        origins.remove("removed");
        origins.move_elements("list", |idx| (idx == 1).then_some(5));
        for (path, want) in [
            ("list[0].a", "list[0].a"),
            ("list[1].a", "list[1].a"),
            ("list[5].a", "y"),
            ("lists[0].a", "z"),
            ("removed[0].a", "removed[0].a"),
        ] {
            assert_eq!(origins.origin_of(path).1, want, "{path}");
        }
    }
}
