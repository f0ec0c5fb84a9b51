//! IPVS and dummy links on a guest kernel, because the host's need not have them. ipvsadm(8) is the
//! independent reader.
//!
//! Each test starts itself again on the guest kernel; what is in `inside` runs there. They need root and
//! what `telaio_testkit::guest` names, and fail without it.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command as Program;
use std::time::{Duration, Instant};

use telaio_netlink::addresses::{Addresses, addresses_of};
use telaio_netlink::ipvs::{
    Command, FLAG_ONE_PACKET, FLAG_PERSISTENT, FLAG_SCHEDULER_1, FLAG_SCHEDULER_2, Forwarding,
    Frontend, Ipvs, RealServer, RealServerLoad, Snapshot, Timeouts, VirtualServer,
};
use telaio_netlink::links::{Links, NewLink};
use telaio_netlink::netns::Netns;
use telaio_testkit::guest::{self, GuestError};

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;
/// How long something may take that has to happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a program that must succeed; tells what it printed.
fn output(program: &str, args: &str) -> String {
    let ended = Program::new(program).args(args.split_whitespace()).output().unwrap();
    assert!(ended.status.success(), "{program} {args}: {ended:?}");
    String::from_utf8(ended.stdout).unwrap()
}

fn open() -> Ipvs {
    Ipvs::open().unwrap().expect("the guest has IPVS")
}

fn at(protocol: u8, at: &str) -> Frontend {
    Frontend::Address { protocol, at: at.parse().unwrap() }
}

fn server(address: &str, weight: u32, method: Forwarding) -> RealServer {
    RealServer { address: address.parse().unwrap(), weight, method }
}

/// Services of every sort with their servers, in order.
fn samples() -> BTreeMap<Frontend, (VirtualServer, Vec<RealServer>)> {
    let plain = |frontend, scheduler| VirtualServer::new(frontend, scheduler);
    let nat = |address| server(address, 1, Forwarding::Nat);
    let persistent = VirtualServer {
        flags: FLAG_PERSISTENT,
        timeout_s: 10_800,
        ..plain(at(TCP, "10.96.0.1:80"), "rr")
    };
    let network = VirtualServer {
        flags: FLAG_PERSISTENT | FLAG_SCHEDULER_1 | FLAG_SCHEDULER_2,
        timeout_s: 60,
        client_prefix_len: 64,
        ..plain(at(TCP, "[fd00:10:96::1]:80"), "mh")
    };
    let one_packet =
        VirtualServer { flags: FLAG_ONE_PACKET, ..plain(at(UDP, "10.96.0.1:53"), "wrr") };
    let network_mark = VirtualServer {
        flags: FLAG_PERSISTENT,
        timeout_s: 7,
        client_prefix_len: 24,
        ..plain(Frontend::Mark { is_v6: false, mark: 0x1_0007 }, "sh")
    };
    let list = [
        (persistent, vec![nat("10.244.0.1:8080"), server("10.244.0.2:8080", 0, Forwarding::Nat)]),
        (network, vec![server("[fd00:10:244::1]:80", 100, Forwarding::Direct)]),
        (one_packet, vec![server("10.244.0.3:53", 7, Forwarding::Tunnel)]),
        (plain(at(SCTP, "10.96.0.2:9"), "lc"), vec![nat("10.244.0.4:9")]),
        (plain(at(SCTP, "[fd00:10:96::2]:9"), "wlc"), vec![]),
        (network_mark, vec![nat("10.244.0.5:0")]),
        (plain(Frontend::Mark { is_v6: true, mark: 9 }, "sed"), vec![nat("[fd00:10:244::5]:80")]),
        (plain(Frontend::Mark { is_v6: true, mark: 10 }, "nq"), vec![]),
        (plain(at(TCP, "10.96.0.3:80"), "dh"), vec![server("127.0.0.1:80", 1, Forwarding::Local)]),
    ];
    list.into_iter().map(|(service, servers)| (service.frontend, (service, servers))).collect()
}

