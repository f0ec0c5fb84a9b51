// Runs the public HTTP cache test-suite (npm http-cache-tests) against a proxy.
//
//   node run.mjs PACKAGE PROXY [RESULTS [ID...]]
//
// PACKAGE is the directory of the installed package and PROXY a program that is called with the address
// to listen on and the origin's. The suite's own server is the origin and runs in here, on loopback.
// Prints, for every test that fails, a line `KIND ID REASON`, and at the end a line for each kind of
// test: `passed KIND COUNT TOTAL`. As on the suite's pages, a test whose dependencies fail does not pass.
//
// A test that fails runs again, twice at most, in a quiet process of its own: the suite waits for seconds where
// responses live for two, and a busy machine is no fault of the cache.

import { spawn, spawnSync } from 'node:child_process'
import fs from 'node:fs'
import { createRequire } from 'node:module'
import net from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { pathToFileURL } from 'node:url'

const scratch = fs.mkdtempSync(path.join(os.tmpdir(), 'cache-tests-'))
const ONE_PASS_MS_MAX = 90_000
const TESTS_AT_ONCE = 100
const RETRIES = 2

const [packageDirectory, proxyProgram, resultsFile, ...only] = process.argv.slice(2)
const directory = path.resolve(packageDirectory)
const load = file => import(pathToFileURL(path.join(directory, file)))
const fetch = createRequire(path.join(directory, 'cli.mjs'))('node-fetch')

async function freePort () {
  const probe = net.createServer().listen(0, '127.0.0.1')
  await new Promise(resolve => probe.once('listening', resolve))
  const { port } = probe.address()
  await new Promise(resolve => probe.close(resolve))
  return port
}

async function startOrigin (port) {
  Object.assign(process.env, {
    npm_config_protocol: 'http',
    npm_config_port: String(port),
    npm_config_pidfile: path.join(scratch, 'pid')
  })
  // The suite's server would listen everywhere.
  const listen = net.Server.prototype.listen
  net.Server.prototype.listen = function (port) { return listen.call(this, port, '127.0.0.1') }
  // It tells of everything that is not as it should be; we tell by the results.
  console.log = () => {}
  await load('server/server.mjs')
}

async function startProxy (port, originPort) {
  const proxy = spawn(proxyProgram, [`127.0.0.1:${port}`, `127.0.0.1:${originPort}`], { stdio: ['ignore', 'ignore', 'inherit'] })
  const ended = new Promise((resolve, reject) => {
    proxy.once('error', reject)
    proxy.once('exit', code => reject(new Error(`the proxy ended with ${code}`)))
  })
  ended.catch(() => {})
  for (let tries = 0; tries < 200; tries++) {
    const socket = net.connect(port, '127.0.0.1')
    const open = await Promise.race([
      new Promise(resolve => socket.once('connect', () => resolve(true)).once('error', () => resolve(false))), ended
    ])
    socket.destroy()
    if (open) return proxy
    await new Promise(resolve => setTimeout(resolve, 50))
  }
  throw new Error('the proxy does not listen')
}

async function allTests () {
  const suites = [...(await load('tests/index.mjs')).default]
  suites.push((await load('tests/surrogate-control.mjs')).default)
  return suites.map(suite => ({ ...suite, tests: suite.tests.filter(test => test.browser_only !== true) }))
}

async function onePass (suites) {
  const { runTests, getResults } = await load('client/runner.mjs')
  const [originPort, proxyPort] = [await freePort(), await freePort()]
  await startOrigin(originPort)
  const proxy = await startProxy(proxyPort, originPort)
  try {
    const late = new Promise((resolve, reject) => setTimeout(reject, ONE_PASS_MS_MAX, new Error('the suite takes too long')).unref())
    await Promise.race([runTests(suites, fetch, false, `http://127.0.0.1:${proxyPort}`, TESTS_AT_ONCE), late])
    return getResults()
  } finally {
    proxy.kill()
  }
}

function report (suites, results) {
  const tests = new Map(suites.flatMap(suite => suite.tests.map(test => [test.id, test])))
  const passes = id => results[id] === true && (tests.get(id)?.depends_on ?? []).every(passes)
  const counts = {}
  for (const [id, test] of tests) {
    const kind = test.kind ?? 'required'
    counts[kind] ??= [0, 0]
    counts[kind][1]++
    if (passes(id)) {
      counts[kind][0]++
    } else if (kind !== 'check') {
      process.stdout.write(`${kind} ${id} ${[results[id]].flat().join(': ')}\n`)
    }
  }
  for (const [kind, [passed, total]] of Object.entries(counts)) {
    process.stdout.write(`passed ${kind} ${passed} ${total}\n`)
  }
}

const suites = await allTests()
if (only.length > 0) {
  const some = suites.map(suite => ({ ...suite, tests: suite.tests.filter(test => only.includes(test.id)) }))
  fs.writeFileSync(resultsFile, JSON.stringify(await onePass(some)))
} else {
  const results = await onePass(suites)
  for (let retry = 1; retry <= RETRIES; retry++) {
    const failed = Object.keys(results).filter(id => results[id] !== true)
    const file = path.join(scratch, `results-${retry}.json`)
    spawnSync(process.execPath, [...process.execArgv, process.argv[1], directory, proxyProgram, file, ...failed], { stdio: 'inherit' })
    if (fs.existsSync(file)) Object.assign(results, JSON.parse(fs.readFileSync(file)))
  }
  report(suites, results)
}
fs.rmSync(scratch, { recursive: true })
process.exit(0)
