//! The calls for real, across the border of a library, against the stand-in for computenetwork.dll.
//!
//! `cargo xtask test --only windows` builds the stand-in, lays it beside this program and runs it under
//! wine. Every test ends with nothing open and nothing unfreed.
#![cfg(windows)]
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may panic, and steers the stand-in by C's rules"
)]

use std::ffi::{CStr, c_void};
use std::os::windows::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use serde_json::{Value, json};
use telaio_hcn::{
    Distribution, Endpoint, EndpointFlags, EndpointPolicy, Event, Feature, Guid, Hcn, HcnError,
    HnsVersion, Hresult, IpConfiguration, Ipam, LoadBalancer, LoadBalancerFlags, MacAddress,
    Network, NetworkPolicy, NetworkType, PROTOCOL_TCP, PolicyChange, PortMapping, PortMappingFlags,
    ProviderAddress, Query, Reason, RemoteSubnetRoute, RequestType, Subnet, WindowsHcn,
};
use windows_sys::Win32::System::Com::CoTaskMemFree;
use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleW, GetProcAddress};
use windows_sys::core::GUID;

type Function = unsafe extern "system" fn() -> isize;
type Control = unsafe extern "system" fn(*const u8, usize, *mut u8, usize) -> usize;

/// The stand-in has one state: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Standin {
    hcn: WindowsHcn,
    control: Control,
    _alone: MutexGuard<'static, ()>,
}

fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("computenetwork.dll")
}

/// A function of the library, which is loaded.
fn function(name: &CStr) -> Function {
    let path: Vec<u16> = library().as_os_str().encode_wide().chain([0]).collect();
    // SAFETY: both texts have an end.
    unsafe { GetProcAddress(GetModuleHandleW(path.as_ptr()), name.as_ptr().cast()) }.unwrap()
}

impl Standin {
    fn new() -> Self {
        Self::of(HnsVersion::new(16, 0))
    }

    fn of(version: HnsVersion) -> Self {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let path = library();
        let hcn = WindowsHcn::at(&path).unwrap();
        // SAFETY: the function of that name has this type.
        let control =
            unsafe { std::mem::transmute::<Function, Control>(function(c"StandinControl")) };
        let standin = Self { hcn, control, _alone: alone };
        standin.ask(&json!({"Reset": {"version": version}}));
        standin
    }

    /// Gives a command; the stand-in's report after it.
    fn ask(&self, command: &Value) -> Value {
        let command = command.to_string();
        let mut answer = vec![0; 1 << 20];
        // SAFETY: both buffers outlive the call, with their lengths.
        let length = unsafe {
            (self.control)(command.as_ptr(), command.len(), answer.as_mut_ptr(), answer.len())
        };
        assert_ne!(length, 0, "the stand-in does not understand {command}");
        serde_json::from_slice(&answer[..length]).unwrap()
    }

    fn report(&self) -> Value {
        self.ask(&json!("Report"))
    }

    fn misbehave(&self, function: &str, kind: &str, wrong: impl Into<Value>) {
        let wrong = wrong.into();
        self.ask(
            &json!({"Misbehave": {"function": function, "kind": kind, "wrong": wrong, "times": 1}}),
        );
    }

    /// A network with an endpoint, and a load balancer to ask for.
    fn scene(&self) -> (Guid, Guid, LoadBalancer) {
        let network = self.hcn.create_network(&overlay()).unwrap().id.unwrap();
        let endpoint = self.hcn.create_endpoint(&remote(network, 5)).unwrap().id.unwrap();
        (network, endpoint, wanted(endpoint))
    }

    /// Nothing is open, unfreed or closed twice.
    fn assert_nothing_leaked(&self) {
        let report = self.report();
        let leaks = ["handles", "texts", "strays", "callbacks"].map(|name| report[name].clone());
        assert_eq!(leaks, [json!(0), json!(0), json!(0), json!(0)], "{report}");
    }
}