/// The commands that make all of these.
fn making(samples: &BTreeMap<Frontend, (VirtualServer, Vec<RealServer>)>) -> Vec<Command> {
    let mut commands = Vec::new();
    for (frontend, (service, servers)) in samples {
        commands.push(Command::Add(service.clone()));
        commands.extend(servers.iter().map(|server| Command::AddServer(*frontend, *server)));
    }
    commands
}

/// What a snapshot has, in order and without what is counted.
fn by_frontend(snapshot: Vec<Snapshot>) -> BTreeMap<Frontend, (VirtualServer, Vec<RealServer>)> {
    let each = |it: Snapshot| {
        let mut servers: Vec<_> = it.servers.iter().map(|load| load.server).collect();
        servers.sort();
        (it.server.frontend, (it.server, servers))
    };
    snapshot.into_iter().map(each).collect()
}

/// The same, by asking for the servers of each service.
fn one_by_one(ipvs: &mut Ipvs) -> BTreeMap<Frontend, (VirtualServer, Vec<RealServer>)> {
    let mut found = BTreeMap::new();
    for state in ipvs.services().unwrap() {
        let frontend = state.server.frontend;
        let states = ipvs.servers(&frontend).unwrap();
        assert!(states.iter().all(|it| (it.upper_threshold, it.lower_threshold) == (0, 0)));
        let mut servers: Vec<_> = states.iter().map(|it| it.load.server).collect();
        servers.sort();
        found.insert(frontend, (state.server, servers));
    }
    found
}

#[test]
fn what_is_read_in_either_way_is_what_was_written() -> Result<(), GuestError> {
    guest::inside("what_is_read_in_either_way_is_what_was_written", || {
        let mut ipvs = open();
        assert_eq!(ipvs.snapshot().unwrap(), []);
        let expected = samples();
        let failures = ipvs.apply(&making(&expected)).unwrap();
        assert!(failures.is_empty(), "{failures:?}");
        assert_eq!(one_by_one(&mut ipvs), expected);
        assert_eq!(by_frontend(ipvs.snapshot().unwrap()), expected);
        assert_eq!(ipvs.commands(), making(&expected).len() as u64);

        // A mark of both families: the file does not tell which is whose, and yet it comes out right.
        let twin = Frontend::Mark { is_v6: false, mark: 9 };
        ipvs.add(&VirtualServer::new(twin, "sed")).unwrap();
        let found = by_frontend(ipvs.snapshot().unwrap());
        assert_eq!(found.len(), expected.len() + 1);
        assert_eq!(found, one_by_one(&mut ipvs));

        for frontend in ipvs.frontends().unwrap() {
            assert!(ipvs.delete(&frontend).unwrap());
            assert!(!ipvs.delete(&frontend).unwrap(), "it is gone already");
        }
        assert_eq!(ipvs.snapshot().unwrap(), []);
    })
}

#[test]
fn ipvsadm_reads_what_we_write_and_we_what_it_writes() -> Result<(), GuestError> {
    guest::inside("ipvsadm_reads_what_we_write_and_we_what_it_writes", || {
        let mut ipvs = open();
        ipvs.apply(&making(&samples())).unwrap();
        let ours = output("ipvsadm", "-S -n");
        let mut lines: Vec<_> = ours.lines().map(str::trim_end).collect();
        lines.sort_unstable();
        let expected = [
            "-A -f 10 -6 -s nq",
            "-A -f 65543 -s sh -p 7 -M 255.255.255.0",
            "-A -f 9 -6 -s sed",
            "-A -t 10.96.0.1:80 -s rr -p 10800",
            "-A -t 10.96.0.3:80 -s dh",
            "-A -t [fd00:10:96::1]:80 -s mh -p 60 -M 64 -b mh-fallback,mh-port",
            "-A -u 10.96.0.1:53 -s wrr -o",
            "-A --sctp-service 10.96.0.2:9 -s lc",
            "-A --sctp-service [fd00:10:96::2]:9 -s wlc",
            "-a -f 65543 -r 10.244.0.5:0 -m -w 1",
            "-a -f 9 -6 -r [fd00:10:244::5]:80 -m -w 1",
            "-a -t 10.96.0.1:80 -r 10.244.0.1:8080 -m -w 1",
            "-a -t 10.96.0.1:80 -r 10.244.0.2:8080 -m -w 0",
            // It has no word for what is local.
            "-a -t 10.96.0.3:80 -r 127.0.0.1:80 -g -w 1",
            "-a -t [fd00:10:96::1]:80 -r [fd00:10:244::1]:80 -g -w 100",
            "-a -u 10.96.0.1:53 -r 10.244.0.3:53 -i -w 7 --tun-type ipip",
            "-a --sctp-service 10.96.0.2:9 -r 10.244.0.4:9 -m -w 1",
        ];
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(lines, expected, "{ours}");

        output("ipvsadm", "-C");
        output("ipvsadm", "-A -t 10.96.0.9:443 -s wrr -p 300 -M 255.255.0.0");
        output("ipvsadm", "-a -t 10.96.0.9:443 -r 10.244.0.9:443 -g -w 3 -x 90 -y 60");
        let found = ipvs.snapshot().unwrap();
        let expected = VirtualServer {
            flags: FLAG_PERSISTENT,
            timeout_s: 300,
            client_prefix_len: 16,
            ..VirtualServer::new(at(TCP, "10.96.0.9:443"), "wrr")
        };
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].server, expected);
        let state = ipvs.servers(&expected.frontend).unwrap()[0];
        assert_eq!(state.load.server, server("10.244.0.9:443", 3, Forwarding::Direct));
        assert_eq!((state.upper_threshold, state.lower_threshold), (90, 60));
    })
}

