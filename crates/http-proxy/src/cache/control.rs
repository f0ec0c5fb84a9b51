//! Cache directives, of requests and of responses.
//!
//! A response may speak to different caches in different headers. We listen to the most specific one
//! that is valid, and then to no other (RFC 9213 §2.2): `CDN-Cache-Control`, then `Surrogate-Control`,
//! then `Cache-Control`, which alone goes together with `Expires`.
//!
//! What always holds: no bytes make these parsers fail; in doubt a response is kept for less long. A
//! prohibition is understood even where it is written badly, a permission only where it is written well.

use http::{HeaderMap, HeaderName};

use super::fields::Fields;
use super::structured::{self, Value};

#[cfg(test)]
mod tests;

/// Where responses speak to content delivery networks.
pub(crate) const CDN_CACHE_CONTROL: HeaderName = HeaderName::from_static("cdn-cache-control");
/// Where responses speak to surrogates, as reverse proxies were once called.
pub(crate) const SURROGATE_CONTROL: HeaderName = HeaderName::from_static("surrogate-control");
/// How a surrogate tells what it understands.
pub(crate) const SURROGATE_CAPABILITY: HeaderName = HeaderName::from_static("surrogate-capability");
/// The name by which `Surrogate-Control` can speak to us alone.
pub(crate) const SURROGATE_NAME: &str = "telaio";

/// The longest time that directives can name; longer ones mean this (RFC 9111 §1.2.2).
const SECONDS_MAX: u64 = 1 << 31;

/// What a directive is about: nothing, the whole response, or some of its headers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Reach {
    #[default]
    Nothing,
    Whole,
    Headers(Vec<HeaderName>),
}

impl Reach {
    /// Also about what a directive's value names.
    fn extend(&mut self, value: Option<&[u8]>) {
        let Some(value) = value else {
            *self = Self::Whole;
            return;
        };
        let mut names = match std::mem::take(self) {
            Self::Nothing => Vec::new(),
            Self::Headers(names) => names,
            Self::Whole => {
                *self = Self::Whole;
                return;
            }
        };
        for name in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if name.is_empty() {
                continue;
            }
            let Ok(name) = HeaderName::from_bytes(name) else {
                // A name that is none could have been any.
                *self = Self::Whole;
                return;
            };
            names.push(name);
        }
        *self = if names.is_empty() { Self::Whole } else { Self::Headers(names) };
    }

    /// The headers it names.
    pub(crate) fn headers(&self) -> &[HeaderName] {
        match self {
            Self::Headers(names) => names,
            Self::Nothing | Self::Whole => &[],
        }
    }
}

/// Which header a response's directives were taken from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Voice {
    /// `Cache-Control`, and `Expires` beside it.
    #[default]
    CacheControl,
    /// A header that is meant for caches like us.
    Targeted,
}

/// A response's directives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ResponseDirectives {
    pub(crate) voice: Voice,
    pub(crate) no_store: bool,
    pub(crate) no_cache: Reach,
    pub(crate) private: Reach,
    pub(crate) public: bool,
    pub(crate) must_revalidate: bool,
    pub(crate) proxy_revalidate: bool,
    pub(crate) must_understand: bool,
    pub(crate) no_transform: bool,
    pub(crate) max_age_s: Option<u64>,
    pub(crate) s_maxage_s: Option<u64>,
    pub(crate) stale_while_revalidate_s: Option<u64>,
    pub(crate) stale_if_error_s: Option<u64>,
}

