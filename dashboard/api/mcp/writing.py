"""The tools that change something: a dry run first, then the same call with its code.

The code is bound to the token, the arguments and what was read. It holds for an hour,
until something of that changes, and does its work once.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable
from typing import Annotated, Any, Literal

from django.core import signing
from django.db import transaction
from django.http import HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from pydantic import AfterValidator, Field

from dashboard.analysis.questions.services import NUM_TRIED
from dashboard.analysis.rescoring.credit import StepSettings
from dashboard.analysis.rescoring.services import make_estimate, select_steps
from dashboard.api.auth import ApiRequest
from dashboard.api.guards import replay_once
from dashboard.api.launches import (
    LaunchIn,
    Value,
    checked_launch,
    describe_launch,
    launch,
    read_launch,
)
from dashboard.api.mcp.limits import write
from dashboard.api.mcp.reading import page_of, read_reward
from dashboard.api.mcp.tools import Arguments, read_arguments, tool
from dashboard.api.problems import Problem, or_conflict, refuse_field
from dashboard.api.questions import QuestionIn, ask, question, start_question
from dashboard.api.rescoring import RescoringIn, rescore
from dashboard.api.runs import (
    RunExtendIn,
    cancel,
    extend,
    pause_run,
    resume,
    stop_run,
)
from dashboard.api.schemas import IdIn
from dashboard.runs.attributes import MAX_TAGS, check_tag, describe_run
from dashboard.runs.changes import MAX_STEPS
from dashboard.runs.control import describe_loss
from dashboard.runs.launch.draft import LaunchDraft
from dashboard.runs.launch.launching import rehearse_launch
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run

CODE_CHARS = 32
CODE_SECONDS = 3_600
SALT = "cohort.mcp.confirm"


class Deed(Arguments):
    """Arguments of a tool that changes something."""

    dry_run: bool = Field(default=True, description="Change nothing")
    confirm: Annotated[str, Field(max_length=200)] = Field(
        default="", description="The dry run's"
    )
    key: Annotated[str, Field(max_length=60, pattern=r"^[!-~]*$")] = Field(
        default="", description="Repeats take effect once"
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
    digest = _digest([type(arguments).__name__, arguments.model_dump(exclude=own)])

    def once(key: str, act: Callable[[], HttpResponseBase]) -> HttpResponseBase:
        return replay_once(token, key, digest, act) if key else act()

    def do_once() -> HttpResponseBase:
        _, facts = plan()
        if _read_code(arguments.confirm) != _digest([token.pk, digest, facts]):
            raise Problem(
                409,
                "Nothing changed: the arguments, or what they refer to, differ from "
                "the dry run. Call it again with dry_run true.",
                code="mcp.changed",
            )
        return JsonResponse(do())

    key = arguments.key and f"{arguments.key} (MCP)"
    if arguments.dry_run:
        once(key, lambda: HttpResponse(status=409))  # refuses another call's key
        answer, facts = plan()
        # Two dry runs of one launch launch two runs.
        code = [_digest([token.pk, digest, facts]), secrets.token_hex(4)]
        confirm = signing.dumps(code, salt=SALT)
        return {**answer, "is_dry_run": True, "confirm": confirm}
    if not arguments.confirm:
        raise refuse_field(
            "confirm",
            "Call the tool with dry_run true first, then repeat the call with its "
            "confirm.",
            "mcp.confirm_required",
        )
    with transaction.atomic():
        # A code is used once, and a key in all that has it.
        used = f"mcp:{_digest(arguments.confirm)}"
        response = once(key, lambda: once(used, do_once))
    assert isinstance(response, HttpResponse)
    done: dict[str, Any] = json.loads(response.content)
    if "Idempotent-Replayed" in response.headers:
        done["is_repeated"] = True
    return done


def _digest(tree: Any) -> str:
    return hashlib.sha256(write(tree).encode()).hexdigest()[:CODE_CHARS]


def _read_code(confirm: str) -> str:
    """Return the digest that a code was made of; "" if it is forged or has expired."""
    try:
        digest, _ = signing.loads(confirm, salt=SALT, max_age=CODE_SECONDS)
    except signing.BadSignature:
        return ""
    return str(digest)


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
    tags: list[Annotated[str, AfterValidator(check_tag)]] = Field(
        default=[], max_length=MAX_TAGS
    )

    def payload(self) -> LaunchIn:
        if self.preset and self.from_run:
            raise refuse_field("preset", "Send a preset or from_run, not both.")
        if self.checkpoint and not self.from_run:
            raise refuse_field("checkpoint", "A checkpoint requires from_run.")
        start = f"run-{self.from_run}" if self.from_run else self.preset
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
    team, user, payload = request.auth.team, request.auth.user, arguments.payload()

    def plan() -> tuple[dict[str, Any], Any]:
        form = read_launch(team, payload)
        checked = checked_launch(form)
        if arguments.dry_run:
            with or_conflict():
                rehearse_launch(checked, team=team, user=user, fork_of=form.start.fork)
        check = describe_launch(form, checked)
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
        run = get_run(team, detail.id)
        describe_run(run=run, user=user, typed={"tags": arguments.tags})
        return {
            **detail.model_dump(include={"id", "name", "state", "num_steps"}),
            "url": page_of(request, run.pk),
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


class AskCompletions(Deed):
    question: IdIn | None = Field(
        default=None, description="A tried one: ask about all"
    )
    run: IdIn | None = None
    text: str = ""
    judge: str = Field(default="", description="Name, if there are several")
    labels: list[str] = Field(default=[], description="Without: yes, no")
    query: str = Field(default="", description="As min_reward=1&text=x")
    sample: int = 300

    @property
    def asked(self) -> QuestionIn:
        fields = {
            "run_id": self.run,
            "text": self.text,
            "judge": self.judge,
            "labels": [{"name": name} for name in self.labels],
            "query": self.query,
            "sample_size": self.sample,
        }
        return read_arguments(QuestionIn, fields)


@tool(
    "Ask a judge about a sample of a run's completions. A new question is tried on "
    "five; call this again with its id as `question` to ask about all. Read labels, "
    "cost and shares with get_analysis.",
    readOnlyHint=False,
    destructiveHint=False,
    idempotentHint=True,
    openWorldHint=True,
)
def ask_completions(request: ApiRequest, arguments: AskCompletions) -> dict[str, Any]:
    def do() -> dict[str, Any]:
        number = arguments.question
        if number is None:
            number = ask(request, arguments.asked).value.id
        else:
            start_question(request, number)
        return {"analysis": {"kind": "question", "id": number}}

    def plan() -> tuple[dict[str, Any], Any]:
        if arguments.question is not None:
            tried = question(request, arguments.question)
            facts = [tried.state, tried.num_asked]
            names = {"num_asked", "num_sampled", "expected_tokens", "expected_cost"}
            answer = tried.model_dump(include=names)
        else:
            run = get_run(request.auth.team, arguments.asked.run_id)
            facts, answer = [run.attempt], {"run": run.pk, "judge_requests": NUM_TRIED}
        if arguments.dry_run:
            try_out(do)
        return answer, facts

    return confirmed(request, arguments, plan=plan, do=do)


class RescoreRun(Deed, RescoringIn):
    pass


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
    def do() -> dict[str, Any]:
        begun = rescore(request, arguments).value
        return {"analysis": {"kind": "rescoring", "id": begun.id}, "state": begun.state}

    def plan() -> tuple[dict[str, Any], Any]:
        run = get_run(request.auth.team, arguments.run_id)
        selection = select_steps(
            run, arguments.first_step, arguments.last_step, arguments.every
        )
        facts = [selection.steps, selection.num_completions, run.attempt]
        if not arguments.dry_run:
            return {}, facts
        try_out(do)
        settings = StepSettings(run.config, read_reward(request, arguments))
        estimate = make_estimate(run, selection, settings)
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
