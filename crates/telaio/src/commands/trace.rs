//! `telaio trace`: what a packet will meet on a node.
//!
//! The answer comes from a backend's rules, compiled from a source or read from the kernel with
//! `--kernel`, by following the packet through them.

use std::io::{BufRead, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;
use telaio_model::Protocol;
use telaio_reconcile::kpng::State;
use telaio_service_proxy::trace::{Packet, Surroundings, Trace, Verdict};
use telaio_source::SourceSpec;

use super::rules::Rules;
use crate::backend::{self, services};
use crate::cli::{Output, TraceArgs};
use crate::exit::CommandError;
use crate::logging::Logging;
use crate::node_view::{ViewRequest, node_facts};
use crate::proxy_settings::ProxySettings;

/// How long a line of a batch may be.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Answers one question, or a file of them.
pub(crate) fn trace(args: &TraceArgs, out: &mut impl Write) -> Result<(), CommandError> {
    Logging::start(&args.log)?;
    #[cfg(target_os = "linux")]
    if let Some(url) = &args.url {
        return super::trace_url::trace_url(args, url, out);
    }
    #[cfg(not(target_os = "linux"))]
    if args.url.is_some() {
        return Err(CommandError::failed("--url needs the ingress plane, which Linux has"));
    }
    let question = args.question()?;
    let backend = backend::choose_to_show(&args.backend)?;
    if !backend::programs(backend) {
        return Err(CommandError::bad_input(format!(
            "the backend {backend} has no rules to follow; use --backend nftables, iptables, ipvs or hcn"
        )));
    }
    let (tracer, problems) = Tracer::new(args, backend)?;
    match (&args.batch, question) {
        (Some(file), _) => tracer.answer_all(file, out)?,
        (None, Some(packet)) => tracer.answer(&packet, args.output, out)?,
        (None, None) => {
            return Err(CommandError::bad_input(
                "ask something: --from IP --to IP:PORT[/tcp|udp|sctp], --batch FILE, or --url URL",
            ));
        }
    }
    problems
}

/// The rules, and the machine around them.
struct Tracer {
    rules: Rules,
    around: Surroundings,
}

impl Tracer {
    /// Also says what could not be read.
    fn new(
        args: &TraceArgs,
        backend: &'static str,
    ) -> Result<(Self, Result<(), CommandError>), CommandError> {
        // The live rules need no source, except to know the node's own addresses.
        let spec = match (args.kernel, &args.source.source) {
            (true, None) => None,
            _ => Some(args.source.spec()?),
        };
        let node = args.node.name()?;
        let (state, problems) = match &spec {
            None => (State::default(), Ok(())),
            Some(spec) => {
                let request = ViewRequest {
                    node: &node,
                    spec,
                    source: &args.source,
                    tls: &args.tls,
                    state_dir: args.state_dir.clone(),
                    time_max: args.timeout,
                };
                let (state, source) = request.read()?;
                (state, super::report_problems(spec, &source))
            }
        };
        // Without a source there is nothing to take cluster networks from.
        let unknown = SourceSpec::Kube(None);
        let settings =
            args.proxy.settings(backend, &args.source, spec.as_ref().unwrap_or(&unknown))?;
        let around = surroundings(&settings, &node, &state)?;
        let rules = if args.kernel {
            Rules::read(backend, &args.proxy)?
        } else {
            Rules::compile(backend, &settings, &node, &state, &around.addresses)?
        };
        Ok((Self { rules, around }, problems))
    }

    fn answer(
        &self,
        packet: &Packet,
        output: Output,
        out: &mut impl Write,
    ) -> Result<(), CommandError> {
        let answer = self.rules.trace(packet, &self.around);
        match output {
            Output::Text => print_text(packet, &answer, out),
            Output::Json => print_json(&answer, out),
        }
        .context("cannot print")?;
        Ok(())
    }

    /// One answer a line, in the order of the questions.
    fn answer_all(&self, file: &Path, out: &mut impl Write) -> Result<(), CommandError> {
        let input: Box<dyn BufRead> = if file.as_os_str() == "-" {
            Box::new(std::io::stdin().lock())
        } else {
            let opened = std::fs::File::open(file);
            Box::new(std::io::BufReader::new(opened.map_err(|error| {
                CommandError::bad_input(format!("{}: {error}", file.display()))
            })?))
        };
        for (i, line) in input.lines().enumerate() {
            let bad = |what: String| {
                CommandError::bad_input(format!("{}: line {}: {what}", file.display(), i + 1))
            };
            let line = line.map_err(|error| bad(error.to_string()))?;
            if line.trim().is_empty() {
                continue;
            }
            if line.len() > LINE_BYTES_MAX {
                return Err(bad("is too long".into()));
            }
            let question: Question =
                serde_json::from_str(&line).map_err(|error| bad(error.to_string()))?;
            let packet = question.packet().map_err(bad)?;
            let answer = self.rules.trace(&packet, &self.around);
            print_json(&answer, out).context("cannot print")?;
        }
        Ok(())
    }
}

/// The node's own addresses: its Node object's or, without one, this machine's.
pub(crate) fn surroundings(
    settings: &ProxySettings,
    node: &str,
    state: &State,
) -> Result<Surroundings, CommandError> {
    let named = node_facts(state, node, &settings.node_addresses).addresses;
    if !named.is_empty() {
        return Ok(Surroundings { addresses: named.into_iter().collect() });
    }
    let own = services::machine_addresses().map_err(|error| {
        CommandError::failed(format!("cannot read this machine's addresses: {error}"))
    })?;
    Ok(Surroundings { addresses: own })
}

/// A question of a batch.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    from: IpAddr,
    to: SocketAddr,
    #[serde(default)]
    proto: Option<String>,
    #[serde(default)]
    iface: Option<String>,
}

