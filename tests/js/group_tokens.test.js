import assert from "node:assert/strict";
import { test } from "node:test";

import { addTeacher, describe, makeScale, show } from "../../static/js/group/tokens.js";

const COMPLETION = {
  position: 0,
  ids: [5, 9, 2],
  pieces: ["The", " sum", "<eos>"],
  special: [0, 0, 1],
  logprob: [-0.1, -2, null],
  sampling_logprob: [-0.1, -2.1, null],
  entropy: [0.5, 1, 2],
  kl: null,
  ratio: [1, Math.exp(0.5), Math.exp(-0.5)],
  clipped: [0, 1, -1],
  advantage: [1.2, 1.2, 1.2],
  coefficient: [1.2, 0, -0.6],
};

test("the less likely a token, the stronger its colour", () => {
  const scale = makeScale([COMPLETION], "logprob");

  assert.deepEqual([-2, -1, 0].map(scale.levelOf), [4, 2, 0]);
  assert.equal(scale.legend.at(-1).text, "−2");
});

test("a ratio has two sides, symmetric in its logarithm", () => {
  const scale = makeScale([COMPLETION], "ratio");

  assert.deepEqual(COMPLETION.ratio.map(scale.levelOf), [0, "+4", -4]);
  assert.deepEqual(
    scale.legend.map(({ text }) => text),
    ["0.607", "0.779", "1", "1.28", "1.65"],
  );
});

test("the distance to a teacher has two sides", () => {
  const taught = { ...COMPLETION, teacher_logprob: [-0.1, -1, null] };
  addTeacher(taught);
  const scale = makeScale([taught], "teacher");

  assert.deepEqual(taught.teacher, [0, -1, null]);
  assert.deepEqual(taught.teacher.map(scale.levelOf), [0, -4, 0]);
  assert.match(describe(taught, 1), /teacher log-prob −1 nats/);
});

test("a run without a teacher has no distance to one", () => {
  const plain = { ...COMPLETION };
  addTeacher(plain);

  assert.equal(makeScale([plain], "teacher"), null);
});

test("an outlier does not compress the scale", () => {
  const far = { ...COMPLETION, logprob: [...Array(199).fill(-1), -30] };

  const scale = makeScale([far], "logprob");

  assert.equal(scale.levelOf(-1), 4);
  assert.equal(scale.levelOf(-30), 4);
});

test("missing values have no scale", () => {
  assert.equal(makeScale([COMPLETION], "kl"), null);
  assert.equal(makeScale([{ ...COMPLETION, clipped: null }], "clipped"), null);
});

test("NaN has no colour", () => {
  assert.equal(makeScale([COMPLETION], "logprob").levelOf(null), 0);
});

test("clipped tokens have a side", () => {
  const scale = makeScale([COMPLETION], "clipped");

  assert.deepEqual(COMPLETION.clipped.map(scale.levelOf), [0, "+4", -4]);
});

test("a gap of rounding has no colour", () => {
  const scale = makeScale([{ ...COMPLETION, gap: [1e-7, -1e-7, 0] }], "gap");
  assert.equal(scale.levelOf(1e-7), 0);
  assert.equal(scale.levelOf(0.01), "+4");
});

test("the gap from the sampler has two sides", () => {
  const scale = makeScale([{ ...COMPLETION, gap: [0, 0.2, -0.2] }], "gap");

  assert.deepEqual([0, 0.2, -0.2, null].map(scale.levelOf), [0, "+4", -4, 0]);
});

test("masked tokens are marked most", () => {
  const weight = [0, 0.5, 1, 2, null];
  const scale = makeScale([{ ...COMPLETION, weight }], "weight");

  assert.deepEqual(weight.map(scale.levelOf), [-4, -1, 0, "+1", 0]);
  assert.equal(makeScale([COMPLETION], "weight"), null);
});

test("a token is described by its known values", () => {
  assert.equal(
    describe(COMPLETION, 1),
    'Token 2 of 3 · id 9 · " sum" · log-prob −2 nats (13.5%) · sampling log-prob −2.1 nats' +
      " · entropy 1 nats · ratio 1.65 · advantage 1.2 · gradient coefficient 0" +
      " · clipped above",
  );
});

test("line ends and tabs are visible", () => {
  assert.equal(show("a\n\tb\r"), "a↵\n⇥\tb␍");
});

test("bidirectional control characters are escaped", () => {
  const turned = { ...COMPLETION, pieces: ["\u202ea", "\u2067b", "c"] };

  assert.match(describe(turned, 0), / · "\\u202ea" · /);
  assert.match(describe(turned, 1), / · "\\u2067b" · /);
});

test("a token of an environment is described as not trained", () => {
  const turns = [
    ["policy", true, 1],
    ["calculator", false, 2],
    ["policy", true, 3],
  ];
  const episode = { ...COMPLETION, turns };

  const reported = [0, 1, 2].map((at) => describe(episode, at).endsWith("not trained"));

  assert.deepEqual(reported, [false, true, false]);
});
