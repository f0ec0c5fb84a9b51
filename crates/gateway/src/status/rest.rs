//! The few requests that writing needs, as plain JSON.

use std::time::Duration;

use http::{Method, Request};
use serde_json::Value;

/// How long an answer may take.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(4);

/// Why a request did not do what it should.
#[derive(Debug, thiserror::Error)]
pub(super) enum RestError {
    /// The server says no.
    #[error("{method} {path}: {code} {message}")]
    Refused {
        /// What was asked.
        method: Method,
        /// Of what.
        path: String,
        /// The status.
        code: u16,
        /// What it says.
        message: String,
    },
    /// There is no answer.
    #[error("{method} {path}: {message}")]
    Unavailable {
        /// What was asked.
        method: Method,
        /// Of what.
        path: String,
        /// Why.
        message: String,
    },
}

impl RestError {
    fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Unavailable { .. } => None,
        }
    }

    /// The server has answered, and would answer the same again.
    pub(super) fn is_refused(&self) -> bool {
        self.code().is_some_and(|code| (400..500).contains(&code) && code != 429)
    }

    /// It is not there.
    pub(super) fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Somebody else was faster, or it exists already.
    pub(super) fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }
}

/// A client that speaks JSON.
#[derive(Clone)]
pub(super) struct Rest {
    client: kube::Client,
}

impl std::fmt::Debug for Rest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rest").finish_non_exhaustive()
    }
}

impl Rest {
    pub(super) fn new(client: kube::Client) -> Self {
        Self { client }
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value, RestError> {
        self.ask(Method::GET, path, None, "application/json").await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value, RestError> {
        self.ask(Method::POST, path, Some(body), "application/json").await
    }

    pub(super) async fn put(&self, path: &str, body: &Value) -> Result<Value, RestError> {
        self.ask(Method::PUT, path, Some(body), "application/json").await
    }

    pub(super) async fn merge_patch(&self, path: &str, body: &Value) -> Result<Value, RestError> {
        self.ask(Method::PATCH, path, Some(body), "application/merge-patch+json").await
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        media_type: &str,
    ) -> Result<Value, RestError> {
        let unavailable = |message: String| RestError::Unavailable {
            method: method.clone(),
            path: path.to_owned(),
            message,
        };
        let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header("content-type", media_type)
            .body(bytes)
            .map_err(|error| unavailable(error.to_string()))?;
        let answer = tokio::time::timeout(ANSWER_TIME_MAX, self.client.request::<Value>(request));
        match answer.await {
            Err(_) => Err(unavailable("no answer in time".to_owned())),
            Ok(Ok(value)) => Ok(value),
            Ok(Err(kube::Error::Api(status))) => Err(RestError::Refused {
                method: method.clone(),
                path: path.to_owned(),
                code: status.code,
                message: status.message.clone(),
            }),
            Ok(Err(error)) => Err(unavailable(error.to_string())),
        }
    }
}
