//! Serving the Global and Local API from this process's store.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use telaio_brain::{ApiServer, Authorizer, Store};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::ServerTlsConfig;

use crate::exit::CommandError;
use crate::servers::bind;

/// The API while it is served; dropping it ends it.
#[derive(Debug)]
pub(crate) struct ApiTask {
    task: JoinHandle<Result<(), tonic::transport::Error>>,
    stop: watch::Sender<bool>,
}

impl ApiTask {
    /// Takes the port and begins to serve. Must be called within the runtime.
    pub(crate) fn start(
        store: &Arc<Store>,
        address: SocketAddr,
        tls: Option<ServerTlsConfig>,
        ingress_nodes: &[String],
    ) -> Result<Self, CommandError> {
        let encrypted = tls.is_some();
        let (listener, address) = bind("--api-listen", address)?;
        let listener =
            tokio::net::TcpListener::from_std(listener).context("cannot serve the API")?;
        let authorizer = Authorizer { ingress_nodes: ingress_nodes.iter().cloned().collect() };
        let server = ApiServer::new(Arc::clone(store), authorizer);
        let (stop, mut stopped) = watch::channel(false);
        let stopping = async move { drop(stopped.wait_for(|stop| *stop).await) };
        let task = tokio::spawn(server.serve(listener, tls, stopping));
        tracing::info!(api = %address, tls = encrypted, "serving the Global and Local API");
        Ok(Self { task, stop })
    }

    /// Ends when the server has failed. Without one, never. Cancel-safe.
    pub(crate) async fn failed(api: Option<&mut Self>) -> String {
        let Some(api) = api else { return std::future::pending().await };
        match (&mut api.task).await {
            Ok(Ok(())) => "it was stopped".to_owned(),
            Ok(Err(error)) => format!("{:#}", anyhow::Error::from(error)),
            Err(error) => error.to_string(),
        }
    }
}

impl Drop for ApiTask {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}
