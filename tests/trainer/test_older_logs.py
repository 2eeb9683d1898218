"""What the first previews wrote is read: an attempt was called an epoch."""

from trainer.disk import prune_checkpoints
from trainer.events import parse_event


def test_an_event_that_names_its_epoch_is_of_that_attempt():
    line = b'{"line":3,"epoch":2,"time":1.5,"step":0,"type":"run_finished","steps":4}\n'
    named = line.replace(b"epoch", b"attempt")

    assert parse_event(line) == parse_event(named)
    assert parse_event(line).attempt == 2


def test_checkpoints_that_are_named_for_an_epoch_are_pruned_in_order(tmp_path):
    for name in ("step-000010-epoch-1", "step-000020-attempt-2"):
        (tmp_path / name).mkdir()

    prune_checkpoints(tmp_path, keep_last=1, step=20, attempt=2)

    assert [path.name for path in tmp_path.iterdir()] == ["step-000020-attempt-2"]
