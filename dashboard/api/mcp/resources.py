"""Resources and prompts: help pages, a run's settings and log, and three procedures."""

from __future__ import annotations

import re
from typing import Any

from django.http import Http404

from dashboard.api.auth import ApiRequest
from dashboard.api.mcp.limits import MOST_CHARS
from dashboard.api.mcp.protocol import BAD_PARAMS, Fault
from dashboard.api.measurements import Which, run_log
from dashboard.api.schemas import LARGEST_ID
from dashboard.help.pages import FOLDER, MARKS, all_pages
from dashboard.project.database import read_whole
from dashboard.project.errors import or_404
from dashboard.runs.config.snapshot import WRITERS
from dashboard.runs.queries import get_run, settings_of

HELP = "cohort://help/"
OF_A_RUN = re.compile(r"cohort://runs/(\d{1,19})/(config\.toml|log)", re.ASCII)
LOG_LINES = 200
TEMPLATES = [
    {
        "uriTemplate": "cohort://runs/{id}/config.toml",
        "name": "Settings of a run",
        "mimeType": "text/plain",
    },
    {
        "uriTemplate": "cohort://runs/{id}/log",
        "name": f"Last {LOG_LINES} lines of a run's log",
        "mimeType": "text/plain",
    },
]
# By prompt: its title, and the procedure.
PROMPTS = {
    "diagnose_run": (
        "Diagnose a run",
        "Diagnose run {run}. Call get_run and read its verdict, alerts and jump. Call "
        "get_metrics for reward/mean, kl/mean, entropy, completion/mean_length and "
        "group/frac_zero_std. If the reward stalls, look for groups without spread and "
        "truncated completions. Call search_completions with sort reward, then with "
        "sort -reward, and read five of each. Then say in at most five sentences what "
        "happened, since which step, what the evidence is, and what you would change.",
    ),
    "find_reward_hacking": (
        "Look for reward hacking",
        "Look for reward hacking in run {run}. Call get_analysis with kind audit. Call "
        "search_completions with surprise high_short, then with outcome not_right and "
        "sort -reward, of the last steps. Compare with completions of the first steps. "
        "For a suspicion, write a reward that would not pay for it and call try_reward "
        "on one of the groups. Report each pattern with three completions by step, "
        "prompt and position, and the share of completions if you can count it.",
    ),
    "next_experiment": (
        "Propose the next experiment",
        "Propose the next experiment after run {run}. Call get_run, then find_runs for "
        "runs with the same dataset and compare_runs with the best of them. Choose one "
        "setting whose change the evidence supports; list_inputs with kind setting has "
        "its range. Call launch_run with from_run {run}, a checkpoint if training "
        "should continue, and that one setting, as a dry run. Show the person the "
        "differences, warnings, memory and time, and launch only after they agree.",
    ),
}


def list_resources() -> list[dict[str, Any]]:
    """List the help pages; a run's resources have templates."""
    return [
        {"uri": f"{HELP}{name}", "name": page.title, "mimeType": "text/markdown"}
        for name, page in all_pages().items()
    ]


def read_resource(request: ApiRequest, uri: str) -> str:
    """Read a resource, of a long one the end."""
    name = uri.removeprefix(HELP)
    if uri.startswith(HELP) and name in all_pages():
        return MARKS.sub("", (FOLDER / f"{name}.md").read_text(encoding="utf-8"))
    match = OF_A_RUN.fullmatch(uri)
    if match is None or int(match[1]) > LARGEST_ID:
        raise Http404(f"No resource {uri[:80]!r}. resources/list has them all.")
    run = get_run(request.auth.team, int(match[1]))
    if match[2] == "log":
        which = Which.model_validate({})
        log = run_log(request, run.pk, which, after=None, before=None, line=None)
        lines = [line.text for line in log.lines[-LOG_LINES:]]
        return ("\n".join(lines) or log.missing)[-MOST_CHARS:]
    config = or_404(settings_of(run), f"{run} was imported and has no settings.")
    return WRITERS["toml"](run, config)


def list_prompts() -> list[dict[str, Any]]:
    argument = {"name": "run", "description": "ID of the run", "required": True}
    return [
        {"name": name, "title": title, "arguments": [argument]}
        for name, (title, _) in PROMPTS.items()
    ]


def write_prompt(name: str, arguments: Any) -> dict[str, Any]:
    if name not in PROMPTS:
        raise Fault(BAD_PARAMS, f"Unknown prompt {name[:60]!r}.")
    run = str(arguments.get("run", "")) if isinstance(arguments, dict) else ""
    if read_whole(run) is None:
        raise Fault(BAD_PARAMS, "The prompt requires `run`, the ID of a run.")
    title, text = PROMPTS[name]
    content = {"type": "text", "text": text.format(run=run)}
    return {"description": title, "messages": [{"role": "user", "content": content}]}
