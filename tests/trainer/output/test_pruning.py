"""Which checkpoints are deleted when another has been saved."""

from pathlib import Path

from trainer.disk import prune_checkpoints


def _save(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir()


def _left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_last_ones_are_kept(tmp_path):
    _save(
        tmp_path,
        "step-000010-attempt-1",
        "step-000020-attempt-1",
        "step-000030-attempt-2",
    )

    prune_checkpoints(tmp_path, keep_last=2, step=30, attempt=2)

    assert _left(tmp_path) == {"step-000020-attempt-1", "step-000030-attempt-2"}


def test_steps_are_ordered_as_numbers(tmp_path):
    _save(tmp_path, "step-999999-attempt-1", "step-1000000-attempt-1")

    prune_checkpoints(tmp_path, keep_last=1, step=1_000_000, attempt=1)

    assert _left(tmp_path) == {"step-1000000-attempt-1"}


def test_a_lost_attempt_deletes_nothing_of_its_successor(tmp_path):
    _save(
        tmp_path,
        "step-000040-attempt-2",
        "step-000050-attempt-2",
        "step-000060-attempt-1",
    )
    _save(tmp_path, ".step-000055-attempt-2.unfinished")

    prune_checkpoints(tmp_path, keep_last=1, step=60, attempt=1)

    assert _left(tmp_path) == {
        "step-000040-attempt-2",
        "step-000050-attempt-2",
        "step-000060-attempt-1",
        ".step-000055-attempt-2.unfinished",
    }


def test_a_life_given_up_for_lost_keeps_what_its_successor_began_with(tmp_path):
    folder, attempts = tmp_path / "checkpoints", tmp_path / "attempts"
    for made in (folder, attempts / "1", attempts / "2"):
        made.mkdir(parents=True)
    _save(folder, "step-000010-attempt-1", "step-000020-attempt-1")

    prune_checkpoints(folder, keep_last=1, step=20, attempt=1, attempts=attempts)
    kept = _left(folder)
    prune_checkpoints(folder, keep_last=1, step=20, attempt=2, attempts=attempts)

    assert kept == {"step-000010-attempt-1", "step-000020-attempt-1"}
    assert _left(folder) == {"step-000020-attempt-1"}


def test_a_missing_folder_of_attempts_does_not_end_the_run(tmp_path):
    _save(tmp_path, "step-000010-attempt-1", "step-000020-attempt-1")

    prune_checkpoints(
        tmp_path, keep_last=1, step=20, attempt=1, attempts=tmp_path / "none"
    )

    assert _left(tmp_path) == {"step-000020-attempt-1"}


def test_later_checkpoints_of_a_lost_attempt_keep_ours(tmp_path):
    _save(tmp_path, "step-000050-attempt-2", "step-000060-attempt-1")

    prune_checkpoints(tmp_path, keep_last=1, step=50, attempt=2)

    assert "step-000050-attempt-2" in _left(tmp_path)


def test_leftovers_of_a_killed_save_are_deleted(tmp_path):
    _save(tmp_path, ".step-000020-attempt-1.unfinished", "step-000010-attempt-1")

    prune_checkpoints(tmp_path, keep_last=1, step=30, attempt=2)

    assert _left(tmp_path) == {"step-000010-attempt-1"}
