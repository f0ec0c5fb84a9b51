//! Input that means harm, or makes no sense: the code that CNI has for it, and nothing changed.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::io::Write;

use serde_json::{Value, json};
use support::cni::{Call, config, config_with, inventory, machine};
use telaio_testkit::machine::Machine;

/// Calls with these bytes as they are; the code of the error, and that it has CNI's form.
fn raw(machine: &Machine, command: &'static str, bytes: Vec<u8>) -> u64 {
    let call = Call::new(command, "a", &Value::Null);
    let done = machine.run(move || {
        let mut child = call.command().spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // It may have read enough before it was given everything.
        let writer = std::thread::spawn(move || drop(stdin.write_all(&bytes)));
        let done = child.wait_with_output().unwrap();
        writer.join().unwrap();
        done
    });
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let error: Value = serde_json::from_str(&text).unwrap_or_else(|it| panic!("{it}: {text}"));
    assert_eq!(done.status.code(), Some(1), "{error}");
    assert!(error["cniVersion"].is_string() && error["msg"].is_string(), "{error}");
    error["code"].as_u64().unwrap()
}

/// A machine on which `stays` is attached.
fn used() -> (Machine, String, Value) {
    let machine = machine(&["stays", "a"]);
    let result = Call::new("ADD", "stays", &config()).make(&machine).unwrap();
    let before = inventory(&machine);
    (machine, before, result)
}

