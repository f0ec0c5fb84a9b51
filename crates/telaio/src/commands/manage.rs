//! `telaio drain`, `undrain`, `weight`, `purge`, `overrides`: what the page does, from the command line.

use std::io::Write;

use anyhow::Context;
use serde::de::DeserializeOwned;
use telaio_gui::values::action::{
    Action, ActionRequest, ActionResult, AuditEntry, OverrideItem, Purge, Target, UndoRequest,
};
use telaio_gui::values::{Key, Page};

use crate::cli::{
    AdminClientArgs, DecisionArgs, EndpointActionArgs, Output, OverridesArgs, OverridesCommand,
    PurgeArgs, TargetArgs, WeightArgs,
};
use crate::exit::CommandError;
use crate::http_get::AdminClient;

/// Where actions go.
const ACTIONS: &str = "/api/v1/actions";

/// `telaio drain`.
pub(crate) fn drain(args: &EndpointActionArgs, out: &mut impl Write) -> Result<(), CommandError> {
    let (service, target) = (key(&args.service), target(&args.target));
    act(Action::Drain { service, target }, &args.decision, out)
}

/// `telaio undrain`.
pub(crate) fn undrain(args: &EndpointActionArgs, out: &mut impl Write) -> Result<(), CommandError> {
    let (service, target) = (key(&args.service), target(&args.target));
    act(Action::Undrain { service, target }, &args.decision, out)
}

/// `telaio weight`.
pub(crate) fn weight(args: &WeightArgs, out: &mut impl Write) -> Result<(), CommandError> {
    let (service, target) = (key(&args.service), target(&args.target));
    act(Action::Weight { service, target, weight: args.weight }, &args.decision, out)
}

/// `telaio purge`.
pub(crate) fn purge(args: &PurgeArgs, out: &mut impl Write) -> Result<(), CommandError> {
    let what = &args.what;
    let what = match (&what.url, &what.prefix, &what.host) {
        (Some(url), ..) => Purge::Key(url.clone()),
        (_, Some(prefix), _) => Purge::Prefix(prefix.clone()),
        (.., host) => Purge::Host(host.clone().unwrap_or_default()),
    };
    let decision = DecisionArgs {
        dry_run: args.dry_run,
        reason: args.reason.clone(),
        lasts: None,
        output: args.output,
        client: args.client.clone(),
    };
    act(Action::PurgeCache { what }, &decision, out)
}

/// `telaio overrides`.
pub(crate) fn overrides(args: &OverridesArgs, out: &mut impl Write) -> Result<(), CommandError> {
    match &args.command {
        OverridesCommand::List { output, client } => list(*output, client, out),
        OverridesCommand::Audit { output, client } => audit(*output, client, out),
        OverridesCommand::Add { service, address, port, on_node, weight, decision } => {
            let action = Action::AddBackend {
                service: key(service),
                address: address.clone(),
                port: *port,
                node: on_node.clone(),
                weight: *weight,
            };
            act(action, decision, out)
        }
        OverridesCommand::Remove { service, target: which, decision } => {
            let (service, target) = (key(service), target(which));
            act(Action::RemoveBackend { service, target }, decision, out)
        }
        OverridesCommand::Pause { ingress, host, path, decision } => {
            let (ingress, host, path) = (key(ingress), host.clone(), path.clone());
            act(Action::PauseRoute { ingress, host, path, retry_after_s: None }, decision, out)
        }
        OverridesCommand::Resume { ingress, host, path, decision } => {
            let (ingress, host, path) = (key(ingress), host.clone(), path.clone());
            act(Action::ResumeRoute { ingress, host, path }, decision, out)
        }
        OverridesCommand::Delete { name, decision } => {
            act(Action::RemoveOverride { name: key(name) }, decision, out)
        }
        OverridesCommand::Undo { id, decision } => {
            let request = UndoRequest {
                dry_run: decision.dry_run,
                reason: decision.reason.clone(),
                by: who(),
            };
            ask(&format!("{ACTIONS}/{id}/undo"), &request, decision, out)
        }
        OverridesCommand::Resync { decision } => act(Action::Resync, decision, out),
    }
}

/// `NAMESPACE/NAME`, or a name in the namespace default.
fn key(text: &str) -> Key {
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    Key::new(namespace, name)
}

fn target(args: &TargetArgs) -> Target {
    match (&args.address, &args.pod, &args.on_node) {
        (Some(address), ..) => Target::Address(address.clone()),
        (_, Some(pod), _) => Target::Pod(pod.clone()),
        (.., node) => Target::Node(node.clone().unwrap_or_default()),
    }
}

/// Who asks, for the audit log: whoever became root, or the user.
fn who() -> Option<String> {
    ["SUDO_USER", "USER", "USERNAME"].iter().find_map(|name| std::env::var(name).ok())
}

