//! From a request to its answer.

use std::sync::Arc;

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Bytes, Incoming};
use serde_json::{Map, Value, json};

use super::faults::{GoneForm, SeenRequest, StreamingLists};
use super::refusal::Refusal;
use super::resource::Resource;
use super::route::{ObjectsRoute, Parameters, Route};
use super::store::{Key, Page, Store, Stored};
use super::watching::{self, WatchOptions, WatchStart};
use super::write;
use super::{Inner, discovery, reviews};

/// The largest request body, as of a real server about.
const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A body of any kind.
pub(super) type Body = UnsyncBoxBody<Bytes, std::convert::Infallible>;

/// Answers one request.
pub(super) async fn answer(inner: Arc<Inner>, request: Request<Incoming>) -> Response<Body> {
    try_answer(&inner, request).await.unwrap_or_else(|refusal| {
        json_response(refusal.code, refusal.to_status().to_string().into_bytes())
    })
}

async fn try_answer(
    inner: &Arc<Inner>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let parameters = Parameters::of(request.uri());
    let path = request.uri().path().to_owned();
    if let Some(resource) = reviews::resource(&path).filter(|_| request.method() == Method::POST) {
        inner.faults.record(seen("create", resource.plural.clone(), &request));
        inner.faults.pass().await;
        authenticate(inner, &request)?;
        inner.faults.check("create", &resource, None)?;
        let body = read_body(request).await?;
        let review = inner.accounts.lock().review(&resource, &body)?;
        return Ok(json_response(201, review.to_string().into_bytes()));
    }
    let route = Route::parse(&inner.store.lock(), &path)?;
    let Route::Objects(route) = route else {
        inner.faults.record(seen("get", path.clone(), &request));
        inner.faults.pass().await;
        authenticate(inner, &request)?;
        return Ok(json_response(200, discovery::document(inner, &path)?.to_string().into_bytes()));
    };
    let resource = inner.store.lock().resource(route.index);
    let verb = route
        .verb(request.method(), &parameters)
        .ok_or_else(|| Refusal::new(405, "the server does not allow this method"))?;
    let name =
        if route.status { format!("{}/status", resource.plural) } else { resource.plural.clone() };
    inner.faults.record(seen(verb, name, &request));
    inner.faults.pass().await;
    authenticate(inner, &request)?;
    inner.faults.check(verb, &resource, route.namespace.as_deref())?;
    match verb {
        "get" => {
            let store = inner.store.lock();
            let object = store.get(route.index, &route.key()?);
            let object = object.ok_or_else(|| route.not_found(&resource))?;
            Ok(object_response(200, &resource, &object))
        }
        "list" => list(inner, &route, &parameters, &resource),
        "watch" => watch(inner, route, &parameters),
        "deletecollection" => {
            let query = parameters.query(route.namespace.clone())?;
            let mut store = inner.store.lock();
            for object in store.select(route.index, &query) {
                write::delete(&mut store, route.index, &object.key);
            }
            inner.announce(&store);
            Ok(json_response(200, success(&resource, "").to_string().into_bytes()))
        }
        "delete" => {
            let key = route.key()?;
            let mut store = inner.store.lock();
            if !write::delete(&mut store, route.index, &key) {
                return Err(route.not_found(&resource));
            }
            inner.announce(&store);
            Ok(json_response(200, success(&resource, &key.name).to_string().into_bytes()))
        }
        _ => change(inner, &route, &resource, request).await,
    }
}

fn seen(verb: &str, resource: String, request: &Request<Incoming>) -> SeenRequest {
    SeenRequest { verb: verb.to_owned(), resource, uri: request.uri().to_string() }
}

fn authenticate(inner: &Inner, request: &Request<Incoming>) -> Result<(), Refusal> {
    let Some(token) = &inner.token else { return Ok(()) };
    let given = request.headers().get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    if given.and_then(|value| value.strip_prefix("Bearer ")) == Some(token) {
        Ok(())
    } else {
        Err(Refusal::new(401, "Unauthorized"))
    }
}

impl ObjectsRoute {
    /// The key of the one object that the path names.
    fn key(&self) -> Result<Key, Refusal> {
        match &self.name {
            Some(name) => Ok(Key::new(self.namespace.as_deref().unwrap_or_default(), name)),
            None => Err(Refusal::new(405, "the request names no object")),
        }
    }

    fn not_found(&self, resource: &Resource) -> Refusal {
        Refusal::not_found(resource, self.name.as_deref().unwrap_or_default())
    }
}

fn list(
    inner: &Inner,
    route: &ObjectsRoute,
    parameters: &Parameters,
    resource: &Resource,
) -> Result<Response<Body>, Refusal> {
    let query = parameters.query(route.namespace.clone())?;
    let limit = parameters.number("limit")?.unwrap_or(0) as usize;
    let mut store = inner.store.lock();
    check_version(&store, parameters)?;
    let page = match parameters.get("continue") {
        Some(token) => store.next_page(token, limit)?,
        None => store.first_page(route.index, &query, limit),
    };
    drop(store);
    Ok(json_response(200, write_list(resource, &page)))
}

