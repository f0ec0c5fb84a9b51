//! What people ask for: planned, shown, done, remembered, undone.
//!
//! Actions that last become [`Override`]s. An override's name follows from what it is about, so
//! deciding anew about the same endpoints replaces what was decided; what was there before is in the
//! audit log, which is how an action is undone. One decision at a time: the next sees what the last did.
//! Whatever decides nothing, to show what an action would touch above all, waits for nobody.

mod plan;

use std::sync::Arc;
use std::time::{Duration, Instant};

use telaio_model::{ObjectKey, Override, OverrideAction, OverrideTarget};
use tokio::sync::{Mutex, MutexGuard};

use crate::agent::{Agent, Network, Refusal, now_ms};
use crate::audit::{AuditLog, Kept, Step};
use crate::entry_id::{AgentName, tag_of};
use crate::guard::Caller;
use crate::hub::Hub;
use crate::values::action::{
    Action, ActionRequest, ActionResult, AuditEntry, Outcome, OverrideItem, Target, UndoRequest,
};
use crate::values::{Key, Role};
use plan::{Effect, Plan};

/// How long a name or a reason may be.
const TEXT_LENGTH_MAX: usize = 500;
/// How long an override may last that ends by itself.
const LASTS_S_MAX: i64 = 366 * 86_400;
/// How long to wait until what was written has been read.
const READ_BACK_TIME_MAX: Duration = Duration::from_secs(5);
const READ_BACK_PAUSE: Duration = Duration::from_millis(20);
/// What has ended is tidied away; where that does not work, it is tried again after this, then after
/// twice as long, and so on until the longest.
const ENDING_PAUSES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_mins(5));
/// How long it may take.
const ENDING_TIME_MAX: Duration = Duration::from_secs(30);
/// Attempts of those who may only look are noted so often within a minute.
const FORBIDDEN_MAX: u32 = 10;
/// Of what is touched so much is told.
const TOUCHES_MAX: usize = 200;

/// Does what people ask for.
pub(crate) struct Manager {
    hub: Arc<Hub>,
    audit: AuditLog,
    /// Decisions, one at a time.
    turn: Mutex<()>,
    /// How long what has ended stays written: clocks differ, and the slowest is to see its end first.
    grace: Duration,
    ending: parking_lot::Mutex<Pause>,
    /// Since when how many were noted who may only look.
    forbidden: parking_lot::Mutex<Option<(Instant, u32)>>,
}

/// When something that failed is tried again.
#[derive(Debug, Default)]
struct Pause {
    length: Duration,
    until: Option<Instant>,
}

impl Pause {
    fn holds(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }

    fn lengthen(&mut self) {
        self.length = (self.length * 2).clamp(ENDING_PAUSES.0, ENDING_PAUSES.1);
        self.until = Some(Instant::now() + self.length);
    }
}

/// Who asked, why, and until when.
struct Circumstances {
    who: String,
    role: Role,
    from: String,
    reason: String,
    until_ms: Option<i64>,
}

impl Circumstances {
    fn new(
        caller: &Caller,
        by: Option<&str>,
        reason: &str,
        until_ms: Option<i64>,
    ) -> Result<Self, Refusal> {
        for (name, text) in [("by", by.unwrap_or_default()), ("reason", reason)] {
            if text.len() > TEXT_LENGTH_MAX || text.chars().any(char::is_control) {
                return Err(Refusal::Bad(format!(
                    "{name}: write one line of at most {TEXT_LENGTH_MAX} bytes"
                )));
            }
        }
        let who = match by.map(str::trim).filter(|by| !by.is_empty()) {
            Some(by) => format!("{by} ({})", caller.name),
            None => caller.name.clone(),
        };
        let (role, from) = (caller.role, caller.from.to_string());
        Ok(Self { who, role, from, reason: reason.trim().to_owned(), until_ms })
    }
}

