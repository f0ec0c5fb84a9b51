//! Kinds of few fields: Secret, ConfigMap and Namespace (`v1`), ServiceCIDR (`networking.k8s.io/v1`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use telaio_model::{FieldError, IpFamily, Kind, Object};

use super::check::Errors;
use super::meta::{Annotations, NameRule};
use super::value::nullable;
use super::{Context, Manifest, ObjectMeta};

/// A Secret. Only the entries of a certificate, and those that say who may come in, are ever read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Secret {
    /// Metadata.
    #[serde(deserialize_with = "nullable")]
    pub metadata: ObjectMeta,
    /// What it holds; only `kubernetes.io/tls` and `Opaque` are kept.
    #[serde(rename = "type")]
    pub secret_type: Option<String>,
    /// Entries in Base64.
    #[serde(deserialize_with = "nullable")]
    pub data: SecretData,
    /// Entries as they are; they win over `data`.
    #[serde(deserialize_with = "nullable")]
    pub string_data: SecretData,
}

/// The entries of a Secret that we read.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub struct SecretData {
    /// `tls.crt`.
    #[serde(rename = "tls.crt")]
    pub certificate: Option<String>,
    /// `tls.key`.
    #[serde(rename = "tls.key")]
    pub private_key: Option<String>,
    /// `ca.crt`.
    #[serde(rename = "ca.crt")]
    pub authority: Option<String>,
    /// `auth`, in the form of htpasswd.
    #[serde(rename = "auth")]
    pub users: Option<String>,
}

/// The key must not reach a log.
impl fmt::Debug for SecretData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretData")
            .field("certificate", &self.certificate.is_some())
            .field("private_key", &self.private_key.is_some())
            .field("authority", &self.authority.is_some())
            .field("users", &self.users.is_some())
            .finish()
    }
}

/// What a Secret becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretValue {
    /// A certificate with its key.
    Tls(telaio_model::TlsSecret),
    /// Who may come in.
    Auth(telaio_model::AuthSecret),
}

impl From<SecretValue> for Object {
    fn from(value: SecretValue) -> Self {
        match value {
            SecretValue::Tls(secret) => secret.into(),
            SecretValue::Auth(secret) => secret.into(),
        }
    }
}

impl Manifest for Secret {
    const KIND: Kind = Kind::TlsSecret;
    const KIND_NAME: &'static str = "Secret";
    const API_VERSION: &'static str = "v1";
    const NAMESPACED: bool = true;
    type Model = SecretValue;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn into_model(self, ctx: &Context) -> Result<Option<SecretValue>, Vec<FieldError>> {
        let is_tls = match self.secret_type.as_deref() {
            Some("kubernetes.io/tls") => true,
            None | Some("" | "Opaque") => false,
            Some(_) => return Ok(None),
        };
        let (plain, encoded) = (self.string_data, self.data);
        let has_auth =
            [&plain, &encoded].iter().any(|it| it.users.is_some() || it.authority.is_some());
        if !is_tls && !has_auth {
            return Ok(None);
        }
        let mut errors = Errors::default();
        let meta = self.metadata.to_model::<Self>(
            ctx,
            NameRule::Subdomain,
            Annotations::Ours,
            &mut errors,
        );
        let mut entry = |name: &str, plain: Option<String>, encoded: Option<String>| match plain {
            Some(plain) => Some(Arc::from(plain.into_bytes())),
            None => decode(name, encoded?, &mut errors),
        };
        let authority = entry("ca.crt", plain.authority, encoded.authority);
        if !is_tls {
            let users = entry("auth", plain.users, encoded.users);
            let secret = telaio_model::AuthSecret { meta, users, authority };
            return errors.finish(Some(SecretValue::Auth(secret)));
        }
        let or_empty = |encoded: Option<String>| Some(encoded.unwrap_or_default());
        let certificate = entry("tls.crt", plain.certificate, or_empty(encoded.certificate));
        let private_key = entry("tls.key", plain.private_key, or_empty(encoded.private_key));
        let secret = certificate.zip(private_key).map(|(certificate, private_key)| {
            SecretValue::Tls(telaio_model::TlsSecret { meta, certificate, private_key, authority })
        });
        errors.finish_with(secret)
    }
}

