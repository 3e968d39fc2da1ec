#!/usr/bin/env node
// Loads traces into Perfetto's trace processor (WebAssembly) and runs SQL on each.
// usage: node perfetto_query.js FOLDER TRACE... -- SQL...
// FOLDER has engine_bundle.js and trace_processor.wasm of Perfetto's UI.
// Prints one line of JSON per trace: {file, error, tables: [{columns, rows}]}.
const fs = require('fs'), path = require('path'), vm = require('vm');
const [folder, ...rest] = process.argv.slice(2);
const split = rest.indexOf('--');
const traces = rest.slice(0, split), queries = rest.slice(split + 1);
const bytesOf = (url) => fs.readFileSync(path.join(folder, path.basename(String(url))));

// what the bundle expects of a browser's worker
class Request {
  open(_, url) { this.url = url; }
  set responseType(_) {}
  send() {
    const b = bytesOf(this.url);
    this.response = b.buffer.slice(b.byteOffset, b.byteOffset + b.length);
    this.status = 200;
    if (this.onload) this.onload();
  }
}
const headers = { 'Content-Type': 'application/wasm' };
const fetched = async (url) => new Response(bytesOf(url), { status: 200, headers });
const self = { location: { href: 'file:///engine_bundle.js', protocol: 'file:', host: '', search: '' } };
const sandbox = {
  self, WorkerGlobalScope: function () {}, XMLHttpRequest: Request, fetch: fetched,
  console: { log() {}, warn() {}, error() {} }, TextDecoder, TextEncoder, URL, performance,
  setTimeout, clearTimeout, crypto: globalThis.crypto, importScripts() {}, Response,
  navigator: { userAgent: 'node', hardwareConcurrency: 1 },
};
sandbox.globalThis = sandbox;
Object.assign(self, { self, XMLHttpRequest: Request, fetch: fetched });
vm.createContext(sandbox);
const replies = [];
const port = { postMessage(d) { replies.push(Buffer.from(d.buffer, d.byteOffset, d.length)); } };
vm.runInContext(bytesOf('engine_bundle.js').toString(), sandbox);
const Bytes = vm.runInContext('Uint8Array', sandbox);

// --- protobuf
const varint = (n) => {
  const out = [];
  for (n = BigInt(n); n > 127n; n >>= 7n) out.push(Number(n & 127n) | 128);
  return Buffer.from([...out, Number(n)]);
};
const message = (tag, body) => Buffer.concat([varint((tag << 3) | 2), varint(body.length), body]);
const integer = (tag, n) => Buffer.concat([varint(tag << 3), varint(n)]);
function varints(b, at = 0, many = true) {
  const out = [];
  do {
    let n = 0n, shift = 0n, c;
    do { c = b[at++]; n |= BigInt(c & 127) << shift; shift += 7n; } while (c > 127);
    out.push(n);
  } while (many && at < b.length);
  return [out, at];
}
function* fields(b) {
  for (let at = 0; at < b.length;) {
    let [[key], next] = varints(b, at, false);
    const tag = Number(key >> 3n), wire = Number(key & 7n);
    if (wire === 0) { const [[n], end] = varints(b, next, false); yield [tag, n]; at = end; continue; }
    let size = wire === 1 ? 8 : 4;
    if (wire === 2) { const [[n], end] = varints(b, next, false); size = Number(n); next = end; }
    yield [tag, b.subarray(next, next + size)];
    at = next + size;
  }
}

// --- calls of the trace processor
function call(...parts) {
  const request = message(1, Buffer.concat(parts));
  replies.length = 0;
  const data = new Bytes(request.length);
  data.set(request);
  port.onmessage({ data });
  const out = [];
  for (const [, reply] of fields(Buffer.concat(replies))) {
    for (const [tag, value] of fields(reply)) {
      if (tag === 5) throw Error(String(value));
      if (tag > 200) out.push([tag, value]);
    }
  }
  return out;
}
function check(results) {
  for (const [tag, result] of results) {
    if (tag !== 201 && tag !== 202) continue;
    for (const [key, text] of fields(result)) if (key === 2) throw Error(String(text));
  }
}
function query(sql) {
  const columns = [], rows = [];
  for (const [tag, result] of call(integer(2, 3), message(103, message(1, Buffer.from(sql))))) {
    if (tag !== 203) continue;
    for (const [key, value] of fields(result)) {
      if (key === 1) columns.push(String(value));
      else if (key === 2) throw Error(`${value} in ${sql}`);
      else if (key === 3) rows.push(...batch(value, columns.length));
    }
  }
  return { columns, rows };
}
function batch(data, width) {
  const cells = [], ints = [], floats = [], texts = [];
  for (const [key, value] of fields(data)) {
    if (key === 1) cells.push(...(typeof value === 'bigint' ? [value] : varints(value)[0]));
    else if (key === 2) ints.push(...varints(value)[0].map((n) => Number(BigInt.asIntN(64, n))));
    else if (key === 3) for (let i = 0; i < value.length; i += 8) floats.push(value.readDoubleLE(i));
    else if (key === 5) texts.push(...String(value).split('\0'));
  }
  const i = { 2: 0, 3: 0, 4: 0 }, from = { 2: ints, 3: floats, 4: texts };
  const values = cells.map((kind) => (kind === 1n ? null : from[kind][i[kind]++]));
  const out = [];
  for (let at = 0; at < values.length; at += width) out.push(values.slice(at, at + width));
  return out;
}

(async () => {
  self.onmessage({ data: port });
  for (let left = 1000; ; left--) {
    await new Promise((done) => setTimeout(done, 5));
    try { query('select 1'); break; } catch (error) { if (!left) throw error; }
  }
  for (const file of traces) {
    const result = { file, error: null, tables: [] };
    try {
      call(integer(2, 11));
      const data = fs.readFileSync(file), step = 32 << 20;
      for (let at = 0; at < data.length; at += step) {
        check(call(integer(2, 1), message(101, data.subarray(at, at + step))));
      }
      check(call(integer(2, 2)));
    } catch (error) { result.error = error.message; }
    try { result.tables = queries.map(query); } catch (error) { result.error ??= error.message; }
    console.log(JSON.stringify(result));
  }
})().catch((error) => { console.error(error); process.exit(1); });
