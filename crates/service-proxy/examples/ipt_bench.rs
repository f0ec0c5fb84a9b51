//! temp
#![allow(clippy::all, clippy::pedantic, clippy::unwrap_used, missing_docs)]
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;
use telaio_model::{IpFamily, ServiceEndpoints};
use telaio_netlink::netns::Netns;
use telaio_reconcile::SyncKind;
use telaio_service_proxy::config::*;
use telaio_service_proxy::fixture::Fixture;
use telaio_service_proxy::iptables::compile::Context;
use telaio_service_proxy::iptables::proxier::*;
use telaio_service_proxy::iptables::*;
fn svc(n: u32, ep: u8) -> ServiceEndpoints {
    let b = n.to_be_bytes();
    Fixture::new(&format!("s{n}"))
        .cluster_ip([10, 96 + b[1], b[2], b[3]])
        .remote([10, 200, b[2], b[3]])
        .remote([11, ep, b[2], b[3]])
        .build()
}
fn restore(prog: &str, args: &[&str], text: &str) -> f64 {
    let t = Instant::now();
    let mut c = Command::new(prog).args(args).stdin(Stdio::piped()).spawn().unwrap();
    c.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(c.wait().unwrap().success());
    t.elapsed().as_secs_f64() * 1e3
}
struct Rec(Programs, std::sync::Arc<std::sync::Mutex<(String, f64)>>);
impl Kernel for Rec {
    fn save(&mut self) -> Result<String, telaio_reconcile::ApplyError> {
        self.0.save()
    }
    fn restore(&mut self, t: &[&str]) -> Result<(), telaio_reconcile::ApplyError> {
        let s = Instant::now();
        let r = self.0.restore(t);
        *self.1.lock().unwrap() = (t.concat(), s.elapsed().as_secs_f64() * 1e3);
        r
    }
    fn limits(&self) -> restore::Limits {
        self.0.limits()
    }
}
fn main() {
    let n: u32 = std::env::args().nth(1).unwrap().parse().unwrap();
    let config = ProxyConfig {
        detect_local: DetectLocal::ClusterCidr(vec!["10.200.0.0/16".parse().unwrap()]),
        ..Default::default()
    };
    if std::env::args().nth(2).as_deref() == Some("render") {
        let services: Services =
            (0..n).map(|i| svc(i, 1)).map(|e| (e.service.key.clone(), e)).collect();
        let mut total = 0;
        for _ in 0..20 {
            total += render(&services, &NodeFacts::default(), &config, IpFamily::V4).len();
        }
        println!("{total}");
        return;
    }
    for flavor in [Flavor::Legacy, Flavor::Nft] {
        let w = if flavor == Flavor::Nft { "nft" } else { "legacy" };
        let prog = format!("iptables-{w}-restore");
        let ns = Netns::create("tl-ipt-bench").unwrap();
        let services: Services =
            (0..n).map(|i| svc(i, 1)).map(|e| (e.service.key.clone(), e)).collect();
        let t = Instant::now();
        let text = render(&services, &NodeFacts::default(), &config, IpFamily::V4);
        println!(
            "{w} n={n} render {:.1} ms, {} bytes",
            t.elapsed().as_secs_f64() * 1e3,
            text.len()
        );
        ns.run(|| {
            println!(
                "floor cold {:.1} ms",
                restore(&prog, if w == "nft" { &[] } else { &["--noflush"] }, &text)
            );
        })
        .unwrap();
        drop(ns);
        Netns::remove("tl-ipt-bench").unwrap();
        let ns = Netns::create("tl-ipt-bench").unwrap();
        ns.run(|| {
            let rec = std::sync::Arc::new(std::sync::Mutex::new((String::new(), 0.0)));
            let k = Rec(Programs::find(flavor, IpFamily::V4).unwrap(), rec.clone());
            let mut ipt = Iptables::new(
                Box::new(k),
                Context::new(&config, &NodeFacts::default(), IpFamily::V4),
            );
            let none = Changes::new();
            let t = Instant::now();
            ipt.sync(SyncKind::Full, View { before: &services, changes: &none }).unwrap();
            println!(
                "ours cold {:.1} ms, of which restore {:.1}",
                t.elapsed().as_secs_f64() * 1e3,
                rec.lock().unwrap().1
            );
            let mut before = services.clone();
            let (mut ours, mut floor) = (vec![], vec![]);
            for round in 0..9u8 {
                let e = svc(n / 2, 2 + round);
                let ch = Changes::from([(e.service.key.clone(), Some(e.clone()))]);
                let t = Instant::now();
                ipt.sync(SyncKind::Changes, View { before: &before, changes: &ch }).unwrap();
                ours.push(t.elapsed().as_secs_f64() * 1e3);
                before.insert(e.service.key.clone(), e);
                // floor: rewrite the same chain via the same text without deletion
                let tx = rec.lock().unwrap().0.clone();
                let tx: String =
                    tx.lines().filter(|l| !l.starts_with("-X")).map(|l| format!("{l}\n")).collect();
                floor.push(restore(&prog, &["--noflush"], &tx));
            }
            ours.sort_by(f64::total_cmp);
            floor.sort_by(f64::total_cmp);
            println!("one endpoint: ours {:.1} floor {:.1} ms", ours[4], floor[4]);
            let e = svc(n + 1, 2);
            let ch = Changes::from([(e.service.key.clone(), Some(e.clone()))]);
            let t = Instant::now();
            ipt.sync(SyncKind::Changes, View { before: &before, changes: &ch }).unwrap();
            println!("service added {:.1} ms", t.elapsed().as_secs_f64() * 1e3);
            before.insert(e.service.key.clone(), e.clone());
            let ch = Changes::from([(e.service.key.clone(), None)]);
            let t = Instant::now();
            ipt.sync(SyncKind::Changes, View { before: &before, changes: &ch }).unwrap();
            println!("service removed {:.1} ms", t.elapsed().as_secs_f64() * 1e3);
            before.remove(&e.service.key);
            let t = Instant::now();
            let r = ipt.sync(SyncKind::Drift, View { before: &before, changes: &none }).unwrap();
            println!("compare all {:.1} ms {r:?}", t.elapsed().as_secs_f64() * 1e3);
            let t = Instant::now();
            let prog = format!("iptables-{w}-save");
            Command::new(prog).output().unwrap();
            println!("save floor {:.1} ms", t.elapsed().as_secs_f64() * 1e3);
            if w == "legacy" {
                use telaio_netlink::xtables::*;
                let t = Instant::now();
                table_info(Family::V4, "nat").unwrap();
                println!("info {:?}", t.elapsed());
                let t = Instant::now();
                table_fingerprint(Family::V4, "nat").unwrap();
                println!("fingerprint {:?}", t.elapsed());
            }
        })
        .unwrap();
        drop(ns);
        Netns::remove("tl-ipt-bench").unwrap();
    }
}