#[test]
fn what_is_no_configuration_is_refused_by_every_command() {
    let (machine, before, _) = used();
    let huge = format!(r#"{{"cniVersion":"1.1.0","name":"{}"}}"#, "n".repeat(5 << 20));
    let deep = format!(r#"{{"cniVersion":"1.1.0","name":{}"#, "[".repeat(100_000));
    let cut = config().to_string();
    let inputs: [(&str, Vec<u8>, &[u64]); 12] = [
        ("nothing", vec![], &[6]),
        ("blanks", b" \n\t ".to_vec(), &[6]),
        ("no text", vec![0xff, 0xfe, 0x00, 0x80], &[5, 6]),
        ("zeroes", vec![0; 4096], &[6]),
        ("cut short", cut.as_bytes()[..cut.len() / 2].to_vec(), &[6]),
        ("two of them", [cut.as_bytes(), cut.as_bytes()].concat(), &[6]),
        ("a list", b"[]".to_vec(), &[7]),
        ("a number", b"7".to_vec(), &[7]),
        ("null", b"null".to_vec(), &[7]),
        ("too large", huge.into_bytes(), &[6, 7]),
        ("too deep", deep.into_bytes(), &[6, 7]),
        ("a name of a number", br#"{"cniVersion":"1.1.0","name":7}"#.to_vec(), &[7]),
    ];
    for (what, bytes, codes) in inputs {
        for command in ["ADD", "DEL", "CHECK", "STATUS", "GC"] {
            let code = raw(&machine, command, bytes.clone());
            assert!(codes.contains(&code), "{command} {what}: {code}");
        }
        support::assert_same(&inventory(&machine), &before, what);
    }
}

#[test]
fn values_of_the_wrong_kind_are_refused() {
    let (machine, before, _) = used();
    let ipam = |ipam: Value| json!({ "ipam": ipam });
    let runtime = |runtime: Value| json!({ "runtimeConfig": runtime });
    let cases = [
        (7, json!({"cniVersion": 1})),
        (1, json!({"cniVersion": "9.9.9"})),
        (1, json!({"cniVersion": "1.1"})),
        (1, json!({"cniVersion": "../1.1.0"})),
        (7, json!({"name": ""})),
        (7, json!({"name": "../../etc"})),
        (7, json!({"bridge": "../x"})),
        (7, json!({"bridge": ["cni0"]})),
        (7, json!({"isGateway": "yes"})),
        (7, json!({"mtu": -1})),
        (7, json!({"mtu": 1e99})),
        (7, json!({"vlan": "5"})),
        (7, json!({"reaches": "other"})),
        (7, ipam(json!([]))),
        (7, ipam(json!({"type": "host-local", "subnet": 10}))),
        (7, ipam(json!({"type": "host-local", "ranges": {}}))),
        (7, ipam(json!({"type": "host-local", "ranges": [[]]}))),
        (7, ipam(json!({"type": "host-local", "subnet": "10.88.0.0/33"}))),
        (7, ipam(json!({"type": "host-local", "subnet": "fd88::/129"}))),
        (
            7,
            ipam(
                json!({"type": "host-local", "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.3"}),
            ),
        ),
        (7, ipam(json!({"type": "host-local", "subnet": "10.1.0.0/24", "rangeEnd": "fd88::1"}))),
        (7, ipam(json!({"type": "host-local", "subnet": "10.1.0.0/24", "routes": [{"dst": "x"}]}))),
        (
            7,
            ipam(
                json!({"type": "host-local", "subnet": "10.1.0.0/24", "routes": [{"dst": "10.0.0.0/8", "gw": "y"}]}),
            ),
        ),
        (7, runtime(json!({"ips": "10.88.0.9"}))),
        (7, runtime(json!({"ips": ["10.88.0.9.9"]}))),
        (7, runtime(json!({"ips": ["10.89.0.9"]}))),
        (7, runtime(json!({"ips": ["fd99::1"]}))),
        (7, runtime(json!({"mac": "02:00:00:00:00"}))),
        (7, runtime(json!({"mac": 7}))),
        (7, runtime(json!({"portMappings": {}}))),
        (7, runtime(json!({"portMappings": [{"hostPort": 80}]}))),
        (7, runtime(json!({"portMappings": [{"hostPort": -1, "containerPort": 80}]}))),
        (
            7,
            runtime(
                json!({"portMappings": [{"hostPort": 80, "containerPort": 80, "protocol": "icmp"}]}),
            ),
        ),
        (
            7,
            runtime(
                json!({"portMappings": [{"hostPort": 80, "containerPort": 80, "hostIP": "here"}]}),
            ),
        ),
        (7, runtime(json!({"bandwidth": {"ingressRate": "fast"}}))),
        (7, runtime(json!({"bandwidth": {"ingressRate": -5}}))),
    ];
    for (code, change) in cases {
        let error = Call::new("ADD", "a", &config_with(change.clone())).make(&machine);
        let error = error.expect_err(&change.to_string());
        assert_eq!(error["code"], code, "{change} {error}");
        support::assert_same(&inventory(&machine), &before, &change.to_string());
    }
    for id in ["", ".", "..", "-a", "a/b", "a b", "a\n", "ä", "a;b", "$(x)"] {
        for command in ["ADD", "DEL", "CHECK"] {
            let mut call = Call::new(command, "a", &config());
            call.container = id.to_owned();
            assert_eq!(call.make(&machine).unwrap_err()["code"], 4, "{command} {id:?}");
        }
    }
    for name in ["", ".", "..", "a/b", "a:b", "a b", "a\tb", "0123456789abcdef"] {
        let mut call = Call::new("ADD", "a", &config());
        call.interface = name.to_owned();
        assert_eq!(call.make(&machine).unwrap_err()["code"], 4, "{name:?}");
    }
    let mut call = Call::new("ADD", "a", &config());
    call.args = "no pair".to_owned();
    assert_eq!(call.make(&machine).unwrap_err()["code"], 4);
    support::assert_same(&inventory(&machine), &before, "IDs and names");
}

#[test]
fn check_believes_no_result_that_is_not_the_adds() {
    let (machine, before, result) = used();
    let check = |previous: Value| {
        let config = config_with(json!({ "prevResult": previous }));
        Call::new("CHECK", "stays", &config).make(&machine)
    };
    check(result.clone()).unwrap();
    let changed = |path: &str, value: Value| {
        let mut changed = result.clone();
        *changed.pointer_mut(path).unwrap() = value;
        changed
    };
    let cases = [
        (7, Value::Null),
        (105, json!({})),
        (105, changed("/interfaces", json!([]))),
        (105, changed("/interfaces", json!("none"))),
        (105, changed("/interfaces/2/name", json!("eth9"))),
        (105, changed("/interfaces/2/sandbox", json!(""))),
        (105, changed("/interfaces/2/mac", json!("02:00:00:00:00:99"))),
        (105, changed("/ips/0/address", json!("10.88.9.9/16"))),
        (105, changed("/ips/1/address", json!("fd88::99/64"))),
        (105, changed("/ips/0/address", json!("garbage"))),
    ];
    for (code, previous) in cases {
        let error = check(previous.clone()).expect_err(&previous.to_string());
        assert_eq!(error["code"], code, "{previous} {error}");
    }
    support::assert_same(&inventory(&machine), &before, "");
}

#[test]
fn a_list_of_valid_attachments_that_is_none_collects_nothing() {
    let (machine, before, _) = used();
    for garbage in [
        json!("stays"),
        json!(7),
        json!({}),
        json!(["stays"]),
        json!([{}]),
        json!([{"containerID": "stays"}]),
        json!([{"ifname": "eth0"}]),
        json!([{"containerID": 1, "ifname": 2}]),
        json!([[["stays", "eth0"]]]),
        Value::Null,
    ] {
        let config = config_with(json!({ "cni.dev/valid-attachments": garbage }));
        let error = Call::new("GC", "", &config).make(&machine).expect_err(&config.to_string());
        assert_eq!(error["code"], 7, "{garbage} {error}");
        support::assert_same(&inventory(&machine), &before, &garbage.to_string());
    }
}

#[test]
fn a_state_directory_that_cannot_be_written_is_told_before_and_changes_nothing() {
    let (machine, before, _) = used();
    machine.sh("echo no directory > /run/file");
    for at in ["/run/file", "/run/file/below", "/proc/nowhere"] {
        let config = config_with(json!({ "stateDir": at }));
        assert_eq!(
            Call::new("STATUS", "a", &config).make(&machine).unwrap_err()["code"],
            50,
            "{at}"
        );
        for command in ["ADD", "CHECK", "DEL"] {
            let config = config_with(json!({ "stateDir": at, "prevResult": {} }));
            let error = Call::new(command, "a", &config).make(&machine).unwrap_err();
            assert_eq!(error["code"], 5, "{command} {at} {error}");
            assert!(error["msg"].as_str().unwrap().contains(at), "{error}");
        }
        support::assert_same(&inventory(&machine), &before, at);
    }
}
