// What /api/v1 says, as in ../openapi.json. Times are milliseconds since 1970, ages seconds,
// rates per second, shares between 0 and 1.

export interface Key { namespace: string; name: string }
export interface Page<T> { items: T[]; total: number; offset: number; next: number | null; at_ms: number; stale?: Stale | null }
/** What is shown is not of now, and why; null where it never was known. */
export interface Stale { since_ms: number | null; reason: string }
export type State = 'ok' | 'idle' | 'warning' | 'error';
export interface Problem { code: string; message: string }
export type Role = 'read' | 'admin';
export interface Whoami { role: Role; name: string; read_only_because: string | null }

export interface Counters {
  requests: number;
  errors: number;
  rate: number;
  error_rate: number;
  active: number | null;
  p50_ms: number | null;
  p99_ms: number | null;
  cache_hit_share: number | null;
}

export interface Overview {
  at_ms: number;
  version: string;
  command: string;
  pid: number;
  node: string | null;
  started_ms: number;
  uptime_s: number;
  healthy: boolean;
  planes: PlaneHealth[];
  source: SourceHealth;
  counts: Counts;
  syncs: SyncHealth[];
  traffic: Traffic | null;
  attention: Attention[];
}
export interface PlaneHealth { name: string; state: State; summary: string }
export interface SourceHealth {
  spec: string;
  kind: string;
  connected: boolean;
  synced: boolean;
  age_s: number | null;
  revision: number;
  problem_count: number;
  problems: string[];
  note?: string | null;
}
export interface Counts {
  services: number;
  services_without_endpoints: number;
  endpoints: number;
  endpoints_ready: number;
  routes: number;
  certificates: number;
  certificates_expiring: number;
  instances: number;
  nodes: number;
  overrides: number;
  warnings: number;
}
export interface SyncHealth {
  plane: string;
  backend: string | null;
  syncs: number;
  failures: number;
  changes: number;
  drift_repairs: number;
  last_age_s: number | null;
  pending_age_s: number | null;
  duration_p50_ms: number | null;
  duration_p99_ms: number | null;
  programming_p50_ms: number | null;
  programming_p99_ms: number | null;
  last_error: string | null;
}
export interface Traffic {
  requests: number;
  errors: number;
  rate: number;
  error_rate: number;
  connections: number;
  active: number;
  p50_ms: number | null;
  p90_ms: number | null;
  p99_ms: number | null;
  classes: number[];
  cache: Cache;
  worker_restarts: number;
}
export interface Cache {
  hits: number;
  misses: number;
  hit_share: number | null;
  entries: number | null;
  bytes: number | null;
}
export interface Attention { state: State; kind: string; object: Key | null; route?: string | null; endpoint?: string | null; message: string }
export interface Sample {
  at_ms: number;
  rate: number;
  error_rate: number;
  p50_ms: number | null;
  p90_ms: number | null;
  p99_ms: number | null;
  connections: number;
  active: number;
  cache_hit_share: number | null;
  sync_rate: number;
  sync_failures: number;
  change_rate: number;
  drift_repairs: number;
  source_age_s: number | null;
  healthy: boolean;
}
export interface History {
  started_ms: number;
  tick_s: number;
  recent: Sample[];
  long: Sample[];
  long_tick_s: number;
  part?: Sample | null;
}

export interface ServiceItem {
  namespace: string;
  name: string;
  type: string;
  headless: boolean;
  cluster_ips: string[];
  external_ips: string[];
  load_balancer_ips: string[];
  ports: Port[];
  endpoints: EndpointCounts;
  state: State;
  state_text: string;
  overridden: boolean;
  counters: Counters | null;
  connections: Connections | null;
  connections_reason: string | null;
}
/** As the kernel has them: open ones, and those being opened or closed. */
export interface Connections { open: number; other: number }
export interface Port {
  name: string;
  protocol: string;
  port: number;
  node_port: number | null;
  target: string;
  app_protocol: string | null;
  connections: Connections | null;
}
export interface EndpointCounts {
  total: number;
  ready: number;
  terminating: number;
  drained: number;
  local: number;
  used: number;
}
export interface ServiceDetail extends ServiceItem {
  internal_traffic_policy: string;
  external_traffic_policy: string;
  session_affinity_s: number | null;
  source_ranges: string[];
  health_check_node_port: number | null;
  external_name: string | null;
  labels: Record<string, string>;
  annotations: Record<string, string>;
  backend: string | null;
  endpoint_items: EndpointItem[];
  overrides: OverrideItem[];
  routes: string[];
  traffic?: ServiceTraffic | null;
  traffic_reason?: string | null;
}
/** What the kernel has counted for a service (IPVS). */
export interface ServiceTraffic {
  connections: number;
  packets_in: number;
  packets_out: number;
  bytes_in: number;
  bytes_out: number;
}
export interface EndpointItem {
  address: string;
  ports: { name: string; port: number; internal: boolean; external: boolean }[];
  pod: string | null;
  node: string | null;
  zone: string | null;
  local: boolean;
  ready: boolean;
  serving: boolean;
  terminating: boolean;
  weight: number;
  drained: boolean;
  added: boolean;
  removed: boolean;
  used: boolean;
  overrides: string[];
  counters: Counters | null;
  connections: Connections | null;
}
export interface Rules { service: Key; backend: string; origin: string; text: string; notes: string[] }
export interface NodeItem {
  name: string;
  own: boolean;
  addresses: string[];
  pod_cidrs: string[];
  zone: string | null;
  leaving: boolean;
  endpoints: number;
}

