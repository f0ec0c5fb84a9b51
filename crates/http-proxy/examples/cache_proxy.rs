//! The proxy with one route, whose responses it keeps: `cache_proxy LISTEN UPSTREAM`, both addresses.
//!
//! The public HTTP cache test-suite runs against it (`cargo xtask test --only cache`).

use std::net::SocketAddr;
use std::sync::Arc;

use telaio_http_proxy::server::{Listener, Server, listen};
use telaio_http_proxy::table::{
    Backend, CachePolicy, Endpoint, HostMatch, PathMatch, Policy, Route, TableChange,
};
use telaio_http_proxy::{HttpProxy, ProxySettings};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(at), Some(upstream)) = (args.next(), args.next()) else {
        return Err("usage: cache_proxy LISTEN UPSTREAM".into());
    };
    let (at, upstream): (SocketAddr, SocketAddr) = (at.parse()?, upstream.parse()?);
    let proxy = Arc::new(HttpProxy::new(ProxySettings::default()));
    let problems = proxy.apply(&one_cached_route(upstream));
    if !problems.is_empty() {
        return Err(format!("{problems:?}").into());
    }
    let listener = Listener { sockets: listen(at, 1)?, handler: None };
    let server = Server::start(&proxy, vec![listener], 1)?;
    loop {
        std::thread::park();
        // Kept until the process ends.
        let _ = server.connections();
    }
}

fn one_cached_route(upstream: SocketAddr) -> TableChange {
    let backend = Backend::new("test/origin:80", vec![Endpoint::at(upstream)]);
    let everything = PathMatch::Prefix("/".into());
    let mut route =
        Route::forward("test/route/0/0", HostMatch::Any, everything, backend.id.clone());
    let policy = Policy { cache: Some(CachePolicy::default()), ..Policy::default() };
    route.policy = Arc::new(policy);
    let mut change = TableChange::default();
    change.backends.insert(backend.id.clone(), Some(backend));
    change.routes.insert(route.id.clone(), Some(route.into()));
    change
}