fn overlay() -> Network {
    Network {
        name: "vxlan0".into(),
        kind: NetworkType::Overlay,
        ipams: vec![Ipam {
            kind: "Static".into(),
            subnets: vec![Subnet {
                ip_address_prefix: "10.244.1.0/24".parse().unwrap(),
                policies: vec![],
                routes: vec![],
            }],
        }],
        ..Network::default()
    }
}

fn remote(network: Guid, last: u8) -> Endpoint {
    Endpoint {
        network,
        ip_configurations: vec![IpConfiguration {
            ip_address: format!("10.244.1.{last}").parse().unwrap(),
            prefix_length: 24,
        }],
        mac_address: Some(MacAddress([0, 0x15, 0x5d, 1, 2, last])),
        policies: vec![EndpointPolicy::ProviderAddress(ProviderAddress {
            provider_address: "192.0.2.7".parse().unwrap(),
        })],
        flags: EndpointFlags::REMOTE_ENDPOINT,
        ..Endpoint::default()
    }
}

fn wanted(endpoint: Guid) -> LoadBalancer {
    LoadBalancer {
        endpoints: [endpoint].into(),
        source_vip: Some("10.244.0.2".parse().unwrap()),
        frontend_vips: ["10.96.0.10".parse().unwrap()].into(),
        port_mappings: vec![PortMapping {
            protocol: PROTOCOL_TCP,
            internal_port: 8080,
            external_port: 80,
            distribution_type: Distribution::SourceIp,
            flags: PortMappingFlags::INTERNAL,
        }],
        flags: LoadBalancerFlags::DSR,
        ..LoadBalancer::default()
    }
}

#[test]
fn objects_are_made_listed_changed_and_removed() {
    let standin = Standin::new();
    let hcn: &dyn Hcn = &standin.hcn;
    let network = hcn.create_network(&overlay()).unwrap();
    let network_id = network.id.unwrap();
    assert_eq!(network, Network { id: Some(network_id), ..overlay() });
    assert_eq!(hcn.network_ids(&Query::Name("vxlan0".into())).unwrap(), [network_id]);
    assert_eq!(hcn.network_ids(&Query::Name("other".into())).unwrap(), []);
    assert_eq!(hcn.networks(&Query::Id(network_id)).unwrap().objects, [network]);
    let route = NetworkPolicy::RemoteSubnetRoute(RemoteSubnetRoute {
        destination_prefix: "10.244.2.0/24".parse().unwrap(),
        isolation_id: 4096,
        provider_address: "192.0.2.8".parse().unwrap(),
        distributed_router_mac_address: Some(MacAddress([2; 6])),
    });
    let add = PolicyChange { request: RequestType::Add, policies: vec![route.clone()] };
    hcn.modify_network(network_id, &add).unwrap();
    assert_eq!(hcn.network(network_id).unwrap().policies, [route]);

    let asked = remote(network_id, 5);
    let endpoint = hcn.create_endpoint(&asked).unwrap();
    let endpoint_id = endpoint.id.unwrap();
    assert!(asked.is_satisfied_by(&endpoint), "{endpoint:?}");
    assert_eq!(hcn.endpoints(&Query::OnNetwork(network_id)).unwrap().objects, [endpoint]);
    let remove = PolicyChange { request: RequestType::Remove, policies: asked.policies.clone() };
    hcn.modify_endpoint(endpoint_id, &remove).unwrap();
    assert_eq!(hcn.endpoint(endpoint_id).unwrap().policies, []);

    let asked = wanted(endpoint_id);
    let made = hcn.create_load_balancer(&asked).unwrap();
    assert!(asked.is_satisfied_by(&made), "{made:?}");
    let listed = hcn.load_balancers(&Query::All).unwrap();
    assert_eq!((&listed.objects[..], &listed.problems[..]), (std::slice::from_ref(&made), &[][..]));
    let second = hcn.create_endpoint(&remote(network_id, 6)).unwrap().id.unwrap();
    let changed = LoadBalancer { endpoints: [endpoint_id, second].into(), ..made.clone() };
    hcn.modify_load_balancer(made.id.unwrap(), &changed).unwrap();
    assert_eq!(hcn.load_balancer(made.id.unwrap()).unwrap(), changed);

    hcn.delete_load_balancer(made.id.unwrap()).unwrap();
    hcn.delete_endpoint(second).unwrap();
    hcn.delete_endpoint(endpoint_id).unwrap();
    hcn.delete_network(network_id).unwrap();
    assert_eq!(hcn.network_ids(&Query::All).unwrap(), []);
    standin.assert_nothing_leaked();
}

