//! `telaio brain`: one watch of the cluster, served to many nodes.

use std::sync::Arc;
use std::time::Duration;

use telaio_brain::Wants;
use telaio_source::SourceSpec;
use tonic::transport::ServerTlsConfig;

use crate::api_server::ApiTask;
use crate::cli::BrainArgs;
use crate::exit::CommandError;
use crate::gui::{self, AdminOptions};
use crate::logging::Logging;
use crate::monitor::{Facts, Monitor};
use crate::plane;
use crate::servers::{Servers, check_distinct};
use crate::settings::Settings;
use crate::shutdown::{Request, Requests};
use crate::supply::{Supply, SupplyOptions};

/// Serves until it is told to end.
pub(crate) fn brain(args: &BrainArgs, mut settings: Settings) -> Result<(), CommandError> {
    let spec = args.source.spec()?;
    check_distinct(&args.listen.with_api(Some(args.api_listen)))?;
    let tls = args.tls.server()?;
    let logging = Logging::start(&args.log)?;
    crate::file_limit::raise();
    let options = SupplyOptions {
        source: args.source.clone(),
        planes: args.planes.clone(),
        tls: args.tls.clone(),
        // Only a directory source keeps anything, and then has it alone. Brains of other sources are
        // stateless and can be many.
        state_dir: Some(args.state.state_dir.clone()),
        state_read_only: false,
    };
    let runtime = super::runtime()?;
    let outcome = runtime.block_on(async {
        // First, so that no signal finds us deaf.
        let requests = Requests::listen(settings.file())?;
        let supply = Supply::start(&spec, &options).await?;
        serve(args, tls, supply, &spec, requests, &mut settings, &logging).await
    });
    // Watches of peers that do not let go must not hold the end up.
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

async fn serve(
    args: &BrainArgs,
    tls: Option<ServerTlsConfig>,
    mut supply: Supply,
    spec: &SourceSpec,
    mut requests: Requests,
    settings: &mut Settings,
    logging: &Logging,
) -> Result<(), CommandError> {
    let facts = Facts {
        command: "brain",
        planes: plane::names(&args.planes),
        source: spec.to_string(),
        ..Facts::default()
    };
    let store = supply.store.clone();
    let monitor = Monitor::new(facts, supply.status.clone(), Some(store.clone()));
    let options = AdminOptions {
        monitor: Arc::clone(&monitor),
        store: Some(Arc::clone(&store)),
        node: None,
        spec: spec.clone(),
        programming: None,
        overrides_namespace: args.source.overrides_namespace.clone(),
        wants: Wants::default(),
        asking: gui::UrlAsking::of(spec),
    };
    let admin = gui::admin(&args.listen, &args.state.state_dir, options).await?;
    let _servers = Servers::start(&args.listen, &monitor, admin)?;
    let mut api = ApiTask::start(&store, args.api_listen, tls, &args.ingress_nodes)?;
    loop {
        tokio::select! {
            request = requests.next() => match request {
                Request::End(why) => {
                    tracing::info!(why, "ending; nodes go on with what they have");
                    return Ok(());
                }
                Request::Reload(why) => {
                    super::reload(settings, logging, &monitor, why, &[], |_| ());
                }
            },
            error = ApiTask::failed(Some(&mut api)) => {
                return Err(CommandError::failed(format!("the API ended: {error}")));
            }
            () = Supply::ended(Some(&mut supply)) => {
                return Err(CommandError::failed("the source ended"));
            }
        }
    }
}
