//! Against a directory that stands in for `/`, and in a real network namespace.

use std::fs;

use tempfile::TempDir;

use super::*;
use crate::companions::place::Place;

/// A machine made of files.
struct Machine {
    root: TempDir,
    sysctls: Sysctls,
}

impl Machine {
    fn new() -> Self {
        let root = TempDir::new().unwrap();
        let sysctls = Sysctls::new(root.path(), root.path().join("state/sysctls.json"));
        let machine = Self { root, sysctls };
        machine.put(BOOT_ID, "first-boot");
        machine.put(CONNTRACK_MAX, "65536");
        machine.put(CONNTRACK_BUCKETS, "16384");
        machine.put(TCP_ESTABLISHED, "432000");
        machine.put(TCP_CLOSE_WAIT, "60");
        machine
    }

    fn put(&self, path: &str, value: &str) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{value}\n")).unwrap();
    }

    fn get(&self, path: &str) -> String {
        self.sysctls.read(path).unwrap()
    }

    fn apply(&self, config: &SysctlConfig) -> SysctlReport {
        self.sysctls.apply(&config.settings(2))
    }
}

fn conntrack_max(per_core: u32) -> SysctlConfig {
    SysctlConfig { conntrack_max_per_core: per_core, conntrack_min: 0, ..SysctlConfig::default() }
}

fn texts(report: &SysctlReport) -> Vec<String> {
    report.problems.iter().map(ToString::to_string).collect()
}

#[test]
fn the_table_has_kube_proxy_s_size() {
    let config = SysctlConfig::default();
    assert_eq!(config.conntrack_max(1), Some(131_072));
    assert_eq!(config.conntrack_max(4), Some(131_072));
    assert_eq!(config.conntrack_max(64), Some(64 * 32_768));
    assert_eq!(conntrack_max(0).conntrack_max(64), None);
}

#[test]
fn the_kernel_has_no_reason_to_round_the_number_of_buckets() {
    let settings = conntrack_max(100_000).settings(2);
    let buckets = settings.iter().find(|setting| setting.path == CONNTRACK_BUCKETS).unwrap();
    // A quarter of the flows is 50,000, of which pages of 4 KiB would make 50,176.
    assert_eq!(buckets.aim, Aim::AtLeast(57_344));
}

#[test]
fn zero_leaves_alone() {
    let nothing = SysctlConfig {
        conntrack_max_per_core: 0,
        conntrack_tcp_timeout_established_s: 0,
        conntrack_tcp_timeout_close_wait_s: 0,
        ..SysctlConfig::default()
    };
    assert_eq!(nothing.settings(8), []);
}

#[test]
fn sets_the_defaults_and_puts_back_what_was_there() {
    let machine = Machine::new();
    let report = machine.apply(&SysctlConfig::default());
    assert_eq!(texts(&report), [""; 0]);
    assert_eq!(report.changed.len(), 4);
    assert_eq!(machine.get(CONNTRACK_MAX), "131072");
    assert_eq!(machine.get(CONNTRACK_BUCKETS), "32768");
    assert_eq!(machine.get(TCP_ESTABLISHED), "86400");
    assert_eq!(machine.get(TCP_CLOSE_WAIT), "3600");
    assert!(machine.apply(&SysctlConfig::default()).changed.is_empty(), "nothing to do twice");
    let report = machine.sysctls.restore();
    assert_eq!(texts(&report), [""; 0]);
    assert_eq!(machine.get(CONNTRACK_MAX), "65536");
    assert_eq!(machine.get(CONNTRACK_BUCKETS), "16384");
    assert_eq!(machine.get(TCP_ESTABLISHED), "432000");
    assert_eq!(machine.get(TCP_CLOSE_WAIT), "60");
    assert!(!machine.sysctls.record.exists(), "no trace is left");
    assert!(machine.sysctls.restore().changed.is_empty());
}

#[test]
fn every_knob_reaches_its_file() {
    let machine = Machine::new();
    for path in [TCP_BE_LIBERAL, UDP_TIMEOUT, UDP_STREAM_TIMEOUT, ROUTE_LOCALNET] {
        machine.put(path, "0");
    }
    let report = machine.apply(&SysctlConfig {
        conntrack_tcp_be_liberal: true,
        conntrack_udp_timeout_s: 11,
        conntrack_udp_timeout_stream_s: 22,
        route_localnet: true,
        ..SysctlConfig::default()
    });
    assert_eq!(texts(&report), [""; 0]);
    assert_eq!(machine.get(TCP_BE_LIBERAL), "1");
    assert_eq!(machine.get(UDP_TIMEOUT), "11");
    assert_eq!(machine.get(UDP_STREAM_TIMEOUT), "22");
    assert_eq!(machine.get(ROUTE_LOCALNET), "1");
}

