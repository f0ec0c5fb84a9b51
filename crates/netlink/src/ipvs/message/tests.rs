//! Every message in the form that the kernel knows, and reading what it could say.

use proptest::prelude::*;

use super::super::Command;
use super::*;
use crate::error::NetlinkError;
use crate::wire::Messages;

fn frontends() -> [Frontend; 4] {
    [
        Frontend::Address { protocol: 6, at: "192.0.2.1:80".parse().unwrap() },
        Frontend::Address { protocol: 17, at: "[2001:db8::1]:53".parse().unwrap() },
        Frontend::Mark { is_v6: false, mark: 7 },
        Frontend::Mark { is_v6: true, mark: 8 },
    ]
}

fn written(fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut request = Writer::new();
    request.begin(30, 0, 1, &[]);
    fill(&mut request);
    request.end();
    request.finish().unwrap().to_vec()
}

fn attributes(bytes: &[u8]) -> Attributes<'_> {
    Messages(bytes).next().unwrap().attributes(0)
}

fn pairs(attributes: Attributes<'_>) -> Vec<(u16, Vec<u8>)> {
    attributes.into_iter().map(|(number, value)| (number, value.to_vec())).collect()
}

fn padded<const N: usize>(bytes: [u8; N]) -> Vec<u8> {
    let mut address = bytes.to_vec();
    address.resize(16, 0);
    address
}

#[test]
fn what_a_service_is_is_read_as_it_was_written() {
    for frontend in frontends() {
        let mut expected = VirtualServer::new(frontend, "rr");
        let bytes = written(|request| put_service(request, &expected));
        assert_eq!(service(attributes(&bytes)).unwrap().server, expected);
        expected.flags = super::super::FLAG_PERSISTENT | super::super::FLAG_SCHEDULER_2;
        expected.timeout_s = 10_800;
        expected.client_prefix_len = 24;
        let bytes = written(|request| put_service(request, &expected));
        let found = service(attributes(&bytes)).unwrap();
        assert_eq!(found, VirtualServerState { server: expected, stats: Stats::default() });
    }
}

#[test]
fn a_service_has_the_form_that_the_kernel_knows() {
    let persistent = VirtualServer {
        frontend: frontends()[0],
        scheduler: "mh".to_owned(),
        // Whoever passes the kernel's own bit on does no harm.
        flags: FLAG_HASHED | 1,
        timeout_s: 60,
        client_prefix_len: 24,
    };
    let bytes = written(|request| put_service(request, &persistent));
    let expected: [(u16, Vec<u8>); 8] = [
        (1, 2_u16.to_ne_bytes().into()),
        (2, 6_u16.to_ne_bytes().into()),
        (3, padded([192, 0, 2, 1])),
        (4, vec![0, 80]),
        (6, b"mh\0".into()),
        (7, [1_u32.to_ne_bytes(), [0xff; 4]].concat()),
        (8, 60_u32.to_ne_bytes().into()),
        (9, vec![255, 255, 255, 0]),
    ];
    assert_eq!(pairs(attributes(&bytes).nested(1).unwrap()), expected);

    let bytes = written(|request| put_service(request, &VirtualServer::new(frontends()[3], "sh")));
    let expected: [(u16, Vec<u8>); 6] = [
        (1, 10_u16.to_ne_bytes().into()),
        (5, 8_u32.to_ne_bytes().into()),
        (6, b"sh\0".into()),
        (7, [[0; 4], [0xff; 4]].concat()),
        (8, vec![0; 4]),
        (9, 128_u32.to_ne_bytes().into()),
    ];
    assert_eq!(pairs(attributes(&bytes).nested(1).unwrap()), expected);
}

#[test]
fn netmasks_have_as_many_bits_as_are_asked_for() {
    let expected = [(0, 0), (1, 0x8000_0000), (24, 0xffff_ff00), (32, u32::MAX), (200, u32::MAX)];
    for (length, mask) in expected {
        assert_eq!(netmask(length), mask, "{length}");
    }
}

#[test]
fn a_server_has_the_form_that_the_kernel_knows() {
    let address: SocketAddr = "198.51.100.7:8080".parse().unwrap();
    let server = RealServer { address, weight: 5, method: Forwarding::Direct };
    let name = [(1, padded([198, 51, 100, 7])), (2, vec![0x1f, 0x90])];
    let family = [(11, 2_u16.to_ne_bytes().to_vec())];
    let bytes = written(|request| put_server(request, &server));
    let rest = [(3, 3), (4, 5), (5, 0), (6, 0)]
        .map(|(number, value): (u16, u32)| (number, value.to_ne_bytes().to_vec()));
    let expected = [&name[..], &family, &rest].concat();
    assert_eq!(pairs(attributes(&bytes).nested(2).unwrap()), expected);

    let bytes = written(|request| put_server_name(request, address));
    assert_eq!(pairs(attributes(&bytes).nested(2).unwrap()), [&name[..], &family].concat());
}

