//! `telaio migrate`: what existing Ingresses become here.

use std::io::Write;

use telaio_brain::LocalWatch;
use telaio_gateway::listener::all_events;
use telaio_gateway::migrate::{reports, summary};

use crate::cli::{MigrateArgs, Output};
use crate::exit::CommandError;
use crate::feeder::ingress_wants;
use crate::logging::Logging;
use crate::plane::Plane;
use crate::progress;
use crate::supply::{self, SupplyOptions, check_readable};

/// Reads all Ingresses of a source and says for each what is honoured, different and refused.
pub(crate) fn migrate(args: &MigrateArgs, out: &mut impl Write) -> Result<(), CommandError> {
    let spec = args.source.spec()?;
    check_readable(&spec)?;
    Logging::start(&args.log)?;
    let options = SupplyOptions {
        source: args.source.clone(),
        planes: vec![Plane::Ingress],
        tls: args.tls.clone(),
        state_dir: None,
        state_read_only: true,
    };
    let runtime = super::runtime()?;
    let reading = format!("reading {spec}");
    let read = runtime.block_on(async {
        let load = supply::load_once(&spec, &options, args.timeout);
        let loaded = progress::shown(&reading, load).await?;
        // Whose node's view it is makes no difference to what an Ingress refers to.
        let mut watch = LocalWatch::new(&loaded.store, "migrate", ingress_wants());
        let ops = watch.next().await.map_err(|error| CommandError::Failed(error.into()))?;
        let events = all_events(ops).await.map_err(|error| CommandError::Failed(error.into()))?;
        Ok::<_, CommandError>((events, loaded.status))
    });
    runtime.shutdown_background();
    let (events, status) = read?;
    let reports = reports(events, args.class.as_deref());
    let text = match args.output {
        Output::Text => {
            let all: String = reports.iter().map(ToString::to_string).collect();
            format!("{all}{}\n", summary(&reports))
        }
        Output::Json => {
            let json = serde_json::to_string_pretty(&reports);
            json.map_err(|error| CommandError::Failed(error.into()))? + "\n"
        }
    };
    out.write_all(text.as_bytes()).map_err(|error| CommandError::Failed(error.into()))?;
    super::report_problems(&spec, &status)
}