/// Whether a list of the version that is asked for can be given.
fn check_version(store: &Store, parameters: &Parameters) -> Result<(), Refusal> {
    let version = parameters.number("resourceVersion")?;
    let current = store.version();
    match (parameters.get("resourceVersionMatch"), version) {
        (Some(_), None) => Err(Refusal::new(
            422,
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        )),
        (_, Some(version)) if version > current => Err(Refusal::new(
            504,
            format_args!("Too large resource version: {version}, current: {current}"),
        )),
        // A real server can look back a few minutes; this one holds the present only.
        (Some("Exact"), Some(version)) if version < current => {
            Err(Refusal::too_old(version, current))
        }
        _ => Ok(()),
    }
}

fn write_list(resource: &Resource, page: &Page) -> Vec<u8> {
    let mut metadata = json!({"resourceVersion": page.version.to_string()});
    if let Some((token, left)) = &page.next {
        metadata["continue"] = token.as_str().into();
        metadata["remainingItemCount"] = (*left).into();
    }
    let size: usize = page.objects.iter().map(|object| object.json.len() + 1).sum();
    let mut out = Vec::with_capacity(size + 256);
    let head = format!(
        "{{\"kind\":\"{}List\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[",
        resource.kind,
        resource.api_version(),
    );
    out.extend_from_slice(head.as_bytes());
    for (at, object) in page.objects.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(&object.json);
    }
    out.extend_from_slice(b"]}");
    out
}

fn watch(
    inner: &Arc<Inner>,
    route: ObjectsRoute,
    parameters: &Parameters,
) -> Result<Response<Body>, Refusal> {
    let from = watch_start(inner, &route, parameters)?;
    let options = WatchOptions {
        index: route.index,
        query: parameters.query(route.namespace)?,
        from,
        bookmarks: parameters.flag("allowWatchBookmarks"),
        timeout: parameters.timeout()?,
    };
    let body = StreamBody::new(watching::open(inner, options));
    let mut response = Response::new(UnsyncBoxBody::new(body));
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    Ok(response)
}

fn watch_start(
    inner: &Inner,
    route: &ObjectsRoute,
    parameters: &Parameters,
) -> Result<WatchStart, Refusal> {
    let version = parameters.number("resourceVersion")?;
    let invalid = |why: &str| {
        Refusal::new(422, format_args!("ListOptions.meta.k8s.io \"\" is invalid: {why}"))
    };
    let streaming = inner.faults.streaming_lists();
    if parameters.flag("sendInitialEvents") && streaming != StreamingLists::Ignored {
        if streaming == StreamingLists::Refused {
            return Err(invalid(
                "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless \
                 the WatchList feature gate is enabled",
            ));
        }
        if parameters.get("resourceVersionMatch") != Some("NotOlderThan") {
            return Err(invalid(
                "resourceVersionMatch: Forbidden: sendInitialEvents requires setting \
                 resourceVersionMatch to NotOlderThan",
            ));
        }
        return Ok(WatchStart::State { end_marked: parameters.flag("allowWatchBookmarks") });
    }
    match version {
        None | Some(0) => Ok(WatchStart::State { end_marked: false }),
        Some(version) => {
            if inner.faults.gone_form() == GoneForm::HttpStatus {
                inner.store.lock().events_after(route.index, version, 0)?;
            }
            Ok(WatchStart::After(version))
        }
    }
}

async fn read_body(request: Request<Incoming>) -> Result<Bytes, Refusal> {
    let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await;
    let body =
        body.map_err(|_| Refusal::new(400, "the body could not be read, or is too large"))?;
    Ok(body.to_bytes())
}

/// Create, update and patch.
async fn change(
    inner: &Inner,
    route: &ObjectsRoute,
    resource: &Resource,
    request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let method = request.method().clone();
    let media_type = request
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .unwrap_or("application/json")
        .trim()
        .to_owned();
    let body = read_body(request).await?;
    let object: Map<String, Value> = serde_json::from_slice(&body).map_err(|error| {
        Refusal::new(400, format_args!("the body is not a JSON object: {error}"))
    })?;
    let mut store = inner.store.lock();
    let (status, stored) = match method {
        Method::POST => (201, write::create(&mut store, route, object)?),
        Method::PUT => (200, write::update(&mut store, route, &route.key()?, object)?),
        _ => write::patch(&mut store, route, &route.key()?, &media_type, object)?,
    };
    inner.announce(&store);
    drop(store);
    Ok(object_response(status, resource, &stored))
}

const JSON: http::HeaderValue = http::HeaderValue::from_static("application/json");

fn object_response(status: u16, resource: &Resource, object: &Stored) -> Response<Body> {
    let mut out = Vec::with_capacity(object.json.len() + 64);
    object.write_typed(resource, &mut out);
    json_response(status, out)
}

fn json_response(status: u16, body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(UnsyncBoxBody::new(Full::new(Bytes::from(body))));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

fn success(resource: &Resource, name: &str) -> Value {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {"name": name, "group": resource.group, "kind": resource.plural},
    })
}
