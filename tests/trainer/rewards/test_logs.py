"""What rules print: how much of it an event carries."""

from trainer.rewards.rule import (
    MAX_COMPLETION_CHARS,
    MAX_STEP_CHARS,
    Notes,
    cut_notes,
    keeping,
    shown,
    tell,
)


def test_a_completions_notes_share_what_an_event_carries_errors_first():
    most = "x" * MAX_COMPLETION_CHARS

    (kept,) = cut_notes([Notes({"a": most, "b": "late"}, {"c": "why"})], num_groups=1)

    assert kept.errors == {"c": "why"}
    room = MAX_COMPLETION_CHARS - 3
    assert kept.logs == {
        "a": f"{most[:room]}\n… {room:,} of {len(most):,} characters\n"
    }


def test_a_steps_notes_stay_small_however_much_is_said():
    values = [Notes({"a": "x" * 50_000}, {"b": "y" * 700}) for _ in range(16)]

    groups = [cut_notes(values, num_groups=64) for _ in range(64)]

    texts = [
        text for group in groups for each in group for part in each
        for text in part.values()
    ]  # fmt: skip
    assert MAX_STEP_CHARS / 2 < sum(map(len, texts)) < MAX_STEP_CHARS + 64 * 100
    assert [len(each.errors) for each in groups[0][:7]] == [1, 1, 1, 1, 1, 1, 0]


def test_a_groups_share_of_a_step_goes_to_errors_first():
    share = MAX_STEP_CHARS // 1_024
    values = [Notes({"a": "x" * share}, {}), Notes({}, {"a": "y" * share})]

    kept = cut_notes(values, num_groups=1_024)

    assert kept == [Notes({}, {}), Notes({}, {"a": "y" * share})]


def test_half_a_character_and_nul_can_be_stored():
    assert shown("é".encode()[:1] + b"\0", 2) == "\ufffd\ufffd"


def test_a_listener_is_optional():
    tell("to no one")

    with keeping() as texts:
        tell("")
        tell("to me")

    assert texts == ["to me"]
