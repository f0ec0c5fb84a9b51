//! What each process of the benchmark does.

use std::io::{BufRead as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use telaio_api::proto::localv1::{
    OpItem, Set, WatchReq, op_item, sets_client::SetsClient, sets_server::SetsServer,
};
use telaio_brain::{ApiServer, Authorizer, Store};
use telaio_model::{Batch, Object, ObjectChange};
use telaio_source::Status;
use telaio_source::dir::{DirOptions, DirSource};
use telaio_source::kube::{KubeOptions, KubeSource};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::Streaming;

use crate::bare::Bare;
use crate::{ENDPOINTS, cluster, usage};

fn say(line: &str) -> Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()?;
    Ok(())
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// Loads a directory into a store and says how long it took and what it uses.
pub(crate) fn load_dir(path: &str) -> Result<()> {
    let start = Instant::now();
    let status = Arc::new(Status::default());
    let batch = DirSource::new(path, DirOptions::default(), Arc::clone(&status)).load_once();
    let store = Store::new();
    store.apply(batch);
    loaded(start, &store, &status)
}

/// Loads from an API server, likewise.
pub(crate) fn load_api(kubeconfig: &str) -> Result<()> {
    let start = Instant::now();
    let status = Arc::new(Status::default());
    let store = Store::new();
    runtime()?.block_on(async {
        let options = KubeOptions::default();
        let source =
            KubeSource::connect(Some(kubeconfig.into()), options, Arc::clone(&status)).await?;
        let (batches, mut received) = mpsc::channel(telaio_source::BATCH_QUEUE_MAX);
        let running = tokio::spawn(source.run(batches));
        while !store.is_synced() {
            store.apply(received.recv().await.context("the source ended")?);
        }
        let row = loaded(start, &store, &status);
        running.abort();
        row
    })
}

fn loaded(start: Instant, store: &Store, status: &Status) -> Result<()> {
    let wall = start.elapsed().as_secs_f64();
    if let Some(problem) = status.problems().first() {
        bail!("the load had problems: {problem}");
    }
    let size = store.size();
    if size.endpoints != size.services * ENDPOINTS || size.services == 0 {
        bail!("not everything was loaded: {size:?}");
    }
    say(&format!("{wall} {} {}", usage::cpu_ns()? / 1e9, usage::rss_mib()?))
}

/// Serves a cluster as an API server would, until standard input ends.
pub(crate) fn api_server(services: usize) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let runtime = runtime()?;
    let server = runtime.block_on(telaio_testkit::apiserver::ApiServer::start())?;
    let objects = (0..services).flat_map(|index| cluster::json(index, ENDPOINTS));
    server.apply_many(objects).map_err(|refusal| anyhow::anyhow!("{refusal:?}"))?;
    say(&server.kubeconfig_file(dir.path())?.display().to_string())?;
    std::io::stdin().lock().lines().for_each(drop);
    Ok(())
}

/// Serves a cluster from memory and changes it on command, until standard input ends.
pub(crate) fn serve(services: usize) -> Result<()> {
    let store = Store::new();
    // In chunks, as a source would: nothing of the size of the cluster is held beside the store.
    for first in (0..services).step_by(500) {
        let objects = (first..services.min(first + 500)).flat_map(|index| {
            [Object::from(cluster::service(index)), cluster::slice(index, ENDPOINTS, 0).into()]
        });
        let changes = objects.map(ObjectChange::Set).collect();
        store.apply(Batch { changes, synced: first + 500 >= services });
    }
    let runtime = runtime()?;
    let (listener, url) = listen(&runtime)?;
    let server = ApiServer::new(Arc::clone(&store), Authorizer::default());
    runtime.spawn(server.serve(listener, None, std::future::pending()));
    obey(&url, |round| {
        let slice = cluster::slice(round * 7919 % services, ENDPOINTS, 1 + round / services);
        let changes = vec![ObjectChange::Set(slice.into())];
        let at = usage::now_ns()?;
        if store.apply(Batch { changes, synced: true }).is_none() {
            bail!("round {round} changed nothing");
        }
        Ok(at)
    })
}

/// Sends the same message over the same wire with no brain behind it, likewise.
pub(crate) fn bare() -> Result<()> {
    let runtime = runtime()?;
    let (listener, url) = listen(&runtime)?;
    let changes = watch::Sender::new(0);
    let service = SetsServer::new(Bare(changes.clone()));
    let server = tonic::transport::Server::builder().tcp_nodelay(true).add_service(service);
    runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    obey(&url, |round| {
        let at = usage::now_ns()?;
        changes.send_replace(round + 1);
        Ok(at)
    })
}

fn listen(runtime: &tokio::runtime::Runtime) -> Result<(TcpListener, String)> {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let url = format!("http://{}", listener.local_addr()?);
    Ok((listener, url))
}

/// Says where it listens, then makes changes and tells what was used, until standard input ends.
fn obey(url: &str, change: impl Fn(usize) -> Result<f64>) -> Result<()> {
    say(url)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ') {
            Some(("change", round)) => say(&change(round.parse()?)?.to_string())?,
            None if line == "usage" => {
                say(&format!("{} {}", usage::cpu_ns()?, usage::rss_mib()?))?;
            }
            _ => bail!("what is {line:?}?"),
        }
    }
    Ok(())
}

/// Watches as many nodes at once and says when all have a full state, and then each change.
pub(crate) fn watch(url: &str, count: usize) -> Result<()> {
    let runtime = runtime()?;
    let start = Instant::now();
    let (synced, mut syncs) = mpsc::channel(count);
    for number in 0..count {
        let watcher = watch_one(url.to_owned(), format!("node-{number}"), synced.clone());
        runtime.spawn(async move {
            if let Err(error) = watcher.await {
                eprintln!("watcher {number}: {error:#}");
                std::process::exit(1);
            }
        });
    }
    drop(synced);
    for round in 0.. {
        let mut last = 0.0_f64;
        for _ in 0..count {
            let Some(at) = syncs.blocking_recv() else { return Ok(()) };
            last = last.max(at);
        }
        let line = if round == 0 { start.elapsed().as_secs_f64() } else { last };
        if say(&line.to_string()).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

async fn watch_one(url: String, node: String, synced: mpsc::Sender<f64>) -> Result<()> {
    let request = WatchReq { node_name: node, sets: vec![Set::ServingEndpoints.into()] };
    let (requests, mut ops) = open(&url, &request).await?;
    while let Some(item) = ops.message().await? {
        if matches!(item.op, Some(op_item::Op::Sync(_))) {
            let at = usage::now_ns()?;
            if synced.send(at).await.is_err() || requests.send(request.clone()).await.is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Opens a watch; a thousand at once can be more than a listener's queue holds, so it tries again.
async fn open(
    url: &str,
    request: &WatchReq,
) -> Result<(mpsc::Sender<WatchReq>, Streaming<OpItem>)> {
    let mut tries_left = 50;
    loop {
        let (requests, outbound) = mpsc::channel(1);
        requests.send(request.clone()).await?;
        let opened = async {
            let mut client = SetsClient::connect(url.to_owned()).await?;
            anyhow::Ok(client.watch(ReceiverStream::new(outbound)).await?.into_inner())
        };
        match opened.await {
            Ok(ops) => return Ok((requests, ops)),
            Err(error) if tries_left == 0 => return Err(error),
            Err(_) => tries_left -= 1,
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
