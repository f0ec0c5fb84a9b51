use std::net::Ipv4Addr;
use std::time::Instant;
use telaio_netlink::ipvs::*;
use telaio_testkit::guest;
#[test]
fn tmp() -> Result<(), guest::GuestError> {
    guest::inside("tmp", || {
        let mut ipvs = Ipvs::open().unwrap().unwrap();
        for n in [1000u32, 10000] {
            let mut commands = Vec::new();
            for number in 0..n {
                let at = (Ipv4Addr::from(0x0a60_0000 + number), 80).into();
                let frontend = Frontend::Address { protocol: 6, at };
                commands.push(Command::Add(VirtualServer::new(frontend, "rr")));
                for base in [0x0af4_0000, 0x0af8_0000] {
                    let address = (Ipv4Addr::from(base + number), 8080).into();
                    commands.push(Command::AddServer(
                        frontend,
                        RealServer { address, weight: 1, method: Forwarding::Nat },
                    ));
                }
            }
            let t = Instant::now();
            assert!(ipvs.apply(&commands).unwrap().is_empty());
            eprintln!("{n}: apply {:?}", t.elapsed());
            let t = Instant::now();
            assert_eq!(ipvs.snapshot().unwrap().len(), n as usize);
            eprintln!("{n}: snapshot {:?}", t.elapsed());
            let t = Instant::now();
            let all = ipvs.services().unwrap();
            eprintln!("{n}: services {:?}", t.elapsed());
            let t = Instant::now();
            let text = std::fs::read_to_string("/proc/thread-self/net/ip_vs").unwrap();
            eprintln!("{n}: proc {:?} {}", t.elapsed(), text.len());
            let t = Instant::now();
            for s in &all {
                ipvs.servers(&s.server.frontend).unwrap();
            }
            eprintln!("{n}: servers one by one {:?}", t.elapsed());
            std::process::Command::new("sh")
                .args(["-c", "ipvsadm -S -n > /run/saved; ipvsadm -C"])
                .status()
                .unwrap();
            let t = Instant::now();
            std::process::Command::new("sh")
                .args(["-c", "ipvsadm -R < /run/saved"])
                .status()
                .unwrap();
            eprintln!("{n}: ipvsadm -R {:?}", t.elapsed());
            let deletes: Vec<_> = all.iter().map(|s| Command::Delete(s.server.frontend)).collect();
            let t = Instant::now();
            assert!(ipvs.apply(&deletes).unwrap().is_empty());
            eprintln!("{n}: delete {:?}", t.elapsed());
            let t = Instant::now();
            for c in &commands {
                ipvs.run(c).unwrap();
            }
            eprintln!("{n}: one by one {:?}", t.elapsed());
            assert!(ipvs.apply(&deletes).unwrap().is_empty());
        }
        panic!("see");
    })
}
