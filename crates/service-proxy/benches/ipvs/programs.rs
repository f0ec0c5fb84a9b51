//! The usual programs with the same state as ready text, measured on a guest.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use telaio_model::{IpFamily, ServiceEndpoints};
use telaio_service_proxy::config::{NodeFacts, ProxyConfig};
use telaio_service_proxy::ipvs::compile::Context;
use telaio_service_proxy::ipvs::render::parts;
use telaio_service_proxy::ipvs::state::{Circumstances, State};
use telaio_service_proxy::ipvs::types::Scheduler;

use crate::cluster::{Cluster, Size};
use crate::usage::Process;

/// Tells a figure to whoever started the guest.
pub(crate) fn figure(name: &str, value: f64) {
    println!("{name}={value}");
}

/// A machine without addresses of its own.
pub(crate) fn context(config: &ProxyConfig, node: &NodeFacts) -> Context {
    Context::new(config, node, IpFamily::V4, Scheduler::default(), &BTreeSet::new())
}

/// Feeds each program its text; figures go to standard output.
pub(crate) fn role(size: Size) -> Result<()> {
    let config = ProxyConfig { families: vec![IpFamily::V4], ..ProxyConfig::default() };
    let cluster = Cluster::new(size).by_name();
    let services: Vec<&ServiceEndpoints> = cluster.values().collect();
    let around = Circumstances {
        config: &config,
        node: &NodeFacts::default(),
        scheduler: Scheduler::default(),
        machine: &BTreeSet::new(),
    };
    let state = State::compile(&services, &around);
    let own = Process::own();
    let (mut cpu_ms, mut wall_ms) = (0.0, 0.0);
    for part in parts(&state) {
        let program = part.program.split_whitespace().next().unwrap_or_default();
        let (program, arguments): (&str, &[&str]) = match program {
            "ipvsadm" => ("ipvsadm", &["-R"]),
            "ipset" => ("ipset", &["restore"]),
            "ip" => ("ip", &["-batch", "-"]),
            "iptables-restore" => ("iptables-legacy-restore", &["--noflush"]),
            other => bail!("there is no program {other:?} to compare with"),
        };
        let file = std::env::temp_dir().join(program);
        fs::write(&file, &part.text)?;
        let (cpu, started) = (own.cpu_with_children_ms()?, Instant::now());
        let status = Command::new(program).args(arguments).stdin(fs::File::open(&file)?).status();
        if !status.with_context(|| format!("cannot run {program}"))?.success() {
            bail!("{program} failed");
        }
        let (took, used) = (started.elapsed(), own.cpu_with_children_ms()? - cpu);
        figure(&format!("{program}_cpu_ms"), used);
        cpu_ms += used;
        wall_ms += took.as_secs_f64() * 1e3;
    }
    figure("all_cpu_ms", cpu_ms);
    figure("all_wall_ms", wall_ms);
    Ok(())
}
