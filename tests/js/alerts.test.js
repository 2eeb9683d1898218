import assert from "node:assert/strict";
import { test } from "node:test";

import { alertCodes, describeFiring } from "../../static/js/live/alerts.js";
import { listWarnings } from "../../static/js/live/warnings.js";

function alert(fields) {
  return {
    name: "KL",
    step: 1200,
    state: "firing",
    is_muted: false,
    code: "",
    ...fields,
  };
}

test("the newest of those that no one looks after is named", () => {
  const alerts = [
    alert({ state: "acknowledged" }),
    alert({ is_muted: true }),
    alert({ name: "Gradient spikes" }),
    alert({ step: 3 }),
  ];

  assert.deepEqual(describeFiring(alerts), {
    count: "2 alerts",
    newest: "Gradient spikes, step 1,200",
    isShown: true,
  });
});

test("without any that fires there is no line", () => {
  const { isShown, newest } = describeFiring([alert({ state: "resolved" })]);

  assert.deepEqual([isShown, newest], [false, ""]);
});

test("a warning that says the same as an alert is not listed", () => {
  const known = alertCodes([alert({ code: "truncated" }), alert()]);
  const warned = (code) => ({ type: "warned", step: 1, body: { code, message: code } });
  const events = [warned("truncated"), warned("stale")];

  assert.deepEqual(
    listWarnings(events, 5, known).map(({ code }) => code),
    ["stale"],
  );
  assert.equal(listWarnings(events, 5).length, 2);
});
