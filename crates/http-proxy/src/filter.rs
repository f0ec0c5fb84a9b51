//! Decisions about a request before anything is looked up for it or sent on: who may, how often, and
//! from where.
//!
//! The order is fixed, and all of it comes before the cache, so that nothing that is stored is ever
//! given to somebody who may not have it:
//!
//! 1. the connection is for another host: 421
//! 2. the client's address is not let in: 403
//! 3. it asks too often, or too much at once: 429
//! 4. it came by http and https is wanted, or `/` leads elsewhere: a redirect
//! 5. its certificate is missing or not accepted: 400, 403
//! 6. it is a browser's cross-origin question: answered
//! 7. name and password, or another server's word, are missing: 401, 403
//!
//! Everything up to name and password is decided without waiting ([`RouteFilters::check`]); what may
//! wait is asked for by [`Next::Authorise`]. A route without any of these costs one comparison.
//!
//! What belongs to a route's settings is read once ([`RouteFilters`], kept with the route); what must
//! survive a change of settings, such as how often somebody asked, is in [`Filters`], kept with the
//! proxy.

pub mod basic;
pub mod client;
pub mod client_cert;
pub mod cors;
mod distinguished;
pub mod forward;
pub mod mirror;
pub mod password;
pub mod rate;
pub mod redirect;
mod sources;
pub mod template;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;

use crate::error::ErrorKind;
use crate::head::{Headers, Known, RequestHead, ResponseHead};
use crate::reply::Reply;
use crate::table::{Action, Auth, HeaderEdit, Policy, Route, TlsRedirect};
use crate::tls::CertificateStore;
use crate::tls::upstream::Verify;
use basic::{BasicFilter, Checked, Verdict};
use client::Client;
use client_cert::Subjects;
use cors::CorsFilter;
use forward::{Answers, ForwardFilter, Granted};
use mirror::{MirrorFilter, Mirrors};
use rate::{Pace, Rates, UnderWay, UnderWayGuard};
use redirect::RedirectFilter;

/// What filters remember from one request to the next, whatever happens to routes.
#[derive(Debug)]
pub struct Filters {
    rates: Rates,
    under_way: Arc<UnderWay>,
    checked: Checked,
    answers: Answers,
    client: Arc<Client>,
    /// For mirrored requests.
    pub mirrors: Mirrors,
    store: Option<Arc<CertificateStore>>,
    /// The port that https is served at, as clients see it.
    https_port: u16,
    start: Instant,
    hasher: RandomState,
}