fn act(action: Action, decision: &DecisionArgs, out: &mut impl Write) -> Result<(), CommandError> {
    let request = ActionRequest {
        action,
        dry_run: decision.dry_run,
        reason: decision.reason.clone(),
        for_s: decision.lasts.map(|time| time.as_secs()),
        until_ms: None,
        by: who(),
    };
    ask(ACTIONS, &request, decision, out)
}

fn ask(
    path: &str,
    request: &impl serde::Serialize,
    decision: &DecisionArgs,
    out: &mut impl Write,
) -> Result<(), CommandError> {
    let client = AdminClient::new(&decision.client)?;
    let body = serde_json::to_string(request).map_err(anyhow::Error::from)?;
    let answer = client.run(&http::Method::POST, path, body)?;
    let text = match decision.output {
        Output::Json => answer,
        Output::Text => text_of(&read::<ActionResult>(&answer)?, &decision.client),
    };
    out.write_all(text.as_bytes()).map_err(|error| CommandError::Failed(error.into()))
}

fn read<T: DeserializeOwned>(answer: &str) -> Result<T, CommandError> {
    Ok(serde_json::from_str(answer).context("the answer is not what was expected")?)
}

fn text_of(result: &ActionResult, client: &AdminClientArgs) -> String {
    let mut lines = Vec::new();
    let did = if result.dry_run { "would" } else { "done:" };
    lines.push(format!("{did} {}", result.summary));
    for touch in &result.touches {
        lines.push(format!("  {}: {} → {}", touch.object, touch.before, touch.after));
    }
    if result.touches_total > result.touches.len() {
        lines.push(format!("  … {} in all", result.touches_total));
    }
    lines.extend(result.warnings.iter().map(|warning| format!("  note: {warning}")));
    if let Some(purged) = result.purged {
        lines.push(format!("  {purged} URLs were forgotten"));
    }
    if let Some(until) = result.until_ms.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok()) {
        lines.push(format!("  until {}", until.strftime("%Y-%m-%d %H:%M:%S UTC")));
    }
    if let (Some(id), true) = (result.id, result.undoable) {
        let address = match client.admin_listen {
            crate::cli::ADMIN_ADDRESS => String::new(),
            address => format!(" --admin-listen {address}"),
        };
        lines.push(format!("  to undo it: telaio overrides undo {id}{address}"));
    }
    lines.join("\n") + "\n"
}

fn list(output: Output, args: &AdminClientArgs, out: &mut impl Write) -> Result<(), CommandError> {
    let client = AdminClient::new(args)?;
    let answer = client.run(&http::Method::GET, "/api/v1/overrides?limit=1000", String::new())?;
    let text = match output {
        Output::Json => answer,
        Output::Text => {
            let page: Page<OverrideItem> = read(&answer)?;
            let line = |it: &OverrideItem| {
                let until = it.until_ms.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
                let until =
                    until.map(|at| format!(", until {}", at.strftime("%Y-%m-%d %H:%M UTC")));
                let reason =
                    if it.reason.is_empty() { String::new() } else { format!(": {}", it.reason) };
                format!(
                    "{}/{}  {} (by {}{}{reason})\n",
                    it.namespace,
                    it.name,
                    it.summary,
                    if it.by.is_empty() { "nobody who said so" } else { &it.by },
                    until.unwrap_or_default()
                )
            };
            match page.items.as_slice() {
                [] => "nothing is overridden\n".to_owned(),
                items => items.iter().map(line).collect(),
            }
        }
    };
    out.write_all(text.as_bytes()).map_err(|error| CommandError::Failed(error.into()))
}

fn audit(output: Output, args: &AdminClientArgs, out: &mut impl Write) -> Result<(), CommandError> {
    let client = AdminClient::new(args)?;
    let answer = client.run(&http::Method::GET, "/api/v1/audit", String::new())?;
    let text = match output {
        Output::Json => answer,
        Output::Text => {
            let page: Page<AuditEntry> = read(&answer)?;
            let line = |it: &AuditEntry| {
                let at = jiff::Timestamp::from_millisecond(it.at_ms).unwrap_or_default();
                let error = it.error.as_ref().map(|error| format!(": {error}"));
                format!(
                    "{:>5}  {}  {}  {} ({}){}\n",
                    it.id,
                    at.strftime("%Y-%m-%d %H:%M:%S"),
                    it.who,
                    it.summary,
                    format!("{:?}", it.outcome).to_lowercase(),
                    error.unwrap_or_default()
                )
            };
            page.items.iter().map(line).collect()
        }
    };
    out.write_all(text.as_bytes()).map_err(|error| CommandError::Failed(error.into()))
}
