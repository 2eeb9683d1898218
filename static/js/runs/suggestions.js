// Keys and values from the server, each requested once.

const answers = new Map();

function load(url) {
  if (!answers.has(url)) {
    const request = fetch(url, { headers: { Accept: "application/json" } }).then(
      (answer) => {
        if (!answer.ok)
          throw new Error(`Failed to load suggestions: HTTP ${answer.status}.`);
        return answer.json();
      },
    );
    // Failed requests are retried.
    request.catch(() => answers.delete(url));
    answers.set(url, request);
  }
  return answers.get(url);
}

const address = () => document.querySelector("[data-suggest]").dataset.suggest;

export const knownKeys = () => load(address());

export const valuesOf = (key) =>
  load(`${address()}?key=${encodeURIComponent(key)}`).then(({ values }) => values);
