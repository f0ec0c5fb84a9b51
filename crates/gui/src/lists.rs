//! Lists: filters, order, parts.

use serde::Deserialize;

use crate::agent::Refusal;
use crate::values::action::{AuditEntry, OverrideItem};
use crate::values::ingress::{CertificateItem, RouteItem};
use crate::values::pods::{InstanceItem, NetworkItem, PeerItem};
use crate::values::service::{NodeItem, ServiceItem};
use crate::values::stream::Event;
use crate::values::{Counters, Page, State};

/// How many are given unless said otherwise, and at most.
const LIMIT: usize = 100;
pub(crate) const LIMIT_MAX: usize = 1000;

/// What a list can be asked with. Each list has its own of these; others do nothing.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ListQuery {
    pub(crate) q: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) state: Option<State>,
    #[serde(rename = "type")]
    pub(crate) of_type: Option<String>,
    pub(crate) overridden: Option<bool>,
    pub(crate) host: Option<String>,
    pub(crate) network: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) before: Option<u64>,
    pub(crate) sort: Option<Sort>,
    pub(crate) offset: Option<usize>,
    pub(crate) limit: Option<usize>,
}

/// The order of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sort {
    Name,
    Rate,
    Errors,
}

impl ListQuery {
    /// How many to give.
    pub(crate) fn limit(&self) -> Result<usize, Refusal> {
        match self.limit {
            None => Ok(LIMIT),
            Some(limit) if (1..=LIMIT_MAX).contains(&limit) => Ok(limit),
            Some(_) => Err(Refusal::Bad(format!("limit: write a number from 1 to {LIMIT_MAX}"))),
        }
    }

    /// The part of a list that is asked for.
    pub(crate) fn page<T: Listed + Clone>(
        &self,
        all: &[T],
        at_ms: i64,
    ) -> Result<Page<T>, Refusal> {
        let limit = self.limit()?;
        let offset = self.offset.unwrap_or(0);
        let text = self.q.as_ref().map(|q| q.to_lowercase());
        let mut found: Vec<&T> = all
            .iter()
            .filter(|item| self.wants(*item))
            .filter(|item| text.as_ref().is_none_or(|text| item.has(text)))
            .collect();
        let by = |of: fn(&Counters) -> f64| {
            move |one: &&T, other: &&T| {
                let rate = |item: &T| item.counters().map_or(0.0, of);
                rate(other).total_cmp(&rate(one))
            }
        };
        match self.sort {
            Some(Sort::Rate) => found.sort_by(by(|counters| counters.rate)),
            Some(Sort::Errors) => found.sort_by(by(|counters| counters.error_rate)),
            Some(Sort::Name) | None => {}
        }
        let total = found.len();
        let items: Vec<T> = found.into_iter().skip(offset).take(limit).cloned().collect();
        let end = offset.saturating_add(items.len());
        let next = (end < total).then_some(end);
        Ok(Page { items, total, offset, next, at_ms, stale: None })
    }

    fn wants(&self, item: &impl Listed) -> bool {
        fn same(wanted: Option<&String>, is: Option<&str>) -> bool {
            wanted.is_none_or(|wanted| is == Some(wanted.as_str()))
        }
        same(self.namespace.as_ref(), item.namespace())
            && same(self.host.as_ref(), item.host())
            && same(self.network.as_ref(), item.network())
            && self.state.is_none_or(|state| item.state() == Some(state))
            && self.overridden.is_none_or(|wanted| item.overridden() == wanted)
            && self.of_type.as_ref().is_none_or(|wanted| {
                item.of_type().is_some_and(|it| it.eq_ignore_ascii_case(wanted))
            })
    }

    /// Whether an event is wanted.
    pub(crate) fn wants_event(&self, event: &Event) -> bool {
        let text = self.q.as_ref().map(|q| q.to_lowercase());
        self.kind.as_ref().is_none_or(|kind| event.kind.eq_ignore_ascii_case(kind))
            && self.namespace.as_ref().is_none_or(|it| *it == event.object.namespace)
            && text.is_none_or(|text| {
                contains(&event.object.to_string(), &text)
                    || contains(&event.summary, &text)
                    || contains(&event.kind, &text)
            })
    }
}

