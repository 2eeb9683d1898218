import assert from "node:assert/strict";
import { test } from "node:test";

import { PROTOCOL, RunStream } from "../../static/js/live/stream.js";

// Sockets, timers and answers that the test moves by hand.
function makeWorld({ answers = [], shown } = {}) {
  const world = { sockets: [], timers: [], fetched: [], frames: [], links: [] };
  class Socket {
    constructor(url) {
      this.url = url;
      this.sent = [];
      this.readyState = 0;
      world.sockets.push(this);
    }
    send(text) {
      this.sent.push(JSON.parse(text));
    }
    close() {
      this.readyState = 3;
    }
    open() {
      this.readyState = 1;
      this.onopen();
    }
    receive(message) {
      this.onmessage({ data: JSON.stringify(message) });
    }
    lose(code = 1006) {
      this.readyState = 3;
      this.onclose({ code });
    }
  }
  world.env = {
    WebSocket: Socket,
    random: () => 1,
    setTimeout: (call, wait) => world.timers.push({ call, wait }) - 1,
    clearTimeout: (id) => {
      if (world.timers[id]) world.timers[id].call = () => {};
    },
    fetch: async (url) => {
      world.fetched.push(url);
      const answer = answers.shift();
      if (!answer) throw new TypeError("network");
      return { ok: true, status: 200, json: async () => answer, ...answer.http };
    },
  };
  world.stream = new RunStream({
    socketUrl: "ws://host/ws/runs/7/",
    httpUrl: "/a/runs/7/stream.json",
    env: world.env,
    shown,
    onFrame: (frame, { isBehind }) => world.frames.push({ ...frame, isBehind }),
    onLink: (link) => world.links.push(link),
  });
  world.stream.start();
  return world;
}

const frame = (type, after, seq, attempt = 1) => ({ type, after, seq, attempt });
const protocol = (number) => ({ type: "protocol", protocol: number });
const refusal = (number) => ({
  ...protocol(number),
  http: { ok: false, status: 409 },
});
const settle = () => new Promise((resolve) => setImmediate(resolve));
const lastLink = (world) => world.links.at(-1).name;

test("it asks for everything first and is live once it has it", () => {
  const world = makeWorld();
  const [socket] = world.sockets;

  socket.open();
  assert.equal(lastLink(world), "catching-up");
  socket.receive(frame("snapshot", 0, 5));

  assert.equal(socket.url, `ws://host/ws/runs/7/?after=0&protocol=${PROTOCOL}`);
  assert.equal(world.stream.seq, 5);
  assert.equal(lastLink(world), "live");
});

test("a snapshot from before the page's HTML is said to be behind, and the rest asked for", () => {
  const world = makeWorld({ shown: 8 });
  const [socket] = world.sockets;
  socket.open();

  socket.receive(frame("snapshot", 0, 5));
  assert.deepEqual(socket.sent, [{ type: "after", seq: 5, attempt: 1 }]);
  assert.equal(lastLink(world), "catching-up");
  socket.receive(frame("batch", 5, 8));

  assert.deepEqual(
    world.frames.map(({ isBehind }) => isBehind),
    [true, false],
  );
  assert.equal(lastLink(world), "live");
});

test("a batch that follows is handed on, one that repeats is not", () => {
  const world = makeWorld();
  const [socket] = world.sockets;
  socket.open();
  socket.receive(frame("snapshot", 0, 5));

  socket.receive(frame("batch", 5, 8));
  socket.receive(frame("batch", 5, 8));
  socket.receive(frame("batch", 3, 6));

  assert.deepEqual(
    world.frames.map((f) => f.seq),
    [5, 8],
  );
});

test("a gap is not handed on: the stream asks for what it lacks", () => {
  const world = makeWorld();
  const [socket] = world.sockets;
  socket.open();
  socket.receive(frame("snapshot", 0, 5));

  socket.receive(frame("batch", 7, 9));

  assert.equal(world.frames.length, 1);
  assert.deepEqual(socket.sent, [{ type: "after", seq: 5, attempt: 1 }]);
  assert.equal(lastLink(world), "catching-up");
});

test("a batch of another attempt makes it ask, and the snapshot rewinds it", () => {
  const world = makeWorld();
  const [socket] = world.sockets;
  socket.open();
  socket.receive(frame("snapshot", 0, 50));

  socket.receive(frame("batch", 50, 52, 2));
  socket.receive(frame("snapshot", 0, 52, 2));

  assert.equal(world.frames.length, 2);
  assert.equal(world.stream.attempt, 2);
});

test("a ping that names more than it has makes it ask", () => {
  const world = makeWorld();
  const [socket] = world.sockets;
  socket.open();
  socket.receive(frame("snapshot", 0, 5));

  socket.receive({ type: "ping", seq: 5 });
  assert.equal(socket.sent.length, 0);
  socket.receive({ type: "ping", seq: 6 });

  assert.equal(socket.sent.length, 1);
});

test("it reconnects with back-off from where it was", () => {
  const world = makeWorld();
  world.sockets[0].open();
  world.sockets[0].receive(frame("snapshot", 0, 5));
  const waits = [];

  for (let i = 0; i < 7; i += 1) {
    world.sockets.at(-1).lose();
    waits.push(world.links.findLast((l) => l.name === "offline").retryIn);
    world.timers.findLast((t) => t.wait === waits.at(-1)).call();
  }

  assert.deepEqual(waits, [500, 1000, 2000, 4000, 8000, 15000, 15000]);
  assert.match(world.sockets.at(-1).url, /\?after=5&attempt=1&protocol=\d+$/);
});