#[test]
fn a_larger_table_is_never_made_smaller() {
    let machine = Machine::new();
    machine.put(CONNTRACK_MAX, "1000000");
    machine.put(CONNTRACK_BUCKETS, "250000");
    machine.apply(&SysctlConfig::default());
    assert_eq!(machine.get(CONNTRACK_MAX), "1000000");
    assert_eq!(machine.get(CONNTRACK_BUCKETS), "250000");
}

#[test]
fn our_own_larger_table_is_made_smaller_down_to_what_was_there() {
    let machine = Machine::new();
    machine.apply(&conntrack_max(100_000));
    assert_eq!(machine.get(CONNTRACK_MAX), "200000");
    machine.apply(&conntrack_max(50_000));
    assert_eq!(machine.get(CONNTRACK_MAX), "100000");
    machine.apply(&conntrack_max(10));
    assert_eq!(machine.get(CONNTRACK_MAX), "65536");
    machine.apply(&conntrack_max(100_000));
    machine.apply(&conntrack_max(0));
    assert_eq!(machine.get(CONNTRACK_MAX), "65536", "no longer wanted, so put back");
}

#[test]
fn what_somebody_else_changed_since_is_theirs() {
    let machine = Machine::new();
    machine.apply(&SysctlConfig::default());
    machine.put(TCP_CLOSE_WAIT, "77");
    let report = machine.sysctls.restore();
    assert!(report.changed.iter().all(|change| change.path != TCP_CLOSE_WAIT));
    assert_eq!(machine.get(TCP_CLOSE_WAIT), "77");
    // And if we set it once more, it is their value that comes back.
    machine.put(TCP_CLOSE_WAIT, "77");
    machine.apply(&SysctlConfig::default());
    assert_eq!(machine.get(TCP_CLOSE_WAIT), "3600");
    machine.sysctls.restore();
    assert_eq!(machine.get(TCP_CLOSE_WAIT), "77");
}

#[test]
fn a_crash_between_record_and_change_loses_nothing() {
    let machine = Machine::new();
    machine.apply(&conntrack_max(100_000));
    // As if the second call had ended after it wrote its record.
    let mut record = Record::load(&machine.sysctls.record).unwrap();
    let kept = record.settings.get_mut(CONNTRACK_MAX).unwrap();
    assert_eq!(kept.before, "65536");
    kept.ours.insert(0, "300000".to_owned());
    record.save(&machine.sysctls.record).unwrap();
    for reached in ["200000", "300000"] {
        record.save(&machine.sysctls.record).unwrap();
        machine.put(CONNTRACK_MAX, reached);
        machine.sysctls.restore();
        assert_eq!(machine.get(CONNTRACK_MAX), "65536", "from {reached}");
    }
}

#[test]
fn a_record_from_before_the_machine_s_start_counts_for_nothing() {
    let machine = Machine::new();
    machine.apply(&SysctlConfig::default());
    machine.put(BOOT_ID, "second-boot");
    machine.sysctls.restore();
    assert_eq!(machine.get(TCP_CLOSE_WAIT), "3600", "somebody set it at start");
}

#[test]
fn without_a_record_nothing_is_changed() {
    let machine = Machine::new();
    // A file where the state directory should be.
    fs::write(machine.root.path().join("state"), "").unwrap();
    let report = machine.apply(&SysctlConfig::default());
    assert!(
        matches!(
            report.problems[..],
            [SysctlProblem::BadRecord { .. }, SysctlProblem::CannotRemember { .. }]
        ),
        "{report:?}"
    );
    assert_eq!(machine.get(TCP_CLOSE_WAIT), "60");
}

