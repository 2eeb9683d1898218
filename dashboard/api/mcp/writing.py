"""The tools that change something: a dry run first, then the same call with its code.

The code is bound to the token, the arguments and what was read. It holds for an hour,
until something of that changes, and does its work once.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from django.db import transaction
from django.http import HttpResponse, JsonResponse
from django.utils.crypto import constant_time_compare, salted_hmac
from pydantic import Field

from dashboard.analysis.rescoring.credit import StepSettings
from dashboard.analysis.rescoring.services import make_estimate, select_steps
from dashboard.api.auth import ApiRequest
from dashboard.api.guards import replay_once
from dashboard.api.launches import LaunchIn, Value, check_launch, launch, read_launch
from dashboard.api.mcp.limits import write
from dashboard.api.mcp.reading import page_of
from dashboard.api.mcp.tools import Arguments, tool
from dashboard.api.problems import Problem, refuse_field
from dashboard.api.recipes import find_recipe_version
from dashboard.api.rescoring import RescoringIn, rescore
from dashboard.api.runs import (
    RunExtendIn,
    cancel,
    extend,
    pause_run,
    resume,
    stop_run,
)
from dashboard.api.schemas import IdIn, StepIn
from dashboard.runs.attributes import describe_run
from dashboard.runs.changes import MAX_STEPS
from dashboard.runs.control import describe_loss
from dashboard.runs.launch.draft import LaunchDraft
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run

CODE_CHARS = 32
CODE_SECONDS = 3_600


class Deed(Arguments):
    """Arguments of a tool that changes something."""

    dry_run: bool = Field(default=True, description="Only tell what would happen")
    confirm: Annotated[str, Field(max_length=100)] = Field(
        default="", description="`confirm` of the dry run"
    )
    key: Annotated[str, Field(max_length=60, pattern=r"^[!-~]*$")] = Field(
        default="", description="A repeated call with this key takes effect once"
    )


def confirmed(
    request: ApiRequest,
    arguments: Deed,
    *,
    plan: Callable[[], tuple[dict[str, Any], Any]],
    do: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """Answer the plan, or do it if nothing has changed since.

    Args:
        plan: returns the dry run's answer, and the facts that may not change.
        do: raises Problem if it cannot.
    """
    token = request.auth.token
    own = {"max_chars", "dry_run", "confirm", "key"}
    said = write([type(arguments).__name__, arguments.model_dump(exclude=own)])
    if arguments.dry_run:
        answer, facts = plan()
        nonce = f"{int(time.time()):x}{secrets.token_hex(4)}"
        confirm = f"{nonce}.{_code(token.pk, said, facts, nonce)}"
        return {**answer, "is_dry_run": True, "confirm": confirm}
    if not arguments.confirm:
        raise refuse_field(
            "confirm",
            "Call the tool with dry_run true first, then repeat the call with its "
            "confirm.",
            "mcp.confirm_required",
        )

    nonce, _, code = arguments.confirm.partition(".")

    def do_once() -> HttpResponse:
        _, facts = plan()
        expected = _code(token.pk, said, facts, nonce)
        if not constant_time_compare(code, expected) or _is_old(nonce):
            raise Problem(
                409,
                "Nothing changed: the arguments, or what they refer to, differ from "
                "the dry run. Call it again with dry_run true.",
                code="mcp.changed",
            )
        return JsonResponse(do())

    # A code is used once, and a key in all that has it.
    digest = hashlib.sha256(said.encode()).hexdigest()
    once = partial(replay_once, token, f"mcp:{nonce}", digest)
    with transaction.atomic():
        if arguments.key:
            keyed = partial(replay_once, token, f"mcp-key:{arguments.key}", digest)
            response = keyed(lambda: once(do_once))
        else:
            response = once(do_once)
    assert isinstance(response, HttpResponse)
    done: dict[str, Any] = json.loads(response.content)
    if "Idempotent-Replayed" in response.headers:
        done["is_repeated"] = True
    return done


def _is_old(nonce: str) -> bool:
    """Tell whether the code of a nonce that was made here has expired."""
    return time.time() - int(nonce[:-8], 16) > CODE_SECONDS


def _code(token_id: int, said: str, facts: Any, nonce: str) -> str:
    text = write([token_id, said, facts, nonce])
    code = salted_hmac("cohort.mcp.confirm", text, algorithm="sha256").hexdigest()
    return code[:CODE_CHARS]


def try_out(do: Callable[[], Any]) -> Any:
    """Do it and take it back: what would fail fails now."""
    with transaction.atomic():
        result = do()
        transaction.set_rollback(True)
    return result


class LaunchRun(Deed):
    from_run: IdIn | None = Field(default=None, description="Take this run's settings")
    checkpoint: Annotated[str, Field(max_length=120)] = Field(
        default="",
        description="Fork from_run at this checkpoint, such as step-000050-attempt-1",
    )
    preset: Annotated[str, Field(max_length=200)] = Field(
        default="", description="Key of a preset, instead of a run"
    )
    model: Annotated[str, Field(max_length=1_000)] | None = None
    dataset: IdIn | None = Field(default=None, description="Version of a dataset")
    recipe: IdIn | None = Field(default=None, description="Version of a reward")
    settings: dict[str, Value] = Field(
        default={}, description="Changed settings by path: optim.learning_rate"
    )
    name: Annotated[str, Field(max_length=400)] | None = None
    tags: list[Annotated[str, Field(max_length=200)]] = Field(default=[], max_length=20)

    def payload(self) -> LaunchIn:
        if self.preset and self.from_run:
            raise refuse_field("preset", "Send a preset or from_run, not both.")
        if self.checkpoint and not self.from_run:
            raise refuse_field("checkpoint", "A checkpoint requires from_run.")
        start = self.preset
        if self.from_run:
            start = f"run-{self.from_run}"
        if self.checkpoint:
            start = f"fork-{self.from_run}-{self.checkpoint}"
        return LaunchIn(
            start=start,
            name=self.name,
            model=self.model,
            dataset_version_id=self.dataset,
            recipe_version_id=self.recipe,
            settings=self.settings,
            confirm=True,
        )


@tool(
    "Launch a run: a run's settings or a preset, with changes. With from_run and a "
    "checkpoint it is a fork that continues. The dry run tells what differs, warnings, "
    "memory and time, and gives `confirm`; ask the person before you send it.",
    readOnlyHint=False,
    destructiveHint=False,
    idempotentHint=True,
)
def launch_run(request: ApiRequest, arguments: LaunchRun) -> dict[str, Any]:
    payload = arguments.payload()

    def plan() -> tuple[dict[str, Any], Any]:
        check = check_launch(request, payload)
        form = read_launch(request.auth.team, payload)
        differences = {
            path: {"was": form.start.texts.get(path), "now": text}
            for path, text in form.texts.items()
            if form.start.texts.get(path) != text
        }
        answer = {
            **check.model_dump(exclude={"config", "toml", "fitted_because"}),
            "differs_from": {"start": form.start.title, "settings": differences},
            **chosen_by(form),
        }
        return answer, [check.config, check.warnings, chosen_by(form)]

    def do() -> dict[str, Any]:
        detail = launch(request, payload).value
        if arguments.tags:
            run = get_run(request.auth.team, detail.id)
            try:
                describe_run(
                    run=run, user=request.auth.user, typed={"tags": arguments.tags}
                )
            except ValueError as error:
                raise refuse_field("tags", error) from error
        return {
            **detail.model_dump(include={"id", "name", "state", "num_steps"}),
            "url": page_of(request, detail.id),
        }

    return confirmed(request, arguments, plan=plan, do=do)


def chosen_by(form: LaunchDraft) -> dict[str, str]:
    """Name what a launch trains, on what, by which reward."""
    dataset, recipe = form.dataset_version, form.recipe_version
    return {
        "model": form.model_path,
        "dataset": f"{dataset.dataset.name}@{dataset.number}" if dataset else "",
        "recipe": f"{recipe.recipe.name}@{recipe.number}" if recipe else "",
    }


CONTROLS = {
    "stop": (stop_run, "The run finishes its step, saves a checkpoint and ends."),
    "pause": (pause_run, "The run saves a checkpoint and frees the worker."),
    "resume": (resume, "The run is queued and continues from its last checkpoint."),
    "cancel": (cancel, "The run ends at once, without a checkpoint."),
}


class ControlRun(Deed):
    run: IdIn
    do: Literal["stop", "pause", "resume", "cancel", "extend"]
    num_steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None = Field(
        default=None, description="With extend: the new last step"
    )


@tool(
    "Stop, pause, resume, cancel or extend a run. The dry run tells what follows and "
    "gives `confirm`; ask the person before you send it. Nothing is deleted.",
    readOnlyHint=False,
    destructiveHint=True,
    idempotentHint=True,
)
def control_run(request: ApiRequest, arguments: ControlRun) -> dict[str, Any]:
    team = request.auth.team

    def do() -> dict[str, Any]:
        if arguments.do == "extend":
            if arguments.num_steps is None:
                raise refuse_field("num_steps", "extend requires num_steps.")
            extend(request, arguments.run, RunExtendIn(num_steps=arguments.num_steps))
        else:
            done = CONTROLS[arguments.do][0](request, arguments.run)
            if not done.done:
                raise Problem(409, done.detail)
        run = get_run(team, arguments.run)
        return {
            "run": run.pk,
            "state": run.state,
            "num_steps": run.num_steps,
            "url": page_of(request, run.pk),
        }

    def plan() -> tuple[dict[str, Any], Any]:
        Run.objects.select_for_update().filter(team=team, pk=arguments.run).first()
        run = get_run(team, arguments.run)
        after = try_out(do) if arguments.dry_run else {}
        if arguments.do == "extend":
            follows = f"{run.num_steps} steps become {arguments.num_steps}."
        else:
            follows = CONTROLS[arguments.do][1]
        if arguments.do == "cancel":
            follows += f" {describe_loss(run)}"
        answer = {
            "run": run.pk,
            "name": run.name,
            "state": run.state,
            "step": run.last_step,
            "follows": follows,
            "state_after": after.get("state"),
        }
        return answer, [run.state, run.attempt, run.num_steps]

    with transaction.atomic():  # the lock holds from the plan to its execution
        return confirmed(request, arguments, plan=plan, do=do)


class RescoreRun(Deed):
    run: IdIn
    recipe: IdIn | None = Field(
        default=None, description="Version of a reward; without: each step's own"
    )
    spec: dict[str, Any] | None = Field(default=None, description="Unsaved reward")
    first_step: StepIn | None = None
    last_step: StepIn | None = None
    every: Annotated[int, Field(ge=1, le=MAX_STEPS)] = 1
    may_ask: bool = Field(default=False, description="Allow judges, which cost money")


@tool(
    "Score a run's stored completions again with another reward, as a job. The run "
    "does not change. The dry run tells completions, judge requests and seconds, and "
    "gives `confirm`. Read the result with get_analysis.",
    readOnlyHint=False,
    destructiveHint=False,
    idempotentHint=True,
    openWorldHint=True,
)
def rescore_run(request: ApiRequest, arguments: RescoreRun) -> dict[str, Any]:
    payload = RescoringIn(
        run_id=arguments.run,
        recipe_version_id=arguments.recipe,
        spec=arguments.spec,
        first_step=arguments.first_step,
        last_step=arguments.last_step,
        every=arguments.every,
        may_ask=arguments.may_ask,
    )

    def do() -> dict[str, Any]:
        begun = rescore(request, payload).value
        return {"analysis": {"kind": "rescoring", "id": begun.id}, "state": begun.state}

    def plan() -> tuple[dict[str, Any], Any]:
        run = get_run(request.auth.team, arguments.run)
        selection = select_steps(
            run, arguments.first_step, arguments.last_step, arguments.every
        )
        facts = [selection.steps, selection.num_completions, run.attempt]
        if not arguments.dry_run:
            return {}, facts
        try_out(do)
        spec = arguments.spec
        if arguments.recipe is not None:
            spec = find_recipe_version(request.auth.team, arguments.recipe).spec
        estimate = make_estimate(run, selection, StepSettings(run.config, spec))
        answer = {
            "run": run.pk,
            "num_steps": len(selection.steps),
            "num_completions": selection.num_completions,
            "judge_requests": estimate.num_calls,
            "judges": estimate.judges,
            "seconds": estimate.seconds,
            "problems": estimate.problems,
        }
        return answer, facts

    return confirmed(request, arguments, plan=plan, do=do)
