//! Behind another plugin: published ports and limits for the interface that it has made.
//!
//! As the reference plugins `portmap` and `bandwidth` do: ADD gives the result of the plugins before unchanged. A published
//! port answers on the node's addresses, not on localhost: the way there is the other plugin's.

use cidr::IpInet;
use serde_json::Value;
use telaio_netlink::rtnl::Rtnetlink;

use super::config::Config;
use super::fault::{CHECK_FAILED, Fault};
use super::request::{Request, Target};
use crate::attach;
use crate::attachment::Attachment;
use crate::error::Error;
use crate::names;
use crate::rules::Rules;
use crate::state::{Host, State};

/// Does what a command says.
pub(super) fn run(
    host: &Host,
    command: &str,
    env: &dyn Fn(&str) -> Option<String>,
    config: Config,
) -> Result<Option<Value>, Fault> {
    match command {
        "ADD" => add(host, &Request::read(env, config)?).map(Some),
        "DEL" => delete(host, &config, &Target::read(env)?).map(|()| None),
        "CHECK" => check(host, &Request::read(env, config)?).map(|()| None),
        "STATUS" => {
            let ready = Rules::open().and_then(|_| host.state());
            ready.map(|_| None).map_err(|error| Fault::unavailable(error.to_string()))
        }
        _ => collect(host, &config).map(|()| None),
    }
}

/// The network in whose name records are: no other has it.
fn network(config: &Config) -> String {
    format!("{}+chained", config.name)
}

fn key(config: &Config, target: &Target) -> String {
    names::attachment_key(&network(config), &target.container, &target.interface)
}

fn previous(config: &Config) -> Result<&Value, Fault> {
    config.prev_result.as_ref().ok_or_else(|| {
        Fault::configuration(
            "ipam: a network needs a subnet to give addresses of; behind another plugin prevResult takes its place",
        )
    })
}

fn add(host: &Host, request: &Request) -> Result<Value, Fault> {
    let config = &request.config;
    let mut result = previous(config)?.clone();
    result["cniVersion"] = config.cni_version.clone().into();
    let state = host.state()?;
    let lock = state.lock_shared()?;
    if request.ports.is_empty() && request.bandwidth.is_none() {
        return Ok(result);
    }
    let mut record = record(request, &result)?;
    attach::attach_chained(&state, lock, &key(config, &request.target), &mut record)?;
    Ok(result)
}

fn record(request: &Request, previous: &Value) -> Result<Attachment, Fault> {
    let (config, target) = (&request.config, &request.target);
    let interfaces = previous["interfaces"].as_array().cloned().unwrap_or_default();
    let is_inside = |it: &Value| it["sandbox"].as_str().is_some_and(|at| !at.is_empty());
    let own = interfaces.iter().find(|it| is_inside(it) && it["name"] == target.interface.as_str());
    let mut addresses: Vec<IpInet> = Vec::new();
    for ip in previous["ips"].as_array().into_iter().flatten() {
        let at = ip["interface"].as_u64().and_then(|at| interfaces.get(usize::try_from(at).ok()?));
        if at.is_some_and(|at| Some(at) != own && own.is_some()) {
            continue;
        }
        let text = ip["address"].as_str().unwrap_or_default();
        let inet = text.parse().map_err(|_| {
            Fault::configuration(format!("prevResult.ips: {text:?} is no address with a length"))
        })?;
        addresses.push(inet);
    }
    if addresses.is_empty() && !request.ports.is_empty() {
        let why = format!(
            "prevResult.ips: interface {} has no address to lead ports to",
            target.interface
        );
        return Err(Fault::configuration(why));
    }
    let mac = own.and_then(|own| own["mac"].as_str()).filter(|mac| !mac.is_empty());
    Ok(Attachment {
        network: network(config),
        container: target.container.clone(),
        interface: target.interface.clone(),
        netns: request.netns.clone(),
        netns_name: None,
        // Also where it is not limited: as long as it is there, the interface is.
        host_link: match host_end(&interfaces)? {
            Some(name) => name,
            None if request.bandwidth.is_none() => String::new(),
            None => {
                return Err(Fault::configuration(
                    "prevResult.interfaces: there is no end of a pair on the node that could be limited",
                ));
            }
        },
        is_routed: false,
        is_chained: true,
        is_going: false,
        asked_mac: None,
        mac: mac.unwrap_or("unknown").to_owned(),
        addresses,
        ports: request.ports.clone(),
        bandwidth: request.bandwidth,
        pod: None,
    })
}

/// The node's end of the interface, if there is one: the last link among those of the node that is one of a pair.
fn host_end(interfaces: &[Value]) -> Result<Option<String>, Fault> {
    let doing = || Error::kernel("looking for the node's end of the interface");
    let mut kernel = Rtnetlink::open().map_err(doing())?;
    for interface in interfaces.iter().rev() {
        let is_inside = interface["sandbox"].as_str().is_some_and(|at| !at.is_empty());
        let Some(name) = interface["name"].as_str().filter(|_| !is_inside) else { continue };
        let link = kernel.link(name).map_err(doing())?;
        if link.is_some_and(|link| link.kind.as_deref() == Some("veth")) {
            return Ok(Some(name.to_owned()));
        }
    }
    Ok(None)
}

fn delete(host: &Host, config: &Config, target: &Target) -> Result<(), Fault> {
    // What a record would say that is lost: nothing but the ports that were claimed in its name.
    let unknown = Attachment {
        network: network(config),
        container: target.container.clone(),
        interface: target.interface.clone(),
        netns: String::new(),
        netns_name: None,
        host_link: String::new(),
        is_routed: false,
        is_chained: true,
        is_going: false,
        asked_mac: None,
        mac: String::new(),
        addresses: Vec::new(),
        ports: Vec::new(),
        bandwidth: None,
        pod: None,
    };
    Ok(attach::take_back(&host.state()?, &unknown)?)
}

fn check(host: &Host, request: &Request) -> Result<(), Fault> {
    previous(&request.config)?;
    if request.ports.is_empty() && request.bandwidth.is_none() {
        return Ok(());
    }
    let state = host.state()?;
    let _lock = state.lock_shared()?;
    let record = state.attachment(&key(&request.config, &request.target))?.flatten();
    let record = record.filter(Attachment::is_whole);
    let container = &request.target.container;
    let record = record.ok_or_else(|| {
        Fault::new(CHECK_FAILED, format!("published ports of container {container} are missing"))
    })?;
    super::check::compare_published(request, &record)
}

fn collect(host: &Host, config: &Config) -> Result<(), Fault> {
    let valid = config.valid_attachments()?;
    let state: State = host.state()?;
    let _lock = state.lock_exclusive()?;
    let own = network(config);
    let mut stale = state.attachments()?;
    stale.retain(|(_, record)| match record {
        Some(record) => {
            let is_valid = valid.iter().any(|(container, interface)| {
                (container, interface) == (&record.container, &record.interface)
            });
            record.network == own && (!record.is_whole() || !is_valid)
        }
        // Cut short before it said anything: nothing of it was made, and nobody is at it under this lock.
        None => true,
    });
    let mut errors = Vec::new();
    errors.extend(super::detach_idle(&state, stale).err());
    errors.extend(super::remove_orphans(&state, &own).err());
    Ok(Error::all(errors)?)
}
