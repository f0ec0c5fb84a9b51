//! `telaio demo`: the whole thing on one machine, without a cluster.
//!
//! Until more has landed it shows the live views of the two nodes of `examples/`: the manifests are
//! written to a directory of the demo's own, a directory source and a brain follow it, and each node's
//! view is printed, then every change of it. With `--check` it compares what it shows with what it
//! must show, asks nobody, and exits. Nothing is left behind either way.

mod describe;
mod stage;

use std::io::{IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::FromArgMatches;
use telaio_brain::LocalWatch;
use telaio_model::ObjectKey;
use telaio_reconcile::kpng::State;
use telaio_source::SourceSpec;
use tokio::sync::mpsc;

use crate::backend;
use crate::cli::{AdminArgs, DemoArgs, ListenArgs, SourceArgs, TlsArgs};
use crate::exit::CommandError;
use crate::feeder;
use crate::gui::{self, AdminOptions};
use crate::http_get::get;
use crate::monitor::{Facts, Monitor};
use crate::plane::Plane;
use crate::progress;
use crate::servers::{STATUS_PATH, Servers};
use crate::shutdown::{Request, Requests};
use crate::supply::{Supply, SupplyOptions};
use describe::{Lines, describe, difference};
use stage::{CHANGES, Change, EXPECTED_AT_FIRST, NODES, Stage};

/// How long anything may take to show before the demo calls it missing.
const SHOW_TIME_MAX: Duration = Duration::from_secs(30);
/// How long people get to read before the next change.
const READING_TIME: Duration = Duration::from_secs(3);
/// How many changed views may wait to be printed.
const UPDATES_MAX: usize = 16;

/// Shows it.
pub(crate) fn demo(args: &DemoArgs, out: &mut impl Write) -> Result<(), CommandError> {
    backend::choose_to_demonstrate(&args.backend)?;
    let stage = Stage::set()?;
    let runtime = super::runtime()?;
    let outcome = runtime.block_on(async {
        let mut requests = Requests::listen(None)?;
        let mut demo = Demo::start(&stage).await?;
        let show = async {
            demo.open(out).await?;
            for change in CHANGES {
                demo.change(&stage, change, args.check, out).await?;
            }
            if args.check {
                return demo.ask_servers(out).await;
            }
            demo.invite(&stage, out)?;
            demo.follow(out).await
        };
        tokio::select! {
            shown = show => shown.map_err(CommandError::Failed),
            () = until_end(&mut requests) => Ok(()),
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    let root = stage.root().to_owned();
    drop(stage);
    if root.exists() {
        return Err(CommandError::failed(format!("{} is left behind", root.display())));
    }
    outcome?;
    if args.check {
        writeln!(out, "all is as it should be").map_err(anyhow::Error::from)?;
    }
    Ok(())
}

async fn until_end(requests: &mut Requests) {
    while !matches!(requests.next().await, Request::End(_)) {}
}

/// One node's view as it is now.
struct Update {
    node: usize,
    lines: Lines,
}

struct Demo {
    views: Vec<Lines>,
    updates: mpsc::Receiver<Update>,
    servers: Servers,
    /// Of the admin API.
    token: String,
    /// Kept, for what it supplies.
    supply: Supply,
}

impl Demo {
    async fn start(stage: &Stage) -> Result<Self, CommandError> {
        let spec = SourceSpec::Dir(stage.manifests());
        let options = SupplyOptions {
            source: source_defaults()?,
            planes: vec![Plane::Services],
            tls: TlsArgs { cert: None, key: None, ca: None },
            state_dir: Some(stage.state()),
            state_read_only: false,
        };
        let supply = Supply::start(&spec, &options).await?;
        let facts = Facts { command: "demo", source: spec.to_string(), ..Facts::default() };
        let monitor =
            Monitor::new(facts, Arc::clone(&supply.status), Some(Arc::clone(&supply.store)));
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listen = ListenArgs {
            admin_listen: any,
            metrics_bind_address: any,
            healthz_bind_address: any,
            admin: AdminArgs::default(),
        };
        let options = AdminOptions {
            monitor: Arc::clone(&monitor),
            store: Some(Arc::clone(&supply.store)),
            node: None,
            spec: spec.clone(),
            programming: None,
            overrides_namespace: String::new(),
            wants: feeder::wants(),
            asking: gui::UrlAsking::of(&spec),
        };
        let admin = gui::admin(&listen, &stage.state(), options).await?;
        let token = telaio_gui::token::read(&stage.state().join(gui::TOKEN_FILE));
        let token = token.map_err(anyhow::Error::from)?;
        let servers = Servers::start(&listen, &monitor, admin)?;
        let (sender, updates) = mpsc::channel(UPDATES_MAX);
        for (node, name) in NODES.iter().enumerate() {
            let mut watch = LocalWatch::new(&supply.store, *name, feeder::wants());
            let sender = sender.clone();
            tokio::spawn(async move {
                let mut state = State::default();
                while let Ok(ops) = watch.next().await {
                    for op in ops {
                        state.apply(op);
                    }
                    if sender.send(Update { node, lines: describe(&state) }).await.is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { views: vec![Lines::new(); NODES.len()], updates, servers, token, supply })
    }

    /// Prints both views as they are at first.
    async fn open(&mut self, out: &mut impl Write) -> Result<()> {
        let start = if std::io::stdout().is_terminal() { "\u{1b}[1m" } else { "" };
        let end = if start.is_empty() { "" } else { "\u{1b}[0m" };
        let complete = self.wait_for(|views| {
            let missing = EXPECTED_AT_FIRST.iter().find(|(node, service, part)| {
                let view = NODES.iter().position(|name| name == node).and_then(|at| views.get(at));
                !view.is_some_and(|view| shows(view, service, part))
            });
            missing.map(|(node, service, part)| format!("{node} does not see {service} {part}"))
        });
        progress::shown("waiting for both views", complete).await?;
        writeln!(out, "Two nodes, one directory of manifests. What each node needs of it:")?;
        for (name, view) in NODES.iter().zip(&self.views) {
            writeln!(out, "\n{start}{name}{end}")?;
            for (service, lines) in view {
                writeln!(out, "{service}")?;
                for line in lines {
                    writeln!(out, "    {line}")?;
                }
            }
        }
        out.flush()?;
        Ok(())
    }

    /// Makes a change and prints what it does to each view.
    async fn change(
        &mut self,
        stage: &Stage,
        change: &Change,
        check: bool,
        out: &mut impl Write,
    ) -> Result<()> {
        if !check {
            tokio::time::sleep(READING_TIME).await;
        }
        writeln!(out, "\nNow {}:", change.what)?;
        out.flush()?;
        let before = self.views.clone();
        stage.apply(change)?;
        let (service, part) = change.expected;
        self.wait_for(|views| {
            let missing = views.iter().position(|view| !shows(view, service, part));
            missing.map(|node| format!("{} does not see {service} at {part}", NODES[node]))
        })
        .await?;
        let differences: Vec<_> =
            before.iter().zip(&self.views).map(|(old, new)| difference(old, new)).collect();
        if differences.windows(2).all(|pair| pair[0] == pair[1]) {
            return print_lines("both nodes", &differences[0], out);
        }
        for (name, lines) in NODES.iter().zip(&differences) {
            print_lines(name, lines, out)?;
        }
        Ok(())
    }

    /// Takes updates until `missing` finds nothing missing.
    async fn wait_for(&mut self, missing: impl Fn(&[Lines]) -> Option<String>) -> Result<()> {
        let deadline = tokio::time::Instant::now() + SHOW_TIME_MAX;
        while let Some(what) = missing(&self.views) {
            match tokio::time::timeout_at(deadline, self.updates.recv()).await {
                Ok(Some(update)) => self.views[update.node] = update.lines,
                Ok(None) => bail!("the views have ended"),
                Err(_) => bail!("after {SHOW_TIME_MAX:?} {what}; problems: {}", self.problems()),
            }
        }
        Ok(())
    }

    fn problems(&self) -> String {
        let problems = self.supply.status.problems();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    /// Says what a person can do now.
    fn invite(&self, stage: &Stage, out: &mut impl Write) -> Result<()> {
        let addresses = self.servers.addresses;
        writeln!(out, "\nIt goes on until Ctrl-C. Change the files and watch, or ask:")?;
        writeln!(out, "    ls {}", stage.manifests().display())?;
        let token_file = stage.state().join(gui::TOKEN_FILE);
        writeln!(out, "    a browser at http://{}, with the token that is in", addresses.admin)?;
        writeln!(out, "    {}", token_file.display())?;
        writeln!(out, "    curl -s http://{}/healthz", addresses.healthz)?;
        writeln!(out, "    curl -s http://{}/metrics", addresses.metrics)?;
        writeln!(
            out,
            "    telaio status --admin-listen {} --token-file {}",
            addresses.admin,
            token_file.display()
        )?;
        out.flush()?;
        Ok(())
    }

    /// Prints every change from now on.
    async fn follow(&mut self, out: &mut impl Write) -> Result<()> {
        while let Some(update) = self.updates.recv().await {
            let before = std::mem::replace(&mut self.views[update.node], update.lines);
            let lines = difference(&before, &self.views[update.node]);
            print_lines(NODES[update.node], &lines, out)?;
        }
        bail!("the views have ended")
    }

    /// Asks its own servers what a person would.
    async fn ask_servers(&self, out: &mut impl Write) -> Result<()> {
        let addresses = self.servers.addresses;
        for (address, path, expected) in [
            (addresses.admin, STATUS_PATH, "\"command\": \"demo\""),
            (addresses.healthz, "/healthz", "\"synced\": true"),
            (addresses.healthz, "/livez", "\"source_connected\": true"),
            (addresses.metrics, "/metrics", "telaio_store_services 5"),
        ] {
            let body = get(address, path, &self.token).await.with_context(|| path.to_owned())?;
            if !body.contains(expected) {
                bail!("{path} does not say {expected}: {body}");
            }
            writeln!(out, "{path} answers")?;
        }
        Ok(())
    }
}

fn shows(view: &Lines, service: &str, part: &str) -> bool {
    let lines = view.get(&ObjectKey::parse(service));
    lines.is_some_and(|lines| lines.iter().any(|line| line.contains(part)))
}

fn print_lines(who: &str, lines: &[String], out: &mut impl Write) -> Result<()> {
    for line in lines {
        writeln!(out, "{who}: {line}")?;
    }
    out.flush()?;
    Ok(())
}

/// The source's settings as they are when nobody sets any.
fn source_defaults() -> Result<SourceArgs> {
    let command = <SourceArgs as clap::Args>::augment_args(clap::Command::new("demo"));
    let matches = command.no_binary_name(true).try_get_matches_from([] as [&str; 0])?;
    Ok(SourceArgs::from_arg_matches(&matches)?)
}
