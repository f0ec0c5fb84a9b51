//! Redirects: to https, to an application's own root, and wherever a route says.

use http::StatusCode;

use super::template::{Template, UnknownName};
use crate::head::RequestHead;
use crate::head::target::matching_form;
use crate::reply::Reply;
use crate::table::{PathMatch, Redirect};

/// The status for a redirect that keeps method and body.
const USUAL_STATUS: u16 = 308;

/// Sends a client to the same address by https. `port` is where that is served, for whoever is told;
/// 443 needs no telling.
pub fn to_https(status: u16, head: &RequestHead, port: u16) -> Reply {
    let host = bracketed(head.host());
    let location = match port {
        443 => format!("https://{host}{}", head.path_and_query()),
        port => format!("https://{host}:{port}{}", head.path_and_query()),
    };
    reply(status, &location)
}

/// Sends a client from `/` to the application's root.
pub fn to_app_root(root: &str, head: &RequestHead) -> Option<Reply> {
    (head.path() == "/" && root != "/").then(|| reply(302, root))
}

fn reply(status: u16, location: &str) -> Reply {
    let status = StatusCode::from_u16(status)
        .ok()
        .filter(StatusCode::is_redirection)
        .unwrap_or(StatusCode::PERMANENT_REDIRECT);
    Reply::redirect(status, location)
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// A route's redirect, read once.
#[derive(Debug, Clone)]
pub struct RedirectFilter {
    settings: Redirect,
    url: Option<Template>,
}

impl RedirectFilter {
    /// Reads a redirect; its URL may have [names](Template) in it.
    pub fn new(settings: &Redirect) -> Result<Self, UnknownName> {
        let url = settings.url.as_deref().map(Template::parse).transpose()?;
        Ok(Self { settings: settings.clone(), url })
    }

    /// The answer to a request that came by `matched`.
    pub fn reply(&self, head: &RequestHead, matched: &PathMatch) -> Reply {
        let status = if self.settings.status == 0 { USUAL_STATUS } else { self.settings.status };
        match &self.url {
            Some(url) => reply(status, &url.fill(head)),
            None => reply(status, &self.location(head, matched)),
        }
    }

    fn location(&self, head: &RequestHead, matched: &PathMatch) -> String {
        let settings = &self.settings;
        let scheme = settings.scheme.as_deref().unwrap_or(head.scheme.as_str());
        let host = bracketed(settings.host.as_deref().unwrap_or_else(|| head.host()));
        // Without a port of its own a new scheme has its usual one; else the client's port stays.
        let port = settings.port.or_else(|| settings.scheme.is_none().then(|| head.port()));
        let usual = if scheme == "https" { 443 } else { 80 };
        let port = port.filter(|port| *port != usual).map(|port| format!(":{port}"));
        let path = match (&settings.path, &settings.replace_prefix) {
            (Some(path), _) => path.to_string(),
            (None, Some(prefix)) => replace_prefix(&matching_form(head.path()), matched, prefix),
            (None, None) => head.path().to_owned(),
        };
        // A path that is written out is all that there is to it.
        let query = head.query().filter(|_| settings.path.is_none());
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        format!("{scheme}://{host}{}{path}{query}", port.unwrap_or_default())
    }
}

/// The path with what a route matched replaced, path element by path element.
fn replace_prefix(path: &str, matched: &PathMatch, replacement: &str) -> String {
    let prefix = match matched {
        PathMatch::Prefix(prefix) | PathMatch::Exact(prefix) => prefix.trim_end_matches('/'),
        PathMatch::Regex(_) => "",
    };
    let rest = path.strip_prefix(prefix).unwrap_or(path).trim_start_matches('/');
    let base = replacement.trim_end_matches('/');
    match (base.is_empty(), rest.is_empty()) {
        (_, true) if !replacement.is_empty() => replacement.to_owned(),
        _ => format!("{base}/{rest}"),
    }
}

#[cfg(test)]
mod tests;
