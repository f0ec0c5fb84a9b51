//! A route with everything about it worked out that requests need.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use regex::{Regex, RegexBuilder};
use thiserror::Error;

use crate::filter::RouteFilters;
use crate::head::RequestHead;
use crate::head::target::matching_form;
use crate::table::{Action, BackendId, PathMatch, Predicate, Rewrite, Route};
use crate::upstream::{Upstream, Upstreams};
use crate::watch::stats::RouteStats;

/// How large a compiled regular expression may be.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// Why a route cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CompileError {
    /// Not a regular expression, or too large a one.
    #[error("the regular expression {pattern:?} cannot be used: {reason}")]
    Regex {
        /// The text.
        pattern: String,
        /// What is wrong.
        reason: String,
    },
}

/// Compiles a regular expression as routes have them; the same check for those who make routes.
pub fn compile_regex(pattern: &str, case_insensitive: bool) -> Result<Regex, CompileError> {
    RegexBuilder::new(pattern)
        .case_insensitive(case_insensitive)
        .size_limit(REGEX_BYTES_MAX)
        .build()
        .map_err(|error| CompileError::Regex {
            pattern: pattern.to_owned(),
            reason: error.to_string(),
        })
}

/// One of a route's backends.
#[derive(Debug, Clone)]
pub struct Target {
    /// The backend.
    pub upstream: Arc<Upstream>,
    /// Its weight.
    pub weight: u32,
}

/// A route, ready to serve.
#[derive(Debug)]
pub struct Compiled {
    /// As it was given.
    pub route: Arc<Route>,
    /// Its backends, those of weight 0 left out.
    pub targets: Vec<Target>,
    /// The canaries' backends, in the policy's order.
    pub canaries: Vec<Arc<Upstream>>,
    /// What is decided before anything is forwarded.
    pub filters: RouteFilters,
    /// The backend that answers errors.
    pub error_upstream: Option<Arc<Upstream>>,
    /// What is counted of it, also over changes.
    pub stats: Arc<RouteStats>,
    weight_total: u32,
    turn: AtomicU32,
    path: Option<Regex>,
    rewrite: Option<Regex>,
    header_patterns: Vec<Option<Regex>>,
    canary_patterns: Vec<Option<Regex>>,
}

impl Compiled {
    /// Works a route out. Backends that are not there yet are made without endpoints.
    pub fn new(route: Arc<Route>, upstreams: &Upstreams) -> Result<Self, CompileError> {
        let path = match &route.path {
            PathMatch::Regex(text) => Some(compile_regex(&format!("^(?:{text})"), true)?),
            _ => None,
        };
        let rewrite = match &route.policy.rewrite {
            Some(Rewrite::Regex { pattern, .. }) => Some(compile_regex(pattern, true)?),
            _ => None,
        };
        let header_patterns = route.also.iter().map(|predicate| match predicate {
            Predicate::HeaderRegex(_, pattern) => compile_regex(pattern, false).map(Some),
            _ => Ok(None),
        });
        let header_patterns = header_patterns.collect::<Result<_, _>>()?;
        let canaries = &route.policy.canary;
        let canary_patterns = canaries.iter().map(|rule| {
            rule.header_pattern.as_ref().map(|text| compile_regex(text, false)).transpose()
        });
        let canary_patterns = canary_patterns.collect::<Result<_, _>>()?;
        let upstream = |id: &BackendId| upstreams.get_or_new(id);
        let targets: Vec<_> = match &route.action {
            Action::Forward(backends) => {
                let with_weight = backends.iter().filter(|backend| backend.weight > 0);
                with_weight
                    .map(|own| Target { upstream: upstream(&own.backend), weight: own.weight })
                    .collect()
            }
            _ => Vec::new(),
        };
        let (filters, problems) = RouteFilters::new(&route);
        for problem in problems {
            tracing::warn!(route = %route.id, %problem, "part of its policy cannot be used");
        }
        Ok(Self {
            filters,
            canaries: canaries.iter().map(|rule| upstream(&rule.backend)).collect(),
            error_upstream: route.policy.error_backend.as_ref().map(|own| upstream(&own.backend)),
            weight_total: targets.iter().map(|target| target.weight).sum(),
            stats: Arc::default(),
            turn: AtomicU32::new(0),
            targets,
            path,
            rewrite,
            header_patterns,
            canary_patterns,
            route,
        })
    }

