//! NetworkPolicy, `networking.k8s.io/v1`.

use serde::Deserialize;
use telaio_model::{FieldError, Kind, PolicyPeer, PolicyPort, PolicyPortMatch, PolicyRule};

use super::check::{Errors, Quoted};
use super::meta::{Annotations, NameRule};
use super::value::nullable;
use super::{Context, IntOrString, LabelSelector, Manifest, ObjectMeta};

/// A NetworkPolicy.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NetworkPolicy {
    /// Metadata.
    #[serde(deserialize_with = "nullable")]
    pub metadata: ObjectMeta,
    /// What is allowed.
    #[serde(deserialize_with = "nullable")]
    pub spec: NetworkPolicySpec,
}

/// `spec` of a NetworkPolicy.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkPolicySpec {
    /// The pods it is about.
    #[serde(deserialize_with = "nullable")]
    pub pod_selector: LabelSelector,
    /// `Ingress`, `Egress`; empty: Ingress, and Egress if there are egress rules.
    #[serde(deserialize_with = "nullable")]
    pub policy_types: Vec<String>,
    /// What may come in.
    #[serde(deserialize_with = "nullable")]
    pub ingress: Vec<PolicyIngress>,
    /// What may go out.
    #[serde(deserialize_with = "nullable")]
    pub egress: Vec<PolicyEgress>,
}

/// One of `spec.ingress`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PolicyIngress {
    /// From whom; empty: anybody.
    #[serde(deserialize_with = "nullable")]
    pub from: Vec<NetworkPolicyPeer>,
    /// To which ports; empty: all.
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<NetworkPolicyPort>,
}

/// One of `spec.egress`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PolicyEgress {
    /// To whom; empty: anybody.
    #[serde(deserialize_with = "nullable")]
    pub to: Vec<NetworkPolicyPeer>,
    /// To which ports; empty: all.
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<NetworkPolicyPort>,
}

/// A side of the traffic that a rule allows.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkPolicyPeer {
    /// A network.
    pub ip_block: Option<IpBlock>,
    /// Which namespaces.
    pub namespace_selector: Option<LabelSelector>,
    /// Which pods in them.
    pub pod_selector: Option<LabelSelector>,
}

/// A network without some parts of it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct IpBlock {
    /// The network.
    pub cidr: String,
    /// The parts left out.
    #[serde(deserialize_with = "nullable")]
    pub except: Vec<String>,
}

/// A port that a rule allows.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkPolicyPort {
    /// Its protocol; nothing is TCP.
    pub protocol: Option<String>,
    /// Its number or name; nothing is every port.
    pub port: Option<IntOrString>,
    /// The last port of a range.
    pub end_port: Option<i64>,
}

impl Manifest for NetworkPolicy {
    const KIND: Kind = Kind::NetworkPolicy;
    const KIND_NAME: &'static str = "NetworkPolicy";
    const API_VERSION: &'static str = "networking.k8s.io/v1";
    const NAMESPACED: bool = true;
    type Model = telaio_model::NetworkPolicy;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn into_model(
        self,
        ctx: &Context,
    ) -> Result<Option<telaio_model::NetworkPolicy>, Vec<FieldError>> {
        let mut errors = Errors::default();
        let meta = self.metadata.to_model::<Self>(
            ctx,
            NameRule::Subdomain,
            Annotations::Ours,
            &mut errors,
        );
        let spec = self.spec;
        let (for_ingress, for_egress) = policy_types(&spec, &mut errors);
        let mut ingress = Vec::with_capacity(spec.ingress.len());
        for (i, rule) in spec.ingress.iter().enumerate() {
            let path = format!("spec.ingress[{i}]");
            ingress.push(PolicyRule {
                peers: peers(ctx, &rule.from, &format!("{path}.from"), &mut errors),
                ports: ports(ctx, &rule.ports, &path, &mut errors),
            });
        }
        let mut egress = Vec::with_capacity(spec.egress.len());
        for (i, rule) in spec.egress.iter().enumerate() {
            let path = format!("spec.egress[{i}]");
            egress.push(PolicyRule {
                peers: peers(ctx, &rule.to, &format!("{path}.to"), &mut errors),
                ports: ports(ctx, &rule.ports, &path, &mut errors),
            });
        }
        let pods = spec.pod_selector.to_model(ctx, "spec.podSelector", &mut errors);
        errors.finish(Some(telaio_model::NetworkPolicy {
            meta,
            pods,
            ingress: for_ingress.then_some(ingress),
            egress: for_egress.then_some(egress),
        }))
    }
}

