"""What decodes bytes or text has a row among the parsers, or a reason to have none."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.inputs.parsers.table import PARSERS

ROOT = Path(__file__).parents[2]
DECODERS = {
    "loads", "load_file", "safe_open", "literal_eval", "model_validate_json",
    "validate_json", "unpack_from", "iter_unpack", "DictReader", "ParquetFile",
    "is_zipfile", "decompress", "urlsafe_b64decode", "b64decode", "fromisoformat",
    "strptime", "fromstring", "parsedate_to_datetime", "CompressedInputStream",
    "GzipFile", "raw_decode", "ZipFile", "Parse",
}  # fmt: skip
WHOLE = {
    "ast.parse",
    "csv.reader",
    "json.load",
    "pickle.load",
    "struct.unpack",
    "tarfile.open",
    "load",  # of safetensors
}
OURS = "Cohort wrote it itself, in this process or one of its own"
STORED = "read back from the database, where a parser with a row let it in"
SHIPPED = "a file of Cohort's own, which its tests read"
JUDGED = (
    "of a process with judged code: tests/trainer/rewards/sandbox are hostile there"
)
WITHOUT_ROW = {
    "dashboard.accounts.known_devices": "signed with the server's key",
    "dashboard.apart": OURS,
    "dashboard.api.replays": OURS,
    "dashboard.beat": "only Cohort sends into its queue",
    "dashboard.datasets.fetching.joining_process": "in a process of its own, which a "
    "damaged file may end: tests/dashboard/datasets/fetching",
    "dashboard.datasets.generators.options": SHIPPED,
    "dashboard.datasets.generators.process": OURS,
    "dashboard.datasets.generators.reasoning_gym": OURS,
    "dashboard.datasets.models.versions": STORED,
    "dashboard.datasets.rows.selected": STORED,
    "dashboard.exchange.exports.archives": "writes alone",
    "dashboard.exchange.imports.making": OURS,
    "dashboard.exchange.imports.spool": OURS,
    "dashboard.insights.differences": STORED,
    "dashboard.meters.reading": OURS,
    "dashboard.probes.work": OURS,
    "dashboard.runs.launch.model_choices": OURS,
    "dashboard.runs.launch.starts": OURS,
    "dashboard.samples.packed_answers": OURS,
    "dashboard.samples.signals.composition": STORED,
    "dashboard.samples.token_records": STORED,
    "dashboard.training.ingest": OURS,
    "dashboard.training.logs.times": OURS,
    "dashboard.training.outside.opening": STORED,
    "dashboard.training.starter": OURS,
    "dashboard.training.storing": STORED,
    "dashboard.upkeep.backups.schedule": OURS,
    "dashboard.upkeep.overview.server": OURS,
    "trainer.adapters": OURS,
    "trainer.chat": OURS,
    "trainer.client.api.records": OURS,
    "trainer.client.delivery": OURS,
    "trainer.client.login": OURS,
    "trainer.client.spool": OURS,
    "trainer.fingerprint": "transformers has loaded the model by it before",
    "trainer.hub": "one object's key is read, and whatever it lacks is a ValueError",
    "trainer.presets.preset": SHIPPED,
    "trainer.prompt_previews": OURS,
    "trainer.rewards.answering": OURS,
    "trainer.rewards.child": OURS,
    "trainer.rewards.model_judge.ledger": OURS,
    "trainer.rewards.published": SHIPPED,
    "trainer.rewards.sandbox.inside.frames": JUDGED,
    "trainer.rewards.sandbox.inside.plans": JUDGED,
    "trainer.rewards.sandbox.inside.talking": JUDGED,
    "trainer.rewards.sandbox.inside.warmth": JUDGED,
    "trainer.rewards.sandbox.inside.zygote": JUDGED,
    "trainer.rewards.sandbox.probe": JUDGED,
    "trainer.rewards.sandbox.slot": JUDGED,
    "trainer.sampled_batch": OURS,
    "trainer.tensorfile": OURS,
    "trainer.token_lengths": OURS,
    "trainer.watchdog": OURS,
}


def decoders(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        named = ast.unparse(node.func)
        if named.rpartition(".")[2] in DECODERS or named in WHOLE:
            yield named


def decoding_modules() -> dict[str, set[str]]:
    found = {}
    for package in ("dashboard", "trainer"):
        for path in sorted((ROOT / package).rglob("*.py")):
            named = set(decoders(ast.parse(path.read_text(encoding="utf-8"))))
            if named:
                place = path.relative_to(ROOT).with_suffix("")
                found[".".join(place.parts).removesuffix(".__init__")] = named
    return found


def test_whatever_decodes_has_a_row_or_a_reason() -> None:
    covered = {module for parser in PARSERS for module in parser.modules}
    found = decoding_modules()

    assert {m: n for m, n in found.items() if m not in covered | set(WITHOUT_ROW)} == {}
    assert set(WITHOUT_ROW) - set(found) == set(), "decode nothing any more"
    assert set(WITHOUT_ROW) & covered == set(), "have a row"


def test_the_rows_name_modules_that_are_there() -> None:
    named = {module for parser in PARSERS for module in parser.modules}

    missing = [
        module
        for module in sorted(named)
        if not (ROOT / module.replace(".", "/")).with_suffix(".py").is_file()
    ]
    assert missing == []
