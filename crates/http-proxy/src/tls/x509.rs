//! Certificates that webpki does not read: above all those of version 1, which have no extensions.
//!
//! `openssl x509 -req` without a file of extensions makes them, and so do the examples that many
//! followed to give their clients certificates. What is proved here is what any certificate can
//! prove: that the client has its key ([`verify_handshake`]), and that an authority signed it
//! ([`verify_version_1`]).

use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm, UnixTime};
use rustls::{DigitallySignedStruct, PeerMisbehaved};
use x509_parser::asn1_rs::Any;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::{FromDer, ParsedExtension};
use x509_parser::x509::{SubjectPublicKeyInfo, X509Version};

/// Whether the holder of `certificate`'s key signed `message` in a handshake.
pub(super) fn verify_handshake(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
    first_only: bool,
) -> Result<(), rustls::Error> {
    let candidates = algorithms.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme);
    let Some((_, candidates)) = candidates else {
        return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
    };
    // TLS 1.3 has one curve for each scheme, TLS 1.2 leaves it open.
    let candidates = if first_only { candidates.get(..1).unwrap_or_default() } else { candidates };
    let parsed = read(certificate).ok_or(rustls::CertificateError::BadEncoding)?;
    let fits = |algorithm: &dyn SignatureVerificationAlgorithm| {
        verify_with(algorithm, parsed.public_key(), message, signed.signature())
    };
    if candidates.iter().any(|algorithm| fits(*algorithm)) {
        return Ok(());
    }
    Err(rustls::CertificateError::BadSignature.into())
}

/// Whether `leaf` has version 1.
pub(super) fn is_version_1(leaf: &CertificateDer<'_>) -> bool {
    read(leaf).is_some_and(|leaf| leaf.version() == X509Version::V1)
}

/// Whether one of `authorities` signed `leaf` itself, which has version 1. There is no chain in
/// between, and an authority that may only vouch for certain names vouches for none without
/// extensions.
pub(super) fn verify_version_1(
    leaf: &CertificateDer<'_>,
    authorities: &[CertificateDer<'_>],
    now: UnixTime,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<(), String> {
    let parsed = read(leaf).ok_or("the certificate cannot be read")?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now < parsed.validity().not_before.timestamp() {
        return Err("invalid peer certificate: NotValidYet".to_owned());
    }
    if now > parsed.validity().not_after.timestamp() {
        return Err("invalid peer certificate: Expired".to_owned());
    }
    let signed_by = |authority: &CertificateDer<'_>| {
        let Some(authority) = read(authority) else { return false };
        authority.subject().as_raw() == parsed.issuer().as_raw()
            && !has_name_constraints(&authority)
            && signed(leaf, &parsed, authority.public_key(), algorithms)
    };
    if authorities.iter().any(signed_by) {
        return Ok(());
    }
    Err("invalid peer certificate: UnknownIssuer".to_owned())
}

fn has_name_constraints(authority: &X509Certificate<'_>) -> bool {
    let constrains = |it: &ParsedExtension<'_>| matches!(it, ParsedExtension::NameConstraints(_));
    authority.extensions().iter().any(|it| constrains(it.parsed_extension()))
}

/// Whether `key` made the signature of a certificate.
fn signed(
    der: &CertificateDer<'_>,
    parsed: &X509Certificate<'_>,
    key: &SubjectPublicKeyInfo<'_>,
    algorithms: &WebPkiSupportedAlgorithms,
) -> bool {
    if parsed.tbs_certificate.signature != parsed.signature_algorithm {
        return false;
    }
    let Some(named) = signature_algorithm(der) else { return false };
    let message = parsed.tbs_certificate.as_ref();
    let signature = parsed.signature_value.data.as_ref();
    let fitting = algorithms.all.iter().filter(|it| it.signature_alg_id().as_ref() == named);
    fitting.into_iter().any(|algorithm| verify_with(*algorithm, key, message, signature))
}

fn verify_with(
    algorithm: &dyn SignatureVerificationAlgorithm,
    key: &SubjectPublicKeyInfo<'_>,
    message: &[u8],
    signature: &[u8],
) -> bool {
    let kind = inside(key.raw).and_then(inside);
    kind == Some(algorithm.public_key_alg_id().as_ref())
        && algorithm.verify_signature(&key.subject_public_key.data, message, signature).is_ok()
}

/// Reads a certificate with nothing behind it.
fn read<'a>(der: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    X509Certificate::from_der(der).ok().filter(|(rest, _)| rest.is_empty()).map(|(_, it)| it)
}

/// The content of the signature's algorithm: the second part of a certificate.
fn signature_algorithm(der: &[u8]) -> Option<&[u8]> {
    let (behind, _) = Any::from_der(inside(der)?).ok()?;
    inside(behind)
}

/// The content of the first value.
fn inside(der: &[u8]) -> Option<&[u8]> {
    Any::from_der(der).ok().map(|(_, value)| value.data)
}
