//! The agent on a guest kernel: a machine of its own, where the settings that no namespace has can be
//! changed, and with an older kernel that lacks nftables for IP.
//!
//! Each test starts itself again on the guest kernel; what is in `inside` runs there. They need root and
//! what `telaio_testkit::guest` names, and fail without it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use telaio_netlink::ipvs::{Frontend, Ipvs, VirtualServer};
use telaio_testkit::guest::{self, GuestError};
use tempfile::TempDir;

mod support;

use support::{Ended, Manifests, PATIENCE, run, telaio};

const LEGACY: [&str; 2] = ["--backend=iptables", "--iptables-flavor=legacy"];

const FLOWS_MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
const BUCKETS: &str = "/sys/module/nf_conntrack/parameters/hashsize";
const ESTABLISHED: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established";
const CLOSE_WAIT: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";
const SETTINGS: [&str; 5] = [FLOWS_MAX, BUCKETS, ESTABLISHED, CLOSE_WAIT, ROUTE_LOCALNET];

/// The kernel's settings now.
fn settings() -> BTreeMap<&'static str, u64> {
    SETTINGS.map(|path| (path, get(path))).into()
}

fn get(path: &str) -> u64 {
    fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

fn set(path: &str, value: u64) {
    fs::write(path, value.to_string()).unwrap();
}

/// Runs a program that must succeed; tells what it printed.
fn output(program: &str, args: &[&str]) -> String {
    let ended = run(Command::new(program).args(args));
    assert_eq!(ended.code, Some(0), "{program} {args:?}: {ended:?}");
    ended.stdout
}

/// One service, with an endpoint on the node itself.
const MANIFESTS: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: alone}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: InternalIP, address: "2001:db8::1"}]}
---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: test}
spec:
  type: NodePort
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "fd00:10:96::10"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  ports: [{name: tcp, port: 80, nodePort: 30080}, {name: udp, protocol: UDP, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: echo-4, namespace: test, labels: {kubernetes.io/service-name: echo}}
addressType: IPv4
ports: [{name: tcp, port: 8080}, {name: udp, protocol: UDP, port: 8080}]
endpoints: [{addresses: [192.0.2.1], nodeName: alone}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: echo-6, namespace: test, labels: {kubernetes.io/service-name: echo}}
addressType: IPv6
ports: [{name: tcp, port: 8080}, {name: udp, protocol: UDP, port: 8080}]
endpoints: [{addresses: ["2001:db8::1"], nodeName: alone}]
"#;
const CLUSTER_IPS: [&str; 2] = ["10.96.0.10:80", "[fd00:10:96::10]:80"];
const ENDPOINTS: [&str; 2] = ["192.0.2.1:8080", "[2001:db8::1]:8080"];

/// The guest as a node: with addresses, a way to elsewhere, the endpoint's servers, and manifests.
struct Machine {
    manifests: Manifests,
    state: TempDir,
}

impl Machine {
    fn new() -> Self {
        let network = "link add wan0 type dummy\nlink set wan0 up\n\
                       address add 192.0.2.1/24 dev wan0\naddress add 2001:db8::1/64 dev wan0 nodad\n\
                       route add default dev wan0\nroute add ::/0 dev wan0\n";
        let mut ip = Command::new("ip")
            .args(["-batch", "-"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        ip.stdin.take().unwrap().write_all(network.as_bytes()).unwrap();
        assert!(ip.wait().unwrap().success());
        let manifests = Manifests::empty();
        manifests.write("all.yaml", MANIFESTS);
        Self { manifests, state: TempDir::new().unwrap() }
    }

    fn state_dir(&self) -> String {
        format!("--state-dir={}", self.state.path().display())
    }

    /// `telaio run --once`, to its end.
    fn try_run(&self, args: &[&str]) -> Ended {
        let mut command = telaio();
        command.args(["run", "--once", "--node=alone", "--log-format=json"]);
        run(command.args([self.manifests.source(), self.state_dir()]).args(args))
    }

    /// The same, which must succeed and have nothing to complain about but the guest's forwarding.
    fn run(&self, args: &[&str]) {
        let ended = self.try_run(args);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let complains = |line: &&str| line.contains("WARN") || line.contains("ERROR");
        let complaints = ended.stderr.lines().filter(complains);
        let others: Vec<_> =
            complaints.filter(|line| !line.contains("are not forwarded")).collect();
        assert_eq!(others, [""; 0]);
    }

    /// `telaio run --once` where it cannot; tells the one line that says why.
    fn refused(&self, args: &[&str]) -> String {
        let ended = self.try_run(args);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let lines: Vec<_> = ended.stderr.lines().filter(|line| !line.starts_with('{')).collect();
        assert_eq!(lines.len(), 1, "{ended:?}");
        assert!(self.record().is_none(), "nothing was set for a backend that cannot run");
        lines[0].to_owned()
    }

    fn cleanup(&self) {
        let ended = run(telaio().args(["cleanup", &self.state_dir()]));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let left = output("iptables-legacy-save", &[]) + &output("ip6tables-legacy-save", &[]);
        assert!(!left.contains("TELAIO"), "{left}");
    }

    /// What the agent remembers of the settings before it.
    fn record(&self) -> Option<Vec<u8>> {
        fs::read(self.state.path().join("sysctls.json")).ok()
    }
}

/// Serves as the endpoints do, for as long as the test runs.
fn serve() {
    for address in ENDPOINTS {
        let tcp = TcpListener::bind(address).unwrap();
        let udp = UdpSocket::bind(address).unwrap();
        std::thread::spawn(move || {
            for stream in tcp.incoming() {
                stream.unwrap().write_all(b"by tcp").unwrap();
            }
        });
        std::thread::spawn(move || {
            let mut question = [0; 16];
            while let Ok((_, from)) = udp.recv_from(&mut question) {
                udp.send_to(b"by udp", from).unwrap();
            }
        });
    }
}

fn ask_tcp(to: &str) -> String {
    let to: SocketAddr = to.parse().unwrap();
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE / 6).unwrap();
    stream.set_read_timeout(Some(PATIENCE / 6)).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn ask_udp(to: &str) -> String {
    let to: SocketAddr = to.parse().unwrap();
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).unwrap();
    socket.set_read_timeout(Some(PATIENCE / 6)).unwrap();
    socket.connect(to).unwrap();
    socket.send(b"by what?").unwrap();
    let mut answer = [0; 16];
    let length = socket.recv(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

#[test]
fn settings_are_made_once_for_all_and_put_back_as_they_were() -> Result<(), GuestError> {
    guest::inside("settings_are_made_once_for_all_and_put_back_as_they_were", || {
        let machine = Machine::new();
        // As after the start of a machine: nobody has needed the table of connections yet.
        assert!(!Path::new(FLOWS_MAX).exists());
        machine.run(&LEGACY);
        let ours = BTreeMap::from([
            (FLOWS_MAX, 131_072),
            (BUCKETS, 32_768),
            (ESTABLISHED, 24 * 3600),
            (CLOSE_WAIT, 3600),
            (ROUTE_LOCALNET, 1),
        ]);
        assert_eq!(settings(), ours);
        let record = machine.record().unwrap();
        machine.run(&LEGACY);
        assert_eq!(settings(), ours);
        assert_eq!(machine.record().unwrap(), record);

        machine.cleanup();
        assert_eq!(machine.record(), None);
        let before = settings();
        // The kernel's own choice: by its memory, and by what it has always had.
        assert!(before[FLOWS_MAX] < 131_072 && before[BUCKETS] < 32_768, "{before:?}");
        let always = [ESTABLISHED, CLOSE_WAIT, ROUTE_LOCALNET].map(|path| before[path]);
        assert_eq!(always, [432_000, 60, 0]);

        // The guest has one core. The kernel rounds the number of buckets up.
        let flags = ["--conntrack-max-per-core=200000", "--conntrack-tcp-timeout-established=2h"];
        machine.run(&[&LEGACY[..], &flags].concat());
        assert_eq!((get(FLOWS_MAX), get(ESTABLISHED)), (200_000, 7200));
        assert!(get(BUCKETS) >= 50_000);
        machine.cleanup();
        assert_eq!(settings(), before);
    })
}

#[test]
fn what_others_set_before_or_since_stays() -> Result<(), GuestError> {
    guest::inside("what_others_set_before_or_since_stays", || {
        let machine = Machine::new();
        output("modprobe", &["nf_conntrack"]);
        set(FLOWS_MAX, 300_000);
        set(BUCKETS, 81_920);
        machine.run(&LEGACY);
        // A table that somebody made larger is not made smaller.
        assert_eq!((get(FLOWS_MAX), get(BUCKETS)), (300_000, 81_920));
        assert_eq!((get(ESTABLISHED), get(CLOSE_WAIT)), (24 * 3600, 3600));
        set(ESTABLISHED, 500);
        machine.cleanup();
        assert_eq!((get(FLOWS_MAX), get(BUCKETS)), (300_000, 81_920));
        assert_eq!((get(ESTABLISHED), get(CLOSE_WAIT), get(ROUTE_LOCALNET)), (500, 60, 0));
    })
}

#[test]
fn services_work_by_the_older_tables() -> Result<(), GuestError> {
    guest::inside("services_work_by_the_older_tables", || {
        let machine = Machine::new();
        serve();
        machine.run(&LEGACY);
        for address in CLUSTER_IPS {
            assert_eq!(ask_tcp(address), "by tcp");
            assert_eq!(ask_udp(address), "by udp");
        }
        for address in ["192.0.2.1:30080", "127.0.0.1:30080", "[2001:db8::1]:30080"] {
            assert_eq!(ask_tcp(address), "by tcp");
        }
        machine.cleanup();
    })
}

#[test]
fn without_nftables_for_ip_the_older_tables_are_chosen() -> Result<(), GuestError> {
    guest::inside("without_nftables_for_ip_the_older_tables_are_chosen", || {
        let machine = Machine::new();
        serve();
        // First a kernel without any nftables, then one that has it, but not for IP.
        let loader = "/proc/sys/kernel/modprobe";
        let usual = fs::read_to_string(loader).unwrap();
        fs::write(loader, without_nf_tables(usual.trim()).as_os_str().as_encoded_bytes()).unwrap();
        for has_nf_tables in [false, true] {
            if has_nf_tables {
                fs::write(loader, &usual).unwrap();
            }
            let message = machine.refused(&["--backend=nftables"]);
            let helps =
                message.contains("this kernel cannot") && message.contains("--backend iptables");
            assert!(helps, "{message}");
            let message = machine.refused(&["--backend=iptables", "--iptables-flavor=nft"]);
            assert!(message.contains("--iptables-flavor legacy"), "{message}");
            let loaded = Path::new("/sys/module/nf_tables").exists();
            assert_eq!(loaded, has_nf_tables);
            machine.run(&["--backend=auto"]);
            assert!(output("iptables-legacy-save", &[]).contains("TELAIO-SERVICES"));
            assert_eq!(CLUSTER_IPS.map(ask_tcp), ["by tcp"; 2]);
            machine.cleanup();
        }
    })
}

/// A program that loads modules as `usual` does, except those of nf_tables.
fn without_nf_tables(usual: &str) -> PathBuf {
    let program = Path::new("/run/modprobe-without-nf-tables").to_owned();
    // By its number among the kernel's netlink subsystems.
    let text = format!(
        "#!/bin/sh\ncase $* in *nfnetlink-subsys-10*|*nf_tables*) exit 1;; esac\nexec {usual} \"$@\"\n"
    );
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

/// What kube-proxy's mode ipvs lays down for the service of [`MANIFESTS`], but for IPVS itself; and sets
/// and links of others.
const KUBE_PROXY_IPVS: &str = r"
ip link add kube-ipvs0 type dummy
ip address add 10.96.0.10/32 dev kube-ipvs0
ip address add fd00:10:96::10/128 dev kube-ipvs0 nodad
ipset create KUBE-LOOP-BACK hash:ip,port,ip
ipset add KUBE-LOOP-BACK 192.0.2.1,tcp:8080,192.0.2.1
ipset create KUBE-CLUSTER-IP hash:ip,port
ipset add KUBE-CLUSTER-IP 10.96.0.10,tcp:80
ipset create KUBE-6-CLUSTER-IP hash:ip,port family inet6
ipset create KUBE-EXTERNAL-IP hash:ip,port
ipset add KUBE-EXTERNAL-IP 192.0.2.1,tcp:443
ipset create KUBE-NODE-PORT-TCP bitmap:port range 0-65535
ipset add KUBE-NODE-PORT-TCP 30080
ipset create KUBE-NODE-PORT-LOCAL-SCTP-HASH hash:ip,port

ip link add theirs0 type dummy
ip address add 10.97.0.1/32 dev theirs0
ipset create THEIRS hash:ip,port
ipset create KUBE-SRC-ABCDEFGHIJKLMNOP hash:ip
iptables-legacy -A INPUT -m set --match-set THEIRS dst,dst -j ACCEPT

iptables-legacy-restore --noflush <<'END'
*filter
:KUBE-FORWARD - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-NODE-PORT - [0:0]
-A INPUT -j KUBE-IPVS-FILTER
-A INPUT -j KUBE-NODE-PORT
-A FORWARD -j KUBE-FORWARD
-A KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP dst,dst -j RETURN
COMMIT
*nat
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-NODE-PORT -p tcp -m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-POSTROUTING -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP src,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
COMMIT
END
";

const TCP: u8 = 6;
const UDP: u8 = 17;

/// kube-proxy's virtual services: of cluster addresses, a node port, an external address of the node.
const KUBE_PROXY_FRONTENDS: [(u8, &str); 5] = [
    (TCP, "10.96.0.10:80"),
    (UDP, "10.96.0.10:80"),
    (TCP, "[fd00:10:96::10]:80"),
    (TCP, "192.0.2.1:30080"),
    (TCP, "192.0.2.1:443"),
];
/// Virtual services of others: at a link of theirs, elsewhere, and at the node, but no node port's.
const OTHERS_FRONTENDS: [(u8, &str); 4] = [
    (TCP, "10.97.0.1:80"),
    (TCP, "198.51.100.1:30080"),
    (TCP, "192.0.2.1:80"),
    (UDP, "192.0.2.1:30080"),
];

/// Lays down all that kube-proxy's mode ipvs does; tells what others have in IPVS.
fn lay_kube_proxy_ipvs() -> BTreeSet<Frontend> {
    output("sh", &["-ec", KUBE_PROXY_IPVS]);
    let frontend = |&(protocol, at): &(u8, &str)| {
        let at = at.parse().unwrap();
        Frontend::Address { protocol, at }
    };
    let mark = Frontend::Mark { is_v6: false, mark: 30080 };
    let others: BTreeSet<_> = OTHERS_FRONTENDS.iter().map(frontend).chain([mark]).collect();
    let mut ipvs = Ipvs::open().unwrap().unwrap();
    for frontend in KUBE_PROXY_FRONTENDS.iter().map(frontend).chain(others.iter().copied()) {
        ipvs.add(&VirtualServer::new(frontend, "rr")).unwrap();
    }
    assert_eq!(frontends().len(), KUBE_PROXY_FRONTENDS.len() + others.len());
    let absent = Frontend::Address { protocol: TCP, at: "192.0.2.1:1".parse().unwrap() };
    assert!(!ipvs.delete(&absent).unwrap());
    others
}

fn frontends() -> BTreeSet<Frontend> {
    Ipvs::open().unwrap().unwrap().frontends().unwrap().into_iter().collect()
}

/// Of kube-proxy nothing is there, of others everything.
fn only_others_are_left(others: &BTreeSet<Frontend>) {
    assert_eq!(&frontends(), others);
    assert_eq!(output("ipset", &["list", "-name"]), "THEIRS\nKUBE-SRC-ABCDEFGHIJKLMNOP\n");
    let links = output("ip", &["-o", "address"]);
    assert!(!links.contains("kube-ipvs0") && links.contains("theirs0"), "{links}");
    let rules = output("iptables-legacy-save", &[]);
    let kube: Vec<_> = rules.lines().filter(|line| line.contains("KUBE")).collect();
    assert_eq!(kube, [":KUBE-KUBELET-CANARY - [0:0]"]);
    assert!(rules.contains("THEIRS"), "{rules}");
}

#[test]
fn of_kube_proxy_s_mode_ipvs_nothing_is_left_and_of_others_everything() -> Result<(), GuestError> {
    guest::inside("of_kube_proxy_s_mode_ipvs_nothing_is_left_and_of_others_everything", || {
        let machine = Machine::new();
        let others = lay_kube_proxy_ipvs();
        let before = frontends();
        machine.cleanup();
        assert_eq!(frontends(), before, "kube-proxy's go only if that is asked for");
        let cleanup = || {
            let ended = run(telaio().args(["cleanup", "--kube-proxy", &machine.state_dir()]));
            assert_eq!(ended.code, Some(0), "{ended:?}");
            only_others_are_left(&others);
            ended.stdout
        };
        let said = cleanup();
        for what in ["5 IPVS services", "6 ipsets", "the link kube-ipvs0"] {
            assert!(said.contains(what), "{said}");
        }
        assert_eq!(cleanup(), "there is nothing of ours here\n");
    })
}

#[test]
fn kube_proxy_s_mode_ipvs_is_noticed_and_taken_over() -> Result<(), GuestError> {
    guest::inside("kube_proxy_s_mode_ipvs_is_noticed_and_taken_over", || {
        let machine = Machine::new();
        serve();
        let others = lay_kube_proxy_ipvs();
        // As if somebody had removed the rules: what is left without them is noticed, too.
        let rules = output("iptables-legacy-save", &[]);
        output("sh", &["-ec", "for t in nat filter; do iptables-legacy -t $t -F; done"]);
        output("sh", &["-ec", "for t in nat filter; do iptables-legacy -t $t -X; done"]);
        let message = machine.refused(&LEGACY);
        assert!(message.contains("kube-ipvs0") && message.contains("--takeover"), "{message}");
        fs::write("/run/rules", rules).unwrap();
        output("iptables-legacy-restore", &["/run/rules"]);
        let message = machine.refused(&LEGACY);
        assert!(message.contains("KUBE-SERVICES"), "{message}");

        machine.run(&[&LEGACY[..], &["--takeover"]].concat());
        only_others_are_left(&others);
        assert_eq!(CLUSTER_IPS.map(ask_tcp), ["by tcp"; 2]);
        assert_eq!(ask_tcp("192.0.2.1:30080"), "by tcp");
        machine.cleanup();
    })
}

/// A node with a range for pods.
const POD_NODE: &str = "
apiVersion: v1
kind: Node
metadata: {name: alone}
spec: {podCIDRs: [10.244.7.0/24, 'fd00:244:7::/64']}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: InternalIP, address: '2001:db8::1'}]}
";

#[test]
fn without_nftables_the_pods_plane_runs_on_iptables_and_refuses_policies() -> Result<(), GuestError>
{
    guest::inside("without_nftables_the_pods_plane_runs_on_iptables_and_refuses_policies", || {
        let machine = Machine::new();
        machine.manifests.write("all.yaml", POD_NODE);
        let cni =
            |what: &str| format!("--cni-{what}-dir={}/{what}", machine.state.path().display());
        let (bin, conf) = (cni("bin"), cni("conf"));
        let args = ["--planes=pods", &bin, &conf];
        let ended = machine.try_run(&args);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let rules = output("iptables-legacy-save", &[]);
        assert!(rules.contains("-A TELAIO-POD-SOURCE -s 10.244.7.0/24 -j MASQUERADE"), "{rules}");
        assert!(machine.state.path().join("conf/05-telaio.conflist").exists());
        machine.manifests.write(
                "policy.yaml",
                "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: default}\n\
                 spec: {podSelector: {}, policyTypes: [Ingress]}\n",
            );
        let ended = machine.try_run(&args);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains("1 network policies are not kept"), "{ended:?}");
        let ended = run(telaio().args(["cleanup", &machine.state_dir(), &bin, &conf]));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let left = output("iptables-legacy-save", &[]) + &output("ip6tables-legacy-save", &[]);
        assert!(!left.contains("TELAIO"), "{left}");
    })
}