impl Filters {
    /// Filters that remember nothing yet. `store` tells which hosts share a certificate; without it no
    /// connection is for another host. `local_targets` is whether servers of routes' choice may be the node
    /// itself.
    pub fn new(store: Option<Arc<CertificateStore>>, https_port: u16, local_targets: bool) -> Self {
        let client = Client::new(&Verify::Off).leading(local_targets);
        let client = Arc::new(client);
        Self {
            rates: Rates::default(),
            under_way: Arc::default(),
            checked: Checked::default(),
            answers: Answers::default(),
            mirrors: Mirrors::new(Arc::clone(&client)),
            client,
            store,
            https_port,
            start: Instant::now(),
            hasher: RandomState::new(),
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whether a request came by a connection that was negotiated for another host.
    fn is_misdirected(&self, head: &RequestHead) -> bool {
        let Some(tls) = head.client.tls.as_deref() else { return false };
        match (&tls.server_name, &self.store) {
            (Some(name), Some(store)) => {
                **name != *head.host() && !store.same_certificate(name, head.host())
            }
            // Who asked for no name, as those do who connect to an address, takes what there is.
            _ => false,
        }
    }
}

/// What a request takes along that has passed.
#[derive(Debug, Default)]
pub struct Passed {
    /// Counts the request among its client's, as long as it lives.
    under_way: Option<UnderWayGuard>,
    granted: Option<Granted>,
}

/// What comes next for a request.
#[derive(Debug)]
pub enum Next {
    /// It goes on.
    Go,
    /// It is answered.
    Answer(Reply),
    /// [`RouteFilters::authorise`] is to be asked.
    Authorise,
}

#[derive(Debug)]
enum AuthFilter {
    Basic(BasicFilter),
    Forward(Box<ForwardFilter>),
    Deny(Arc<str>),
}

#[derive(Debug)]
struct RateFilter {
    limit: usize,
    pace: Pace,
}

/// A route's filters, read once.
#[derive(Debug)]
pub struct RouteFilters {
    /// Whether there is anything to check.
    any: bool,
    id: Arc<str>,
    /// Whose limits they are: the routes of one owner share them.
    owner: Arc<str>,
    policy: Arc<Policy>,
    rates: Vec<RateFilter>,
    cors: Option<Box<CorsFilter>>,
    subjects: Subjects,
    auth: Vec<AuthFilter>,
    /// For routes that send clients elsewhere.
    pub redirect: Option<Box<RedirectFilter>>,
    /// For routes that are mirrored.
    pub mirror: Option<Box<MirrorFilter>>,
}

impl RouteFilters {
    /// Reads a route's policy. What cannot be used is given back, and errs on the safe side: who
    /// cannot be authenticated is not let in.
    pub fn new(route: &Route) -> (Self, Vec<String>) {
        let policy = &route.policy;
        let mut problems = Vec::new();
        let mut rates = Vec::new();
        for (limit, rate) in policy.rates.iter().enumerate() {
            match Pace::new(rate.requests, rate.per, rate.burst) {
                Some(pace) => rates.push(RateFilter { limit, pace }),
                None => problems.push("a rate limit of no requests is left out".to_owned()),
            }
        }
        let (subjects, wrong) = policy.client_tls.as_ref().map(Subjects::new).unwrap_or_default();
        problems.extend(wrong.map(|error| error.to_string()));
        let auth =
            policy.auth.iter().map(|auth| read_auth(&route.id, auth, &mut problems)).collect();
        let redirect = match &route.action {
            Action::Redirect(redirect) => keep(RedirectFilter::new(redirect), &mut problems),
            _ => None,
        };
        let mirror = policy.mirror.as_ref().filter(|mirror| !mirror.url.is_empty());
        let mirror = mirror.and_then(|mirror| keep(MirrorFilter::new(mirror), &mut problems));
        let any = policy.tls_redirect != TlsRedirect::Off
            || policy.app_root.is_some()
            || policy.cors.is_some()
            || !policy.rates.is_empty()
            || policy.connections_max.is_some()
            || !policy.sources.allow.is_empty()
            || !policy.sources.deny.is_empty()
            || !policy.auth.is_empty()
            || policy.client_tls.is_some();
        let filters = Self {
            any,
            id: Arc::clone(&route.id),
            owner: Arc::clone(if route.age.name.is_empty() { &route.id } else { &route.age.name }),
            policy: Arc::clone(policy),
            rates,
            cors: policy.cors.as_ref().map(|own| Box::new(CorsFilter::new(own))),
            subjects,
            auth,
            redirect: redirect.map(Box::new),
            mirror: mirror.map(Box::new),
        };
        (filters, problems)
    }

    /// Decides what needs no waiting.
    pub fn check(&self, filters: &Filters, head: &RequestHead, passed: &mut Passed) -> Next {
        if head.client.tls.is_some() && filters.is_misdirected(head) {
            return Next::Answer(Reply::error(ErrorKind::Misdirected, Some(head)));
        }
        if !self.any {
            return Next::Go;
        }
        if !self.policy.sources.admits(head.client.address) {
            let reason = "your address is not let in";
            return Next::Answer(Reply::page(StatusCode::FORBIDDEN, reason, Some(&head.headers)));
        }
        if let Some(reply) = self
            .check_limits(filters, head, passed)
            .or_else(|| self.check_redirects(filters, head))
            .or_else(|| {
                client_cert::refusal(self.policy.client_tls.as_ref()?, &self.subjects, head)
            })
            .or_else(|| self.cors.as_ref()?.preflight(head))
        {
            return Next::Answer(reply);
        }
        if self.auth.is_empty() { Next::Go } else { self.authorise_now(filters, head) }
    }

    fn check_limits(
        &self,
        filters: &Filters,
        head: &RequestHead,
        passed: &mut Passed,
    ) -> Option<Reply> {
        let client = head.client.address;
        for rate in &self.rates {
            let except = &self.policy.rates[rate.limit].except;
            if except.iter().any(|range| range.contains(&client.to_canonical())) {
                continue;
            }
            let limit = filters.hasher.hash_one((&*self.owner, rate.limit));
            if let Err(wait) = filters.rates.take(limit, rate.pace, client, filters.now_ns()) {
                return Some(too_many(head, "too many requests", wait));
            }
        }
        let exempt = &self.policy.connections_except;
        let exempt = exempt.iter().any(|range| range.contains(&client.to_canonical()));
        if let Some(max) = self.policy.connections_max.filter(|_| !exempt) {
            let limit = filters.hasher.hash_one((&*self.owner, "under way"));
            passed.under_way = filters.under_way.enter(limit, client, max);
            if passed.under_way.is_none() {
                return Some(too_many(head, "too many requests at once", Duration::from_secs(1)));
            }
        }
        None
    }

    fn check_redirects(&self, filters: &Filters, head: &RequestHead) -> Option<Reply> {
        if let TlsRedirect::On(status) = self.policy.tls_redirect
            && head.scheme == crate::head::Scheme::Http
            && !head.authority().is_empty()
        {
            return Some(redirect::to_https(status, head, filters.https_port));
        }
        redirect::to_app_root(self.policy.app_root.as_deref()?, head)
    }

    /// Settles what can be settled from memory.
    fn authorise_now(&self, filters: &Filters, head: &RequestHead) -> Next {
        match self.auth.as_slice() {
            [AuthFilter::Basic(basic)] => match basic.judge(head, &filters.checked) {
                Verdict::Right => Next::Go,
                Verdict::Wrong => Next::Answer(basic.refusal(head)),
                Verdict::Unknown(_) => Next::Authorise,
            },
            _ => Next::Authorise,
        }
    }

    /// Decides what may need waiting; an answer, or `None` to go on.
    pub async fn authorise(
        &self,
        filters: &Filters,
        head: &RequestHead,
        passed: &mut Passed,
    ) -> Option<Reply> {
        for auth in &self.auth {
            match auth {
                AuthFilter::Deny(why) => {
                    tracing::debug!(route = %self.id, %why, "nobody may: the settings cannot be used");
                    let reason = "nobody may, for the settings of this route cannot be used";
                    return Some(Reply::page(StatusCode::FORBIDDEN, reason, Some(&head.headers)));
                }
                AuthFilter::Basic(basic) => {
                    let right = match basic.judge(head, &filters.checked) {
                        Verdict::Right => true,
                        Verdict::Wrong => false,
                        Verdict::Unknown(check) => {
                            match basic.check(check, &filters.checked).await {
                                Some(right) => right,
                                None => return Some(basic::busy(head)),
                            }
                        }
                    };
                    if !right {
                        return Some(basic.refusal(head));
                    }
                }
                AuthFilter::Forward(forward) => {
                    match forward.ask(head, &filters.client, &filters.answers).await {
                        Ok(granted) => passed.granted = Some(granted),
                        Err(reply) => return Some(reply),
                    }
                }
            }
        }
        None
    }

    /// Edits the head that goes to the backend, after the route is settled.
    pub fn edit_request(&self, passed: &Passed, head: &mut RequestHead) {
        match &self.policy.client_tls {
            Some(settings) => client_cert::tell(settings, head),
            // Nobody was asked for a certificate here, and only a trusted proxy may say who has one.
            None if !head.client.trusted => client_cert::forget(head),
            None => {}
        }
        for auth in &self.auth {
            let AuthFilter::Forward(forward) = auth else { continue };
            for name in forward.told_fields() {
                head.headers.remove(name);
            }
        }
        if let Some(granted) = &passed.granted {
            for field in granted.request.iter() {
                head.headers.remove(field.name);
            }
            for field in granted.request.iter() {
                head.headers.push(field.name, field.value);
            }
        }
        edit(&self.policy.headers.request, &mut head.headers);
    }

    /// Edits the head that goes to the client from a backend or the cache.
    pub fn edit_response(
        &self,
        passed: &Passed,
        request: &RequestHead,
        response: &mut ResponseHead,
    ) {
        if let Some(cors) = &self.cors {
            cors.edit(request, response);
        }
        if let Some(granted) = &passed.granted {
            for cookie in &granted.cookies {
                response.headers.push("set-cookie", cookie);
            }
        }
        edit(&self.policy.headers.response, &mut response.headers);
    }

    /// Edits an answer of ours likewise: a browser shows its page no refusal without the fields of CORS,
    /// not even the status.
    pub fn edit_own(&self, request: &RequestHead, mut reply: Reply) -> Reply {
        let response = &mut reply.head;
        // What a browser asked before has its fields already, and more than other answers have.
        let answered = response.status == StatusCode::NO_CONTENT && cors::is_preflight(request);
        if let Some(cors) = self.cors.as_ref().filter(|_| !answered) {
            cors.edit(request, response);
        }
        edit(&self.policy.headers.response, &mut response.headers);
        reply
    }
}

/// Whether a field may be edited by what a route says. What tells where a message ends, whom it is for,
/// and what belongs to one connection is ours alone: changed, two would read it in two ways.
pub fn may_edit(name: &str) -> bool {
    let known = Known::of(name.as_bytes());
    !known.is_hop_by_hop() && !matches!(known, Known::ContentLength | Known::Host | Known::Expect)
}

/// Edits fields, in order.
pub fn edit(edits: &[HeaderEdit], headers: &mut Headers) {
    for edit in edits {
        let (HeaderEdit::Set(name, _) | HeaderEdit::Add(name, _) | HeaderEdit::Remove(name)) = edit;
        if !may_edit(name) {
            continue;
        }
        match edit {
            HeaderEdit::Set(name, value) => {
                headers.set(name, value.as_bytes());
            }
            HeaderEdit::Add(name, value) => {
                headers.push(name.as_bytes(), value.as_bytes());
            }
            HeaderEdit::Remove(name) => headers.remove(name),
        }
    }
}

fn keep<T, E: std::fmt::Display>(read: Result<T, E>, problems: &mut Vec<String>) -> Option<T> {
    read.map_err(|error| problems.push(error.to_string())).ok()
}

fn read_auth(route: &Arc<str>, auth: &Auth, problems: &mut Vec<String>) -> AuthFilter {
    match auth {
        Auth::Deny(why) => AuthFilter::Deny(Arc::clone(why)),
        Auth::Basic(settings) => {
            let (filter, wrong) = BasicFilter::new(settings);
            problems.extend(wrong);
            AuthFilter::Basic(filter)
        }
        Auth::Forward(settings) => match ForwardFilter::new(route, settings, problems) {
            Ok(filter) => AuthFilter::Forward(Box::new(filter)),
            Err(error) => {
                problems.push(error.to_string());
                AuthFilter::Deny(error.to_string().into())
            }
        },
    }
}

fn too_many(head: &RequestHead, reason: &str, wait: Duration) -> Reply {
    let seconds = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1);
    Reply::page(StatusCode::TOO_MANY_REQUESTS, reason, Some(&head.headers))
        .header("retry-after", seconds.to_string())
}

#[cfg(test)]
mod tests;
