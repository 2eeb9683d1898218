// The upload endpoints, with the interface that transfer.js expects.

import { ConnectionLost, fingerprintOf, Refused } from "./transfer.js";

// A request with upload progress, which fetch does not report.
export function send(method, address, { body, token, signal, onProgress }) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const abort = () => request.abort();
    signal?.addEventListener("abort", abort);
    request.upload.addEventListener("progress", (e) => onProgress?.(e.loaded, e.total));
    request.addEventListener("load", () => resolve(request));
    request.addEventListener("error", () =>
      reject(new ConnectionLost("Connection lost.")),
    );
    request.addEventListener("abort", () => reject(signal.reason));
    request.addEventListener("loadend", () =>
      signal?.removeEventListener("abort", abort),
    );
    request.open(method, address);
    if (token) request.setRequestHeader("X-CSRFToken", token);
    if (body instanceof Blob) {
      request.setRequestHeader("Content-Type", "application/octet-stream");
    }
    request.send(body ?? null);
  });
}

function read(request) {
  const isJson = request
    .getResponseHeader("Content-Type")
    ?.startsWith("application/json");
  if (isJson && [200, 409].includes(request.status)) {
    return JSON.parse(request.responseText);
  }
  if (isJson) throw new Refused(JSON.parse(request.responseText).error);
  if (request.status >= 500)
    throw new ConnectionLost(`The server responded with ${request.status}.`);
  throw new Refused(
    `The server responded with ${request.status}. Reload the page; you may be signed out or no longer allowed to upload.`,
  );
}

export class UploadServer {
  // `address` is the URL of all uploads, `query` is "?dataset=1" or empty.
  constructor({ address, query, token, signal }) {
    Object.assign(this, { address, query, token, signal });
  }

  async begin(file) {
    const body = new FormData();
    body.append("filename", file.name);
    body.append("num_bytes", file.size);
    body.append("fingerprint", await fingerprintOf(file));
    return read(await this.#request("POST", `${this.address}${this.query}`, { body }));
  }

  async received({ id }) {
    return read(await this.#request("GET", `${this.address}/${id}/parts`)).received;
  }

  async send({ id }, offset, part, onProgress) {
    const address = `${this.address}/${id}/parts?offset=${offset}`;
    return read(await this.#request("POST", address, { body: part, onProgress }))
      .received;
  }

  #request(method, address, options = {}) {
    const { token, signal } = this;
    return send(method, address, { token, signal, ...options });
  }
}
