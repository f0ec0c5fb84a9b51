//! Whose a token is, and what they may do: asked of the cluster.
//!
//! Who may read the resource `overrides` of the group `telaio.dev` may look, who may update it may act.

use std::time::Duration;

use http::Request;
use serde_json::{Value, json};

use super::Client;

/// How long the cluster may take for one answer: somebody waits for it.
const PATIENCE: Duration = Duration::from_secs(5);

/// What somebody may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reviewed {
    /// The user's name.
    pub name: String,
    /// Look.
    pub may_read: bool,
    /// Act.
    pub may_write: bool,
}

/// The cluster does not say whose a token is, which tells nothing about the token.
#[derive(Debug, thiserror::Error)]
#[error("the cluster does not answer {path}: {why}")]
pub struct ReviewError {
    /// What was asked.
    path: &'static str,
    /// What came instead of an answer.
    why: String,
}

/// Whose a token is; `None` for nobody's.
pub async fn review(client: &Client, token: &str) -> Result<Option<Reviewed>, ReviewError> {
    let question = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token},
    });
    let answer = ask(client, "/apis/authentication.k8s.io/v1/tokenreviews", &question).await?;
    let status = &answer["status"];
    let user = &status["user"];
    let Some(name) = user["username"].as_str().filter(|_| status["authenticated"] == true) else {
        return Ok(None);
    };
    let may_write = may(client, user, "update").await?;
    let may_read = may_write || may(client, user, "get").await?;
    Ok(Some(Reviewed { name: name.to_owned(), may_read, may_write }))
}

async fn may(client: &Client, user: &Value, verb: &str) -> Result<bool, ReviewError> {
    let question = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": user["username"],
            "groups": user["groups"],
            "uid": user["uid"],
            "extra": user["extra"],
            "resourceAttributes": {"group": "telaio.dev", "resource": "overrides", "verb": verb},
        },
    });
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let answer = ask(client, path, &question).await?;
    Ok(answer["status"]["allowed"] == true)
}

async fn ask(client: &Client, path: &'static str, question: &Value) -> Result<Value, ReviewError> {
    let failed = |why: String| ReviewError { path, why };
    let request = Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(question.to_string().into_bytes())
        .map_err(|error| failed(error.to_string()))?;
    match tokio::time::timeout(PATIENCE, client.request::<Value>(request)).await {
        Ok(answer) => answer.map_err(|error| failed(error.to_string())),
        Err(_) => Err(failed(format!("nothing within {} s", PATIENCE.as_secs()))),
    }
}
