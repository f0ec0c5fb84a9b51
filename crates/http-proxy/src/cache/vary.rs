//! Which of several responses to one URI a request gets: `Vary` (RFC 9111 §4.1).

use http::header::{ACCEPT, ACCEPT_CHARSET, ACCEPT_ENCODING, ACCEPT_LANGUAGE, VARY};
use http::{HeaderMap, HeaderName};

use super::fields::Fields;

#[cfg(test)]
mod tests;

/// A response that depends on more fields than this depends on everything.
const NAMES_MAX: usize = 16;

/// The fields of a request that a response depends on, with their values in that request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    /// Sorted by name; a field that was absent has no value.
    fields: Vec<(HeaderName, Option<Box<[u8]>>)>,
}

impl Selector {
    /// What a response depends on; none if no other request can match (`Vary: *`, or what is no list
    /// of names).
    pub(crate) fn of(response: &HeaderMap, request: &impl Fields) -> Option<Self> {
        let mut names: Vec<HeaderName> = Vec::new();
        for line in response.get_all(VARY) {
            for name in line.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                if name.is_empty() {
                    continue;
                }
                // The asterisk is a token, but no field has that name.
                let name = HeaderName::from_bytes(name).ok().filter(|name| name != "*")?;
                names.push(name);
            }
        }
        names.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
        names.dedup();
        if names.len() > NAMES_MAX {
            return None;
        }
        let fields = names.into_iter().map(|name| {
            let value = normalised(&name, request);
            (name, value)
        });
        Some(Self { fields: fields.collect() })
    }

    /// Whether a request has what the first one had.
    pub(crate) fn matches(&self, request: &impl Fields) -> bool {
        self.fields.iter().all(|(name, value)| normalised(name, request) == *value)
    }

    /// Whether a request has what the first one had, except that it may ask for the language that the
    /// response is in by other words.
    pub(crate) fn matches_in_language(&self, request: &impl Fields, language: &[u8]) -> bool {
        self.fields.iter().all(|(name, value)| {
            if *name == ACCEPT_LANGUAGE && likes_best(request, language) {
                return true;
            }
            normalised(name, request) == *value
        })
    }

    /// Whether it names the language among the fields.
    pub(crate) fn has_language(&self) -> bool {
        self.fields.iter().any(|(name, _)| *name == ACCEPT_LANGUAGE)
    }

    /// The same names, with another request's values.
    pub(crate) fn for_request(&self, request: &impl Fields) -> Self {
        let fields = self.fields.iter();
        Self { fields: fields.map(|(name, _)| (name.clone(), normalised(name, request))).collect() }
    }

    /// The memory it takes, about.
    pub(crate) fn byte_count(&self) -> usize {
        let size = |value: &Option<Box<[u8]>>| value.as_ref().map_or(0, |value| value.len());
        self.fields.iter().map(|(name, value)| 64 + name.as_str().len() + size(value)).sum()
    }

    /// A number for it, the same in this process for the same fields and values.
    pub(crate) fn digest(&self, hasher: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        for (name, value) in &self.fields {
            name.as_str().hash(hasher);
            value.hash(hasher);
        }
    }
}

/// A field's value with everything taken out that does not count: lines joined, blanks around commas
/// gone, and where the value is a list of preferences, its order and case.
fn normalised(name: &HeaderName, request: &impl Fields) -> Option<Box<[u8]>> {
    let mut values = request.values(name).peekable();
    values.peek()?;
    let mut joined = Vec::new();
    for (index, value) in values.enumerate() {
        if index > 0 {
            joined.push(b',');
        }
        joined.extend_from_slice(value.trim_ascii());
    }
    // Quotes can hide commas, and blanks that count.
    if joined.contains(&b'"') {
        return Some(joined.into());
    }
    let members = joined.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let preferences = [ACCEPT, ACCEPT_CHARSET, ACCEPT_ENCODING, ACCEPT_LANGUAGE].contains(name);
    if !preferences {
        return Some(members.collect::<Vec<_>>().join(&b","[..]).into());
    }
    let mut members: Vec<Vec<u8>> =
        members.filter(|member| !member.is_empty()).map(normalised_preference).collect();
    members.sort_unstable();
    Some(members.join(&b","[..]).into())
}

/// One preference in lower case, without blanks, and without the quality that is meant anyway.
fn normalised_preference(member: &[u8]) -> Vec<u8> {
    let lower = member.to_ascii_lowercase();
    let parts = lower.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let whole = [&b"q=1"[..], b"q=1.0", b"q=1.00", b"q=1.000"];
    parts.filter(|part| !whole.contains(part)).collect::<Vec<_>>().join(&b";"[..])
}

/// Whether a request likes one language better than any other, and it is this one.
fn likes_best(request: &impl Fields, language: &[u8]) -> bool {
    let mut best = None;
    let mut alone = false;
    for line in request.values(&ACCEPT_LANGUAGE) {
        for member in line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            let mut parts = member.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let tag = parts.next().unwrap_or_default();
            let quality = quality_thousandths(parts.next());
            if tag.is_empty() || quality == 0 {
                continue;
            }
            match best {
                Some((_, known)) if known > quality => {}
                Some((_, known)) if known == quality => alone = false,
                _ => (best, alone) = (Some((tag, quality)), true),
            }
        }
    }
    alone && best.is_some_and(|(tag, _)| tag.eq_ignore_ascii_case(language.trim_ascii()))
}

/// A quality, `q=0.5`, in thousandths; what is none is no liking at all.
fn quality_thousandths(parameter: Option<&[u8]>) -> u32 {
    let Some(parameter) = parameter else { return 1000 };
    let value = parameter.strip_prefix(b"q=").or_else(|| parameter.strip_prefix(b"Q="));
    let text = value.and_then(|value| std::str::from_utf8(value).ok());
    let quality = text.and_then(|text| text.parse::<f32>().ok()).unwrap_or(0.0);
    // From 0 to 1000, so nothing is cut off.
    #[allow(clippy::cast_sign_loss)]
    let thousandths = (quality.clamp(0.0, 1.0) * 1000.0) as u32;
    thousandths
}
