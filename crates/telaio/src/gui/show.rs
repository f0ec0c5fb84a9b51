//! Rules and traces, on demand: from what is programmed, by the code that programs it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use telaio_brain::{LocalWatch, Wants};
use telaio_gui::Refusal;
use telaio_gui::values::Key;
use telaio_gui::values::service::Rules as RulesShown;
use telaio_gui::values::trace::{TraceAnswer, TraceQuestion, TraceStep};
use telaio_model::{ObjectKey, Op};
use telaio_reconcile::kpng::State;
use telaio_service_proxy::trace::{Surroundings, Trace, Verdict};

use super::{AdminAgent, Programming};
use crate::commands::{Rules, packet_of, surroundings};
use crate::exit::CommandError;
use crate::feeder;

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

    /// This node's view now.
    async fn view(&self, wants: Wants) -> Result<Vec<Op>, Refusal> {
        let Some(store) = &self.store else {
            let message = "this agent's view is made by a brain; use telaio trace on the node";
            return Err(Refusal::Unavailable(message.to_owned()));
        };
        if !store.is_synced() {
            return Err(Refusal::Unavailable("the first state is not complete".to_owned()));
        }
        let mut watch = LocalWatch::new(store, self.node_name(), wants);
        let ops = watch.next().await.map_err(|error| Refusal::Unavailable(error.to_string()))?;
        Ok(ops.collect())
    }

    /// The rules that would not be there without the service.
    pub(super) async fn show_rules(&self, key: &Key) -> Result<RulesShown, Refusal> {
        let programming = self.programming()?.clone();
        let wanted = ObjectKey::new(key.namespace.as_str(), key.name.as_str());
        let node = self.node_name();
        let ops = self.view(feeder::wants()).await?;
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
            let Programming { backend, settings, .. } = &programming;
            let around = surroundings(settings, &node, &with)?;
            let render = |state: &State| -> Result<String, CommandError> {
                let rules = Rules::compile(backend, settings, &node, state, &around.addresses)?;
                Ok(rules.render(&settings.config.families))
            };
            let text = added_lines(&render(&without)?, &render(&with)?);
            let notes = vec![
                "what all services share is left out".to_owned(),
                "compiled by the code that programs the kernel; counters of packets are not kept, \
                 as they would cost every packet"
                    .to_owned(),
            ];
            let (backend, origin) = ((*backend).to_owned(), "compiled".to_owned());
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
        let node = self.node_name();
        let ops = self.view(feeder::wants()).await?;
        let asked = packet.clone();
        let work = move || -> Result<Trace, CommandError> {
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
        let steps = via
            .iter()
            .enumerate()
            .map(|(i, text)| TraceStep { text: text.clone(), decides: i + 1 == via.len() });
        Ok(TraceAnswer {
            kind: "packet".to_owned(),
            verdict: verdict.to_owned(),
            summary: format!("{} → {}/{proto} {said}", packet.from, packet.to),
            steps: steps.collect(),
            endpoints: trace.endpoints.iter().map(ToString::to_string).collect(),
            masquerade: trace.masquerade,
            command: format!("telaio trace --from {from} --to {to}/{proto}"),
            ..TraceAnswer::default()
        })
    }

    #[cfg(target_os = "linux")]
    async fn trace_url(&self, url: &str) -> Result<TraceAnswer, Refusal> {
        let ops = self.view(crate::ingress::wants()).await?;
        let classless = matches!(self.spec, telaio_source::SourceSpec::Dir(_));
        let answer = crate::commands::trace_url_of(ops, classless, url).await;
        let mut answer = answer.map_err(unavailable)?;
        answer.command = format!("telaio trace --url {url}");
        Ok(answer)
    }

    #[cfg(not(target_os = "linux"))]
    async fn trace_url(&self, url: &str) -> Result<TraceAnswer, Refusal> {
        std::future::ready(()).await;
        Err(Refusal::Unavailable(format!("{url}: the ingress plane is Linux' only")))
    }
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
    fn only_new_lines_are_shown_with_the_heads_of_their_blocks() {
        let without = "table a {\n  chain b {\n    rule 1\n  }\n  map c {\n  }\n}\n";
        let with =
            "table a {\n  chain b {\n    rule 1\n  }\n  map c {\n    1 : 2\n    3 : 4\n  }\n}\n";
        assert_eq!(added_lines(without, with), "table a {\n  map c {\n    1 : 2\n    3 : 4\n");
        assert_eq!(added_lines(with, with), "");
    }
}