/// The bytes of an entry. Messages never quote it.
fn decode(name: &str, encoded: String, errors: &mut Errors) -> Option<Arc<[u8]>> {
    let path = format_args!("data[{name}]");
    let mut encoded = encoded;
    encoded.retain(|c| !c.is_ascii_whitespace());
    if encoded.is_empty() {
        errors.push(path, "a Secret of type kubernetes.io/tls needs it");
        return None;
    }
    let bytes = STANDARD.decode(encoded).ok();
    if bytes.is_none() {
        errors.push(path, "is not Base64; use stringData for plain text");
    }
    bytes.map(Arc::from)
}

/// A ConfigMap.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    /// Metadata.
    #[serde(deserialize_with = "nullable")]
    pub metadata: ObjectMeta,
    /// Its text entries.
    #[serde(deserialize_with = "nullable")]
    pub data: BTreeMap<String, String>,
}

impl Manifest for ConfigMap {
    const KIND: Kind = Kind::ConfigMap;
    const KIND_NAME: &'static str = "ConfigMap";
    const API_VERSION: &'static str = "v1";
    const NAMESPACED: bool = true;
    type Model = telaio_model::ConfigMap;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn into_model(self, ctx: &Context) -> Result<Option<telaio_model::ConfigMap>, Vec<FieldError>> {
        let mut errors = Errors::default();
        let meta = self.metadata.to_model::<Self>(
            ctx,
            NameRule::Subdomain,
            Annotations::Ours,
            &mut errors,
        );
        let data = self.data.into_iter().map(|(key, value)| (ctx.intern(&key), Arc::from(value)));
        let config_map = telaio_model::ConfigMap { meta, data: data.collect() };
        errors.finish(Some(config_map))
    }
}

/// A Namespace.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// Metadata.
    #[serde(deserialize_with = "nullable")]
    pub metadata: ObjectMeta,
}

impl Manifest for Namespace {
    const KIND: Kind = Kind::Namespace;
    const KIND_NAME: &'static str = "Namespace";
    const API_VERSION: &'static str = "v1";
    const NAMESPACED: bool = false;
    type Model = telaio_model::Namespace;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn into_model(self, ctx: &Context) -> Result<Option<telaio_model::Namespace>, Vec<FieldError>> {
        let mut errors = Errors::default();
        let meta =
            self.metadata.to_model::<Self>(ctx, NameRule::Label, Annotations::Ours, &mut errors);
        errors.finish(Some(telaio_model::Namespace { meta }))
    }
}

/// A ServiceCIDR.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    /// Metadata.
    #[serde(deserialize_with = "nullable")]
    pub metadata: ObjectMeta,
    /// The networks.
    #[serde(deserialize_with = "nullable")]
    pub spec: ServiceCidrSpec,
}

/// `spec` of a ServiceCIDR.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// The networks, at most one per family.
    #[serde(deserialize_with = "nullable")]
    pub cidrs: Vec<String>,
}

impl Manifest for ServiceCidr {
    const KIND: Kind = Kind::ServiceCidr;
    const KIND_NAME: &'static str = "ServiceCIDR";
    const API_VERSION: &'static str = "networking.k8s.io/v1";
    const NAMESPACED: bool = false;
    type Model = telaio_model::ServiceCidr;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn into_model(
        self,
        ctx: &Context,
    ) -> Result<Option<telaio_model::ServiceCidr>, Vec<FieldError>> {
        let mut errors = Errors::default();
        let meta = self.metadata.to_model::<Self>(
            ctx,
            NameRule::Subdomain,
            Annotations::Ours,
            &mut errors,
        );
        let mut cidrs = Vec::new();
        for (i, text) in self.spec.cidrs.iter().enumerate() {
            let path = format_args!("spec.cidrs[{i}]");
            let Some(cidr) = errors.net(path, text) else { continue };
            let family = IpFamily::of_net(&cidr);
            if cidrs.iter().any(|other| IpFamily::of_net(other) == family) {
                errors.push(path, format_args!("is a second {family} network; one per family"));
                continue;
            }
            cidrs.push(cidr);
        }
        if self.spec.cidrs.is_empty() {
            errors.push("spec.cidrs", "name one or two networks, at most one per family");
        }
        errors.finish(Some(telaio_model::ServiceCidr { meta, cidrs }))
    }
}
