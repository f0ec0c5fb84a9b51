//! How long a connection takes to come about, by the size of the cluster.
//!
//! A client pod, a veth pair, and a node whose endpoints are addresses of its own: the first packet of
//! each connection goes the way that it goes on a real node. Sizes take turns within each round, so
//! that whatever else the machine does meets all of them alike.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use socket2::{Domain, Socket, Type};
use telaio_model::IpFamily;
use telaio_netlink::netns::Netns;
use telaio_reconcile::kpng::Backend;
use telaio_service_proxy::iptables::{Flavor, IptablesBackend};
use telaio_service_proxy::nftables::NftablesBackend;
use telaio_service_proxy::options::ProxyOptions;

use crate::cluster::{Cluster, ENDPOINT_PORT, SERVICE_PORT, Size, cluster_ip};
use crate::rig::{self, Rig};
use crate::role;
use crate::table::{Samples, Table, bar};
use crate::{floor, progress};

/// How many connections are made to each.
const ROUNDS: usize = 600;
/// Rounds before them that do not count.
const WARM_UP: usize = 50;
/// The node's addresses at which endpoints listen.
const ENDPOINTS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 200, 0, 1), Ipv4Addr::new(10, 200, 0, 3)];
/// How long a connection may take.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// What is connected to.
const TARGETS: [&str; 4] = ["endpoint itself", "first service", "last service", "sticky service"];

/// What serves.
#[derive(Debug, Clone, Copy)]
struct Kind {
    name: &'static str,
    make: fn(ProxyOptions) -> Box<dyn Backend>,
    /// Whether bars are for it.
    has_bar: bool,
}

const NFTABLES: Kind = Kind {
    name: "nftables",
    make: |options| Box::new(NftablesBackend::new(options)),
    has_bar: true,
};
const IPTABLES_LEGACY: Kind = Kind {
    name: "iptables-legacy",
    make: |options| Box::new(IptablesBackend::new(options, Flavor::Legacy)),
    has_bar: false,
};

/// What is compared: a small and a large cluster of each kind.
const PAIRS: [(Kind, Size, Size); 2] = [
    (NFTABLES, Size::new(1_000, 2), Size::new(30_000, 2)),
    (IPTABLES_LEGACY, Size::new(1_000, 2), Size::new(5_000, 2)),
];

/// A node that serves a cluster, and a client pod on it.
struct Site {
    client: Netns,
    listener: TcpListener,
    targets: [SocketAddr; TARGETS.len()],
    times_us: [Vec<f64>; TARGETS.len()],
    _rig: Rig,
}

impl Site {
    fn start(kind: Kind, size: Size, name: &str) -> Result<Self> {
        let node = rig::namespace(&format!("{name}-node"))?;
        let client = rig::namespace(&format!("{name}-pod"))?;
        link(&node, &client)?;
        let last = size.services - 1;
        let mut cluster = Cluster::new(size);
        cluster.serve_at(0, false, &ENDPOINTS);
        cluster.serve_at(last / 2, true, &ENDPOINTS);
        cluster.serve_at(last, false, &ENDPOINTS);
        let (rig, listener) = node.run(|| -> Result<_> {
            let mut rig = Rig::start(&[IpFamily::V4], kind.make)?;
            rig.send(cluster.all())?;
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, ENDPOINT_PORT))?;
            listener.set_nonblocking(true)?;
            Ok((rig, listener))
        })??;
        let service = |number| SocketAddrV4::new(cluster_ip(number), SERVICE_PORT).into();
        let targets = [
            SocketAddrV4::new(ENDPOINTS[0], ENDPOINT_PORT).into(),
            service(0),
            service(last),
            service(last / 2),
        ];
        Ok(Self { client, listener, targets, times_us: Default::default(), _rig: rig })
    }

    /// A socket for each target. Made beforehand: making one is not what is measured.
    fn sockets(&self) -> Result<Vec<Socket>> {
        self.client.enter()?;
        let socket = |_| -> Result<Socket> {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            // Closed by a reset, so that nothing lingers.
            socket.set_linger(Some(Duration::ZERO))?;
            Ok(socket)
        };
        self.targets.iter().map(socket).collect()
    }

    /// Takes what has come to the endpoints; it must be all that was connected.
    fn accept(&self, wanted: usize) -> Result<()> {
        let started = Instant::now();
        let mut accepted = 0;
        while accepted < wanted {
            match self.listener.accept() {
                Ok(_) => accepted += 1,
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
                Err(_) if started.elapsed() > CONNECT_TIME_MAX => {
                    bail!("of {wanted} connections {accepted} came to our endpoints");
                }
                Err(_) => std::thread::yield_now(),
            }
        }
        Ok(())
    }
}

