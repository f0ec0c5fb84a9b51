//! TLS for the API: our certificate, and the authority that peers' must come from.

use std::path::{Path, PathBuf};

use anyhow::Context;
use telaio_source::brain::ClientTls;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use crate::cli::TlsArgs;
use crate::exit::CommandError;

/// Makes aws-lc-rs the cryptography of the whole process, once, before any TLS.
pub(crate) fn install_crypto_provider() {
    // Only a second call fails, and then the first has done it.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

fn read(path: &Path) -> Result<Vec<u8>, CommandError> {
    std::fs::read(path)
        .with_context(|| format!("cannot read {}", path.display()))
        .map_err(CommandError::BadInput)
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
        let identity = Identity::from_pem(read(certificate)?, read(key)?);
        let config = ServerTlsConfig::new().identity(identity);
        Ok(Some(match &self.ca {
            Some(ca) => config.client_ca_root(Certificate::from_pem(read(ca)?)),
            None => config,
        }))
    }

    /// For a client of the brain at `url`.
    pub(crate) fn client(&self, url: &str) -> Result<Option<ClientTls>, CommandError> {
        let identity = self.identity()?.map(|(cert, key)| (cert.clone(), key.clone()));
        if !url.starts_with("https:") {
            return Ok(None);
        }
        let Some(ca) = self.ca.clone() else {
            return Err(CommandError::bad_input(format!(
                "{url} needs --tls-ca, the authority that the brain's certificate comes from"
            )));
        };
        // Asked for by name at each connect; looked at now, so that a slip is found at the start.
        for path in identity.iter().flat_map(|(cert, key)| [cert, key]).chain([&ca]) {
            read(path)?;
        }
        Ok(Some(ClientTls { ca, identity }))
    }
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
    fn https_needs_an_authority_that_can_be_read() {
        let error = args(None, None, None).client("https://brain").unwrap_err();
        assert!(format!("{error:?}").contains("--tls-ca"));
        assert!(args(None, None, Some("/nonexistent")).client("https://brain").is_err());
    }
}