impl Question {
    fn packet(self) -> Result<Packet, String> {
        let protocol = match self.proto.as_deref() {
            None => Protocol::Tcp,
            Some(text) => protocol(text)?,
        };
        packet(self.from, self.to, protocol, self.iface)
    }
}

impl TraceArgs {
    /// The question of the command line, if there is one.
    fn question(&self) -> Result<Option<Packet>, CommandError> {
        match (self.from, &self.to) {
            (Some(from), Some(to)) => {
                let (to, protocol) = destination(to).map_err(CommandError::bad_input)?;
                let packet = packet(from, to, protocol, self.iface.clone());
                packet.map(Some).map_err(CommandError::bad_input)
            }
            (None, None) => Ok(None),
            _ => Err(CommandError::bad_input("--from and --to go together")),
        }
    }
}

fn packet(
    from: IpAddr,
    to: SocketAddr,
    protocol: Protocol,
    interface: Option<String>,
) -> Result<Packet, String> {
    if from.is_ipv4() != to.is_ipv4() {
        return Err(format!("{from} and {} are of different families", to.ip()));
    }
    Ok(Packet { from, to, protocol, interface: interface.filter(|name| !name.is_empty()) })
}

/// A packet that somebody asks about in words.
pub(crate) fn packet_of(
    from: &str,
    to: &str,
    proto: &str,
    interface: Option<String>,
) -> Result<Packet, String> {
    let from = from.parse().map_err(|_| format!("from: {from:?} is not an IP address"))?;
    let to = to.parse().map_err(|_| format!("to: {to:?} is not IP:PORT; IPv6 as [IP]:PORT"))?;
    packet(from, to, protocol(proto)?, interface)
}

/// `IP:PORT`, or `IP:PORT/udp`.
fn destination(text: &str) -> Result<(SocketAddr, Protocol), String> {
    let (address, protocol) = match text.rsplit_once('/') {
        Some((address, name)) => (address, protocol(name)?),
        None => (text, Protocol::Tcp),
    };
    let address = address.parse().map_err(|_| {
        format!("--to: {text:?} is not IP:PORT or IP:PORT/tcp|udp|sctp; IPv6 as [IP]:PORT")
    })?;
    Ok((address, protocol))
}

fn protocol(text: &str) -> Result<Protocol, String> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" => Ok(Protocol::Tcp),
        "udp" => Ok(Protocol::Udp),
        "sctp" => Ok(Protocol::Sctp),
        _ => Err(format!("{text:?} is not tcp, udp or sctp")),
    }
}

fn print_json(answer: &Trace, out: &mut impl Write) -> anyhow::Result<()> {
    serde_json::to_writer(&mut *out, answer)?;
    writeln!(out)?;
    Ok(())
}

fn print_text(packet: &Packet, answer: &Trace, out: &mut impl Write) -> anyhow::Result<()> {
    for step in &answer.via {
        writeln!(out, "  {step}")?;
    }
    let said = match answer.verdict {
        Verdict::Dnat => "goes to one of",
        Verdict::Reject => "is refused",
        Verdict::Drop => "is dropped",
        Verdict::None => "is left alone",
    };
    writeln!(out, "{} → {}/{} {said}", packet.from, packet.to, packet.protocol)?;
    for endpoint in &answer.endpoints {
        writeln!(out, "  {endpoint}")?;
    }
    if answer.masquerade {
        writeln!(out, "with the node's address as its source")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_have_a_port_and_perhaps_a_protocol() {
        let read = |text: &str| destination(text).map(|(to, protocol)| format!("{to} {protocol}"));
        assert_eq!(read("10.0.0.1:80").unwrap(), "10.0.0.1:80 TCP");
        assert_eq!(read("[fd00::1]:53/udp").unwrap(), "[fd00::1]:53 UDP");
        for bad in ["10.0.0.1", "fd00::1:80", "10.0.0.1:80/icmp", "web:80"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
