//! Annotations: what an Ingress asks for beyond its rules.
//!
//! Every annotation stands in a [table](GROUPS) that says what it expects and does; reading them
//! gives typed [`Options`] and, for each, a [`Finding`]. All of them are read under our own prefix
//! `telaio.dev/`, and those that ingress-nginx has under its prefix as well; ours win.
//!
//! What always holds:
//! - a value that cannot be read leaves that one annotation out, with a finding that names it and what
//!   it expects; the rest goes on. If the annotation keeps somebody out, nobody comes in until it can
//!   be read ([`Options`] are then [closed](Annotations::closed));
//! - no text is ever executed, nor put into anything that is.
//!
//! ```
//! use telaio_gateway::annotations::{Annotations, Outcome};
//!
//! let asked = [("nginx.ingress.kubernetes.io/proxy-body-size".into(), "8 megs".into())];
//! let read = Annotations::read(&asked.into());
//! let Outcome::Bad(message) = &read.findings[0].outcome else { panic!() };
//! assert_eq!(message, "\"8 megs\" is not right; write a size such as 512k, 8m or 1g; 0 for no limit");
//! ```

mod access;
mod docs;
mod options;
mod routing;
mod table;
mod traffic;
mod upstream;
pub(crate) mod values;

use std::collections::BTreeSet;
use std::sync::Arc;

use telaio_model::Labels;

pub use docs::docs_page;
pub use options::{
    Balance, BasicAuthOptions, CacheOptions, CanaryOptions, ClientTlsOptions, CorsOptions,
    ForwardAuthOptions, HashBy, HealthOptions, LimitOptions, MirrorOptions, NextUpstream, Options,
    Protocol, RedirectOption, SameSite, StickyOptions, UpstreamTlsOptions, VerifyClient,
};
pub use table::{GROUPS, NGINX, OURS, REFUSED, Refused, Row};
pub use values::BadValue;

/// The old way to name a class, which is read elsewhere.
pub(crate) const CLASS: &str = "kubernetes.io/ingress.class";

/// What is said of an annotation that gives way to another.
const SAID_ELSEWHERE: &str =
    "not in force: another annotation of this Ingress says the same thing, and that one holds";

/// What became of one annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It holds, as in ingress-nginx.
    Honoured,
    /// It holds, with this difference to ingress-nginx.
    Different(&'static str),
    /// It is not taken: why, and what to do instead.
    Refused(String),
    /// Its value cannot be read: why.
    Bad(String),
    /// Nobody knows it: what might have been meant.
    Unknown(String),
}

impl Outcome {
    /// Whether the writer of the Ingress should hear of it.
    pub fn is_warning(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Bad(_) | Self::Unknown(_))
    }
}

/// One annotation and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The annotation, with its prefix.
    pub annotation: Arc<str>,
    /// What became of it.
    pub outcome: Outcome,
}

/// The annotations of one Ingress, read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Annotations {
    /// What they ask for.
    pub options: Options,
    /// What became of each that is for us or ingress-nginx.
    pub findings: Vec<Finding>,
    /// An annotation that keeps somebody out could not be read: nobody may come in, and this is why.
    pub closed: Option<String>,
}

impl Annotations {
    /// Reads the annotations of an Ingress.
    pub fn read(annotations: &Labels) -> Self {
        let mut read = Self::default();
        // Ours first, and each thing is said once: so they win. Of two names of one thing the winning
        // one comes first as well, by the alphabet.
        let mut said = BTreeSet::new();
        for prefix in [OURS, NGINX] {
            for (full, text) in annotations.iter() {
                if let Some(name) = full.strip_prefix(prefix) {
                    read.read_one(full, name, text, prefix == NGINX, &mut said);
                }
            }
        }
        read.findings.sort_by(|one, other| one.annotation.cmp(&other.annotation));
        read
    }

    fn read_one(
        &mut self,
        full: &Arc<str>,
        name: &str,
        text: &str,
        is_nginx: bool,
        said: &mut BTreeSet<&'static str>,
    ) {
        let (outcome, guard) = match (table::row(name), table::refused(name)) {
            (Some(row), _) if row.nginx || !is_nginx => {
                let thing = row.also.unwrap_or(row.name);
                if said.contains(thing) {
                    let outcome = match Self::default().apply(row, text, is_nginx) {
                        bad @ Outcome::Bad(_) => bad,
                        _ => Outcome::Different(SAID_ELSEWHERE),
                    };
                    (outcome, false)
                } else {
                    let outcome = self.apply(row, text, is_nginx);
                    if !outcome.is_warning() {
                        said.insert(thing);
                    }
                    (outcome, row.guard)
                }
            }
            (_, Some(refused)) if is_nginx && refused.taken == Some(text.trim()) => {
                (Outcome::Honoured, false)
            }
            (_, Some(refused)) if is_nginx => {
                let message = format!("it is refused: {}; use {}", refused.why, refused.instead);
                (Outcome::Refused(message), false)
            }
            _ => (Outcome::Unknown(unknown(name, is_nginx)), false),
        };
        if guard && outcome.is_warning() && self.closed.is_none() {
            self.closed = Some(format!("the annotation {full} cannot be used"));
        }
        self.findings.push(Finding { annotation: Arc::clone(full), outcome });
    }

    fn apply(&mut self, row: &Row, text: &str, is_nginx: bool) -> Outcome {
        if text.len() > values::TEXT_BYTES_MAX {
            return Outcome::Bad(format!("is longer than {} bytes", values::TEXT_BYTES_MAX));
        }
        // Half of a value must not stay if the other half is bad.
        let mut options = self.options.clone();
        match (row.read)(text.trim(), &mut options) {
            Ok(()) => {
                self.options = options;
                row.differs.filter(|_| is_nginx).map_or(Outcome::Honoured, Outcome::Different)
            }
            Err(bad) => Outcome::Bad(bad.to_string()),
        }
    }
}

/// What to say of a name that no row has.
fn unknown(name: &str, is_nginx: bool) -> String {
    let close = |row: &&Row| {
        let distance = strsim::osa_distance(row.name, name);
        distance <= 2 && distance * 3 <= name.len()
    };
    let rows = GROUPS.iter().flat_map(|(_, rows)| *rows);
    match rows.filter(|row| row.nginx || !is_nginx).find(close) {
        Some(row) => format!("is not known and has no effect; did you mean {}?", row.name),
        None => "is not known and has no effect; docs/annotations.md lists what is".to_owned(),
    }
}

/// Reads any bytes as annotations, for fuzzing: the first line is the name, the rest the value.
///
/// # Panics
/// If what always holds does not.
pub fn check_any_bytes(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut pairs = text.split('\0').map(|pair| pair.split_once('\n').unwrap_or((pair, "")));
    let named = pairs.by_ref().take(64).map(|(name, value)| {
        let prefix = if name.starts_with('n') { NGINX } else { OURS };
        let name = name.get(1..).unwrap_or_default();
        (format!("{prefix}{name}").into(), value.into())
    });
    let annotations: Labels = named.collect();
    let read = Annotations::read(&annotations);
    assert_eq!(read.findings.len(), annotations.len(), "one finding for each");
    assert_eq!(read, Annotations::read(&annotations), "the same every time");
    for finding in &read.findings {
        if let Outcome::Bad(text) | Outcome::Refused(text) | Outcome::Unknown(text) =
            &finding.outcome
        {
            assert!(text.len() < 1024 && !text.contains('\n'), "{text}");
        }
    }
}

#[cfg(test)]
mod tests;
