//! Who gets a host and path that several Ingresses want.
//!
//! A rule beats an alias, an alias a default backend; among equals the older Ingress wins, then the
//! one first by name. Canaries do not contest a path: they take a share of whoever has it.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::Arc;

use telaio_http_proxy::table::{
    Action, Age, CanaryRule, HostMatch, PathMatch, Policy, Route, RouteId, TableChange,
};
use telaio_model::ObjectKey;

use crate::warning::{Reason, Warning};

/// How good a claim is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// A rule names host and path.
    Rule,
    /// Another name of a rule's host.
    Alias,
    /// A default backend.
    Default,
}

/// A host and path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The host.
    pub host: HostMatch,
    /// The path.
    pub path: PathMatch,
}

/// What an Ingress wants at a place.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// Where.
    pub place: Place,
    /// How good the claim is.
    pub rank: Rank,
    /// Which Ingress, and since when.
    pub age: Age,
    /// The Ingress.
    pub ingress: ObjectKey,
    /// The route's identity.
    pub id: RouteId,
    /// What happens there.
    pub action: Action,
    /// How.
    pub policy: Arc<Policy>,
    /// It is a canary, by this rule.
    pub canary: Option<CanaryRule>,
    /// Whether it is one of two claims of which one is enough.
    pub reading: Reading,
}

/// A canary's path can be read in two ways, and which is right is known by whoever has the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// There is no other.
    Only,
    /// As the canary's own annotations say.
    First {
        /// Where it is claimed in the other reading.
        other: Place,
    },
    /// The other way.
    Second {
        /// Where it is claimed in the first reading.
        first: Place,
    },
}

impl Claim {
    fn order(&self) -> (Rank, &Age) {
        (self.rank, &self.age)
    }

    /// Under what its canary or conflict is told to a person.
    fn place_text(&self) -> String {
        let host = match &self.place.host {
            HostMatch::Any => "*".to_owned(),
            HostMatch::Exact(host) => host.to_string(),
            HostMatch::Wildcard(suffix) => format!("*{suffix}"),
        };
        let (PathMatch::Exact(path) | PathMatch::Prefix(path) | PathMatch::Regex(path)) =
            &self.place.path;
        format!("{host}{path}")
    }
}

/// What is wanted at a place, and what it got.
#[derive(Debug, Default)]
struct Held {
    claims: Vec<Arc<Claim>>,
    /// The route that stands in the table.
    standing: Option<Arc<Route>>,
}

/// All claims, and who has what.
#[derive(Debug, Default)]
pub struct Claims {
    places: BTreeMap<Place, Held>,
    /// Warnings by place and the Ingress that they are for.
    warnings: BTreeMap<Place, BTreeMap<ObjectKey, Vec<Warning>>>,
    /// At which places an Ingress has warnings.
    warned: BTreeMap<ObjectKey, BTreeSet<Place>>,
}

impl Claims {
    /// Takes back claims and makes others.
    pub fn replace(
        &mut self,
        before: &[Arc<Claim>],
        after: &[Arc<Claim>],
        touched: &mut BTreeSet<Place>,
    ) {
        for claim in before {
            if let Some(held) = self.places.get_mut(&claim.place) {
                held.claims.retain(|other| !Arc::ptr_eq(other, claim));
                touched.insert(claim.place.clone());
            }
        }
        for claim in after {
            let held = self.places.entry(claim.place.clone()).or_default();
            // Two that want the same place are rare.
            held.claims.reserve_exact(1);
            held.claims.push(Arc::clone(claim));
            touched.insert(claim.place.clone());
        }
    }

    /// Decides who has the places that were touched. Gives the Ingresses whose warnings may differ.
    pub fn settle(
        &mut self,
        mut touched: BTreeSet<Place>,
        change: &mut TableChange,
    ) -> BTreeSet<ObjectKey> {
        let mut concerned = BTreeSet::new();
        // Whether a canary stands alone in its first reading depends on the second.
        let held = touched.iter().filter_map(|place| self.places.get(place));
        let firsts = held.flat_map(|held| &held.claims).filter_map(|claim| match &claim.reading {
            Reading::Second { first } => Some(first.clone()),
            _ => None,
        });
        let firsts: Vec<Place> = firsts.collect();
        touched.extend(firsts);
        for place in touched {
            let mut warnings: BTreeMap<ObjectKey, Vec<Warning>> = BTreeMap::new();
            let Some(held) = self.places.get(&place) else { continue };
            let is_had = |place: &Place| {
                let held = self.places.get(place);
                held.is_some_and(|held| held.claims.iter().any(|it| it.canary.is_none()))
            };
            let route = decide(&held.claims, is_had, &mut warnings).map(Arc::new);
            concerned.extend(self.note(&place, warnings));
            let Entry::Occupied(mut held) = self.places.entry(place) else { continue };
            let changed = held.get().standing != route;
            let before = if changed {
                std::mem::replace(&mut held.get_mut().standing, route.clone())
            } else {
                None
            };
            if held.get().claims.is_empty() {
                held.remove();
            }
            if !changed {
                continue;
            }
            // Another route of the same identity may have come in the meantime: it stays.
            if let Some(before) =
                before.filter(|it| route.as_ref().is_none_or(|new| new.id != it.id))
            {
                change.routes.entry(Arc::clone(&before.id)).or_insert(None);
            }
            if let Some(route) = route {
                change.routes.insert(Arc::clone(&route.id), Some(route));
            }
        }
        concerned
    }

