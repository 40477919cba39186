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

    /// The document and the path in it: that of the innermost field that moved, and the rest of `path`; `path` in the configuration
    /// if nothing moved.
    pub fn origin_of(&self, path: &str) -> (Source, String) {
        let below = |moved: &str| {
            let rest = path.strip_prefix(moved)?;
            (moved.is_empty() || rest.is_empty() || rest.starts_with(['.', '['])).then_some(rest)
        };
        let moved = self.0.iter().filter_map(|it| Some((it, below(&it.path)?)));
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
}
