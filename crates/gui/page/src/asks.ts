// The questions: what each action asks before it is done.
import { overview } from './live';
import type { Ask } from './manage';
import type { Key, Target } from './types';

const SOME = 'Fill in what is missing to see what it touches.';

export function text(key: Key): string {
  return key.namespace ? `${key.namespace}/${key.name}` : key.name;
}

export function targetText(target: Target): string {
  if ('address' in target) return target.address;
  return 'pod' in target ? `pod ${target.pod}` : `node ${target.node}`;
}

export function drain(service: Key, target: Target): Ask {
  return {
    title: `Drain ${targetText(target)}`,
    about: 'Nothing new is sent there; what runs may finish.',
    verb: 'Drain',
    lasts: true,
    danger: true,
    action: () => ({ kind: 'drain', service, target }),
  };
}

export function undrain(service: Key, target: Target): Ask {
  const whole = 'address' in target ? 'this endpoint' : 'these endpoints';
  return {
    title: `Enable ${targetText(target)}`,
    about: `Takes back what was decided about ${whole} of ${text(service)}.`,
    verb: 'Enable',
    lasts: false,
    action: () => ({ kind: 'undrain', service, target }),
  };
}

export function weight(service: Key, target: Target, before: number, out: boolean): Ask {
  return {
    title: `Weight of ${targetText(target)}`,
    about: `Its share of the traffic of ${text(service)}, beside 1 for endpoints that say nothing.`,
    verb: 'Set weight',
    lasts: true,
    fields: [{ name: 'weight', label: 'Weight', type: 'number', first: String(before), hint: out ? '0 to 65535; more than 0 brings it back' : '0 to 65535; 0 drains' }],
    action: ({ weight: given = '' }) => {
      const value = Number(given);
      if (given.trim() === '' || !Number.isInteger(value) || value < 0 || value > 65_535) return 'The weight is a whole number from 0 to 65535.';
      return { kind: 'weight', service, target, weight: value };
    },
  };
}

export function removeBackend(service: Key, target: Target): Ask {
  return {
    title: `Remove ${targetText(target)}`,
    about: `${text(service)} behaves as if the cluster did not name this endpoint.`,
    verb: 'Remove',
    lasts: true,
    danger: true,
    action: () => ({ kind: 'remove_backend', service, target }),
  };
}

export function addBackend(service: Key): Ask {
  return {
    title: `Add a backend to ${text(service)}`,
    about: 'An endpoint that the cluster does not name, such as a machine outside of it.',
    verb: 'Add backend',
    lasts: true,
    fields: [
      { name: 'address', label: 'Address', placeholder: '192.0.2.10' },
      { name: 'port', label: 'Port', type: 'number', hint: 'Empty: the service’s own target ports' },
      { name: 'weight', label: 'Weight', type: 'number', first: '1' },
      { name: 'node', label: 'Node', placeholder: overview.value?.node ?? '', hint: 'Where it runs, if on a node: traffic that stays on its node finds it there' },
    ],
    action: ({ address = '', port = '', weight: share = '', node = '' }) => {
      if (!address.trim()) return SOME;
      return {
        kind: 'add_backend',
        service,
        address: address.trim(),
        port: port.trim() ? Number(port) : null,
        node: node.trim() || null,
        weight: share.trim() ? Number(share) : null,
      };
    },
  };
}

export function pause(ingress: Key, host: string, path: string): Ask {
  const whole = `${host || 'every host'}${path}`;
  return {
    title: `Pause ${whole}`,
    about: 'Requests get a maintenance page: 503 with Retry-After.',
    verb: 'Pause',
    lasts: true,
    danger: true,
    fields: [{
      name: 'scope',
      label: 'What to pause',
      type: 'choice',
      first: 'route',
      options: [['route', 'this path'], ['host', 'the whole host'], ['ingress', `all of ${text(ingress)}`]],
    }],
    action: ({ scope }) => ({
      kind: 'pause_route',
      ingress,
      host: scope === 'ingress' ? null : host,
      path: scope === 'route' ? path : null,
      retry_after_s: null,
    }),
  };
}

export function resume(ingress: Key, host: string | null, path: string | null): Ask {
  return {
    title: `Resume ${host ?? text(ingress)}${path ?? ''}`,
    about: 'Requests are served again.',
    verb: 'Resume',
    lasts: false,
    action: () => ({ kind: 'resume_route', ingress, host, path }),
  };
}

export function purge(kind: 'key' | 'prefix' | 'host', first: string): Ask {
  return {
    title: 'Purge the cache',
    about: 'The cache of this node forgets, and asks the backends again. Caches of other nodes and of browsers keep what they have.',
    verb: 'Purge',
    lasts: false,
    danger: true,
    fields: [
      { name: 'kind', label: 'What to forget', type: 'choice', first: kind, options: [['host', 'a host'], ['prefix', 'URLs that begin so'], ['key', 'one URL']] },
      { name: 'what', label: 'Host or URL', first, placeholder: 'shop.example.com or http://shop.example.com/images/' },
    ],
    action: ({ kind: chosen = 'host', what = '' }) => {
      const given = what.trim();
      if (!given) return SOME;
      if (chosen === 'key') return { kind: 'purge_cache', what: { key: given } };
      if (chosen === 'prefix') return { kind: 'purge_cache', what: { prefix: given } };
      return { kind: 'purge_cache', what: { host: given } };
    },
  };
}

export function resync(): Ask {
  return {
    title: 'Re-sync now',
    about: 'Every rule of this node is worked out anew, compared with the kernel, and put right where it differs. Traffic goes on; the source is not read again.',
    verb: 'Re-sync',
    lasts: false,
    action: () => ({ kind: 'resync' }),
  };
}

export function removeOverride(name: Key): Ask {
  return {
    title: 'Take back a decision',
    about: `The override ${text(name)} is removed. What the cluster says counts again.`,
    verb: 'Take back',
    lasts: false,
    action: () => ({ kind: 'remove_override', name }),
  };
}
