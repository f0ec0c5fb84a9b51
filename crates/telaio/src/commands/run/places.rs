//! What an agent has for itself: parts of the state directory, ports, listening sockets. Where another
//! agent has the ingress, a newcomer makes itself ready beside it and takes over only then
//! ([`handover`](crate::ingress) says how). Until then nothing has changed for anybody.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::time::Duration;

use telaio_source::SourceSpec;
#[cfg(unix)]
use tokio::time::Instant;

use crate::cli::RunArgs;
use crate::exit::CommandError;
#[cfg(unix)]
use crate::ingress::{IngressPlane, Predecessor, Sockets, take_address};
#[cfg(unix)]
use crate::plane::Plane;
#[cfg(unix)]
use crate::shutdown::{Request, Requests};
#[cfg(unix)]
use crate::state_dir::Taken;
use crate::state_dir::{Part, StateDir};
#[cfg(unix)]
use crate::supply::Supply;

/// How long an agent that has the ingress may take to answer: it may be about to begin, or to end.
#[cfg(unix)]
const ANSWER_TIME_MAX: Duration = Duration::from_secs(15);
/// How long it may take to let go. Requests are served meanwhile.
#[cfg(unix)]
const LET_GO_TIME_MAX: Duration = Duration::from_mins(1);
/// How often it is looked whether something is free.
#[cfg(unix)]
const PAUSE: Duration = Duration::from_millis(20);

/// What we have for ourselves, and who has the rest.
pub(super) struct Places {
    state_dir: PathBuf,
    locks: Vec<StateDir>,
    /// What the agent before us still has.
    #[cfg(unix)]
    missing: Vec<Part>,
    /// It also has the list of given addresses, which our source needs.
    addresses_to_come: bool,
    ports_to_come: Vec<SocketAddr>,
    #[cfg(unix)]
    before: Option<Predecessor>,
}

impl Places {
    /// Takes what these planes need, or asks the agent that has it to hand it over.
    pub(super) fn take(args: &RunArgs, spec: &SourceSpec) -> Result<Self, CommandError> {
        let mut planes = args.planes.clone();
        planes.sort();
        planes.dedup();
        let parts: Vec<Part> = planes.into_iter().map(Part::Plane).collect();
        let mut places = Self::new(&args.state.state_dir);
        #[cfg(unix)]
        if !args.once && parts.contains(&Part::Plane(Plane::Ingress)) {
            places.take_beside(&parts)?;
            places.addresses_to_come = matches!(spec, SourceSpec::Dir(_))
                && places.before.as_ref().is_some_and(|it| it.owned().has(Part::Allocations));
            return Ok(places);
        }
        #[cfg(not(unix))]
        let _ = spec;
        for part in parts {
            places.lock(part)?;
        }
        Ok(places)
    }

    fn new(state_dir: &Path) -> Self {
        Self {
            state_dir: state_dir.to_owned(),
            locks: Vec::new(),
            #[cfg(unix)]
            missing: Vec::new(),
            addresses_to_come: false,
            ports_to_come: Vec::new(),
            #[cfg(unix)]
            before: None,
        }
    }

    fn lock(&mut self, part: Part) -> Result<(), CommandError> {
        self.locks.push(StateDir::lock(&self.state_dir, part)?);
        Ok(())
    }

    /// The state directory.
    pub(super) fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// Ports that we will have when the agent before us lets go.
    pub(super) fn ports_to_come(&self) -> &[SocketAddr] {
        &self.ports_to_come
    }

    /// Whether our source may only read the state directory as yet.
    pub(super) fn are_addresses_to_come(&self) -> bool {
        self.addresses_to_come
    }
}

#[cfg(unix)]
impl Places {
    /// Takes what is free. The rest has to be that of an agent which hands it over.
    fn take_beside(&mut self, parts: &[Part]) -> Result<(), CommandError> {
        let deadline = std::time::Instant::now() + ANSWER_TIME_MAX;
        loop {
            for part in parts {
                match StateDir::take(&self.state_dir, *part)? {
                    Taken::Ours(lock) => self.locks.push(lock),
                    Taken::By(_) => self.missing.push(*part),
                }
            }
            let ingress = Part::Plane(Plane::Ingress);
            let asked = if self.missing.contains(&ingress) {
                Predecessor::ask(&self.state_dir).map(Some)
            } else {
                Ok(None)
            };
            match asked {
                Ok(before) => return self.beside(before),
                Err(error) if std::time::Instant::now() >= deadline => {
                    tracing::debug!(%error, "the agent that runs does not hand its sockets over");
                    self.missing.retain(|part| *part != ingress);
                    return self.lock(ingress);
                }
                Err(_) => {}
            }
            self.locks.clear();
            self.missing.clear();
            std::thread::sleep(PAUSE);
        }
    }

