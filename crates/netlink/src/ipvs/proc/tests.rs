//! The table as kernels print it, and as they do not.

use proptest::prelude::*;

use super::super::server::{Stats, VirtualServer};
use super::*;

const TITLE: &str = "IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
";

/// With the blanks that the kernel leaves.
const TABLE: &str = "TCP  0A600001:0050 rr  persistent 1080000 FFFFFFFF
  -> 0AF40007:1F90      Masq    1      3          4         
  -> 0AF40008:1F90      Route   0      0          0         
UDP  0A600001:0035 wrr ops  
SCTP  [fd00:0010:0096:0000:0000:0000:0000:0001]:0035 sh 
  -> [fd00:0010:0244:0000:0000:0000:0000:0007]:0035      Tunnel  100    0          0         
FWM  0000ABCD mh ops persistent 6000 FFFFFF00
  -> 7F000001:0050      Local   65535  1          2147483647
FWM  00000007 none 
";

fn table(lines: &str) -> String {
    format!("{TITLE}{lines}")
}

fn load(address: &str, method: Forwarding, numbers: [u32; 3]) -> RealServerLoad {
    let [weight, active, inactive] = numbers;
    let server = RealServer { address: address.parse().unwrap(), weight, method };
    RealServerLoad { server, active, inactive }
}

#[test]
fn the_table_is_read_as_the_kernel_prints_it() {
    let text = table(TABLE);
    let at = |protocol, at: &str| Key::Address(protocol, at.parse().unwrap());
    let of = |key, scheduler, servers| Listed { key, scheduler, servers };
    let expected = [
        of(
            at(6, "10.96.0.1:80"),
            "rr",
            vec![
                load("10.244.0.7:8080", Forwarding::Nat, [1, 3, 4]),
                load("10.244.0.8:8080", Forwarding::Direct, [0, 0, 0]),
            ],
        ),
        of(at(17, "10.96.0.1:53"), "wrr", vec![]),
        of(
            at(132, "[fd00:10:96::1]:53"),
            "sh",
            vec![load("[fd00:10:244::7]:53", Forwarding::Tunnel, [100, 0, 0])],
        ),
        of(
            Key::Mark(0xabcd),
            "mh",
            vec![load("127.0.0.1:80", Forwarding::Local, [65535, 1, 2_147_483_647])],
        ),
        of(Key::Mark(7), "none", vec![]),
    ];
    assert_eq!(parse(&text).unwrap(), expected);
    assert_eq!(parse(TITLE).unwrap(), []);
}

#[test]
fn what_is_not_as_the_kernel_prints_it_is_an_error() {
    for text in ["", "IP Virtual Server", "something else\n\n\n"] {
        assert!(parse(text).is_err(), "{text}");
    }
    for lines in [
        "  -> 0AF40007:1F90      Masq    1      3          4\n",
        "\n",
        "TCP\n",
        "TCP  0A600001:0050\n",
        "TCP  0A600001 rr\n",
        "TCP  0A60001:0050 rr\n",
        "TCP  0A600001:10050 rr\n",
        "TCP  +A600001:0050 rr\n",
        "TCP  10.96.0.1:0050 rr\n",
        "TCP  [fd00::1:0050 rr\n",
        "IP_51  0A600001:0050 rr\n",
        "TCP  0A600001:0050 rr strange\n",
        "TCP  0A600001:0050 rr persistent\n",
        "TCP  0A600001:0050 rr persistent 7\n",
        "TCP  0A600001:0050 rr persistent 7 FFFFFFFF more\n",
        "FWM  7 rr\n",
        "FWM  00000007 rr\n  -> 0AF40007:1F90      Masq    1      3\n",
        "FWM  00000007 rr\n  -> 0AF40007:1F90      Masq    -1      3  4\n",
        "FWM  00000007 rr\n  -> 0AF40007:1F90      Masq    1      3  4  5\n",
        "FWM  00000007 rr\n  -> 0AF40007:1F90      Other   1      3  4\n",
        "FWM  00000007 rr\n  ->\n",
    ] {
        assert!(parse(&table(lines)).is_err(), "{lines}");
    }
}

fn states(frontends: &[Frontend]) -> Vec<VirtualServerState> {
    let state = |frontend: &Frontend| VirtualServerState {
        server: VirtualServer::new(*frontend, "rr"),
        stats: Stats::default(),
    };
    frontends.iter().map(state).collect()
}

#[test]
fn services_get_their_servers_whatever_the_order() {
    let text = table("TCP  0A600001:0050 rr\n  -> 0AF40007:1F90 Masq 1 3 4\nFWM  00000007 rr\n");
    let address = Frontend::Address { protocol: 6, at: "10.96.0.1:80".parse().unwrap() };
    // Of which family a mark is only the list of services says.
    let mark = Frontend::Mark { is_v6: true, mark: 7 };
    let found = join(states(&[mark, address]), parse(&text).unwrap()).unwrap();
    let found: Vec<_> = found.iter().map(|it| (it.server.frontend, it.servers.len())).collect();
    assert_eq!(found, [(mark, 0), (address, 1)]);
}

#[test]
fn what_does_not_fit_together_is_not_joined() {
    let address = Frontend::Address { protocol: 6, at: "10.96.0.1:80".parse().unwrap() };
    let marks = [false, true].map(|is_v6| Frontend::Mark { is_v6, mark: 7 });
    let line = "TCP  0A600001:0050 rr\n";
    let mark = "FWM  00000007 rr\n";
    for (services, lines) in [
        (&[address][..], String::new()),
        (&[], line.to_owned()),
        (&[address], mark.to_owned()),
        (&[address], "TCP  0A600001:0050 wrr\n".to_owned()),
        (&[address], line.repeat(2)),
        (&marks, mark.repeat(2)),
    ] {
        let text = table(&lines);
        assert_eq!(join(states(services), parse(&text).unwrap()), None, "{services:?} {lines}");
    }
}

proptest! {
    #[test]
    fn reading_never_panics(text in "\\PC{0,80}", cut in 0_usize..400) {
        let _ = parse(&table(&text));
        let _ = parse(&table(&format!("FWM  00000007 rr\n  -> {text}\n")));
        let whole = table(TABLE);
        let _ = parse(whole.get(..cut.min(whole.len())).unwrap_or_default());
    }
}
