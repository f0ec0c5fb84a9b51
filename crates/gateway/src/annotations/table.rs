//! The table of annotations: one row says how an annotation is called, what it expects, what it
//! does, and how it is read. The documentation is printed from the same rows.

use std::sync::LazyLock;

use super::options::Options;
use super::values::{self, Read};
use super::{access, routing, traffic, upstream};

/// The prefix of our own annotations.
pub const OURS: &str = "telaio.dev/";
/// The prefix of ingress-nginx's.
pub const NGINX: &str = "nginx.ingress.kubernetes.io/";

/// One annotation.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Its name, after the prefix.
    pub name: &'static str,
    /// Whether ingress-nginx has it too, so that its prefix is read as well.
    pub nginx: bool,
    /// What its value must be.
    pub expects: &'static str,
    /// What it does.
    pub does: &'static str,
    /// How that differs from ingress-nginx, if it does.
    pub differs: Option<&'static str>,
    /// It keeps somebody out: where its value cannot be used nobody comes in, for open would be worse.
    pub guard: bool,
    /// What else it is called, where it is only another name; of the two it wins.
    pub also: Option<&'static str>,
    /// Reads its value.
    pub read: fn(&str, &mut Options) -> Read<()>,
}

impl Row {
    /// An annotation that ingress-nginx has too.
    pub(super) const fn both(
        name: &'static str,
        expects: &'static str,
        does: &'static str,
        read: fn(&str, &mut Options) -> Read<()>,
    ) -> Self {
        Self { name, nginx: true, expects, does, differs: None, guard: false, also: None, read }
    }

    /// One of ours alone.
    pub(super) const fn ours(
        name: &'static str,
        expects: &'static str,
        does: &'static str,
        read: fn(&str, &mut Options) -> Read<()>,
    ) -> Self {
        Self { name, nginx: false, expects, does, differs: None, guard: false, also: None, read }
    }

    /// The same, with what differs.
    pub(super) const fn but(mut self, differs: &'static str) -> Self {
        self.differs = Some(differs);
        self
    }

    /// The same as a guard.
    pub(super) const fn guard(mut self) -> Self {
        self.guard = true;
        self
    }

    /// The same, but only as another name.
    pub(super) const fn another_name_of(mut self, name: &'static str) -> Self {
        self.also = Some(name);
        self
    }

    /// One that ingress-nginx needs and we do not: its value may be anything.
    pub(super) const fn needless(name: &'static str, why: &'static str) -> Self {
        let mut row =
            Self::both(name, "anything", "Nothing: it is not needed here.", |_, _| Ok(()));
        row.differs = Some(why);
        row
    }
}

/// An annotation of ingress-nginx that is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Its name, after the prefix.
    pub name: &'static str,
    /// Why.
    pub why: &'static str,
    /// What to do instead.
    pub instead: &'static str,
    /// The value that asks for what is so anyway, and is taken.
    pub taken: Option<&'static str>,
}

impl Refused {
    const fn new(name: &'static str, why: &'static str, instead: &'static str) -> Self {
        Self { name, why, instead, taken: None }
    }

    /// The same, but for a value that asks for what is so anyway.
    const fn but_for(mut self, value: &'static str) -> Self {
        self.taken = Some(value);
        self
    }
}

/// The parts of the table, with their headings.
pub const GROUPS: &[(&str, &[Row])] = &[
    ("Hosts, paths and redirects", routing::ROWS),
    ("Backends", upstream::ROWS),
    ("Who may come in", access::ROWS),
    ("Traffic: canaries, limits, cache, copies", traffic::ROWS),
    ("Taken and without effect", NEEDLESS),
];

/// All rows by name.
static BY_NAME: LazyLock<std::collections::HashMap<&'static str, &'static Row>> =
    LazyLock::new(|| {
        GROUPS.iter().flat_map(|(_, rows)| *rows).map(|row| (row.name, row)).collect()
    });

/// The row of this name.
pub(super) fn row(name: &str) -> Option<&'static Row> {
    BY_NAME.get(name).copied()
}

/// The refused annotation of this name.
pub(super) fn refused(name: &str) -> Option<&'static Refused> {
    REFUSED.iter().find(|refused| refused.name == name)
}

const STREAMS: &str = "bodies are streamed both ways and never written to a disk";
const TRACED: &str =
    "traces are switched on for the whole proxy, and traceparent is always passed on";

