use telaio_model::Protocol;
use telaio_netlink::ipvs::{FLAG_PERSISTENT, FLAG_SCHEDULER_1, RealServer, Snapshot, Stats};
use telaio_reconcile::target::DriftReport;

use super::*;
use crate::ipvs::network::Server;
use crate::ipvs::types::{EndpointInfo, Forwarding};

const TCP: u8 = 6;
const TIME_MAX: Duration = Duration::from_mins(15);

fn ip() -> IpAddr {
    "10.96.0.1".parse().unwrap()
}

fn key(protocol: u8) -> ServerKey {
    ServerKey::Address { protocol, at: SocketAddr::new(ip(), 80) }
}

fn server(protocol: u8) -> Server {
    Server {
        key: key(protocol),
        scheduler: Scheduler::RoundRobin,
        affinity_s: None,
        is_udp: protocol == UDP,
    }
}

fn info(protocol: u8, last: u8, weight: u16) -> EndpointInfo {
    EndpointInfo {
        server: key(protocol),
        protocol: if protocol == UDP { Protocol::Udp } else { Protocol::Tcp },
        address: SocketAddr::from(([10, 244, 0, last], 8080)),
        weight,
        forwarding: Forwarding::Nat,
        local: false,
    }
}

fn real(last: u8, weight: u16) -> RealServer {
    real_server(&info(TCP, last, weight))
}

fn load(last: u8, weight: u16, active: u32, inactive: u32) -> RealServerLoad {
    RealServerLoad { server: real(last, weight), active, inactive }
}

fn snapshot(protocol: u8, servers: &[RealServerLoad]) -> Snapshot {
    let server = virtual_server(&server(protocol));
    Snapshot { server, stats: Stats::default(), servers: servers.to_vec() }
}

fn place() -> Membership {
    Membership::new(SetKind::ClusterIp, Entry::IpPort { ip: ip(), protocol: TCP, port: 80 })
}

fn on_device() -> Membership {
    Membership::new(SetKind::Addresses, Entry::Ip(ip()))
}

/// A kernel that does what it is told.
struct Kernel {
    mirror: Mirror,
    now: Instant,
}

impl Kernel {
    fn new() -> Self {
        Self { mirror: Mirror::default(), now: Instant::now() }
    }

    fn take(&mut self, steps: &[Step]) {
        for step in steps {
            self.mirror.take(step);
        }
    }

    /// A flush, but for what drains. What was done.
    fn flush(&mut self) -> Vec<Command> {
        let joins = self.mirror.joins();
        self.mirror.joined(&joins);
        let commands = self.mirror.commands();
        self.mirror.applied(&commands, self.now);
        let binds = self.mirror.binds();
        self.mirror.bound(&binds, true);
        self.settle();
        commands
    }

    fn settle(&mut self) {
        let leaves = self.mirror.leaves();
        self.mirror.left(&leaves);
        let unbinds = self.mirror.unbinds();
        self.mirror.bound(&unbinds, false);
        let leaves = self.mirror.leaves();
        self.mirror.left(&leaves);
        self.mirror.settle();
    }

    /// What drains, with these connections.
    fn drain(&mut self, protocol: u8, loads: &[RealServerLoad]) -> Vec<Command> {
        let commands = self.mirror.drained(&key(protocol), loads, self.now, TIME_MAX);
        self.mirror.applied(&commands, self.now);
        self.settle();
        commands
    }

    fn present(&self, member: &Membership) -> bool {
        self.mirror.members.get(member).is_some_and(|it| it.present.is_some())
    }

    fn is_bound(&self) -> bool {
        self.mirror.addresses.get(&ip()).is_some_and(|it| it.present)
    }

    fn is_quiet(&self) -> bool {
        let mirror = &self.mirror;
        mirror.commands().is_empty()
            && mirror.joins().is_empty()
            && mirror.leaves().is_empty()
            && mirror.binds().is_empty()
            && mirror.unbinds().is_empty()
    }
}

