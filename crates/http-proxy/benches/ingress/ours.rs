//! Our proxy, as a process of its own, and changes of its table within one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use telaio_http_proxy::front::{Front, FrontHandler};
use telaio_http_proxy::proxy_protocol::Trust;
use telaio_http_proxy::server::{Listener, Server, listen};
use telaio_http_proxy::table::{
    Backend, BackendId, CachePolicy, Certificate, Endpoint, HostMatch, PathMatch, Policy, Route,
    TableChange,
};
use telaio_http_proxy::tls::{CertificateStore, TlsAcceptor, TlsLimits};
use telaio_http_proxy::{HttpProxy, ProxySettings};

const BACKEND: &str = "default/web:80";

/// `serve HTTP HTTPS UPSTREAM ROUTES CACHE CERTIFICATE KEY`
pub(crate) fn serve(args: &[String]) -> Result<()> {
    let [http, https, upstream, routes, cache, certificate, key] = args else {
        bail!("serve HTTP HTTPS UPSTREAM ROUTES CACHE CERTIFICATE KEY");
    };
    let store = Arc::new(CertificateStore::new()?);
    let tls = Arc::new(TlsAcceptor::new(store, TlsLimits::default())?);
    let proxy = Arc::new(HttpProxy::new(ProxySettings::default()).with_tls(tls.clone()));
    let mut change = table(upstream.parse()?, routes.parse()?, cache == "cache");
    let certificate = Certificate {
        hosts: vec!["localhost".into()],
        chain_pem: std::fs::read(certificate)?.into(),
        key_pem: std::fs::read(key)?.into(),
    };
    change.certificates.insert("default/tls".into(), Some(certificate));
    change.default_certificate = Some(Some("default/tls".into()));
    let problems = proxy.apply(&change);
    if !problems.is_empty() {
        bail!("{problems:?}");
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let front = |front: Front| Some(Arc::new(FrontHandler(Arc::new(front))) as _);
    let listeners = vec![
        Listener {
            sockets: listen(http.parse()?, threads)?,
            handler: front(Front::plain(Trust::default())),
        },
        Listener {
            sockets: listen(https.parse()?, threads)?,
            handler: front(Front::tls(Trust::default(), tls)),
        },
    ];
    let _server = Server::start(&proxy, listeners, threads)?;
    loop {
        std::thread::park();
    }
}

/// One route for any host and `routes` for hosts of their own, all to one endpoint.
fn table(upstream: SocketAddr, routes: u32, cache: bool) -> TableChange {
    let mut change = TableChange::default();
    let id = BackendId::new(BACKEND);
    change.backends.insert(id, Some(Backend::new(BACKEND, vec![Endpoint::at(upstream)])));
    let policy = Arc::new(Policy { cache: cache.then(CachePolicy::default), ..Policy::default() });
    let mut add = |route: Route| drop(change.routes.insert(route.id.clone(), Some(route)));
    add(Route { policy: policy.clone(), ..route("default/any", HostMatch::Any) });
    for number in 0..routes {
        let host = format!("host-{number}.example.com");
        let own = route(&format!("default/{host}/0/0"), HostMatch::Exact(host.as_str().into()));
        add(Route { policy: policy.clone(), ..own });
    }
    change
}

fn route(id: &str, host: HostMatch) -> Route {
    Route::forward(id, host, PathMatch::Prefix("/".into()), BackendId::new(BACKEND))
}

/// How long it takes, in milliseconds, from a new route to the first request that it serves, in a
/// table of so many.
pub(crate) fn propagation(upstream: SocketAddr, routes: u32, rounds: u32) -> Result<Vec<f64>> {
    use std::io::{Read, Write};
    let proxy = Arc::new(HttpProxy::new(ProxySettings::default()));
    let mut first = table(upstream, routes, false);
    first.routes.insert("default/any".into(), None);
    proxy.apply(&first);
    let sockets = listen("127.0.0.1:0".parse()?, 1)?;
    let address = sockets.first().context("a socket")?.local_addr()?;
    let _server = Server::start(&proxy, vec![Listener { sockets, handler: None }], 1)?;
    let mut figures = Vec::new();
    for number in 0..rounds {
        let host = format!("new-{number}.example.com");
        let own = route(&host, HostMatch::Exact(host.as_str().into()));
        let mut client = std::net::TcpStream::connect(address)?;
        let ask = format!("GET /small HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let change =
            TableChange { routes: [(own.id.clone(), Some(own))].into(), ..TableChange::default() };
        let begun = Instant::now();
        proxy.apply(&change);
        let mut answer = [0; 4096];
        loop {
            client.write_all(ask.as_bytes())?;
            let count = client.read(&mut answer)?;
            if answer[..count].starts_with(b"HTTP/1.1 200") {
                break;
            }
            if begun.elapsed() > Duration::from_secs(5) {
                bail!("the new route never served");
            }
        }
        figures.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(figures)
}