export interface RouteItem {
  id: string;
  ingress: Key;
  host: string;
  path: string;
  path_type: string;
  matches: string[];
  action: string;
  action_text: string;
  backends: RouteBackend[];
  features: string[];
  warnings: { reason: string; message: string }[];
  certificate: string | null;
  state: State;
  paused: OverrideItem | null;
  counters: Counters | null;
}
export interface RouteBackend {
  service: Key;
  port: string;
  weight: number;
  ready: number;
  total: number;
  canary: boolean;
  condition?: string;
}
export interface CertificateItem {
  id: string;
  hosts: string[];
  names: string[];
  issuer: string;
  not_before_ms: number | null;
  not_after_ms: number | null;
  expires_in_s: number | null;
  state: State;
  state_text: string;
  default: boolean;
}

export type VertexKind = 'host' | 'route' | 'namespace' | 'service' | 'endpoint' | 'node';
export interface TrafficMap {
  at_ms: number;
  vertices: Vertex[];
  edges: Edge[];
  services_total: number;
  services_shown: number;
  stale?: Stale | null;
}
export interface Vertex {
  id: string;
  kind: VertexKind;
  label: string;
  namespace: string | null;
  state: State;
  note: string;
  overridden: boolean;
  rate: number | null;
  error_rate: number | null;
}
export interface Edge { from: string; to: string; rate: number | null; error_rate: number | null; closed: boolean }

export interface PodsSummary {
  enabled: boolean;
  networks: number;
  instances: number;
  peers: number;
  policies: number;
  cni: string;
  problems: string[];
  tunnel?: Tunnel | null;
}
export interface Tunnel {
  name: string;
  kind: string;
  vni: number;
  port: number;
  address: string | null;
  mtu: number | null;
  mac: string | null;
  up: boolean;
  state: State;
  state_text: string;
}
export interface NetworkItem { name: string; bridge: string; subnets: string[]; instances: number }
export interface InstanceItem {
  id: string;
  pod: Key | null;
  network: string;
  interface: string;
  addresses: string[];
  ports: string[];
  services: Key[];
}
export interface PeerItem {
  node: string;
  addresses: string[];
  subnets: string[];
  mode: string;
  public_addresses?: string[];
  tunnel_mac?: string | null;
  state?: State;
  state_text?: string;
}

export interface TraceAnswer {
  kind: string;
  verdict: string;
  summary: string;
  steps: { text: string; decides: boolean; kind?: string }[];
  endpoints: string[];
  draining: string[];
  masquerade: boolean;
  route: string | null;
  status: number | null;
  location: string | null;
  rewritten: string | null;
  warnings: string[];
  command: string;
}

export interface Event {
  id: number;
  at_ms: number;
  revision: number;
  kind: string;
  object: Key;
  change: string;
  summary: string;
  programmed_ms: number | null;
  programs: boolean;
}
export interface EventPage {
  items: Event[];
  next_before: number | null;
  oldest_id: number | null;
  newest_id: number | null;
}

export type Target = { address: string } | { pod: string } | { node: string };
export type Action =
  | { kind: 'drain' | 'undrain' | 'remove_backend'; service: Key; target: Target }
  | { kind: 'weight'; service: Key; target: Target; weight: number }
  | { kind: 'add_backend'; service: Key; address: string; port: number | null; node: string | null; weight: number | null }
  | { kind: 'pause_route'; ingress: Key; host: string | null; path: string | null; retry_after_s: number | null }
  | { kind: 'resume_route'; ingress: Key; host: string | null; path: string | null }
  | { kind: 'purge_cache'; what: { key: string } | { prefix: string } | { host: string } }
  | { kind: 'resync' }
  | { kind: 'remove_override'; name: Key };
export interface ActionRequest {
  action: Action;
  dry_run: boolean;
  reason: string;
  for_s: number | null;
}
export interface ActionResult {
  dry_run: boolean;
  summary: string;
  touches: { kind: string; object: string; before: string; after: string }[];
  touches_total: number;
  warnings: string[];
  id: string | null;
  undoable: boolean;
  until_ms: number | null;
  override: OverrideItem | null;
  purged: number | null;
}
export interface OverrideItem {
  namespace: string;
  name: string;
  action: string;
  service: Key | null;
  target: Target | null;
  weight: number | null;
  ingress: Key | null;
  host: string | null;
  path: string | null;
  summary: string;
  by: string;
  reason: string;
  since_ms: number | null;
  until_ms: number | null;
  managed: boolean;
  touches: number;
}
export interface AuditEntry {
  id: string;
  at_ms: number;
  who: string;
  role: Role;
  from: string;
  action: Action | null;
  summary: string;
  reason: string;
  until_ms: number | null;
  outcome: 'done' | 'refused' | 'failed' | 'expired';
  error: string | null;
  undoes: string | null;
  undone_by: string | null;
  undoable: boolean;
}

export interface Hello { at_ms: number; role: Role; tick_s: number; newest_id: number | null }
export interface Changes { events: Event[]; more: number; revision: number }
export interface HealthChange { healthy: boolean; planes: PlaneHealth[] }
