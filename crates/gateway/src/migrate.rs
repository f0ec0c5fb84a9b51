//! What existing Ingresses become here: per Ingress what is honoured, what is different, what is
//! refused, and what its writer would be told once it is ours. Nothing is changed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use telaio_model::{Ingress, ObjectKey};

use crate::annotations::{self, Annotations, Outcome};
use crate::class::ClassSettings;
use crate::gateway::{Gateway, GatewaySettings};
use crate::listener::IngressEvent;
use crate::warning::Warning;

/// One thing that an Ingress asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Item {
    /// What.
    pub what: String,
    /// How it is here; nothing where it is as in ingress-nginx.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What becomes of one Ingress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// `namespace/name`.
    pub ingress: String,
    /// The class that it names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Works as it did.
    pub honoured: Vec<Item>,
    /// Works, with a difference.
    pub different: Vec<Item>,
    /// Does not work, and what to do instead.
    pub refused: Vec<Item>,
    /// What else its writer would be told: what it refers to and is not there, cannot be used, or is
    /// another's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Item>,
}

/// The class that an Ingress names.
fn class_of(ingress: &Ingress) -> Option<&Arc<str>> {
    ingress.meta.annotations.get(annotations::CLASS).or(ingress.class.as_ref())
}

/// Looks at all Ingresses of what a listener says, or at those of one class, as if they were ours.
pub fn reports(events: impl IntoIterator<Item = IngressEvent>, class: Option<&str>) -> Vec<Report> {
    // Without classes an Ingress that names none is ours.
    let settings = ClassSettings { classless: true, ..ClassSettings::default() };
    let mut gateway =
        Gateway::new(GatewaySettings { class: settings, ..GatewaySettings::default() });
    let mut ingresses: BTreeMap<ObjectKey, Arc<Ingress>> = BTreeMap::new();
    for event in events {
        match event {
            IngressEvent::Add(ingress) => {
                let is_meant = class.is_none() || class_of(&ingress).map(|it| &**it) == class;
                if is_meant {
                    gateway.take(IngressEvent::Add(Arc::new(of_no_class(&ingress))));
                    ingresses.insert(ingress.meta.key.clone(), ingress);
                }
            }
            // What people have paused is not how things are meant to be.
            IngressEvent::Class(..) | IngressEvent::Pause(..) => {}
            // In a cluster those without the label are not read; a directory may be a copy of one.
            IngressEvent::ConfigMap(_, Some(map))
                if !map.meta.labels.contains_key(telaio_source::kube::LABEL_CONFIG) => {}
            other => gateway.take(other),
        }
    }
    gateway.commit();
    let mut warnings: BTreeMap<&ObjectKey, Vec<&Warning>> = BTreeMap::new();
    for warning in gateway.warnings() {
        warnings.entry(&warning.ingress).or_default().push(warning);
    }
    let of = |key: &ObjectKey| warnings.get(key).cloned().unwrap_or_default();
    ingresses.iter().map(|(key, ingress)| Report::new(ingress, &of(key))).collect()
}

/// The same Ingress without a word of its class.
fn of_no_class(ingress: &Ingress) -> Ingress {
    let mut ingress = ingress.clone();
    ingress.class = None;
    let rest = ingress.meta.annotations.iter().filter(|(name, _)| &***name != annotations::CLASS);
    ingress.meta.annotations = rest.map(|(name, value)| (name.clone(), value.clone())).collect();
    ingress
}

impl Report {
    /// Looks at one Ingress, with what its writer would be told.
    fn new(ingress: &Ingress, warnings: &[&Warning]) -> Self {
        let class = class_of(ingress).map(ToString::to_string);
        let mut report = Self {
            ingress: ingress.meta.key.to_string(),
            class,
            warnings: Vec::new(),
            honoured: Vec::new(),
            different: Vec::new(),
            refused: Vec::new(),
        };
        let read = Annotations::read(&ingress.meta.annotations);
        for finding in &read.findings {
            let what = finding.annotation.to_string();
            match &finding.outcome {
                Outcome::Honoured => report.honoured.push(Item { what, note: None }),
                Outcome::Different(note) => {
                    report.different.push(Item { what, note: Some((*note).to_owned()) });
                }
                Outcome::Bad(note) | Outcome::Refused(note) | Outcome::Unknown(note) => {
                    report.refused.push(Item { what, note: Some(note.clone()) });
                }
            }
        }
        report.look_at_paths(ingress, &read);
        for warning in warnings {
            // What is said of an annotation alone stands there already.
            let is_said = read.findings.iter().any(|finding| {
                let own = warning.message.strip_prefix("the annotation ");
                own.and_then(|it| it.strip_prefix(&*finding.annotation))
                    .is_some_and(|it| it.starts_with(": "))
            });
            if !is_said {
                let what = warning.reason.as_str().to_owned();
                report.warnings.push(Item { what, note: Some(warning.message.to_string()) });
            }
        }
        report
    }

