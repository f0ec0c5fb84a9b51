//! How each kind is asked for, and how its objects are read.

use serde::Deserialize;
use telaio_model::service::{LABEL_HEADLESS, LABEL_PROXY_NAME};
use telaio_model::{FieldError, Kind, Object, ObjectKey};

use super::options::KubeOptions;
use crate::manifest::{self, Context, Manifest};

/// On a ConfigMap that an Ingress refers to: only those that have it are read.
pub const LABEL_CONFIG: &str = "telaio.dev/config";

/// A kind as it is watched.
#[derive(Debug, Clone)]
pub(super) struct WatchedKind {
    pub(super) kind: Kind,
    /// The API group; empty for the core group.
    pub(super) group: &'static str,
    pub(super) path: String,
    pub(super) labels: Option<String>,
    pub(super) fields: Option<&'static str>,
    /// Nothing is synced without it.
    pub(super) essential: bool,
    /// Servers that do not have it at all are in order.
    pub(super) optional: bool,
    pub(super) decode: fn(&str, &Context) -> Option<Decoded>,
}

/// An object as it was read.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) key: ObjectKey,
    pub(super) version: Option<String>,
    pub(super) value: DecodedValue,
}

/// What an object is to us.
#[derive(Debug)]
pub(super) enum DecodedValue {
    /// One that we use.
    Object(Object),
    /// A right one that is none of ours.
    NotOurs,
    /// One that does not hold.
    Bad(Vec<FieldError>),
}

impl WatchedKind {
    /// How to watch `kind`; `None` for a kind that no API server has.
    pub(super) fn new(kind: Kind, options: &KubeOptions) -> Option<Self> {
        let watched = match kind {
            Kind::Service => Self::of::<manifest::Service>(),
            Kind::EndpointSlice => Self::of::<manifest::EndpointSlice>(),
            Kind::Node => Self::of::<manifest::Node>(),
            Kind::Ingress => Self::of::<manifest::Ingress>(),
            Kind::IngressClass => Self::of::<manifest::IngressClass>(),
            Kind::TlsSecret => Self::of::<manifest::Secret>(),
            Kind::ConfigMap => Self::of::<manifest::ConfigMap>(),
            Kind::Namespace => Self::of::<manifest::Namespace>(),
            Kind::Pod => Self::of::<manifest::Pod>(),
            Kind::NetworkPolicy => Self::of::<manifest::NetworkPolicy>(),
            Kind::ServiceCidr => Self::of::<manifest::ServiceCidr>(),
            Kind::Override => Self::of::<manifest::Override>(),
            Kind::AuthSecret => Self { kind, ..Self::of::<manifest::Secret>() },
            _ => return None,
        };
        Some(watched.selecting(options))
    }

    fn of<M: Manifest>() -> Self {
        let group = M::API_VERSION.split_once('/').map_or("", |(group, _)| group);
        let root = if group.is_empty() { "/api" } else { "/apis" };
        Self {
            kind: M::KIND,
            group,
            path: format!("{root}/{}/{}", M::API_VERSION, M::KIND.resource()),
            labels: None,
            fields: None,
            essential: matches!(M::KIND, Kind::Service | Kind::EndpointSlice | Kind::Node),
            optional: matches!(M::KIND, Kind::ServiceCidr | Kind::Override | Kind::ConfigMap),
            decode: decode::<M>,
        }
    }

    /// Has the server leave out what nobody will use.
    fn selecting(mut self, options: &KubeOptions) -> Self {
        match self.kind {
            Kind::Service | Kind::EndpointSlice if options.headless => {
                self.labels = Some(format!("!{LABEL_PROXY_NAME}"));
            }
            Kind::Service | Kind::EndpointSlice => {
                self.labels = Some(format!("!{LABEL_PROXY_NAME},!{LABEL_HEADLESS}"));
                // The label is on a headless service's slices, seldom on the service itself.
                self.fields = (self.kind == Kind::Service).then_some("spec.clusterIP!=None");
            }
            Kind::TlsSecret => self.fields = Some("type=kubernetes.io/tls"),
            // Most ConfigMaps are large and none of our business: those for us say so.
            Kind::ConfigMap => self.labels = Some(LABEL_CONFIG.to_owned()),
            Kind::AuthSecret => self.fields = Some("type=Opaque"),
            _ => {}
        }
        self
    }
}

/// Reads an object straight into the fields that we use: nothing else is ever held. `None` when it
/// does not even have a name.
fn decode<M: Manifest>(json: &str, ctx: &Context) -> Option<Decoded> {
    let Ok(manifest) = serde_json::from_str::<M>(json) else {
        let named = Named::read(json)?;
        let value = DecodedValue::Bad(vec![wrong_type::<M>(json)]);
        return Some(Decoded { key: named.key(ctx), version: named.resource_version, value });
    };
    let metadata = manifest.metadata();
    let name = metadata.name.as_deref().filter(|name| !name.is_empty())?;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let key = ObjectKey::new(ctx.intern(namespace), ctx.intern(name));
    let version = metadata.resource_version.clone();
    let value = match manifest.into_model(ctx) {
        Ok(Some(model)) => DecodedValue::Object(model.into()),
        Ok(None) => DecodedValue::NotOurs,
        Err(errors) => DecodedValue::Bad(errors),
    };
    Some(Decoded { key, version, value })
}

/// The field that has the wrong type. Reads the object once more, for only then the path is known.
fn wrong_type<M: Manifest>(json: &str) -> FieldError {
    let mut reader = serde_json::Deserializer::from_str(json);
    match serde_path_to_error::deserialize::<_, M>(&mut reader) {
        Ok(_) => FieldError::new("", "cannot be read"),
        Err(error) => FieldError::new(error.path().to_string(), error.inner()),
    }
}

/// The name of an object whatever else is in it.
#[derive(Debug)]
pub(super) struct Named {
    name: String,
    namespace: String,
    pub(super) resource_version: Option<String>,
}

impl Named {
    pub(super) fn read(json: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Outer {
            metadata: Inner,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Inner {
            name: String,
            namespace: Option<String>,
            resource_version: Option<String>,
        }
        let Inner { name, namespace, resource_version } =
            serde_json::from_str::<Outer>(json).ok()?.metadata;
        Some(Self { name, namespace: namespace.unwrap_or_default(), resource_version })
    }

    pub(super) fn key(&self, ctx: &Context) -> ObjectKey {
        ObjectKey::new(ctx.intern(&self.namespace), ctx.intern(&self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intern::Interner;

    #[test]
    fn every_kind_of_the_api_can_be_watched() {
        for kind in Kind::ALL {
            let watched = WatchedKind::new(*kind, &KubeOptions::default()).unwrap();
            assert!(watched.path.ends_with(kind.resource()), "{kind}: {}", watched.path);
        }
    }

    #[test]
    fn an_object_of_wrong_types_is_bad_and_named() {
        let ctx = Context::cluster(Interner::default());
        let json = r#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"7"},"spec":{"ports":[{"port":"x"}]}}"#;
        let decoded = decode::<manifest::Service>(json, &ctx).unwrap();
        assert_eq!(
            (decoded.key, decoded.version.as_deref()),
            (ObjectKey::new("n", "a"), Some("7"))
        );
        let DecodedValue::Bad(errors) = decoded.value else { panic!("{:?}", decoded.value) };
        assert_eq!(errors[0].path, "spec.ports[0].port");
        assert!(decode::<manifest::Service>("{}", &ctx).is_none());
        assert!(decode::<manifest::Service>("[]", &ctx).is_none());
    }
}