/// A service at an address of its own, with two endpoints.
fn making(protocol: u8) -> Vec<Step> {
    vec![
        Step::SetServer(server(protocol)),
        Step::Join(place(), None),
        Step::Bind(ip()),
        Step::SetEndpoint(info(protocol, 1, 1)),
        Step::SetEndpoint(info(protocol, 2, 1)),
    ]
}

fn removing(protocol: u8) -> Vec<Step> {
    vec![
        Step::RemoveEndpoint(info(protocol, 1, 1).key()),
        Step::RemoveEndpoint(info(protocol, 2, 1).key()),
        Step::Leave(place()),
        Step::Unbind(ip()),
        Step::RemoveServer(key(protocol)),
    ]
}

fn serving(protocol: u8) -> Kernel {
    let mut kernel = Kernel::new();
    kernel.take(&making(protocol));
    kernel.flush();
    kernel
}

#[test]
fn what_is_new_is_made_and_is_on_record() {
    let mut kernel = Kernel::new();
    kernel.take(&making(TCP));
    let joins: BTreeSet<Membership> =
        kernel.mirror.joins().into_iter().map(|(member, _)| member).collect();
    assert_eq!(joins, [place(), on_device(), record(&key(TCP))].into());
    let commands = kernel.flush();
    let expected = [
        Command::Add(virtual_server(&server(TCP))),
        Command::AddServer(key(TCP), real(1, 1)),
        Command::AddServer(key(TCP), real(2, 1)),
    ];
    assert_eq!(commands, expected);
    assert!(kernel.is_bound());
    assert_eq!(kernel.mirror.counts(), (1, 2));
}

#[test]
fn what_is_so_already_gives_no_command() {
    let mut kernel = serving(TCP);
    assert!(kernel.is_quiet());
    kernel.take(&[Step::SetServer(server(TCP)), Step::SetEndpoint(info(TCP, 1, 1))]);
    assert!(kernel.is_quiet());
}

#[test]
fn a_change_of_one_thing_is_one_command() {
    let mut kernel = serving(TCP);
    let sticky = Server { affinity_s: Some(60), ..server(TCP) };
    kernel.take(&[Step::SetServer(sticky)]);
    let commands = kernel.flush();
    let [Command::Edit(edited)] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!((edited.flags, edited.timeout_s), (FLAG_PERSISTENT, 60));
    kernel.take(&[Step::SetEndpoint(info(TCP, 2, 7))]);
    assert_eq!(kernel.flush(), [Command::EditServer(key(TCP), real(2, 7))]);
    assert!(kernel.is_quiet());
}

#[test]
fn endpoints_come_before_others_go() {
    let mut kernel = serving(TCP);
    kernel.take(&[Step::RemoveEndpoint(info(TCP, 1, 1).key()), Step::SetEndpoint(info(TCP, 9, 1))]);
    let expected =
        [Command::AddServer(key(TCP), real(9, 1)), Command::EditServer(key(TCP), real(1, 0))];
    assert_eq!(kernel.flush(), expected);
}

#[test]
fn an_endpoint_that_left_goes_when_its_last_connection_has_ended() {
    let mut kernel = serving(TCP);
    kernel.take(&[Step::RemoveEndpoint(info(TCP, 1, 1).key())]);
    assert_eq!(kernel.flush(), [Command::EditServer(key(TCP), real(1, 0))]);
    assert_eq!(kernel.mirror.leaving(), &[key(TCP)].into());
    assert_eq!(kernel.drain(TCP, &[load(1, 0, 1, 0), load(2, 1, 5, 5)]), []);
    assert_eq!(kernel.drain(TCP, &[load(1, 0, 0, 1), load(2, 1, 5, 5)]), []);
    let gone = [Command::DeleteServer(key(TCP), real(1, 0).address)];
    assert_eq!(kernel.drain(TCP, &[load(1, 0, 0, 0), load(2, 1, 0, 0)]), gone);
    assert!(kernel.mirror.leaving().is_empty() && kernel.is_quiet());
    assert_eq!(kernel.mirror.counts(), (1, 1));
}

