use std::net::IpAddr;

use telaio_model::{
    AddedEndpoint, AddressType, ClientIpAffinity, Conditions, IpMode, OverrideAction,
    OverrideTarget, PathType, PodPhase, PolicyPeer, PolicyPortMatch, PortRef, Protocol, TargetPort,
    TrafficDistribution,
};

use super::*;

fn read(text: &str) -> FileContent {
    read_file_content(
        "test.yaml",
        text.as_bytes(),
        Format::Yaml,
        &Context::directory(Interner::default()),
    )
}

/// The objects of a text that has no problems.
#[track_caller]
fn objects(text: &str) -> Vec<Object> {
    let content = read(text);
    assert_eq!(content.problems, []);
    content.objects.into_iter().map(|found| found.object).collect()
}

macro_rules! only {
    ($kind:ident, $text:expr) => {
        match objects($text).as_slice() {
            [Object::$kind(value)] => telaio_model::$kind::clone(value),
            other => panic!("{other:?}"),
        }
    };
}

/// The problems of a text, as `field: message`.
fn problems(text: &str) -> Vec<String> {
    let problems = read(text).problems.into_iter();
    problems.map(|p| format!("{}: {}", p.field.unwrap_or_default(), p.message)).collect()
}

/// The fields of a text that have problems.
fn bad_fields(text: &str) -> Vec<String> {
    read(text).problems.into_iter().map(|problem| problem.field.unwrap_or_default()).collect()
}

