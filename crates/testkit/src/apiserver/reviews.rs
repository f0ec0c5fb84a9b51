//! Whose a token is, and what they may do: the answers to TokenReview and SubjectAccessReview.
//!
//! Tests say which accounts there are with [`ApiServer::account`](super::ApiServer::account); every
//! other token is nobody's.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::refusal::Refusal;
use super::resource::Resource;

/// The two kinds of reviews, by their paths.
pub(super) fn resource(path: &str) -> Option<Resource> {
    let (version, plural, kind) = match path {
        "/apis/authentication.k8s.io/v1/tokenreviews" => {
            ("authentication.k8s.io/v1", "tokenreviews", "TokenReview")
        }
        "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
            ("authorization.k8s.io/v1", "subjectaccessreviews", "SubjectAccessReview")
        }
        _ => return None,
    };
    Some(Resource::new(version, plural, kind).cluster_wide())
}

/// Who is known.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    /// Names by their tokens.
    tokens: BTreeMap<String, String>,
    /// What each may: a verb, and `plural.group` of a resource.
    rules: BTreeMap<String, BTreeSet<(String, String)>>,
}

impl Accounts {
    pub(super) fn add(&mut self, token: &str, name: &str, verbs: &[&str], resource: &str) {
        self.tokens.insert(token.to_owned(), name.to_owned());
        let rules = verbs.iter().map(|verb| ((*verb).to_owned(), resource.to_owned()));
        self.rules.insert(name.to_owned(), rules.collect());
    }

    /// The review with its status, as a server answers.
    pub(super) fn review(&self, resource: &Resource, body: &[u8]) -> Result<Value, Refusal> {
        let mut object: Value = serde_json::from_slice(body)
            .map_err(|error| Refusal::new(400, format_args!("the body is not JSON: {error}")))?;
        if object["kind"] != resource.kind || object["apiVersion"] != resource.api_version() {
            let message = format!("the object is not {} {}", resource.api_version(), resource.kind);
            return Err(Refusal::new(400, message));
        }
        let spec = &object["spec"];
        object["status"] = if resource.kind == "TokenReview" {
            match spec["token"].as_str().and_then(|token| self.tokens.get(token)) {
                Some(name) => {
                    let groups = ["system:authenticated"];
                    let user = json!({"username": name, "uid": "1", "groups": groups});
                    json!({"authenticated": true, "user": user})
                }
                None => json!({"error": "invalid bearer token"}),
            }
        } else {
            let asked = &spec["resourceAttributes"];
            let text = |field: &str| asked[field].as_str().unwrap_or_default().to_owned();
            let rule = (text("verb"), format!("{}.{}", text("resource"), text("group")));
            let rules = spec["user"].as_str().and_then(|name| self.rules.get(name));
            json!({"allowed": rules.is_some_and(|rules| rules.contains(&rule))})
        };
        Ok(object)
    }
}
