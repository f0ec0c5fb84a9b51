//! Errors that another backend answers: its page instead of the backend's, or of ours.
//!
//! It is asked for `/` with GET, and told by fields what it is about, as ingress-nginx does: `X-Code`,
//! `X-Format`, `X-Original-URI`, `X-Namespace`, `X-Ingress-Name`, `X-Service-Name`, `X-Service-Port`,
//! `X-Request-ID`. Its answer goes to the client with its own status. If it fails, the client gets what it would
//! have got without it.

use std::sync::Arc;
use std::time::Instant;

use http::{Method, StatusCode};

use super::attempts::Attempts;
use super::{Forwarding, HttpProxy};
use crate::body::{self, Body};
use crate::error::{ErrorKind, ProxyError, Side};
use crate::head::{Known, RequestHead, ResponseHead};
use crate::table::ErrorBackend;
use crate::upstream::Upstream;

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
        let asked = question(request, status, forwarding);
        let elsewhere = forwarding.elsewhere(upstream);
        let mut attempts = Attempts::new(&elsewhere, Instant::now());
        attempts.any_status = true;
        match self.forward_to_backend(&asked, body::empty(), &mut attempts).await {
            Ok(page) => Ok(page),
            Err(error) => {
                tracing::debug!(%error, backend = %upstream.id(), "no page for an error");
                response
            }
        }
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
fn question(request: &RequestHead, status: StatusCode, forwarding: &Forwarding) -> RequestHead {
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
    let route = &forwarding.route.route;
    let (namespace, ingress) = route.age.name.split_once('/').unwrap_or(("", &route.age.name));
    // `namespace/service:port`, and perhaps `~` with what tells manners of speaking apart.
    let id = forwarding.upstream.id().as_str();
    let id = id.split('~').next().unwrap_or(id);
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
        asked.headers.set(name, value);
    }
    asked
}

impl Forwarding {
    /// The same request's way to another backend.
    fn elsewhere(&self, upstream: &Arc<Upstream>) -> Self {
        Self { upstream: Arc::clone(upstream), sticky: None, keyed: None, ..self.behind() }
    }
}
