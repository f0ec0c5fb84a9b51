//! `telaio migrate`: what existing Ingresses become here.

use std::io::Write;

use telaio_gateway::migrate::{Report, summary};
use telaio_model::{Kind, Object};

use crate::cli::{MigrateArgs, Output};
use crate::exit::CommandError;
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
    let load = supply::load_once(&spec, &options, args.timeout);
    let loaded = runtime.block_on(progress::shown(&reading, load));
    runtime.shutdown_background();
    let loaded = loaded?;
    let snapshot = loaded.store.snapshot();
    let objects = snapshot.iter().flat_map(|snapshot| &snapshot.objects);
    let reports: Vec<Report> = objects
        .filter(|object| object.kind() == Kind::Ingress)
        .filter_map(|object| match object {
            Object::Ingress(ingress) => Some(Report::new(ingress)),
            _ => None,
        })
        .filter(|report| args.class.is_none() || report.class == args.class)
        .collect();
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
    super::report_problems(&spec, &loaded.status)
}
