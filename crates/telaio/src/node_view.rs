//! One node's view, read once from a source: for commands that show and change nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use telaio_brain::LocalWatch;
use telaio_model::Kind;
use telaio_reconcile::kpng::State;
use telaio_service_proxy::config::NodeFacts;
use telaio_source::brain::LocalClient;
use telaio_source::{SourceSpec, Status};

use crate::cli::{SourceArgs, TlsArgs};
use crate::exit::CommandError;
use crate::feeder;
use crate::plane::Plane;
use crate::progress;
use crate::supply::{self, SupplyOptions, view_options};

/// What to read, and from where.
pub(crate) struct ViewRequest<'a> {
    pub(crate) node: &'a str,
    pub(crate) spec: &'a SourceSpec,
    pub(crate) source: &'a SourceArgs,
    pub(crate) tls: &'a TlsArgs,
    /// An agent's directory, whose given addresses are to be shown; it is only read.
    pub(crate) state_dir: Option<PathBuf>,
    /// How long the first full state may take.
    pub(crate) time_max: Duration,
}

impl ViewRequest<'_> {
    /// The node's view at the source's first full state, and what could not be read.
    pub(crate) fn read(&self) -> Result<(State, Arc<Status>), CommandError> {
        let runtime = crate::commands::runtime()?;
        let reading = format!("reading {}", self.spec);
        let read = runtime.block_on(progress::shown(&reading, self.view()));
        runtime.shutdown_background();
        read
    }

    async fn view(&self) -> Result<(State, Arc<Status>), CommandError> {
        let mut state = State::default();
        let mut take = |ops: &mut dyn Iterator<Item = telaio_model::Op>| {
            for op in ops {
                state.apply(op);
            }
        };
        if let SourceSpec::Brain(url) = self.spec {
            let status = Arc::new(Status::default());
            let options = view_options(url, self.tls, &[Plane::Services])?;
            let mut client = LocalClient::new(options, self.node, Arc::clone(&status));
            let answer = tokio::time::timeout(self.time_max, client.try_next()).await;
            let ops = answer
                .map_err(|_| CommandError::failed(format!("{url} gave no state in time")))?
                .map_err(|error| CommandError::Failed(error.into()))?;
            take(&mut ops.into_iter());
            return Ok((state, status));
        }
        let options = SupplyOptions {
            source: self.source.clone(),
            planes: vec![Plane::Services],
            tls: self.tls.clone(),
            state_dir: self.state_dir.clone(),
            state_read_only: true,
        };
        let loaded = supply::load_once(self.spec, &options, self.time_max).await?;
        let mut watch = LocalWatch::new(&loaded.store, self.node, feeder::wants());
        let mut ops = watch.next().await.map_err(|error| CommandError::Failed(error.into()))?;
        take(&mut ops);
        Ok((state, loaded.status))
    }
}

/// What a view says about its own node.
pub(crate) fn node_facts(state: &State, node: &str, addresses: &[std::net::IpAddr]) -> NodeFacts {
    let objects = state.objects_of(Kind::Node).chain(state.objects_of(Kind::ServiceCidr));
    NodeFacts::from_objects(node, addresses, objects)
}
