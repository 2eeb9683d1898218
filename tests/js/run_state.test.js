import assert from "node:assert/strict";
import { test } from "node:test";

import { RunState } from "../../static/js/live/run_state.js";

const SILENT = { state: "running", has_ended: false, silence: "no step for 6 min" };
const BUSY = { ...SILENT, silence: "" };
const QUEUED = { ...BUSY, state: "queued" };
const ENDED = { ...BUSY, state: "finished", has_ended: true };

function make({ isSilent, current }) {
  const shown = [];
  let numReads = 0;
  const clock = { now: 100_000 };
  const state = new RunState({
    isSilent,
    read: async () => {
      numReads += 1;
      return current;
    },
    show: (run) => shown.push(run),
    now: () => clock.now,
  });
  return { state, shown, clock, numReads: () => numReads };
}

test("a kept snapshot does not hide that the trainer is silent", async () => {
  const { state, shown } = make({ isSilent: true, current: SILENT });

  await state.follow({ type: "snapshot", run: BUSY });

  assert.deepEqual(shown, [SILENT]);
});

test("a snapshot is shown where the page knows of no silence, or the run ended", async () => {
  const { state, shown, numReads } = make({ isSilent: false, current: SILENT });
  await state.follow({ type: "snapshot", run: BUSY });
  const other = make({ isSilent: true, current: SILENT });
  await other.state.follow({ type: "snapshot", run: ENDED });

  assert.deepEqual([shown, other.shown], [[BUSY], [ENDED]]);
  assert.deepEqual([numReads(), other.numReads()], [0, 0]);
});

test("events end a silence at once, and the state is read again 30 s later", async () => {
  const { state, shown, clock, numReads } = make({ isSilent: true, current: SILENT });
  await state.follow({ type: "batch", run: BUSY });
  await state.refresh();
  assert.equal(numReads(), 0);

  clock.now += 30_001;
  await state.refresh();

  assert.deepEqual(shown, [BUSY, SILENT]);
});

test("a queued run is read each time, until no updates come", async () => {
  const { state, numReads } = make({ isSilent: false, current: QUEUED });
  await state.follow({ type: "batch", run: QUEUED });

  await state.refresh();
  await state.refresh();
  state.leaveQueue();
  await state.refresh();

  assert.equal(numReads(), 2);
});
