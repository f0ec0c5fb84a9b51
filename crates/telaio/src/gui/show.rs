//! Rules and traces, on demand: from what is programmed, by the code that programs it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::time::Duration;

use telaio_brain::{LocalWatch, Store, Wants};
use telaio_gui::Refusal;
use telaio_gui::values::Key;
use telaio_gui::values::service::Rules as RulesShown;
use telaio_gui::values::trace::{TraceAnswer, TraceQuestion, TraceStep};
use telaio_model::{ObjectKey, Op, Protocol};
use telaio_reconcile::kpng::State;
use telaio_service_proxy::trace::{Surroundings, Trace, Verdict};

use super::{AdminAgent, Programming};
use crate::commands::{Rules, packet_of, surroundings};
use crate::exit::CommandError;
use crate::feeder;

/// How long a brain may take for the view of an ingress.
#[cfg(target_os = "linux")]
const BRAIN_TIME_MAX: Duration = Duration::from_secs(5);
/// At how many addresses and ports of a service the kernel's rules are compared with ours.
const PLACES_MAX: usize = 64;

fn unavailable(error: CommandError) -> Refusal {
    match error {
        CommandError::BadInput(error) => Refusal::Bad(error.to_string()),
        CommandError::Failed(error) => Refusal::Unavailable(error.to_string()),
    }
}

impl AdminAgent {
    fn programming(&self) -> Result<&Programming, Refusal> {
        let none = || Refusal::Unavailable("no services are programmed here".to_owned());
        self.programming.as_ref().ok_or_else(none)
    }

    fn node_name(&self) -> String {
        self.context.as_ref().map(|it| it.name.to_string()).unwrap_or_default()
    }

    /// This node's view now, as its rules depend on it.
    async fn view(&self) -> Result<Vec<Op>, Refusal> {
        let Some(store) = &self.store else {
            let state = self.monitor.feeding().followed.state();
            let state = state.ok_or_else(|| {
                Refusal::Unavailable("the brain has sent no state yet; ask again soon".to_owned())
            })?;
            return Ok(ops_of(&state));
        };
        self.view_of(store, feeder::wants()).await
    }

    async fn view_of(&self, store: &Arc<Store>, wants: Wants) -> Result<Vec<Op>, Refusal> {
        if !store.is_synced() {
            return Err(Refusal::Unavailable("the first state is not complete".to_owned()));
        }
        let mut watch = LocalWatch::new(store, self.node_name(), wants);
        let ops = watch.next().await.map_err(|error| Refusal::Unavailable(error.to_string()))?;
        Ok(ops.collect())
    }

    /// This node's view now, as its ingress depends on it.
    #[cfg(target_os = "linux")]
    async fn ingress_view(&self) -> Result<Vec<Op>, Refusal> {
        if let Some(store) = &self.store {
            return self.view_of(store, feeder::ingress_wants()).await;
        }
        let Some(brain) = &self.asking.brain else {
            return Err(Refusal::Unavailable("nothing is known here".to_owned()));
        };
        let mut client = crate::ingress::brain_client(brain, &self.node_name().into());
        let answer = tokio::time::timeout(BRAIN_TIME_MAX, client.try_next()).await;
        let late = || Refusal::Unavailable(format!("{} gave no state in time", self.spec));
        answer.map_err(|_| late())?.map_err(|error| Refusal::Unavailable(error.to_string()))
    }

