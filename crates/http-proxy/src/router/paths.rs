//! A host's routes by path, cheap to copy: few are one small map, many are in shared pieces. So a change
//! of one path among ten thousand of a host copies some dozens.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::compiled::Compiled;
use super::shards::Shards;

/// Routes of one path, in the order in which they are tried.
type Routes = Vec<Arc<Compiled>>;

/// From so many paths on they are in pieces.
pub(super) const MANY: usize = 128;

#[derive(Debug, Clone)]
pub(super) enum Paths {
    Few(HashMap<Arc<str>, Routes, RandomState>),
    Many(Box<Shards<Arc<str>, Routes>>),
}

impl Default for Paths {
    fn default() -> Self {
        Self::Few(HashMap::default())
    }
}

impl Paths {
    /// How many pieces are not the other's.
    #[cfg(test)]
    pub(super) fn own_pieces(&self, other: &Self) -> usize {
        match (self, other) {
            (Self::Many(own), Self::Many(others)) => own.own_pieces(others),
            (own, _) => usize::from(!own.is_empty()),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Few(all) => all.is_empty(),
            Self::Many(all) => all.len() == 0,
        }
    }

    pub(super) fn get(&self, path: &str) -> Option<&[Arc<Compiled>]> {
        match self {
            Self::Few(all) => all.get(path),
            Self::Many(all) => all.get(path),
        }
        .map(Vec::as_slice)
    }

    /// Adds a route at its place in the order; whether it is the first of its path.
    pub(super) fn add(&mut self, path: &str, compiled: Arc<Compiled>) -> bool {
        let path: Arc<str> = path.into();
        let routes = match self {
            Self::Few(all) => all.entry(path).or_default(),
            Self::Many(all) => all.get_or_default(&path),
        };
        let place = routes.partition_point(|other| other.rank() < compiled.rank());
        routes.insert(place, compiled);
        let is_first = routes.len() == 1;
        if let Self::Few(all) = self
            && all.len() >= MANY
        {
            let mut many = Shards::new();
            for (path, routes) in std::mem::take(all) {
                many.insert(path, routes);
            }
            *self = Self::Many(Box::new(many));
        }
        is_first
    }

    /// Removes a route; whether its path has no other now.
    pub(super) fn remove(&mut self, path: &str, old: &Compiled) -> bool {
        let Some(routes) = self.get(path) else { return false };
        let rest: Routes =
            routes.iter().filter(|route| route.route.id != old.route.id).cloned().collect();
        let is_empty = rest.is_empty();
        match (self, is_empty) {
            (Self::Few(all), true) => drop(all.remove(path)),
            (Self::Few(all), false) => drop(all.insert(path.into(), rest)),
            (Self::Many(all), true) => drop(all.remove(path)),
            (Self::Many(all), false) => all.insert(path.into(), rest),
        }
        is_empty
    }
}
