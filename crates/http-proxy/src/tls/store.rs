//! The certificates that are served, by host.
//!
//! A Secret has a certificate, and the hosts (`shop.example.org`, or `*.example.org` for one label)
//! that an Ingress names it for. A renewal replaces what stands in the Secret's slot, which its hosts
//! share; so a change costs as much as what it changes. A handshake takes the read lock for one or two
//! look-ups; connections hold their certificate by themselves, so nothing that changes here ends one.
//!
//! Where several Secrets are for one host, the first by name that can be read serves it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use parking_lot::RwLock;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::certificate::{Certificate, CertificateError, describe};
use crate::table::{self, CertificateId};
use crate::watch::snapshot::CertificateInfo;

/// A Secret's place. Hosts hold it, so a renewal reaches all of them at once.
type Slot = Arc<ArcSwapOption<CertifiedKey>>;

#[derive(Debug, Default)]
struct Inner {
    secrets: HashMap<CertificateId, Secret>,
    /// `shop.example.org`, and `*.example.org` as `.example.org`; never an empty map.
    hosts: HashMap<Box<str>, BTreeMap<CertificateId, Slot>>,
    /// The Secret for hosts without one.
    default: Option<CertificateId>,
}

#[derive(Debug, Default)]
struct Secret {
    slot: Slot,
    hosts: Vec<Box<str>>,
}

/// What alters which certificate serves whom.
#[derive(Debug, Clone, Copy)]
pub struct CertificatesChange<'a> {
    /// Secrets; `None` when one is gone.
    pub certificates: &'a BTreeMap<CertificateId, Option<table::Certificate>>,
    /// The Secret for hosts without one; `None` leaves it as it is.
    pub default: Option<&'a Option<CertificateId>>,
}

/// The certificates of all hosts.
#[derive(Debug)]
pub struct CertificateStore {
    inner: RwLock<Inner>,
    self_signed: Arc<CertifiedKey>,
}

impl CertificateStore {
    /// An empty store, with a self-signed certificate for whoever asks.
    pub fn new() -> Result<Self, CertificateError> {
        let self_signed = Arc::clone(Certificate::self_signed()?.key());
        Ok(Self { inner: RwLock::default(), self_signed })
    }

    /// Takes a change. Handshakes see all of it or none. A Secret that cannot be used leaves its last
    /// good certificate in place, and is among the errors.
    pub fn apply(&self, change: CertificatesChange<'_>) -> Vec<(CertificateId, CertificateError)> {
        let mut errors = Vec::new();
        let mut read = Vec::with_capacity(change.certificates.len());
        // Keys are loaded before the lock is taken.
        for (id, certificate) in change.certificates {
            let Some(certificate) = certificate else {
                read.push((id, None));
                continue;
            };
            let key = Certificate::from_pem(&certificate.chain_pem, &certificate.key_pem);
            let key = key.map_err(|error| errors.push((Arc::clone(id), error))).ok();
            read.push((id, Some((certificate, key))));
        }
        let mut inner = self.inner.write();
        for (id, certificate) in read {
            match certificate {
                Some((certificate, key)) => inner.set(id, &certificate.hosts, key.as_ref()),
                None => inner.remove(id),
            }
        }
        if let Some(default) = change.default {
            inner.default.clone_from(default);
        }
        errors
    }

    /// The certificate for a host, in lower case without port: its own, its wildcard's, or the
    /// default.
    pub fn find(&self, host: &str) -> Arc<CertifiedKey> {
        let inner = self.inner.read();
        let found = inner.find(host).or_else(|| inner.find_default());
        found.unwrap_or_else(|| Arc::clone(&self.self_signed))
    }

    /// The certificate that a host has of its own or by a wildcard.
    pub fn find_own(&self, host: &str) -> Option<Arc<CertifiedKey>> {
        self.inner.read().find(host)
    }

    /// Whether a host has a certificate by its own name, and not by a wildcard.
    pub fn has(&self, host: &str) -> bool {
        !host.starts_with('.') && self.inner.read().hosts.contains_key(host)
    }

    fn find_default(&self) -> Arc<CertifiedKey> {
        self.inner.read().find_default().unwrap_or_else(|| Arc::clone(&self.self_signed))
    }

