//! The backends of this build, and choosing one.
//!
//! A backend is [`telaio_reconcile`]'s: it is made by name from a [`Registry`], set up, and becomes
//! the sink of the node's view. Its constructor gets a [`BackendContext`], from which it takes its
//! pacing and to whose monitor it shows its sync loop.

#[cfg(not(target_os = "linux"))]
pub(crate) mod hns;
#[cfg(target_os = "linux")]
pub(crate) mod services;
#[cfg_attr(not(target_os = "linux"), path = "backend/sole_elsewhere.rs")]
pub(crate) mod sole;
mod view;

use std::io::Write;
use std::sync::Arc;

#[cfg(not(target_os = "linux"))]
pub(crate) use hns as services;
use parking_lot::Mutex;
use telaio_reconcile::PacerConfig;
use telaio_reconcile::kpng::{Backend, Registry, RegistryError};

use crate::exit::CommandError;
use crate::monitor::Monitor;
use services::Services;

pub(crate) use view::NodeView;
use view::ViewBackend;

/// The backend that we choose.
const AUTO: &str = "auto";
/// Those of Linux.
const LINUX: &[&str] = &["nftables", "iptables", "ipvs"];
/// Those of Windows.
const WINDOWS: &[&str] = &["hcn"];
/// Those that run here, the default one first.
const RUNS: &[&str] = if cfg!(target_os = "linux") {
    &["nftables", "iptables", "ipvs", ViewBackend::NAME]
} else {
    &["hcn", ViewBackend::NAME]
};
/// Those that can be shown here. Windows' objects need no Windows for that.
const SHOWN: &[&str] = if cfg!(target_os = "linux") {
    &["nftables", "iptables", "ipvs", "hcn", ViewBackend::NAME]
} else {
    RUNS
};

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
    pub(crate) services: Option<Arc<Services>>,
}

/// The backends of this build that can run in these surroundings.
fn registry(context: BackendContext) -> Result<Registry, RegistryError> {
    let mut registry = Registry::new();
    if let Some(services) = &context.services {
        services.register(&context, &mut registry)?;
    }
    registry.register(ViewBackend::NAME, move || Box::new(ViewBackend::new(context.clone())))?;
    Ok(registry)
}

/// The names of those that run here.
pub(crate) fn names() -> Vec<&'static str> {
    RUNS.to_vec()
}

/// Whether a backend programs services, and does not just print them.
pub(crate) fn programs(name: &str) -> bool {
    name != ViewBackend::NAME
}

/// Reads a `--backend`: the names that any build knows.
pub(crate) fn parse(asked: &str) -> Result<String, String> {
    if asked == AUTO || [RUNS, LINUX, WINDOWS].concat().contains(&asked) {
        return Ok(asked.to_owned());
    }
    Err(format!("there is no backend {asked:?}; {}", known(RUNS)))
}

fn known(names: &[&str]) -> String {
    format!("this build has: {AUTO}, {}", names.join(", "))
}

/// The name of the backend that `--backend` means for an agent: `auto` is the best that can run here.
pub(crate) fn choose(asked: &str) -> Result<&'static str, CommandError> {
    if asked == AUTO { services::best() } else { choose_named(asked, RUNS) }
}

/// The name of the backend that `--backend` means where nothing is programmed: `auto` is the default
/// one.
pub(crate) fn choose_to_show(asked: &str) -> Result<&'static str, CommandError> {
    if asked == AUTO { Ok(SHOWN[0]) } else { choose_named(asked, SHOWN) }
}

/// Likewise, of those that run here.
pub(crate) fn choose_to_demonstrate(asked: &str) -> Result<&'static str, CommandError> {
    if asked == AUTO { Ok(RUNS[0]) } else { choose_named(asked, RUNS) }
}

fn choose_named(asked: &str, names: &[&'static str]) -> Result<&'static str, CommandError> {
    if let Some(name) = names.iter().find(|name| **name == asked) {
        return Ok(name);
    }
    // Whatever else there is was refused when it was read.
    let system = if WINDOWS.contains(&asked) { "Windows" } else { "Linux" };
    let hint = if SHOWN.contains(&asked) { " (render and trace show it anywhere)" } else { "" };
    let known = known(names);
    Err(CommandError::failed(format!("the backend {asked} runs on {system} only{hint}; {known}")))
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
    fn another_systems_backend_fails_and_an_unknown_one_is_bad_usage() {
        let foreign = if cfg!(target_os = "linux") { "hcn" } else { "nftables" };
        assert_eq!(choose("view").unwrap(), "view");
        assert!(matches!(choose(foreign), Err(CommandError::Failed(_))));
        assert_eq!(choose_to_show("hcn").unwrap(), "hcn");
        for name in LINUX.iter().chain(WINDOWS) {
            assert_eq!(parse(name).unwrap(), *name);
        }
        assert!(parse("nftable").unwrap_err().contains("this build has: auto, "));
    }
}
