//! Names of fields that the proxy looks for, as numbers: recognised once, while a head is parsed.

macro_rules! known {
    ($($variant:ident = $name:literal),* $(,)?) => {
        /// A well-known field name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum Known {
            /// None of the others.
            Other,
            $($variant,)*
        }

        const NAMES: &[&str] = &["", $($name),*];
        const VARIANTS: &[Known] = &[Known::Other, $(Known::$variant),*];
    };
}

known! {
    Accept = "accept",
    AcceptEncoding = "accept-encoding",
    AcceptRanges = "accept-ranges",
    AccessControlRequestHeaders = "access-control-request-headers",
    AccessControlRequestMethod = "access-control-request-method",
    Age = "age",
    AltSvc = "alt-svc",
    Authorization = "authorization",
    CacheControl = "cache-control",
    CacheStatus = "cache-status",
    Connection = "connection",
    ContentEncoding = "content-encoding",
    ContentLength = "content-length",
    ContentRange = "content-range",
    ContentType = "content-type",
    Cookie = "cookie",
    Date = "date",
    Etag = "etag",
    Expect = "expect",
    Expires = "expires",
    Forwarded = "forwarded",
    GrpcStatus = "grpc-status",
    Host = "host",
    Http2Settings = "http2-settings",
    IfMatch = "if-match",
    IfModifiedSince = "if-modified-since",
    IfNoneMatch = "if-none-match",
    IfRange = "if-range",
    IfUnmodifiedSince = "if-unmodified-since",
    KeepAlive = "keep-alive",
    LastModified = "last-modified",
    Location = "location",
    Origin = "origin",
    Pragma = "pragma",
    Proxy = "proxy",
    ProxyAuthenticate = "proxy-authenticate",
    ProxyAuthorization = "proxy-authorization",
    ProxyConnection = "proxy-connection",
    Range = "range",
    Referer = "referer",
    RetryAfter = "retry-after",
    SecWebsocketAccept = "sec-websocket-accept",
    SecWebsocketKey = "sec-websocket-key",
    Server = "server",
    SetCookie = "set-cookie",
    SslClientCert = "ssl-client-cert",
    SslClientIssuerDn = "ssl-client-issuer-dn",
    SslClientSubjectDn = "ssl-client-subject-dn",
    SslClientVerify = "ssl-client-verify",
    Te = "te",
    Traceparent = "traceparent",
    Tracestate = "tracestate",
    Trailer = "trailer",
    TransferEncoding = "transfer-encoding",
    Upgrade = "upgrade",
    UserAgent = "user-agent",
    Vary = "vary",
    Via = "via",
    WwwAuthenticate = "www-authenticate",
    XForwardedFor = "x-forwarded-for",
    XForwardedHost = "x-forwarded-host",
    XForwardedPort = "x-forwarded-port",
    XForwardedPrefix = "x-forwarded-prefix",
    XForwardedProto = "x-forwarded-proto",
    XForwardedScheme = "x-forwarded-scheme",
    XForwardedServer = "x-forwarded-server",
    XForwardedSsl = "x-forwarded-ssl",
    XRealIp = "x-real-ip",
    XRequestId = "x-request-id",
    XScheme = "x-scheme",
}

/// How many names may share a place; more would not compile.
const SHARED_MAX: usize = 3;

const PLACES: [[u8; SHARED_MAX]; 256] = places();

/// A name's place, from its length and outer letters: no need to read it all.
const fn place(name: &[u8]) -> usize {
    let (first, last) = (name[0] | 0x20, name[name.len() - 1] | 0x20);
    (name.len().wrapping_mul(37) ^ (first as usize).wrapping_mul(5) ^ (last as usize)) & 0xff
}

const fn places() -> [[u8; SHARED_MAX]; 256] {
    let mut places = [[0; SHARED_MAX]; 256];
    let mut number = 1;
    while number < NAMES.len() {
        let at = place(NAMES[number].as_bytes());
        let mut slot = 0;
        while places[at][slot] != 0 {
            slot += 1;
        }
        places[at][slot] = number as u8;
        number += 1;
    }
    places
}

impl Known {
    /// The number of a name, whatever its case.
    pub fn of(name: &[u8]) -> Self {
        if name.is_empty() {
            return Self::Other;
        }
        for &number in &PLACES[place(name)] {
            let number = usize::from(number);
            if number == 0 {
                break;
            }
            if NAMES[number].as_bytes().eq_ignore_ascii_case(name) {
                return VARIANTS[number];
            }
        }
        Self::Other
    }

    /// The name in lower case; empty for [`Known::Other`].
    pub const fn as_str(self) -> &'static str {
        NAMES[self as usize]
    }

    /// Whether the field says how the client reached the first proxy. Only a proxy that is trusted may.
    pub fn is_forwarding(self) -> bool {
        matches!(
            self,
            Self::Forwarded
                | Self::XForwardedFor
                | Self::XForwardedHost
                | Self::XForwardedPort
                | Self::XForwardedPrefix
                | Self::XForwardedProto
                | Self::XForwardedScheme
                | Self::XForwardedServer
                | Self::XForwardedSsl
                | Self::XRealIp
                | Self::XScheme
        )
    }

    /// Whether the field says what certificate the client has. Only we may, or a proxy that is trusted.
    pub fn is_client_certificate(self) -> bool {
        matches!(
            self,
            Self::SslClientCert
                | Self::SslClientIssuerDn
                | Self::SslClientSubjectDn
                | Self::SslClientVerify
        )
    }

    /// Whether the field concerns one connection only and is never passed on as it is. What a
    /// `Connection` field names beside these goes with them.
    pub fn is_hop_by_hop(self) -> bool {
        matches!(
            self,
            Self::Connection
                | Self::KeepAlive
                | Self::ProxyConnection
                | Self::ProxyAuthenticate
                | Self::ProxyAuthorization
                | Self::Te
                | Self::Trailer
                | Self::TransferEncoding
                | Self::Upgrade
                | Self::Http2Settings
        )
    }
}
