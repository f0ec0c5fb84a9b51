//! Errors that another backend answers: its page instead of the backend's, or of ours. As with nginx's
//! `error_page` that goes for whatever we refuse on a route, too: 401, 403, 413, 429.
//!
//! It is asked for `/` with GET, and told by fields what it is about, as ingress-nginx does: `X-Code`,
//! `X-Format`, `X-Original-URI`, `X-Namespace`, `X-Ingress-Name`, `X-Service-Name`, `X-Service-Port`,
//! `X-Request-ID`. Its answer goes to the client with its own status. If it fails, the client gets what it would
//! have got without it.

use std::sync::Arc;
use std::time::Instant;

use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, Limited};

use super::attempts::Attempts;
use super::{Forwarding, HttpProxy};
use crate::body::{self, Body};
use crate::error::{ErrorKind, ProxyError, Side};
use crate::h2::grpc;
use crate::head::{Known, RequestHead, ResponseHead};
use crate::reply::Reply;
use crate::router::Compiled;
use crate::table::{BackendId, ErrorBackend};
use crate::upstream::Upstream;

/// How large a page may be that stands for an answer of ours; a larger one is left out.
const PAGE_BYTES_MAX: usize = 1 << 20;

type Response = Result<(ResponseHead, Body), ProxyError>;

impl HttpProxy {
    /// The response, or the page for its status if the route has that from elsewhere.
    pub(super) async fn with_error_page(
        self: &Arc<Self>,
        request: &RequestHead,
        response: Response,
        forwarding: &Forwarding,
    ) -> Response {
        let route = &forwarding.route;
        let (Some(upstream), Some(settings)) =
            (&route.error_upstream, &route.route.policy.error_backend)
        else {
            return response;
        };
        let Some(status) = replaced(&response, settings) else { return response };
        let asked = question(request, status, &route.route, forwarding.upstream.id().as_str());
        let elsewhere = forwarding.elsewhere(upstream);
        let mut attempts = Attempts::new(&elsewhere, Instant::now());
        attempts.any_status = true;
        match self.forward_streamed(&asked, body::empty(), &mut attempts).await {
            Ok(page) => Ok(page),
            Err(error) => {
                tracing::debug!(%error, backend = %upstream.id(), "no page for an error");
                response
            }
        }
    }
}

impl HttpProxy {
    /// An answer of ours on a route as its client gets it: edited as all answers are there, or the page
    /// for its status if the route has that from elsewhere.
    pub(crate) async fn with_own_error_page(
        self: &Arc<Self>,
        request: &RequestHead,
        reply: Reply,
        route: Option<&Arc<Compiled>>,
    ) -> Reply {
        let Some(route) = route else { return reply };
        let status = reply.head.status;
        let settings = route.route.policy.error_backend.as_ref();
        let covers = settings.is_some_and(|it| it.statuses.contains(&status.as_u16()));
        match &route.error_upstream {
            Some(upstream) if covers && !grpc::is_grpc(request) => {
                Box::pin(self.own_error_page(request, reply, route, upstream)).await
            }
            _ => route.filters.edit_own(request, reply),
        }
    }

    async fn own_error_page(
        self: &Arc<Self>,
        request: &RequestHead,
        reply: Reply,
        route: &Arc<Compiled>,
        upstream: &Arc<Upstream>,
    ) -> Reply {
        let service = route.backend().map(BackendId::as_str).unwrap_or_default();
        let mut asked = question(request, reply.head.status, &route.route, service);
        // The wire leaves the body out where that was asked.
        asked.method = Method::GET;
        let elsewhere = Forwarding::of_our_own(route, upstream);
        let mut attempts = Attempts::new(&elsewhere, Instant::now());
        attempts.any_status = true;
        let page = match self.forward_streamed(&asked, body::empty(), &mut attempts).await {
            Ok(page) => page,
            Err(error) => {
                tracing::debug!(%error, backend = %upstream.id(), "no page for an error");
                return route.filters.edit_own(request, reply);
            }
        };
        let (mut head, body) = page;
        let Ok(body) = Limited::new(body, PAGE_BYTES_MAX).collect().await else {
            tracing::debug!(backend = %upstream.id(), "a page for an error is cut or too large");
            return route.filters.edit_own(request, reply);
        };
        head.headers
            .retain(|field| !field.known.is_hop_by_hop() && field.known != Known::ContentLength);
        // What clients go by: how to say who they are, and when to come again.
        for name in ["www-authenticate", "retry-after"] {
            if let Some(value) = reply.head.headers.get(name) {
                head.headers.set(name, value);
            }
        }
        Reply { head, body: body.to_bytes(), close: reply.close }
    }
}

/// The status that another backend answers, if it does.
fn replaced(response: &Response, settings: &ErrorBackend) -> Option<StatusCode> {
    let among = |status: StatusCode| settings.statuses.contains(&status.as_u16());
    match response {
        Ok((head, _)) => Some(head.status).filter(|status| among(*status)),
        // Where there is nobody else to answer it always does.
        Err(error) if error.kind == ErrorKind::NoEndpoint => Some(error.status()),
        Err(error) if error.side() == Side::Client => None,
        Err(error) => Some(error.status()).filter(|status| among(*status)),
    }
}

/// What the other backend is asked.
fn question(
    request: &RequestHead,
    status: StatusCode,
    route: &crate::table::Route,
    backend: &str,
) -> RequestHead {
    let mut asked = request.clone();
    let original = request.asked_target();
    asked.method = if request.method == Method::HEAD { Method::HEAD } else { Method::GET };
    asked.set_path("/");
    asked.set_query(None);
    // What was about the request's own body and its answer.
    asked.headers.retain(|field| {
        let own = [
            Known::ContentLength,
            Known::ContentType,
            Known::Expect,
            Known::Range,
            Known::IfMatch,
            Known::IfNoneMatch,
            Known::IfModifiedSince,
            Known::IfUnmodifiedSince,
            Known::IfRange,
        ];
        !field.known.is_hop_by_hop() && !own.contains(&field.known)
    });
    let (namespace, ingress) = route.age.name.split_once('/').unwrap_or(("", &route.age.name));
    // `namespace/service:port`, and perhaps `~` with what tells manners of speaking apart.
    let id = backend.split('~').next().unwrap_or(backend);
    let (service, port) = id.rsplit_once(':').unwrap_or((id, ""));
    let service = service.rsplit_once('/').map_or(service, |(_, name)| name);
    let format = request.headers.get_known_str(Known::Accept).unwrap_or_default().to_owned();
    for (name, value) in [
        ("x-code", status.as_str()),
        ("x-format", format.as_str()),
        ("x-original-uri", original.as_str()),
        ("x-namespace", namespace),
        ("x-ingress-name", ingress),
        ("x-service-name", service),
        ("x-service-port", port),
    ] {
        // As with nginx, what is empty is left out.
        asked.headers.remove(name);
        if !value.is_empty() {
            asked.headers.push(name, value);
        }
    }
    asked
}

impl Forwarding {
    /// The same request's way to another backend.
    fn elsewhere(&self, upstream: &Arc<Upstream>) -> Self {
        Self { upstream: Arc::clone(upstream), sticky: None, keyed: None, ..self.behind() }
    }
}
