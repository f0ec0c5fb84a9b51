//! Annotations about hosts, paths and redirects.

use std::sync::Arc;

use super::options::RedirectOption;
use super::table::{Row, set, set_flag};
use super::values::{self, BadValue, Read};

/// The most aliases of one Ingress.
const ALIASES_MAX: usize = 64;

/// See [`super::table::GROUPS`].
pub(super) const ROWS: &[Row] = &[
    Row::both(
        "rewrite-target",
        "a path; $1 to $9 stand for the groups of the path's regular expression",
        "The path that the backend sees. The whole path is replaced, and the query stays; a query of its \
         own goes before it. A request whose groups would bring .. into it is answered with 400.",
        |text, options| set(&mut options.rewrite_target, rewrite_target(text)),
    ),
    Row::both(
        "use-regex",
        "true or false",
        "Paths of type Prefix and ImplementationSpecific are regular expressions, compared from the \
         beginning without regard to case.",
        |text, options| set_flag(text, &mut options.use_regex),
    )
    .but(
        "only this Ingress's paths become regular expressions; in ingress-nginx all paths of the \
         host do, also those of other Ingresses, and Exact ones. As there, the longest text of a host's \
         paths is tried first. Look-around and back references are not there",
    ),
    Row::both(
        "app-root",
        "a path",
        "Where a request for / is redirected to (302).",
        |text, options| set(&mut options.app_root, values::path(text)),
    ),
    Row::both(
        "server-alias",
        "hosts, separated by commas",
        "Further hosts that all rules of this Ingress hold for. An Ingress that names such a host \
         itself wins.",
        |text, options| {
            let hosts = values::list(text)?;
            if hosts.len() > ALIASES_MAX {
                return Err(BadValue(format!("has more than {ALIASES_MAX} hosts")));
            }
            if let Some(regex) = hosts.iter().find(|host| host.starts_with('~')) {
                let instead = "each host by its name, or *.example.com for all of one label; hosts are no \
                               regular expressions here";
                return Err(BadValue::new(regex, instead));
            }
            options.aliases = hosts.into_iter().map(values::host).collect::<Read<_>>()?;
            Ok(())
        },
    )
    .but("hosts and wildcards only; regular expressions (~…) are not taken"),
    Row::both(
        "ssl-redirect",
        "true or false",
        "Whether HTTP is redirected to HTTPS (308) on hosts that have TLS. True unless said \
         otherwise.",
        |text, options| set(&mut options.ssl_redirect, values::flag(text)),
    ),
    Row::both(
        "force-ssl-redirect",
        "true or false",
        "HTTP is redirected to HTTPS (308) whether or not this Ingress has TLS, as behind a load \
         balancer that opens it.",
        |text, options| set_flag(text, &mut options.force_ssl_redirect),
    ),
    Row::both(
        "ssl-passthrough",
        "true or false",
        "TLS for the hosts of this Ingress goes to the backend of / unopened. Nothing else of the \
         Ingress then holds.",
        |text, options| set_flag(text, &mut options.ssl_passthrough),
    ),
    Row::both(
        "permanent-redirect",
        "a URL or a path; $request_uri may stand at its end",
        "Every request is redirected there (301).",
        |text, options| set(&mut options.permanent_redirect, redirect(text)),
    ),
    Row::both(
        "permanent-redirect-code",
        "301 or 308",
        "The status of that redirect.",
        |text, options| set(&mut options.permanent_redirect_code, status(text)),
    ),
    Row::both(
        "temporal-redirect",
        "a URL or a path; $request_uri may stand at its end",
        "Every request is redirected there (302). Wins over permanent-redirect.",
        |text, options| set(&mut options.temporal_redirect, redirect(text)),
    ),
    Row::both(
        "temporal-redirect-code",
        "302, 303 or 307",
        "The status of that redirect.",
        |text, options| set(&mut options.temporal_redirect_code, status(text)),
    ),
    Row::both(
        "relative-redirects",
        "true or false",
        "Nothing: redirects are written as they were given.",
        |text, _| values::flag(text).map(|_| ()),
    ),
    Row::both(
        "from-to-www-redirect",
        "true or false",
        "A request for www.HOST is redirected to HOST, or the other way round where the Ingress \
         names www.HOST (308).",
        |text, options| set_flag(text, &mut options.www_redirect),
    ),
];

fn rewrite_target(text: &str) -> Read<Arc<str>> {
    if text.contains("://") {
        let expected = "a path; permanent-redirect or temporal-redirect lead to other URLs";
        return Err(BadValue::new(text, expected));
    }
    let target = values::path(text)?;
    let mut dollars = target.split('$').skip(1);
    if dollars.any(|rest| !rest.starts_with(|c: char| matches!(c, '1'..='9'))) {
        return Err(BadValue::new(text, "a path in which $ is followed by a number from 1 to 9"));
    }
    Ok(target)
}

fn redirect(text: &str) -> Read<RedirectOption> {
    let (location, append_uri) = match text.strip_suffix("$request_uri") {
        Some(location) => (location.trim_end_matches('/'), true),
        None => (text, false),
    };
    if location.contains('$') {
        return Err(BadValue::new(text, "a URL without variables but $request_uri at its end"));
    }
    Ok(RedirectOption { location: values::url(location, true)?, append_uri })
}

fn status(text: &str) -> Read<u16> {
    match text.parse() {
        Ok(code @ (301 | 302 | 303 | 307 | 308)) => Ok(code),
        _ => Err(BadValue::new(text, "301, 302, 303, 307 or 308")),
    }
}