    fn beside(&mut self, before: Option<Predecessor>) -> Result<(), CommandError> {
        for part in std::mem::take(&mut self.missing) {
            if before.as_ref().is_some_and(|it| it.owned().has(part)) {
                self.missing.push(part);
            } else {
                self.lock(part)?;
            }
        }
        if let Some(before) = &before {
            self.ports_to_come.clone_from(&before.owned().ports);
            tracing::info!("another agent serves; taking over from it when we are ready");
        }
        self.before = before;
        Ok(())
    }

    /// The sockets of the ingress plane, if it is asked for: those of the agent before us where it has
    /// these addresses, else new ones.
    pub(super) fn sockets(&mut self, args: &RunArgs) -> Result<Option<Sockets>, CommandError> {
        if args.once || !args.planes.contains(&Plane::Ingress) {
            return Ok(None);
        }
        let ingress = &args.ingress;
        let (http, https, threads) = (ingress.http_listen, ingress.https_listen, ingress.threads());
        if let Some(before) = &mut self.before {
            return Ok(Some(before.sockets(http, https, threads)?));
        }
        Ok(Some(Sockets {
            http: take_address("--http-listen", http, threads, &[])?,
            https: take_address("--https-listen", https, threads, &[])?,
        }))
    }

    /// Lets the ingress serve. Where another agent does so far, when it has its routes; then what is that
    /// agent's becomes ours. False if we are told to end before.
    pub(super) async fn go(
        &mut self,
        plane: &IngressPlane,
        supply: Option<&mut Supply>,
        requests: &mut Requests,
    ) -> Result<bool, CommandError> {
        let failed = |error: std::io::Error| {
            CommandError::failed(format!("the ingress cannot listen: {error}"))
        };
        let Some(before) = self.before.take() else {
            plane.go().map_err(failed)?;
            return Ok(true);
        };
        let serving = async {
            plane.ready().await;
            plane.go().map_err(failed)?;
            plane.serving().await;
            Ok::<(), CommandError>(())
        };
        tokio::select! {
            served = serving => {
                served?;
                if let Err(error) = before.take_over() {
                    // Then nobody is left who had to be told.
                    tracing::warn!(%error, "the agent before us is gone");
                }
            }
            gone = before.gone() => {
                if gone? {
                    // What becomes free is the other's.
                    return Err(CommandError::failed(
                        "another agent came after us, and takes over in our place",
                    ));
                }
                tracing::warn!("the agent before us has ended before we were ready");
                self.lock_missing(ANSWER_TIME_MAX).await?;
            }
            why = told_to_end(requests) => {
                tracing::info!(why, "ending; nothing was taken over");
                return Ok(false);
            }
            () = Supply::ended(supply) => return Err(CommandError::failed("the source ended")),
        }
        self.lock_missing(LET_GO_TIME_MAX).await?;
        plane.go().map_err(failed)?;
        tracing::info!("took over from the agent before us");
        Ok(true)
    }

    /// Waits until what the agent before us had is free, and takes it.
    async fn lock_missing(&mut self, within: Duration) -> Result<(), CommandError> {
        let deadline = Instant::now() + within;
        for part in std::mem::take(&mut self.missing) {
            loop {
                match StateDir::lock(&self.state_dir, part) {
                    Ok(lock) => break self.locks.push(lock),
                    Err(error) if Instant::now() >= deadline => return Err(error.into()),
                    Err(_) => tokio::time::sleep(PAUSE).await,
                }
            }
        }
        Ok(())
    }
}

/// Waits until somebody asks us to end. What we would reload has not begun.
#[cfg(unix)]
async fn told_to_end(requests: &mut Requests) -> &'static str {
    loop {
        if let Request::End(why) = requests.next().await {
            return why;
        }
    }
}