    /// What is different about paths, whatever the annotations say.
    fn look_at_paths(&mut self, ingress: &Ingress, read: &Annotations) {
        use telaio_model::PathType::{Exact, ImplementationSpecific};
        let paths = || ingress.rules.iter().flat_map(|rule| &rule.paths);
        let is_regex = read.options.use_regex || read.options.rewrite_target.is_some();
        if !is_regex
            && paths().any(|path| path.path_type == ImplementationSpecific && &*path.path != "/")
        {
            self.different.push(Item {
                what: "pathType: ImplementationSpecific".into(),
                note: Some(
                    "read as Prefix, element by element: /foo does not match /foobar, as it does in \
                     ingress-nginx"
                        .into(),
                ),
            });
        }
        let rewritten = read.options.rewrite_target.as_ref();
        if rewritten.is_some_and(|to| !to.contains('$'))
            && paths().any(|path| path.path_type != Exact)
        {
            self.different.push(Item {
                what: "rewrite-target without groups".into(),
                note: Some(
                    "every path below becomes the same one, as in ingress-nginx; write the path as \
                     /foo(/|$)(.*) and the target as /$2 to keep the rest"
                        .into(),
                ),
            });
        }
    }

    /// Nothing stands against moving it.
    pub fn is_clean(&self) -> bool {
        self.refused.is_empty() && self.warnings.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ingress)?;
        match &self.class {
            Some(class) => writeln!(f, " (class {class})")?,
            None => writeln!(f)?,
        }
        let parts = [
            ("honoured", &self.honoured),
            ("different", &self.different),
            ("refused", &self.refused),
            ("warning", &self.warnings),
        ];
        for (heading, items) in parts {
            for item in items {
                write!(f, "  {heading:<9} {}", item.what)?;
                match &item.note {
                    Some(note) => writeln!(f, "\n            {note}")?,
                    None => writeln!(f)?,
                }
            }
        }
        if parts.iter().all(|(_, items)| items.is_empty()) {
            writeln!(f, "  nothing but its rules, which work as they are")?;
        }
        Ok(())
    }
}

/// The end of a list of reports, for a person.
pub fn summary(reports: &[Report]) -> String {
    let clean = reports.iter().filter(|report| report.is_clean()).count();
    let different = reports.iter().filter(|it| it.is_clean() && !it.different.is_empty()).count();
    let refused = reports.iter().filter(|report| !report.refused.is_empty()).count();
    let warned = reports.len() - clean - refused;
    let warned = match warned {
        0 => String::new(),
        count => format!(", {count} have something else wrong with them"),
    };
    format!(
        "{} Ingresses: {} work as they are, {different} with differences, {refused} ask for something \
         that is refused{warned}",
        reports.len(),
        clean - different
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

    use telaio_model::{
        IngressBackend, IngressPath, IngressRule, Meta, ObjectKey, PathType, PortRef,
    };

    use super::*;

    #[test]
    fn a_report_says_what_is_honoured_different_and_refused() {
        let mut meta = Meta::named(ObjectKey::new("shop", "web"));
        meta.annotations = [
            ("nginx.ingress.kubernetes.io/proxy-body-size".into(), "8m".into()),
            ("nginx.ingress.kubernetes.io/limit-rps".into(), "5".into()),
            ("nginx.ingress.kubernetes.io/server-snippet".into(), "return 200;".into()),
            ("kubernetes.io/ingress.class".into(), "nginx".into()),
        ]
        .into();
        let backend = IngressBackend { service: "web".into(), port: PortRef::Number(80) };
        let path_type = PathType::ImplementationSpecific;
        let path = IngressPath { path: "/foo".into(), path_type, backend };
        let ingress = Ingress {
            meta,
            class: None,
            default_backend: None,
            rules: vec![IngressRule { host: None, paths: vec![path] }],
            tls: vec![],
            status_ips: vec![],
            status_hostnames: vec![],
        };
        let events = [IngressEvent::Add(Arc::new(ingress))];
        assert!(reports(events.clone(), Some("other")).is_empty());
        let report = reports(events, Some("nginx")).remove(0);
        assert_eq!(report.class.as_deref(), Some("nginx"));
        assert_eq!(
            (report.honoured.len(), report.different.len(), report.refused.len()),
            (1, 2, 1)
        );
        let text = report.to_string();
        for part in
            ["shop/web (class nginx)", "honoured  nginx", "refused   nginx", "CVE-2025-1974"]
        {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["refused"][0]["what"], "nginx.ingress.kubernetes.io/server-snippet");
        // It is compiled with what it refers to, whatever its class: what is said of its annotations is
        // not said twice.
        assert_eq!(report.warnings.len(), 1, "{text}");
        assert!(
            text.contains("warning   BackendMissing\n            the service shop/web does not"),
            "{text}"
        );
        assert_eq!(
            summary(&[report]),
            "1 Ingresses: 0 work as they are, 0 with differences, 1 ask for something that is refused"
        );
    }
}