#[test]
fn an_endpoint_that_left_goes_when_its_time_is_over() {
    let mut kernel = serving(TCP);
    kernel.take(&[Step::RemoveEndpoint(info(TCP, 1, 1).key())]);
    kernel.flush();
    let busy = [load(1, 0, 1, 0), load(2, 1, 0, 0)];
    kernel.now += TIME_MAX.checked_sub(Duration::from_millis(1)).unwrap();
    assert_eq!(kernel.drain(TCP, &busy), []);
    kernel.now += Duration::from_millis(1);
    assert_eq!(kernel.drain(TCP, &busy), [Command::DeleteServer(key(TCP), real(1, 0).address)]);
}

#[test]
fn an_endpoint_that_returns_gets_its_weight_back() {
    let mut kernel = serving(TCP);
    kernel.take(&[Step::RemoveEndpoint(info(TCP, 1, 1).key())]);
    kernel.flush();
    kernel.take(&[Step::SetEndpoint(info(TCP, 1, 1))]);
    assert_eq!(kernel.flush(), [Command::EditServer(key(TCP), real(1, 1))]);
    assert!(kernel.mirror.leaving().is_empty());
    // Its time begins anew when it leaves again.
    kernel.now += TIME_MAX;
    kernel.take(&[Step::RemoveEndpoint(info(TCP, 1, 1).key())]);
    kernel.flush();
    assert_eq!(kernel.drain(TCP, &[load(1, 0, 1, 0)]), []);
}

#[test]
fn endpoints_of_udp_go_at_once() {
    let mut kernel = serving(UDP);
    kernel.take(&[Step::RemoveEndpoint(info(UDP, 1, 1).key())]);
    assert_eq!(kernel.flush(), [Command::DeleteServer(key(UDP), real(1, 0).address)]);
    assert!(kernel.mirror.leaving().is_empty());
    let rest: Vec<Step> = removing(UDP).split_off(1);
    kernel.take(&rest);
    assert_eq!(kernel.flush(), [Command::Delete(key(UDP))]);
    assert!(!kernel.is_bound() && kernel.is_quiet());
}

#[test]
fn a_server_that_left_keeps_its_address_and_its_record_until_it_is_gone() {
    let mut kernel = serving(TCP);
    kernel.take(&removing(TCP));
    let quiet =
        [Command::EditServer(key(TCP), real(1, 0)), Command::EditServer(key(TCP), real(2, 0))];
    assert_eq!(kernel.flush(), quiet);
    assert!(!kernel.present(&place()), "the rules need it no more");
    assert_eq!(kernel.drain(TCP, &[load(1, 0, 1, 0), load(2, 0, 0, 0)]).len(), 1);
    assert!(
        kernel.is_bound() && kernel.present(&on_device()) && kernel.present(&record(&key(TCP)))
    );

    assert_eq!(kernel.drain(TCP, &[load(1, 0, 0, 0)]), [Command::Delete(key(TCP))]);
    assert!(!kernel.is_bound());
    assert!(!kernel.present(&on_device()) && !kernel.present(&record(&key(TCP))));
    assert_eq!(kernel.mirror.counts(), (0, 0));
    assert!(kernel.mirror.leaving().is_empty() && kernel.is_quiet());
}

#[test]
fn a_server_that_returns_is_as_it_was() {
    let mut kernel = serving(TCP);
    kernel.take(&removing(TCP));
    kernel.flush();
    kernel.take(&making(TCP));
    let back =
        [Command::EditServer(key(TCP), real(1, 1)), Command::EditServer(key(TCP), real(2, 1))];
    assert_eq!(kernel.flush(), back);
    assert!(kernel.mirror.leaving().is_empty() && kernel.is_bound() && kernel.present(&place()));
}

#[test]
fn what_several_want_stays_until_the_last_wants_it_no_more() {
    let mut kernel = serving(TCP);
    kernel.take(&[Step::Join(place(), None), Step::Bind(ip())]);
    kernel.take(&[Step::Leave(place()), Step::Unbind(ip())]);
    kernel.flush();
    assert!(kernel.present(&place()) && kernel.is_bound());
    kernel.take(&[Step::Leave(place()), Step::Unbind(ip())]);
    kernel.flush();
    assert!(!kernel.present(&place()) && !kernel.is_bound());
}

