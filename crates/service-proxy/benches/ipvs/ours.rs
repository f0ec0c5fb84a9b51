//! Our own way into the kernel, measured on a guest.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use telaio_model::IpFamily;
use telaio_netlink::socket;
use telaio_reconcile::SyncKind;
use telaio_service_proxy::config::{NodeFacts, ProxyConfig};
use telaio_service_proxy::iptables::{FixedRules, Flavor, Owner, Programs};
use telaio_service_proxy::ipvs::IpvsController;
use telaio_service_proxy::ipvs::controller::steps_of;
use telaio_service_proxy::ipvs::proxier::{Proxier, ProxierOptions};
use telaio_service_proxy::ipvs::rules::{RulesContext, scaffold};

use crate::cluster::{Cluster, Size};
use crate::programs::{context, figure};
use crate::table::Samples;
use crate::usage::Process;

/// How many changes are measured.
const CHANGES: u32 = 200;

/// A node's IPVS as the backend runs it, without its thread.
struct Rig {
    cluster: Cluster,
    controller: IpvsController,
    proxier: Proxier,
    rules: FixedRules,
}

impl Rig {
    fn new(size: Size) -> Result<Self> {
        let config = ProxyConfig { families: vec![IpFamily::V4], ..ProxyConfig::default() };
        let node = NodeFacts::default();
        let proxier = Proxier::open(ProxierOptions {
            families: config.families.clone(),
            exclude: Vec::new(),
            takeover: false,
            drain_time_max: Duration::from_mins(15),
        })?;
        let programs = Programs::find(Flavor::Legacy, IpFamily::V4)?;
        let rules = scaffold(&RulesContext::new(&config, &node, IpFamily::V4));
        Ok(Self {
            cluster: Cluster::new(size),
            controller: IpvsController::new(context(&config, &node), config.masquerade_mark()),
            proxier,
            rules: FixedRules::new(Owner::Ipvs, Box::new(programs), IpFamily::V4, rules),
        })
    }

    /// All services become patch groups, and these what is in the kernel. How many groups, and what it
    /// took to work them out and break them down into steps, in seconds.
    fn cold(&mut self) -> Result<(usize, f64)> {
        let now = Instant::now();
        self.proxier.observe(now)?;
        self.rules.sync(SyncKind::Changes)?;
        let services = self.cluster.by_name();
        let started = Instant::now();
        for (key, entry) in &services {
            self.controller.set_service(key, Some(entry));
        }
        let groups = self.controller.generate_patch_groups();
        let steps = steps_of(&groups, 1);
        let took_s = started.elapsed().as_secs_f64();
        self.proxier.take(&steps);
        self.proxier.flush(now)?;
        Ok((groups.len(), took_s))
    }

    /// One service changes.
    fn change(&mut self, number: u32) -> Result<()> {
        let entry = self.cluster.service(number)?;
        self.controller.set_service(&entry.service.key, Some(entry));
        let groups = self.controller.generate_patch_groups();
        self.proxier.take(&steps_of(&groups, 1));
        self.proxier.flush(Instant::now())?;
        Ok(())
    }

    /// All services come once more, as after a new connection to their source, and nothing is to be done.
    fn resync(&mut self) -> Result<()> {
        let now = Instant::now();
        for (key, entry) in self.cluster.by_name() {
            self.controller.set_service(&key, Some(&entry));
        }
        let groups = self.controller.generate_patch_groups();
        self.proxier.take(&steps_of(&groups, 1));
        self.rules.sync(SyncKind::Changes)?;
        self.proxier.flush(now)?;
        Ok(())
    }

    /// The kernel is looked at, all of it, and is as it should be.
    fn look(&mut self) -> Result<()> {
        let now = Instant::now();
        let drift = self.proxier.observe(now).context("reading the kernel")?;
        if !drift.is_clean() {
            bail!("the kernel is not as we left it: {} things", drift.count());
        }
        self.proxier.flush(now)?;
        Ok(())
    }

    fn check(&self, size: Size) -> Result<()> {
        let expected = (size.services as usize, (size.services * size.endpoints) as usize);
        if self.proxier.counts() != expected {
            bail!("the kernel has {:?} instead of {expected:?}", self.proxier.counts());
        }
        Ok(())
    }
}

/// Measures in this process; figures go to standard output.
pub(crate) fn role(size: Size) -> Result<()> {
    let own = Process::own();
    let mut rig = Rig::new(size)?;
    let (cpu, started) = (own.cpu_with_children_ms()?, Instant::now());
    let (groups, worked_out_s) = rig.cold()?;
    let wall_s = started.elapsed().as_secs_f64();
    figure("cold_cpu_ms", own.cpu_with_children_ms()? - cpu);
    figure("cold_wall_ms", wall_s * 1e3);
    figure("groups_per_s", groups as f64 / worked_out_s);
    figure("groups_applied_per_s", groups as f64 / wall_s);
    rig.check(size)?;

    let mut samples = Vec::new();
    let commands = rig.proxier.commands();
    let cpu = own.cpu_ms()?;
    for turn in 0..CHANGES {
        let number = turn * (size.services / CHANGES).max(1);
        rig.cluster.replace_endpoint(number % size.services)?;
        let started = Instant::now();
        rig.change(number % size.services)?;
        samples.push(started.elapsed().as_secs_f64() * 1e3);
    }
    figure("change_cpu_ms", (own.cpu_ms()? - cpu) / f64::from(CHANGES));
    figure("change_wall_ms", Samples::new(samples).median());
    figure("change_commands", (rig.proxier.commands() - commands) as f64 / f64::from(CHANGES));
    rig.check(size)?;

    // What the changes above left to drain is not what is measured here.
    rig.look()?;
    let (calls, cpu) = (socket::calls(), own.cpu_ms()?);
    rig.resync()?;
    figure("resync_cpu_ms", own.cpu_ms()? - cpu);
    figure("resync_calls", (socket::calls() - calls) as f64);
    let (calls, commands, cpu) = (socket::calls(), rig.proxier.commands(), own.cpu_ms()?);
    rig.look()?;
    figure("look_cpu_ms", own.cpu_ms()? - cpu);
    figure("look_calls", (socket::calls() - calls) as f64);
    figure("look_commands", (rig.proxier.commands() - commands) as f64);
    Ok(())
}
