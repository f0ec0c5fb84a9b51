//! Basic authentication.
//!
//! A good hash takes a tenth of a second to check, on purpose. So what was checked is remembered for
//! a while: under a keyed hash of name, password and stored hash, with a key that lives as long as the
//! process, so that memory holds nothing to log in with. What is not remembered is checked aside, on
//! a bounded number of threads; who comes while too many wait is told to come again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::password::PasswordHash;
use crate::head::{Known, RequestHead};
use crate::reply::Reply;
use crate::table::BasicAuth;

/// How many checked credentials are remembered.
const REMEMBERED_MAX: usize = 16_384;
/// For how long.
const REMEMBERED_FOR: Duration = Duration::from_mins(5);
/// How many checks may run at once.
const CHECKS_MAX: usize = 4;
/// How many may wait for their turn.
const WAITING_MAX: usize = 64;
/// The longest credentials that are read.
const CREDENTIALS_BYTES_MAX: usize = 4096;

type Tag = [u8; 32];

/// What was checked lately.
#[derive(Debug)]
pub struct Checked {
    key: hmac::Key,
    remembered: Mutex<HashMap<Tag, (bool, Instant)>>,
    running: Arc<Semaphore>,
    waiting: Semaphore,
}

impl Default for Checked {
    fn default() -> Self {
        let mut secret = [0; 32];
        // If there is no randomness, TLS will not start either; an empty key still hides nothing
        // that the process does not know.
        let _ = aws_lc_rs::rand::fill(&mut secret);
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, &secret),
            remembered: Mutex::default(),
            running: Arc::new(Semaphore::new(CHECKS_MAX)),
            waiting: Semaphore::new(WAITING_MAX),
        }
    }
}

impl Checked {
    fn tag(&self, hash: &str, password: &[u8], known: bool) -> Tag {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&[u8::from(known)]);
        context.update(&(hash.len() as u64).to_be_bytes());
        context.update(hash.as_bytes());
        context.update(password);
        let mut tag = [0; 32];
        tag.copy_from_slice(context.sign().as_ref());
        tag
    }

    fn recall(&self, tag: &Tag, now: Instant) -> Option<bool> {
        let remembered = self.remembered.lock();
        let (right, at) = remembered.get(tag)?;
        (now.saturating_duration_since(*at) < REMEMBERED_FOR).then_some(*right)
    }

    fn remember(&self, tag: Tag, right: bool, now: Instant) {
        let mut remembered = self.remembered.lock();
        if remembered.len() >= REMEMBERED_MAX {
            remembered.retain(|_, (_, at)| now.saturating_duration_since(*at) < REMEMBERED_FOR);
        }
        if remembered.len() >= REMEMBERED_MAX {
            // Wrong ones first: whoever tries passwords must not push out those who know theirs.
            let wrong = remembered.iter().find(|(_, (right, _))| !right).map(|(tag, _)| *tag);
            let out = wrong.or_else(|| remembered.keys().next().copied());
            out.map(|tag| remembered.remove(&tag));
        }
        remembered.insert(tag, (right, now));
    }
}

/// A check that takes time.
#[derive(Debug)]
pub struct Check {
    hash: PasswordHash,
    password: Vec<u8>,
    known: bool,
    tag: Tag,
}

/// What a request's credentials are worth.
#[derive(Debug)]
pub enum Verdict {
    /// They are right.
    Right,
    /// They are missing or wrong.
    Wrong,
    /// It must be checked.
    Unknown(Check),
}

/// One route's users.
#[derive(Debug)]
pub struct BasicFilter {
    challenge: String,
    users: HashMap<Arc<str>, (Arc<str>, PasswordHash)>,
}

impl BasicFilter {
    /// Reads the users; those whose hash cannot be used cannot log in, and are given back.
    pub fn new(settings: &BasicAuth) -> (Self, Vec<String>) {
        let mut users = HashMap::new();
        let mut problems = Vec::new();
        for user in &settings.users {
            match PasswordHash::parse(&user.hash) {
                Ok(hash) => {
                    // The first line of a name counts, as everywhere.
                    users
                        .entry(Arc::clone(&user.name))
                        .or_insert_with(|| (Arc::clone(&user.hash), hash));
                }
                Err(error) => problems.push(format!("user {:?}: {error}", user.name)),
            }
        }
        let plain = |c: &char| !c.is_control() && *c != '"' && *c != '\\';
        let realm: String = settings.realm.chars().filter(plain).collect();
        let challenge = format!("Basic realm=\"{realm}\", charset=\"UTF-8\"");
        (Self { challenge, users }, problems)
    }

    /// Judges a request's credentials, as far as that is quick.
    pub fn judge(&self, head: &RequestHead, checked: &Checked) -> Verdict {
        let Some((name, password)) = credentials(head) else { return Verdict::Wrong };
        // Somebody's hash is checked for unknown names too, so that time does not tell who is known.
        let known = self.users.get(name.as_str());
        let Some((text, hash)) = known.or_else(|| self.users.values().next()) else {
            return Verdict::Wrong;
        };
        let tag = checked.tag(text, &password, known.is_some());
        match checked.recall(&tag, Instant::now()) {
            Some(true) => Verdict::Right,
            Some(false) => Verdict::Wrong,
            None if !hash.is_slow() => {
                let right = hash.verify(&password) && known.is_some();
                if right { Verdict::Right } else { Verdict::Wrong }
            }
            None => {
                let known = known.is_some();
                Verdict::Unknown(Check { hash: hash.clone(), password, known, tag })
            }
        }
    }

    /// Does what takes time; whether the credentials are right, or `None` when too many others wait.
    pub async fn check(&self, check: Check, checked: &Checked) -> Option<bool> {
        let _place = checked.waiting.try_acquire().ok()?;
        let turn = Arc::clone(&checked.running).acquire_owned().await.ok()?;
        let Check { hash, password, known, tag } = check;
        let work = tokio::task::spawn_blocking(move || {
            let right = hash.verify(&password) && known;
            // Held until the work is done, also when the client has gone.
            drop(turn);
            right
        });
        let right = work.await.ok()?;
        checked.remember(tag, right, Instant::now());
        Some(right)
    }

    /// The answer to wrong credentials.
    pub fn refusal(&self, head: &RequestHead) -> Reply {
        let reason = "name and password are needed";
        Reply::page(StatusCode::UNAUTHORIZED, reason, Some(&head.headers))
            .header("www-authenticate", &self.challenge)
    }
}

/// The answer when too many are being checked.
pub(super) fn busy(head: &RequestHead) -> Reply {
    let reason = "too many log-ins are being checked";
    Reply::page(StatusCode::SERVICE_UNAVAILABLE, reason, Some(&head.headers))
        .header("retry-after", "1")
}

fn credentials(head: &RequestHead) -> Option<(String, Vec<u8>)> {
    let value = head.headers.get_known_str(Known::Authorization)?;
    let (scheme, rest) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") || rest.len() > CREDENTIALS_BYTES_MAX {
        return None;
    }
    let decoded = STANDARD.decode(rest.trim()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let name = std::str::from_utf8(&decoded[..colon]).ok()?.to_owned();
    Some((name, decoded[colon + 1..].to_vec()))
}

#[cfg(test)]
mod tests;
