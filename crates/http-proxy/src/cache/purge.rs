//! Taking things out of the cache by hand.

use thiserror::Error;

use super::Cache;
use super::key::{Key, KeyParts};
use crate::head::Scheme;

/// What to take out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purge {
    /// Everything that is kept of one URL.
    Url(String),
    /// Everything whose URL begins so; at least a scheme and a host.
    Prefix(String),
    /// Everything of one host, whatever scheme and port.
    Host(String),
    /// Everything.
    All,
}

/// Why nothing was purged.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PurgeError {
    /// It is not a URL.
    #[error("{0:?} is not a URL of http or https, such as https://example.org/path")]
    NotUrl(String),
    /// It is not a host.
    #[error("{0:?} is not a host, such as example.org")]
    NotHost(String),
}

impl Cache {
    /// Takes things out; how many URLs. What is being fetched meanwhile is not kept either.
    pub fn purge(&self, what: &Purge) -> Result<usize, PurgeError> {
        let index = &self.shared.index;
        Ok(match Picks::of(what)? {
            Picks::One(uri) => usize::from(index.remove(&uri)),
            picks => index.purge(|uri| picks.has(uri)),
        })
    }

    /// How many URLs a purge would take out now.
    pub fn count(&self, what: &Purge) -> Result<usize, PurgeError> {
        let picks = Picks::of(what)?;
        Ok(self.shared.index.count(|uri| picks.has(uri)))
    }
}

/// Which URIs are meant, in the form of keys.
enum Picks {
    One(String),
    Prefix(String),
    Host(String),
    All,
}

impl Picks {
    fn of(what: &Purge) -> Result<Self, PurgeError> {
        Ok(match what {
            Purge::Url(url) => Self::One(normalised(url)?),
            Purge::Prefix(prefix) => Self::Prefix(normalised(prefix)?),
            Purge::Host(host) => {
                let not_host = || PurgeError::NotHost(host.clone());
                if host.contains(['/', '?', '#', '@']) {
                    return Err(not_host());
                }
                let as_url = normalised(&format!("http://{host}/")).map_err(|_| not_host())?;
                Self::Host(host_of(&as_url).map(str::to_owned).ok_or_else(not_host)?)
            }
            Purge::All => Self::All,
        })
    }

    fn has(&self, uri: &str) -> bool {
        match self {
            Self::One(wanted) => uri == wanted,
            Self::Prefix(prefix) => uri.starts_with(prefix),
            Self::Host(host) => host_of(uri) == Some(host),
            Self::All => true,
        }
    }
}

/// A URL in the form of keys.
fn normalised(url: &str) -> Result<String, PurgeError> {
    let not_url = || PurgeError::NotUrl(url.to_owned());
    let (scheme, rest) = url.split_once("://").ok_or_else(not_url)?;
    let scheme = match scheme.to_ascii_lowercase().as_str() {
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        _ => return Err(not_url()),
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(end);
    let target = target.split('#').next().unwrap_or_default();
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let path = if path.is_empty() { "/" } else { path };
    let parts = KeyParts { scheme, authority, path, query, route: "", backend: "" };
    let key = Key::of_uri(&parts).map_err(|_| not_url())?;
    Ok(key.uri().to_owned())
}

/// The host of a key's URI.
fn host_of(uri: &str) -> Option<&str> {
    let authority = uri.split_once("://")?.1.split('/').next()?;
    Some(authority.rsplit_once(':')?.0)
}