/// Whether a text has another in it, which is in lower case.
pub(crate) fn contains(text: &str, lower: &str) -> bool {
    text.to_lowercase().contains(lower)
}

/// An item of a list.
pub(crate) trait Listed {
    /// Whether this text, in lower case, occurs in it.
    fn has(&self, text: &str) -> bool;
    fn namespace(&self) -> Option<&str> {
        None
    }
    fn host(&self) -> Option<&str> {
        None
    }
    fn network(&self) -> Option<&str> {
        None
    }
    fn of_type(&self) -> Option<&str> {
        None
    }
    fn state(&self) -> Option<State> {
        None
    }
    fn overridden(&self) -> bool {
        false
    }
    fn counters(&self) -> Option<&Counters> {
        None
    }
}

fn any<'a>(texts: impl IntoIterator<Item = &'a String>, text: &str) -> bool {
    texts.into_iter().any(|it| contains(it, text))
}

impl Listed for ServiceItem {
    fn has(&self, text: &str) -> bool {
        contains(&format!("{}/{}", self.namespace, self.name), text)
            || any(self.cluster_ips.iter().chain(&self.external_ips), text)
            || any(&self.load_balancer_ips, text)
            || self.ports.iter().any(|port| contains(&port.name, text))
            || self.ports.iter().any(|port| port.port.to_string() == text)
    }
    fn namespace(&self) -> Option<&str> {
        Some(&self.namespace)
    }
    fn of_type(&self) -> Option<&str> {
        Some(&self.service_type)
    }
    fn state(&self) -> Option<State> {
        Some(self.state)
    }
    fn overridden(&self) -> bool {
        self.overridden
    }
    fn counters(&self) -> Option<&Counters> {
        self.counters.as_ref()
    }
}

impl Listed for RouteItem {
    fn has(&self, text: &str) -> bool {
        contains(&format!("{}{}", self.host, self.path), text)
            || contains(&self.ingress.to_string(), text)
            || self.backends.iter().any(|it| contains(&it.service.to_string(), text))
    }
    fn namespace(&self) -> Option<&str> {
        Some(&self.ingress.namespace)
    }
    fn host(&self) -> Option<&str> {
        Some(&self.host)
    }
    fn state(&self) -> Option<State> {
        Some(self.state)
    }
    fn counters(&self) -> Option<&Counters> {
        self.counters.as_ref()
    }
}

impl Listed for CertificateItem {
    fn has(&self, text: &str) -> bool {
        contains(&self.id, text) || any(self.hosts.iter().chain(&self.names), text)
    }
    fn state(&self) -> Option<State> {
        Some(self.state)
    }
}

impl Listed for NodeItem {
    fn has(&self, text: &str) -> bool {
        contains(&self.name, text) || any(self.addresses.iter().chain(&self.pod_cidrs), text)
    }
}

impl Listed for NetworkItem {
    fn has(&self, text: &str) -> bool {
        contains(&self.name, text) || contains(&self.bridge, text) || any(&self.subnets, text)
    }
}

impl Listed for InstanceItem {
    fn has(&self, text: &str) -> bool {
        contains(&self.id, text)
            || any(self.addresses.iter().chain(&self.ports), text)
            || self.pod.as_ref().is_some_and(|pod| contains(&pod.to_string(), text))
    }
    fn network(&self) -> Option<&str> {
        Some(&self.network)
    }
}

impl Listed for PeerItem {
    fn has(&self, text: &str) -> bool {
        contains(&self.node, text) || any(self.addresses.iter().chain(&self.subnets), text)
    }
}

impl Listed for OverrideItem {
    fn has(&self, text: &str) -> bool {
        contains(&self.summary, text) || any([&self.name, &self.by, &self.reason], text)
    }
    fn namespace(&self) -> Option<&str> {
        Some(&self.namespace)
    }
}

impl Listed for AuditEntry {
    fn has(&self, text: &str) -> bool {
        contains(&self.summary, text) || any([&self.who, &self.reason, &self.from], text)
    }
}