    /// Whether a connection that was negotiated for `sni` may serve `host` too: when both have the
    /// same certificate, which is when a browser may send both over one connection.
    pub fn same_certificate(&self, sni: &str, host: &str) -> bool {
        Arc::ptr_eq(&self.find(sni), &self.find(host))
    }

    /// What is known of all certificates, by Secret; the one that we made ourselves only if hosts
    /// without another get it.
    pub fn certificates(&self) -> Vec<CertificateInfo> {
        let inner = self.inner.read();
        let mut all: Vec<(Option<CertificateId>, Arc<CertifiedKey>, Vec<String>)> = Vec::new();
        for (id, secret) in &inner.secrets {
            let Some(key) = secret.slot.load_full() else { continue };
            let shown = |host: &str| {
                if host.starts_with('.') { format!("*{host}") } else { host.to_owned() }
            };
            let hosts = secret.hosts.iter().map(|host| shown(host)).collect();
            all.push((Some(Arc::clone(id)), key, hosts));
        }
        let default = inner.default.clone().filter(|_| inner.find_default().is_some());
        drop(inner);
        if default.is_none() {
            all.push((None, Arc::clone(&self.self_signed), Vec::new()));
        }
        all.sort_by(|one, other| one.0.cmp(&other.0));
        let told = all.into_iter().map(|(id, key, hosts)| CertificateInfo {
            default: id == default,
            secret: id.map(|id| id.to_string()),
            hosts,
            ..key.cert.first().map(|leaf| describe(leaf)).unwrap_or_default()
        });
        told.collect()
    }

    /// How many Secrets and hosts there are.
    pub fn counts(&self) -> (usize, usize) {
        let inner = self.inner.read();
        (inner.secrets.len(), inner.hosts.len())
    }
}

impl Inner {
    fn set(&mut self, id: &CertificateId, hosts: &[Arc<str>], key: Option<&Certificate>) {
        let secret = self.secrets.entry(Arc::clone(id)).or_default();
        if let Some(key) = key {
            secret.slot.store(Some(Arc::clone(key.key())));
        }
        let hosts: Vec<Box<str>> = hosts.iter().map(|host| host_key(host)).collect();
        let slot = Arc::clone(&secret.slot);
        let before = std::mem::replace(&mut secret.hosts, hosts.clone());
        self.leave(id, &before);
        for host in hosts {
            self.hosts.entry(host).or_default().insert(Arc::clone(id), Arc::clone(&slot));
        }
    }

    fn remove(&mut self, id: &CertificateId) {
        if let Some(secret) = self.secrets.remove(id) {
            self.leave(id, &secret.hosts);
        }
    }

    fn leave(&mut self, id: &CertificateId, hosts: &[Box<str>]) {
        for host in hosts {
            if let Some(claims) = self.hosts.get_mut(host) {
                claims.remove(id);
                if claims.is_empty() {
                    self.hosts.remove(host);
                }
            }
        }
    }

    fn find(&self, host: &str) -> Option<Arc<CertifiedKey>> {
        let of = |key: &str| self.hosts.get(key)?.values().find_map(|slot| slot.load_full());
        // What begins with a dot is no host, and must not be taken for a wildcard's key.
        let own = Some(host).filter(|host| !host.starts_with('.'));
        own.and_then(of).or_else(|| of(parent(host)?))
    }

    fn find_default(&self) -> Option<Arc<CertifiedKey>> {
        self.secrets.get(self.default.as_ref()?)?.slot.load_full()
    }
}

/// How a host is kept: `*.example.org` as `.example.org`.
pub(super) fn host_key(host: &str) -> Box<str> {
    host.strip_prefix('*').unwrap_or(host).to_ascii_lowercase().into_boxed_str()
}

/// Under what a host's wildcard is kept.
pub(super) fn parent(host: &str) -> Option<&str> {
    host.find('.').filter(|dot| *dot > 0).map(|dot| &host[dot..])
}

impl ResolvesServerCert for CertificateStore {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let Some(name) = hello.server_name() else { return Some(self.find_default()) };
        Some(if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            self.find(&name.to_ascii_lowercase())
        } else {
            self.find(name)
        })
    }
}

#[cfg(test)]
mod tests;