/// What ingress-nginx needs because of how nginx works.
const NEEDLESS: &[Row] = &[
    Row::needless("client-body-buffer-size", STREAMS),
    Row::needless("connection-proxy-header", "the Connection header is made for each connection"),
    Row::needless("enable-opentelemetry", TRACED),
    Row::needless("enable-opentracing", TRACED),
    Row::needless("enable-rewrite-log", "`telaio trace --url` shows what a request meets"),
    Row::needless("http2-push-preload", "browsers have removed HTTP/2 push"),
    Row::needless("opentelemetry-operation-name", "spans are called by the request's method"),
    Row::needless("opentelemetry-trust-incoming-span", TRACED),
    Row::needless("opentracing-trust-incoming-span", TRACED),
    Row::needless("preserve-trailing-slash", "redirects keep the path as it is"),
    Row::needless("proxy-buffer-size", STREAMS),
    Row::needless("proxy-buffering", STREAMS),
    Row::needless("proxy-buffers-number", STREAMS),
    Row::needless("proxy-busy-buffers-size", STREAMS),
    Row::needless("proxy-http-version", "HTTP/1.1 or HTTP/2, by backend-protocol"),
    Row::needless("proxy-max-temp-file-size", STREAMS),
    Row::needless("proxy-request-buffering", STREAMS),
    Row::needless("ssl-prefer-server-ciphers", "TLS 1.2 and 1.3 with strong ciphers only"),
    Row::needless("ssl-ciphers", "TLS 1.2 and 1.3 with strong ciphers only"),
    Row::needless("proxy-ssl-ciphers", "TLS 1.2 and 1.3 with strong ciphers only"),
    Row::needless("proxy-ssl-protocols", "TLS 1.2 and 1.3 with strong ciphers only"),
    Row::needless("proxy-ssl-verify-depth", "chains are as long as the verifier takes"),
    Row::needless("proxy-ssl-server-name", "SNI is always sent"),
];

const SNIPPET: &str = "text that is pasted into a configuration lets whoever writes an Ingress run \
                       what they like in the proxy and read every secret of the cluster \
                       (CVE-2025-1974 and others)";
const WAF: &str = "there is no ModSecurity in this proxy";

/// What is refused.
pub const REFUSED: &[Refused] = &[
    Refused::new(
        "configuration-snippet",
        SNIPPET,
        "the typed annotations: custom-headers, rewrite-target, permanent-redirect, cors-*, \
                  limit-*, and so on; see docs/annotations.md",
    ),
    Refused::new(
        "server-snippet",
        SNIPPET,
        "the typed annotations, or further paths of the Ingress",
    ),
    Refused::new("stream-snippet", SNIPPET, "a Service of type LoadBalancer for what is not HTTP"),
    Refused::new("auth-snippet", SNIPPET, "auth-proxy-set-headers with a ConfigMap"),
    Refused::new("modsecurity-snippet", SNIPPET, "a firewall in front or as a backend"),
    Refused::new("enable-modsecurity", WAF, "a firewall in front or as a backend"),
    Refused::new("enable-owasp-core-rules", WAF, "a firewall in front or as a backend"),
    Refused::new("modsecurity-transaction-id", WAF, "a firewall in front or as a backend"),
    Refused::new(
        "limit-rate",
        "a connection's speed is not limited here",
        "limit-rps or limit-connections",
    ),
    Refused::new(
        "limit-rate-after",
        "a connection's speed is not limited here",
        "limit-rps or limit-connections",
    ),
    Refused::new(
        "global-rate-limit",
        "limits are counted by each proxy; there is no shared memcached",
        "limit-rps",
    ),
    Refused::new(
        "proxy-cookie-domain",
        "cookies of backends are passed on as they are",
        "upstream-vhost, so that the backend sets the right domain",
    ),
    Refused::new(
        "proxy-cookie-path",
        "cookies of backends are passed on as they are",
        "x-forwarded-prefix, so that the backend sets the right path",
    ),
    Refused::new(
        "proxy-redirect-from",
        "redirects of backends are passed on as they are",
        "x-forwarded-prefix or upstream-vhost, so that the backend makes the right ones",
    ),
    Refused::new(
        "proxy-redirect-to",
        "redirects of backends are passed on as they are",
        "x-forwarded-prefix or upstream-vhost, so that the backend makes the right ones",
    ),
    Refused::new(
        "satisfy",
        "all conditions must hold: an address alone does not replace a password",
        "two Ingresses with a path each",
    )
    .but_for("all"),
    Refused::new(
        "enable-global-auth",
        "there is no authentication for all Ingresses at once",
        "auth-url on each Ingress that needs it",
    )
    .but_for("false"),
    Refused::new(
        "upstream-hash-by-subset",
        "a hash leads to one endpoint, not to a group",
        "upstream-hash-by alone",
    ),
    Refused::new(
        "upstream-hash-by-subset-size",
        "a hash leads to one endpoint, not to a group",
        "upstream-hash-by alone",
    ),
];

/// Reads a flag into a field.
pub(super) fn set_flag(text: &str, place: &mut bool) -> Read<()> {
    *place = values::flag(text)?;
    Ok(())
}

/// Reads a value into an optional field.
pub(super) fn set<T>(place: &mut Option<T>, value: Read<T>) -> Read<()> {
    *place = Some(value?);
    Ok(())
}
