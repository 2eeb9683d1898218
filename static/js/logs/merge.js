// Merges the trainer's and the worker's lines by time.

const STAMP = /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{3})? /;

// ID and URL fragment of a line; the worker's lines are numbered separately.
export function lineId({ number, isWorker }) {
  return `${isWorker ? "W" : "L"}${number}`;
}

// The trainer's lines of the page with the worker's lines between them. A trainer line
// without a time follows the one before it.
export function interleave(main, other) {
  const { lines } = main;
  const from = main.first > 0 ? timed(lines)?.time : -Infinity;
  const to = main.isEnd ? Infinity : timed([...lines].reverse())?.time;
  const worker = dated(other.lines)
    .filter(({ time }) => time >= from && time <= to)
    .map((line) => ({ ...line, isWorker: true }));
  const merged = [];
  let next = 0;
  for (const line of lines) {
    const isDue = ({ time }) => line.time !== null && time < line.time;
    while (next < worker.length && isDue(worker[next])) merged.push(worker[next++]);
    merged.push(line);
  }
  return [...merged, ...worker.slice(next)];
}

// The second line of a message has no time of its own.
function dated(lines) {
  let last = -Infinity;
  return lines.map((line) => {
    last = line.time ?? last;
    return { ...line, time: last };
  });
}

function timed(lines) {
  return lines.find(({ time }) => time !== null);
}

// The time has a column of its own, so a worker's line does not begin with it.
export function withoutStamp({ text, isWorker }, spans) {
  const length = (isWorker && STAMP.exec(text)?.[0].length) || 0;
  const moved = spans
    .map(([start, end]) => [Math.max(0, start - length), end - length])
    .filter(([, end]) => end > 0);
  return { text: text.slice(length), spans: moved };
}

// 12:03:59, in UTC as all times are here.
export function clockTime(seconds) {
  return new Date(seconds * 1000).toISOString().slice(11, 19);
}