impl Manager {
    pub(crate) fn new(hub: Arc<Hub>, audit: AuditLog, grace: Duration) -> Self {
        let (ending, forbidden) = (parking_lot::Mutex::default(), parking_lot::Mutex::default());
        Self { hub, audit, turn: Mutex::new(()), grace, ending, forbidden }
    }

    pub(crate) fn audit(&self) -> &AuditLog {
        &self.audit
    }

    fn agent(&self) -> &dyn Agent {
        &*self.hub.agent
    }

    /// The overrides that are wanted, as they are shown.
    pub(crate) async fn items(&self, wanted: impl Fn(&Override) -> bool) -> Vec<OverrideItem> {
        let overrides = self.agent().overrides();
        let network = self.hub.network().await;
        let of = |decided: &Arc<Override>| {
            let touches = plan::touched(self.agent(), &network, decided);
            item(decided, touches)
        };
        let now_s = now_ms() / 1000;
        overrides.iter().filter(|it| it.is_active(now_s) && wanted(it)).map(of).collect()
    }

    /// Does something, or says what it would touch.
    pub(crate) async fn act(
        &self,
        caller: &Caller,
        request: ActionRequest,
    ) -> Result<ActionResult, Refusal> {
        let until_ms = until(&request)?;
        let about = Circumstances::new(caller, request.by.as_deref(), &request.reason, until_ms)?;
        let decides = plan::decides(&request.action) && !request.dry_run;
        let _turn = self.turn(decides).await;
        let network = self.hub.network().await;
        // First, for who cannot decide here may not know here what it is about either.
        let read_only = self.agent().read_only_because();
        let planned = match read_only.filter(|_| plan::decides(&request.action)) {
            Some(why) => Err(Refusal::Unavailable(why)),
            None => plan::plan(self.agent(), &network, &request.action, &about),
        };
        let planned = match planned {
            Ok(plan) if request.dry_run => self.counted(plan).await,
            planned => planned,
        };
        let plan = match planned {
            Ok(plan) if request.dry_run => return Ok(result(&plan, true, None, &about, None)),
            Ok(plan) => plan,
            Err(refusal) => {
                if !request.dry_run {
                    let summary = plan::sentence(&request.action);
                    let outcome = (Outcome::Refused, Some(refusal.to_string()));
                    self.note(&about, Some(request.action), summary, outcome, None, Vec::new());
                }
                return Err(refusal);
            }
        };
        self.carry_out(&about, Some(request.action), plan, None).await
    }

