//! `telaio version`: what this build is and can do.

use std::io::Write;

use anyhow::Result;
use serde::Serialize;

use crate::cli::Output;
use crate::plane::{self, Plane};

/// The sources that this build has.
const SOURCES: &[&str] = &["kube", "dir", "brain"];

#[derive(Serialize)]
struct Build {
    version: &'static str,
    target: &'static str,
    planes: Vec<String>,
    backends: Vec<&'static str>,
    sources: &'static [&'static str],
    tls: &'static str,
}

/// Prints it.
pub(crate) fn print(output: Output, mut out: impl Write) -> Result<()> {
    let build = Build {
        version: env!("CARGO_PKG_VERSION"),
        target: env!("TELAIO_TARGET"),
        planes: plane::names(Plane::RUNNABLE),
        backends: crate::backend::names(),
        sources: SOURCES,
        tls: "rustls with aws-lc-rs",
    };
    match output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&build)?)?,
        Output::Text => {
            writeln!(out, "telaio {} ({})", build.version, build.target)?;
            writeln!(out, "planes:   {}", build.planes.join(", "))?;
            writeln!(out, "backends: {}", build.backends.join(", "))?;
            writeln!(out, "sources:  {}", build.sources.join(", "))?;
            writeln!(out, "TLS:      {}", build.tls)?;
        }
    }
    Ok(())
}