#[test]
fn a_member_gets_its_new_mark() {
    let mut kernel = Kernel::new();
    let member = Membership::new(SetKind::Local, place().entry);
    kernel.take(&[Step::Join(member, Some(1))]);
    kernel.flush();
    kernel.take(&[Step::Join(member, Some(2)), Step::Leave(member)]);
    assert_eq!(kernel.mirror.joins(), [(member, Some(2))]);
    assert_eq!(kernel.mirror.leaves(), []);
    kernel.flush();
    assert!(kernel.is_quiet());
}

fn observe(kernel: &mut Kernel, found: Found, adopt: bool) -> DriftReport<Thing> {
    kernel.mirror.observe(found, kernel.now, |_| adopt)
}

/// The kernel as a service that is served leaves it.
fn all_of(protocol: u8, servers: &[RealServerLoad]) -> Found {
    let members = [place(), on_device(), record(&key(protocol))];
    Found {
        servers: vec![snapshot(protocol, servers)],
        members: members.into_iter().map(|member| (member, None)).collect(),
        addresses: [ip()].into(),
    }
}

fn as_made() -> Found {
    all_of(TCP, &[load(1, 1, 0, 0), load(2, 1, 0, 0)])
}

#[test]
fn a_kernel_as_we_left_it_is_no_drift() {
    let mut kernel = serving(TCP);
    let drift = observe(&mut kernel, as_made(), false);
    assert_eq!((drift.missing, drift.altered, drift.unexpected), (vec![], vec![], vec![]));
    assert!(kernel.is_quiet());
}

#[test]
fn what_is_missing_is_found_and_made_again() {
    let mut kernel = serving(TCP);
    let drift = observe(&mut kernel, Found::default(), false);
    let expected = [
        Thing::Server(key(TCP)),
        Thing::Member(record(&key(TCP))),
        Thing::Member(on_device()),
        Thing::Member(place()),
        Thing::Address(ip()),
    ];
    assert_eq!(drift.missing, expected);
    assert_eq!(kernel.flush().len(), 3);
    assert!(kernel.is_bound() && kernel.present(&place()) && kernel.is_quiet());

    let drift = observe(&mut kernel, all_of(TCP, &[load(2, 1, 0, 0)]), false);
    assert_eq!(drift.missing, [Thing::Endpoint(info(TCP, 1, 1).key())]);
    assert_eq!(kernel.flush(), [Command::AddServer(key(TCP), real(1, 1))]);
}

#[test]
fn what_was_changed_is_found_and_set_back() {
    let mut kernel = serving(TCP);
    let mut found = all_of(TCP, &[load(1, 1, 0, 0), load(2, 9, 0, 0)]);
    found.servers[0].server.scheduler = "sh".to_owned();
    let drift = observe(&mut kernel, found, false);
    let endpoint = Thing::Endpoint(info(TCP, 2, 1).key());
    assert_eq!(drift.altered, [Thing::Server(key(TCP)), endpoint]);
    let expected =
        [Command::Edit(virtual_server(&server(TCP))), Command::EditServer(key(TCP), real(2, 1))];
    assert_eq!(kernel.flush(), expected);
}

#[test]
fn what_nobody_wants_in_our_places_is_found_and_removed() {
    let mut kernel = serving(TCP);
    let stray = Membership::new(SetKind::Drop, place().entry);
    let other: IpAddr = "10.96.0.77".parse().unwrap();
    let mut found = all_of(TCP, &[load(1, 1, 0, 0), load(2, 1, 0, 0), load(3, 1, 0, 0)]);
    found.members.insert(stray, None);
    found.addresses.insert(other);
    let drift = observe(&mut kernel, found, false);
    let expected =
        [Thing::Endpoint(info(TCP, 3, 1).key()), Thing::Member(stray), Thing::Address(other)];
    assert_eq!(drift.unexpected, expected);
    assert_eq!(kernel.mirror.leaves(), [stray]);
    assert_eq!(kernel.mirror.unbinds(), [other]);
    assert_eq!(kernel.flush(), [Command::EditServer(key(TCP), real(3, 0))]);
    assert!(!kernel.present(&stray) && kernel.is_bound());
}