/// Connects a node and a pod.
fn link(node: &Netns, client: &Netns) -> Result<()> {
    let pod = format!("/proc/{}/fd/{}", std::process::id(), client.as_fd().as_raw_fd());
    let ip = |netns: &Netns, lines: &[&str]| {
        netns.run(|| -> Result<()> {
            for line in lines {
                let words: Vec<&str> = line.split_whitespace().collect();
                floor::output("ip", &words)?;
            }
            Ok(())
        })?
    };
    ip(
        node,
        &[
            "link set lo up",
            "link add pod type veth peer name eth0",
            &format!("link set eth0 netns {pod}"),
            &format!("address add {}/24 dev pod", ENDPOINTS[0]),
            &format!("address add {}/24 dev pod", ENDPOINTS[1]),
            "link set pod up",
        ],
    )?;
    ip(
        client,
        &[
            "link set lo up",
            "address add 10.200.0.2/24 dev eth0",
            "link set eth0 up",
            &format!("route add default via {}", ENDPOINTS[0]),
        ],
    )
}

/// Connects to everything in turn, again and again, and says the times.
pub(crate) fn role(pair: usize) -> Result<()> {
    let (kind, small, large) = PAIRS.get(pair).copied().context("there is no such pair")?;
    let mut sites = [Site::start(kind, small, "small")?, Site::start(kind, large, "large")?];
    for round in 0..WARM_UP + ROUNDS {
        let mut sockets = Vec::new();
        for (at, site) in sites.iter().enumerate() {
            for (target, socket) in site.sockets()?.into_iter().enumerate() {
                sockets.push((at, target, socket));
            }
        }
        let turn = round % sockets.len();
        sockets.rotate_left(turn);
        for (at, target, socket) in &sockets {
            let site = &mut sites[*at];
            let address = site.targets[*target].into();
            let started = Instant::now();
            socket.connect(&address).with_context(|| format!("to {}", TARGETS[*target]))?;
            let took_us = started.elapsed().as_secs_f64() * 1e6;
            if round >= WARM_UP {
                site.times_us[*target].push(took_us);
            }
        }
        for site in &sites {
            site.accept(TARGETS.len())?;
        }
    }
    for (at, site) in sites.into_iter().enumerate() {
        for (name, times_us) in TARGETS.iter().zip(site.times_us) {
            let times = Samples::new(times_us);
            role::say(&[
                (&format!("{name} {at} p50"), times.median()),
                (&format!("{name} {at} p99"), times.at(0.99)),
            ])?;
        }
    }
    Ok(())
}

/// Connection times of small and large clusters. The sizes are always the same: the figure is their
/// ratio.
pub(crate) fn tables(_: &[Size]) -> Result<String> {
    let mut table = Table::new(
        "First packet: time to connect, by the size of the cluster",
        "TCP connections from a pod over a veth pair to a node whose endpoints listen there; the two \
         sizes in turn, in one run.",
        &[
            "backend",
            "to",
            "small",
            "p50 µs",
            "p99 µs",
            "large",
            "p50 µs",
            "p99 µs",
            "large / small p50",
            "bar",
            "met",
        ],
    );
    for (pair, (kind, small, large)) in PAIRS.into_iter().enumerate() {
        progress(&format!("connections by {}, {small} and {large}", kind.name));
        let figures = role::ask(&["connect", &pair.to_string()])?;
        for name in TARGETS {
            let of = |at: usize, what: &str| figures.need(&format!("{name} {at} {what}"));
            let ratio = of(1, "p50")? / of(0, "p50")?;
            let limit = (kind.has_bar && name != TARGETS[0]).then_some(1.1);
            let [bar, met] = bar(ratio, limit, "×");
            table.row(&[
                kind.name.to_owned(),
                name.to_owned(),
                small.to_string(),
                format!("{:.1}", of(0, "p50")?),
                format!("{:.1}", of(0, "p99")?),
                large.to_string(),
                format!("{:.1}", of(1, "p50")?),
                format!("{:.1}", of(1, "p99")?),
                format!("{ratio:.2} ×"),
                bar,
                met,
            ]);
        }
    }
    Ok(table.to_string())
}
