//! The node's view as the ingress needs it.

use std::sync::Arc;

use telaio_api::proto::localv1::Set;
use telaio_api::sets;
use telaio_brain::LocalWatch;
use telaio_gateway::listener::KINDS;
use telaio_model::Op;
use telaio_source::Status;
use telaio_source::brain::{BrainOptions, LocalClient};

use crate::feeder::{ViewOrigin, ingress_wants};

/// A view that is followed.
pub(crate) enum IngressView {
    Store(LocalWatch),
    Brain(Box<LocalClient>),
}

/// Who asks a brain for the ingress' view of a node, whose state nobody is told.
pub(crate) fn brain_client(options: &BrainOptions, node: &Arc<str>) -> LocalClient {
    brain_client_telling(options, node, Arc::default())
}

fn brain_client_telling(
    options: &BrainOptions,
    node: &Arc<str>,
    status: Arc<Status>,
) -> LocalClient {
    let mut options = options.clone();
    options.sets = vec![Set::ServingEndpoints, Set::AllServices];
    options.sets.extend(KINDS.iter().copied().filter_map(sets::set_of));
    LocalClient::new(options, Arc::clone(node), status)
}

impl IngressView {
    /// Follows a node's view from its beginning.
    pub(crate) fn follow(origin: &ViewOrigin, node: &Arc<str>) -> Self {
        match origin {
            ViewOrigin::Store(store, _) => {
                Self::Store(LocalWatch::new(store, Arc::clone(node), ingress_wants()))
            }
            ViewOrigin::Brain(options, status) => {
                let client = brain_client_telling(options, node, Arc::clone(status));
                Self::Brain(Box::new(client))
            }
        }
    }

    /// The next difference; `None` when there will be no other.
    pub(crate) async fn next(&mut self) -> Option<Vec<Op>> {
        match self {
            Self::Store(watch) => watch.next().await.ok().map(Iterator::collect),
            Self::Brain(client) => Some(client.next().await),
        }
    }
}
