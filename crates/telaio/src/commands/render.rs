//! `telaio render`: what would be programmed on a node, printed; nothing is changed.
//!
//! The same input gives the same output, to the byte. What cannot be read is said on standard error,
//! the rest is printed, and the exit code is 2.

use std::io::Write;
use std::sync::Arc;

use anyhow::Context;
use telaio_brain::LocalWatch;
use telaio_reconcile::kpng::State;
use telaio_source::brain::LocalClient;
use telaio_source::{SourceSpec, Status};

use crate::backend::{self, NodeView};
use crate::cli::RenderArgs;
use crate::exit::CommandError;
use crate::feeder;
use crate::logging::Logging;
use crate::plane::Plane;
use crate::progress;
use crate::supply::{self, SupplyOptions, view_options};

/// Prints it.
pub(crate) fn render(args: &RenderArgs, out: &mut impl Write) -> Result<(), CommandError> {
    backend::choose_to_show(&args.backend)?;
    let node = args.node.name()?;
    let spec = args.source.spec()?;
    Logging::start(&args.log.log_level, args.log.log_format)?;
    let runtime = super::runtime()?;
    let reading = format!("reading {spec}");
    let (state, source) = runtime.block_on(progress::shown(&reading, view(args, &node, &spec)))?;
    runtime.shutdown_background();
    let view = NodeView { node: &node, services: state.services().collect() };
    let text = serde_saphyr::to_string(&view).context("cannot write the view as YAML")?;
    out.write_all(text.as_bytes()).context("cannot print the view")?;
    super::report_problems(&spec, &source)
}

/// The node's view at the source's first full state.
async fn view(
    args: &RenderArgs,
    node: &str,
    spec: &SourceSpec,
) -> Result<(State, Arc<Status>), CommandError> {
    let mut state = State::default();
    let mut take = |ops: &mut dyn Iterator<Item = telaio_model::Op>| {
        for op in ops {
            state.apply(op);
        }
    };
    if let SourceSpec::Brain(url) = spec {
        let status = Arc::new(Status::default());
        let options = view_options(url, &args.tls)?;
        let mut client = LocalClient::new(options, node, Arc::clone(&status));
        let answer = tokio::time::timeout(args.timeout, client.try_next()).await;
        let ops = answer
            .map_err(|_| CommandError::failed(format!("{url} gave no state in time")))?
            .map_err(|error| CommandError::Failed(error.into()))?;
        take(&mut ops.into_iter());
        return Ok((state, status));
    }
    let options = SupplyOptions {
        source: args.source.clone(),
        planes: vec![Plane::Services],
        tls: args.tls.clone(),
        state_dir: args.state_dir.clone(),
        state_read_only: true,
    };
    let loaded = supply::load_once(spec, &options, args.timeout).await?;
    let mut watch = LocalWatch::new(&loaded.store, node, feeder::wants());
    let mut ops = watch.next().await.map_err(|error| CommandError::Failed(error.into()))?;
    take(&mut ops);
    Ok((state, loaded.status))
}
