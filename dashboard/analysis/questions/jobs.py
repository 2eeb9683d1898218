"""A question as a job: its sample is drawn once, and labelled a reply at a time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    CancelledError,
    Future,
    ThreadPoolExecutor,
    wait,
)
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from itertools import chain

from django.db import transaction

from dashboard.analysis.questions.models import CompletionLabel, Question
from dashboard.analysis.questions.sampling import draw_sample, matching
from dashboard.analysis.questions.services import NUM_TRIED, read_spent
from dashboard.completions.models import Group
from dashboard.costs.models import add_judge_use
from dashboard.jobs.kinds import Context, JobCancelled, Kind, LeaseLost, register
from dashboard.project.database import clean_json, clean_text
from trainer.internet import Refused
from trainer.rewards.model_judge.asking import Endpoint, Judge, JudgeUnavailable
from trainer.rewards.model_judge.client import Reply
from trainer.rewards.model_judge.labels import (
    MOST_KINDS,
    MOST_PHRASES,
    find_quote,
    kinds_schema,
    make_kinds_question,
    make_label_question,
    read_kinds,
    read_label,
    reply_schema,
)
from trainer.rewards.model_judge.ledger import Ledger
from trainer.rewards.model_judge.question import Question as JudgeQuestion
from trainer.rewards.model_judge.question import Unreadable

TURN_SECONDS = 60.0
Usage = Mapping[str, int]  # trainer.rewards.model_judge.client.USAGE
AT_ONCE = 32
CONCURRENCY = 8
MAX_REPLY_TOKENS = 1_024
MAX_KINDS_TOKENS = 4_096
TIMEOUT_SECONDS = 120.0
MOST_LOST = 8  # requests in a row without a reply: the judge is away
MOST_TOKENS = 2**24  # of a request, whatever an endpoint claims: sums fit a column
_ONCE_MORE = "\n\nReply with the JSON object alone."


def answer(context: Context) -> None:
    """Label what has no label yet, up to the question's goal or its budget."""
    question = (
        Question.objects.select_related("run", "created_by", "team")
        .filter(pk=context.job.target_id)
        .first()
    )
    if question is None:
        raise JobCancelled  # its run was deleted
    if question.run.trashed_at is not None:
        raise ValueError("The run is in the trash. Restore it first.")
    if question.num_found is None:
        context.note(message="Drawing the sample.")
        _draw(context, question)
    context.note(message="Asking the judge.")
    try:
        _ask_all(context, question)
    except Refused as error:
        raise ValueError(str(error)) from None


def _draw(context: Context, question: Question) -> None:
    selections = matching(question.run, question.query, question.created_by)
    sample, num_found = draw_sample(
        selections, size=question.sample_size, seed=question.seed
    )
    if not sample:
        raise ValueError(
            "No completion of the run matches the filter."
            if question.query
            else "The run has no completions yet."
        )
    context.check()
    with transaction.atomic():
        if not context.held().exists():
            raise LeaseLost
        CompletionLabel.objects.bulk_create(
            [
                CompletionLabel(
                    question=question,
                    rank=rank,
                    group_id=each.group,
                    **{
                        name: getattr(each, name)
                        for name in ("position", "step", "window", "weight")
                    },
                )
                for rank, each in enumerate(sample)
            ],
            batch_size=2_000,
        )
        question.num_found = num_found
        question.save(update_fields=["num_found"])


def _ask_all(context: Context, question: Question) -> None:
    places = question.sample.filter(rank__lt=question.goal)
    # those whose replies are unreadable have been asked
    waiting = list(places.filter(label="", num_tokens_in=0).order_by("rank"))
    num_done = places.count() - len(waiting)
    context.note(num_done, question.goal)
    budget, num_lost = question.budget_tokens, 0
    num_tokens = read_spent(question).num_tokens

    def may_ask() -> bool:
        is_stopping = context.interruption is not None or context.is_shutting_down()
        return not is_stopping and (budget is None or num_tokens < budget)

    for place, usage in _labelled(context, question, waiting, may_ask):
        num_lost = 0 if place.num_tokens_in else num_lost + 1
        num_tokens += place.num_tokens_in + place.num_tokens_out
        num_done += bool(place.num_tokens_in)
        _store(context, question, place, usage, num_done)
        if num_lost == min(MOST_LOST, len(waiting)) and context.interruption is None:
            raise ValueError(place.problem)
    if budget is not None and may_ask():
        _group_kinds(context, question)
    context.check()
    is_cut = num_done < question.goal and not may_ask()
    message = f"Stopped at its budget, {num_done:,} of {question.goal:,}."
    context.note(message=message if is_cut else "")


def _group_kinds(context: Context, question: Question) -> None:
    """Let the judge name the kinds of its cases, where there are too many to list.

    Without groups in its reply they stay as they are.
    """
    cases = question.sample.filter(label=question.names[0]).exclude(kind="")
    counts = Counter(cases.values_list("kind", flat=True))
    phrases = [phrase for phrase, _ in counts.most_common(MOST_PHRASES)]
    if len(phrases) <= MOST_KINDS or {*phrases} <= {*chain(*question.kinds.values())}:
        return
    context.note(message="Grouping the kinds.")
    asked = make_kinds_question(question.text, phrases)
    endpoint = _endpoint(question, kinds_schema(), max_tokens=MAX_KINDS_TOKENS)
    judge = Judge(endpoint, Ledger())
    context.on_interrupt = judge.close
    with closing(judge):
        try:
            reply = _ask(judge, asked)
        except (JudgeUnavailable, CancelledError):
            return
    tokens = count_tokens(reply)
    question.kinds_tokens_in += tokens[0]
    question.kinds_tokens_out += tokens[1]
    with suppress(Unreadable):
        question.kinds = clean_json(read_kinds(reply.text, phrases))
    with transaction.atomic():
        if not context.held().exists():
            raise LeaseLost
        question.save(update_fields=["kinds", "kinds_tokens_in", "kinds_tokens_out"])
        _record_use(question, reply.usage)


