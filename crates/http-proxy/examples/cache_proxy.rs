//! A proxy with nothing but the cache: `cache_proxy LISTEN UPSTREAM`, both addresses.
//!
//! The public HTTP cache test-suite runs against it (`cargo xtask test --only cache`).

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::channel::Channel;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use telaio_http_proxy::cache::{
    Answer, Asked, Cache, CacheLimits, Fetch, KeyParts, Lookup, Moment,
};
use telaio_http_proxy::table::CachePolicy;
use telaio_http_proxy::{Headers, Reply, ResponseHead, Scheme};
use tokio::net::{TcpListener, TcpStream};

type Error = Box<dyn std::error::Error + Send + Sync>;
type OutBody = BoxBody<Bytes, Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let (Some(listen), Some(upstream)) = (args.next(), args.next()) else {
        return Err("usage: cache_proxy LISTEN UPSTREAM".into());
    };
    let upstream: SocketAddr = upstream.parse()?;
    let listener = TcpListener::bind(listen).await?;
    println!("listening on {}", listener.local_addr()?);
    let cache = Cache::new(CacheLimits::default());
    loop {
        let (stream, _) = listener.accept().await?;
        let cache = cache.clone();
        let service = service_fn(move |request| {
            let cache = cache.clone();
            async move { Ok::<_, Infallible>(serve(&cache, upstream, request).await) }
        });
        tokio::spawn(async move {
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn serve(
    cache: &Cache,
    upstream: SocketAddr,
    request: Request<Incoming>,
) -> Response<OutBody> {
    let (parts, body) = request.into_parts();
    let headers = Headers::from(&parts.headers);
    let policy = CachePolicy::default();
    let authority = headers.get_str("host").unwrap_or("localhost").to_owned();
    let asked = Asked {
        method: &parts.method,
        key: KeyParts {
            scheme: Scheme::Http,
            authority: &authority,
            path: parts.uri.path(),
            query: parts.uri.query(),
            route: "test",
            backend: "test",
        },
        headers: &headers,
        has_body: !body.is_end_stream(),
        policy: &policy,
    };
    match cache.find(&asked).await {
        Lookup::Hit(reply) => answer(&parts.method, reply),
        Lookup::Stale(reply, fetch) => {
            if let Some(fetch) = fetch {
                let mut parts = parts.clone();
                parts.method = Method::GET;
                tokio::spawn(async move {
                    let response =
                        ask(*fetch, upstream, parts, Full::default().map_err(Into::into).boxed())
                            .await;
                    let _ = response.into_body().collect().await;
                });
            }
            answer(&parts.method, reply)
        }
        Lookup::Fetch(fetch) => {
            ask(*fetch, upstream, parts, body.map_err(Into::into).boxed()).await
        }
        Lookup::Wait(_) => answer(&parts.method, Reply::empty(StatusCode::INTERNAL_SERVER_ERROR)),
    }
}

/// Asks the origin, and does what the cache makes of it.
async fn ask(
    fetch: Fetch,
    upstream: SocketAddr,
    parts: http::request::Parts,
    body: OutBody,
) -> Response<OutBody> {
    let method = parts.method.clone();
    let mut headers = Headers::from(&parts.headers);
    fetch.prepare(&mut headers);
    let mut request = Request::new(body);
    *request.method_mut() = parts.method;
    *request.uri_mut() = parts
        .uri
        .path_and_query()
        .map_or("/", |target| target.as_str())
        .parse()
        .unwrap_or_default();
    *request.headers_mut() = headers.to_map();
    request.headers_mut().remove("connection");
    match exchange(upstream, request).await {
        Err(_) => {
            let reply = fetch.failed(Moment::now());
            answer(&method, reply.unwrap_or_else(|| Reply::empty(StatusCode::BAD_GATEWAY)))
        }
        Ok(response) => {
            let (parts, mut body) = response.into_parts();
            let mut head =
                ResponseHead { status: parts.status, headers: Headers::from(&parts.headers) };
            let mut writer = match fetch.response(&mut head, Moment::now()) {
                Answer::Serve(reply) => return answer(&method, reply),
                Answer::Forward(writer) => writer,
            };
            let (mut sender, out) = Channel::<Bytes, Error>::new(16);
            tokio::spawn(async move {
                while let Some(frame) = body.frame().await {
                    let Ok(Ok(chunk)) = frame.map(http_body::Frame::into_data) else { return };
                    if let Some(writer) = &mut writer {
                        writer.push(&chunk);
                    }
                    if sender.send_data(chunk).await.is_err() {
                        return;
                    }
                }
                if let Some(writer) = writer {
                    writer.finish(Moment::now());
                }
            });
            respond(&head, out.boxed())
        }
    }
}

async fn exchange(
    upstream: SocketAddr,
    request: Request<OutBody>,
) -> Result<Response<Incoming>, Error> {
    let stream = TcpStream::connect(upstream).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender.send_request(request).await?)
}

fn answer(method: &Method, reply: Reply) -> Response<OutBody> {
    let mut head = reply.head;
    let bodiless = matches!(head.status.as_u16(), 204 | 304);
    if !bodiless {
        head.headers.set("content-length", reply.body.len().to_string());
    }
    let body = if *method == Method::HEAD || bodiless { Bytes::new() } else { reply.body };
    respond(&head, Full::new(body).map_err(Into::into).boxed())
}

fn respond(head: &ResponseHead, body: OutBody) -> Response<OutBody> {
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers.to_map();
    for name in
        ["connection", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade"]
    {
        response.headers_mut().remove(name);
    }
    response
}