#[test]
fn an_identity_that_was_asked_for_is_given_and_the_document_says_so_too() {
    let standin = Standin::new();
    let (_, _, asked) = standin.scene();
    let id = Guid::from_bytes([0x5a; 16]);
    let asked = LoadBalancer { id: Some(id), ..asked };
    assert_eq!(standin.hcn.create_load_balancer(&asked).unwrap(), asked);
    let sent = standin.report()["documents"]["CreateLoadBalancer"].clone();
    assert_eq!(sent, asked.to_document());
    standin.assert_nothing_leaked();
}

#[test]
fn a_creation_is_one_write_and_one_look() {
    let standin = Standin::new();
    let (_, _, asked) = standin.scene();
    let before = standin.report()["calls"].clone();
    standin.hcn.create_load_balancer(&asked).unwrap();
    let after = standin.report()["calls"].clone();
    let more = |name: &str| after[name].as_u64().unwrap_or(0) - before[name].as_u64().unwrap_or(0);
    assert_eq!(more("CreateLoadBalancer"), 1);
    assert_eq!(more("PropertiesLoadBalancer"), 1);
    let all =
        |calls: &Value| calls.as_object().unwrap().values().filter_map(Value::as_u64).sum::<u64>();
    assert_eq!(all(&after) - all(&before), 2);
}

#[test]
fn what_is_refused_says_which_object_and_why() {
    let standin = Standin::new();
    let hcn = &standin.hcn;
    let (network, endpoint, asked) = standin.scene();
    let made = hcn.create_load_balancer(&asked).unwrap().id.unwrap();
    let nobody = Guid::from_bytes([9; 16]);
    let mesh = Network { name: "m".into(), kind: NetworkType::Other("Mesh".into()), ..overlay() };
    let twice = LoadBalancer {
        id: Some(made),
        frontend_vips: ["10.96.0.11".parse().unwrap()].into(),
        ..asked.clone()
    };
    let cases: Vec<(HcnError, Reason, &str)> = vec![
        (hcn.network(nobody).unwrap_err(), Reason::NotFound, "query network 09090909"),
        (hcn.endpoint(nobody).unwrap_err(), Reason::NotFound, "0x803b0002"),
        (hcn.load_balancer(nobody).unwrap_err(), Reason::NotFound, "0x80070490"),
        (hcn.delete_load_balancer(nobody).unwrap_err(), Reason::NotFound, "delete load balancer"),
        (
            hcn.create_network(&overlay()).unwrap_err(),
            Reason::AlreadyExists,
            "create network vxlan0",
        ),
        (
            hcn.create_endpoint(&remote(network, 5)).unwrap_err(),
            Reason::AlreadyExists,
            "10.244.1.5",
        ),
        (
            hcn.create_endpoint(&remote(nobody, 7)).unwrap_err(),
            Reason::MissingDependency(telaio_hcn::ObjectKind::Network),
            "create endpoint 10.244.1.7",
        ),
        (
            hcn.create_load_balancer(&wanted(nobody)).unwrap_err(),
            Reason::MissingDependency(telaio_hcn::ObjectKind::Endpoint),
            "create load balancer 10.96.0.10:80/tcp",
        ),
        (hcn.create_load_balancer(&asked).unwrap_err(), Reason::PortInUse, "0x803b0013"),
        (hcn.create_load_balancer(&twice).unwrap_err(), Reason::AlreadyExists, "0x800700b7"),
        (hcn.delete_endpoint(endpoint).unwrap_err(), Reason::InUse, "0x803b002c"),
        (
            hcn.create_network(&mesh).unwrap_err(),
            Reason::InvalidDocument,
            "Type may not be \"Mesh\"",
        ),
    ];
    for (error, reason, wanted) in cases {
        assert_eq!(error.reason, reason, "{error}");
        assert!(error.to_string().contains(wanted), "{error} does not say {wanted}");
    }
    standin.assert_nothing_leaked();
}

