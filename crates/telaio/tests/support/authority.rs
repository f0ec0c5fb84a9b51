//! Certificates of peers, from an authority of our own.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// A directory of certificates from one authority.
pub(crate) struct Authority {
    pub(crate) dir: TempDir,
    pub(crate) issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { dir, issuer }
    }

    /// Flags for a peer of this name, who is also reached at these.
    pub(crate) fn flags(&self, name: &str, alternatives: &[&str]) -> Vec<String> {
        let names: Vec<String> = alternatives.iter().map(|it| (*it).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let issuer: &Issuer<'_, KeyPair> = &self.issuer;
        let certificate = params.signed_by(&key, issuer).unwrap();
        let file = |end: &str| self.dir.path().join(format!("{name}.{end}"));
        std::fs::write(file("pem"), certificate.pem()).unwrap();
        std::fs::write(file("key"), key.serialize_pem()).unwrap();
        vec![
            flag("--tls-cert", &file("pem")),
            flag("--tls-key", &file("key")),
            flag("--tls-ca", &self.dir.path().join("ca.pem")),
        ]
    }
}

/// A flag that names a file.
pub(crate) fn flag(name: &str, path: &Path) -> String {
    let path: PathBuf = path.to_owned();
    format!("{name}={}", path.display())
}
