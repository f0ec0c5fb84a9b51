//! The guest kernel itself: what runs there, what comes back, and that nothing else does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use telaio_testkit::guest::{self, GuestCommand, GuestError, qemu};
use telaio_testkit::netns::{Cluster, Family, Host, Place, SERVER_PORT, Transport};

/// Set for the test program that is to be killed.
const TO_BE_KILLED: &str = "TELAIO_TEST_TO_BE_KILLED";

/// How many processes the guests of a test process have, by their command lines.
fn guest_processes(of: u32) -> usize {
    let folder = format!("telaio-guest-{of}-");
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(&folder)).count()
}

/// How many folders the guests of a test process have.
fn guest_folders(of: u32) -> usize {
    let start = format!("telaio-guest-{of}-");
    let entries = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&start)).count()
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !holds() {
        assert!(Instant::now() < deadline, "no {what} in time");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_program_gets_what_it_was_given_and_its_end_comes_back() {
    let script = r#"
        printf '%s|' "$@" "$WORD"; echo "not well" >&2
        uname -r; id -u; ls /sys/class/net
        touch /run/mine "$TMPDIR/mine" && echo "own places"
        touch /etc/theirs "$(dirname "$0")/theirs" 2>/dev/null || echo "read-only"
        test -e /proc/sys/net/ipv6 && echo "IPv6"
        exit 7"#;
    let output = GuestCommand::new("sh")
        .args(["-c", script, env!("CARGO_MANIFEST_PATH"), "it's", "$two words", ""])
        .env("WORD", "a 'b' \"c\" \\d")
        .run()
        .unwrap();
    assert_eq!(output.code, 7, "{output}");
    let lines: Vec<_> = output.stdout.lines().collect();
    let (given, release) = lines[0].rsplit_once('|').unwrap();
    assert_eq!(given, r#"it's|$two words||a 'b' "c" \d"#);
    assert!(release.starts_with("6."), "{output}");
    let host = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_ne!(release, host.trim());
    assert_eq!(lines[1..], ["0", "lo", "own places", "read-only", "IPv6"], "{output}");
    assert_eq!(output.stderr, "not well\n");
}

#[test]
fn what_takes_too_long_is_ended_with_what_it_said() {
    let command = GuestCommand::new("sleep").arg("600").time_max(Duration::from_secs(4));
    let error = command.run().unwrap_err();
    assert!(matches!(error, GuestError::TooLong { .. }), "{error}");
    // What the kernel says first of all.
    assert!(error.to_string().contains("Core dump limits"), "{error}");
    assert_eq!(guest_processes(std::process::id()), 0);
}

#[test]
fn a_guest_goes_with_a_test_that_is_killed() {
    if std::env::var_os(TO_BE_KILLED).is_some() {
        GuestCommand::new("sleep").arg("600").run().unwrap();
        return;
    }
    let this = ["--exact", "a_guest_goes_with_a_test_that_is_killed"];
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(this).env(TO_BE_KILLED, "1").stdout(Stdio::null());
    let mut test = Killed(program.spawn().unwrap());
    let process = test.0.id();
    // The kernel, and a process for each that runs in it.
    wait_until("guest", || guest_processes(process) > 3);
    test.0.kill().unwrap();
    test.0.wait().unwrap();
    wait_until("end of the guest", || guest_processes(process) == 0);
    // The next guest, however short its life, removes what is left on disk.
    assert_eq!(guest_folders(process), 1);
    GuestCommand::new("true").time_max(Duration::ZERO).run().unwrap_err();
    assert_eq!(guest_folders(process), 0);
}

/// A process that ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already, as it should.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_kernel_that_breaks_down_is_told_from_a_program_that_fails() {
    let error = GuestCommand::new("sh")
        .args(["-c", "echo c >/proc/sysrq-trigger; sleep 60"])
        .run()
        .unwrap_err();
    assert!(matches!(error, GuestError::Ended { .. }), "{error}");
    assert!(error.to_string().contains("sysrq triggered crash"), "{error}");
}

#[test]
fn a_test_that_fails_inside_fails_outside_with_what_it_said() {
    let outcome = guest::inside("a_test_that_fails_inside_fails_outside_with_what_it_said", || {
        panic!("as a failing test does");
    });
    let error = outcome.unwrap_err();
    assert!(matches!(error, GuestError::TestFailed { .. }), "{error}");
    assert!(error.to_string().contains("as a failing test does"), "{error}");
}

#[test]
fn a_test_that_is_not_there_has_not_passed() {
    let error = guest::inside("no_such_test", || ()).unwrap_err();
    assert!(matches!(error, GuestError::NoSuchTest { .. }), "{error}");
}

#[test]
fn a_cluster_of_namespaces_runs_inside_where_modules_load_by_themselves() {
    let name = "a_cluster_of_namespaces_runs_inside_where_modules_load_by_themselves";
    guest::inside(name, || {
        assert!(guest::is_inside());
        let cluster = Cluster::start().unwrap();
        for family in Family::ALL {
            let to = SocketAddr::new(Host::B1.address(family), SERVER_PORT);
            let outcome = cluster.ask(Place::of(Host::A1), to, Transport::Tcp);
            assert_eq!(outcome.by(), Some("b1"), "{outcome}");
        }
        let ipvs = Path::new("/proc/net/ip_vs");
        assert!(!ipvs.exists());
        assert!(Command::new("modprobe").arg("ip_vs").status().unwrap().success());
        assert!(ipvs.exists());
    })
    .unwrap();
}

#[test]
#[ignore = "on an emulated machine: cargo xtask test --long"]
fn an_emulated_machine_has_both_ipvs_and_nftables() -> Result<(), GuestError> {
    qemu::inside("an_emulated_machine_has_both_ipvs_and_nftables", &[], || {
        let script = "ipvsadm -A -t 192.0.2.1:80 -s rr && nft add table ip both && ipvsadm -S -n && nft list tables";
        let output = Command::new("sh").args(["-c", script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let both = "-A -t 192.0.2.1:80 -s rr\ntable ip both\n";
        assert_eq!(String::from_utf8_lossy(&output.stdout), both);
    })
}

#[test]
#[ignore = "on an emulated machine: cargo xtask test --long"]
fn a_test_that_fails_on_an_emulated_machine_fails_here() {
    let name = "a_test_that_fails_on_an_emulated_machine_fails_here";
    let outcome = qemu::inside(name, &[], || panic!("so far away"));
    let Err(GuestError::TestFailed { output, .. }) = outcome else { panic!("{outcome:?}") };
    assert_eq!(output.code, 101, "{output}");
    assert!(output.stderr.contains("so far away"), "{output}");
}
