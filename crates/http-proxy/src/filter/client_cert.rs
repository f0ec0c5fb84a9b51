//! Clients' certificates: whether a route takes a request, and what its backend is told.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use regex::Regex;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::distinguished::distinguished_name;
use super::template::escape_into;
use crate::error::ErrorKind;
use crate::head::{Known, RequestHead, TlsInfo};
use crate::reply::Reply;
use crate::router::{CompileError, compile_regex};
use crate::table::{ClientTls, ClientTlsMode};

/// What the backend is told, by the names that ingress-nginx uses. A client's own are never passed.
pub(super) const FIELDS: [&str; 4] = [
    Known::SslClientVerify.as_str(),
    Known::SslClientSubjectDn.as_str(),
    Known::SslClientIssuerDn.as_str(),
    Known::SslClientCert.as_str(),
];

/// What came of asking.
enum Standing {
    Verified,
    Unverified,
    None,
}

/// Whose certificates a route takes, beside what their authority is.
#[derive(Debug, Clone, Default)]
pub enum Subjects {
    /// Anybody's.
    #[default]
    Any,
    /// Those with a subject that matches.
    Matching(Regex),
    /// Nobody's: what they should match cannot be used.
    Nobody,
}

impl Subjects {
    /// Reads a route's settings. If they cannot be used nobody comes in, and the error says why.
    pub fn new(settings: &ClientTls) -> (Self, Option<CompileError>) {
        let Some(pattern) = &settings.subject_pattern else { return (Self::Any, None) };
        match compile_regex(pattern, false) {
            Ok(regex) => (Self::Matching(regex), None),
            Err(error) => (Self::Nobody, Some(error)),
        }
    }

    fn admit(&self, tls: Option<&TlsInfo>) -> bool {
        let regex = match self {
            Self::Any => return true,
            Self::Matching(regex) => regex,
            Self::Nobody => return false,
        };
        // Anybody can write any subject into a certificate that nobody vouches for.
        let der = tls.filter(|tls| tls.client_verified);
        let der = der.and_then(|tls| tls.client_certificate.as_deref());
        let read = der.and_then(|der| X509Certificate::from_der(der).ok());
        read.is_some_and(|(_, it)| regex.is_match(&distinguished_name(it.subject())))
    }
}

/// Judges a request; `None` lets it pass.
pub fn refusal(settings: &ClientTls, subjects: &Subjects, head: &RequestHead) -> Option<Reply> {
    refusal_of_kind(settings, head).or_else(|| {
        let reason = "the subject of the client certificate is not let in";
        let is_admitted = subjects.admit(head.client.tls.as_deref());
        (!is_admitted).then(|| page(settings, head, StatusCode::FORBIDDEN, reason))
    })
}

fn page(settings: &ClientTls, head: &RequestHead, status: StatusCode, reason: &str) -> Reply {
    match &settings.error_page {
        Some(url) => Reply::redirect(StatusCode::FOUND, url),
        None => Reply::page(status, reason, Some(&head.headers)),
    }
}

/// Judges whether a certificate is there and accepted, as far as it is needed.
fn refusal_of_kind(settings: &ClientTls, head: &RequestHead) -> Option<Reply> {
    let page = |status, reason: &str| page(settings, head, status, reason);
    let Some(tls) = head.client.tls.as_deref() else {
        let required = settings.mode == ClientTlsMode::Required;
        return required
            .then(|| page(StatusCode::FORBIDDEN, "this needs a client certificate: use https"));
    };
    // Who was asked for another host, by another authority or not at all has yet to be asked.
    if tls.server_name.as_deref() != Some(head.host()) || !asked_by(settings, tls) {
        return Some(Reply::error(ErrorKind::Misdirected, Some(head)));
    }
    match (settings.mode, standing(tls)) {
        (_, Standing::Verified)
        | (ClientTlsMode::OptionalUnverified, _)
        | (ClientTlsMode::Optional, Standing::None) => None,
        (_, Standing::Unverified) => {
            let why = tls.client_error.as_deref().unwrap_or("unknown authority");
            let reason = format!("the client certificate was not accepted: {why}");
            Some(page(StatusCode::BAD_REQUEST, &reason))
        }
        (ClientTlsMode::Required, Standing::None) => {
            Some(page(StatusCode::BAD_REQUEST, "no client certificate was sent, and one is needed"))
        }
    }
}

fn asked_by(settings: &ClientTls, tls: &TlsInfo) -> bool {
    tls.client_authority.as_deref() == Some(&*settings.authorities_pem)
}

fn standing(tls: &TlsInfo) -> Standing {
    match (&tls.client_certificate, tls.client_verified) {
        (None, _) => Standing::None,
        (Some(_), true) => Standing::Verified,
        (Some(_), false) => Standing::Unverified,
    }
}

/// Removes what a client itself says.
pub fn forget(head: &mut RequestHead) {
    if head.headers.iter().any(|field| field.known.is_client_certificate()) {
        head.headers.retain(|field| !field.known.is_client_certificate());
    }
}

/// Tells the backend who the client is.
pub fn tell(settings: &ClientTls, head: &mut RequestHead) {
    forget(head);
    let Some(tls) = head.client.tls.clone() else { return };
    let verify = match standing(&tls) {
        Standing::Verified => "SUCCESS".to_owned(),
        Standing::None => "NONE".to_owned(),
        Standing::Unverified => {
            format!("FAILED:{}", tls.client_error.as_deref().unwrap_or("unknown authority"))
        }
    };
    head.headers.push(FIELDS[0], verify);
    let Some(der) = tls.client_certificate.as_deref() else { return };
    if let Ok((_, certificate)) = X509Certificate::from_der(der) {
        head.headers.push(FIELDS[1], distinguished_name(certificate.subject()));
        head.headers.push(FIELDS[2], distinguished_name(certificate.issuer()));
    }
    if settings.pass_certificate {
        let encoded = STANDARD.encode(der);
        let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
        for line in encoded.as_bytes().chunks(64) {
            pem.push_str(std::str::from_utf8(line).unwrap_or_default());
            pem.push('\n');
        }
        pem.push_str("-----END CERTIFICATE-----\n");
        let mut escaped = String::with_capacity(pem.len() * 5 / 4);
        escape_into(&pem, &mut escaped);
        head.headers.push(FIELDS[3], escaped);
    }
}

#[cfg(test)]
mod tests;