    /// The rules that would not be there without the service.
    pub(super) async fn show_rules(&self, key: &Key) -> Result<RulesShown, Refusal> {
        let programming = self.programming()?.clone();
        let wanted = ObjectKey::new(key.namespace.as_str(), key.name.as_str());
        let node = self.node_name();
        // A large table takes a while to read: one at a time, also when nobody waits for it any more.
        let turn = Arc::clone(&self.reading).lock_owned().await;
        let ops = self.view().await?;
        let (mut with, mut without) = (State::default(), State::default());
        let mut found = false;
        for op in ops {
            let its = match &op {
                Op::SetService(service) => Some(service.key == wanted),
                Op::SetEndpoint(endpoint) => Some(endpoint.key.service == wanted),
                _ => None,
            };
            match its {
                Some(true) => {
                    found = true;
                    with.apply(op);
                }
                Some(false) => {}
                None => {
                    with.apply(op.clone());
                    without.apply(op);
                }
            }
        }
        if !found {
            return Err(Refusal::NotFound(format!(
                "no rules stand for {key}: it is unknown, or has no address"
            )));
        }
        let key = key.clone();
        let work = move || -> Result<RulesShown, CommandError> {
            let _turn = turn;
            let Programming { backend, settings, args } = &programming;
            let around = surroundings(settings, &node, &with)?;
            let compile =
                |state: &State| Rules::compile(backend, settings, &node, state, &around.addresses);
            let families = &settings.config.families;
            let compiled = compile(&with)?;
            let bare = compile(&without)?.render(families);
            let own = added_lines(&bare, &compiled.render(families));
            let mut notes = vec!["what all services share is left out".to_owned()];
            let (origin, text) = match Rules::read(backend, args) {
                Ok(kernel) => {
                    let names = names_of(&with, &wanted, &own, &bare);
                    let text = lines_about(&kernel.render(families), &own, &names);
                    notes.extend(compare(&with, &wanted, &around, &compiled, &kernel));
                    ("kernel", text)
                }
                Err(error) => {
                    notes.push(format!(
                        "as we program them, for the kernel's were not to be had: {error}"
                    ));
                    ("compiled", own)
                }
            };
            let (backend, origin) = ((*backend).to_owned(), origin.to_owned());
            Ok(RulesShown { service: key, backend, origin, text, notes })
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|error| Refusal::Unavailable(error.to_string()))?.map_err(unavailable)
    }

    pub(super) async fn show_trace(
        &self,
        question: &TraceQuestion,
    ) -> Result<TraceAnswer, Refusal> {
        match (&question.url, &question.from, &question.to) {
            (Some(url), None, None) => self.trace_url(url).await,
            (None, Some(from), Some(to)) => self.trace_packet(question, from, to).await,
            _ => Err(Refusal::Bad("ask with from and to, or with url".to_owned())),
        }
    }

    async fn trace_packet(
        &self,
        question: &TraceQuestion,
        from: &str,
        to: &str,
    ) -> Result<TraceAnswer, Refusal> {
        let programming = self.programming()?.clone();
        let proto = question.proto.as_deref().unwrap_or("tcp");
        let packet = packet_of(from, to, proto, question.iface.clone()).map_err(Refusal::Bad)?;
        let kernel = question.kernel.unwrap_or(false);
        let to_text = format!("{to}/{proto}");
        let mut command = self.trace_command().with("--backend", programming.backend);
        command = command.with("--from", from).with("--to", &to_text);
        if let Some(iface) = &question.iface {
            command = command.with("--iface", iface);
        }
        let command = command.end() + if kernel { " --kernel" } else { "" };
        let node = self.node_name();
        // One at a time of each, also when nobody waits for it any more.
        let turns = if kernel { &self.reading } else { &self.tracing };
        let turn = Arc::clone(turns).lock_owned().await;
        let ops = self.view().await?;
        let asked = packet.clone();
        let work = move || -> Result<Trace, CommandError> {
            let _turn = turn;
            let Programming { backend, settings, args } = &programming;
            let mut state = State::default();
            for op in ops {
                state.apply(op);
            }
            let around: Surroundings = surroundings(settings, &node, &state)?;
            let machine: &BTreeSet<IpAddr> = &around.addresses;
            let rules = if kernel {
                Rules::read(backend, args)?
            } else {
                Rules::compile(backend, settings, &node, &state, machine)?
            };
            Ok(rules.trace(&asked, &around))
        };
        let done = tokio::task::spawn_blocking(work).await;
        let trace = done.map_err(|error| Refusal::Unavailable(error.to_string()))?;
        let trace = trace.map_err(unavailable)?;
        let (verdict, said) = match trace.verdict {
            Verdict::Dnat => ("dnat", "goes to one of these endpoints"),
            Verdict::Reject => ("reject", "is refused"),
            Verdict::Drop => ("drop", "is dropped"),
            Verdict::None => ("none", "is left alone: no service has this address and port"),
        };
        let via = &trace.via;
        let steps = via.iter().enumerate().map(|(i, text)| TraceStep {
            text: text.clone(),
            decides: i + 1 == via.len(),
            kind: "rule".to_owned(),
        });
        Ok(TraceAnswer {
            kind: "packet".to_owned(),
            verdict: verdict.to_owned(),
            summary: format!("{} → {}/{proto} {said}", packet.from, packet.to),
            steps: steps.collect(),
            endpoints: trace.endpoints.iter().map(ToString::to_string).collect(),
            masquerade: trace.masquerade,
            command,
            ..TraceAnswer::default()
        })
    }

