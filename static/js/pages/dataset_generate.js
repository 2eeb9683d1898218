// Filters the list of tasks by the text entered.

const filter = document.querySelector("[data-task-filter]");
const count = document.querySelector("[data-task-count]");
const tasks = [...document.querySelectorAll("[data-task]")];

function narrow() {
  const wanted = filter.value.trim().toLowerCase();
  for (const task of tasks) {
    task.hidden = !task.textContent.toLowerCase().includes(wanted);
  }
  const shown = tasks.filter((task) => !task.hidden).length;
  count.textContent = `${shown} of ${tasks.length}`;
}

filter?.addEventListener("input", narrow);
