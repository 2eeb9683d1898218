// Sends a file in parts, each from where the server has it so far. What breaks off is
// tried again until it is through, or somebody cancels.

const HEAD_BYTES = 256 * 1024;
const LONGEST_PAUSE_SECONDS = 15;

// The server cannot be reached, or has trouble of its own: worth another try.
export class Broken extends Error {}

// The server says no, and why.
export class Refused extends Error {}

// FNV-1a, as crypto.subtle is not there on plain HTTP. It tells files of one person
// apart, and keeps nobody out.
export function hashOf(bytes) {
  let hash = 0x811c9dc5;
  for (const byte of bytes) hash = Math.imul(hash ^ byte, 0x01000193);
  return (hash >>> 0).toString(16).padStart(8, "0");
}

// A file that was saved anew is another one: its old beginning must not get a new end.
export async function fingerprintOf(file) {
  const head = await file.slice(0, HEAD_BYTES).arrayBuffer();
  return `${hashOf(new Uint8Array(head))}-${file.lastModified}`;
}

export function pauseSeconds(numFailures) {
  return Math.min(2 ** (numFailures - 1), LONGEST_PAUSE_SECONDS);
}

// `server` has begin(file), received(upload) and send(upload, offset, part, onProgress),
// which throw Broken or Refused; `tell` has progress(bytes) and trouble(seconds), and
// `wait(seconds)` returns when it is time to try again, or throws when it is not to be.
export async function transfer(file, partBytes, { server, tell, wait }) {
  let numFailures = 0;

  async function insist(action) {
    for (;;) {
      try {
        const result = await action();
        numFailures = 0;
        return result;
      } catch (error) {
        if (!(error instanceof Broken)) throw error;
        numFailures += 1;
        tell.trouble(pauseSeconds(numFailures));
        await wait(pauseSeconds(numFailures));
      }
    }
  }

  const upload = await insist(() => server.begin(file));
  let { received } = upload;
  tell.progress(received);
  while (received < file.size) {
    const offset = received;
    received = await insist(async () => {
      // After a failure nobody knows whether the part has arrived.
      const from = numFailures ? await server.received(upload) : offset;
      if (from !== offset) return from;
      const part = file.slice(from, from + partBytes);
      return server.send(upload, from, part, (sent) => tell.progress(from + sent));
    });
    // Another window sends the same file.
    if (received === offset) await wait(1);
    tell.progress(received);
  }
  return upload;
}
