//! TLS for the API: our certificate, and the authority that peers' must come from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use rustls::InconsistentKeys;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use telaio_source::brain::ClientTls;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use crate::cli::{AdminArgs, TlsArgs};
use crate::exit::CommandError;

/// Makes aws-lc-rs the cryptography of the whole process, once, before any TLS.
pub(crate) fn install_crypto_provider() {
    // Only a second call fails, and then the first has done it.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

impl AdminArgs {
    /// The admin API's identity, if it has one.
    pub(crate) fn tls(&self) -> Result<Option<Arc<rustls::ServerConfig>>, CommandError> {
        let (Some(certificate), Some(key)) = (&self.admin_tls_cert, &self.admin_tls_key) else {
            return Ok(None);
        };
        let certificate = PemFile::read("--admin-tls-cert", certificate)?;
        let key = PemFile::read("--admin-tls-key", key)?;
        let secret = PrivateKeyDer::from_pem_slice(&key.bytes)
            .map_err(|error| key.wrong(describe("private key", &error)))?;
        let config = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(certificate.certificates()?, secret);
        let mut config = config.map_err(|error| certificate.wrong(error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Some(Arc::new(config)))
    }
}

const CERT_FLAG: &str = "--tls-cert";
const KEY_FLAG: &str = "--tls-key";
const CA_FLAG: &str = "--tls-ca";

/// A file that a flag names.
struct PemFile<'a> {
    flag: &'static str,
    path: &'a Path,
    bytes: Vec<u8>,
}

impl<'a> PemFile<'a> {
    fn read(flag: &'static str, path: &'a Path) -> Result<Self, CommandError> {
        let bytes = std::fs::read(path)
            .with_context(|| format!("{flag}: cannot read {}", path.display()))
            .map_err(CommandError::BadInput)?;
        Ok(Self { flag, path, bytes })
    }

    /// An authority's certificates, all of which can be trusted in.
    fn authority(path: &'a Path) -> Result<Self, CommandError> {
        let file = Self::read(CA_FLAG, path)?;
        let mut roots = rustls::RootCertStore::empty();
        for certificate in file.certificates()? {
            roots.add(certificate).map_err(|error| file.wrong(error))?;
        }
        Ok(file)
    }

    /// Certificate and key, which belong to each other.
    fn identity(certificate: &'a Path, key: &'a Path) -> Result<(Self, Self), CommandError> {
        let certificate = Self::read(CERT_FLAG, certificate)?;
        let key = Self::read(KEY_FLAG, key)?;
        let chain = certificate.certificates()?;
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let secret = PrivateKeyDer::from_pem_slice(&key.bytes)
            .map_err(|error| key.wrong(describe("private key", &error)))?;
        let secret =
            provider.key_provider.load_private_key(secret).map_err(|error| key.wrong(error))?;
        match CertifiedKey::new(chain, secret).keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {
                Ok((certificate, key))
            }
            Err(rustls::Error::InconsistentKeys(_)) => {
                let of = certificate.path.display();
                Err(key.wrong(format!("it is not the key of the certificate in {of}")))
            }
            Err(error) => Err(certificate.wrong(error)),
        }
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, CommandError> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        let none = || pem::Error::NoItemsFound;
        read.and_then(|all| if all.is_empty() { Err(none()) } else { Ok(all) })
            .map_err(|error| self.wrong(describe("certificate", &error)))
    }

    fn wrong(&self, message: impl std::fmt::Display) -> CommandError {
        CommandError::bad_input(format!("{} {}: {message}", self.flag, self.path.display()))
    }
}

fn describe(wanted: &str, error: &pem::Error) -> String {
    match error {
        pem::Error::NoItemsFound => format!("there is no {wanted} in it, in PEM"),
        other => format!("not PEM: {other}"),
    }
}

impl TlsArgs {
    /// Certificate and key, which come together or not at all.
    fn identity(&self) -> Result<Option<(&PathBuf, &PathBuf)>, CommandError> {
        match (&self.cert, &self.key) {
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (None, None) => Ok(None),
            _ => {
                Err(CommandError::bad_input("--tls-cert and --tls-key belong together: give both"))
            }
        }
    }

