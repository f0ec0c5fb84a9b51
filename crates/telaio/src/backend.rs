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

/// The backend that we choose.
const AUTO: &str = "auto";
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

/// Reads a `--backend`: the names that this build or a later one knows.
pub(crate) fn parse(asked: &str) -> Result<String, String> {
    if asked == AUTO || names().contains(&asked) || LATER.contains(&asked) {
        return Ok(asked.to_owned());
    }
    Err(format!("there is no backend {asked:?}; {}", known()))
}

fn known() -> String {
    format!("this build has: {AUTO}, {}", names().join(", "))
}

/// The name of the backend that `--backend` means; `auto` is the best that this build has.
pub(crate) fn choose(asked: &str) -> Result<&'static str, CommandError> {
    if asked == AUTO {
        return Ok(ViewBackend::NAME);
    }
    if let Some(name) = names().into_iter().find(|name| *name == asked) {
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
        assert_eq!(choose("auto").unwrap(), "view");
        assert_eq!(choose("view").unwrap(), "view");
        assert!(matches!(choose("nftables"), Err(CommandError::Failed(_))));
        assert_eq!(parse("nftables").unwrap(), "nftables");
        assert!(parse("nftable").unwrap_err().contains("this build has: auto, view"));
    }
}
