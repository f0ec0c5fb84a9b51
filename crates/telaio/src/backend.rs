//! The backends of this build, and choosing one.
//!
//! A backend is [`telaio_reconcile`]'s: it is made by name from a [`Registry`], set up, and becomes
//! the sink of the node's view. Its constructor gets a [`BackendContext`], from which it takes its
//! pacing and to whose monitor it shows its sync loop.

mod view;

use std::io::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use telaio_reconcile::PacerConfig;
use telaio_reconcile::kpng::{Backend, Registry, RegistryError};

use crate::exit::CommandError;
use crate::monitor::Monitor;

pub(crate) use view::NodeView;
use view::ViewBackend;

/// Those that DESIGN promises and later releases bring.
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
}

/// The backends of this build.
fn registry(context: BackendContext) -> Result<Registry, RegistryError> {
    let mut registry = Registry::new();
    registry.register(ViewBackend::NAME, move || Box::new(ViewBackend::new(context.clone())))?;
    Ok(registry)
}

/// Their names.
pub(crate) fn names() -> Vec<&'static str> {
    vec![ViewBackend::NAME]
}

/// The name of the backend that `--backend` means; `auto` is the best that this build has.
pub(crate) fn choose(asked: &str) -> Result<&'static str, CommandError> {
    if asked == "auto" {
        return Ok(ViewBackend::NAME);
    }
    if let Some(name) = names().into_iter().find(|name| *name == asked) {
        return Ok(name);
    }
    let has = format!("this build has: auto, {}", names().join(", "));
    if LATER.contains(&asked) {
        let message = format!("the backend {asked} comes with a later release; {has}");
        return Err(CommandError::failed(message));
    }
    Err(CommandError::bad_input(format!("--backend: there is no backend {asked:?}; {has}")))
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
        assert_eq!(choose("auto").unwrap(), "view");
        assert_eq!(choose("view").unwrap(), "view");
        assert!(matches!(choose("nftables"), Err(CommandError::Failed(_))));
        assert!(matches!(choose("nftable"), Err(CommandError::BadInput(_))));
    }
}