    /// For serving; `None` without a certificate of ours: then the API is in the clear.
    pub(crate) fn server(&self) -> Result<Option<ServerTlsConfig>, CommandError> {
        let Some((certificate, key)) = self.identity()? else {
            return match &self.ca {
                None => Ok(None),
                Some(_) => Err(CommandError::bad_input(
                    "--tls-ca alone cannot serve: give --tls-cert and --tls-key too",
                )),
            };
        };
        let (certificate, key) = PemFile::identity(certificate, key)?;
        let identity = Identity::from_pem(certificate.bytes, key.bytes);
        let config = ServerTlsConfig::new().identity(identity);
        Ok(Some(match &self.ca {
            Some(ca) => config.client_ca_root(Certificate::from_pem(PemFile::authority(ca)?.bytes)),
            None => config,
        }))
    }

    /// For a client of the brain at `url`.
    pub(crate) fn client(&self, url: &str) -> Result<Option<ClientTls>, CommandError> {
        let identity = self.identity()?.map(|(cert, key)| (cert.clone(), key.clone()));
        if !is_https(url) {
            return Ok(None);
        }
        let Some(ca) = self.ca.clone() else {
            return Err(CommandError::bad_input(format!(
                "{url} needs --tls-ca, the authority that the brain's certificate comes from"
            )));
        };
        // Asked for by name at each connect; looked at now, so that a slip is found at the start.
        PemFile::authority(&ca)?;
        if let Some((certificate, key)) = &identity {
            PemFile::identity(certificate, key)?;
        }
        Ok(Some(ClientTls { ca, identity }))
    }

    /// Refuses files that a mere client of the brain at `url` would not use: whoever gives them does
    /// not mean to talk in the clear. One that also serves may need them for that.
    pub(crate) fn check_used(&self, url: &str) -> Result<(), CommandError> {
        let given = [(CERT_FLAG, &self.cert), (KEY_FLAG, &self.key), (CA_FLAG, &self.ca)];
        match given.iter().find(|(_, path)| path.is_some()) {
            Some((flag, _)) if !is_https(url) => Err(CommandError::bad_input(format!(
                "{flag} has no use with {url}, which is not encrypted: write https, or leave the \
                 --tls flags out"
            ))),
            _ => Ok(()),
        }
    }
}

fn is_https(url: &str) -> bool {
    url.split_once(':').is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("https"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(cert: Option<&str>, key: Option<&str>, ca: Option<&str>) -> TlsArgs {
        let path = |text: Option<&str>| text.map(PathBuf::from);
        TlsArgs { cert: path(cert), key: path(key), ca: path(ca) }
    }

    #[test]
    fn without_files_there_is_no_tls() {
        assert!(args(None, None, None).server().unwrap().is_none());
        assert!(args(None, None, None).client("http://brain:12090").unwrap().is_none());
    }

    #[test]
    fn half_an_identity_is_refused() {
        assert!(args(Some("cert.pem"), None, None).server().is_err());
        assert!(args(None, Some("key.pem"), None).client("https://brain").is_err());
        assert!(args(None, None, Some("ca.pem")).server().is_err());
    }

    #[test]
    fn files_without_a_use_are_refused() {
        for args in
            [args(None, None, Some("ca.pem")), args(Some("cert.pem"), Some("key.pem"), None)]
        {
            let error = args.check_used("http://brain:12090").unwrap_err();
            assert!(format!("{error:?}").contains("write https"), "{error:?}");
            assert!(args.check_used("https://brain:12090").is_ok());
        }
        assert!(args(None, None, None).check_used("http://brain:12090").is_ok());
        // Whoever serves too may need them there.
        assert!(args(None, None, Some("ca.pem")).client("http://brain").unwrap().is_none());
    }

    #[test]
    fn https_needs_an_authority_that_can_be_read() {
        let error = args(None, None, None).client("https://brain").unwrap_err();
        assert!(format!("{error:?}").contains("--tls-ca"));
        assert!(args(None, None, Some("/nonexistent")).client("https://brain").is_err());
    }
}