#[test]
fn a_mark_that_was_changed_is_set_back() {
    let mut kernel = Kernel::new();
    let member = Membership::new(SetKind::Local, place().entry);
    kernel.take(&[Step::Join(member, Some(1))]);
    kernel.flush();
    let found = Found { members: [(member, Some(5))].into(), ..Found::default() };
    let drift = observe(&mut kernel, found, false);
    assert_eq!(drift.altered, [Thing::Member(member)]);
    assert_eq!(kernel.mirror.joins(), [(member, Some(1))]);
}

#[test]
fn servers_that_are_not_on_record_are_not_touched() {
    let mut kernel = Kernel::new();
    let mut found = as_made();
    found.members.clear();
    found.addresses.clear();
    let drift = observe(&mut kernel, found, true);
    assert_eq!(drift.unexpected, []);
    assert!(kernel.is_quiet());
    assert_eq!(kernel.mirror.counts(), (0, 0));
}

/// Somebody's server at our service's place, before ours could be made.
fn with_anothers(adopt: bool) -> Kernel {
    let mut kernel = Kernel::new();
    kernel.take(&making(TCP));
    let found = Found {
        servers: vec![snapshot(TCP, &[load(1, 1, 0, 0), load(7, 1, 0, 0)])],
        ..Found::default()
    };
    observe(&mut kernel, found, adopt);
    kernel
}

#[test]
fn anothers_server_at_our_place_stays_as_it_is() {
    let mut kernel = with_anothers(false);
    assert_eq!(kernel.flush(), []);
    assert!(!kernel.present(&record(&key(TCP))), "it is not ours to remove later");
    kernel.take(&removing(TCP));
    assert_eq!(kernel.flush(), []);
    assert!(kernel.mirror.leaving().is_empty());
}

#[test]
fn anothers_server_stays_as_it_is_also_if_our_service_comes_later() {
    let mut kernel = Kernel::new();
    let theirs = || vec![snapshot(TCP, &[load(7, 1, 0, 0)])];
    observe(&mut kernel, Found { servers: theirs(), ..Found::default() }, false);
    kernel.take(&making(TCP));
    assert_eq!(kernel.flush(), []);
    assert!(!kernel.present(&record(&key(TCP))), "on record it would look like ours");
    observe(&mut kernel, Found { servers: theirs(), ..Found::default() }, false);
    assert_eq!(kernel.flush(), []);
}

#[test]
fn endpoints_of_a_scheduler_that_heeds_no_weights_go_at_once() {
    let mut kernel = Kernel::new();
    kernel.take(&making(TCP));
    let scheduler = Scheduler::DestinationHash;
    kernel.take(&[Step::SetServer(Server { scheduler, ..server(TCP) })]);
    kernel.flush();
    kernel.take(&[Step::RemoveEndpoint(info(TCP, 1, 1).key())]);
    assert_eq!(kernel.flush(), [Command::DeleteServer(key(TCP), info(TCP, 1, 1).address)]);
}

#[test]
fn schedulers_by_hash_pass_over_endpoints_that_leave() {
    let flags = |scheduler| virtual_server(&Server { scheduler, ..server(TCP) }).flags;
    assert_eq!(flags(Scheduler::Maglev), FLAG_SCHEDULER_1);
    assert_eq!(flags(Scheduler::SourceHash), FLAG_SCHEDULER_1);
    assert_eq!(flags(Scheduler::RoundRobin), 0);
}

#[test]
fn when_anothers_server_is_gone_ours_is_made() {
    let mut kernel = with_anothers(false);
    kernel.flush();
    observe(&mut kernel, Found::default(), false);
    assert_eq!(kernel.flush().len(), 3);
    assert!(kernel.present(&record(&key(TCP))));
}