test("a socket that says something begins the back-off again", () => {
  const world = makeWorld();
  world.sockets[0].lose();
  world.sockets[0].lose();
  world.timers.find((t) => t.wait === 500).call();
  world.sockets.at(-1).open();
  world.sockets.at(-1).receive({ type: "ping", seq: 0 });

  world.sockets.at(-1).lose();

  assert.equal(world.links.findLast((l) => l.name === "offline").retryIn, 500);
});

test("without a socket the same frames come over HTTP", async () => {
  const world = makeWorld({ answers: [frame("snapshot", 0, 3)] });

  world.sockets[0].lose();
  await settle();

  assert.deepEqual(world.fetched, [
    `/a/runs/7/stream.json?after=0&protocol=${PROTOCOL}`,
  ]);
  assert.equal(world.frames.length, 1);
  assert.equal(lastLink(world), "polling");
});

test("silence longer than the pings means the connection is dead", () => {
  const world = makeWorld();
  world.sockets[0].open();

  world.timers.findLast((t) => t.wait === 40_000).call();

  assert.equal(world.sockets[0].readyState, 3);
  assert.equal(lastLink(world), "offline");
});

test("a refused page does not knock again", async () => {
  const world = makeWorld({ answers: [{ http: { ok: false, status: 404 } }] });

  world.sockets[0].lose(1006);
  await settle();

  assert.equal(lastLink(world), "refused");
  assert.equal(world.sockets.length, 1);
});

test("a page whose access ended stops watching", () => {
  const world = makeWorld();
  world.sockets[0].open();

  world.sockets[0].lose(4403);

  assert.equal(lastLink(world), "refused");
  assert.equal(world.fetched.length, 0);
});

test("frames of a kind that a later version brought are passed over", () => {
  const world = makeWorld();
  const [socket] = world.sockets;
  socket.open();
  socket.receive(frame("snapshot", 0, 5));

  socket.receive({ type: "weather", seq: 9, attempt: 3, rain: [1, 2] });
  socket.receive({ ...frame("batch", 5, 6), of_a_later_version: 1 });

  assert.deepEqual(
    world.frames.map((f) => f.seq),
    [5, 6],
  );
  assert.equal(socket.sent.length, 0);
});

test("a page older than the server says so once and asks no one any more", async () => {
  const world = makeWorld();
  const [socket] = world.sockets;
  socket.open();
  socket.receive(frame("snapshot", 0, 5));

  socket.receive(protocol(PROTOCOL + 1));
  socket.lose(4426);
  world.stream.retryNow();
  for (const timer of world.timers) timer.call();
  await settle();

  assert.equal(world.links.filter((l) => l.name === "outdated").length, 1);
  assert.equal(lastLink(world), "outdated");
  assert.equal(world.sockets.length, 1);
  assert.deepEqual(world.fetched, []);
  assert.deepEqual([world.frames.length, world.stream.seq], [1, 5]);
});

test("an older page without a socket is reported over HTTP", async () => {
  const world = makeWorld({ answers: [refusal(PROTOCOL + 1)] });

  world.sockets[0].lose();
  await settle();
  for (const timer of world.timers) timer.call();
  await settle();

  assert.equal(lastLink(world), "outdated");
  assert.deepEqual([world.fetched.length, world.frames.length], [1, 0]);
});

test("a page newer than the server waits ever longer for one of its version", async () => {
  const world = makeWorld();
  const waits = [];

  for (let i = 0; i < 7; i += 1) {
    const socket = world.sockets.at(-1);
    socket.open();
    socket.receive(protocol(PROTOCOL - 1));
    socket.lose(4426);
    const { wait, call } = world.timers.at(-1);
    waits.push(wait);
    await settle();
    call();
  }

  assert.deepEqual(waits, [500, 1000, 2000, 4000, 8000, 15000, 15000]);
  assert.deepEqual(
    new Set(world.links.map((l) => l.name)),
    new Set(["connecting", "catching-up", "ahead"]),
  );
  assert.equal(lastLink(world), "ahead");
  world.sockets.at(-1).open();
  world.sockets.at(-1).receive(frame("snapshot", 0, 5));
  assert.equal(lastLink(world), "live");
  assert.equal(world.frames.length, 1);
});

test("while some servers are newer and some not, their frames over HTTP will do", async () => {
  const world = makeWorld({
    answers: [refusal(PROTOCOL - 1), frame("snapshot", 0, 3), frame("batch", 3, 4)],
  });
  world.sockets[0].open();
  world.sockets[0].receive(protocol(PROTOCOL - 1));
  world.sockets[0].lose(4426);
  await settle();
  assert.equal(lastLink(world), "ahead");

  world.timers.findLast((t) => t.wait === 4_000).call();
  await settle();
  const before = world.links.length;
  world.timers.findLast((t) => t.wait === 500).call();
  world.sockets[1].open();
  world.sockets[1].receive(protocol(PROTOCOL - 1));
  world.sockets[1].lose(4426);
  await settle();

  assert.deepEqual(
    world.frames.map((f) => f.seq),
    [3, 4],
  );
  const since = world.links.slice(before).map((l) => l.name);
  assert.ok(!since.includes("ahead"), since);
  assert.equal(lastLink(world), "polling");
});
