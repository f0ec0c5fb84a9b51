// The tokens of an agent.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { until } from './harness.mjs';

/** The token to manage and the one to look, as the agent wrote them into its state directory. */
export async function tokenOf(telaio) {
  const read = (name) => until(`the file ${name}`, () => readFileSync(join(telaio.state, name), 'utf8').trim());
  return { token: await read('admin-token'), readToken: await read('read-token') };
}