#[test]
fn of_thousands_of_commands_a_bad_one_fails_alone() -> Result<(), GuestError> {
    guest::inside("of_thousands_of_commands_a_bad_one_fails_alone", || {
        let mut ipvs = open();
        let mut commands = Vec::new();
        for number in 0..1000_u32 {
            let ip = |base: u32| Ipv4Addr::from(base + number);
            let frontend = at(TCP, &format!("{}:80", ip(0x0a60_0000)));
            commands.push(Command::Add(VirtualServer::new(frontend, "rr")));
            for base in [0x0af4_0000, 0x0af8_0000] {
                let server = server(&format!("{}:8080", ip(base)), 1, Forwarding::Nat);
                commands.push(Command::AddServer(frontend, server));
            }
        }
        // A server of a service that is not there, one that is there, and a scheduler that nobody has.
        let nobody = at(TCP, "192.0.2.1:1");
        let lost = Command::AddServer(nobody, server("10.0.0.1:1", 1, Forwarding::Nat));
        let unknown = Command::Add(VirtualServer::new(nobody, "none-such"));
        let again = commands[700].clone();
        for (place, command) in [(0, lost), (1500, again), (3002, unknown)] {
            commands.insert(place, command);
        }
        let failures = ipvs.apply(&commands).unwrap();
        let found: Vec<_> =
            failures.iter().map(|it| (it.index, it.error.raw_os_error().unwrap())).collect();
        assert_eq!(found, [(0, libc::ESRCH), (1500, libc::EEXIST), (3002, libc::ENOENT)]);
        assert_eq!(ipvs.commands(), 3003);

        let snapshot = ipvs.snapshot().unwrap();
        assert_eq!(snapshot.len(), 1000);
        assert!(snapshot.iter().all(|it| it.servers.len() == 2));
        let table = output("ipvsadm", "-L -n");
        assert_eq!(table.lines().filter(|line| line.contains("->")).count(), 1 + 2000);
        // To look is no command.
        assert_eq!(ipvs.commands(), 3003);

        let frontends = ipvs.frontends().unwrap();
        let mut removals: Vec<_> = frontends.iter().copied().map(Command::Delete).collect();
        // What goes with its service, and what never was.
        let gone = snapshot[0].servers[0].server.address;
        removals.push(Command::DeleteServer(frontends[0], gone));
        removals.push(Command::Delete(nobody));
        assert!(ipvs.apply(&removals).unwrap().is_empty());
        assert_eq!(ipvs.snapshot().unwrap(), []);
    })
}