    #[cfg(target_os = "linux")]
    async fn trace_url(&self, url: &str) -> Result<TraceAnswer, Refusal> {
        // One at a time, also when nobody waits for it any more.
        let turn = Arc::clone(&self.tracing).lock_owned().await;
        let ops = self.ingress_view().await?;
        let (settings, asked) = (self.asking.gateway.clone(), url.to_owned());
        // All routes are compiled: not on a thread that answers.
        let work = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            crate::commands::trace_url_of(ops, settings, &asked)
        });
        let answer = work.await.map_err(|error| Refusal::Unavailable(error.to_string()))?;
        let command = self.trace_command().with("--url", url).end();
        Ok(TraceAnswer { command, ..answer.map_err(unavailable)? })
    }

    #[cfg(not(target_os = "linux"))]
    async fn trace_url(&self, url: &str) -> Result<TraceAnswer, Refusal> {
        std::future::ready(()).await;
        Err(Refusal::Unavailable(format!("{url}: the ingress plane is Linux' only")))
    }
}

/// The steps that make a view.
fn ops_of(state: &State) -> Vec<Op> {
    let services = state.services().flat_map(|entry| {
        let endpoints = entry.endpoints.iter().cloned().map(Op::SetEndpoint);
        std::iter::once(Op::SetService(Arc::clone(&entry.service))).chain(endpoints)
    });
    services.chain(state.objects().cloned().map(Op::SetObject)).collect()
}

/// The addresses where a service answers, with its ports.
fn places(state: &State, service: &ObjectKey) -> Vec<(IpAddr, u16, &'static str)> {
    let Some(entry) = state.get(service) else { return Vec::new() };
    let its = &entry.service;
    let ips = its.cluster_ips.iter().chain(&its.external_ips).chain(&its.load_balancer_ips);
    let ports = |ip: &IpAddr| {
        let ip = *ip;
        its.ports.iter().map(move |port| {
            let proto = match port.protocol {
                Protocol::Tcp => "tcp",
                Protocol::Udp => "udp",
                Protocol::Sctp => "sctp",
            };
            (ip, port.port, proto)
        })
    };
    ips.flat_map(ports).take(PLACES_MAX).collect()
}

/// Words by which the kernel's lines about a service are known: its addresses, and chains that only it has.
fn names_of(state: &State, service: &ObjectKey, own: &str, bare: &str) -> BTreeSet<String> {
    let mut names: BTreeSet<String> =
        places(state, service).iter().map(|(ip, ..)| ip.to_string()).collect();
    let shared: BTreeSet<&str> = bare.split_whitespace().map(bare_word).collect();
    let chains = own.split_whitespace().map(bare_word);
    let chains = chains.filter(|word| word.starts_with("TELAIO-") && !shared.contains(word));
    names.extend(chains.map(str::to_owned));
    names
}

fn bare_word(word: &str) -> &str {
    word.trim_matches([',', ':', '"'])
}

/// Whether a line names one of these: by itself, as a network of one address, or with a port.
fn names_one(line: &str, names: &BTreeSet<String>) -> bool {
    line.split_whitespace().map(bare_word).any(|word| {
        let address = word.split('/').next().unwrap_or(word);
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        [word, address, host.trim_matches(['[', ']'])].iter().any(|it| names.contains(*it))
    })
}

/// The lines of the kernel's text that are among `own` or name one of `names`, with the heads of their blocks.
fn lines_about(kernel: &str, own: &str, names: &BTreeSet<String>) -> String {
    let own: BTreeSet<&str> = own.lines().filter(|line| !line.ends_with('{')).collect();
    let foreign = kernel.lines().filter(|line| !own.contains(line) && !names_one(line, names));
    added_lines(&foreign.collect::<Vec<_>>().join("\n"), kernel)
}