#[test]
fn anothers_server_is_taken_over_where_that_is_asked_for() {
    let mut kernel = with_anothers(true);
    let expected =
        [Command::AddServer(key(TCP), real(2, 1)), Command::EditServer(key(TCP), real(7, 0))];
    assert_eq!(kernel.flush(), expected);
    assert!(kernel.present(&record(&key(TCP))));
    assert_eq!(kernel.mirror.leaving(), &[key(TCP)].into());
}

#[test]
fn what_an_earlier_run_was_draining_goes_on_draining() {
    let mut kernel = Kernel::new();
    let drift = observe(&mut kernel, all_of(TCP, &[load(1, 0, 3, 0)]), false);
    assert!(drift.missing.is_empty());
    assert_eq!(kernel.flush(), []);
    assert_eq!(kernel.mirror.leaving(), &[key(TCP)].into());
    assert!(kernel.is_bound() && kernel.present(&record(&key(TCP))));
    kernel.now += TIME_MAX;
    assert_eq!(kernel.drain(TCP, &[load(1, 0, 3, 0)]), [Command::Delete(key(TCP))]);
    assert!(!kernel.is_bound() && !kernel.present(&record(&key(TCP))));
}

#[test]
fn what_an_earlier_run_left_and_nobody_wants_drains() {
    let mut kernel = Kernel::new();
    observe(&mut kernel, as_made(), false);
    let quiet =
        [Command::EditServer(key(TCP), real(1, 0)), Command::EditServer(key(TCP), real(2, 0))];
    assert_eq!(kernel.flush(), quiet);
    let idle = [load(1, 0, 0, 0), load(2, 0, 0, 0)];
    assert_eq!(kernel.drain(TCP, &idle), [Command::Delete(key(TCP))]);
}

#[test]
fn left_over_udp_goes_at_once_unless_all_of_it_goes() {
    let found = || all_of(UDP, &[load(1, 1, 0, 3)]);
    let mut kernel = Kernel::new();
    observe(&mut kernel, found(), false);
    assert_eq!(kernel.flush(), [Command::Delete(key(UDP))]);
    let mut patient = Kernel::new();
    patient.mirror.be_patient();
    observe(&mut patient, found(), false);
    assert_eq!(patient.flush(), [Command::EditServer(key(UDP), real(1, 0))]);
    assert_eq!(patient.drain(UDP, &[load(1, 0, 0, 3)]), []);
}

#[test]
fn a_scheduler_that_the_kernel_does_not_have_is_replaced_for_good() {
    let sed = |last: u8| Server {
        scheduler: Scheduler::ShortestExpectedDelay,
        key: ServerKey::Mark { is_v6: false, mark: u32::from(last) << 16 },
        ..server(TCP)
    };
    let schedulers = |commands: &[Command]| -> Vec<String> {
        let scheduler = |command: &Command| match command {
            Command::Add(server) | Command::Edit(server) => server.scheduler.clone(),
            other => panic!("{other:?}"),
        };
        commands.iter().map(scheduler).collect()
    };
    let mut kernel = Kernel::new();
    kernel.take(&[Step::SetServer(sed(1))]);
    assert_eq!(schedulers(&kernel.mirror.commands()), ["sed"]);
    kernel.mirror.lack_scheduler("sed");
    kernel.take(&[Step::SetServer(sed(2))]);
    assert_eq!(schedulers(&kernel.flush()), ["rr", "rr"]);
    kernel.take(&[Step::SetServer(sed(1))]);
    assert!(kernel.is_quiet());
}

#[test]
fn records_and_servers_are_each_others_mirror_images() {
    let v6 = ServerKey::Address { protocol: 132, at: "[fd00::1]:9".parse().unwrap() };
    for server in [
        key(TCP),
        v6,
        ServerKey::Mark { is_v6: false, mark: 0x0203_0000 },
        ServerKey::Mark { is_v6: true, mark: 5 },
    ] {
        let record = record(&server);
        assert_eq!(recorded(&record), Some(server));
        assert_eq!(record.set.family, family_of(&server));
    }
    assert_eq!(recorded(&place()), None);
}

