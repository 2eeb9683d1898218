// Sends a file in parts, each from the byte that the server expects. Retries after a lost
// connection until the upload is complete or cancelled.

const HEAD_BYTES = 256 * 1024;
const LONGEST_PAUSE_SECONDS = 15;

// The server is unreachable or failed: worth a retry.
export class ConnectionLost extends Error {}

// The server rejected the request; the message says why.
export class Refused extends Error {}

// FNV-1a, as crypto.subtle needs HTTPS. It distinguishes the files of one user; it is not
// for security.
export function hashOf(bytes) {
  let hash = 0x811c9dc5;
  for (const byte of bytes) hash = Math.imul(hash ^ byte, 0x01000193);
  return (hash >>> 0).toString(16).padStart(8, "0");
}

// A file that was saved again is a different one, and must not continue the old upload.
export async function fingerprintOf(file) {
  const head = await file.slice(0, HEAD_BYTES).arrayBuffer();
  return `${hashOf(new Uint8Array(head))}-${file.lastModified}`;
}

export function pauseSeconds(numFailures) {
  return Math.min(2 ** (numFailures - 1), LONGEST_PAUSE_SECONDS);
}

// `server` has begin(file), received(upload) and send(upload, offset, part, onProgress),
// which throw ConnectionLost or Refused. `tell` has progress(bytes) and trouble(seconds).
// `wait(seconds)` returns when it is time to retry, or throws if the upload is cancelled.
export async function transfer(file, partBytes, { server, tell, wait }) {
  let numFailures = 0;

  async function retry(action) {
    for (;;) {
      try {
        const result = await action();
        numFailures = 0;
        return result;
      } catch (error) {
        if (!(error instanceof ConnectionLost)) throw error;
        numFailures += 1;
        tell.trouble(pauseSeconds(numFailures));
        await wait(pauseSeconds(numFailures));
      }
    }
  }

  const upload = await retry(() => server.begin(file));
  let { received } = upload;
  tell.progress(received);
  while (received < file.size) {
    const offset = received;
    received = await retry(async () => {
      // After a failure, the part may have arrived.
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