def _ask(judge: Judge, asked: JudgeQuestion) -> Reply:
    """JudgeUnavailable or CancelledError without a reply."""
    deadline = time.monotonic() + 2 * TIMEOUT_SECONDS
    return judge.submit(asked, deadline=deadline, is_readable=lambda _: True).result()


def count_tokens(reply: Reply) -> tuple[int, int]:
    """Return tokens of what was asked and of the reply; about, if it tells none."""
    out = reply.num_tokens_out or len(reply.text) // 4
    asked = reply.num_tokens_in or max(reply.num_tokens - out, 1)
    return min(asked, MOST_TOKENS), min(out, MOST_TOKENS)


def _store(
    context: Context,
    question: Question,
    place: CompletionLabel,
    usage: Usage,
    num_done: int,
) -> None:
    """Store and count a label exactly once."""
    with transaction.atomic():
        if not context.held().update(done=num_done, num_losses=0):
            raise LeaseLost
        place.save()
        _record_use(question, usage)
    context.note(num_done)


def _record_use(question: Question, usage: Usage) -> None:
    add_judge_use(
        {question.judge["model"]: usage},
        team=question.team,
        user=question.created_by,
        source="question",
        target_id=question.pk,
        run=question.run,
    )


def _labelled(
    context: Context,
    question: Question,
    waiting: list[CompletionLabel],
    may_ask: Callable[[], bool],
) -> Iterator[tuple[CompletionLabel, Usage]]:
    """Yield each place with its label or problem, and what the judge took for it."""
    if question.uses_schema and not question.sample.exclude(label="").exists():
        tried = list(_asked(context, question, waiting[:NUM_TRIED], may_ask))
        if any(place.num_tokens_in for place, _ in tried):
            yield from tried
            waiting = waiting[NUM_TRIED:]
        elif tried:  # the endpoint may refuse a schema
            question.uses_schema = False
            question.save(update_fields=["uses_schema"])
    for start in range(0, len(waiting), AT_ONCE):
        context.check()
        yield from _asked(context, question, waiting[start : start + AT_ONCE], may_ask)


def _asked(
    context: Context,
    question: Question,
    places: list[CompletionLabel],
    may_ask: Callable[[], bool],
) -> Iterator[tuple[CompletionLabel, Usage]]:
    """Ask while it is allowed; what is being asked then is waited for, and counts."""
    groups = (
        Group.objects.defer("answer")
        .prefetch_related("packed_completions")
        .in_bulk({place.group_id for place in places})
    )
    # Labels are kept in the database, so no reply is needed twice.
    schema = reply_schema(question.parsed_labels)
    endpoint = _endpoint(question, schema, max_tokens=MAX_REPLY_TOKENS)
    judge = Judge(endpoint, Ledger())
    context.on_interrupt = judge.close
    left = list(reversed(places))
    asked = set[Future[tuple[CompletionLabel, Usage]]]()
    with ThreadPoolExecutor(CONCURRENCY) as threads, closing(judge):
        while left or asked:
            while left and len(asked) < CONCURRENCY and may_ask():
                place = left.pop()
                place.group = groups[place.group_id]
                asked.add(threads.submit(_label, judge, question, place))
            if not asked:
                return
            done, asked = wait(asked, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


def _label(
    judge: Judge, question: Question, place: CompletionLabel
) -> tuple[CompletionLabel, Usage]:
    """Fill in what the judge replies; asked once more where that is unreadable."""
    text, usage = place.text, Counter[str]()
    if not place.group.completions:
        place.problem = "The completions were deleted by the team's retention rules."
        return place, usage
    asked = make_label_question(
        question.text,
        question.parsed_labels,
        prompt=place.group.prompt if question.shows_prompt else None,
        completion=text,
    )
    place.problem = ""
    for again in ("", _ONCE_MORE):
        try:
            reply = _ask(judge, replace(asked, system=asked.system + again))
        except (JudgeUnavailable, CancelledError) as error:
            place.problem = clean_text(str(error)) or "The job ended."
            return place, usage
        usage.update(reply.usage)
        tokens = count_tokens(reply)
        place.num_tokens_in += tokens[0]
        place.num_tokens_out += tokens[1]
        try:
            found = read_label(reply.text, question.parsed_labels)
        except Unreadable as error:
            place.problem = clean_text(f"The reply is unreadable: {error}.")
            continue
        span = find_quote(found.quote, text)
        place.quote_from, place.quote_to = span or (None, None)
        place.has_lost_quote = bool(found.quote.strip()) and span is None
        place.label, place.problem = found.label, ""
        place.why, place.kind = clean_text(found.why), clean_text(found.kind)
        break
    return place, usage


def _endpoint(question: Question, schema: str, *, max_tokens: int) -> Endpoint:
    judge = question.judge
    return Endpoint(
        base_url=judge["base_url"],
        key_name=judge["key_name"],
        model=judge["model"],
        max_tokens=max_tokens,
        token_limit_field="max_tokens",  # noqa: S106 - a field's name
        temperature=0.0,
        timeout_seconds=TIMEOUT_SECONDS,
        max_tries=3,
        max_concurrency=CONCURRENCY,
        budget_calls=10**9,  # tokens are counted here
        budget_tokens=10**15,
        json_schema=schema if question.uses_schema else "",
    )


register(
    Kind(
        name="question",
        run=answer,
        noun="question",
        turn_seconds=TURN_SECONDS,
        lease=timedelta(seconds=60),
    )
)
