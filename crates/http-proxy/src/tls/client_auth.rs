//! Client certificates: what a host asks of those who connect to it.
//!
//! Whether a certificate is asked for is settled in the handshake, by the name that the client asks
//! for; what follows from it (403, or a header for the upstream) is settled for each request, when
//! the route is known. A host's settings make one rustls configuration with its own ticket keys.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};

use super::certificate::{CertificateError, read_chain};
use super::{provider, x509};
use crate::table::{ClientTls, ClientTlsMode};

/// Says whether a certificate comes from a host's authority.
#[derive(Debug, Clone)]
pub(super) struct Judge {
    authority: Option<Arc<dyn ClientCertVerifier>>,
    /// For what the authority's verifier does not read.
    certificates: Arc<[CertificateDer<'static>]>,
    /// How many certificates may lie between the client's and the authority's.
    depth: usize,
}

impl Judge {
    /// Reads a route's authority.
    pub(super) fn new(settings: &ClientTls) -> Result<Self, CertificateError> {
        if settings.mode == ClientTlsMode::OptionalUnverified && settings.authorities_pem.is_empty()
        {
            // Then nobody's certificate is verified, and that is said upstream.
            return Ok(Self::nobody());
        }
        let wrong = |reason: String| CertificateError::Unreadable { field: "ca.crt", reason };
        let mut roots = RootCertStore::empty();
        let certificates = read_chain("ca.crt", &settings.authorities_pem)?;
        for certificate in &certificates {
            roots.add(certificate.clone()).map_err(|error| wrong(error.to_string()))?;
        }
        let authority = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|error| wrong(error.to_string()))?;
        let depth = usize::from(settings.verify_depth);
        Ok(Self { authority: Some(authority), certificates: certificates.into(), depth })
    }

    /// Trusts nobody.
    pub(super) fn nobody() -> Self {
        Self { authority: None, certificates: Arc::default(), depth: 0 }
    }

    /// What asks for a certificate in the handshake.
    pub(super) fn asker(&self) -> Arc<dyn ClientCertVerifier> {
        let hints = self.authority.as_ref().map(|it| it.root_hint_subjects().to_vec());
        Arc::new(AskOnly {
            algorithms: provider().signature_verification_algorithms,
            hints: hints.unwrap_or_default(),
        })
    }

    /// Whether the authority signed `chain`, whose first certificate's key the client has proved.
    pub(super) fn verify(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<(), String> {
        let Some(authority) = &self.authority else {
            return Err("no authority is set for this host".to_owned());
        };
        let Some((leaf, rest)) = chain.split_first() else {
            return Err("there is no certificate".to_owned());
        };
        if x509::is_version_1(leaf) {
            let algorithms = provider().signature_verification_algorithms;
            return x509::verify_version_1(leaf, &self.certificates, now, &algorithms);
        }
        // They come in order, each signed by the next.
        let rest = rest.get(..self.depth).unwrap_or(rest);
        match authority.verify_client_cert(leaf, rest, now) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Takes every certificate whose key the client has. Who signed it is judged when the handshake is
/// over: then a client that is refused gets an answer that says why, instead of a broken
/// connection; and a session that is resumed is judged again.
#[derive(Debug)]
struct AskOnly {
    algorithms: WebPkiSupportedAlgorithms,
    hints: Vec<DistinguishedName>,
}

impl AskOnly {
    /// A second look at what webpki cannot read: who has the key of such a certificate is let
    /// through to the judge, too.
    fn or_by_key(
        &self,
        verdict: Result<HandshakeSignatureValid, rustls::Error>,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
        first_only: bool,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let unread = verdict.is_err() && ParsedCertificate::try_from(certificate).is_err();
        if !unread {
            return verdict;
        }
        x509::verify_handshake(message, certificate, signed, &self.algorithms, first_only)?;
        Ok(HandshakeSignatureValid::assertion())
    }
}

impl ClientCertVerifier for AskOnly {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let verdict = verify_tls12_signature(message, certificate, signed, &self.algorithms);
        self.or_by_key(verdict, message, certificate, signed, false)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let verdict = verify_tls13_signature(message, certificate, signed, &self.algorithms);
        self.or_by_key(verdict, message, certificate, signed, true)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