fn service(spec: &str) -> String {
    format!("{{apiVersion: v1, kind: Service, metadata: {{name: web}}, spec: {{{spec}}}}}")
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_service_with_everything_is_read() {
    let service = only!(
        Service,
        "
apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
  creationTimestamp: 2026-01-31T12:00:00Z
  labels: {app: web}
  annotations:
    a: b
    kubectl.kubernetes.io/last-applied-configuration: '{}'
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.7
  clusterIPs: [10.96.0.7, 'fd00::7']
  externalIPs: [192.0.2.1]
  selector: {app: web}
  ports:
  - {name: http, port: 80, targetPort: web, nodePort: 30080, appProtocol: kubernetes.io/h2c}
  - {name: dns, port: 53, protocol: UDP, targetPort: 5353, nodePort: 0}
  - {name: same, port: 81}
  externalTrafficPolicy: Local
  internalTrafficPolicy: Local
  sessionAffinity: ClientIP
  healthCheckNodePort: 32000
  trafficDistribution: PreferClose
  publishNotReadyAddresses: true
  loadBalancerSourceRanges: [' 10.0.0.0/8', '0.0.0.0/0 ']
status:
  loadBalancer:
    ingress: [{ip: 203.0.113.5, ipMode: Proxy}, {ip: 203.0.113.6}, {hostname: lb.example}]
"
    );
    assert_eq!(service.meta.key.to_string(), "shop/web");
    assert_eq!(service.meta.created_s, Some(1_769_860_800));
    assert_eq!(service.meta.annotations.len(), 1);
    assert_eq!(service.cluster_ips, [ip("10.96.0.7"), ip("fd00::7")]);
    assert_eq!(service.external_ips, [ip("192.0.2.1")]);
    assert_eq!(service.ports[0].target_port, TargetPort::Name("web".into()));
    assert_eq!(service.ports[0].node_port, Some(30080));
    assert_eq!(service.ports[0].app_protocol.as_deref(), Some("kubernetes.io/h2c"));
    assert_eq!((service.ports[1].protocol, service.ports[1].node_port), (Protocol::Udp, None));
    assert_eq!(service.ports[2].target_port, TargetPort::Number(81));
    assert_eq!(service.session_affinity, Some(ClientIpAffinity { timeout_s: 10_800 }));
    assert_eq!(service.health_check_node_port, Some(32_000));
    assert_eq!(service.traffic_distribution, Some(TrafficDistribution::PreferSameZone));
    assert!(service.publish_not_ready_addresses && service.uses_local_endpoints());
    let ranges: Vec<_> = service.source_ranges.iter().map(ToString::to_string).collect();
    assert_eq!(ranges, ["10.0.0.0/8", "0.0.0.0/0"]);
    let modes: Vec<_> = service.load_balancer.iter().map(|ingress| ingress.ip_mode).collect();
    assert_eq!(modes, [IpMode::Proxy, IpMode::Vip]);
}

#[test]
fn nothing_where_something_could_be_is_the_default() {
    let service = only!(
        Service,
        "
apiVersion: v1
kind: Service
metadata: {name: web, labels: null, annotations: ~, creationTimestamp: null}
spec:
  clusterIP: ''
  clusterIPs:
  externalIPs: null
  sessionAffinity: ''
  selector:
  healthCheckNodePort: 0
  trafficDistribution: SomethingNew
  ports: [{port: 80, name: null, targetPort: 0}]
status:
"
    );
    assert_eq!(service.meta.key.to_string(), "default/web");
    assert!(service.cluster_ips.is_empty() && !service.headless);
    assert_eq!(service.health_check_node_port, None);
    assert_eq!(service.traffic_distribution, None);
    assert_eq!(service.ports[0].target_port, TargetPort::Number(80));
    let slice = only!(
        EndpointSlice,
        "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a}, \
         addressType: IPv4, endpoints: null, ports: null}"
    );
    assert!(slice.endpoints.is_empty() && slice.ports.is_empty() && slice.service.is_none());
}

#[test]
fn headless_and_named_services_are_told_apart() {
    assert!(only!(Service, &service("clusterIP: None")).headless);
    assert!(only!(Service, &service("clusterIPs: [None]")).headless);
    let named = only!(Service, &service("type: ExternalName, externalName: db.example"));
    assert_eq!(named.external_name.as_deref(), Some("db.example"));
}

#[test]
fn a_service_against_the_rules_is_refused_by_field() {
    for (spec, fields) in [
        ("", vec!["spec.ports"]),
        ("type: Loadbalancer, ports: [{port: 80}]", vec!["spec.type"]),
        ("ports: [{}]", vec!["spec.ports[0].port"]),
        ("ports: [{port: 80}, {port: 81}]", vec!["spec.ports[0].name", "spec.ports[1].name"]),
        ("ports: [{port: 80, name: a}, {port: 81, name: a}]", vec!["spec.ports[1].name"]),
        ("ports: [{port: 80, name: a}, {port: 80, name: b}]", vec!["spec.ports[1].port"]),
        ("ports: [{port: 80, name: A_b}]", vec!["spec.ports[0].name"]),
        ("ports: [{port: 80, protocol: tcp}]", vec!["spec.ports[0].protocol"]),
        ("ports: [{port: 80, nodePort: 30000}]", vec!["spec.ports[0].nodePort"]),
        ("ports: [{port: 80, targetPort: 65536}]", vec!["spec.ports[0].targetPort"]),
        ("ports: [{port: 80, targetPort: '8080'}]", vec!["spec.ports[0].targetPort"]),
        (
            "type: NodePort, ports: [{name: a, port: 80, nodePort: 30000}, \
             {name: b, port: 81, nodePort: 30000}]",
            vec!["spec.ports[1].nodePort"],
        ),
        ("clusterIPs: [10.0.0.1, 10.0.0.2], ports: [{port: 80}]", vec!["spec.clusterIPs[1]"]),
        ("clusterIPs: [None, 10.0.0.2]", vec!["spec.clusterIPs"]),
        (
            "clusterIP: 10.0.0.1, clusterIPs: [10.0.0.2], ports: [{port: 80}]",
            vec!["spec.clusterIPs[0]"],
        ),
        ("type: NodePort, clusterIP: None, ports: [{port: 80}]", vec!["spec.clusterIP"]),
        ("type: ExternalName", vec!["spec.externalName"]),
        ("type: ExternalName, externalName: a, clusterIP: 10.0.0.1", vec!["spec.clusterIP"]),
        ("clusterIP: 127.0.0.1, ports: [{port: 80}]", vec!["spec.clusterIP"]),
        ("externalTrafficPolicy: local, ports: [{port: 80}]", vec!["spec.externalTrafficPolicy"]),
        (
            "sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}}, \
             ports: [{port: 80}]",
            vec!["spec.sessionAffinityConfig.clientIP.timeoutSeconds"],
        ),
        ("healthCheckNodePort: 30000, ports: [{port: 80}]", vec!["spec.healthCheckNodePort"]),
        ("ipFamilies: [IPv4, IPv4], ports: [{port: 80}]", vec!["spec.ipFamilies[1]"]),
        (
            "ipFamilies: [IPv5], ports: [{port: 0}]",
            vec!["spec.ipFamilies[0]", "spec.ports[0].port"],
        ),
        ("ipFamilyPolicy: Dual, ports: [{port: 80}]", vec!["spec.ipFamilyPolicy"]),
    ] {
        assert_eq!(bad_fields(&service(spec)), fields, "{spec}");
    }
}

#[test]
fn names_must_be_names() {
    let long = "a".repeat(64);
    for (name, valid) in [
        ("a", true),
        ("a-1", true),
        ("1a", true),
        ("", false),
        ("A", false),
        ("a.b", false),
        ("-a", false),
        (&*long, false),
    ] {
        let text = service("ports: [{port: 80}]").replace("web", &format!("'{name}'"));
        assert_eq!(problems(&text).is_empty(), valid, "{name}");
    }
    let text = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a.b, namespace: A}}";
    assert_eq!(bad_fields(text), ["metadata.namespace"]);
}

