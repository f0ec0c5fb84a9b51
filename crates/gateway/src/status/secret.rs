//! A secret that all proxies of a cluster have in common, in a Secret beside the Lease.
//!
//! The Secret is made with the rights to read and change it, by whoever sets the cluster up: to make
//! Secrets is a right that gives away service accounts, so no proxy has it. Who finds it empty writes
//! its own secret there. A write names the version that it is based on, so of two who do so at once one
//! is refused, and reads again.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;

use super::rest::{Rest, RestError};

/// The Secret's name.
pub const COOKIE_SECRET_NAME: &str = "telaio-ingress-cookies";
/// Its entry.
const ENTRY: &str = "key";
/// How often a write may be refused because somebody else was faster.
const TRIES_MAX: usize = 5;

/// Why there is no secret in common.
#[derive(Debug, thiserror::Error)]
pub enum SharedSecretError {
    /// The server refuses, or there is no such Secret.
    #[error("{0}")]
    Refused(String),
    /// The server cannot be asked now.
    #[error("{0}")]
    Unavailable(String),
    /// What is there is no secret.
    #[error(
        "the entry {ENTRY} of the Secret {0} is not 32 bytes; empty it to have it written anew"
    )]
    Unusable(String),
}

impl From<RestError> for SharedSecretError {
    fn from(error: RestError) -> Self {
        let text = error.to_string();
        if error.is_refused() { Self::Refused(text) } else { Self::Unavailable(text) }
    }
}

/// The secret that all proxies have in common; `own` if nobody has written one yet.
pub async fn shared_secret(
    client: kube::Client,
    namespace: &str,
    own: [u8; 32],
) -> Result<[u8; 32], SharedSecretError> {
    let rest = Rest::new(client);
    let path = format!("/api/v1/namespaces/{namespace}/secrets/{COOKIE_SECRET_NAME}");
    let mut refused = None;
    for _ in 0..TRIES_MAX {
        let mut secret = rest.get(&path).await?;
        let written = secret["data"][ENTRY].as_str().filter(|text| !text.is_empty());
        if let Some(text) = written {
            let bytes = BASE64_STANDARD.decode(text).ok();
            return bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
                SharedSecretError::Unusable(format!("{namespace}/{COOKIE_SECRET_NAME}"))
            });
        }
        secret["apiVersion"] = "v1".into();
        secret["kind"] = "Secret".into();
        if !secret["data"].is_object() {
            secret["data"] = json!({});
        }
        secret["data"][ENTRY] = BASE64_STANDARD.encode(own).into();
        match rest.put(&path, &secret).await {
            Ok(_) => return Ok(own),
            Err(error) if error.is_conflict() => refused = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    let why = refused.map_or_else(String::new, |error| error.to_string());
    Err(SharedSecretError::Unavailable(why))
}