    /// Who decides waits for whoever does so now.
    async fn turn(&self, decides: bool) -> Option<MutexGuard<'_, ()>> {
        if decides { Some(self.turn.lock().await) } else { None }
    }

    /// A purge says how much it would take.
    async fn counted(&self, mut plan: Plan) -> Result<Plan, Refusal> {
        if let Effect::Purge(what) = &plan.effect {
            let count = self.agent().purge(what, true).await?;
            let urls = if count == 1 { "URL is" } else { "URLs are" };
            for touch in &mut plan.touches {
                touch.before = format!("{count} {urls} kept");
            }
        }
        Ok(plan)
    }

    /// Undoes an action, or says what that would touch.
    pub(crate) async fn undo(
        &self,
        caller: &Caller,
        id: &str,
        request: &UndoRequest,
    ) -> Result<ActionResult, Refusal> {
        let about = Circumstances::new(caller, request.by.as_deref(), &request.reason, None)?;
        let _turn = self.turn(!request.dry_run).await;
        let network = self.hub.network().await;
        let plan = match self.plan_undo(id, &network) {
            Ok(plan) if request.dry_run => return Ok(result(&plan, true, None, &about, None)),
            Ok(plan) => plan,
            Err(refusal) => {
                if !request.dry_run {
                    let outcome = (Outcome::Refused, Some(refusal.to_string()));
                    // What it is cannot be said where there is no such entry.
                    let known = self.audit.get(id).map(|kept| kept.entry.id);
                    let of: String = id.chars().filter(|it| !it.is_control()).take(32).collect();
                    self.note(&about, None, format!("undo {of}"), outcome, known, Vec::new());
                }
                return Err(refusal);
            }
        };
        self.carry_out(&about, None, plan, Some(id.to_owned())).await
    }

    fn plan_undo(&self, id: &str, network: &Network) -> Result<Plan, Refusal> {
        let Some(kept) = self.audit.get(id) else {
            return Err(Refusal::NotFound(self.where_else(id, network)));
        };
        if !kept.entry.undoable {
            return Err(Refusal::Conflict(match &kept.entry.undone_by {
                Some(by) => format!("entry {id} was undone already, by entry {by}"),
                None => format!("{} cannot be undone", kept.entry.summary),
            }));
        }
        plan::undo(self.agent(), network, &kept)
    }

    /// Why there is no such entry here, and whose it is if that can be told.
    fn where_else(&self, id: &str, network: &Network) -> String {
        let here = self.audit.agent();
        let tag = match tag_of(id) {
            Err(()) => {
                return format!(
                    "{id:?} is no number of an audit log, such as {}-12",
                    self.audit.tag()
                );
            }
            Ok(None) => {
                return format!(
                    "the audit log of {here} has no entry {id}; a number begins with a tag of its \
                     agent, such as {}-{id}",
                    self.audit.tag()
                );
            }
            Ok(Some(tag)) if tag == self.audit.tag() => {
                return format!("the audit log of {here} has no entry {id}, or no longer");
            }
            Ok(Some(tag)) => tag,
        };
        let agents = network.nodes.iter().flat_map(|node| {
            [AgentName::node(node.name.as_str()), AgentName::brain(node.name.as_str())]
        });
        match agents.into_iter().find(|agent| agent.tag() == tag) {
            Some(there) => format!(
                "entry {id} is in the audit log of {there}, and this is {here}: undo it there, by its \
                 admin API"
            ),
            None => format!(
                "entry {id} is in the audit log of another agent, which no node that is known here \
                 is, and this is {here}: undo it at the address where it was done"
            ),
        }
    }

    /// Notes that somebody tried to act who may only look: not without end, for they may try often.
    pub(crate) fn note_forbidden(&self, caller: &Caller, what: &str) {
        {
            let mut forbidden = self.forbidden.lock();
            let (since, count) = forbidden.get_or_insert((Instant::now(), 0));
            if since.elapsed() >= Duration::from_mins(1) {
                (*since, *count) = (Instant::now(), 0);
            }
            *count = count.saturating_add(1);
            if *count > FORBIDDEN_MAX {
                return;
            }
        }
        let Ok(about) = Circumstances::new(caller, None, "", None) else { return };
        let outcome = (Outcome::Refused, Some("this token may only look".to_owned()));
        let what: String = what.chars().take(TEXT_LENGTH_MAX).collect();
        self.note(&about, None, format!("tried to act: {what}"), outcome, None, Vec::new());
    }

    async fn carry_out(
        &self,
        about: &Circumstances,
        action: Option<Action>,
        plan: Plan,
        undoes: Option<String>,
    ) -> Result<ActionResult, Refusal> {
        let mut purged = None;
        let done = match &plan.effect {
            Effect::Decide(steps) => self.decide(steps).await,
            Effect::Purge(what) => match self.agent().purge(what, false).await {
                Ok(count) => {
                    purged = Some(count);
                    Ok(())
                }
                Err(refusal) => Err(refusal),
            },
            Effect::Resync => self.agent().resync().map(drop),
        };
        let steps = match &plan.effect {
            Effect::Decide(steps) if done.is_ok() => steps.clone(),
            _ => Vec::new(),
        };
        let outcome = match &done {
            Ok(()) => (Outcome::Done, None),
            Err(refusal) => (Outcome::Failed, Some(refusal.to_string())),
        };
        let entry = self.note(about, action, plan.summary.clone(), outcome, undoes, steps);
        self.hub.forget().await;
        done?;
        Ok(result(&plan, false, Some(&entry), about, purged))
    }

    /// Writes, and waits until what was written has been read: who asks next sees it.
    async fn decide(&self, steps: &[Step]) -> Result<(), Refusal> {
        self.agent().decide(steps.to_vec()).await?;
        let deadline = Instant::now() + READ_BACK_TIME_MAX;
        let now_s = now_ms() / 1000;
        let is_there = |overrides: &[Arc<Override>]| {
            steps.iter().all(|step| {
                let found = overrides.iter().find(|it| it.meta.key == step.key);
                match &step.after {
                    Some(after) if after.is_active(now_s) => {
                        found.is_some_and(|it| plan::alike(it, after))
                    }
                    Some(_) => true,
                    None => found.is_none(),
                }
            })
        };
        while !is_there(&self.agent().overrides()) {
            if Instant::now() >= deadline {
                tracing::warn!("what was decided is written, but the source has not read it yet");
                break;
            }
            tokio::time::sleep(READ_BACK_PAUSE).await;
        }
        Ok(())
    }

    fn note(
        &self,
        about: &Circumstances,
        action: Option<Action>,
        summary: String,
        (outcome, error): (Outcome, Option<String>),
        undoes: Option<String>,
        steps: Vec<Step>,
    ) -> AuditEntry {
        let entry = AuditEntry {
            id: String::new(),
            at_ms: now_ms(),
            who: about.who.clone(),
            role: about.role,
            from: about.from.clone(),
            action,
            summary,
            reason: about.reason.clone(),
            until_ms: about.until_ms,
            outcome,
            error,
            undoes,
            undone_by: None,
            undoable: outcome == Outcome::Done && !steps.is_empty(),
        };
        let entry = self.audit.append(Kept { entry, steps });
        self.hub.tell_audit(&entry);
        entry
    }

    /// Removes overrides of ours that have ended, where they are written; whoever did so says it.
    ///
    /// They count for nobody any more, so there is no hurry. Every agent that can write does this, and
    /// only what is written as it was seen here is removed: what somebody decided anew stays. So nobody
    /// who decides has to wait for it, however slow the API server is.
    pub(crate) async fn end_what_is_over(&self) {
        if self.ending.lock().holds() || self.over().is_empty() {
            return;
        }
        if self.agent().read_only_because().is_some() {
            return self.ending.lock().lengthen();
        }
        let over = self.over();
        let removing = self.agent().remove_ended(over.clone());
        let removed = match tokio::time::timeout(ENDING_TIME_MAX, removing).await {
            Ok(Ok(removed)) => removed,
            failed => {
                let error = match failed {
                    Ok(Err(refusal)) => refusal.to_string(),
                    _ => "it takes too long".to_owned(),
                };
                let mut ending = self.ending.lock();
                if ending.length.is_zero() {
                    tracing::warn!(%error, "overrides that ended stay where they are written");
                }
                return ending.lengthen();
            }
        };
        if removed.len() == over.len() {
            *self.ending.lock() = Pause::default();
        } else {
            // Another agent removed them and we have not read that yet, or they stand elsewhere.
            self.ending.lock().lengthen();
        }
        for decided in over.iter().filter(|it| removed.contains(&it.meta.key)) {
            let about = Circumstances {
                who: decided.by.to_string(),
                role: Role::Admin,
                from: String::new(),
                reason: decided.reason.to_string(),
                until_ms: decided.until_s.map(|it| it.saturating_mul(1000)),
            };
            let summary = format!("ended by itself: {}", plan::override_sentence(decided));
            self.note(&about, None, summary, (Outcome::Expired, None), None, Vec::new());
        }
        if !removed.is_empty() {
            self.hub.forget().await;
        }
    }

    /// Overrides of ours that have been over for a while.
    fn over(&self) -> Vec<Arc<Override>> {
        let grace_s = i64::try_from(self.grace.as_secs()).unwrap_or(i64::MAX);
        let then_s = (now_ms() / 1000).saturating_sub(grace_s);
        let ended = self.agent().ended().into_iter();
        ended.filter(|it| it.is_managed() && !it.is_active(then_s)).collect()
    }
}