#[test]
fn services_and_servers_are_changed_in_place() -> Result<(), GuestError> {
    guest::inside("services_and_servers_are_changed_in_place", || {
        let mut ipvs = open();
        let frontend = at(TCP, "10.96.0.1:80");
        let mut service = VirtualServer::new(frontend, "rr");
        let mut real = server("10.244.0.1:80", 1, Forwarding::Nat);
        let absent = ipvs.edit(&service).unwrap_err();
        assert_eq!(absent.raw_os_error(), Some(libc::ESRCH));
        ipvs.add(&service).unwrap();
        let absent = ipvs.edit_server(&frontend, &real).unwrap_err();
        assert_eq!(absent.raw_os_error(), Some(libc::ENOENT));
        ipvs.add_server(&frontend, &real).unwrap();

        service.scheduler = "mh".to_owned();
        service.flags = FLAG_PERSISTENT | FLAG_SCHEDULER_1;
        service.timeout_s = 99;
        real.weight = 0;
        ipvs.edit(&service).unwrap();
        ipvs.edit_server(&frontend, &real).unwrap();
        let expected = BTreeMap::from([(frontend, (service.clone(), vec![real]))]);
        assert_eq!(by_frontend(ipvs.snapshot().unwrap()), expected);

        // Flags are taken away, too.
        service.flags = 0;
        ipvs.edit(&service).unwrap();
        assert_eq!(ipvs.services().unwrap()[0].server, service);

        assert!(ipvs.delete_server(&frontend, real.address).unwrap());
        assert!(!ipvs.delete_server(&frontend, real.address).unwrap(), "it is gone already");
        assert_eq!(ipvs.servers(&frontend).unwrap(), []);
        assert_eq!(ipvs.servers(&at(TCP, "10.96.0.2:80")).unwrap(), []);
        assert!(ipvs.delete(&frontend).unwrap());
        assert!(!ipvs.delete_server(&frontend, real.address).unwrap());
    })
}

#[test]
fn settings_are_read_and_changed() -> Result<(), GuestError> {
    guest::inside("settings_are_read_and_changed", || {
        let mut ipvs = open();
        assert_eq!(ipvs.info().unwrap().version, (1, 2, 1));
        assert!(ipvs.info().unwrap().connection_table_size >= 256);
        let usual = Timeouts { tcp_s: 900, tcp_fin_s: 120, udp_s: 300 };
        assert_eq!(ipvs.timeouts().unwrap(), usual);
        ipvs.set_timeouts(&Timeouts { tcp_s: 0, tcp_fin_s: 30, udp_s: 50 }).unwrap();
        assert_eq!(ipvs.timeouts().unwrap(), Timeouts { tcp_s: 900, tcp_fin_s: 30, udp_s: 50 });
        let said = output("ipvsadm", "-L --timeout");
        assert!(said.contains("900 30 50"), "{said}");
    })
}

/// A server that holds its connections open until they end.
fn serve(address: &str) -> SocketAddr {
    let listener = TcpListener::bind(address).unwrap();
    let own = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut question = [0; 4];
                while stream.read(&mut question).is_ok_and(|length| length > 0) {
                    stream.write_all(b"here").unwrap();
                }
            });
        }
    });
    own
}