    /// Who is tried first, of expressions and prefixes that match: the longest, then who asks for most,
    /// then the oldest.
    pub(super) fn rank(&self) -> impl Ord + '_ {
        let route = &self.route;
        let text = match &route.path {
            // A slash at the end makes no difference.
            PathMatch::Prefix(prefix) => prefix.trim_end_matches('/'),
            other => other.written(),
        };
        (Reverse(text.len().max(1)), Reverse(route.also.len()), &route.age, &route.id)
    }

    /// Its backend; of several the first.
    pub fn backend(&self) -> Option<&BackendId> {
        self.targets.first().map(|target| target.upstream.id())
    }

    /// Whether the regular expression matches; routes with other paths are found by hash.
    pub(super) fn matches_path(&self, path: &str) -> bool {
        self.path.as_ref().is_some_and(|regex| regex.is_match(path))
    }

    /// Whether the conditions beside host and path hold.
    pub(super) fn holds(&self, request: &RequestHead) -> bool {
        self.route.also.iter().enumerate().all(|(place, predicate)| match predicate {
            Predicate::Method(methods) => methods.contains(&request.method),
            Predicate::Header(name, value) => {
                request.headers.get_all(name).any(|own| own == value.as_bytes())
            }
            Predicate::HeaderRegex(name, _) => {
                let pattern = self.header_patterns[place].as_ref();
                let own = request.headers.get_str(name);
                pattern.zip(own).is_some_and(|(pattern, own)| pattern.is_match(own))
            }
            Predicate::Query(name, value) => {
                let pairs = request.query().unwrap_or_default().split('&');
                pairs
                    .filter_map(|pair| pair.split_once('='))
                    .any(|(n, v)| n == &**name && v == &**value)
            }
        })
    }

    /// The backend for a request: a canary's if a rule says so, else by weight in turn. A client that was
    /// given an endpoint stays with its backend unless a field or cookie of a rule's decides. `chance` is
    /// a random number.
    pub fn choose(&self, request: &RequestHead, chance: u32) -> Option<&Arc<Upstream>> {
        let rules = &self.route.policy.canary;
        if !rules.is_empty() {
            for (place, rule) in rules.iter().enumerate() {
                let pattern = self.canary_patterns[place].as_ref();
                if canary_is_named(rule, pattern, request) == Some(true) {
                    return self.canaries.get(place);
                }
            }
            let named = |place: usize| {
                canary_is_named(&rules[place], self.canary_patterns[place].as_ref(), request)
            };
            let undecided = |place: &usize| named(*place).is_none();
            if let Some(home) = self.home(request, &undecided) {
                return Some(home);
            }
            for place in (0..rules.len()).filter(undecided) {
                let rule = &rules[place];
                if rule.weight > 0 && chance % rule.weight_total.max(1) < rule.weight {
                    return self.canaries.get(place);
                }
            }
        }
        if self.targets.len() <= 1 || self.weight_total == 0 {
            return self.targets.first().map(|target| &target.upstream);
        }
        // A stride that has no common divisor with most totals spreads the turns evenly.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b1);
        let mut at = (u64::from(turn) * u64::from(self.weight_total)) >> 32;
        for target in &self.targets {
            if at < u64::from(target.weight) {
                return Some(&target.upstream);
            }
            at -= u64::from(target.weight);
        }
        self.targets.last().map(|target| &target.upstream)
    }

    /// The backend with the endpoint that the client was given, of the canaries those that may take the
    /// request by chance.
    fn home(&self, request: &RequestHead, may: &dyn Fn(&usize) -> bool) -> Option<&Arc<Upstream>> {
        let canaries = (0..self.canaries.len()).filter(may).filter_map(|at| self.canaries.get(at));
        let all = self.targets.iter().map(|target| &target.upstream).chain(canaries);
        all.into_iter().find(|upstream| {
            let settings = self.keeper(upstream).settings();
            let name = settings.sticky.as_ref().map(|sticky| &sticky.cookie);
            let cookie = name.and_then(|name| crate::head::cookie(&request.headers, name));
            cookie.is_some_and(|cookie| upstream.balancer.knows(cookie))
        })
    }

    /// Whose settings say how clients are kept at a backend's endpoints: a canary's that says nothing
    /// itself are those of what it is a canary of.
    pub fn keeper<'a>(&'a self, upstream: &'a Arc<Upstream>) -> &'a Arc<Upstream> {
        if self.canaries.is_empty() || upstream.settings().sticky.is_some() {
            return upstream;
        }
        let is_canary = self.canaries.iter().any(|canary| Arc::ptr_eq(canary, upstream));
        let main = self.targets.first().map(|target| &target.upstream);
        main.filter(|_| is_canary).unwrap_or(upstream)
    }

    /// The path to ask the backend for, if it is another than the client's; a query may follow it.
    /// It is as the rewrite makes it of what a client wrote: [`RequestHead::rewrite`] checks it.
    pub fn rewritten(&self, path: &str) -> Option<String> {
        let path = &*matching_form(path);
        match self.route.policy.rewrite.as_ref()? {
            Rewrite::ReplaceFull(new) => Some(new.to_string()),
            Rewrite::ReplacePrefix(new) => {
                let PathMatch::Prefix(prefix) = &self.route.path else {
                    return Some(new.to_string());
                };
                let rest = path.strip_prefix(prefix.trim_end_matches('/'))?;
                let joined = format!("{}{rest}", new.trim_end_matches('/'));
                Some(if joined.starts_with('/') { joined } else { format!("/{joined}") })
            }
            Rewrite::Regex { replacement, .. } => {
                let captures = self.rewrite.as_ref()?.captures(path)?;
                let mut new = String::new();
                expand(replacement, &captures, &mut new);
                Some(if new.starts_with('/') { new } else { format!("/{new}") })
            }
        }
    }
}

