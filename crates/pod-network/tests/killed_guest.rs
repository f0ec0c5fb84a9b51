//! Calls that are killed at any moment where the kernel has no nftables for IP: rules of both families are then written by two runs
//! of a program, and a kill comes before, between and after them.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::cni::{Call, config, config_with, machine};
use support::{Chance, PATIENCE, Wire, ask_from, serve_at};
use telaio_pod_network::Host;
use telaio_testkit::guest::{self, GuestError};
use telaio_testkit::machine::Machine;

/// How many calls are killed at work, and how many of them whatever time it takes: the guest is slow.
const KILLS: u64 = 24;
const KILLS_MIN: u64 = 4;
const TIME: Duration = Duration::from_secs(45);

/// All that is left, rules of iptables among it.
fn everything(machine: &Machine) -> String {
    machine.sh(
        "for save in iptables-legacy-save ip6tables-legacy-save; do $save | grep -v '^#' | sed 's/\\[.*//' | sort; done; \
         ip -o link | sed 's/^[0-9]*: //; s/@.*//; s/:.*//' | sort; ip route | sed 's/ linkdown//; s/ *$//' | sort; \
         ip -6 route | grep -v fe80 | sed 's/ linkdown//' | sort; ip neigh show nud permanent | sort; ls /run/netns; \
         find /var/lib/telaio -type f | grep -v 'lock$\\|/last-' | sort; true",
    )
}

fn publishing() -> Value {
    config_with(json!({"runtimeConfig": {"portMappings": [
        {"hostPort": 8080, "containerPort": 80}, {"hostPort": 8080, "containerPort": 80, "protocol": "udp"}]}}))
}

#[test]
fn killed_between_two_runs_of_iptables_everything_comes_right_and_nothing_is_left()
-> Result<(), GuestError> {
    let name = "killed_between_two_runs_of_iptables_everything_comes_right_and_nothing_is_left";
    guest::inside(name, || {
        let machine = machine(&["stays", "a"]);
        Call::new("ADD", "stays", &config()).make(&machine).unwrap();
        for command in ["ADD", "DEL"] {
            Call::new(command, "a", &publishing()).make(&machine).unwrap();
        }
        let before = everything(&machine);
        assert!(before.contains("TELAIO-POD"), "it is iptables: {before}");
        let mut valid = publishing();
        valid["cni.dev/valid-attachments"] = json!([{"containerID": "stays", "ifname": "eth0"}]);
        let call = |command| Call::new(command, "a", &publishing());
        let (add, delete, collect) = (call("ADD"), call("DEL"), Call::new("GC", "", &valid));
        let mut chance = Chance(31);
        let (mut landed, mut round, mut longest) = (0, 0, 100_000);
        let start = Instant::now();
        while landed < KILLS_MIN || landed < KILLS && start.elapsed() < TIME {
            round += 1;
            assert!(round < KILLS * 4, "of {round} calls only {landed} were killed at work");
            let killed = if chance.below(2) == 0 { delete.clone() } else { add.clone() };
            if killed.command == "DEL" {
                add.make(&machine).unwrap();
            }
            let after = Duration::from_micros(chance.below(longest));
            let what = format!("round {round}: {} killed after {after:?}", killed.command);
            if machine.run(move || killed.kill(after)) {
                landed += 1;
            } else {
                longest = (longest * 9 / 10).max(5000);
            }
            match chance.below(4) {
                0 => {
                    // The same again; that it had been done before it was killed is all that may be in the way.
                    if let Err(error) = add.make(&machine) {
                        assert_eq!(error["code"], 104, "{what}: {error}");
                    } else {
                        let _server = serve_at(&machine, Some("a"), "0.0.0.0", 80, Wire::Tcp);
                        let asked =
                            ask_from(&machine, None, "10.88.0.1", 8080, Wire::Tcp, PATIENCE);
                        assert!(asked.is_ok(), "{what}: {asked:?}");
                    }
                    delete.make(&machine).unwrap();
                }
                1 => _ = delete.make(&machine).unwrap(),
                2 => {
                    machine.run(|| Host::default().repair().unwrap());
                    delete.make(&machine).unwrap();
                }
                _ => _ = collect.make(&machine).unwrap(),
            }
            support::assert_same(&everything(&machine), &before, &what);
        }
    })
}
