//! One TCP connection as fast as it goes, between two instances.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use cidr::Ipv4Inet;
use telaio_netlink::netns::Netns;
use telaio_pod_network::instance::{SetupInstanceRequest, setup_instance};
use telaio_pod_network::node::{
    NodeIp, NodeRequest, SetupNodeRequest, add_other_nodes, setup_node,
};
use telaio_pod_network::overlay::Backend;
use telaio_pod_network::utils::get_namespace_name;
use telaio_testkit::machine::{Machine, connect};

/// For how long each connection sends, and how many there are, one after the other.
const TIME: Duration = Duration::from_secs(2);
const RUNS: usize = 7;

/// Prints what each way carries.
pub(crate) fn table() {
    println!(
        "One TCP connection between two instances; sender and receiver share the machine's cores. The middle of {RUNS} runs of {} s each, \
         with the least and the most.\n",
        TIME.as_secs()
    );
    println!("| way | Gbit/s | from – to |\n|---|---|---|");
    let row = |way: &str, run: &dyn Fn() -> f64| {
        let mut runs: Vec<f64> = (0..RUNS).map(|_| run()).collect();
        runs.sort_by(f64::total_cmp);
        println!("| {way} | {:.1} | {:.1} – {:.1} |", runs[RUNS / 2], runs[0], runs[RUNS - 1]);
    };
    let (a, b) = nodes(Backend::default());
    let near = || between((&a, "a1"), (&a, "a2"), 1, 3);
    row("the same bridge (routed by the node)", &near);
    row("another node by vxlan", &|| between((&a, "a1"), (&b, "b1"), 2, 2));
    let (a, b) = nodes(Backend::HostGw);
    row("another node by host-gw", &|| between((&a, "a1"), (&b, "b1"), 2, 2));
}

fn nodes(backend: Backend) -> (Machine, Machine) {
    let (a, b) = (Machine::start("a"), Machine::start("b"));
    connect(&a, "lan0", "192.168.5.1/24", &b, "lan0", "192.168.5.2/24");
    for (machine, number) in [(&a, 1_u8), (&b, 2)] {
        machine.sh(&format!("ip route add default via 192.168.5.{}", 3 - number));
        machine.run(move || {
            let own = Ipv4Inet::new(Ipv4Addr::new(10, 77, number, 1), 24).unwrap();
            let id = format!("n{number}");
            setup_node(SetupNodeRequest::new(id.clone(), own, vec![]).with_backend(backend))
                .unwrap();
            let other = 3 - number;
            let theirs = Ipv4Inet::new(Ipv4Addr::new(10, 77, other, 1), 24).unwrap();
            let ip = NodeIp::new(theirs, Ipv4Addr::new(192, 168, 5, other));
            add_other_nodes(vec![NodeRequest::new(format!("n{other}"), ip)]).unwrap();
            let name = if number == 1 { "a" } else { "b" };
            for host in 1..=2 {
                let ip = Ipv4Inet::new(Ipv4Addr::new(10, 77, number, host + 1), 24).unwrap();
                let instance = format!("{name}{host}");
                let request =
                    SetupInstanceRequest::new(id.clone(), own.address(), instance, ip, vec![]);
                setup_instance(request).unwrap();
            }
        });
    }
    (a, b)
}

fn between(from: (&Machine, &str), to: (&Machine, &str), node: u8, host: u8) -> f64 {
    let at = (IpAddr::from([10, 77, node, host]), 5201);
    let enter = |name: String| Netns::open(&get_namespace_name(name)).unwrap().enter().unwrap();
    let (server, client) = (to.1.to_owned(), from.1.to_owned());
    let (ready, is_ready) = std::sync::mpsc::channel();
    let receiver = to.0.spawn(move || {
        enter(server);
        let listener = TcpListener::bind(at).unwrap();
        ready.send(()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = vec![0; 256 << 10];
        let (mut bytes, start) = (0.0, Instant::now());
        loop {
            match stream.read(&mut buffer).unwrap() {
                0 => return bytes * 8.0 / start.elapsed().as_secs_f64() / 1e9,
                count => bytes += f64::from(u32::try_from(count).unwrap()),
            }
        }
    });
    is_ready.recv().unwrap();
    let sender = from.0.spawn(move || {
        enter(client);
        let mut stream = TcpStream::connect(at).unwrap();
        let (buffer, start) = (vec![0; 256 << 10], Instant::now());
        while start.elapsed() < TIME {
            stream.write_all(&buffer).unwrap();
        }
    });
    sender.join().unwrap();
    receiver.join().unwrap()
}
