//! A certificate with its key, as a Secret has it, and the one that we make ourselves.

use std::sync::Arc;

use rustls::InconsistentKeys;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::provider;
use crate::watch::snapshot::CertificateInfo;

/// The name in the certificate that is shown when there is no better one.
const DEFAULT_NAME: &str = "telaio.invalid";
/// The longest chain that is taken.
const CHAIN_MAX: usize = 16;
/// The most names that are read from one certificate.
const NAMES_MAX: usize = 1024;

/// Why a certificate and key cannot be used. Made for a warning on the object that has them.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CertificateError {
    /// A field without what belongs there.
    #[error("{field}: there is no {what} in it, in PEM")]
    Nothing {
        /// The Secret's field.
        field: &'static str,
        /// Certificate or key.
        what: &'static str,
    },
    /// A field that cannot be read.
    #[error("{field}: {reason}")]
    Unreadable {
        /// The Secret's field.
        field: &'static str,
        /// What the parser said.
        reason: String,
    },
    /// Each is fine alone.
    #[error("tls.key is not the key of the certificate in tls.crt: put both from one renewal")]
    NotAPair,
    /// A chain of unreasonable length.
    #[error("tls.crt has more than {CHAIN_MAX} certificates: leave only the chain of this one")]
    TooLong,
    /// The default could not be made.
    #[error("making the self-signed default certificate: {0}")]
    Making(String),
}

/// A certificate that can serve: chain and key belong together.
#[derive(Debug, Clone)]
pub struct Certificate {
    key: Arc<CertifiedKey>,
    names: Arc<[Box<str>]>,
    not_after_s: i64,
}

impl Certificate {
    /// Reads a Secret's `tls.crt` and `tls.key`.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, CertificateError> {
        let chain = read_chain("tls.crt", chain)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| unreadable("tls.key", "private key", &error))?;
        Self::new(chain, key)
    }

    /// The certificate for whoever asks for a name that nobody has: made now, signed by itself, so
    /// that a handshake can end and an error page be shown.
    pub fn self_signed() -> Result<Self, CertificateError> {
        let making = |error: rcgen::Error| CertificateError::Making(error.to_string());
        let mut params =
            rcgen::CertificateParams::new(vec![DEFAULT_NAME.to_owned()]).map_err(making)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "Telaio: no certificate for this host");
        let pair = rcgen::KeyPair::generate().map_err(making)?;
        let certificate = params.self_signed(&pair).map_err(making)?;
        let key = PrivatePkcs8KeyDer::from(pair.serialize_der());
        Self::new(vec![certificate.der().clone()], key.into())
    }

    fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, CertificateError> {
        let (names, not_after_s) = match chain.first() {
            Some(leaf) => read_leaf(leaf)?,
            None => {
                return Err(CertificateError::Nothing { field: "tls.crt", what: "certificate" });
            }
        };
        let key = provider().key_provider.load_private_key(key).map_err(|error| {
            CertificateError::Unreadable { field: "tls.key", reason: error.to_string() }
        })?;
        let key = CertifiedKey::new(chain, key);
        match key.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(rustls::Error::InconsistentKeys(_)) => return Err(CertificateError::NotAPair),
            Err(error) => {
                let reason = error.to_string();
                return Err(CertificateError::Unreadable { field: "tls.crt", reason });
            }
        }
        Ok(Self { key: Arc::new(key), names: names.into(), not_after_s })
    }

    /// What rustls serves with.
    pub fn key(&self) -> &Arc<CertifiedKey> {
        &self.key
    }

    /// The DNS names that it is for, in lower case.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    /// When it ends, in seconds since 1970.
    pub fn not_after_s(&self) -> i64 {
        self.not_after_s
    }

    /// Whether a client that asks for `host` (in lower case) will take it.
    pub fn covers(&self, host: &str) -> bool {
        let parent = host.split_once('.').map(|(_, parent)| parent);
        self.names().any(|name| match name.strip_prefix("*.") {
            Some(suffix) => parent == Some(suffix) || name == host,
            None => name == host,
        })
    }
}

/// Reads certificates that are only to be trusted in: a Secret's `ca.crt`.
pub(super) fn read_chain(
    field: &'static str,
    bytes: &[u8],
) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let mut chain = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(bytes) {
        chain.push(certificate.map_err(|error| unreadable(field, "certificate", &error))?);
        if field == "tls.crt" && chain.len() > CHAIN_MAX {
            return Err(CertificateError::TooLong);
        }
    }
    if chain.is_empty() {
        return Err(CertificateError::Nothing { field, what: "certificate" });
    }
    Ok(chain)
}

fn unreadable(field: &'static str, what: &'static str, error: &pem::Error) -> CertificateError {
    match error {
        pem::Error::NoItemsFound => CertificateError::Nothing { field, what },
        other => CertificateError::Unreadable { field, reason: format!("not PEM: {other}") },
    }
}

fn read_leaf(leaf: &CertificateDer<'_>) -> Result<(Vec<Box<str>>, i64), CertificateError> {
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|error| {
        CertificateError::Unreadable { field: "tls.crt", reason: error.to_string() }
    })?;
    let mut names = Vec::new();
    if let Ok(Some(extension)) = parsed.subject_alternative_name() {
        for name in extension.value.general_names.iter().take(NAMES_MAX) {
            if let GeneralName::DNSName(name) = name {
                names.push(name.to_ascii_lowercase().into_boxed_str());
            }
        }
    }
    Ok((names, parsed.validity().not_after.timestamp()))
}

/// What stands in a certificate; nothing in one that cannot be read.
pub(super) fn describe(leaf: &CertificateDer<'_>) -> CertificateInfo {
    let Ok((_, parsed)) = X509Certificate::from_der(leaf) else {
        return CertificateInfo::default();
    };
    let names = read_leaf(leaf).map(|(names, _)| names).unwrap_or_default();
    CertificateInfo {
        names: names.into_iter().map(String::from).collect(),
        not_before_s: parsed.validity().not_before.timestamp(),
        not_after_s: parsed.validity().not_after.timestamp(),
        subject: parsed.subject().to_string(),
        issuer: parsed.issuer().to_string(),
        ..CertificateInfo::default()
    }
}

#[cfg(test)]
pub(crate) mod tests;