/// Whether the kernel sends packets where our rules do, for each place where the service answers.
fn compare(
    state: &State,
    service: &ObjectKey,
    around: &Surroundings,
    compiled: &Rules,
    kernel: &Rules,
) -> Vec<String> {
    let mut differ = Vec::new();
    let places = places(state, service);
    for (ip, port, proto) in &places {
        let from = if ip.is_ipv4() { "198.51.100.1" } else { "2001:db8::1" };
        let to = std::net::SocketAddr::new(*ip, *port);
        let Ok(packet) = packet_of(from, &to.to_string(), proto, None) else { continue };
        let (ours, theirs) = (compiled.trace(&packet, around), kernel.trace(&packet, around));
        differ.extend(difference(&format!("{to}/{proto}"), &ours, &theirs));
    }
    if differ.is_empty() {
        differ.push(format!(
            "read from the kernel just now: at all {} addresses and ports packets go where our rules say",
            places.len()
        ));
    } else {
        differ
            .insert(0, "the kernel differs from what we program; re-sync puts it right".to_owned());
    }
    differ
}

/// How two traces of one packet differ.
fn difference(place: &str, ours: &Trace, kernels: &Trace) -> Option<String> {
    let same = ours.verdict == kernels.verdict
        && ours.endpoints == kernels.endpoints
        && ours.masquerade == kernels.masquerade;
    let text = |trace: &Trace| {
        let ends: Vec<String> = trace.endpoints.iter().map(ToString::to_string).collect();
        format!("{:?} {}", trace.verdict, ends.join(", ")).trim_end().to_lowercase()
    };
    (!same).then(|| format!("{place}: the kernel says {}, we say {}", text(kernels), text(ours)))
}

/// The lines of `with` that `without` does not have, with the heads of the blocks that they are in.
fn added_lines(without: &str, with: &str) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for line in without.lines() {
        *counts.entry(line).or_default() += 1;
    }
    // A block's head belongs to its first new line.
    let mut heads: Vec<(usize, &str, bool)> = Vec::new();
    let mut out = String::new();
    for line in with.lines() {
        let depth = line.len() - line.trim_start().len();
        let is_new = match counts.get_mut(line) {
            Some(count) if *count > 0 => {
                *count -= 1;
                false
            }
            _ => true,
        };
        heads.retain(|(at, ..)| *at < depth);
        if is_new && !line.trim().is_empty() && !matches!(line.trim(), "}" | "{") {
            for (_, head, shown) in &mut heads {
                if !std::mem::replace(shown, true) {
                    out.push_str(head);
                    out.push('\n');
                }
            }
            out.push_str(line);
            out.push('\n');
        }
        if line.trim_end().ends_with('{') {
            heads.push((depth, line, is_new));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_kernels_lines_those_that_name_the_service_are_shown() {
        let kernel = "table a {\n  map c {\n    10.0.0.1 . tcp . 80 : 7,\n    10.0.0.10 . tcp . 80 : 7,\n  }\n}\n\
                      -A TELAIO-SVC-X -j TELAIO-SEP-Y\n-A OTHER -d 10.0.0.1/32 -j ACCEPT\n-A OTHER -j DROP\n";
        let names = ["10.0.0.1", "TELAIO-SVC-X"].map(str::to_owned).into();
        let shown = lines_about(kernel, "", &names);
        assert_eq!(
            shown,
            "table a {\n  map c {\n    10.0.0.1 . tcp . 80 : 7,\n\
             -A TELAIO-SVC-X -j TELAIO-SEP-Y\n-A OTHER -d 10.0.0.1/32 -j ACCEPT\n"
        );
    }

    #[test]
    fn a_kernel_that_leads_elsewhere_is_told_of() {
        let to = |endpoint: &str| Trace {
            verdict: Verdict::Dnat,
            endpoints: [endpoint.parse().unwrap()].into(),
            masquerade: false,
            via: Vec::new(),
        };
        assert_eq!(difference("p", &to("10.0.0.1:80"), &to("10.0.0.1:80")), None);
        let told = difference("p", &to("10.0.0.1:80"), &to("10.0.0.2:80")).unwrap();
        assert_eq!(told, "p: the kernel says dnat 10.0.0.2:80, we say dnat 10.0.0.1:80");
    }

    #[test]
    fn only_new_lines_are_shown_with_the_heads_of_their_blocks() {
        let without = "table a {\n  chain b {\n    rule 1\n  }\n  map c {\n  }\n}\n";
        let with =
            "table a {\n  chain b {\n    rule 1\n  }\n  map c {\n    1 : 2\n    3 : 4\n  }\n}\n";
        assert_eq!(added_lines(without, with), "table a {\n  map c {\n    1 : 2\n    3 : 4\n");
        assert_eq!(added_lines(with, with), "");
    }
}