#[test]
fn every_code_of_windows_becomes_a_reason() {
    let standin = Standin::new();
    for (code, reason) in [
        (0x8007_0005, Reason::AccessDenied),
        (0x8007_06BA, Reason::Unavailable),
        (0x8000_4001, Reason::Unsupported),
        (0x8000_FFFF, Reason::Other),
    ] {
        standin.misbehave("Delete", "LoadBalancer", json!({ "Code": code }));
        let error = standin.hcn.delete_load_balancer(Guid::from_bytes([1; 16])).unwrap_err();
        assert_eq!((error.reason, error.hresult), (reason, Some(Hresult(code))));
        assert_eq!(error.record, "a failure that the test asked for.");
    }
    standin.assert_nothing_leaked();
}

#[test]
fn a_version_without_a_feature_refuses_it() {
    let standin = Standin::of(HnsVersion::new(10, 1));
    assert_eq!(standin.hcn.version().unwrap(), HnsVersion::new(10, 1));
    assert!(!standin.hcn.supported_features().unwrap().has(Feature::SessionAffinity));
    let (_, _, asked) = standin.scene();
    let error = standin.hcn.create_load_balancer(&asked).unwrap_err();
    assert_eq!(error.reason, Reason::Unsupported, "{error}");
    standin.assert_nothing_leaked();
}

#[test]
fn bad_answers_are_errors_and_leak_nothing() {
    type Ask<'a> = Box<dyn Fn() -> HcnError + 'a>;
    let standin = Standin::new();
    let (network, endpoint, asked) = standin.scene();
    let made = standin.hcn.create_load_balancer(&asked).unwrap().id.unwrap();
    let hcn = &standin.hcn;
    let asks: Vec<(&str, &str, Ask<'_>)> = vec![
        ("Enumerate", "Network", Box::new(|| hcn.network_ids(&Query::All).unwrap_err())),
        ("Enumerate", "Endpoint", Box::new(|| hcn.endpoint_ids(&Query::All).unwrap_err())),
        ("Enumerate", "LoadBalancer", Box::new(|| hcn.load_balancer_ids(&Query::All).unwrap_err())),
        ("Properties", "Network", Box::new(|| hcn.network(network).unwrap_err())),
        ("Properties", "Endpoint", Box::new(|| hcn.endpoint(endpoint).unwrap_err())),
        ("Properties", "LoadBalancer", Box::new(|| hcn.load_balancer(made).unwrap_err())),
        ("Version", "Service", Box::new(|| hcn.version().unwrap_err())),
    ];
    for (function, kind, ask) in &asks {
        for wrong in ["Truncated", "Huge", "InvalidUtf16", "Absent", "OtherType", "Empty"] {
            standin.misbehave(function, kind, wrong);
            let error = ask();
            assert!(
                matches!(error.reason, Reason::BadAnswer(_)),
                "{function} {kind} {wrong}: {error}"
            );
        }
    }
    standin.misbehave("Properties", "Endpoint", "OtherVersion");
    let error = hcn.endpoint(endpoint).unwrap_err();
    assert!(error.to_string().contains("schema version 3.1"), "{error}");
    standin.misbehave("Open", "Endpoint", "NoHandle");
    assert!(matches!(hcn.endpoint(endpoint).unwrap_err().reason, Reason::BadAnswer(_)));
    standin.assert_nothing_leaked();
}

#[test]
fn what_was_made_but_cannot_be_read_back_is_removed_again() {
    let standin = Standin::new();
    let (network, _, asked) = standin.scene();
    standin.misbehave("Properties", "LoadBalancer", "Truncated");
    let error = standin.hcn.create_load_balancer(&asked).unwrap_err();
    assert!(matches!(error.reason, Reason::BadAnswer(_)), "{error}");
    assert_eq!(standin.hcn.load_balancer_ids(&Query::All).unwrap(), []);
    standin.misbehave("Create", "Endpoint", "NoHandle");
    let error = standin.hcn.create_endpoint(&remote(network, 6)).unwrap_err();
    assert!(matches!(error.reason, Reason::BadAnswer(_)), "{error}");
    assert_eq!(standin.hcn.endpoint_ids(&Query::All).unwrap().len(), 1);
    standin.hcn.create_load_balancer(&asked).unwrap();
    standin.assert_nothing_leaked();
}

