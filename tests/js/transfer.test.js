import assert from "node:assert/strict";
import { test } from "node:test";
import {
  ConnectionLost,
  fingerprintOf,
  hashOf,
  pauseSeconds,
  Refused,
  transfer,
} from "../../static/js/datasets/transfer.js";

// A server that keeps what it gets; `faults` are thrown by its sends in turn, after as
// many bytes as they name have been kept.
class Server {
  constructor({ kept = "", faults = [] } = {}) {
    Object.assign(this, { kept, faults, offsets: [], numAsked: 0 });
  }

  async begin() {
    return { id: 1, received: this.kept.length };
  }

  async received() {
    this.numAsked += 1;
    return this.kept.length;
  }

  async send(_upload, offset, part, onProgress) {
    this.offsets.push(offset);
    const text = await part.text();
    const fault = this.faults.shift();
    if (offset !== this.kept.length) return this.kept.length;
    this.kept += fault ? text.slice(0, fault.numKept ?? 0) : text;
    if (fault) throw fault;
    onProgress(text.length);
    return this.kept.length;
  }
}

function watched() {
  const seen = { progress: [], trouble: [] };
  const tell = {
    progress: (bytes) => seen.progress.push(bytes),
    trouble: (seconds) => seen.trouble.push(seconds),
  };
  return { seen, tell, wait: async () => {} };
}

const TEXT = "abcdefghij";
const file = new File([TEXT], "rows.jsonl", { lastModified: 5 });

test("a file arrives whole, a part at a time, and its progress never falls", async () => {
  const server = new Server();
  const { seen, tell, wait } = watched();

  await transfer(file, 4, { server, tell, wait });

  assert.equal(server.kept, TEXT);
  assert.deepEqual(server.offsets, [0, 4, 8]);
  assert.deepEqual(
    seen.progress,
    [...seen.progress].sort((a, b) => a - b),
  );
  assert.equal(seen.progress.at(-1), TEXT.length);
});

test("it goes on from what the server has", async () => {
  const server = new Server({ kept: "abcdef" });

  await transfer(file, 4, { server, ...watched() });

  assert.equal(server.kept, TEXT);
  assert.deepEqual(server.offsets, [6]);
});

test("a part that breaks off is not sent again as far as it has arrived", async () => {
  const faults = [
    new ConnectionLost("lost"),
    Object.assign(new ConnectionLost("lost"), { numKept: 3 }),
  ];
  const server = new Server({ faults });
  const { seen, tell, wait } = watched();

  await transfer(file, 4, { server, tell, wait });

  assert.equal(server.kept, TEXT);
  assert.deepEqual(server.offsets, [0, 0, 3, 7]);
  assert.deepEqual(seen.trouble, [1, 2]);
  assert.equal(server.numAsked, 2);
});

test("the answer to a part that had arrived may be lost", async () => {
  const server = new Server({
    faults: [Object.assign(new ConnectionLost("lost"), { numKept: 4 })],
  });

  await transfer(file, 4, { server, ...watched() });

  assert.equal(server.kept, TEXT);
  assert.deepEqual(server.offsets, [0, 4, 8]);
});

test("pauses grow, to a quarter of a minute", () => {
  assert.deepEqual([1, 2, 3, 4, 5, 9].map(pauseSeconds), [1, 2, 4, 8, 15, 15]);
});

test("what the server refuses is not tried again", async () => {
  const server = new Server({ faults: [new Refused("The disk is full.")] });

  await assert.rejects(transfer(file, 4, { server, ...watched() }), /disk is full/);
  assert.equal(server.offsets.length, 1);
});

test("a wait can be cancelled", async () => {
  const server = new Server({ faults: [new ConnectionLost("lost")] });
  const { tell } = watched();
  const wait = async () => {
    throw new Error("cancelled");
  };

  await assert.rejects(transfer(file, 4, { server, tell, wait }), /cancelled/);
});

test("a window that finds another sending waits for it", async () => {
  const server = new Server();
  let numWaits = 0;
  const locked = { ...watched(), wait: async () => (numWaits += 1) };
  const send = server.send.bind(server);
  server.send = async (upload, offset, ...rest) =>
    numWaits < 3 ? offset : send(upload, offset, ...rest);

  await transfer(file, 4, { server, ...locked });

  assert.equal(numWaits, 3);
  assert.equal(server.kept, TEXT);
});

test("a hash is FNV-1a's", () => {
  assert.equal(hashOf(new Uint8Array()), "811c9dc5");
  assert.equal(hashOf(new TextEncoder().encode("foobar")), "bf9cf968");
});

test("a file saved again, or with another beginning, is another file", async () => {
  const same = new File([TEXT], "other name", { lastModified: 5 });
  const changed = new File([TEXT], "rows.jsonl", { lastModified: 6 });
  const other = new File(["Abcdefghij"], "rows.jsonl", { lastModified: 5 });

  const print = await fingerprintOf(file);

  assert.equal(await fingerprintOf(same), print);
  assert.notEqual(await fingerprintOf(changed), print);
  assert.notEqual(await fingerprintOf(other), print);
});
