//! One host's routes, by path.

use std::sync::Arc;

use super::compiled::Compiled;
use super::paths::Paths;
use super::regexes::Regexes;
use crate::head::RequestHead;
use crate::table::PathMatch;

/// The routes of one host.
#[derive(Debug, Clone, Default)]
pub(super) struct HostRoutes {
    exact: Paths,
    /// By the prefix without its closing slash; the root is empty.
    prefix: Paths,
    /// How many prefixes have so many elements: a path is not looked at any deeper than the last.
    depths: Vec<u32>,
    regex: Regexes,
}

/// A prefix as a key.
fn prefix_key(prefix: &str) -> &str {
    prefix.trim_end_matches('/')
}

/// How many elements a prefix has.
fn depth(key: &str) -> usize {
    memchr::memchr_iter(b'/', key.as_bytes()).count()
}

impl HostRoutes {
    /// How many pieces of its maps are not another table's.
    #[cfg(test)]
    pub(super) fn pieces_beside(&self, other: &Self) -> usize {
        self.exact.own_pieces(&other.exact)
            + self.prefix.own_pieces(&other.prefix)
            + self.regex.own_pieces(&other.regex)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.prefix.is_empty() && self.regex.is_empty()
    }

    /// Adds a route at its place in the order in which routes are tried.
    pub(super) fn add(&mut self, compiled: Arc<Compiled>) {
        let route = Arc::clone(&compiled.route);
        match &route.path {
            PathMatch::Exact(path) => {
                self.exact.add(path, compiled);
            }
            PathMatch::Prefix(path) => {
                let key = prefix_key(path);
                if self.prefix.add(key, compiled) {
                    let depth = depth(key);
                    let length = self.depths.len().max(depth + 1);
                    self.depths.resize(length, 0);
                    self.depths[depth] += 1;
                }
            }
            PathMatch::Regex(_) => self.regex.add(compiled),
        }
    }

    pub(super) fn remove(&mut self, old: &Compiled) {
        match &old.route.path {
            PathMatch::Exact(path) => {
                self.exact.remove(path, old);
            }
            PathMatch::Prefix(path) => {
                let key = prefix_key(path);
                if self.prefix.remove(key, old) {
                    self.depths[depth(key)] -= 1;
                    while self.depths.last() == Some(&0) {
                        self.depths.pop();
                    }
                }
            }
            PathMatch::Regex(_) => self.regex.remove(old),
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
        let prefix = self.find_prefix(request, path);
        if self.regex.is_empty() {
            return prefix;
        }
        self.regex.find(path, prefix, |compiled| compiled.holds(request))
    }

    /// The longest prefix that has the path.
    fn find_prefix(&self, request: &RequestHead, path: &str) -> Option<&Arc<Compiled>> {
        if self.prefix.is_empty() {
            return None;
        }
        let fits = |compiled: &&Arc<Compiled>| compiled.holds(request);
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
