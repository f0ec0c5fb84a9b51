//! The router: which route a request takes.
//!
//! A router is an immutable snapshot. [`Router::apply`] makes the next one and shares with the last
//! all hosts that the change does not name, so a change costs what it changes, and a request that
//! holds a router is never disturbed.
//!
//! A look-up is a hash of the host, then one of each ending of the path at a slash, longest first:
//! it costs the same among ten routes and ten thousand. Regular expressions are found by what their
//! paths must begin with.
//!
//! Precedence, most telling first: exact host, wildcard host, any host; then exact path; then of
//! prefixes and regular expressions the one with the longest text, as in ingress-nginx; then more
//! conditions; then the older object. Where a host has no route for a path, a less telling host may.

mod compiled;
mod host;
mod paths;
mod regexes;
mod shards;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use compiled::{CompileError, Compiled, Target, compile_regex};
use host::HostRoutes;
use shards::Shards;

use crate::head::RequestHead;
use crate::head::target::matching_form;
use crate::table::{HostMatch, Route, RouteId, TableChange};
use crate::upstream::Upstreams;

/// A route that cannot be served, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteProblem {
    /// Which route.
    pub route: RouteId,
    /// Why.
    pub message: String,
}

/// All routes, as requests are matched against them.
///
/// ```
/// use std::sync::Arc;
/// use telaio_http_proxy::table::{BackendId, HostMatch, PathMatch, Route};
/// use telaio_http_proxy::{RequestHead, Router, Upstreams};
///
/// let host = HostMatch::Exact("example.com".into());
/// let web = BackendId::new("default/web:80");
/// let upstreams = Upstreams::default();
/// let mut router = Router::new();
/// router
///     .add_route(Route::forward("r", host, PathMatch::Prefix("/shop".into()), web.clone()), &upstreams)
///     .unwrap();
/// let mut request = RequestHead::new();
/// request.set_authority("example.com");
/// request.set_path("/shop/1");
/// assert_eq!(router.get_backend(&request).and_then(|route| route.backend()), Some(&web));
/// request.set_path("/shopping");
/// assert!(router.get_backend(&request).is_none());
/// ```
#[derive(Debug, Clone)]
pub struct Router {
    exact: Shards<Arc<str>, Arc<HostRoutes>>,
    /// By what follows the first label, with its dot.
    wildcard: Shards<Arc<str>, Arc<HostRoutes>>,
    any: Arc<HostRoutes>,
    by_id: Shards<RouteId, Arc<Compiled>>,
}

impl Default for Router {
    fn default() -> Self {
        Self::new()
    }
}

impl Router {
    /// No routes: every request gets 404.
    pub fn new() -> Self {
        Self {
            exact: Shards::new(),
            wildcard: Shards::new(),
            any: Arc::default(),
            by_id: Shards::new(),
        }
    }

    /// How many routes there are.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a route, or replaces the one of its identity.
    pub fn add_route(
        &mut self,
        route: impl Into<Arc<Route>>,
        upstreams: &Upstreams,
    ) -> Result<(), CompileError> {
        let mut compiled = Compiled::new(route.into(), upstreams)?;
        let id = compiled.route.id.clone();
        if let Some(before) = self.take(&id) {
            compiled.stats = Arc::clone(&before.stats);
            if before.route.host != compiled.route.host {
                self.drop_empty(&before.route.host);
            }
        }
        let compiled = Arc::new(compiled);
        self.edit_host(&compiled.route.host, |host| host.add(Arc::clone(&compiled)));
        self.by_id.insert(id, compiled);
        Ok(())
    }

    /// Removes a route, if it is there.
    pub fn remove_route(&mut self, id: &RouteId) {
        if let Some(gone) = self.take(id) {
            self.drop_empty(&gone.route.host);
        }
    }

    /// The next router, and the routes that cannot be part of it. Of those the last good one stays.
    pub fn apply(&self, change: &TableChange, upstreams: &Upstreams) -> (Self, Vec<RouteProblem>) {
        let mut next = self.clone();
        let mut problems = Vec::new();
        for (id, route) in &change.routes {
            match route {
                None => next.remove_route(id),
                Some(route) => {
                    if let Err(error) = next.add_route(Arc::clone(route), upstreams) {
                        let message = error.to_string();
                        problems.push(RouteProblem { route: id.clone(), message });
                    }
                }
            }
        }
        (next, problems)
    }

    /// Takes a route out of the index and out of its host.
    fn take(&mut self, id: &RouteId) -> Option<Arc<Compiled>> {
        let old = self.by_id.remove(id)?;
        self.edit_host(&old.route.host, |host| host.remove(&old));
        Some(old)
    }

    fn edit_host(&mut self, host: &HostMatch, edit: impl FnOnce(&mut HostRoutes)) {
        match host {
            HostMatch::Any => edit(Arc::make_mut(&mut self.any)),
            HostMatch::Exact(name) => edit(Arc::make_mut(self.exact.get_or_default(name))),
            HostMatch::Wildcard(name) => edit(Arc::make_mut(self.wildcard.get_or_default(name))),
        }
    }

    /// Forgets a host without routes.
    fn drop_empty(&mut self, host: &HostMatch) {
        let hosts = match host {
            HostMatch::Any => return,
            HostMatch::Exact(_) => &mut self.exact,
            HostMatch::Wildcard(_) => &mut self.wildcard,
        };
        if let HostMatch::Exact(name) | HostMatch::Wildcard(name) = host
            && hosts.get(&**name).is_some_and(|routes| routes.is_empty())
        {
            hosts.remove(name);
        }
    }

    /// Who serves a request: the route that it takes, with its backends.
    pub fn get_backend(&self, request: &RequestHead) -> Option<&Arc<Compiled>> {
        let host = request.host();
        let host = host.strip_suffix('.').unwrap_or(host);
        let path = &*matching_form(request.path());
        if let Some(routes) = self.exact.get(host)
            && let Some(found) = routes.find(request, path)
        {
            return Some(found);
        }
        // `*.example.com` has one label before it, and a label is never empty.
        if let Some(dot) = host.find('.')
            && dot > 0
            && let Some(routes) = self.wildcard.get(&host[dot..])
            && let Some(found) = routes.find(request, path)
        {
            return Some(found);
        }
        self.any.find(request, path)
    }

    /// Whether any route is for this host: exact, by wildcard, or for all hosts.
    pub fn has_host(&self, host: &str) -> bool {
        self.exact.get(host).is_some()
            || host.find('.').is_some_and(|dot| self.wildcard.get(&host[dot..]).is_some())
            || !self.any.is_empty()
    }

    /// Whether any route names this host itself.
    pub fn has_exact_host(&self, host: &str) -> bool {
        self.exact.get(host).is_some()
    }

    /// A route by its identity.
    pub fn get_route(&self, id: &str) -> Option<&Arc<Compiled>> {
        self.by_id.get(id)
    }

    /// All routes, in no particular order.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<Compiled>> {
        self.by_id.values()
    }
}
