//! The CNI plugin: an instance's network as container runtimes ask for it.
//!
//! [`main`] is the whole program: it reads the environment and standard input, does what `CNI_COMMAND` says and writes the
//! result, or an error in CNI's form, to standard output. The binary `telaio-cni` is nothing else, and `telaio` does the same
//! when `CNI_COMMAND` is set. No agent needs to run.
//!
//! A configuration of the reference plugin `bridge` with `host-local` addresses works when its `type` is changed. What
//! differs: with `isGateway` instances reach each other through the node, never frame by frame, so that policies hold;
//! ports are published by this plugin itself (`portMappings`), as are limits (`bandwidth`), so that `portmap` and
//! `bandwidth` need not follow it in the chain, but may. Without `ipam` it follows another plugin itself, and does the same
//! for the interface that one has made; with an empty `ipam` containers get no addresses, only frames.
//!
//! | command | versions |
//! |---|---|
//! | ADD, DEL, VERSION | 0.3.1, 0.4.0, 1.0.0, 1.1.0 |
//! | CHECK | from 0.4.0 on |
//! | STATUS, GC | 1.1.0 |

mod chained;
mod check;
mod config;
mod fault;
mod request;
mod result;

#[cfg(test)]
mod tests;

use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::attach::{self, Addresses, Place, Wanted};
use crate::attachment::Attachment;
use crate::error::Error;
use crate::repair::{self, Freed};
use crate::state::{Host, State};
use crate::{ipam, names, networks};

use config::Config;
pub use fault::Fault;
use request::{Request, Target};

/// The versions of the specification that we speak.
pub const VERSIONS: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The largest configuration that is read.
const STDIN_BYTES_MAX: u64 = 4 << 20;

/// Whether this process was started as a CNI plugin.
pub fn is_called() -> bool {
    std::env::var_os("CNI_COMMAND").is_some()
}