#[test]
fn unknown_members_other_cases_and_nulls_are_no_matter() {
    let standin = Standin::new();
    let (_, endpoint, asked) = standin.scene();
    let made = standin.hcn.create_load_balancer(&asked).unwrap();
    standin.misbehave("Properties", "LoadBalancer", "Unknown");
    assert_eq!(standin.hcn.load_balancer(made.id.unwrap()).unwrap(), made);
    let there = standin.hcn.endpoint(endpoint).unwrap();
    standin.misbehave("Properties", "Endpoint", "Unknown");
    assert_eq!(standin.hcn.endpoint(endpoint).unwrap(), there);
    standin.assert_nothing_leaked();
}

#[test]
fn one_object_that_cannot_be_read_does_not_hide_the_others() {
    let standin = Standin::new();
    let (network, ..) = standin.scene();
    standin.hcn.create_endpoint(&remote(network, 6)).unwrap();
    standin.misbehave("Properties", "Endpoint", "Empty");
    let listed = standin.hcn.endpoints(&Query::All).unwrap();
    assert_eq!((listed.objects.len(), listed.problems.len()), (1, 1));
    standin.assert_nothing_leaked();
}

#[test]
fn error_records_count_alone_and_do_no_harm_when_broken() {
    let standin = Standin::new();
    let nobody = Guid::from_bytes([1; 16]);
    standin.misbehave("Delete", "Endpoint", "FailureInRecord");
    assert_eq!(standin.hcn.delete_endpoint(nobody).unwrap_err().reason, Reason::NotFound);
    standin.misbehave("Delete", "Endpoint", json!({ "InvalidRecord": 0x8007_0005_u32 }));
    let error = standin.hcn.delete_endpoint(nobody).unwrap_err();
    assert_eq!(error.reason, Reason::AccessDenied, "{error}");
    standin.assert_nothing_leaked();
}

#[test]
fn a_call_that_takes_long_does_not_hold_up_the_others() {
    let standin = Standin::new();
    let (network, _, asked) = standin.scene();
    standin.ask(&json!({"Hold": {"function": "Create", "kind": "Endpoint"}}));
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| standin.hcn.create_endpoint(&remote(network, 20)));
        while standin.report()["waiting"] != 1 {
            std::thread::yield_now();
        }
        // They began later and are done first.
        standin.hcn.create_endpoint(&remote(network, 21)).unwrap();
        standin.hcn.create_load_balancer(&asked).unwrap();
        assert!(!slow.is_finished());
        standin.ask(&json!("Release"));
        let made = slow.join().unwrap().unwrap();
        assert_eq!(made.label(), "10.244.1.20");
    });
    assert_eq!(standin.hcn.endpoint_ids(&Query::All).unwrap().len(), 3);
    standin.assert_nothing_leaked();
}

#[test]
fn a_restart_is_told_and_everything_is_gone() {
    let standin = Standin::new();
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let watch = standin
        .hcn
        .watch(Arc::new(move |event| tell.lock().unwrap().send(event).unwrap_or_default()))
        .unwrap();
    let (network, endpoint, asked) = standin.scene();
    let made = standin.hcn.create_load_balancer(&asked).unwrap().id.unwrap();
    standin.ask(&json!("Restart"));
    assert_eq!(told.recv_timeout(Duration::from_secs(30)).unwrap(), Event::Disconnected);
    assert!(standin.hcn.load_balancer(made).unwrap_err().is_not_found());
    assert!(standin.hcn.endpoint(endpoint).unwrap_err().is_not_found());
    assert!(standin.hcn.network(network).unwrap_err().is_not_found());
    assert_eq!(standin.hcn.load_balancer_ids(&Query::All).unwrap(), []);
    // All anew, under the same names.
    standin.scene();
    drop(watch);
    standin.ask(&json!("Restart"));
    assert!(told.try_recv().is_err());
    standin.assert_nothing_leaked();
}