#[test]
fn what_a_service_leaves_to_the_control_plane_is_kept_beside_it() {
    let text = service(
        "type: LoadBalancer, allocateLoadBalancerNodePorts: false, ipFamilies: [IPv6, IPv4], \
         ipFamilyPolicy: PreferDualStack, ports: [{port: 80}]",
    );
    let allocation = read(&text).objects[0].allocation.clone().unwrap();
    assert_eq!(allocation.families, [telaio_model::IpFamily::V6, telaio_model::IpFamily::V4]);
    assert_eq!(allocation.policy, Some(FamilyPolicy::PreferDualStack));
    assert!(allocation.without_node_ports);
}

#[test]
fn a_slice_with_everything_is_read() {
    let slice = only!(
        EndpointSlice,
        "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  labels: {kubernetes.io/service-name: web}
  annotations: {telaio.dev/weight: '3'}
addressType: IPv4
ports:
- {name: http, port: 8080}
- {name: dns, protocol: UDP, port: 53}
- {}
endpoints:
- addresses: [10.0.0.1, 10.0.0.2]
  conditions: {ready: false, terminating: true, serving: true}
  hostname: web-0
  nodeName: n1
  zone: z1
  targetRef: {kind: Pod, name: web-0, namespace: default}
  hints: {forZones: [{name: z1}], forNodes: [{name: n1}]}
  deprecatedTopology: {kubernetes.io/hostname: n9}
- addresses: [127.0.0.1]
  targetRef: {kind: Node, name: n1}
"
    );
    assert_eq!(slice.service.as_deref(), Some("web"));
    assert_eq!(slice.ports[1].protocol, Some(Protocol::Udp));
    assert_eq!((&*slice.ports[2].name, slice.ports[2].port), ("", None));
    let first = &slice.endpoints[0];
    assert_eq!(first.address, ip("10.0.0.1"));
    assert_eq!(first.conditions, Conditions { ready: false, serving: true, terminating: true });
    assert_eq!((first.pod.as_deref(), first.weight), (Some("web-0"), Some(3)));
    let hints = first.hints.as_ref().unwrap();
    assert_eq!((&*hints.zones[0], &*hints.nodes[0]), ("z1", "n1"));
    let second = &slice.endpoints[1];
    assert_eq!((second.conditions, &second.pod, &second.hints), (Conditions::READY, &None, &None));
}