/// The program.
pub fn main() -> ExitCode {
    let mut bytes = Vec::new();
    let stdin = std::io::stdin();
    // Whoever asks for the version by hand types nothing.
    let is_by_hand =
        stdin.is_terminal() && std::env::var("CNI_COMMAND").is_ok_and(|it| it == "VERSION");
    let read =
        if is_by_hand { Ok(0) } else { stdin.lock().take(STDIN_BYTES_MAX).read_to_end(&mut bytes) };
    // What is no text is no JSON, and said to be none.
    let text = String::from_utf8_lossy(&bytes);
    let outcome = match read {
        Ok(_) if matches!(text, std::borrow::Cow::Owned(_)) => Err(Fault::new(
            fault::DECODING_FAILURE,
            "the configuration on standard input is not UTF-8",
        )),
        Ok(_) => run(&|name| std::env::var(name).ok(), &text),
        Err(error) => Err(Fault::io(format!("cannot read standard input: {error}"))),
    };
    let (output, code) = match outcome {
        Ok(None) => return ExitCode::SUCCESS,
        Ok(Some(value)) => (value, ExitCode::SUCCESS),
        Err(fault) => (fault.to_json(&asked_version(&text)), ExitCode::FAILURE),
    };
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{output}").and_then(|()| out.flush()) {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The version that a configuration asks for, whatever else is wrong with it.
fn asked_version(text: &str) -> String {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let version = value.get("cniVersion").and_then(Value::as_str);
    version.filter(|version| VERSIONS.contains(version)).unwrap_or("1.0.0").to_owned()
}

/// Does what the environment and a configuration say; what is to be printed, if anything.
pub fn run(env: &dyn Fn(&str) -> Option<String>, text: &str) -> Result<Option<Value>, Fault> {
    let command = env("CNI_COMMAND").unwrap_or_default();
    if command == "VERSION" {
        return version(text).map(Some);
    }
    let config = Config::parse(text)?;
    let needed = match command.as_str() {
        "ADD" | "DEL" => VERSIONS[0],
        "CHECK" => "0.4.0",
        "STATUS" | "GC" => "1.1.0",
        _ => {
            let why =
                format!("CNI_COMMAND is {command:?}; it is ADD, DEL, CHECK, STATUS, GC or VERSION");
            return Err(Fault::environment(why));
        }
    };
    config.check_version(needed, &command)?;
    if matches!(command.as_str(), "ADD" | "CHECK") {
        config.check_previous()?;
    }
    let host = config.state_dir.as_ref().map_or_else(Host::default, Host::new);
    if config.is_chained() {
        return chained::run(&host, &command, env, config);
    }
    match command.as_str() {
        "ADD" => add(&host, &Request::read(env, config)?).map(Some),
        "DEL" => delete(&host, &config, &Target::read(env)?).map(|()| None),
        "CHECK" => check::check(&host, &Request::read(env, config)?).map(|()| None),
        "STATUS" => status(&host, &config).map(|()| None),
        _ => collect(&host, &config).map(|()| None),
    }
}

fn version(text: &str) -> Result<Value, Fault> {
    // It is the one command that needs no configuration.
    let text = if text.trim().is_empty() { "{}" } else { text };
    let asked: Value = serde_json::from_str(text).map_err(|error| Fault::decode(&error))?;
    let asked = asked.get("cniVersion").and_then(Value::as_str).unwrap_or("1.1.0");
    Ok(json!({ "cniVersion": asked, "supportedVersions": VERSIONS }))
}

/// Puts a container on its network.
fn add(host: &Host, request: &Request) -> Result<Value, Fault> {
    let config = &request.config;
    let sets = config.ranges()?;
    let network = config.network(&sets)?;
    let wanted = Wanted {
        container: &request.target.container,
        interface: &request.target.interface,
        place: Place::Path(Path::new(&request.netns)),
        addresses: Addresses::OutOf(&sets, &request.ips),
        ports: &request.ports,
        mac: request.mac,
        bandwidth: request.bandwidth,
        pod: request.pod.clone(),
        is_default: config.is_default_gateway,
        routes: &config.routes()?,
    };
    let dns = config.dns()?;
    let state = host.state()?;
    let mut tries = 0;
    let attached = loop {
        let (network, lock) = networks::ensure(&state, &network)?;
        match attach::attach(&state, lock, &network, &wanted) {
            // Its bridge was removed, though it is on record.
            Err(Error::Unknown { kind: "bridge", .. }) if tries == 0 => {
                tries += 1;
                let _lock = state.lock_exclusive()?;
                networks::make(&state, &network)?;
            }
            outcome => break outcome?,
        }
    };
    attach::settle(&state, &attached)?;
    let own = result::of(config, &attached, &dns);
    Ok(config.prev_result.as_ref().map_or(own.clone(), |previous| result::after(previous, own)))
}

/// Takes a container off its network; what is gone is no fault.
fn delete(host: &Host, config: &Config, target: &Target) -> Result<(), Fault> {
    Ok(attach::take_back(&host.state()?, &unknown(config, target))?)
}

/// What a record would say that was never written, or is lost: our names follow from the container's. What it has is what was
/// claimed in its name.
fn unknown(config: &Config, target: &Target) -> Attachment {
    let (container, interface) = (&target.container, &target.interface);
    Attachment {
        network: config.name.clone(),
        container: container.clone(),
        interface: interface.clone(),
        netns: String::new(),
        netns_name: None,
        host_link: names::host_link(&config.name, container, interface, 0),
        is_routed: false,
        is_chained: false,
        is_going: false,
        asked_mac: None,
        mac: String::new(),
        addresses: Vec::new(),
        ports: Vec::new(),
        bandwidth: None,
        pod: None,
    }
}

/// Whether an ADD could succeed.
fn status(host: &Host, config: &Config) -> Result<(), Fault> {
    let sets = config.ranges()?;
    let ready = || -> Result<(), Error> {
        let state = host.state()?;
        let _lock = state.lock_shared()?;
        crate::rules::Rules::open()?;
        ipam::has_free(&state, &config.name, &sets)
    };
    ready().map_err(|error| Fault::unavailable(error.to_string()))
}

/// Removes everything of the network that is not among the valid attachments, and goes on after errors.
fn collect(host: &Host, config: &Config) -> Result<(), Fault> {
    let valid = config.valid_attachments()?;
    let state = host.state()?;
    let _lock = state.lock_exclusive()?;
    let is_valid = |record: &Attachment| {
        let pair = (record.container.as_str(), record.interface.as_str());
        valid.iter().any(|(container, interface)| pair == (container, interface))
    };
    let valid_keys: Vec<String> = valid
        .iter()
        .map(|(container, interface)| names::attachment_key(&config.name, container, interface))
        .collect();
    let mut stale = state.attachments()?;
    stale.retain(|(key, record)| match record {
        Some(record) if record.network != config.name => false,
        Some(record) => !record.is_whole() || !is_valid(record),
        // Cut short before it said anything; those that are valid have a record that does.
        None => !valid_keys.contains(key),
    });
    let mut errors = Vec::new();
    errors.extend(detach_idle(&state, stale).err());
    errors.extend(remove_orphans(&state, &config.name).err());
    Ok(Error::all(errors)?)
}

/// Takes attachments back, but for those that another call is just making or taking back.
fn detach_idle(state: &State, stale: Vec<(String, Option<Attachment>)>) -> Result<(), Error> {
    let (mut idle, mut held) = (Vec::new(), Vec::new());
    for (key, record) in stale {
        // Until the end: nobody begins another meanwhile.
        if let Some(busy) = state.lock_attachment(&key)? {
            held.push(busy);
            idle.push((key, record));
        }
    }
    attach::detach_many(state, idle)
}

/// Claims of addresses and ports whose holder is gone, links without a record, and the rules that told of them: whoever gets
/// such an address would get its traffic.
fn remove_orphans(state: &State, network: &str) -> Result<(), Error> {
    let mut freed = Freed::default();
    let mut errors = Vec::new();
    errors.extend(repair::free_lost_claims(state, std::iter::once(network), &mut freed).err());
    errors.extend(repair::remove_stray_links(state).err());
    if freed != Freed::default() {
        errors.extend(repair::restore_rules(state).err());
    }
    Error::all(errors)
}
