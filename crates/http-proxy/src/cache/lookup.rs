//! What becomes of a request: answered from the store, or sent on to the origin.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{AUTHORIZATION, RANGE};
use http::{Method, StatusCode};

use super::collapse::{Role, Wait};
use super::conditional;
use super::control::RequestDirectives;
use super::entry::CacheEntry;
use super::fetch::{Fetch, FetchPlan};
use super::fields::Fields;
use super::index::Found;
use super::key::{Key, Keyed};
use super::moment::Moment;
use super::status::{CacheStatus, Forwarded};
use super::{Cache, count};
use crate::reply::Reply;
use crate::table::CachePolicy;

/// A request, as the cache needs to know it.
#[derive(Debug)]
pub struct Asked<'a, F> {
    /// The method.
    pub method: &'a Method,
    /// What it is found by; one without can neither be answered from the cache nor outdate anything.
    pub key: Option<&'a Keyed>,
    /// Its fields, as the client sent them.
    pub headers: &'a F,
    /// Whether it has a body. One that has is never answered from the cache, as no key holds the body.
    pub has_body: bool,
    /// Whether it is known who asks, though the fields may not say so.
    pub known: bool,
    /// What the route says.
    pub policy: &'a CachePolicy,
}

impl<F: Fields> Asked<'_, F> {
    /// Whether the answer may be meant for one client.
    pub(crate) fn is_authorized(&self) -> bool {
        self.known || self.headers.has(&AUTHORIZATION)
    }
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Lookup {
    /// This is the answer.
    Hit(Reply),
    /// This is the answer; with a fetch, the origin is to be asked too, behind the client's back.
    Stale(Reply, Option<Box<Fetch>>),
    /// The origin has to be asked.
    Fetch(Box<Fetch>),
    /// Another request asks for it: wait, and look again.
    Wait(Wait),
}

/// What to do with a stored response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Serve,
    ServeAndRefresh,
    Validate(Forwarded),
}

impl Cache {
    /// What becomes of a request: those who have to wait do so in here, and no longer than they may.
    pub async fn find<F: Fields>(&self, asked: &Asked<'_, F>) -> Lookup {
        let mut found = self.lookup(asked, Moment::now());
        let end = Instant::now() + self.shared.limits.wait_max;
        while let Lookup::Wait(wait) = found {
            let longest = end.saturating_duration_since(Instant::now());
            let broken_off = wait.until_done(longest).await;
            found = self.look(asked, Moment::now(), !broken_off);
        }
        found
    }

    /// What becomes of a request.
    pub fn lookup<F: Fields>(&self, asked: &Asked<'_, F>, now: Moment) -> Lookup {
        self.look(asked, now, false)
    }

    /// As [`lookup`](Self::lookup), but who has waited does not wait again.
    pub fn lookup_after_wait<F: Fields>(&self, asked: &Asked<'_, F>, now: Moment) -> Lookup {
        self.look(asked, now, true)
    }

    fn look<F: Fields>(&self, asked: &Asked<'_, F>, now: Moment, waited: bool) -> Lookup {
        let cached = *asked.method == Method::GET || *asked.method == Method::HEAD;
        let origin_only = asked.has_body || conditional::asks_the_origin(asked.headers);
        let key = match asked.key {
            Some(Keyed { key, usable: true }) if cached && !origin_only => key,
            _ => {
                count(&self.shared.counters.bypasses);
                let why = if cached { Forwarded::Bypass } else { Forwarded::Method };
                return Lookup::Fetch(Box::new(Fetch::past(self.clone(), asked, why, now)));
            }
        };
        let directives = RequestDirectives::of(asked.headers);
        let found = self.retrieve(key, asked.headers);
        let authorized = asked.is_authorized();
        let usable = found.entry.as_ref().filter(|entry| !authorized || entry.shares_authorized());
        let Some(entry) = usable else {
            if directives.only_if_cached {
                return Lookup::Hit(not_cached());
            }
            return self.miss(asked, key.clone(), &found, &directives, now, waited);
        };
        entry.touch(now);
        match use_of(entry, &directives, now) {
            Use::Serve => Lookup::Hit(self.serve(asked, entry, now, waited)),
            Use::ServeAndRefresh => {
                let reply = self.serve(asked, entry, now, waited);
                let digest = self.digest(asked, key, &found);
                let Role::Lead(leader) = self.shared.flights.join(digest, now) else {
                    return Lookup::Stale(reply, None);
                };
                count(&self.shared.counters.validations);
                let mut plan = FetchPlan::new(Forwarded::Stale, &directives);
                plan.stored = Some(Arc::clone(entry));
                plan.leader = Some(leader);
                plan.background = true;
                let fetch = Fetch::new(self.clone(), asked, key.clone(), plan, now);
                Lookup::Stale(reply, Some(Box::new(fetch)))
            }
            Use::Validate(_) if directives.only_if_cached => Lookup::Hit(not_cached()),
            Use::Validate(why) => {
                let entry = Arc::clone(entry);
                self.validate(asked, key.clone(), entry, &found, (&directives, why), now, waited)
            }
        }
    }