/// When an action ends by itself.
fn until(request: &ActionRequest) -> Result<Option<i64>, Refusal> {
    let now = now_ms();
    let until_ms = match (request.for_s, request.until_ms) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(Refusal::Bad("give for_s or until_ms, not both".to_owned()));
        }
        (Some(for_s), None) => {
            now.saturating_add(i64::try_from(for_s).unwrap_or(i64::MAX).saturating_mul(1000))
        }
        (None, Some(until_ms)) => until_ms,
    };
    if !plan::lasts(&request.action) {
        return Err(Refusal::Bad("this action does not last, so it cannot end".to_owned()));
    }
    if until_ms <= now || until_ms > now.saturating_add(LASTS_S_MAX * 1000) {
        return Err(Refusal::Bad("it can end from a second to 366 days from now".to_owned()));
    }
    Ok(Some(until_ms))
}

fn result(
    plan: &Plan,
    dry_run: bool,
    entry: Option<&AuditEntry>,
    about: &Circumstances,
    purged: Option<u64>,
) -> ActionResult {
    let made = match &plan.effect {
        Effect::Decide(steps) => steps.iter().find_map(|step| step.after.as_ref()),
        _ => None,
    };
    let undoable = match (&plan.effect, entry) {
        (_, Some(entry)) => entry.undoable,
        (Effect::Decide(_), None) => true,
        _ => false,
    };
    ActionResult {
        dry_run,
        summary: plan.summary.clone(),
        touches: plan.touches.iter().take(TOUCHES_MAX).cloned().collect(),
        touches_total: plan.touches.len(),
        warnings: plan.warnings.clone(),
        id: entry.map(|entry| entry.id.clone()),
        undoable,
        until_ms: about.until_ms,
        made: made.map(|it| item(it, plan.touches.len())),
        purged,
    }
}

