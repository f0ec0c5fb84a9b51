//! What an Ingress wants of its hosts' TLS: certificates, and passage to a backend.

use std::collections::BTreeSet;
use std::sync::Arc;

use telaio_http_proxy::table::{BackendId, HostMatch};
use telaio_model::ObjectKey;

use super::{Compiler, Need, TlsClaim, host_match, www_of};
use crate::annotations::Options;
use crate::certificates;
use crate::host_tls::Named;
use crate::warning::Reason;

impl Compiler<'_> {
    pub(super) fn claim_certificates(&mut self, options: &Options) {
        let mut whole = Vec::new();
        let mut partly = Vec::new();
        for entry in &self.ingress.tls {
            let Some(name) = entry.secret.as_ref().filter(|name| !name.is_empty()) else {
                continue;
            };
            let secret = ObjectKey::new(Arc::clone(&self.key().namespace), Arc::clone(name));
            self.need(Need::Secret(secret.clone()));
            if let Some(why) = self.cluster.bad_tls.get(&secret) {
                let message =
                    format!("the certificate of the Secret {secret} cannot be used: {why}");
                self.warn(Reason::BadSecret, message);
            } else if !self.cluster.tls.contains_key(&secret) {
                self.warn(
                    Reason::BadSecret,
                    format_args!(
                        "there is no Secret {secret} of type kubernetes.io/tls; its hosts are served with \
                         the default certificate until there is"
                    ),
                );
            }
            if entry.hosts.is_empty() {
                whole.push(secret);
                continue;
            }
            for host in &entry.hosts {
                self.claim_tls(host.to_ascii_lowercase().into(), Named::ByIngress, &secret);
            }
            partly.push(secret);
        }
        // Behind what is named: of two entries for a host the first counts.
        for secret in whole {
            self.claim_names(&secret);
        }
        for secret in partly {
            self.claim_further_hosts(options, &secret);
        }
    }

    /// Claims the hosts that annotations add to those of the rules, as far as a certificate is for them:
    /// no entry can be expected to name them.
    fn claim_further_hosts(&mut self, options: &Options, secret: &ObjectKey) {
        let Some(certificate) = self.cluster.tls.get(secret) else { return };
        let hosts = self.ingress.rules.iter().filter_map(|rule| rule.host.as_deref());
        let www = hosts.map(host_match).filter_map(|host| www_of(&host));
        let www = www.filter(|_| options.www_redirect);
        let further: Vec<Arc<str>> = options.aliases.iter().cloned().chain(www).collect();
        if further.is_empty() {
            return;
        }
        let names = certificates::names(&certificate.certificate);
        let known: BTreeSet<HostMatch> = names.iter().map(|name| host_match(name)).collect();
        for host in further.iter().map(|host| host.to_ascii_lowercase()) {
            if is_covered(&host_match(&host), &known) {
                self.claim_tls(host.into(), Named::ByCertificate, secret);
            }
        }
    }

    /// Claims what a certificate is for, where an entry says no hosts: those of the Ingress's rules as if
    /// they were named, as in ingress-nginx, and its other names if nobody names them.
    fn claim_names(&mut self, secret: &ObjectKey) {
        let Some(certificate) = self.cluster.tls.get(secret) else { return };
        let names = certificates::names(&certificate.certificate);
        let known: BTreeSet<HostMatch> = names.iter().map(|name| host_match(name)).collect();
        let hosts = self.ingress.rules.iter().filter_map(|rule| rule.host.as_deref());
        for host in hosts.map(str::to_ascii_lowercase) {
            if is_covered(&host_match(&host), &known) {
                self.claim_tls(host.into(), Named::ByIngress, secret);
            }
        }
        for name in names {
            self.claim_tls(name, Named::ByCertificate, secret);
        }
    }

    fn claim_tls(&mut self, host: Arc<str>, named: Named, secret: &ObjectKey) {
        self.compiled.tls.push(TlsClaim { host, named, secret: secret.clone() });
    }

    /// Whether this Ingress has TLS for a host.
    pub(super) fn has_tls(&self, host: &HostMatch) -> bool {
        let wildcard = wildcard_of(host);
        let covers = |named: HostMatch| named == *host || Some(&named) == wildcard.as_ref();
        self.ingress.tls.iter().any(|entry| {
            entry.hosts.is_empty() || entry.hosts.iter().any(|named| covers(host_match(named)))
        })
    }

    pub(super) fn claim_passthrough(&mut self, host: &HostMatch, backend: &BackendId) {
        if *host == HostMatch::Any {
            let message = "ssl-passthrough needs rules with hosts: TLS is told apart by its SNI";
            return self.warn(Reason::BadAnnotation, message);
        }
        self.compiled.passthrough.push((host.to_string().into(), backend.clone()));
    }
}

/// Whether a certificate of these names is for a host.
fn is_covered(host: &HostMatch, names: &BTreeSet<HostMatch>) -> bool {
    names.contains(host) || wildcard_of(host).is_some_and(|it| names.contains(&it))
}

/// The wildcard that has a host, which is one label longer.
fn wildcard_of(host: &HostMatch) -> Option<HostMatch> {
    let HostMatch::Exact(host) = host else { return None };
    let dot = host.find('.').filter(|dot| *dot > 0)?;
    Some(HostMatch::Wildcard(host[dot..].into()))
}
