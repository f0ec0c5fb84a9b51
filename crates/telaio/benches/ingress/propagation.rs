//! From an object's change to the first request that is served by it.

use std::fs;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use telaio_testkit::apiserver::ApiServer;

use crate::cases::verdict;
use crate::ours;
use crate::rig::{Rig, ask, free_port, own_address};
use crate::usage::Spread;

/// What it may take.
const MS_MAX: f64 = 20.0;
/// How often a new Ingress is made.
const CHANGES: usize = 50;
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn run(rig: &Rig) -> Result<()> {
    println!(
        "From a new Ingress to the first request that it serves, in ms: median (least–most) of {CHANGES}. From a directory \
         the time begins before the file is written, from an API server before the object is stored; a client asks again and \
         again on one connection.\n\n\
         | Ingresses | directory | API server |\n|---|---|---|"
    );
    let mut slowest = 0.0_f64;
    for count in [10, 10_000] {
        let directory = from_directory(rig, count)?;
        let server = from_server(rig, count)?;
        println!("| {count} | {} | {} |", directory.show(1), server.show(1));
        slowest = directory.median.max(server.median);
    }
    println!("\nThe bar is {MS_MAX:.0} ms at 10,000: {}.\n", verdict(slowest, MS_MAX));
    Ok(())
}

fn from_directory(rig: &Rig, count: usize) -> Result<Spread> {
    let manifests = ours::write_manifests(rig, (count, count), false)?;
    // Without the Ingress for any host, or a new host would be served before its own is there.
    let any = manifests.join("any.yaml");
    let all = fs::read_to_string(&any)?;
    let rest = all.split_once("---\n").map_or("", |(_, rest)| rest);
    fs::write(&any, rest)?;
    let running =
        rig.ours(&format!("dir:{}", manifests.display()), (free_port()?, free_port()?))?;
    let measured = measure(running.http, |host, name| {
        fs::write(
            manifests.join(format!("{name}.yaml")),
            ours::ingress(name, Some(host), "web", ""),
        )?;
        Ok(())
    });
    drop(running);
    fs::write(&any, all)?;
    for number in 0..CHANGES {
        let _ = fs::remove_file(manifests.join(format!("new-{number}.yaml")));
    }
    measured
}

fn from_server(rig: &Rig, count: usize) -> Result<Spread> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let server = runtime.block_on(ApiServer::start())?;
    let backend = own_address()?.to_string();
    let service = |name: &str| service(name, &backend, rig.backend_port);
    let mut objects = service("web");
    for number in 0..count {
        let (name, host) = (format!("web-{number}"), format!("host-{number}.example.com"));
        objects.extend(service(&name));
        objects.push(ingress(&name, &host, &name));
    }
    if let Err(refusal) = server.apply_many(objects) {
        bail!("the API server refused: {refusal:?}");
    }
    let place = rig.path(&format!("kube-{count}"));
    fs::create_dir_all(&place)?;
    let file = server.kubeconfig_file(&place)?;
    let running = rig.ours(&format!("kube:{}", file.display()), (free_port()?, free_port()?))?;
    measure(running.http, |host, name| {
        if let Err(refusal) = server.apply(ingress(name, host, "web")) {
            bail!("the API server refused: {refusal:?}");
        }
        Ok(())
    })
}

/// Makes changes one by one; how long each took until it was served, in ms.
fn measure(port: u16, change: impl Fn(&str, &str) -> Result<()>) -> Result<Spread> {
    let mut figures = Vec::new();
    for number in 0..CHANGES {
        let (name, host) = (format!("new-{number}"), format!("new-{number}.example.com"));
        let mut client = TcpStream::connect(("127.0.0.1", port))?;
        client.set_read_timeout(Some(PATIENCE))?;
        if ask(&mut client, &host, "/small")? == 200 {
            bail!("{host} is served before it is there");
        }
        let begun = Instant::now();
        change(&host, &name)?;
        while ask(&mut client, &host, "/small")? != 200 {
            if begun.elapsed() > PATIENCE {
                bail!("{host} was never served");
            }
        }
        figures.push(begun.elapsed().as_secs_f64() * 1e3);
        // Each by itself, not gathered with the one before.
        std::thread::sleep(Duration::from_millis(60));
    }
    Ok(Spread::of(figures))
}

fn service(name: &str, address: &str, port: u16) -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "bench"},
            "spec": {"clusterIP": "None", "ports": [{"name": "http", "port": 80, "targetPort": port}]},
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": format!("{name}-1"), "namespace": "bench", "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4", "ports": [{"name": "http", "port": port}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
        }),
    ]
}

fn ingress(name: &str, host: &str, service: &str) -> Value {
    let backend = json!({"service": {"name": service, "port": {"name": "http"}}});
    let path = json!({"path": "/", "pathType": "Prefix", "backend": backend});
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": name, "namespace": "bench"},
        "spec": {"rules": [{"host": host, "http": {"paths": [path]}}]},
    })
}