#[test]
fn a_slice_of_host_names_is_kept_without_endpoints() {
    let slice = only!(
        EndpointSlice,
        "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a}, \
         addressType: FQDN, endpoints: [{addresses: [db.example]}]}"
    );
    assert_eq!((slice.address_type, slice.endpoints.len()), (AddressType::Fqdn, 0));
}

#[test]
fn a_slice_against_the_rules_is_refused_by_field() {
    for (rest, fields) in [
        ("addressType: IPv5", vec!["addressType"]),
        ("endpoints: []", vec!["addressType"]),
        ("addressType: IPv4, endpoints: [{addresses: []}]", vec!["endpoints[0].addresses"]),
        (
            "addressType: IPv6, endpoints: [{addresses: ['fd00::1', 10.0.0.1]}]",
            vec!["endpoints[0].addresses[1]"],
        ),
        ("addressType: IPv4, ports: [{name: a}, {name: a}]", vec!["ports[1].name"]),
        ("addressType: IPv4, ports: [{port: 0}]", vec!["ports[0].port"]),
    ] {
        let text = format!(
            "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: a}}, {rest}}}"
        );
        assert_eq!(bad_fields(&text), fields, "{rest}");
    }
}

#[test]
fn loopback_endpoints_and_annotated_addresses_are_for_directories_only() {
    let ctx = Context::cluster(Interner::default());
    let slice: EndpointSlice = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": [{"addresses": ["127.0.0.1"]}],
    }))
    .unwrap();
    assert!(slice.clone().into_model(&ctx).is_err());
    assert!(slice.into_model(&Context::directory(Interner::default())).is_ok());
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "a", "annotations": {"telaio.dev/ip": "10.0.0.1"}},
    }))
    .unwrap();
    let model = pod.clone().into_model(&ctx).unwrap().unwrap();
    assert!(model.ips.is_empty() && !model.ready);
    let model = pod.into_model(&Context::directory(Interner::default())).unwrap().unwrap();
    assert_eq!((model.ips.as_slice(), model.ready), (&[ip("10.0.0.1")][..], true));
}

#[test]
fn a_pod_is_read_with_its_state() {
    let pod = only!(
        Pod,
        "
apiVersion: v1
kind: Pod
metadata: {name: web-0, deletionTimestamp: 2026-01-31T12:00:00Z, annotations: {other.example/x: y}}
spec:
  nodeName: n1
  hostNetwork: true
  containers:
  - ports: [{name: http, containerPort: 80, hostPort: 8080, hostIP: 0.0.0.0}]
  initContainers:
  - restartPolicy: Always
    ports: [{containerPort: 81, protocol: UDP, hostIP: 192.0.2.1}]
  - ports: [{containerPort: 82}]
status:
  phase: Running
  podIP: 10.0.0.1
  podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]
  conditions: [{type: Initialized, status: 'True'}, {type: Ready, status: 'True'}]
"
    );
    assert!(pod.ready && pod.terminating && pod.host_network);
    assert_eq!(pod.phase, PodPhase::Running);
    assert_eq!(pod.ips, [ip("10.0.0.1"), ip("fd00::1")]);
    assert_eq!(pod.ports.len(), 2);
    assert_eq!((pod.ports[0].host_port, pod.ports[0].host_ip), (Some(8080), None));
    assert_eq!(pod.ports[1].host_ip, Some(ip("192.0.2.1")));
    assert!(pod.meta.annotations.is_empty(), "notes of others are not kept");
    let fields = bad_fields(
        "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: \
         {telaio.dev/ip: '10.0.0.1,10.0.0.2', telaio.dev/weight: many}}}",
    );
    assert_eq!(
        fields,
        ["metadata.annotations[telaio.dev/weight]", "metadata.annotations[telaio.dev/ip]"]
    );
}