impl ResponseDirectives {
    /// The directives that are meant for us.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        Self::of_dictionary(headers)
            .or_else(|| Self::of_surrogate(headers))
            .unwrap_or_else(|| Self::of_cache_control(headers))
    }

    fn of_cache_control(headers: &HeaderMap) -> Self {
        let mut directives = Self::default();
        for line in headers.get_all(http::header::CACHE_CONTROL) {
            for directive in Directives::of(line.as_bytes()) {
                directives.add(&directive);
            }
        }
        directives
    }

    fn of_dictionary(headers: &HeaderMap) -> Option<Self> {
        let lines: Vec<&[u8]> =
            headers.get_all(CDN_CACHE_CONTROL).iter().map(http::HeaderValue::as_bytes).collect();
        let members = structured::dictionary(&lines.join(&b", "[..]))?;
        if members.is_empty() {
            return None;
        }
        let mut directives = Self { voice: Voice::Targeted, ..Self::default() };
        for (key, value) in &members {
            // A directive of the wrong type tells that the field is not what we take it for.
            if takes_seconds(key) && !matches!(value, Value::Integer(_)) {
                return None;
            }
            let written;
            let value = match value {
                Value::Boolean(false) => continue,
                Value::Boolean(true) => None,
                Value::Integer(number) => {
                    written = number.to_string();
                    Some(written.as_bytes())
                }
                Value::String(text) => Some(text.as_bytes()),
                Value::Other => Some(&b"?"[..]),
            };
            directives.add(&Directive { name: key.as_bytes(), value, well_formed: true });
        }
        Some(directives)
    }

    fn of_surrogate(headers: &HeaderMap) -> Option<Self> {
        let mut directives = Self { voice: Voice::Targeted, ..Self::default() };
        let mut meant = false;
        for line in headers.get_all(SURROGATE_CONTROL) {
            for directive in Directives::of(line.as_bytes()) {
                let whole = directive.value.unwrap_or(directive.name);
                let mut parts = whole.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
                let first = parts.next().unwrap_or_default();
                let targets: Vec<&[u8]> = parts.collect();
                let for_us =
                    targets.iter().any(|to| to.eq_ignore_ascii_case(SURROGATE_NAME.as_bytes()));
                if !targets.is_empty() && !for_us {
                    continue;
                }
                meant = true;
                let (name, value) = match directive.value {
                    Some(_) => (directive.name, Some(first)),
                    None => (first, None),
                };
                // "600+30": fresh for ten minutes, and usable half a minute longer meanwhile.
                let mut times = value.into_iter().flat_map(|v| v.split(|byte| *byte == b'+'));
                let fresh = times.next();
                if name.eq_ignore_ascii_case(b"max-age")
                    && let Some(longer) = times.next()
                {
                    let name = &b"stale-while-revalidate"[..];
                    directives.add(&Directive { name, value: Some(longer), ..directive });
                }
                directives.add(&Directive { name, value: fresh, ..directive });
            }
        }
        meant.then_some(directives)
    }

    fn add(&mut self, directive: &Directive<'_>) {
        let Directive { name, value, well_formed } = *directive;
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
        // What is written badly may have named anything.
        let named = value.filter(|_| well_formed);
        if is("no-store") {
            self.no_store = true;
        } else if is("no-cache") {
            self.no_cache.extend(named);
        } else if is("private") {
            self.private.extend(named);
        } else if is("must-revalidate") {
            self.must_revalidate = true;
        } else if is("proxy-revalidate") {
            self.proxy_revalidate = true;
        } else if is("no-transform") {
            self.no_transform = true;
        } else if is("must-understand") {
            self.must_understand = true;
        } else if is("max-age") {
            lower(&mut self.max_age_s, directive);
        } else if is("s-maxage") {
            lower(&mut self.s_maxage_s, directive);
        } else if is("stale-while-revalidate") {
            lower(&mut self.stale_while_revalidate_s, directive);
        } else if is("stale-if-error") {
            lower(&mut self.stale_if_error_s, directive);
        } else if is("public") && well_formed {
            self.public = true;
        }
    }

    /// Whether the origin says that a response may be shared although who asked was known to it
    /// (RFC 9111 §3.5).
    pub(crate) fn shares_authorized(&self) -> bool {
        self.public || self.must_revalidate || self.s_maxage_s.is_some()
    }
}

fn takes_seconds(name: &str) -> bool {
    matches!(name, "max-age" | "s-maxage" | "stale-while-revalidate" | "stale-if-error")
}