/// Whether the policy is about what comes in, and about what goes out.
fn policy_types(spec: &NetworkPolicySpec, errors: &mut Errors) -> (bool, bool) {
    if spec.policy_types.is_empty() {
        return (true, !spec.egress.is_empty());
    }
    let mut types = (false, false);
    for (i, policy_type) in spec.policy_types.iter().enumerate() {
        match policy_type.as_str() {
            "Ingress" => types.0 = true,
            "Egress" => types.1 = true,
            other => errors.push(
                format_args!("spec.policyTypes[{i}]"),
                format_args!("{} is not known; write Ingress or Egress", Quoted(other)),
            ),
        }
    }
    types
}

fn peers(
    ctx: &Context,
    peers: &[NetworkPolicyPeer],
    path: &str,
    errors: &mut Errors,
) -> Vec<PolicyPeer> {
    let mut converted = Vec::with_capacity(peers.len());
    for (i, peer) in peers.iter().enumerate() {
        converted.extend(peer.to_model(ctx, &format!("{path}[{i}]"), errors));
    }
    converted
}

impl NetworkPolicyPeer {
    fn to_model(&self, ctx: &Context, path: &str, errors: &mut Errors) -> Option<PolicyPeer> {
        let by_labels = self.namespace_selector.is_some() || self.pod_selector.is_some();
        match &self.ip_block {
            Some(_) if by_labels => {
                errors
                    .push(path, "ipBlock stands alone; put the selectors into a peer of their own");
                None
            }
            Some(block) => block.to_model(path, errors),
            None if !by_labels => {
                // Taking it for "anybody" would open what the author meant to close.
                errors.push(path, "a peer needs an ipBlock, a namespaceSelector or a podSelector");
                None
            }
            None => {
                let mut selector = |selector: &Option<LabelSelector>, name: &str| {
                    let selector = selector.as_ref()?;
                    Some(selector.to_model(ctx, &format!("{path}.{name}"), errors))
                };
                Some(PolicyPeer::Pods {
                    namespaces: selector(&self.namespace_selector, "namespaceSelector"),
                    pods: selector(&self.pod_selector, "podSelector"),
                })
            }
        }
    }
}

impl IpBlock {
    fn to_model(&self, path: &str, errors: &mut Errors) -> Option<PolicyPeer> {
        let cidr = errors.net(format_args!("{path}.ipBlock.cidr"), &self.cidr)?;
        let mut except = Vec::with_capacity(self.except.len());
        for (i, text) in self.except.iter().enumerate() {
            let path = format_args!("{path}.ipBlock.except[{i}]");
            let Some(net) = errors.net(path, text) else { continue };
            if net == cidr || !cidr.contains(&net) {
                errors.push(path, format_args!("{net} must be a smaller part of {cidr}"));
                continue;
            }
            except.push(net);
        }
        Some(PolicyPeer::Block { cidr, except })
    }
}

fn ports(
    ctx: &Context,
    ports: &[NetworkPolicyPort],
    path: &str,
    errors: &mut Errors,
) -> Vec<PolicyPort> {
    let mut converted = Vec::with_capacity(ports.len());
    for (i, port) in ports.iter().enumerate() {
        let path = format!("{path}.ports[{i}]");
        let protocol = errors.protocol(format_args!("{path}.protocol"), port.protocol.as_deref());
        let matched = port.to_match(ctx, &path, errors);
        if let (Some(protocol), Some(port)) = (protocol, matched) {
            converted.push(PolicyPort { protocol, port });
        }
    }
    converted
}

impl NetworkPolicyPort {
    fn to_match(&self, ctx: &Context, path: &str, errors: &mut Errors) -> Option<PolicyPortMatch> {
        if self.end_port.is_some() && !matches!(self.port, Some(IntOrString::Int(_))) {
            errors.push(format_args!("{path}.endPort"), "needs a port by number to begin with");
            return None;
        }
        match &self.port {
            None => Some(PolicyPortMatch::All),
            Some(IntOrString::String(name)) => {
                errors.port_name(format_args!("{path}.port"), name);
                Some(PolicyPortMatch::Named(ctx.intern(name)))
            }
            Some(IntOrString::Int(first)) => {
                let first = errors.port(format_args!("{path}.port"), *first)?;
                let last = match self.end_port {
                    Some(last) => errors.port(format_args!("{path}.endPort"), last)?,
                    None => first,
                };
                if last < first {
                    errors.push(
                        format_args!("{path}.endPort"),
                        format_args!("{last} is less than port, {first}"),
                    );
                    return None;
                }
                Some(PolicyPortMatch::Range(first, last))
            }
        }
    }
}
