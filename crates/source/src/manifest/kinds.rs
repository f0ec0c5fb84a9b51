//! Which kinds of manifests are ours, and which are none of our business.

/// Kinds of Kubernetes and its usual companions that a folder of manifests holds beside ours. They
/// are skipped without a word; any other kind is a mistake worth a message.
const SKIPPED: &[&str] = &[
    "APIService",
    "BackendTLSPolicy",
    "Binding",
    "CSIDriver",
    "CSINode",
    "CSIStorageCapacity",
    "CertificateSigningRequest",
    "ClusterRole",
    "ClusterRoleBinding",
    "ClusterTrustBundle",
    "ControllerRevision",
    "CronJob",
    "CustomResourceDefinition",
    "DaemonSet",
    "Deployment",
    "DeviceClass",
    "Endpoints",
    "Event",
    "FlowSchema",
    "GRPCRoute",
    "Gateway",
    "GatewayClass",
    "HTTPRoute",
    "HorizontalPodAutoscaler",
    "IPAddress",
    "Job",
    "Kustomization",
    "Lease",
    "LimitRange",
    "ListenerSet",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "MutatingWebhookConfiguration",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "PodSecurityPolicy",
    "PodTemplate",
    "PriorityClass",
    "PriorityLevelConfiguration",
    "ReferenceGrant",
    "ReplicaSet",
    "ReplicationController",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "ResourceQuota",
    "ResourceSlice",
    "Role",
    "RoleBinding",
    "RuntimeClass",
    "ServiceAccount",
    "StatefulSet",
    "StorageClass",
    "StorageVersion",
    "StorageVersionMigration",
    "TCPRoute",
    "TLSRoute",
    "UDPRoute",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
    "VolumeAttachment",
    "VolumeAttributesClass",
];

/// Whether a kind is one of those that are skipped.
pub(super) fn is_skipped(kind: &str) -> bool {
    SKIPPED.binary_search(&kind).is_ok()
}

/// Whether objects of a kind that we know have no namespace.
pub(super) fn is_cluster_wide(kind: &str) -> bool {
    matches!(kind, "Node" | "Namespace" | "IngressClass" | "ServiceCIDR")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_order_as_the_search_needs() {
        assert!(SKIPPED.is_sorted());
        assert!(is_skipped("Deployment"));
        assert!(!is_skipped("Service"));
    }
}
