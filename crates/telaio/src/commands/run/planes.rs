//! What the services and pods planes need to run, from what the agent was told.

#[cfg(target_os = "linux")]
use std::path::Path;
#[cfg(target_os = "linux")]
use std::sync::Arc;

#[cfg(target_os = "linux")]
use telaio_reconcile::PacerConfig;
use telaio_reconcile::kpng::Sink;
#[cfg(target_os = "linux")]
use telaio_source::SourceSpec;

#[cfg(target_os = "linux")]
use crate::backend::services::{self, Services, ServicesSettings};
use crate::backend::{self, BackendContext};
#[cfg(target_os = "linux")]
use crate::cli::RunArgs;
use crate::exit::CommandError;
#[cfg(target_os = "linux")]
use crate::monitor::Monitor;
#[cfg(target_os = "linux")]
use crate::plane::Plane;
#[cfg(target_os = "linux")]
use crate::pods::Pods;
#[cfg(target_os = "linux")]
use crate::proxy_settings::ProxySettings;
#[cfg(target_os = "linux")]
use crate::tee::Tee;
#[cfg(target_os = "linux")]
use crate::triggers::Triggers;

/// What is fed, if anything is.
#[cfg(target_os = "linux")]
pub(super) type AnySink = Option<Box<dyn Sink>>;

/// Makes the backend of the services plane and sets it up.
pub(super) fn set_up(
    name: &'static str,
    context: BackendContext,
) -> Result<Box<dyn Sink>, CommandError> {
    let mut backend = backend::make(name, context)?;
    backend
        .setup()
        .map_err(|error| CommandError::failed(format!("the backend {name} cannot run: {error}")))?;
    Ok(backend.sink())
}

/// Starts the pods plane, if it was asked for, and lets it have its part of the view.
#[cfg(target_os = "linux")]
pub(super) async fn with_pods(
    args: &RunArgs,
    node: &str,
    spec: &SourceSpec,
    state_dir: &Path,
    pacing: PacerConfig,
    monitor: &Monitor,
    services: AnySink,
) -> Result<(Option<Pods>, AnySink), CommandError> {
    if !args.planes.contains(&Plane::Pods) {
        return Ok((None, services));
    }
    let settings = args.pods.settings(node, state_dir, pacing, !args.once);
    let told = match spec {
        SourceSpec::Kube(kubeconfig) => {
            let client = telaio_source::kube::client(kubeconfig.clone()).await;
            let client = client.map_err(|error| CommandError::BadInput(error.into()))?;
            Some(crate::pods::Told { client, kubeconfig: kubeconfig.clone() })
        }
        SourceSpec::Dir(_) | SourceSpec::Brain(_) => None,
    };
    let (pods, objects) = Pods::start(settings, told)?;
    monitor.set_pods(&pods);
    let tee = Tee { node: node.into(), services, objects: Some(objects) };
    Ok((Some(pods), Some(Box::new(tee))))
}

/// Starts what runs around a backend that programs services.
#[cfg(target_os = "linux")]
pub(super) fn start_services(
    args: &RunArgs,
    backend: &'static str,
    proxy: ProxySettings,
    state_dir: &Path,
    triggers: Option<Arc<Triggers>>,
    monitor: &Arc<Monitor>,
) -> Result<Option<Arc<Services>>, CommandError> {
    if !backend::programs(backend) {
        return Ok(None);
    }
    let mut proxy = proxy;
    let families = services::families();
    for family in proxy.config.families.iter().filter(|family| !families.contains(family)) {
        tracing::warn!("this machine has no {family}; its services are not served");
    }
    proxy.config.families.retain(|family| families.contains(family));
    let by_rules = backend == "iptables" && proxy.config.localhost_node_ports;
    let settings = ServicesSettings {
        config: Arc::new(proxy.config),
        node_addresses: proxy.node_addresses,
        flavor: args.proxy.iptables_flavor.into(),
        ipvs: proxy.ipvs,
        sysctls: args.proxy_host.sysctls(by_rules),
        takeover: args.proxy_host.takeover,
        stays: !args.once,
        state_dir: state_dir.to_owned(),
        triggers,
    };
    Services::start(backend, settings, monitor).map(Arc::new).map(Some)
}
