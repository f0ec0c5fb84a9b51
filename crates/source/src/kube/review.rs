//! Whose a token is, and what they may do: asked of the cluster.
//!
//! Who may read the resource `overrides` of the group `telaio.dev` may look, who may update it may act.

use http::Request;
use serde_json::{Value, json};

use super::Client;

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

/// Whose a token is; `None` for nobody's. What the server refuses to say is logged.
pub async fn review(client: &Client, token: &str) -> Option<Reviewed> {
    let question = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token},
    });
    let answer = ask(client, "/apis/authentication.k8s.io/v1/tokenreviews", &question).await?;
    let status = &answer["status"];
    if status["authenticated"] != true {
        return None;
    }
    let user = &status["user"];
    let name = user["username"].as_str()?.to_owned();
    let may_write = may(client, user, "update").await;
    let may_read = may_write || may(client, user, "get").await;
    Some(Reviewed { name, may_read, may_write })
}

async fn may(client: &Client, user: &Value, verb: &str) -> bool {
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
    let answer = ask(client, "/apis/authorization.k8s.io/v1/subjectaccessreviews", &question).await;
    answer.is_some_and(|answer| answer["status"]["allowed"] == true)
}

async fn ask(client: &Client, path: &str, question: &Value) -> Option<Value> {
    let request = Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(serde_json::to_vec(question).ok()?)
        .ok()?;
    match client.request::<Value>(request).await {
        Ok(answer) => Some(answer),
        Err(error) => {
            tracing::warn!(%error, path, "the cluster does not say whose a token is");
            None
        }
    }
}
