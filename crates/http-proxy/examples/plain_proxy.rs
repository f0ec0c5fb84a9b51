//! A proxy for one backend: `plain_proxy LISTEN UPSTREAM [ROUTES]`, both addresses.
//!
//! With ROUTES, so many further hosts lead there. The benchmark measures it beside other proxies.

use std::net::SocketAddr;
use std::sync::Arc;

use telaio_http_proxy::server::{Listener, Server, listen};
use telaio_http_proxy::table::{
    Backend, BackendId, Endpoint, HostMatch, PathMatch, Route, TableChange,
};
use telaio_http_proxy::{HttpProxy, ProxySettings};

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let (Some(address), Some(upstream)) = (args.next(), args.next()) else {
        return Err("usage: plain_proxy LISTEN UPSTREAM [ROUTES]".into());
    };
    let (address, upstream): (SocketAddr, SocketAddr) = (address.parse()?, upstream.parse()?);
    let routes: u32 = args.next().map_or(Ok(0), |text| text.parse())?;
    let proxy = Arc::new(HttpProxy::new(ProxySettings::default()));
    let backend = Backend::new("default/web:80", vec![Endpoint::at(upstream)]);
    let id = BackendId::new("default/web:80");
    let root = || PathMatch::Prefix("/".into());
    let mut change = TableChange::default();
    change.backends.insert(id.clone(), Some(backend));
    let mut add = |name: String, host| {
        let route = Route::forward(&name, host, root(), id.clone());
        change.routes.insert(name.as_str().into(), Some(route));
    };
    add("default/any".to_owned(), HostMatch::Any);
    for number in 0..routes {
        let host = format!("host-{number}.example.com");
        add(format!("default/{host}/0/0"), HostMatch::Exact(host.as_str().into()));
    }
    let problems = proxy.apply(&change);
    if !problems.is_empty() {
        return Err(format!("{problems:?}").into());
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let sockets = listen(address, threads)?;
    println!("listening on {}", sockets[0].local_addr()?);
    let server = Server::start(&proxy, vec![Listener { sockets, handler: None }], threads)?;
    loop {
        std::thread::park();
        if server.connections() == usize::MAX {
            return Ok(());
        }
    }
}
