//! The backends of this build, and choosing one.
//!
//! A backend is [`telaio_reconcile`]'s: it is made by name from a [`Registry`], set up, and becomes
//! the sink of the node's view. Its constructor gets a [`BackendContext`], from which it takes its
//! pacing and to whose monitor it shows its sync loop.

#[cfg(target_os = "linux")]
pub(crate) mod services;
#[cfg(target_os = "linux")]
pub(crate) mod sole;
mod view;

use std::io::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use telaio_reconcile::PacerConfig;
use telaio_reconcile::kpng::{Backend, Registry, RegistryError};
#[cfg(target_os = "linux")]
use telaio_service_proxy::{
    iptables::{IptablesBackend, SharedCounters},
    ipvs::IpvsBackend,
    nftables::NftablesBackend,
};

use crate::exit::CommandError;
use crate::monitor::Monitor;
#[cfg(target_os = "linux")]
use services::Services;

pub(crate) use view::NodeView;
use view::ViewBackend;

/// The backend that we choose.
const AUTO: &str = "auto";
/// Those of this build.
#[cfg(target_os = "linux")]
const NAMES: &[&str] = &["nftables", "iptables", "ipvs", ViewBackend::NAME];
/// Those of this build.
#[cfg(not(target_os = "linux"))]
const NAMES: &[&str] = &[ViewBackend::NAME];
/// Those that DESIGN promises and later releases, or builds for another system, bring.
#[cfg(target_os = "linux")]
const LATER: &[&str] = &["hcn"];
/// Those that DESIGN promises and later releases, or builds for another system, bring.
#[cfg(not(target_os = "linux"))]
const LATER: &[&str] = &["nftables", "iptables", "ipvs", "hcn"];

/// Where a backend that prints, prints.
pub(crate) type SharedOutput = Arc<Mutex<dyn Write + Send>>;

/// What a backend may need of its surroundings.
#[derive(Clone)]
pub(crate) struct BackendContext {
    /// The node whose view it gets.
    pub(crate) node: Arc<str>,
    /// When to sync.
    pub(crate) pacing: PacerConfig,
    /// Where its sync loop is shown.
    pub(crate) monitor: Arc<Monitor>,
    /// Where a backend that prints, prints.
    pub(crate) output: SharedOutput,
    /// What runs around a backend that programs services; none for one that only prints.
    #[cfg(target_os = "linux")]
    pub(crate) services: Option<Arc<Services>>,
}

/// The backends of this build that can run in these surroundings.
fn registry(context: BackendContext) -> Result<Registry, RegistryError> {
    let mut registry = Registry::new();
    #[cfg(target_os = "linux")]
    if let Some(services) = &context.services {
        let options = services.options(&context.node, context.pacing);
        let (for_iptables, flavor) = (options.clone(), services.flavor());
        let (for_ipvs, ipvs) = (options.clone(), services.ipvs());
        let monitor = Arc::clone(&context.monitor);
        let show = move |counters: SharedCounters| {
            monitor.proxy().set_iptables(Box::new(move || counters.lock().clone()));
        };
        let show_ipvs = show.clone();
        registry.register(NftablesBackend::NAME, move || {
            Box::new(NftablesBackend::new(options.clone()))
        })?;
        registry.register(IptablesBackend::NAME, move || {
            let backend = IptablesBackend::new(for_iptables.clone(), flavor);
            show(backend.counters());
            Box::new(backend)
        })?;
        registry.register(IpvsBackend::NAME, move || {
            let backend = IpvsBackend::new(for_ipvs.clone(), ipvs.clone());
            show_ipvs(backend.counters());
            Box::new(backend)
        })?;
    }
    registry.register(ViewBackend::NAME, move || Box::new(ViewBackend::new(context.clone())))?;
    Ok(registry)
}

/// Their names.
pub(crate) fn names() -> Vec<&'static str> {
    NAMES.to_vec()
}

/// Whether a backend programs services, and does not just print them.
pub(crate) fn programs(name: &str) -> bool {
    name != ViewBackend::NAME
}

/// Reads a `--backend`: the names that this build or a later one knows.
pub(crate) fn parse(asked: &str) -> Result<String, String> {
    if asked == AUTO || NAMES.contains(&asked) || LATER.contains(&asked) {
        return Ok(asked.to_owned());
    }
    Err(format!("there is no backend {asked:?}; {}", known()))
}

fn known() -> String {
    format!("this build has: {AUTO}, {}", NAMES.join(", "))
}

/// The name of the backend that `--backend` means for an agent: `auto` is the best that can run here.
pub(crate) fn choose(asked: &str) -> Result<&'static str, CommandError> {
    if asked != AUTO {
        return choose_named(asked);
    }
    #[cfg(target_os = "linux")]
    return services::best();
    #[cfg(not(target_os = "linux"))]
    Ok(ViewBackend::NAME)
}

/// The name of the backend that `--backend` means where nothing is programmed: `auto` is the default
/// one.
pub(crate) fn choose_to_show(asked: &str) -> Result<&'static str, CommandError> {
    if asked == AUTO { Ok(NAMES[0]) } else { choose_named(asked) }
}

fn choose_named(asked: &str) -> Result<&'static str, CommandError> {
    if let Some(name) = NAMES.iter().find(|name| **name == asked) {
        return Ok(name);
    }
    // Whatever else there is was refused when it was read.
    Err(CommandError::failed(format!(
        "the backend {asked} comes with a later release; {}",
        known()
    )))
}

/// Makes a backend by the name that [`choose`] gave.
pub(crate) fn make(name: &str, context: BackendContext) -> Result<Box<dyn Backend>, CommandError> {
    let made = registry(context).and_then(|registry| registry.get(name));
    made.map_err(|error| CommandError::Failed(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_of_a_later_release_fails_and_an_unknown_one_is_bad_usage() {
        assert_eq!(choose("view").unwrap(), "view");
        assert!(matches!(choose("hcn"), Err(CommandError::Failed(_))));
        assert_eq!(parse("hcn").unwrap(), "hcn");
        assert!(parse("nftable").unwrap_err().contains("this build has: auto, "));
    }
}
