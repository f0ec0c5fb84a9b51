//! What people ask for: planned, shown, done, remembered, undone.
//!
//! Actions that last become [`Override`]s. An override's name follows from what it is about, so
//! deciding anew about the same endpoints replaces what was decided; what was there before is in the
//! audit log, which is how an action is undone. One action at a time: the next sees what the last did.

mod plan;

use std::sync::Arc;
use std::time::{Duration, Instant};

use telaio_model::{ObjectKey, Override, OverrideAction, OverrideTarget};
use tokio::sync::Mutex;

use crate::agent::{Agent, Refusal, now_ms};
use crate::audit::{AuditLog, Kept, Step};
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
/// Of what is touched so much is told.
const TOUCHES_MAX: usize = 200;

/// Does what people ask for.
pub(crate) struct Manager {
    hub: Arc<Hub>,
    audit: AuditLog,
    /// One at a time.
    turn: Mutex<()>,
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
    pub(crate) fn new(hub: Arc<Hub>, audit: AuditLog) -> Self {
        Self { hub, audit, turn: Mutex::new(()) }
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
        let _turn = self.turn.lock().await;
        let network = self.hub.network().await;
        let planned = plan::plan(self.agent(), &network, &request.action, &about);
        let planned = match planned {
            Ok(_)
                if plan::decides(&request.action) && self.agent().read_only_because().is_some() =>
            {
                Err(Refusal::Unavailable(self.agent().read_only_because().unwrap_or_default()))
            }
            planned => planned,
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
        id: u64,
        request: &UndoRequest,
    ) -> Result<ActionResult, Refusal> {
        let about = Circumstances::new(caller, request.by.as_deref(), &request.reason, None)?;
        let _turn = self.turn.lock().await;
        let Some(kept) = self.audit.get(id) else {
            return Err(Refusal::NotFound(format!("the audit log has no entry {id}")));
        };
        if !kept.entry.undoable {
            return Err(Refusal::Conflict(match kept.entry.undone_by {
                Some(by) => format!("entry {id} was undone already, by entry {by}"),
                None => format!("{} cannot be undone", kept.entry.summary),
            }));
        }
        let network = self.hub.network().await;
        let plan = plan::undo(self.agent(), &network, &kept)?;
        if request.dry_run {
            return Ok(result(&plan, true, None, &about, None));
        }
        self.carry_out(&about, None, plan, Some(id)).await
    }

    async fn carry_out(
        &self,
        about: &Circumstances,
        action: Option<Action>,
        plan: Plan,
        undoes: Option<u64>,
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
        let changes = steps.iter().map(|step| (step.key.clone(), step.after.clone())).collect();
        self.agent().decide(changes).await?;
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
        undoes: Option<u64>,
        steps: Vec<Step>,
    ) -> AuditEntry {
        let entry = AuditEntry {
            id: 0,
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

    /// Removes overrides of ours that have ended, and says so.
    pub(crate) async fn end_what_is_over(&self) {
        let now_s = now_ms() / 1000;
        let over: Vec<Arc<Override>> = self
            .agent()
            .overrides()
            .into_iter()
            .filter(|it| it.is_managed() && !it.is_active(now_s))
            .collect();
        if over.is_empty() {
            return;
        }
        let _turn = self.turn.lock().await;
        let changes = over.iter().map(|it| (it.meta.key.clone(), None)).collect();
        if let Err(refusal) = self.agent().decide(changes).await {
            tracing::debug!(%refusal, "overrides that ended stay where they are written");
            return;
        }
        for decided in over {
            let about = Circumstances {
                who: decided.by.to_string(),
                role: Role::Admin,
                from: String::new(),
                reason: decided.reason.to_string(),
                until_ms: decided.until_s.map(|it| it.saturating_mul(1000)),
            };
            let summary = format!("ended by itself: {}", plan::override_sentence(&decided));
            self.note(&about, None, summary, (Outcome::Expired, None), None, Vec::new());
        }
        self.hub.forget().await;
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
        id: entry.map(|entry| entry.id),
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
