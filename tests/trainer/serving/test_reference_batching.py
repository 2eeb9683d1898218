"""Questions that wait share passes of the model."""

import threading
from typing import Any

import pytest
import torch

from tests.trainer.questions import question
from tests.trainer.samples import cut, make_batch
from tests.trainer.waiting import wait_until
from trainer.model.packing import MicroBatch
from trainer.model.policy import Policy
from trainer.serving.reference_client import Question
from trainer.serving.reference_server import Answerer, Busy


class SlowModel:
    """A model that waits in its first pass until it is let go."""

    def __init__(self, policy: Policy) -> None:
        self.head, self.logit_map = policy.head, policy.logit_map
        self.device = policy.device
        self.shapes: list[tuple[int, ...]] = []
        self.is_in, self.may_go = threading.Event(), threading.Event()
        self._policy = policy

    def body(self, input_ids: torch.Tensor, **options: Any) -> Any:
        self.shapes.append(tuple(input_ids.shape))
        self.is_in.set()
        assert self.may_go.wait(20)
        return self._policy.body(input_ids=input_ids, **options)


def ask_together(
    policy: Policy, questions: list[Question], *, max_tokens: int
) -> tuple[list[torch.Tensor], list[tuple[int, ...]]]:
    """Answers and shapes of passes when all but the first wait at the same time."""
    model = SlowModel(policy)
    answerer = Answerer(model, max_tokens=max_tokens)
    answers: dict[int, torch.Tensor] = {}
    threads = [
        threading.Thread(target=lambda k=k, q=q: answers.update({k: answerer.ask(q)}))
        for k, q in enumerate(questions)
    ]
    try:
        threads[0].start()
        assert model.is_in.wait(20)
        for waiting, thread in enumerate(threads[1:], start=1):
            thread.start()
            wait_until(lambda n=waiting: answerer._waiting.qsize() >= n)
        model.may_go.set()
        for thread in threads:
            thread.join(20)
    finally:
        model.may_go.set()
        answerer.end()
    return [answers[k] for k in range(len(questions))], model.shapes


def cut_batch(policy: Policy) -> list[MicroBatch]:
    return cut(make_batch(12), policy, max_tokens=40)


def questions_of(policy: Policy) -> list[Question]:
    return [
        Question(
            input_ids=micro.input_ids,
            places=micro.places,
            targets=micro.targets,
            temperature=0.8,
        )
        for micro in cut_batch(policy)
    ]


def test_questions_that_wait_together_go_through_the_model_together(policy):
    questions = questions_of(policy)
    assert len(questions) > 3

    answers, shapes = ask_together(policy, questions, max_tokens=10_000)

    rows = sum(len(q.input_ids) for q in questions[1:])
    longest = max(q.input_ids.shape[1] for q in questions[1:])
    assert shapes == [tuple(questions[0].input_ids.shape), (rows, longest)]
    for micro, answer in zip(cut_batch(policy), answers, strict=True):
        with torch.no_grad():
            logprobs, _ = policy.logprobs(micro, temperature=0.8)
        expected = logprobs.flatten()[micro.slots]
        # one has padding where the other has none, so the last bits may differ
        torch.testing.assert_close(answer, expected, atol=1e-6, rtol=1e-6)


def test_no_pass_is_larger_than_allowed(policy):
    questions = questions_of(policy)

    answers, shapes = ask_together(policy, questions, max_tokens=48)
    wide, _ = ask_together(policy, questions, max_tokens=10_000)

    assert all(rows * length <= 48 for rows, length in shapes)
    assert len(shapes) > 2
    for one, other in zip(answers, wide, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_a_short_question_is_not_padded_to_a_long_one_beyond_the_budget(policy):
    long = question(input_ids=torch.full((1, 40), 3))

    _, shapes = ask_together(policy, [question(), question(), long], max_tokens=48)

    assert shapes == [(1, 3), (1, 3), (1, 40)]


def test_a_question_larger_than_a_pass_is_cut_by_rows(policy):
    (asked, *_) = questions_of(policy)
    num_rows, length = asked.input_ids.shape
    assert num_rows > 1

    (answer,), shapes = ask_together(policy, [asked], max_tokens=1)

    assert shapes == [(1, length)] * num_rows
    (whole,), _ = ask_together(policy, [asked], max_tokens=10_000)
    torch.testing.assert_close(answer, whole, atol=1e-6, rtol=0)


def test_questions_of_different_temperature_are_not_mixed(policy):
    first, second = question(temperature=0.5), question(temperature=2.0)

    answers, shapes = ask_together(policy, [first, first, second], max_tokens=10_000)

    assert len(shapes) == 3
    assert not torch.allclose(answers[1], answers[2])
    assert torch.equal(answers[0], answers[1])


def test_more_questions_than_can_wait_are_sent_away(policy, monkeypatch):
    monkeypatch.setattr("trainer.serving.reference_server._MAX_WAITING", 1)
    model = SlowModel(policy)
    answerer = Answerer(model, max_tokens=100)
    threads = [
        threading.Thread(target=answerer.ask, args=(question(),)) for _ in range(2)
    ]
    try:
        threads[0].start()
        assert model.is_in.wait(20)
        threads[1].start()
        wait_until(lambda: answerer._waiting.qsize() >= 1)
        with pytest.raises(Busy):
            answerer.ask(question())
    finally:
        model.may_go.set()
        for thread in threads:
            thread.join(20)
        answerer.end()


def test_a_failing_model_reports_it_and_continues(policy):
    model = SlowModel(policy)
    model.may_go.set()
    whole, model.body = model.body, None
    answerer = Answerer(model, max_tokens=100)
    try:
        with pytest.raises(ValueError, match="TypeError"):
            answerer.ask(question())
        model.body = whole
        assert answerer.ask(question()).shape == (2,)
    finally:
        answerer.end()
