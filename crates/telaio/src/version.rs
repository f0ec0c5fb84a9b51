//! `telaio version`: what this build is and can do.

use std::io::Write;

use anyhow::Result;
use serde::Serialize;

use crate::cli::Output;
use crate::plane::{self, Plane};

/// The sources that this build has.
const SOURCES: &[&str] = &["kube", "dir", "brain"];

#[derive(Serialize)]
struct Version {
    version: &'static str,
    target: &'static str,
    planes: Vec<String>,
    backends: Vec<&'static str>,
    sources: &'static [&'static str],
    tls: &'static str,
}

/// Prints it.
pub(crate) fn print(output: Output, mut out: impl Write) -> Result<()> {
    let version = Version {
        version: env!("CARGO_PKG_VERSION"),
        target: env!("TELAIO_TARGET"),
        planes: plane::names(Plane::RUNNABLE),
        backends: crate::backend::names(),
        sources: SOURCES,
        tls: "rustls with aws-lc-rs",
    };
    match output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&version)?)?,
        Output::Text => {
            writeln!(out, "telaio {} ({})", version.version, version.target)?;
            writeln!(out, "planes:   {}", version.planes.join(", "))?;
            writeln!(out, "backends: {}", version.backends.join(", "))?;
            writeln!(out, "sources:  {}", version.sources.join(", "))?;
            writeln!(out, "TLS:      {}", version.tls)?;
        }
    }
    Ok(())
}
