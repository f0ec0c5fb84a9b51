use super::*;
use crate::kpng::testing::{key, service};

#[derive(Default)]
struct Log(Vec<String>);

impl Log {
    fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.0)
    }
}

impl ServiceEvents for Log {
    fn add_port(&mut self, _: &LocalService, port: PortNumber) {
        self.0.push(format!("+{}", port.port));
    }
    fn delete_port(&mut self, _: &LocalService, port: PortNumber) {
        self.0.push(format!("-{}", port.port));
    }
    fn add_ip(&mut self, _: &LocalService, ip: IpAddr, kind: IpKind) {
        self.0.push(format!("+{ip} {kind:?}"));
    }
    fn delete_ip(&mut self, _: &LocalService, ip: IpAddr, kind: IpKind) {
        self.0.push(format!("-{ip} {kind:?}"));
    }
    fn add_ip_port(&mut self, _: &LocalService, ip: IpAddr, _: IpKind, port: PortNumber) {
        self.0.push(format!("+{ip}:{}", port.port));
    }
    fn delete_ip_port(&mut self, _: &LocalService, ip: IpAddr, _: IpKind, port: PortNumber) {
        self.0.push(format!("-{ip}:{}", port.port));
    }
    fn traffic_policy_changed(&mut self, _: &LocalService) {
        self.0.push("policy".into());
    }
    fn session_affinity_changed(&mut self, _: &LocalService, before: Option<ClientIpAffinity>) {
        self.0.push(format!("affinity, before {:?}", before.map(|a| a.timeout_s)));
    }
}

#[test]
fn a_service_is_told_in_parts_as_it_comes_changes_and_goes() {
    let mut listener = ServicesListener::new();
    let mut log = Log::default();
    let first = service("a", 80);
    listener.set_service(&first, &mut log);
    assert_eq!(log.take(), ["+80", "+10.0.0.1 Cluster", "+10.0.0.1:80"]);

    let mut second = (*service("a", 81)).clone();
    second.load_balancer_ips = vec!["192.0.2.1".parse().unwrap()];
    second.external_traffic_to_local = true;
    second.session_affinity = Some(ClientIpAffinity { timeout_s: 60 });
    listener.set_service(&Arc::new(second), &mut log);
    assert_eq!(
        log.take(),
        [
            "-10.0.0.1:80",
            "-80",
            "+81",
            "+192.0.2.1 LoadBalancer",
            "+10.0.0.1:81",
            "+192.0.2.1:81",
            "policy",
            "affinity, before None",
        ]
    );

    listener.delete_service(&key("a"), &mut log);
    assert_eq!(
        log.take(),
        ["-10.0.0.1:81", "-192.0.2.1:81", "-10.0.0.1 Cluster", "-192.0.2.1 LoadBalancer", "-81"]
    );
}

#[test]
fn what_does_not_change_is_not_told() {
    let mut listener = ServicesListener::new();
    let mut log = Log::default();
    listener.set_service(&service("a", 80), &mut log);
    log.take();
    listener.set_service(&service("a", 80), &mut log);
    listener.delete_service(&key("b"), &mut log);
    assert!(log.take().is_empty());
}