#[test]
fn a_node_is_read_with_its_addresses_and_networks() {
    let node = only!(
        Node,
        "{apiVersion: v1, kind: Node, metadata: {name: n1, labels: \
         {topology.kubernetes.io/zone: z1}}, spec: {podCIDR: 10.1.0.0/24, podCIDRs: [10.1.0.0/24, \
         'fd01::/64'], taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]}, \
         status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: Hostname, address: \
         n1}]}}"
    );
    assert_eq!((node.addresses.len(), node.pod_cidrs.len()), (1, 2));
    assert_eq!(node.zone().map(|zone| &**zone), Some("z1"));
    assert!(node.is_leaving());
}

#[test]
fn an_ingress_is_read_with_its_rules() {
    let ingress = only!(
        Ingress,
        "
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, annotations: {kubernetes.io/ingress.class: x}}
spec:
  ingressClassName: telaio
  defaultBackend: {service: {name: web, port: {name: http}}}
  rules:
  - host: '*.example.com'
    http:
      paths:
      - {path: /a, pathType: Exact, backend: {service: {name: a, port: {number: 80}}}}
      - {pathType: ImplementationSpecific, backend: {service: {name: b, port: {number: 80}}}}
  - http:
  tls: [{hosts: [a.example.com], secretName: cert}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.5}, {hostname: lb.example}]}}
"
    );
    assert_eq!(ingress.class.as_deref(), Some("telaio"));
    assert_eq!(ingress.default_backend.unwrap().port, PortRef::Name("http".into()));
    assert_eq!(ingress.rules[0].paths[0].path_type, PathType::Exact);
    assert_eq!(&*ingress.rules[0].paths[1].path, "/");
    assert_eq!((ingress.rules[1].host.clone(), ingress.rules[1].paths.len()), (None, 0));
    assert_eq!(ingress.status_ips, [ip("203.0.113.5")]);
    let path = |path: &str| {
        let text = format!(
            "{{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {{name: a}}, spec: \
             {{rules: [{{host: a.b, http: {{paths: [{path}]}}}}]}}}}"
        );
        bad_fields(&text)
    };
    let backend = "backend: {service: {name: a, port: {number: 80}}}";
    assert_eq!(
        path(&format!("{{path: a, pathType: Prefix, {backend}}}")),
        ["spec.rules[0].http.paths[0].path"]
    );
    assert_eq!(path(&format!("{{path: /a, {backend}}}")), ["spec.rules[0].http.paths[0].pathType"]);
    assert_eq!(
        path("{path: /, pathType: Prefix, backend: {resource: {kind: X, name: y}}}"),
        ["spec.rules[0].http.paths[0].backend"]
    );
    assert_eq!(
        path("{path: /, pathType: Prefix, backend: {service: {name: a, port: {}}}}"),
        ["spec.rules[0].http.paths[0].backend.service.port"]
    );
}

#[test]
fn only_certificates_are_kept_of_secrets_and_keys_are_never_shown() {
    let text = "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ntype: kubernetes.io/tls\n\
                data:\n  tls.crt: |\n    Y2Vy\n    dA==\nstringData: {tls.key: topsecret}\n";
    let secret = only!(TlsSecret, text);
    assert_eq!((&*secret.certificate, &*secret.private_key), (&b"cert"[..], &b"topsecret"[..]));
    let manifest: Secret =
        serde_json::from_value(serde_json::json!({"stringData": {"tls.key": "topsecret"}}))
            .unwrap();
    assert!(!format!("{manifest:?}").contains("topsecret"));
    let bad = problems(&text.replace("Y2Vy", "****").replace("stringData", "x"));
    assert_eq!(
        bad,
        [
            "data[tls.crt]: is not Base64; use stringData for plain text",
            "data[tls.key]: a Secret of type kubernetes.io/tls needs it"
        ]
    );
    assert_eq!(objects(&text.replace("kubernetes.io/tls", "Opaque")), []);
}

