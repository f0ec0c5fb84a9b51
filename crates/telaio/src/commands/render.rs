//! `telaio render`: what would be programmed on a node, printed; nothing is changed.
//!
//! The same input gives the same output, to the byte. What cannot be read is said on standard error,
//! the rest is printed, and the exit code is 2.

use std::io::Write;

use anyhow::Context;

use crate::backend::{self, NodeView};
use crate::cli::RenderArgs;
use crate::exit::CommandError;
use crate::logging::Logging;
use crate::node_view::ViewRequest;

/// Prints it.
pub(crate) fn render(args: &RenderArgs, out: &mut impl Write) -> Result<(), CommandError> {
    let backend = backend::choose_to_show(&args.backend)?;
    let node = args.node.name()?;
    let spec = args.source.spec()?;
    Logging::start(&args.log)?;
    let settings = args.proxy.settings(backend, &args.source, &spec)?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let request = ViewRequest {
        node: &node,
        spec: &spec,
        source: &args.source,
        tls: &args.tls,
        state_dir: args.state_dir.clone(),
        time_max: args.timeout,
    };
    let (state, source) = request.read()?;
    let text = match backend {
        programs if backend::programs(programs) => {
            // Of a node that may be another machine, only what is said about it is known.
            let facts = crate::node_view::node_facts(&state, &node, &settings.node_addresses);
            let machine = facts.addresses.into_iter().collect();
            let rules = super::rules::Rules::compile(programs, &settings, &node, &state, &machine)?;
            rules.render(&settings.config.families)
        }
        _ => {
            let view = NodeView { node: &node, services: state.services().collect() };
            serde_saphyr::to_string(&view).context("cannot write the view as YAML")?
        }
    };
    out.write_all(text.as_bytes()).context("cannot print")?;
    super::report_problems(&spec, &source)
}