/// Of several times the shortest counts, and what is no time is none at all (RFC 9111 §4.2.1).
fn lower(known: &mut Option<u64>, directive: &Directive<'_>) {
    let told = if directive.well_formed { directive.value.and_then(seconds) } else { None };
    let told = told.unwrap_or(0);
    *known = Some(known.map_or(told, |before| before.min(told)));
}

/// A request's directives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RequestDirectives {
    pub(crate) no_store: bool,
    pub(crate) no_cache: bool,
    pub(crate) only_if_cached: bool,
    pub(crate) max_age_s: Option<u64>,
    pub(crate) min_fresh_s: Option<u64>,
    /// How stale a response may be; without a value in the request it is as long as can be.
    pub(crate) max_stale_s: Option<u64>,
    pub(crate) stale_if_error_s: Option<u64>,
}

impl RequestDirectives {
    /// The directives of a request.
    pub(crate) fn of(headers: &impl Fields) -> Self {
        let mut directives = Self::default();
        for line in headers.values(&http::header::CACHE_CONTROL) {
            for Directive { name, value, .. } in Directives::of(line) {
                let is = |wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
                if is("no-store") {
                    directives.no_store = true;
                } else if is("no-cache") {
                    directives.no_cache = true;
                } else if is("only-if-cached") {
                    directives.only_if_cached = true;
                } else if is("max-age") {
                    directives.max_age_s = value.and_then(seconds);
                } else if is("min-fresh") {
                    directives.min_fresh_s = value.and_then(seconds);
                } else if is("max-stale") {
                    directives.max_stale_s = value.map_or(Some(SECONDS_MAX), seconds);
                } else if is("stale-if-error") {
                    directives.stale_if_error_s = value.and_then(seconds);
                }
            }
        }
        directives
    }
}

/// One directive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Directive<'a> {
    pub(crate) name: &'a [u8],
    /// What stands after the equals sign, without the quotes around it.
    pub(crate) value: Option<&'a [u8]>,
    /// Nothing stands where it should not.
    pub(crate) well_formed: bool,
}

/// The directives of one line, in order.
pub(crate) struct Directives<'a> {
    rest: &'a [u8],
}

impl<'a> Directives<'a> {
    /// The directives of a line.
    pub(crate) fn of(line: &'a [u8]) -> Self {
        Self { rest: line }
    }

    /// Up to the next comma that is not within quotes.
    fn next_member(&mut self) -> &'a [u8] {
        let mut quoted = false;
        let mut escaped = false;
        let end = self.rest.iter().position(|byte| {
            let ends = *byte == b',' && !quoted;
            if escaped {
                escaped = false;
            } else if quoted && *byte == b'\\' {
                escaped = true;
            } else if *byte == b'"' {
                quoted = !quoted;
            }
            ends
        });
        let end = end.unwrap_or(self.rest.len());
        let member = &self.rest[..end];
        self.rest = self.rest.get(end + 1..).unwrap_or_default();
        member.trim_ascii()
    }
}

impl<'a> Iterator for Directives<'a> {
    type Item = Directive<'a>;

    fn next(&mut self) -> Option<Directive<'a>> {
        let member = loop {
            if self.rest.is_empty() {
                return None;
            }
            let member = self.next_member();
            if !member.is_empty() {
                break member;
            }
        };
        let Some(equals) = member.iter().position(|byte| *byte == b'=') else {
            return Some(Directive { name: member, value: None, well_formed: true });
        };
        let (name, value) = (&member[..equals], &member[equals + 1..]);
        let well_formed = name == name.trim_ascii() && value == value.trim_ascii();
        let value = value.trim_ascii();
        let unquoted = value.strip_prefix(b"\"").and_then(|inner| inner.strip_suffix(b"\""));
        Some(Directive {
            name: name.trim_ascii(),
            value: Some(unquoted.unwrap_or(value)),
            well_formed,
        })
    }
}

/// Seconds, as many as we can think of (RFC 9111 §1.2.2).
pub(crate) fn seconds(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let sum = digits.iter().fold(0u64, |sum, digit| {
        (sum.saturating_mul(10)).saturating_add(u64::from(digit - b'0')).min(SECONDS_MAX)
    });
    Some(sum)
}