#[test]
fn of_opaque_secrets_only_users_and_authorities_are_kept() {
    let text = "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ntype: Opaque\n\
                data: {auth: dTpw, password: eA==}\nstringData: {ca.crt: pem}\n";
    let secret = only!(AuthSecret, text);
    assert_eq!(secret.users.as_deref(), Some(&b"u:p"[..]));
    assert_eq!(secret.authority.as_deref(), Some(&b"pem"[..]));
    assert!(!format!("{secret:?}").contains("u:p"));
    assert_eq!(objects(&text.replace("auth:", "other:").replace("ca.crt", "more")), []);
    assert_eq!(objects(&text.replace("Opaque", "helm.sh/release.v1")), []);
}

#[test]
fn a_network_policy_is_read_by_its_types() {
    let policy = |spec: &str| {
        format!(
            "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: a}}, spec: {{{spec}}}}}"
        )
    };
    let read = only!(
        NetworkPolicy,
        &policy(
            "podSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}, \
             ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}, \
             {namespaceSelector: {}, podSelector: {matchLabels: {a: b}}}], \
             ports: [{port: 80, endPort: 90}, {port: web, protocol: UDP}, {protocol: SCTP}]}]"
        )
    );
    let rules = read.ingress.unwrap();
    assert!(matches!(&rules[0].peers[0], PolicyPeer::Block { except, .. } if except.len() == 1));
    assert!(matches!(&rules[0].peers[1], PolicyPeer::Pods { namespaces: Some(_), pods: Some(_) }));
    let ports: Vec<_> = rules[0].ports.iter().map(|port| port.port.clone()).collect();
    assert_eq!(
        ports,
        [
            PolicyPortMatch::Range(80, 90),
            PolicyPortMatch::Named("web".into()),
            PolicyPortMatch::All
        ]
    );
    assert_eq!(read.egress, None);
    let egress = only!(NetworkPolicy, &policy("policyTypes: [Egress]"));
    assert_eq!((egress.ingress, egress.egress), (None, Some(vec![])));
    for (spec, fields) in [
        ("policyTypes: [In]", vec!["spec.policyTypes[0]"]),
        ("ingress: [{from: [{}]}]", vec!["spec.ingress[0].from[0]"]),
        (
            "ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}]}]",
            vec!["spec.ingress[0].from[0]"],
        ),
        (
            "egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/8]}}]}]",
            vec!["spec.egress[0].to[0].ipBlock.except[0]"],
        ),
        ("ingress: [{ports: [{port: 80, endPort: 79}]}]", vec!["spec.ingress[0].ports[0].endPort"]),
        ("ingress: [{ports: [{endPort: 79}]}]", vec!["spec.ingress[0].ports[0].endPort"]),
        (
            "podSelector: {matchExpressions: [{key: a, operator: In}]}",
            vec!["spec.podSelector.matchExpressions[0].values"],
        ),
        (
            "podSelector: {matchExpressions: [{key: a, operator: Is}]}",
            vec!["spec.podSelector.matchExpressions[0].operator"],
        ),
    ] {
        assert_eq!(bad_fields(&policy(spec)), fields, "{spec}");
    }
}

#[test]
fn what_people_wrote_into_an_override_is_one_line_and_names_are_names() {
    let text = |spec: &str| {
        format!(
            "{{apiVersion: telaio.dev/v1, kind: Override, metadata: {{name: a, namespace: shop}}, spec: {{{spec}}}}}"
        )
    };
    let drain = only!(
        Override,
        &text(
            "service: {name: web}, target: {pod: web-0}, action: drain, \
             by: \"anna\\e[31m\", reason: \" disk\\r\\nis\\u009bfailing\\n\""
        )
    );
    assert_eq!(&*drain.by, "anna\u{fffd}[31m");
    assert_eq!(&*drain.reason, "disk  is\u{fffd}failing");
    for (spec, field) in [
        ("service: {name: a}, target: {pod: \"a\\e[2J\"}, action: drain", "spec.target.pod"),
        ("service: {name: a}, target: {node: \"a\\nb\"}, action: drain", "spec.target.node"),
        (
            "service: {name: a}, target: {address: 10.0.0.1}, action: add, node: \"\\x7f\"",
            "spec.node",
        ),
        ("ingress: {name: a, host: \"a\\x07\"}, action: pause", "spec.ingress.host"),
        ("ingress: {name: a, path: \"/\\e[2J\"}, action: pause", "spec.ingress.path"),
    ] {
        assert_eq!(bad_fields(&text(spec)), [field], "{spec}");
    }
}