#[test]
fn a_server_that_another_makes_just_before_us_gets_none_of_our_endpoints() {
    let mut kernel = Kernel::new();
    kernel.take(&making(TCP));
    let joins = kernel.mirror.joins();
    kernel.mirror.joined(&joins);
    assert!(kernel.present(&record(&key(TCP))), "on record before it is made");
    assert_eq!(kernel.mirror.new_servers(), [Command::Add(virtual_server(&server(TCP)))]);
    assert_eq!(kernel.mirror.changes(), []);
    kernel.mirror.met_anothers(key(TCP));
    assert_eq!((kernel.mirror.new_servers(), kernel.mirror.changes()), (vec![], vec![]));
    kernel.settle();
    assert!(!kernel.present(&record(&key(TCP))), "not on record any more");

    // Where theirs is gone, ours can be.
    observe(&mut kernel, Found::default(), false);
    assert_eq!(kernel.flush().len(), 3);
}

#[test]
fn a_mark_that_another_has_is_lost_until_it_is_not_wanted() {
    let mark = 1 << 16;
    let marked = Server { key: ServerKey::Mark { is_v6: false, mark }, ..server(TCP) };
    let mut kernel = Kernel::new();
    kernel.take(&[Step::SetServer(marked)]);
    assert_eq!(kernel.mirror.lost_marks(), []);
    kernel.mirror.met_anothers(marked.key);
    assert_eq!(kernel.mirror.lost_marks(), [(IpFamily::V4, mark)]);
    kernel.take(&[Step::RemoveServer(marked.key)]);
    assert_eq!(kernel.mirror.lost_marks(), []);
}

#[test]
fn what_leaves_is_known_by_where_it_sent_connections_to() {
    let mut kernel = serving(TCP);
    assert!(kernel.mirror.leaving_endpoints().is_empty());
    kernel.take(&[Step::RemoveEndpoint(info(TCP, 1, 1).key())]);
    kernel.flush();
    assert_eq!(kernel.mirror.leaving_endpoints(), [info(TCP, 1, 1).address].into());
}

#[test]
fn what_was_refused_is_tried_again() {
    let mut kernel = Kernel::new();
    kernel.take(&making(TCP));
    // Nothing of it was carried out.
    kernel.mirror.settle();
    assert_eq!(kernel.mirror.commands().len(), 3);
    assert_eq!((kernel.mirror.joins().len(), kernel.mirror.binds().len()), (3, 1));
    assert_eq!(kernel.flush().len(), 3);
    assert!(kernel.is_quiet());
}

#[test]
fn an_address_that_goes_late_leaves_its_set_too() {
    let mut kernel = Kernel::new();
    kernel.take(&[Step::Bind(ip())]);
    kernel.flush();
    kernel.take(&[Step::Unbind(ip())]);
    // Nothing of it was carried out.
    kernel.mirror.settle();
    assert!(kernel.present(&on_device()));
    kernel.flush();
    assert!(!kernel.is_bound() && !kernel.present(&on_device()));
}

#[test]
fn a_server_of_ours_whose_record_was_removed_stays_ours() {
    let mut kernel = serving(TCP);
    let mut found = as_made();
    found.members.remove(&record(&key(TCP)));
    let drift = observe(&mut kernel, found, false);
    assert_eq!(drift.missing, [Thing::Member(record(&key(TCP)))]);
    kernel.take(&[Step::SetEndpoint(info(TCP, 3, 1))]);
    assert_eq!(kernel.flush(), [Command::AddServer(key(TCP), real(3, 1))]);
    assert!(kernel.present(&record(&key(TCP))));
}

#[test]
fn a_leaving_server_that_somebody_removed_is_waited_for_no_more() {
    let mut kernel = serving(TCP);
    kernel.take(&removing(TCP));
    kernel.flush();
    let mut found = as_made();
    found.servers.clear();
    observe(&mut kernel, found, false);
    assert!(kernel.mirror.leaving().is_empty());
    kernel.flush();
    assert!(!kernel.is_bound() && !kernel.present(&record(&key(TCP))));
}

