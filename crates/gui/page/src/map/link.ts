// Where a vertex of the map leads to in the page.
import { to } from '../route';
import type { Vertex } from '../types';

export function link(vertex: Vertex): string | null {
  const rest = vertex.id.slice(vertex.id.indexOf(':') + 1);
  // What is gathered by namespace opens that namespace.
  if (/^(hosts|routes|endpoints):/.test(vertex.id)) return to('map', [], { ns: rest });
  switch (vertex.kind) {
    case 'host':
      // Without a name it is the host of routes that take requests for every host.
      return to('routes', [], { host: rest || '*' });
    case 'route':
      return to('routes', [], { route: rest });
    case 'namespace':
      return to('map', [], { ns: rest });
    case 'service':
    case 'endpoint': {
      const [namespace, name] = rest.split('/');
      return namespace && name ? to('services', [namespace, name]) : null;
    }
    case 'node':
      return to('pods');
  }
}