/// Fills `$1`…`$9` in; anything else is taken as it stands, as nginx does. Within a query a group stays
/// one value.
fn expand(replacement: &str, captures: &regex::Captures<'_>, out: &mut String) {
    let mut rest = replacement;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let digit = rest[at + 1..].chars().next().and_then(|digit| digit.to_digit(10));
        let Some(digit) = digit else {
            out.push('$');
            rest = &rest[at + 1..];
            continue;
        };
        let group = captures.get(digit as usize).map_or("", |group| group.as_str());
        if out.contains('?') {
            out.push_str(&group.replace('&', "%26").replace('+', "%2B").replace('#', "%23"));
        } else {
            out.push_str(group);
        }
        rest = &rest[at + 2..];
    }
    out.push_str(rest);
}

/// Whether a request says itself if it is for a canary: the field decides, else the cookie.
fn canary_is_named(
    rule: &crate::table::CanaryRule,
    pattern: Option<&Regex>,
    request: &RequestHead,
) -> Option<bool> {
    if let Some(own) = rule.header.as_ref().and_then(|name| request.headers.get_str(name)) {
        if let Some(pattern) = pattern {
            if pattern.is_match(own) {
                return Some(true);
            }
        } else if let Some(value) = &rule.header_value {
            if own == &**value {
                return Some(true);
            }
        } else if own == "always" {
            return Some(true);
        } else if own == "never" {
            return Some(false);
        }
    }
    if let Some(own) =
        rule.cookie.as_ref().and_then(|name| crate::head::cookie(&request.headers, name))
    {
        match own {
            "always" => return Some(true),
            "never" => return Some(false),
            _ => {}
        }
    }
    None
}
