//! One host's routes, by path.

use std::cmp::Reverse;
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
    /// How many prefixes have so many elements: a path is not looked at any deeper than the last.
    depths: Vec<u32>,
    /// In the order in which they are tried.
    regex: Vec<Arc<Compiled>>,
}

/// A prefix as a key.
fn prefix_key(prefix: &str) -> &str {
    prefix.trim_end_matches('/')
}

/// How many elements a prefix has.
fn depth(key: &str) -> usize {
    memchr::memchr_iter(b'/', key.as_bytes()).count()
}

/// Who is tried first: of expressions the longest, then who asks for most, then the oldest.
fn rank(compiled: &Compiled) -> impl Ord + '_ {
    let route = &compiled.route;
    let length = if let PathMatch::Regex(text) = &route.path { text.len() } else { 0 };
    (Reverse(length), Reverse(route.also.len()), &route.age, &route.id)
}

impl HostRoutes {
    pub(super) fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.prefix.is_empty() && self.regex.is_empty()
    }

    /// Adds a route at its place in the order in which routes are tried.
    pub(super) fn add(&mut self, compiled: Arc<Compiled>) {
        let routes = match &compiled.route.path {
            PathMatch::Exact(path) => self.exact.entry(path.clone()).or_default(),
            PathMatch::Prefix(path) => {
                let key = prefix_key(path);
                let depth = depth(key);
                let routes = self.prefix.entry(key.into()).or_default();
                if routes.is_empty() {
                    let length = self.depths.len().max(depth + 1);
                    self.depths.resize(length, 0);
                    self.depths[depth] += 1;
                }
                routes
            }
            PathMatch::Regex(_) => &mut self.regex,
        };
        let place = routes.partition_point(|other| rank(other) < rank(&compiled));
        routes.insert(place, compiled);
    }

    pub(super) fn remove(&mut self, old: &Compiled) {
        let keep = |compiled: &Arc<Compiled>| compiled.route.id != old.route.id;
        let (by_path, key) = match &old.route.path {
            PathMatch::Exact(path) => (&mut self.exact, &**path),
            PathMatch::Prefix(path) => (&mut self.prefix, prefix_key(path)),
            PathMatch::Regex(_) => return self.regex.retain(keep),
        };
        let Some(routes) = by_path.get_mut(key) else { return };
        routes.retain(keep);
        if routes.is_empty() {
            by_path.remove(key);
            if let PathMatch::Prefix(_) = old.route.path {
                self.depths[depth(key)] -= 1;
                while self.depths.last() == Some(&0) {
                    self.depths.pop();
                }
            }
        }
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
        slashes.nth(self.depths.len().saturating_sub(1)).unwrap_or(path.len())
    }
}
