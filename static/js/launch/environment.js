// The environment of the launch form: its card unfolds once one is chosen, tools are
// ticked, and the episode limit and the reward are proposed.

const BUILT_IN = ["calculator", "python"];
// Tokens of a reply with what the chat template writes around it; of others it is open.
const REPLY = { guess: 16, countdown_calculator: 48 };
const OTHER_REPLY = 256;
const REWARDS = ["guess", "python", "verifiers"];
const FUNCTION = /^(?:async\s+)?def\s+([A-Za-z]\w*)/gm;

// `rewards` are the recipes that use an environment's; `usual` tells the start's recipe.
export function keepEnvironment(form, { chosen, rewards, usual }) {
  const card = form.querySelector("[data-part=environment]");
  const kind = form.elements["environment.kind"];
  const list = form.elements["environment.tools"];
  const source = form.elements["environment.source"];
  const limit = form.elements["environment.max_tokens"];
  const box = card.querySelector("[data-tools]");
  const missing = card.querySelector("[data-environment-reward]");
  let before = null;
  let offered = "";
  let proposed = "";

  function readTools() {
    try {
      const names = JSON.parse(list.value || "[]");
      return Array.isArray(names) && names.every((n) => typeof n === "string")
        ? names
        : null;
    } catch {
      return null;
    }
  }

  function showTools() {
    const names = readTools();
    list.hidden = names !== null;
    box.hidden = names === null;
    if (names === null) return;
    const own = [...source.value.matchAll(FUNCTION)].map(([, name]) => name);
    const all = [...new Set([...BUILT_IN, ...own, ...names])];
    if (all.join() !== offered) box.replaceChildren(...all.map(makeBox));
    offered = all.join();
    for (const tick of box.querySelectorAll("input"))
      tick.checked = names.includes(tick.value);
  }

  function makeBox(name) {
    const label = document.createElement("label");
    label.className = "form-check";
    const tick = document.createElement("input");
    Object.assign(tick, { type: "checkbox", className: "form-check-input" });
    tick.value = name;
    const words = document.createElement("span");
    words.className = "form-check-label mono";
    words.textContent = name;
    label.append(tick, words);
    return label;
  }

  box.addEventListener("input", (event) => {
    event.stopPropagation();
    const ticked = [...box.querySelectorAll("input:checked")];
    list.value = `[${ticked.map(({ value }) => JSON.stringify(value)).join(", ")}]`;
    list.dispatchEvent(new Event("input", { bubbles: true }));
  });

  // Follows the other limits until another one is typed.
  function proposeLimit() {
    const isOwn = !["", "0", proposed].includes(limit.value.trim());
    if (isOwn || document.activeElement === limit) return;
    if (kind.value === "none") {
      if (proposed) limit.value = limit.closest("[data-setting]").dataset.from;
      proposed = "";
      return;
    }
    const read = (name) => Number(form.elements[name].value) || 0;
    const reply = Math.min(
      read("environment.max_reply_tokens"),
      REPLY[kind.value] ?? OTHER_REPLY,
    );
    const replies = (read("environment.max_turns") - 1) * reply;
    const own = read("data.max_prompt_tokens") + read("rollout.max_new_tokens");
    limit.value = proposed = String(own + replies);
  }

  limit.addEventListener("blur", proposeLimit);

  function proposeReward() {
    const select = form.elements.recipe;
    const isOfOne = rewards.includes(select.value);
    if (chosen.has("recipe") || isOfOne === REWARDS.includes(kind.value)) return;
    if (!isOfOne) select.value = rewards.at(0) ?? select.value;
    else if (kind.value === "none" && before !== null) select.value = usual();
  }

  return function show() {
    if (kind.value !== before) {
      if (before !== null) card.open = kind.value !== "none";
      proposeReward();
      before = kind.value;
      // It also checks the model's chat template.
      if (before !== "none")
        document.getElementById("prompt-preview").dispatchEvent(new Event("preview"));
    }
    card.querySelector("[data-of-environment]").hidden = kind.value === "none";
    if (missing) missing.hidden = !REWARDS.includes(kind.value);
    showTools();
    proposeLimit();
  };
}
