//! A backend as the agent runs it, fed from memory, in a namespace of its own.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use telaio_model::{IpFamily, Op};
use telaio_netlink::netns::Netns;
use telaio_reconcile::kpng::{Backend, Sink};
use telaio_reconcile::{PacerConfig, SyncHandle};
use telaio_service_proxy::config::{DetectLocal, ProxyConfig};
use telaio_service_proxy::options::{Follower, LocalhostPorts, Programmed, ProxyOptions};

/// How long a sync may take.
const SYNC_TIME_MAX: Duration = Duration::from_mins(10);

/// Makes a namespace that nobody else has and that ends with whoever holds it.
pub(crate) fn namespace(name: &str) -> Result<Netns> {
    let name = format!("telaio-bench-{name}-{}", std::process::id());
    let netns = Netns::create(&name).context("the benchmark needs root")?;
    // It lives on while it is held; no name is left behind however we end.
    Netns::remove(&name)?;
    Ok(netns)
}

/// Moves the calling thread, and what it starts, into a namespace of its own.
pub(crate) fn enter_own_namespace(name: &str) -> Result<()> {
    Ok(namespace(name)?.enter()?)
}

/// What the operator decides in this benchmark.
pub(crate) fn config(families: &[IpFamily]) -> Result<Arc<ProxyConfig>> {
    Ok(Arc::new(ProxyConfig {
        detect_local: DetectLocal::ClusterCidr(vec!["10.128.0.0/9".parse()?]),
        families: families.to_vec(),
        ..ProxyConfig::default()
    }))
}

/// Keeps the sync loop's handle.
#[derive(Debug, Default)]
struct HandleKeeper(OnceLock<SyncHandle>);

impl Follower for HandleKeeper {
    fn started(&self, handle: &SyncHandle) {
        // A backend starts its loop once.
        let _ = self.0.set(handle.clone());
    }

    fn programmed(&self, _: &Programmed<'_>) {}
}

/// A backend that runs.
pub(crate) struct Rig {
    sink: Box<dyn Sink>,
    pub(crate) handle: SyncHandle,
}

impl Rig {
    /// Sets a backend up in the namespace of the calling thread. Syncs only when told to; paced as
    /// an agent's is.
    pub(crate) fn start(
        families: &[IpFamily],
        make: impl FnOnce(ProxyOptions) -> Box<dyn Backend>,
    ) -> Result<Self> {
        let keeper = Arc::new(HandleKeeper::default());
        let mut backend = make(ProxyOptions {
            node: "node-0".into(),
            node_addresses: Vec::new(),
            config: config(families)?,
            localhost: LocalhostPorts::default(),
            pacing: PacerConfig { sync_period: Duration::from_hours(1), ..PacerConfig::default() },
            follower: Arc::clone(&keeper) as Arc<dyn Follower>,
        });
        backend.setup()?;
        let handle = keeper.0.get().context("the backend has no sync loop")?.clone();
        Ok(Self { sink: backend.sink(), handle })
    }

    /// Tells the backend something and waits until it is in the kernel.
    pub(crate) fn send(&mut self, ops: impl IntoIterator<Item = Op>) -> Result<()> {
        for op in ops {
            self.sink.send(op)?;
        }
        self.sink.send(Op::Sync)?;
        self.wait()
    }

    /// Waits until everything that was asked for is done.
    pub(crate) fn wait(&self) -> Result<()> {
        if !self.handle.wait_synced(SYNC_TIME_MAX) {
            bail!("no sync in time: {:?}", self.handle.stats().last_error);
        }
        if self.handle.stats().failures_total > 0 {
            bail!("a sync failed");
        }
        Ok(())
    }
}
