//! Reading a request's header fields, whichever way they are kept.
//!
//! On a hit the cache looks at half a dozen fields and needs no map of them: it reads the wire's own
//! list. Only what goes to the origin is made into a map.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::head::Headers;

/// Something that has header fields.
pub trait Fields {
    /// The values of all fields of that name, in order.
    fn values<'a>(&'a self, name: &'a HeaderName) -> impl Iterator<Item = &'a [u8]>;

    /// All fields, as a map of its own.
    fn to_map(&self) -> HeaderMap;

    /// Whether there is a field of that name.
    fn has(&self, name: &HeaderName) -> bool {
        self.values(name).next().is_some()
    }
}

impl Fields for HeaderMap {
    fn values<'a>(&'a self, name: &'a HeaderName) -> impl Iterator<Item = &'a [u8]> {
        self.get_all(name).iter().map(HeaderValue::as_bytes)
    }

    fn to_map(&self) -> HeaderMap {
        self.clone()
    }
}

impl Fields for Headers {
    fn values<'a>(&'a self, name: &'a HeaderName) -> impl Iterator<Item = &'a [u8]> {
        self.get_all(name.as_str())
    }

    fn to_map(&self) -> HeaderMap {
        Headers::to_map(self)
    }
}
