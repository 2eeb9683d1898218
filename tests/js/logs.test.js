import assert from "node:assert/strict";
import { test } from "node:test";

import { pieces } from "../../static/js/logs/marked.js";
import { LogSearch } from "../../static/js/logs/search.js";
import { LogWindow, MAX_LINES } from "../../static/js/logs/window.js";

// Lines "line N" of 10 bytes each, from the one with this number on.
function part(
  number,
  count,
  { total = number + count - 1, mark = "m", open = 0 } = {},
) {
  const lines = Array.from({ length: count }, (_, i) => ({
    at: (number - 1 + i) * 10,
    text: `line ${number + i}`,
    num_chars: 7,
  }));
  const end = number - 1 + count;
  return {
    number,
    lines,
    mark,
    first: (number - 1) * 10,
    next: (end - open) * 10,
    size: total * 10,
    is_end: end === total,
  };
}

const numbers = (log) => [log.lines[0].number, log.lines.at(-1).number];

test("new lines are appended and counted", () => {
  const log = new LogWindow();
  log.replace(part(101, 500));

  assert.equal(log.append(part(601, 3)), 3);

  assert.deepEqual(numbers(log), [101, 603]);
  assert.equal(log.next, 6_030);
});

test("an unfinished line is replaced", () => {
  const log = new LogWindow();
  log.replace(part(1, 3, { open: 1 }));
  const whole = part(3, 2);
  whole.lines[0].text = "line 3, finished";

  assert.equal(log.append(whole), 1);

  assert.deepEqual(
    log.lines.map(({ text }) => text),
    ["line 1", "line 2", "line 3, finished", "line 4"],
  );
});

test("a truncated log restarts", () => {
  const log = new LogWindow();
  log.replace(part(1, 500));

  assert.equal(log.append(part(1, 20, { mark: "other" })), -1);

  assert.deepEqual(numbers(log), [1, 20]);
});

test("the number of lines is limited at both ends", () => {
  const log = new LogWindow();
  log.replace(part(2_001, 500, { total: 9_000 }));
  for (let first = 2_501; first < 4_501; first += 500)
    log.append(part(first, 500, { total: 9_000 }));
  log.dropFirst();
  assert.deepEqual(numbers(log), [2_501, 4_500]);
  assert.equal(log.first, 25_000);

  log.prepend(part(2_001, 500, { total: 9_000 }));
  log.dropLast();

  assert.equal(log.lines.length, MAX_LINES);
  assert.deepEqual(numbers(log), [2_001, 4_000]);
  assert.equal(log.next, 40_000);
  assert.equal(log.isEnd, false);
});

test("a search wraps around and shows its position", () => {
  const search = new LogSearch();
  const matches = [3, 8].map((number) => ({ number, spans: [[0, 1]] }));
  search.take({ matches, first: 0, total: 2, stopped: "" }, 0);

  assert.equal(search.label, "1 of 2");
  assert.equal(search.turn(1), null);
  assert.equal(search.match.number, 8);
  search.turn(1);
  assert.equal(search.match.number, 3);
  search.turn(-1);
  assert.equal(search.label, "2 of 2");
});

test("an unlisted match is requested by its hundred", () => {
  const search = new LogSearch();
  const matches = Array.from({ length: 100 }, (_, i) => ({ number: i, spans: [] }));
  search.take({ matches, first: 0, total: 250, stopped: "" }, 0);

  assert.equal(search.turn(-1), 200);
});

test("matches are marked in their line", () => {
  assert.deepEqual(
    pieces("step 10/200", [
      [0, 4],
      [5, 7],
    ]),
    [
      ["step", true],
      [" ", false],
      ["10", true],
      ["/200", false],
    ],
  );
});