    fn serve<F: Fields>(
        &self,
        asked: &Asked<'_, F>,
        entry: &CacheEntry,
        now: Moment,
        waited: bool,
    ) -> Reply {
        count(&self.shared.counters.hits);
        let mut status = CacheStatus::hit(0);
        if waited {
            count(&self.shared.counters.collapsed);
            status = CacheStatus { collapsed: true, ..CacheStatus::forwarded(Forwarded::UriMiss) };
        }
        entry.answer(asked.method, asked.headers, now, status)
    }

    fn digest<F: Fields>(&self, asked: &Asked<'_, F>, key: &Key, found: &Found) -> u64 {
        self.shared.index.digest(key, found.selector(asked.headers).as_ref())
    }

    /// Nothing usable is stored.
    fn miss<F: Fields>(
        &self,
        asked: &Asked<'_, F>,
        key: Key,
        found: &Found,
        directives: &RequestDirectives,
        now: Moment,
        waited: bool,
    ) -> Lookup {
        let why = match &found.entry {
            // There is one, but not for somebody who says who they are.
            Some(_) => Forwarded::Request,
            None if found.anything() => Forwarded::VaryMiss,
            None => Forwarded::UriMiss,
        };
        // The answer to one of these may not do for others.
        let own = *asked.method != Method::GET
            || directives.no_store
            || asked.is_authorized()
            || asked.headers.has(&RANGE)
            || conditional::is_conditional(asked.headers);
        let mut plan = FetchPlan::new(why, directives);
        if asked.policy.collapse && !own && !waited {
            let digest = self.digest(asked, &key, found);
            match self.shared.flights.join(digest, now) {
                Role::Lead(leader) => plan.leader = Some(leader),
                Role::Wait(wait) => return Lookup::Wait(wait),
                Role::Alone => {}
            }
        }
        count(&self.shared.counters.misses);
        Lookup::Fetch(Box::new(Fetch::new(self.clone(), asked, key, plan, now)))
    }

    /// What is stored has to be validated.
    #[allow(clippy::too_many_arguments)]
    fn validate<F: Fields>(
        &self,
        asked: &Asked<'_, F>,
        key: Key,
        entry: Arc<CacheEntry>,
        found: &Found,
        (directives, why): (&RequestDirectives, Forwarded),
        now: Moment,
        waited: bool,
    ) -> Lookup {
        // Who insists on a fresh answer is not served one that was asked for before. And where the
        // client's conditions go to the origin, the answer may not do for others.
        let client_asks = asked.headers.has(&RANGE) || conditional::is_conditional(asked.headers);
        let own = *asked.method != Method::GET
            || why == Forwarded::Request
            || asked.is_authorized()
            || (client_asks && !entry.has_validator())
            || asked.headers.has(&RANGE);
        let mut plan = FetchPlan::new(why, directives);
        if asked.policy.collapse && !own && !waited {
            let digest = self.digest(asked, &key, found);
            match self.shared.flights.join(digest, now) {
                Role::Lead(leader) => plan.leader = Some(leader),
                Role::Wait(wait) => return Lookup::Wait(wait),
                Role::Alone => {}
            }
        }
        plan.stored = Some(entry);
        count(&self.shared.counters.validations);
        Lookup::Fetch(Box::new(Fetch::new(self.clone(), asked, key, plan, now)))
    }
}

/// RFC 9111 §4.2.4 and §5.2.1: what response and request say about using it.
fn use_of(entry: &CacheEntry, directives: &RequestDirectives, now: Moment) -> Use {
    let freshness = entry.freshness();
    if directives.no_cache {
        return Use::Validate(Forwarded::Request);
    }
    if freshness.always_validate {
        return Use::Validate(Forwarded::Stale);
    }
    let seconds = |told: Option<u64>| told.map(Duration::from_secs);
    let too_old = seconds(directives.max_age_s).is_some_and(|most| freshness.age(now) > most);
    let least = seconds(directives.min_fresh_s).unwrap_or_default();
    let fresh = freshness.is_fresh(now) && freshness.left(now) >= least;
    if fresh && !too_old {
        return Use::Serve;
    }
    let tolerated =
        seconds(directives.max_stale_s).is_some_and(|most| freshness.staleness(now) <= most);
    if tolerated && freshness.may_be_stale && least.is_zero() && !too_old {
        return Use::Serve;
    }
    let asks_more = too_old || !least.is_zero();
    if !asks_more && freshness.serves_while_revalidating(now) {
        return Use::ServeAndRefresh;
    }
    Use::Validate(if freshness.is_fresh(now) { Forwarded::Request } else { Forwarded::Stale })
}

/// RFC 9111 §5.2.1.7: only what is stored was wanted, and nothing is.
fn not_cached() -> Reply {
    let reason = "Only a stored response was asked for, and there is none that can be used";
    let mut reply = Reply::page(StatusCode::GATEWAY_TIMEOUT, reason, None);
    CacheStatus { detail: Some("only-if-cached"), ..CacheStatus::forwarded(Forwarded::UriMiss) }
        .write(&mut reply.head.headers);
    reply
}