#[test]
fn every_command_names_its_service_and_what_it_is_about() {
    let of = frontends()[1];
    let address = "[2001:db8::7]:53".parse().unwrap();
    let server = RealServer { address, weight: 1, method: Forwarding::Nat };
    let commands = [
        (Command::Add(VirtualServer::new(of, "rr")), 1, vec![1]),
        (Command::Edit(VirtualServer::new(of, "rr")), 2, vec![1]),
        (Command::Delete(of), 3, vec![1]),
        (Command::AddServer(of, server), 5, vec![1, 2]),
        (Command::EditServer(of, server), 6, vec![1, 2]),
        (Command::DeleteServer(of, address), 7, vec![1, 2]),
    ];
    for (command, number, parts) in commands {
        let bytes = written(|request| command.put(request));
        let found: Vec<_> = attributes(&bytes).into_iter().map(|(number, _)| number).collect();
        assert_eq!((command.number(), found), (number, parts), "{command:?}");
        assert_eq!(frontend(attributes(&bytes).nested(1).unwrap()), Some(of));
    }
}

#[test]
fn only_removals_are_moot() {
    let of = frontends()[0];
    let at = "192.0.2.7:80".parse().unwrap();
    let error = |number| NetlinkError::Socket {
        doing: "testing",
        error: std::io::Error::from_raw_os_error(number),
    };
    assert!(Command::Delete(of).is_moot(&error(libc::ESRCH)));
    assert!(!Command::Delete(of).is_moot(&error(libc::EPERM)));
    assert!(Command::DeleteServer(of, at).is_moot(&error(libc::ESRCH)));
    assert!(Command::DeleteServer(of, at).is_moot(&error(libc::ENOENT)));
    // A scheduler that is not there is no service that is not there.
    assert!(!Command::Add(VirtualServer::new(of, "x")).is_moot(&error(libc::ENOENT)));
}

/// A server as the kernel tells of it.
fn told_server(request: &mut Writer, family: Option<u16>) {
    let nest = request.begin_nest(ATTR_SERVER);
    request.put(SERVER_ADDRESS, &padded([198, 51, 100, 7]));
    request.put_be16(SERVER_PORT, 8080);
    let numbers = [(3, 0x103), (4, 2), (5, 90), (6, 60), (7, 11), (8, 12), (9, 13)];
    for (number, value) in numbers {
        request.put_ne32(number, value);
    }
    if let Some(family) = family {
        request.put_ne16(SERVER_FAMILY, family);
    }
    let stats = request.begin_nest(SERVER_STATS);
    for number in 1..=10 {
        request.put(number, &(u64::from(number) << 33).to_ne_bytes());
    }
    request.end_nest(stats);
    request.end_nest(nest);
}

#[test]
fn a_server_is_read_with_its_connections_and_what_it_has_done() {
    let expected = RealServerState {
        load: RealServerLoad {
            server: RealServer {
                address: "198.51.100.7:8080".parse().unwrap(),
                weight: 2,
                method: Forwarding::Direct,
            },
            active: 11,
            inactive: 12,
        },
        persistent: 13,
        upper_threshold: 90,
        lower_threshold: 60,
        stats: Stats {
            connections: 1 << 33,
            packets_in: 2 << 33,
            packets_out: 3 << 33,
            bytes_in: 4 << 33,
            bytes_out: 5 << 33,
        },
    };
    let bytes = written(|request| told_server(request, None));
    assert_eq!(server(attributes(&bytes), false), Some(expected));
    // A tunnel's end can be of another family than its service.
    let bytes = written(|request| told_server(request, Some(V4)));
    assert_eq!(server(attributes(&bytes), true), Some(expected));
}

#[test]
fn half_of_anything_is_nothing() {
    let bytes = written(|request| {
        let nest = request.begin_nest(ATTR_SERVICE);
        request.put_ne16(SERVICE_FAMILY, V6);
        request.put(SERVICE_ADDRESS, &[0; 4]);
        request.end_nest(nest);
    });
    assert_eq!(service(attributes(&bytes)), None);
    assert_eq!(server(attributes(&bytes), false), None);
    assert_eq!(timeouts(attributes(&bytes)), None);
    assert_eq!(info(attributes(&bytes)), None);
    assert_eq!(method(5), None);
}

#[test]
fn settings_are_read_and_written() {
    let expected = Timeouts { tcp_s: 900, tcp_fin_s: 120, udp_s: 300 };
    let bytes = written(|request| put_timeouts(request, &expected));
    let numbers = [(4, 900), (5, 120), (6, 300)]
        .map(|(number, value): (u16, u32)| (number, value.to_ne_bytes().to_vec()));
    assert_eq!(pairs(attributes(&bytes)), numbers);
    assert_eq!(timeouts(attributes(&bytes)), Some(expected));

    let bytes = written(|request| {
        request.put_ne32(1, 0x01_02_03);
        request.put_ne32(2, 4096);
    });
    let expected = Info { version: (1, 2, 3), connection_table_size: 4096 };
    assert_eq!(info(attributes(&bytes)), Some(expected));
}

proptest! {
    #[test]
    fn reading_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        // What is in the nest is as good as random.
        let told = written(|request| {
            request.put(ATTR_SERVICE, &bytes);
            request.put(ATTR_SERVER, &bytes);
        });
        for attributes in [Attributes(&bytes), attributes(&told)] {
            let _ = service(attributes);
            let _ = server(attributes, true);
            let _ = timeouts(attributes);
            let _ = info(attributes);
        }
    }
}
