// Keys and values that the server knows, each asked for once.

const answers = new Map();

function ask(url) {
  if (!answers.has(url)) {
    const asked = fetch(url, { headers: { Accept: "application/json" } }).then(
      (answer) => {
        if (!answer.ok) throw new Error(`Suggestions answered ${answer.status}.`);
        return answer.json();
      },
    );
    // A server that was away is asked again.
    asked.catch(() => answers.delete(url));
    answers.set(url, asked);
  }
  return answers.get(url);
}

const address = () => document.querySelector("[data-suggest]").dataset.suggest;

export const knownKeys = () => ask(address());

export const valuesOf = (key) =>
  ask(`${address()}?key=${encodeURIComponent(key)}`).then(({ values }) => values);