#[test]
fn connections_are_counted_in_either_way_of_reading() -> Result<(), GuestError> {
    guest::inside("connections_are_counted_in_either_way_of_reading", || {
        let mut links = Links::open().unwrap();
        let link = links.create("services", &NewLink::Dummy).unwrap();
        let vip = "10.96.0.1".parse().unwrap();
        assert!(Addresses::open().unwrap().add(link, &[vip]).unwrap().is_empty());
        let real = RealServer { address: serve("127.0.0.1:0"), weight: 1, method: Forwarding::Nat };
        let frontend = at(TCP, "10.96.0.1:80");
        let service = VirtualServer {
            flags: FLAG_PERSISTENT,
            timeout_s: 300,
            ..VirtualServer::new(frontend, "rr")
        };
        let mut ipvs = open();
        let commands = [Command::Add(service), Command::AddServer(frontend, real)];
        assert!(ipvs.apply(&commands).unwrap().is_empty());

        let mut streams: Vec<_> =
            (0..3).map(|_| TcpStream::connect("10.96.0.1:80").unwrap()).collect();
        for stream in &mut streams {
            stream.write_all(b"who?").unwrap();
            stream.read_exact(&mut [0; 4]).unwrap();
        }
        let state = ipvs.servers(&frontend).unwrap()[0];
        assert_eq!(state.load, RealServerLoad { server: real, active: 3, inactive: 0 });
        assert_eq!(state.persistent, 1);
        assert_eq!(ipvs.snapshot().unwrap()[0].servers, [state.load]);

        // The kernel sums up in its own time.
        let is_counted = |ipvs: &mut Ipvs| {
            let service = ipvs.snapshot().unwrap()[0].stats;
            let server = ipvs.servers(&frontend).unwrap()[0].stats;
            service == server && server.connections == 3 && service.bytes_out > 0
        };
        let deadline = Instant::now() + PATIENCE;
        while !is_counted(&mut ipvs) {
            assert!(Instant::now() < deadline, "{:?}", ipvs.services());
            std::thread::sleep(Duration::from_millis(50));
        }
        let stats = ipvs.services().unwrap()[0].stats;
        assert!(stats.packets_in >= 9 && stats.packets_out >= 6, "{stats:?}");
        assert!(stats.bytes_in > 3 * 4 && stats.bytes_out > 3 * 4, "{stats:?}");

        // They are still counted when they get no more.
        ipvs.edit_server(&frontend, &RealServer { weight: 0, ..real }).unwrap();
        drop(streams);
        let deadline = Instant::now() + PATIENCE;
        while ipvs.snapshot().unwrap()[0].servers[0].active > 0 {
            assert!(Instant::now() < deadline, "{:?}", ipvs.snapshot());
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(ipvs.snapshot().unwrap()[0].servers[0].inactive, 3);
    })
}

#[test]
fn every_namespace_has_its_own_table() -> Result<(), GuestError> {
    guest::inside("every_namespace_has_its_own_table", || {
        let frontend = at(TCP, "10.96.0.1:80");
        open().add(&VirtualServer::new(frontend, "rr")).unwrap();
        let apart = Netns::create("apart").unwrap();
        apart
            .run(|| {
                let mut ipvs = open();
                assert_eq!(ipvs.snapshot().unwrap(), []);
                let other = at(UDP, "10.96.0.1:53");
                ipvs.add(&VirtualServer::new(other, "rr")).unwrap();
                let found: Vec<_> = ipvs.snapshot().unwrap();
                assert_eq!(found[0].server.frontend, other);
            })
            .unwrap();
        assert_eq!(open().snapshot().unwrap()[0].server.frontend, frontend);
        Netns::remove("apart").unwrap();
    })
}

#[test]
fn a_dummy_link_has_many_addresses_until_it_goes() -> Result<(), GuestError> {
    guest::inside("a_dummy_link_has_many_addresses_until_it_goes", || {
        let mut links = Links::open().unwrap();
        let link = links.create("services", &NewLink::Dummy).unwrap();
        let found = links.get("services").unwrap().unwrap();
        assert_eq!((found.index, found.kind.as_deref()), (link, Some("dummy")));
        assert!(!found.is_up());
        links.set_up(link, true).unwrap();
        assert!(links.get("services").unwrap().unwrap().is_up());
        let error = links.create("services", &NewLink::Dummy).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));

        let mut ips: Vec<_> =
            (0..2000_u32).map(|it| Ipv4Addr::from(0x0a60_0000 + it).into()).collect();
        let v6 = |it| IpAddr::V6(Ipv6Addr::from((0xfd_u128 << 120) + it));
        ips.extend((1..=500).map(v6));
        let mut addresses = Addresses::open().unwrap();
        assert!(addresses.add(link, &ips).unwrap().is_empty());
        let listed = output("ip", "-o address show dev services scope global");
        assert_eq!(listed.lines().count(), 2500);
        assert!(!listed.contains("tentative"));
        assert!(addresses.delete(link, &ips[1..]).unwrap().is_empty());
        let left: Vec<_> =
            addresses_of(link).unwrap().into_iter().filter(IpAddr::is_ipv4).collect();
        assert_eq!(left, ips[..1]);
        assert!(links.delete(link).unwrap());
        assert_eq!(links.find("services").unwrap(), None);
    })
}
