//! Calls for bridges that are nobody's gateway, killed at any moment.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::cni::{Call, config_with, machine, whole_inventory};
use support::{Chance, PATIENCE, Wire, ask_from, serve_at};
use telaio_pod_network::Host;

const KILLS: u64 = 60;

/// A bridge of which the node has no address: frames go from port to port.
fn plain() -> Value {
    config_with(json!({"name": "plain", "bridge": "br0", "isGateway": false, "ipMasq": false,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.89.0.0/16"}], [{"subnet": "fd89::/64"}]]}}))
}

/// The same with limits.
fn limited() -> Value {
    let mut config = plain();
    config["runtimeConfig"]["bandwidth"] =
        json!({"ingressRate": 80_000_000, "egressRate": 80_000_000});
    config
}

#[test]
fn killed_at_any_moment_plain_bridges_come_right_and_nothing_is_left() {
    let machine = machine(&["stays", "a"]);
    Call::new("ADD", "stays", &plain()).make(&machine).unwrap();
    let kinds = [plain(), limited()];
    for config in &kinds {
        for command in ["ADD", "DEL"] {
            Call::new(command, "a", config).make(&machine).unwrap();
        }
    }
    let before = whole_inventory(&machine);
    let mut chance = Chance(23);
    let (mut landed, mut round) = (0, 0);
    // How long a call takes is the machine's to say: where none is at work any more, they are killed sooner.
    let mut longest = 6000;
    while landed < KILLS {
        round += 1;
        assert!(round < KILLS * 4, "of {round} calls only {landed} were killed at work");
        let config = &kinds[usize::try_from(chance.below(2)).unwrap()];
        let mut valid = config.clone();
        valid["cni.dev/valid-attachments"] = json!([{"containerID": "stays", "ifname": "eth0"}]);
        let call = |command| Call::new(command, "a", config);
        let (add, delete, collect) = (call("ADD"), call("DEL"), Call::new("GC", "", &valid));
        let killed = match chance.below(5) {
            0 | 1 => delete.clone(),
            2 => collect.clone(),
            _ => add.clone(),
        };
        if killed.command != "ADD" {
            add.make(&machine).unwrap();
        }
        let after = Duration::from_micros(chance.below(longest));
        if machine.run(move || killed.kill(after)) {
            landed += 1;
        } else {
            longest = (longest * 9 / 10).max(500);
        }
        match chance.below(4) {
            0 => {
                // The same again; that it had been done before it was killed is all that may be in the way.
                match add.make(&machine) {
                    Err(error) => assert_eq!(error["code"], 104, "round {round}: {error}"),
                    Ok(result) => {
                        let ip = result["ips"][0]["address"].as_str().unwrap();
                        let ip = ip.split('/').next().unwrap();
                        let _server = serve_at(&machine, Some("a"), ip, 80, Wire::Tcp);
                        let asked = ask_from(&machine, Some("stays"), ip, 80, Wire::Tcp, PATIENCE);
                        assert_eq!(asked.as_deref(), Ok("10.89.0.2"), "round {round}");
                    }
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
        support::assert_same(&whole_inventory(&machine), &before, &format!("round {round}"));
    }
}
