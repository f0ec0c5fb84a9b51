//! A node with an HNS in memory.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use telaio_hcn::{FakeHcn, Hcn as _, HnsVersion, Network, NetworkType, Query};
use telaio_model::IpFamily;
use telaio_service_proxy::config::{NodeFacts, ProxyConfig};
use telaio_service_proxy::hcn::{Core, HcnOptions};

use crate::cluster::{Cluster, Size};

/// How many changes are measured.
const CHANGES: u32 = 200;

/// An HNS with a network for pods.
pub(crate) fn hns(version: HnsVersion) -> Result<FakeHcn> {
    let fake = FakeHcn::new(version);
    let kind = NetworkType::L2Bridge;
    fake.create_network(&Network { name: "cbr0".into(), kind, ..Network::default() })?;
    Ok(fake)
}

/// A node as the backend runs it, without its thread.
pub(crate) struct Rig {
    fake: FakeHcn,
    cluster: Cluster,
    core: Core,
}

impl Rig {
    pub(crate) fn new(fake: &FakeHcn, size: Size) -> Result<Self> {
        let config = ProxyConfig { families: vec![IpFamily::V4], ..ProxyConfig::default() };
        let hcn = Arc::new(fake.clone());
        let mut core = Core::new(hcn, Arc::new(config), HcnOptions::default());
        core.pre_run(&NodeFacts::default())?;
        Ok(Self { fake: fake.clone(), cluster: Cluster::new(size), core })
    }

    /// Everything, from nothing.
    pub(crate) fn cold(&mut self) -> Result<()> {
        self.take_all();
        self.core.observe()?;
        self.program()
    }

    fn take_all(&mut self) {
        let all = self.cluster.by_name();
        self.core.callback(&all.into_iter().map(|(key, entry)| (key, Some(entry))).collect());
    }

    /// Does what is to be done, and checks that HNS has what it should have.
    fn program(&mut self) -> Result<()> {
        let outcome = self.core.program_host_compute_objects();
        if let Some(error) = outcome.error() {
            bail!("not all was programmed: {error}");
        }
        let there = self.fake.load_balancer_ids(&Query::All)?.len();
        if there != self.cluster.len() {
            bail!("HNS has {there} load balancers instead of {}", self.cluster.len());
        }
        Ok(())
    }

    /// Everything against an HNS that has all of it; the time without reading HNS, in milliseconds.
    pub(crate) fn compile_and_diff(&mut self) -> Result<f64> {
        let all = self.cluster.by_name();
        let all = all.into_iter().map(|(key, entry)| (key, Some(entry))).collect();
        let started = Instant::now();
        self.core.callback(&all);
        let compiled = started.elapsed();
        self.core.observe()?;
        self.fake.reset_counts();
        let started = Instant::now();
        let outcome = self.core.program_host_compute_objects();
        let time = compiled + started.elapsed();
        if outcome.report.changes() > 0 || self.fake.writes() > 0 {
            bail!("something was written where nothing differs");
        }
        self.program()?;
        Ok(time.as_secs_f64() * 1e3)
    }

    /// Looks at everything, and nothing is to be done.
    pub(crate) fn resync(&mut self) -> Result<()> {
        self.take_all();
        self.core.observe()?;
        self.program()
    }

    /// One service gets another endpoint in place of one.
    pub(crate) fn change(&mut self, number: u32) -> Result<()> {
        self.cluster.replace_endpoint(number)?;
        let entry = self.cluster.service(number)?.clone();
        self.core.callback(&[(entry.service.key.clone(), Some(entry))].into());
        let outcome = self.core.program_host_compute_objects();
        outcome.error().map_or(Ok(()), |error| Err(error).context("one change"))
    }

    /// The times of changes, in milliseconds.
    pub(crate) fn changes(&mut self) -> Result<Vec<f64>> {
        let services = u32::try_from(self.cluster.len())?;
        let mut times = Vec::new();
        for turn in 0..CHANGES {
            let started = Instant::now();
            self.change(turn * (services / CHANGES).max(1) % services)?;
            times.push(started.elapsed().as_secs_f64() * 1e3);
        }
        Ok(times)
    }

    /// All is as at the beginning again.
    pub(crate) fn restore(&mut self, size: Size) -> Result<()> {
        self.cluster = Cluster::new(size);
        self.take_all();
        self.program()
    }
}
