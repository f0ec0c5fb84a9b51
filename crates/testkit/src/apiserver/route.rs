//! What a request's path and query mean.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{Method, Uri};

use super::refusal::Refusal;
use super::selector::{FieldQuery, LabelQuery};
use super::store::{Query, Store};

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    /// Something that is no resource: `/version`, `/api`, `/apis` and the like.
    Discovery,
    /// A resource's objects, or one of them.
    Objects(ObjectsRoute),
}

/// A resource's objects, or one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObjectsRoute {
    pub(super) index: usize,
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) status: bool,
}

impl Route {
    pub(super) fn parse(store: &Store, path: &str) -> Result<Self, Refusal> {
        let unknown = || Refusal::new(404, "the server could not find the requested resource");
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => (("", *version), rest),
            ["apis", group, version, rest @ ..] if !rest.is_empty() => ((*group, *version), rest),
            ["version" | "api" | "apis" | "healthz" | "livez" | "readyz", ..] => {
                return Ok(Self::Discovery);
            }
            _ => return Err(unknown()),
        };
        let (namespace, rest) = match rest {
            // `namespaces/x` and `namespaces/x/status` are the namespace itself.
            ["namespaces", namespace, rest @ ..]
                if !matches!(rest, [] | ["status" | "finalize"]) =>
            {
                (Some((*namespace).to_owned()), rest)
            }
            _ => (None, rest),
        };
        let (plural, name, status) = match rest {
            [plural] => (plural, None, false),
            [plural, name] => (plural, Some((*name).to_owned()), false),
            [plural, name, "status"] => (plural, Some((*name).to_owned()), true),
            _ => return Err(unknown()),
        };
        let index = store
            .find(|r| (r.group.as_str(), r.version.as_str()) == group && r.plural == **plural)
            .ok_or_else(unknown)?;
        let resource = store.resource(index);
        if (status && !resource.has_status) || (namespace.is_some() && !resource.namespaced) {
            return Err(unknown());
        }
        Ok(Self::Objects(ObjectsRoute { index, namespace, name, status }))
    }
}

impl ObjectsRoute {
    /// The verb as RBAC names it.
    pub(super) fn verb(&self, method: &Method, parameters: &Parameters) -> Option<&'static str> {
        Some(match (method.as_str(), self.name.is_some()) {
            ("GET", true) => "get",
            ("GET", false) if parameters.flag("watch") => "watch",
            ("GET", false) => "list",
            ("POST", false) => "create",
            ("PUT", true) => "update",
            ("PATCH", true) => "patch",
            ("DELETE", true) => "delete",
            ("DELETE", false) => "deletecollection",
            _ => return None,
        })
    }
}

/// The parameters of a query.
#[derive(Debug, Default)]
pub(super) struct Parameters(BTreeMap<String, String>);

impl Parameters {
    pub(super) fn of(uri: &Uri) -> Self {
        let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(key, value)| (percent_decode(key), percent_decode(value)))
                .collect(),
        )
    }

    /// A parameter that is there and not empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some("true" | "1"))
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        self.get(name)
            .map(str::parse)
            .transpose()
            .map_err(|_| Refusal::new(400, format_args!("{name}: not a number")))
    }

    pub(super) fn timeout(&self) -> Result<Option<Duration>, Refusal> {
        Ok(self.number("timeoutSeconds")?.map(Duration::from_secs))
    }

    /// The objects that the selectors mean.
    pub(super) fn query(&self, namespace: Option<String>) -> Result<Query, Refusal> {
        let bad = |why: String| Refusal::new(400, why);
        Ok(Query {
            namespace,
            labels: LabelQuery::parse(self.get("labelSelector").unwrap_or_default())
                .map_err(bad)?,
            fields: FieldQuery::parse(self.get("fieldSelector").unwrap_or_default())
                .map_err(bad)?,
        })
    }
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        let escaped = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match (byte, escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(decoded)) => {
                bytes.push(decoded);
                rest = &tail[2..];
            }
            (b'+', _) => bytes.push(b' '),
            _ => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::resource;
    use super::*;

    fn objects(path: &str) -> (String, Option<String>, Option<String>, bool) {
        let store = Store::new(resource::built_in(), 10);
        match Route::parse(&store, path).unwrap() {
            Route::Objects(r) => {
                (store.resource(r.index).plural.clone(), r.namespace, r.name, r.status)
            }
            Route::Discovery => panic!("{path} is no resource"),
        }
    }

    #[test]
    fn a_namespace_is_an_object_and_a_place() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(objects("/api/v1/namespaces"), ("namespaces".into(), None, None, false));
        assert_eq!(objects("/api/v1/namespaces/a"), ("namespaces".into(), None, some("a"), false));
        assert_eq!(
            objects("/api/v1/namespaces/a/status"),
            ("namespaces".into(), None, some("a"), true)
        );
        assert_eq!(
            objects("/api/v1/namespaces/a/services"),
            ("services".into(), some("a"), None, false)
        );
        assert_eq!(
            objects("/apis/networking.k8s.io/v1/namespaces/a/ingresses/b/status"),
            ("ingresses".into(), some("a"), some("b"), true)
        );
    }

    #[test]
    fn what_does_not_exist_is_not_found() {
        let store = Store::new(resource::built_in(), 10);
        for path in [
            "/api/v1/widgets",
            "/apis/none/v1/services",
            "/api/v1/namespaces/a/nodes",
            "/api/v1/namespaces/a/secrets/b/status",
            "/metrics",
        ] {
            assert_eq!(Route::parse(&store, path).unwrap_err().code, 404, "{path}");
        }
    }

    #[test]
    fn parameters_are_decoded() {
        let uri = "/x?labelSelector=a+in+%28b%2Cc%29&watch=true&limit=".parse().unwrap();
        let parameters = Parameters::of(&uri);
        assert_eq!(parameters.get("labelSelector"), Some("a in (b,c)"));
        assert!(parameters.flag("watch"));
        assert_eq!(parameters.get("limit"), None);
        assert_eq!(percent_decode("100%"), "100%");
    }
}
