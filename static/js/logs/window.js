// The lines of a log that a page holds: a stretch of the file, at most so many lines.

export const MAX_LINES = 2_000;

export class LogWindow {
  lines = []; // { number, at, text, num_chars }
  first = 0; // byte where they begin
  next = 0; // byte to read on from
  size = 0;
  mark = "";
  isEnd = true; // the file ends with them, as far as is known

  // The page begins again, at the end of the log or at a line of it.
  replace(part) {
    this.lines = number(part);
    this.first = part.first;
    this.#ended(part);
  }

  // How many lines are new; -1: the file was cut, so the page has begun again.
  append(part) {
    if (this.mark && part.mark !== this.mark) {
      this.replace(part);
      return -1;
    }
    const last = this.lines.at(-1)?.number ?? 0;
    // An unfinished line comes again, with what was written since.
    const kept = this.lines.filter(({ at }) => at < part.first);
    this.lines = [...kept, ...number(part)];
    if (!kept.length) this.first = part.first;
    this.#ended(part);
    return Math.max(0, (this.lines.at(-1)?.number ?? 0) - last);
  }

  prepend(part) {
    if (part.mark !== this.mark) {
      this.replace(part);
      return;
    }
    this.lines = [...number(part), ...this.lines];
    this.first = part.first;
    this.size = part.size;
  }

  dropFirst() {
    if (this.lines.length <= MAX_LINES) return;
    this.lines = this.lines.slice(-MAX_LINES);
    this.first = this.lines[0].at;
  }

  dropLast() {
    if (this.lines.length <= MAX_LINES) return;
    this.next = this.lines[MAX_LINES].at;
    this.lines = this.lines.slice(0, MAX_LINES);
    this.isEnd = false;
  }

  get isFull() {
    return this.lines.length >= MAX_LINES;
  }

  has(lineNumber) {
    const [first, last] = [this.lines[0], this.lines.at(-1)];
    return Boolean(first) && first.number <= lineNumber && lineNumber <= last.number;
  }

  #ended(part) {
    this.next = part.next;
    this.size = part.size;
    this.mark = part.mark;
    this.isEnd = part.is_end;
  }
}

function number({ lines, number }) {
  return lines.map((line, i) => ({ ...line, number: number + i }));
}