#[test]
fn a_broken_record_is_told_and_replaced() {
    let machine = Machine::new();
    machine.apply(&SysctlConfig::default());
    fs::write(&machine.sysctls.record, "{").unwrap();
    machine.put(TCP_CLOSE_WAIT, "60");
    let report = machine.apply(&SysctlConfig::default());
    assert!(texts(&report)[0].contains("no record of ours"), "{report:?}");
    assert_eq!(machine.get(TCP_CLOSE_WAIT), "3600");
    machine.sysctls.restore();
    assert_eq!(machine.get(TCP_CLOSE_WAIT), "60");
}

#[test]
fn a_missing_setting_is_a_hint_and_the_others_are_set() {
    let machine = Machine::new();
    fs::remove_file(machine.root.path().join(CONNTRACK_MAX)).unwrap();
    let report = machine.apply(&SysctlConfig::default());
    assert!(texts(&report)[0].contains("load the kernel module nf_conntrack"), "{report:?}");
    assert_eq!(machine.get(TCP_CLOSE_WAIT), "3600");
}

#[test]
fn the_table_s_buckets_stay_where_its_size_cannot_be_set() {
    let machine = Machine::new();
    let max = machine.root.path().join(CONNTRACK_MAX);
    fs::remove_file(&max).unwrap();
    // A number that not even root may write.
    std::os::unix::fs::symlink("/proc/sys/kernel/ngroups_max", max).unwrap();
    let report = machine.apply(&SysctlConfig::default());
    assert!(texts(&report)[0].contains("nf_conntrack_max"), "{report:?}");
    assert_eq!(report.problems.len(), 1);
    assert_eq!(machine.get(CONNTRACK_BUCKETS), "16384");
    assert_eq!(machine.get(TCP_CLOSE_WAIT), "3600");
    machine.sysctls.restore();
    assert_eq!(machine.get(TCP_CLOSE_WAIT), "60");
}

#[test]
fn cores_are_counted_over_gaps() {
    assert_eq!(count_cores("0"), Some(1));
    assert_eq!(count_cores("0-7"), Some(8));
    assert_eq!(count_cores("0-3,8,10-11"), Some(7));
    assert_eq!(count_cores("3-0"), None);
    let machine = Machine::new();
    machine.put(CORES_ONLINE, "0-95");
    assert_eq!(machine.sysctls.cores(), 96);
}

#[test]
fn says_when_packets_are_not_forwarded() {
    let machine = Machine::new();
    machine.put(IP_FORWARD, "0");
    machine.put(IP6_FORWARDING, "1");
    let problems = machine.sysctls.forwarding_problems(&IpFamily::ALL);
    let [SysctlProblem::NotForwarding { family: IpFamily::V4, .. }] = problems[..] else {
        panic!("{problems:?}")
    };
}

/// `/proc/sys/net` is that of the thread's namespace, and there the table's size is read-only.
#[test]
fn in_a_real_namespace_time_outs_are_set_and_restored_and_the_table_s_size_is_a_warning() {
    let place = Place::new("sysctls");
    place.shell(
        "nft 'table ip t { chain c { type filter hook output priority 0; ct state new; }; }'",
    );
    let state = TempDir::new().unwrap();
    place.run(|| {
        let sysctls = Sysctls::new("/", state.path().join("sysctls.json"));
        let close_wait = || sysctls.read(TCP_CLOSE_WAIT).unwrap();
        let (before, max) = (close_wait(), sysctls.read(CONNTRACK_MAX).unwrap());
        assert_ne!(before, "3599");
        let config = SysctlConfig {
            // A little more than the machine has, so that it must be set.
            conntrack_max_per_core: max.parse::<u32>().unwrap() + 4,
            conntrack_tcp_timeout_close_wait_s: 3599,
            route_localnet: true,
            ..SysctlConfig::default()
        };
        let report = sysctls.apply(&config.settings(1));
        let problems = texts(&report);
        let [problem] = &problems[..] else { panic!("{problems:?}") };
        assert!(problem.contains("nf_conntrack_max"), "{problem}");
        assert!(problem.contains("network namespace"), "{problem}");
        assert_eq!(sysctls.read(CONNTRACK_MAX).unwrap(), max);
        assert_eq!(close_wait(), "3599");
        assert_eq!(sysctls.read(ROUTE_LOCALNET).unwrap(), "1");
        assert!(texts(&sysctls.restore()).is_empty());
        assert_eq!(close_wait(), before);
        assert_eq!(sysctls.read(ROUTE_LOCALNET).unwrap(), "0");
    });
}
