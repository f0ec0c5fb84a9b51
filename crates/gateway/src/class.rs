//! Which Ingresses are ours.
//!
//! The old annotation `kubernetes.io/ingress.class` wins over `spec.ingressClassName`, as Kubernetes
//! asks for; either names an IngressClass, which is ours if its controller is. An Ingress that names
//! none belongs to the default class. The name `telaio` needs no IngressClass, so that a directory
//! can do without.

use std::collections::BTreeMap;
use std::sync::Arc;

use telaio_model::{Ingress, IngressClass};

use crate::annotations;

/// The classes of a cluster.
#[derive(Debug, Clone, Default)]
pub struct Classes {
    known: BTreeMap<Arc<str>, Arc<IngressClass>>,
}

/// What decides besides the classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassSettings {
    /// Our controller's name.
    pub controller: Arc<str>,
    /// The class that is ours without an IngressClass.
    pub name: Arc<str>,
    /// Whether Ingresses that name no class are ours where no class is the default. For directories:
    /// in a cluster somebody else may serve them.
    pub classless: bool,
}

impl Default for ClassSettings {
    fn default() -> Self {
        Self { controller: crate::CONTROLLER.into(), name: "telaio".into(), classless: false }
    }
}

impl Classes {
    /// A class is now this, or no more. Says whether that can matter.
    pub fn set(&mut self, name: &Arc<str>, class: Option<Arc<IngressClass>>) -> bool {
        let before = match class {
            Some(class) => {
                let before = self.known.insert(Arc::clone(name), Arc::clone(&class));
                return before != Some(class);
            }
            None => self.known.remove(name),
        };
        before.is_some()
    }

    /// Whether an Ingress is ours.
    pub fn is_ours(&self, ingress: &Ingress, settings: &ClassSettings) -> bool {
        let named =
            ingress.meta.annotations.get(annotations::CLASS).filter(|name| !name.is_empty());
        let is_ours = |class: &Arc<IngressClass>| class.controller == settings.controller;
        if let Some(name) = named.or(ingress.class.as_ref()) {
            return self.known.get(name).map_or(*name == settings.name, is_ours);
        }
        // The API allows one default; of several the first by name counts.
        let default = self.known.values().find(|class| class.is_default());
        default.map_or(settings.classless, is_ours)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

    use telaio_model::{Meta, ObjectKey};

    use super::*;

    fn class(name: &str, controller: &str, default: bool) -> Arc<IngressClass> {
        let mut meta = Meta::named(ObjectKey::cluster(name));
        if default {
            let name = "ingressclass.kubernetes.io/is-default-class";
            meta.annotations = [(name.into(), "true".into())].into();
        }
        Arc::new(IngressClass { meta, controller: controller.into() })
    }

    fn ingress(class: Option<&str>, annotation: Option<&str>) -> Ingress {
        let mut meta = Meta::named(ObjectKey::new("shop", "web"));
        if let Some(name) = annotation {
            meta.annotations = [(annotations::CLASS.into(), name.into())].into();
        }
        Ingress {
            meta,
            class: class.map(Into::into),
            default_backend: None,
            rules: vec![],
            tls: vec![],
            status_ips: vec![],
            status_hostnames: vec![],
        }
    }

    #[test]
    fn the_controller_of_the_class_decides_and_the_old_annotation_wins() {
        let mut classes = Classes::default();
        assert!(classes.set(&"edge".into(), Some(class("edge", crate::CONTROLLER, false))));
        assert!(!classes.set(&"edge".into(), Some(class("edge", crate::CONTROLLER, false))));
        classes.set(&"nginx".into(), Some(class("nginx", "k8s.io/ingress-nginx", true)));
        let settings = ClassSettings { classless: true, ..ClassSettings::default() };
        let cases = [
            (Some("edge"), None, true),
            (Some("nginx"), None, false),
            (Some("gone"), None, false),
            (Some("telaio"), None, true),
            (None, None, false),
            (Some("nginx"), Some("edge"), true),
            (Some("edge"), Some("nginx"), false),
            (None, Some("edge"), true),
        ];
        for (name, annotation, ours) in cases {
            let ingress = ingress(name, annotation);
            assert_eq!(classes.is_ours(&ingress, &settings), ours, "{name:?} {annotation:?}");
        }
    }

    #[test]
    fn without_a_class_the_default_one_decides_and_without_one_the_setting() {
        let mut classes = Classes::default();
        let (strict, easy) =
            (ClassSettings::default(), ClassSettings { classless: true, ..Default::default() });
        assert!(!classes.is_ours(&ingress(None, None), &strict));
        assert!(classes.is_ours(&ingress(None, None), &easy));
        classes.set(&"edge".into(), Some(class("edge", crate::CONTROLLER, true)));
        assert!(classes.is_ours(&ingress(None, None), &strict));
        assert!(classes.set(&"edge".into(), None));
        assert!(!classes.is_ours(&ingress(None, None), &strict));
    }
}