    /// Replaces the warnings of a place; gives the Ingresses that had or have some.
    fn note(
        &mut self,
        place: &Place,
        warnings: BTreeMap<ObjectKey, Vec<Warning>>,
    ) -> BTreeSet<ObjectKey> {
        let mut concerned: BTreeSet<ObjectKey> = warnings.keys().cloned().collect();
        for key in self.warnings.remove(place).unwrap_or_default().into_keys() {
            if let Some(places) = self.warned.get_mut(&key) {
                places.remove(place);
                if places.is_empty() {
                    self.warned.remove(&key);
                }
            }
            concerned.insert(key);
        }
        for key in warnings.keys() {
            self.warned.entry(key.clone()).or_default().insert(place.clone());
        }
        if !warnings.is_empty() {
            self.warnings.insert(place.clone(), warnings);
        }
        concerned
    }

    /// Since when the oldest rule names a host. Aliases and default backends give way, and canaries
    /// contest nothing.
    pub fn oldest(&self, host: &HostMatch) -> Option<&Age> {
        let first = Place { host: host.clone(), path: PathMatch::Exact("".into()) };
        let places = self.places.range(first..).take_while(|(place, _)| place.host == *host);
        let claims = places.flat_map(|(_, held)| &held.claims);
        let rules = claims.filter(|claim| claim.rank == Rank::Rule && claim.canary.is_none());
        rules.map(|claim| &claim.age).min()
    }

    /// The warnings of an Ingress.
    pub fn warnings(&self, ingress: &ObjectKey) -> impl Iterator<Item = &Warning> {
        let places = self.warned.get(ingress).into_iter().flatten();
        let at = |place: &Place| self.warnings.get(place).and_then(|all| all.get(ingress));
        places.filter_map(at).flatten()
    }
}

/// Who has a place, with the canaries that take a share. `is_had` tells of other places whether somebody
/// has them.
fn decide(
    claims: &[Arc<Claim>],
    is_had: impl Fn(&Place) -> bool,
    warnings: &mut BTreeMap<ObjectKey, Vec<Warning>>,
) -> Option<Route> {
    let mut warn = |claim: &Claim, reason: Reason, message: String| {
        let list = warnings.entry(claim.ingress.clone()).or_default();
        list.push(Warning::new(&claim.ingress, reason, message));
    };
    let mut mains: Vec<&Arc<Claim>> = claims.iter().filter(|it| it.canary.is_none()).collect();
    mains.sort_by(|one, other| one.order().cmp(&other.order()));
    let mut canaries: Vec<&Arc<Claim>> = claims.iter().filter(|it| it.canary.is_some()).collect();
    canaries.sort_by(|one, other| one.order().cmp(&other.order()));
    let Some((winner, losers)) = mains.split_first() else {
        let alone = |claim: &Claim| match &claim.reading {
            Reading::Only => true,
            Reading::First { other } => !is_had(other),
            Reading::Second { .. } => false,
        };
        for claim in canaries.into_iter().filter(|claim| alone(claim)) {
            let place = claim.place_text();
            let message = format!(
                "no Ingress of the namespace {} has {place}, so there is nothing to be a canary of",
                claim.ingress.namespace
            );
            warn(claim, Reason::CanaryAlone, message);
        }
        return None;
    };
    // A default backend or an alias gives way to what is better without a word: that is what they are.
    // And who redirects `www.` is the same to everybody.
    let same = |it: &Claim| {
        let redirected = it.rank == Rank::Alias && matches!(it.action, Action::Redirect(_));
        it.action == winner.action && (it.ingress == winner.ingress || redirected)
    };
    let losers = losers.iter().filter(|it| it.rank == winner.rank);
    for claim in losers.filter(|it| !same(it)) {
        let whose = if winner.ingress == claim.ingress {
            "an earlier rule of this Ingress has it".to_owned()
        } else {
            format!("the older Ingress {} has it", winner.ingress)
        };
        let what = match claim.rank {
            Rank::Rule => "",
            Rank::Alias => " as an alias",
            Rank::Default => " by the default backend",
        };
        let message =
            format!("{} is not served{what} as asked for here: {whose}", claim.place_text());
        warn(claim, Reason::Conflict, message);
    }
    let mut policy = Arc::clone(&winner.policy);
    for claim in canaries {
        // Whoever could take a share of another namespace's requests could take them all.
        if claim.ingress.namespace != winner.ingress.namespace {
            let message = format!(
                "{} belongs to the Ingress {}; a canary must be in its namespace",
                claim.place_text(),
                winner.ingress
            );
            warn(claim, Reason::CanaryAlone, message);
        } else if let Some(rule) = &claim.canary {
            Arc::make_mut(&mut policy).canary.push(rule.clone());
        }
    }
    Some(Route {
        id: Arc::clone(&winner.id),
        host: winner.place.host.clone(),
        path: winner.place.path.clone(),
        also: Vec::new(),
        age: winner.age.clone(),
        action: winner.action.clone(),
        policy,
    })
}