#[test]
fn a_service_that_is_down_says_nothing_about_its_objects() {
    let standin = Standin::new();
    let (_, endpoint, _) = standin.scene();
    standin.ask(&json!({"Running": {"running": false}}));
    for error in [
        standin.hcn.endpoint(endpoint).unwrap_err(),
        standin.hcn.endpoint_ids(&Query::All).unwrap_err(),
        standin.hcn.version().unwrap_err(),
        standin.hcn.watch(Arc::new(|_| {})).unwrap_err(),
    ] {
        assert!(error.is_transient() && !error.is_not_found(), "{error}");
    }
    standin.ask(&json!({"Running": {"running": true}}));
    standin.hcn.endpoint(endpoint).unwrap();
    standin.assert_nothing_leaked();
}

#[test]
fn a_listener_that_panics_does_no_harm() {
    let standin = Standin::new();
    let watch = standin.hcn.watch(Arc::new(|_| panic!("on purpose"))).unwrap();
    standin.ask(&json!("Restart"));
    drop(watch);
    standin.assert_nothing_leaked();
}

#[test]
fn many_threads_may_call_at_once() {
    let standin = Standin::new();
    let (network, ..) = standin.scene();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let hcn = &standin.hcn;
            scope.spawn(move || {
                for last in 0..10 {
                    let made =
                        hcn.create_endpoint(&remote(network, 100 + thread * 10 + last)).unwrap();
                    assert_eq!(hcn.endpoint(made.id.unwrap()).unwrap(), made);
                    hcn.delete_endpoint(made.id.unwrap()).unwrap();
                }
            });
        }
    });
    assert_eq!(standin.hcn.endpoint_ids(&Query::All).unwrap().len(), 1);
    standin.assert_nothing_leaked();
}

#[test]
fn leaks_would_show() {
    type Open = unsafe extern "system" fn(*const GUID, *mut *mut c_void, *mut *mut u16) -> i32;
    type Close = unsafe extern "system" fn(*const c_void) -> i32;
    let standin = Standin::new();
    let (_, endpoint, _) = standin.scene();
    let endpoint = GUID::from_u128(u128::from_be_bytes(endpoint.to_bytes()));
    let nobody = GUID::from_u128(1);
    let (mut handle, mut record) = (null_mut(), null_mut());
    // SAFETY: the functions of these names have these types; the places outlive the calls; what is
    // handed over is given back once.
    unsafe {
        let open = std::mem::transmute::<Function, Open>(function(c"HcnOpenEndpoint"));
        let close = std::mem::transmute::<Function, Close>(function(c"HcnCloseEndpoint"));
        assert_eq!(open(&raw const endpoint, &raw mut handle, &raw mut record), 0);
        assert_eq!(standin.report()["handles"], 1);
        assert_eq!(close(handle), 0);
        assert!(open(&raw const nobody, &raw mut handle, &raw mut record) < 0);
        assert_eq!(standin.report()["texts"], 1);
        CoTaskMemFree(record.cast());
    }
    standin.assert_nothing_leaked();
}

#[test]
fn a_windows_without_the_library_is_named_as_such() {
    let error = WindowsHcn::at(&library().with_file_name("nothing.dll")).unwrap_err();
    assert_eq!(error.reason, Reason::Unsupported);
    assert!(error.to_string().contains("nothing.dll"), "{error}");
    assert!(error.to_string().contains("Containers feature"), "{error}");
}

#[test]
fn the_machines_own_addresses_are_known_by_interface() {
    let interfaces = telaio_hcn::windows::interfaces().unwrap();
    let loopback =
        interfaces.iter().find(|it| it.addresses.contains(&"127.0.0.1".parse().unwrap()));
    assert_eq!(loopback.unwrap_or_else(|| panic!("{interfaces:?}")).mac, None);
}