#[test]
fn an_override_says_who_what_and_until_when() {
    let text = |spec: &str| {
        format!(
            "{{apiVersion: telaio.dev/v1, kind: Override, metadata: {{name: a, namespace: shop}}, spec: {{{spec}}}}}"
        )
    };
    let drain = only!(
        Override,
        &text(
            "service: {name: web}, target: {pod: web-0}, action: drain, by: anna, reason: disk, \
             until: 2026-01-31T12:00:00Z"
        )
    );
    assert_eq!(drain.object.to_string(), "shop/web");
    assert_eq!(drain.target, OverrideTarget::Pod("web-0".into()));
    assert_eq!((drain.action, drain.until_s), (OverrideAction::Drain, Some(1_769_860_800)));
    let weight = only!(
        Override,
        &text(
            "service: {name: web, namespace: b}, target: {address: 10.0.0.1}, action: weight, weight: 3"
        )
    );
    assert_eq!(weight.object.to_string(), "b/web");
    assert_eq!(weight.action, OverrideAction::Weight(3));
    let add = only!(
        Override,
        &text(
            "service: {name: web}, target: {address: 10.0.0.9}, action: add, port: 81, weight: 2"
        )
    );
    let added = AddedEndpoint { port: Some(81), node: None, weight: Some(2) };
    assert_eq!(add.action, OverrideAction::Add(added));
    let pause = only!(Override, &text("ingress: {name: web, host: a.example}, action: pause"));
    assert_eq!(pause.ingress().unwrap().to_string(), "shop/web");
    assert_eq!(pause.action, OverrideAction::Pause { retry_after_s: 60 });
    assert_eq!(pause.target, OverrideTarget::Routes { host: Some("a.example".into()), path: None });
    for (spec, fields) in [
        ("target: {pod: a}, action: drain", vec!["spec"]),
        ("service: {}, target: {pod: a}, action: drain", vec!["spec.service.name"]),
        ("service: {name: a}, ingress: {name: a}, action: drain", vec!["spec"]),
        ("service: {name: a}, target: {node: b}, action: add", vec!["spec.target"]),
        (
            "service: {name: a}, target: {address: 10.0.0.1}, action: add, port: 0",
            vec!["spec.port"],
        ),
        ("service: {name: a}, target: {node: b}, action: pause", vec!["spec.action"]),
        ("ingress: {name: a}, action: drain", vec!["spec.action"]),
        ("ingress: {name: a}, action: pause, retryAfter: 0", vec!["spec.retryAfter"]),
        ("service: {name: a}, action: drain", vec!["spec.target"]),
        ("service: {name: a}, target: {pod: a, node: b}, action: drain", vec!["spec.target"]),
        ("service: {name: a}, target: {node: b}, action: stop", vec!["spec.action"]),
        ("service: {name: a}, target: {node: b}, action: weight", vec!["spec.weight"]),
        (
            "service: {name: a}, target: {node: b}, action: weight, weight: 70000",
            vec!["spec.weight"],
        ),
        ("service: {name: a}, target: {node: b}, action: drain, weight: 1", vec!["spec.weight"]),
        ("service: {name: a}, target: {address: x}, action: drain", vec!["spec.target.address"]),
        ("service: {name: a}, target: {node: b}, action: drain, until: soon", vec!["spec.until"]),
    ] {
        assert_eq!(bad_fields(&text(spec)), fields, "{spec}");
    }
}

