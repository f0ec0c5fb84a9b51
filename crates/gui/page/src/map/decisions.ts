// What people decided about a vertex of the map.
import { decided } from '../live';
import { about, touching } from '../views/decided';
import type { OverrideItem, TrafficMap, Vertex } from '../types';

export function decisionsOn(vertex: Vertex, map: TrafficMap): OverrideItem[] {
  if (!vertex.overridden) return [];
  const rest = vertex.id.slice(vertex.id.indexOf(':') + 1);
  const [namespace = '', name = '', address = ''] = rest.split('/');
  if (vertex.id.startsWith('service:')) return about({ namespace, name });
  if (vertex.id.startsWith('endpoint:')) {
    const node = map.edges.find((edge) => edge.from === vertex.id && edge.to.startsWith('node:'))?.to.slice('node:'.length) ?? null;
    return touching(about({ namespace, name }), address, vertex.label, node);
  }
  if (vertex.id.startsWith('namespace:')) return decided.value.filter((one) => one.service?.namespace === rest);
  if (vertex.id.startsWith('host:')) return decided.value.filter((one) => one.ingress && (one.host == null || (one.host === '*' ? '' : one.host) === rest));
  if (vertex.id.startsWith('route:')) {
    const hosts = new Set(map.edges.filter((edge) => edge.to === vertex.id).map((edge) => edge.from.slice('host:'.length)));
    return decided.value.filter((one) => one.ingress && one.ingress.namespace === vertex.namespace
      && (one.host == null || hosts.has(one.host === '*' ? '' : one.host)) && (one.path == null || one.path === vertex.label));
  }
  return [];
}
