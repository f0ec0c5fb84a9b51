//! The rules that single values must keep, and the list of those that do not.
//!
//! A check takes the path of its field as something that can be printed, mostly `format_args!`, and
//! prints it only when the value is wrong: checking good input allocates nothing.

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use telaio_model::ip::{check_unicast, parse_ip, parse_net};
use telaio_model::{FieldError, Protocol};

use super::Context;

/// The longest DNS label.
const LABEL_LEN_MAX: usize = 63;
/// The longest DNS name.
const SUBDOMAIN_LEN_MAX: usize = 253;
/// The longest name of a container port.
const PORT_NAME_LEN_MAX: usize = 15;

/// What is wrong with one manifest, gathered so that all of it is reported at once.
#[derive(Debug, Default)]
pub struct Errors(Vec<FieldError>);

impl Errors {
    /// Adds an error.
    pub fn push(&mut self, path: impl Display, message: impl Display) {
        self.0.push(FieldError::new(path.to_string(), message));
    }

    /// `value`, unless there were errors.
    pub fn finish<T>(self, value: T) -> Result<T, Vec<FieldError>> {
        if self.0.is_empty() { Ok(value) } else { Err(self.0) }
    }

    /// `value`, if there is one; without one there must be errors that say why.
    pub(super) fn finish_with<T>(self, value: Option<T>) -> Result<Option<T>, Vec<FieldError>> {
        debug_assert!(value.is_some() || !self.0.is_empty(), "a manifest was dropped silently");
        self.finish(value)
    }

    /// A port, 1–65535.
    pub(super) fn port(&mut self, path: impl Display, value: i64) -> Option<u16> {
        match u16::try_from(value) {
            Ok(port) if port != 0 => Some(port),
            _ => {
                self.push(
                    path,
                    format_args!("{value} is not a port; write a number from 1 to 65535"),
                );
                None
            }
        }
    }

    /// A port where zero or nothing means none.
    pub(super) fn optional_port(&mut self, path: impl Display, value: Option<i64>) -> Option<u16> {
        value.filter(|value| *value != 0).and_then(|value| self.port(path, value))
    }

    /// A protocol; nothing is TCP.
    pub(super) fn protocol(&mut self, path: impl Display, value: Option<&str>) -> Option<Protocol> {
        match value {
            None | Some("" | "TCP") => Some(Protocol::Tcp),
            Some("UDP") => Some(Protocol::Udp),
            Some("SCTP") => Some(Protocol::Sctp),
            Some(other) => {
                self.push(
                    path,
                    format_args!("{other:?} is not a protocol; write TCP, UDP or SCTP"),
                );
                None
            }
        }
    }

    /// An address of any use.
    pub(super) fn ip(&mut self, path: impl Display, text: &str) -> Option<IpAddr> {
        parse_ip(text).map_err(|error| self.push(path, error)).ok()
    }

    /// An address that traffic can be sent to.
    pub(super) fn unicast(
        &mut self,
        path: impl Display,
        text: &str,
        loopback_ok: bool,
    ) -> Option<IpAddr> {
        let ip = parse_ip(text).and_then(|ip| check_unicast(ip, loopback_ok).map(|()| ip));
        ip.map_err(|error| self.push(path, error)).ok()
    }

    /// A network.
    pub(super) fn net(&mut self, path: impl Display, text: &str) -> Option<IpNet> {
        parse_net(text.trim()).map_err(|error| self.push(path, error)).ok()
    }

    /// A DNS label: the name of a service, a namespace or a service's port.
    pub(super) fn dns_label(&mut self, path: impl Display, name: &str) {
        if name.len() > LABEL_LEN_MAX || !is_dns_label(name.as_bytes()) {
            self.push(
                path,
                format_args!(
                    "{} is not a valid name; use at most {LABEL_LEN_MAX} lower-case letters, digits \
                     and '-', with a letter or digit at both ends",
                    Quoted(name)
                ),
            );
        }
    }

    /// DNS labels with dots between: the name of most objects.
    pub(super) fn dns_subdomain(&mut self, path: impl Display, name: &str) {
        if name.len() > SUBDOMAIN_LEN_MAX || !name.split('.').all(|l| is_dns_label(l.as_bytes())) {
            self.push(
                path,
                format_args!(
                    "{} is not a valid name; use at most {SUBDOMAIN_LEN_MAX} lower-case letters, \
                     digits, '-' and '.', with a letter or digit at both ends",
                    Quoted(name)
                ),
            );
        }
    }

    /// The name of a container port.
    pub(super) fn port_name(&mut self, path: impl Display, name: &str) {
        let valid = (1..=PORT_NAME_LEN_MAX).contains(&name.len())
            && is_dns_label(name.as_bytes())
            && name.bytes().any(|byte| byte.is_ascii_lowercase())
            && !name.contains("--");
        if !valid {
            self.push(
                path,
                format_args!(
                    "{} is not the name of a port; use at most {PORT_NAME_LEN_MAX} lower-case \
                     letters, digits and single '-', at least one of them a letter",
                    Quoted(name)
                ),
            );
        }
    }

    /// One of the values that a field can have; nothing is the first of them.
    pub(super) fn one_of<T: Copy>(
        &mut self,
        path: impl Display,
        value: Option<&str>,
        choices: &[(&str, T)],
        default: T,
    ) -> T {
        let Some(value) = value.filter(|value| !value.is_empty()) else { return default };
        if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == value) {
            return *choice;
        }
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        self.push(path, format_args!("{} is not known; write {}", Quoted(value), one_of(&names)));
        default
    }
}

/// `a, b or c`.
fn one_of(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

fn is_dns_label(label: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    label.first().is_some_and(plain)
        && label.last().is_some_and(plain)
        && label.iter().all(|byte| plain(byte) || *byte == b'-')
}

/// A text in quotes, cut short when it is long: messages go to logs and status pages.
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const CHARS_MAX: usize = 80;
        match self.0.char_indices().nth(CHARS_MAX) {
            Some((end, _)) => write!(f, "{:?}…", &self.0[..end]),
            None => write!(f, "{:?}", self.0),
        }
    }
}

/// The one copy of a text that may be missing or empty, which is the same.
pub(super) fn intern_some(ctx: &Context, text: Option<&str>) -> Option<Arc<str>> {
    text.filter(|text| !text.is_empty()).map(|text| ctx.intern(text))
}