#[test]
fn what_returns_before_anything_was_done_is_not_waited_for() {
    let mut kernel = serving(TCP);
    kernel.take(&removing(TCP));
    // Nothing of it was carried out, and the kernel was looked at.
    kernel.mirror.settle();
    observe(&mut kernel, as_made(), false);
    assert_eq!(kernel.mirror.leaving(), &[key(TCP)].into());
    kernel.take(&making(TCP));
    assert_eq!(kernel.flush(), []);
    assert!(kernel.mirror.leaving().is_empty() && kernel.is_quiet());
}

/// A place with a mark, and the server with that mark.
fn marked() -> (Membership, ServerKey) {
    let place = Membership::new(SetKind::Local, place().entry);
    (place, ServerKey::Mark { is_v6: false, mark: 1 << 16 })
}

/// What the policy Local adds to a service.
fn with_mark() -> Kernel {
    let (place, twin) = marked();
    let mut kernel = serving(TCP);
    kernel.take(&[
        Step::SetServer(Server { key: twin, ..server(TCP) }),
        Step::Join(place, Some(1 << 16)),
        Step::SetEndpoint(EndpointInfo { server: twin, ..info(TCP, 1, 1) }),
    ]);
    kernel.flush();
    kernel.take(&removing(TCP));
    kernel.take(&[
        Step::RemoveEndpoint(EndpointInfo { server: twin, ..info(TCP, 1, 1) }.key()),
        Step::Leave(place),
        Step::RemoveServer(twin),
    ]);
    kernel.flush();
    kernel.drain(TCP, &[]);
    kernel
}

#[test]
fn a_place_is_kept_while_the_server_with_its_mark_has_connections() {
    let (place, twin) = marked();
    let mut kernel = with_mark();
    assert_eq!(kernel.mirror.leaving(), &[twin].into());
    assert!(kernel.present(&place) && kernel.is_bound());
    let busy = kernel.mirror.drained(&twin, &[load(1, 0, 1, 0)], kernel.now, TIME_MAX);
    assert_eq!(busy, []);
    let idle = kernel.mirror.drained(&twin, &[load(1, 0, 0, 0)], kernel.now, TIME_MAX);
    assert_eq!(idle, [Command::Delete(twin)]);
    kernel.mirror.applied(&idle, kernel.now);
    kernel.settle();
    assert!(!kernel.present(&place) && !kernel.is_bound() && kernel.is_quiet());
}

#[test]
fn a_place_is_not_kept_for_a_server_that_somebody_removed() {
    let (place, twin) = marked();
    let mut kernel = with_mark();
    let members = [(place, Some(1 << 16)), (on_device(), None), (record(&twin), None)];
    let found = Found { members: members.into(), addresses: [ip()].into(), ..Found::default() };
    let drift = observe(&mut kernel, found, false);
    assert_eq!(drift.missing, [Thing::Server(twin)]);
    kernel.flush();
    assert!(!kernel.present(&place) && !kernel.is_bound() && kernel.is_quiet());
}

#[test]
fn what_has_weight_0_already_when_it_leaves_has_its_time_too() {
    let mut kernel = serving(TCP);
    // Somebody else took it.
    observe(&mut kernel, all_of(TCP, &[load(1, 0, 1, 0), load(2, 1, 0, 0)]), false);
    kernel.take(&[Step::RemoveEndpoint(info(TCP, 1, 1).key())]);
    assert_eq!(kernel.flush(), []);
    assert_eq!(kernel.mirror.leaving(), &[key(TCP)].into());
    let busy = [load(1, 0, 1, 0)];
    assert_eq!(kernel.drain(TCP, &busy), []);
    kernel.now += TIME_MAX;
    assert_eq!(kernel.drain(TCP, &busy), [Command::DeleteServer(key(TCP), real(1, 0).address)]);
}
