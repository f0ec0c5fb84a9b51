//! What was given, on disk, so that addresses survive a restart.
//!
//! One JSON file, replaced as a whole: after a crash it is the old one or the new one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};
use telaio_model::{ObjectKey, Protocol};

use super::{Allocations, GivenToService};

/// The form that this release writes.
const VERSION: u32 = 1;

/// Why a saved state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file cannot be read or written.
    #[error("cannot be read or written: {0}")]
    Io(#[from] io::Error),
    /// The file is damaged.
    #[error("is damaged: {0}")]
    Damaged(String),
    /// A later release wrote it in a form that this one does not know.
    #[error("has version {0}, which this release does not know")]
    Version(u32),
}

#[derive(Serialize, Deserialize)]
struct StateFile {
    version: u32,
    services: BTreeMap<String, SavedService>,
}

#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct SavedService {
    #[serde(rename = "clusterIPs", skip_serializing_if = "Vec::is_empty")]
    cluster_ips: Vec<IpAddr>,
    #[serde(rename = "nodePorts", skip_serializing_if = "BTreeMap::is_empty")]
    node_ports: BTreeMap<String, u16>,
    #[serde(rename = "healthCheckNodePort", skip_serializing_if = "Option::is_none")]
    health_check_node_port: Option<u16>,
}

/// Reads what was saved; a file that is not there is nothing saved.
pub fn load_allocations(path: &Path) -> Result<Allocations, StateError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Allocations::new()),
        Err(error) => return Err(error.into()),
    };
    let damaged = |error: serde_json::Error| StateError::Damaged(error.to_string());
    let VersionOnly { version } = serde_json::from_slice(&bytes).map_err(damaged)?;
    if version != VERSION {
        return Err(StateError::Version(version));
    }
    let file: StateFile = serde_json::from_slice(&bytes).map_err(damaged)?;
    file.services
        .into_iter()
        .map(|(key, saved)| Ok((ObjectKey::parse(&key), saved.given()?)))
        .collect()
}

/// Saves what was given, in place of what was saved before.
pub fn save_allocations(path: &Path, allocations: &Allocations) -> Result<(), StateError> {
    let services = allocations.iter().map(|(key, given)| (key.to_string(), given.into()));
    let file = StateFile { version: VERSION, services: services.collect() };
    let bytes = serde_json::to_vec_pretty(&file).map_err(io::Error::from)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory)?;
    let new = path.with_extension("json.new");
    let mut new_file = File::create(&new)?;
    new_file.write_all(&bytes)?;
    new_file.sync_all()?;
    drop(new_file);
    std::fs::rename(&new, path)?;
    // The rename itself is safe only when the directory is.
    #[cfg(unix)]
    File::open(directory)?.sync_all()?;
    Ok(())
}

impl SavedService {
    fn given(self) -> Result<GivenToService, StateError> {
        let node_ports = self.node_ports.into_iter().map(|(own, node_port)| {
            let own = parse_port(&own)
                .ok_or_else(|| StateError::Damaged(format!("{own:?} is not PROTOCOL/PORT")))?;
            Ok((own, node_port))
        });
        Ok(GivenToService {
            cluster_ips: self.cluster_ips,
            node_ports: node_ports.collect::<Result<_, StateError>>()?,
            health_check_node_port: self.health_check_node_port,
        })
    }
}

impl From<&GivenToService> for SavedService {
    fn from(given: &GivenToService) -> Self {
        let node_ports = given
            .node_ports
            .iter()
            .map(|((protocol, port), node_port)| (format!("{protocol}/{port}"), *node_port));
        Self {
            cluster_ips: given.cluster_ips.clone(),
            node_ports: node_ports.collect(),
            health_check_node_port: given.health_check_node_port,
        }
    }
}

fn parse_port(text: &str) -> Option<(Protocol, u16)> {
    let (protocol, port) = text.split_once('/')?;
    let protocol = match protocol {
        "TCP" => Protocol::Tcp,
        "UDP" => Protocol::Udp,
        "SCTP" => Protocol::Sctp,
        _ => return None,
    };
    Some((protocol, port.parse().ok()?))
}
