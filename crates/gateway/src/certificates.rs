//! Certificates from secrets: whether they can be used, and for which names.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use telaio_model::TlsSecret;
use x509_parser::extensions::GeneralName;

/// The longest chain.
const CHAIN_MAX: usize = 16;

/// Whether a secret holds a chain and the key of its first certificate; else what is wrong. Messages
/// never quote what is in it.
pub fn check(secret: &TlsSecret) -> Result<(), String> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&secret.certificate)
        .take(CHAIN_MAX + 1)
        .collect::<Result<_, _>>()
        .map_err(|_| "tls.crt is not PEM".to_owned())?;
    if chain.is_empty() {
        return Err("tls.crt has no certificate".to_owned());
    }
    if chain.len() > CHAIN_MAX {
        return Err(format!("tls.crt has more than {CHAIN_MAX} certificates"));
    }
    let key = PrivateKeyDer::from_pem_slice(&secret.private_key)
        .map_err(|_| "tls.key is no private key in PEM".to_owned())?;
    CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider())
        .map(|_| ())
        .map_err(|error| format!("tls.crt and tls.key do not go together ({error})"))
}

/// The DNS names of the first certificate of a chain in PEM.
pub fn names(pem: &[u8]) -> Vec<Arc<str>> {
    let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(pem) else { return Vec::new() };
    let Ok(certificate) = pem.parse_x509() else { return Vec::new() };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    let dns = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase().into()),
        _ => None,
    });
    dns.collect()
}

/// Until when the first certificate of a chain in PEM holds, in seconds since 1970.
pub fn not_after_s(pem: &[u8]) -> Option<i64> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem).ok()?;
    Some(pem.parse_x509().ok()?.validity().not_after.timestamp())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

    use telaio_model::{Meta, ObjectKey};

    use super::*;

    fn secret(certificate: &str, key: &str) -> TlsSecret {
        TlsSecret {
            meta: Meta::named(ObjectKey::new("shop", "cert")),
            certificate: Arc::from(certificate.as_bytes()),
            private_key: Arc::from(key.as_bytes()),
            authority: None,
        }
    }

    #[test]
    fn a_certificate_needs_its_own_key() {
        let names_asked = vec!["a.example.com".to_owned(), "*.example.org".to_owned()];
        let one = rcgen::generate_simple_self_signed(names_asked).unwrap();
        let other = rcgen::generate_simple_self_signed(vec!["b.example.com".to_owned()]).unwrap();
        let (pem, key) = (one.cert.pem(), one.signing_key.serialize_pem());
        assert_eq!(check(&secret(&pem, &key)), Ok(()));
        let found: Vec<_> = names(pem.as_bytes()).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["a.example.com", "*.example.org"]);
        let wrong = other.signing_key.serialize_pem();
        assert!(check(&secret(&pem, &wrong)).unwrap_err().contains("do not go together"));
        assert!(check(&secret("", &key)).unwrap_err().contains("no certificate"));
        assert!(check(&secret(&pem, "x")).unwrap_err().contains("tls.key"));
        assert!(names(b"x").is_empty());
    }
}
