//! One host's routes, by path.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::compiled::Compiled;
use crate::head::RequestHead;
use crate::table::PathMatch;

type ByPath = HashMap<Arc<str>, Vec<Arc<Compiled>>, RandomState>;

/// The routes of one host.
#[derive(Debug, Clone, Default)]
pub(super) struct HostRoutes {
    exact: ByPath,
    /// By the prefix without its closing slash; the root is empty.
    prefix: ByPath,
    /// How many elements the longest prefix has: a path is not looked at any deeper.
    depth_max: usize,
    /// In the order in which they are tried.
    regex: Vec<Arc<Compiled>>,
}

/// A prefix as a key.
fn prefix_key(prefix: &str) -> &str {
    prefix.trim_end_matches('/')
}

impl HostRoutes {
    pub(super) fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.prefix.is_empty() && self.regex.is_empty()
    }

    pub(super) fn add(&mut self, compiled: Arc<Compiled>) {
        match &compiled.route.path {
            PathMatch::Exact(path) => self.exact.entry(path.clone()).or_default().push(compiled),
            PathMatch::Prefix(path) => {
                self.prefix.entry(prefix_key(path).into()).or_default().push(compiled);
            }
            PathMatch::Regex(_) => self.regex.push(compiled),
        }
    }

    pub(super) fn remove(&mut self, old: &Compiled) {
        let keep = |compiled: &Arc<Compiled>| compiled.route.id != old.route.id;
        let (by_path, key) = match &old.route.path {
            PathMatch::Exact(path) => (&mut self.exact, &**path),
            PathMatch::Prefix(path) => (&mut self.prefix, prefix_key(path)),
            PathMatch::Regex(_) => return self.regex.retain(keep),
        };
        if let Some(routes) = by_path.get_mut(key) {
            routes.retain(keep);
            if routes.is_empty() {
                by_path.remove(key);
            }
        }
    }

    /// Puts routes into the order in which they are tried.
    pub(super) fn sort(&mut self) {
        let first = |compiled: &Arc<Compiled>| {
            let route = &compiled.route;
            (usize::MAX - route.also.len(), route.age.clone(), route.id.clone())
        };
        for routes in self.exact.values_mut().chain(self.prefix.values_mut()) {
            routes.sort_by_cached_key(first);
        }
        self.regex.sort_by_cached_key(|compiled| {
            let PathMatch::Regex(text) = &compiled.route.path else { return (0, first(compiled)) };
            (usize::MAX - text.len(), first(compiled))
        });
        let depth = |key: &Arc<str>| key.bytes().filter(|byte| *byte == b'/').count();
        self.depth_max = self.prefix.keys().map(depth).max().unwrap_or(0);
    }

    /// The route of a request, whose path is given in its matching form.
    pub(super) fn find(&self, request: &RequestHead, path: &str) -> Option<&Arc<Compiled>> {
        let fits = |compiled: &&Arc<Compiled>| compiled.holds(request);
        if !self.exact.is_empty()
            && let Some(found) = self.exact.get(path).and_then(|routes| routes.iter().find(fits))
        {
            return Some(found);
        }
        let matches = |compiled: &&Arc<Compiled>| compiled.matches_path(path) && fits(compiled);
        if let Some(found) = self.regex.iter().find(matches) {
            return Some(found);
        }
        if self.prefix.is_empty() {
            return None;
        }
        let mut end = self.deepest(path);
        loop {
            if let Some(routes) = self.prefix.get(&path[..end])
                && let Some(found) = routes.iter().find(fits)
            {
                return Some(found);
            }
            end = path[..end].rfind('/')?;
        }
    }

    /// Where the longest part of the path ends that a prefix can be.
    fn deepest(&self, path: &str) -> usize {
        let mut slashes = memchr::memchr_iter(b'/', path.as_bytes());
        slashes.nth(self.depth_max).unwrap_or(path.len())
    }
}
