//! Steered from outside the process, for tests that run a whole agent.
//!
//! If the environment variable `TELAIO_STANDIN` names a directory, or, for services, which inherit no environment,
//! the file `C:\telaio-standin.txt` does, three files count there:
//! - `objects.json`: what is in HNS, read at the start and written after each change, so that it outlives the
//!   process as HNS's objects outlive an agent;
//! - `command.json`: a command of [`control`](crate::control), taken away when it is done;
//! - `answer.json`: the report after it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use telaio_hcn::{Endpoint, FakeHcn, Hcn as _, HnsVersion, LoadBalancer, Network, Query};

use crate::control::{self, Command};
use crate::state::{self, Function, State};

const DIRECTORY: &str = "TELAIO_STANDIN";
const DIRECTORY_FILE: &str = r"C:\telaio-standin.txt";
/// How often commands are looked for.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// How often replacing a file is tried, and the pause between.
const ATTEMPTS_MAX: u32 = 500;
const PAUSE: Duration = Duration::from_millis(5);

/// All that is in HNS, as documents.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Objects {
    /// HNS's version.
    #[serde(default)]
    version: Option<HnsVersion>,
    /// False: HNS does not run.
    #[serde(default)]
    running: Option<bool>,
    #[serde(default)]
    networks: Vec<Value>,
    #[serde(default)]
    endpoints: Vec<Value>,
    #[serde(default)]
    load_balancers: Vec<Value>,
}

impl Objects {
    /// What is there.
    pub(crate) fn read(hcn: &FakeHcn) -> Self {
        let networks = hcn.networks(&Query::All).map(|all| all.objects).unwrap_or_default();
        let endpoints = hcn.endpoints(&Query::All).map(|all| all.objects).unwrap_or_default();
        let balancers = hcn.load_balancers(&Query::All).map(|all| all.objects).unwrap_or_default();
        Self {
            version: hcn.version().ok(),
            running: None,
            networks: networks.iter().map(Network::to_document).collect(),
            endpoints: endpoints.iter().map(Endpoint::to_document).collect(),
            load_balancers: balancers.iter().map(LoadBalancer::to_document).collect(),
        }
    }

    /// Makes all of it; what cannot be made is missed by the test.
    pub(crate) fn make(&self, hcn: &FakeHcn) {
        for network in self.networks.iter().flat_map(Network::from_document) {
            drop(hcn.create_network(&network));
        }
        for endpoint in self.endpoints.iter().flat_map(Endpoint::from_document) {
            drop(hcn.create_endpoint(&endpoint));
        }
        for balancer in self.load_balancers.iter().flat_map(LoadBalancer::from_document) {
            drop(hcn.create_load_balancer(&balancer));
        }
    }
}

fn directory() -> Option<PathBuf> {
    let named = std::env::var_os(DIRECTORY).map(PathBuf::from);
    named.or_else(|| fs::read_to_string(DIRECTORY_FILE).ok().map(PathBuf::from))
}

/// Before a call: the first one reads what is there, and begins to listen.
pub(crate) fn begin(function: Function) {
    static LOADED: Once = Once::new();
    static LISTENS: Once = Once::new();
    let Some(directory) = directory() else { return };
    LOADED.call_once(|| load(&directory));
    // The same library stands for vmcompute.dll, a second time in this process: that one only tells
    // versions, and must not take the commands.
    if function != Function::Version {
        LISTENS.call_once(|| drop(std::thread::spawn(move || listen(&directory))));
    }
}

fn load(directory: &Path) {
    let Ok(text) = fs::read(directory.join("objects.json")) else { return };
    let Ok(objects) = serde_json::from_slice::<Objects>(&text) else { return };
    let fake = state::with(|state| {
        if let Some(version) = objects.version {
            *state = State::new(version);
        }
        state.hcn.clone()
    });
    objects.make(&fake);
    fake.set_running(objects.running != Some(false));
    // What the test made is nobody's call.
    fake.reset_counts();
}

/// After a call that succeeded.
pub(crate) fn changed(function: Function) {
    if matches!(function, Function::Create | Function::Modify | Function::Delete) {
        save();
    }
}

fn save() {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let Some(directory) = directory() else { return };
    // An older picture must not come over a newer one.
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let objects = Objects::read(&state::with(|state| state.hcn.clone()));
    put(&directory, "objects.json", &serde_json::json!(objects));
}

/// Never half-written.
fn put(directory: &Path, name: &str, value: &Value) {
    let draft = directory.join(format!("{name}.{:?}", std::thread::current().id()));
    if fs::write(&draft, value.to_string()).is_err() {
        return;
    }
    for _ in 0..ATTEMPTS_MAX {
        // A file that somebody reads at this moment cannot be replaced.
        if fs::rename(&draft, directory.join(name)).is_ok() {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

fn listen(directory: &Path) {
    let file = directory.join("command.json");
    loop {
        std::thread::sleep(LOOK_PERIOD);
        let Ok(text) = fs::read(&file) else { continue };
        // One that is only half there is read again.
        let Ok(command) = serde_json::from_slice::<Command>(&text) else { continue };
        drop(fs::remove_file(&file));
        control::obey(command);
        save();
        put(directory, "answer.json", &control::report());
    }
}
