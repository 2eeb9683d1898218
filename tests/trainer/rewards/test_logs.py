"""What rules print: how much of it an event carries."""

from __future__ import annotations

from trainer.rewards.logs import MAX_GROUP_CHARS, cut_logs, keeping, shown, tell


def test_a_groups_logs_share_what_an_event_carries():
    half = "x" * (MAX_GROUP_CHARS // 2)

    kept = cut_logs([{"a": half}, {}, {"a": half + "yz"}, {"b": "late"}])

    assert kept[0] == {"a": half}
    assert kept[1] == {}
    assert kept[2] == {
        "a": f"{half}\n… {len(half):,} of {len(half) + 2:,} characters\n"
    }
    assert kept[3] == {"b": "\n… 0 of 4 characters\n"}


def test_half_a_character_and_nul_can_be_stored():
    assert shown("é".encode()[:1] + b"\0", 2) == "\ufffd\ufffd"


def test_nobody_need_listen():
    tell("to nobody")

    with keeping() as texts:
        tell("")
        tell("to me")

    assert texts == ["to me"]