fn key(key: &ObjectKey) -> Key {
    Key::new(&*key.namespace, &*key.name)
}

/// An override as it is shown.
fn item(decided: &Override, touches: usize) -> OverrideItem {
    OverrideItem::of(decided, touches)
}

impl OverrideItem {
    /// An override as it is shown, with how much it touches.
    pub fn of(decided: &Override, touches: usize) -> Self {
        shown(decided, touches)
    }
}

fn shown(decided: &Override, touches: usize) -> OverrideItem {
    let (target, host, path) = match &decided.target {
        OverrideTarget::Address(ip) => (Some(Target::Address(ip.to_string())), None, None),
        OverrideTarget::Pod(pod) => (Some(Target::Pod(pod.to_string())), None, None),
        OverrideTarget::Node(node) => (Some(Target::Node(node.to_string())), None, None),
        OverrideTarget::Routes { host, path } => (None, host.clone(), path.clone()),
    };
    let (action, weight) = match &decided.action {
        OverrideAction::Drain => ("drain", None),
        OverrideAction::Weight(weight) => ("weight", Some(*weight)),
        OverrideAction::Add(added) => ("add", added.weight),
        OverrideAction::Remove => ("remove", None),
        OverrideAction::Pause { .. } => ("pause", None),
    };
    let ms = |at_s: Option<i64>| at_s.map(|at_s| at_s.saturating_mul(1000));
    OverrideItem {
        namespace: decided.meta.key.namespace.to_string(),
        name: decided.meta.key.name.to_string(),
        action: action.to_owned(),
        service: decided.service().map(key),
        target,
        weight,
        ingress: decided.ingress().map(key),
        host: host.map(|it| it.to_string()),
        path: path.map(|it| it.to_string()),
        summary: plan::override_sentence(decided),
        by: decided.by.to_string(),
        reason: decided.reason.to_string(),
        since_ms: ms(decided.since_s),
        until_ms: ms(decided.until_s),
        managed: decided.is_managed(),
        touches,
    }
}