#[test]
fn small_kinds_are_read() {
    let map =
        only!(ConfigMap, "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v}}");
    assert_eq!(map.data.get("k").map(|value| &**value), Some("v"));
    let class = only!(
        IngressClass,
        "{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: a, annotations: \
         {ingressclass.kubernetes.io/is-default-class: 'true'}}, spec: {controller: x/y}}"
    );
    assert!(class.is_default() && class.meta.key.namespace.is_empty());
    let cidr = "{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: a}, spec: {cidrs: [10.0.0.0/16, 'fd00::/108']}}";
    assert_eq!(only!(ServiceCidr, cidr).cidrs.len(), 2);
    assert_eq!(bad_fields(&cidr.replace("'fd00::/108'", "11.0.0.0/8")), ["spec.cidrs[1]"]);
}

#[test]
fn lists_of_both_forms_are_read() {
    let list = objects(
        "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Namespace, metadata: {name: a}}, \
         {apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Namespace, metadata: {name: b}}]}]}",
    );
    assert_eq!(list.len(), 2);
    let typed = objects(
        "{apiVersion: v1, kind: NamespaceList, metadata: {resourceVersion: '5'}, \
         items: [{metadata: {name: a}}, {metadata: {name: b}}]}",
    );
    assert_eq!(typed.len(), 2);
    assert_eq!(objects("{apiVersion: v1, kind: List, items: null}"), []);
    let content = read(
        "apiVersion: v1\nkind: ServiceList\nitems:\n- metadata: {name: a}\n- metadata: {name: b}\n  spec:\n    ports: [{port: 0}]\n",
    );
    let problems: Vec<_> = content.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            "test.yaml:4: Service default/a: spec.ports: a service needs at least one port",
            "test.yaml:7: Service default/b: spec.ports[0].port: 0 is not a port; write a number \
             from 1 to 65535"
        ]
    );
}

#[test]
fn json_problems_have_lines_too() {
    let text = "\n{\n \"apiVersion\": \"v1\",\n \"kind\": \"Service\",\n \"metadata\": {\"name\": \"web\"},\n \"spec\": {\n  \"ports\": [\n   {\"port\": 0}\n  ]\n }\n}\n{\"kind\": \"Service\"}";
    let ctx = Context::directory(Interner::default());
    let content = read_file_content("a.json", text.as_bytes(), Format::Json, &ctx);
    let problems: Vec<_> = content.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            "a.json:8: Service default/web: spec.ports[0].port: 0 is not a port; write a number \
             from 1 to 65535",
            "a.json:12: Service: apiVersion: is missing; write it, such as apiVersion: v1"
        ]
    );
}

#[test]
fn documents_are_told_apart_by_their_lines() {
    let text = "%YAML 1.2\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n--- # next\napiVersion: v1\nkind: Namespace\nmetadata: {name: b}\n...\n---\n---\napiVersion: v1\r\nkind: Namespace\r\nmetadata:\r\n  name: c\r\n";
    let found: Vec<_> = read(text)
        .objects
        .iter()
        .map(|found| (found.object.key().name.to_string(), found.line))
        .collect();
    assert_eq!(found, [("a".into(), 3), ("b".into(), 7), ("c".into(), 13)]);
    let bom = b"\xef\xbb\xbfapiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n";
    let ctx = Context::directory(Interner::default());
    assert_eq!(read_file_content("a", bom, Format::Yaml, &ctx).objects.len(), 1);
}

#[test]
fn repeated_texts_are_held_once() {
    let objects = objects(
        "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a}, addressType: \
         IPv4, endpoints: [{addresses: [10.0.0.1], nodeName: n1}, {addresses: [10.0.0.2], nodeName: \
         n1}]}",
    );
    let Object::EndpointSlice(slice) = &objects[0] else { panic!() };
    let node = |i: usize| slice.endpoints[i].node.clone().unwrap();
    assert!(Arc::ptr_eq(&node(0), &node(1)));
}
