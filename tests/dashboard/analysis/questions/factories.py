"""Runs of which some completions hedge, and a judge that sees it."""

import json
import re
from typing import Any

from django.utils import timezone

from dashboard.accounts.models import Team, User
from dashboard.analysis.questions import services
from dashboard.analysis.questions.models import (
    CompletionLabel,
    Question,
    TeamJudge,
)
from dashboard.analysis.questions.sampling import draw_sample, matching
from dashboard.jobs.models import Job, JobState
from dashboard.runs.models import Run
from tests.dashboard.completions.blocks import make_blocks
from tests.dashboard.completions.factories import make_group, make_run
from tests.dashboard.costs.factories import set_price
from tests.dashboard.jobs.working import do, take
from tests.trainer.rewards.judge_server import Judging

HEDGE = "maybe"
COMPLETION = re.compile(r"\[begin (\w+) completion\]\n(.*)\n\[end \1\]", re.DOTALL)


def make_hedging_run(
    team: Team,
    *,
    num_steps: int = 10,
    num_prompts: int = 4,
    name: str = "hedger",
    is_stored: bool = True,
) -> Run:
    """Groups of four, of which later steps hedge more: completion p of prompt n in step
    s hedges if (s + n + p) % 4 < s // 3.
    """
    run = make_run(team, name=name, last_step=num_steps)
    for step in range(1, num_steps + 1):
        for prompt in reversed(range(num_prompts)):  # ids are not by prompt
            make_group(
                run,
                step,
                prompt_index=prompt,
                rewards=(1.2, 0.2, 0.0, 1.0),
                texts=[
                    f"It is {HEDGE} {step}{prompt}{at}."
                    if (step + prompt + at) % 4 < step // 3
                    else f"It is {step}{prompt}{at}."
                    for at in range(4)
                ],
            )
    if is_stored:
        make_blocks(run)
    return run


def completion_of(asked: dict[str, Any]) -> str:
    found = COMPLETION.search(asked["messages"][1]["content"])
    assert found, asked
    return found[2]


def reply_of(label: str, **parts: Any) -> str:
    whole = {"why": "I see it.", "quote": "", "kind": "", "label": label}
    return json.dumps(whole | parts)


def answer_honestly(asked: dict[str, Any]) -> str:
    if HEDGE in completion_of(asked):
        return reply_of("yes", quote=HEDGE, kind="A  hedge.")
    return reply_of("no")


def make_judge(team: Team, judging: Judging | None = None, **fields: Any) -> TeamJudge:
    url = judging.url if judging else "https://judge.example.com/v1"
    return team.judges.create(
        **{"name": "judge", "base_url": url, "model": "m"} | fields
    )


def make_priced_judge(team: Team, judging: Judging) -> TeamJudge:
    """Make a judge that costs 1 EUR for a million tokens."""
    judge = make_judge(team, judging)
    for unit in ("input_tokens", "output_tokens"):
        set_price(team, 1.0, unit=unit, name=judge.model)
    return judge


def ask(
    run: Run, judging: Judging | None = None, *, user: User | None = None, **fields: Any
) -> Question:
    judge = run.team.judges.first() or make_judge(run.team, judging)
    text = fields.pop("text", "Does it hedge?")
    [question] = services.ask(runs=[run], user=user, judge=judge, text=text, **fields)
    return question


def see_through(question: Question) -> Question:
    do(take("question"))
    return Question.objects.select_related("job", "team", "run").get(pk=question.pk)


def ask_all(run: Run, judging: Judging, **fields: Any) -> Question:
    """Try it, and ask of the whole sample."""
    tried = see_through(ask(run, judging, **fields))
    services.start([tried], None)
    return see_through(tried)


def store_answers(question: Question) -> None:
    """As the judge would have replied: every second completion is a case of it."""
    found = matching(question.run, question.query, None)
    sample, num_found = draw_sample(found, size=question.sample_size, seed=0)
    question.sample.bulk_create(
        CompletionLabel(
            question=question,
            group_id=each.group,
            position=each.position,
            step=each.step,
            window=each.window,
            weight=each.weight,
            rank=rank,
            label=question.names[rank % 2],
            why="It hedges in its first sentence.",
            kind=f"kind {rank % 3}",
            quote_from=0,
            quote_to=4,
            num_tokens_in=300,
            num_tokens_out=40,
        )
        for rank, each in enumerate(sample)
    )
    question.num_found, question.goal = num_found, len(sample)
    question.budget_tokens = 10**6
    question.save()
    Job.objects.filter(kind="question", target_id=question.pk).update(
        state=JobState.DONE, finished_at=timezone.now()
    )
