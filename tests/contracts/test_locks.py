"""Every package that Cohort installs has a hash in its lock and a listed licence."""

import json
import re

import pytest

from tests.contracts.licenses import LIST, python_packages, rows
from tests.contracts.production import DOCKER, ROOT

LOCKS = sorted(path.name for path in ROOT.glob("requirements*.lock"))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_python_package_has_hashes_and_no_address(lock):
    text = (ROOT / lock).read_text()
    pins = re.findall(r"^\w.*", text, re.MULTILINE)

    entries = re.findall(
        r"^\w.+ \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE
    )

    assert len(entries) == len(pins) > 0
    assert "://" not in text


def test_a_gpu_has_the_versions_of_every_other_machine():
    everywhere, on_gpus = (
        set(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE))
        for lock in ("requirements.lock", "requirements-gpu.lock")
    )
    shared = {name for name, _ in everywhere} & {name for name, _ in on_gpus}

    assert {"numpy", "tokenizers", "transformers"} <= shared
    assert {pin for pin in everywhere if pin[0] in shared} == {
        pin for pin in on_gpus if pin[0] in shared
    }


def test_every_front_end_package_has_a_hash():
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]

    assert [n for n, one in packages.items() if n and "integrity" not in one] == []


def test_the_web_image_installs_by_hash():
    text = (DOCKER / "web.Dockerfile").read_text()

    assert re.findall(r"pip install.* -r ", text)
    for command in re.findall(r"pip install.* -r ", text):
        assert "--require-hashes" in command


def test_every_installed_package_is_in_the_list_of_licences():
    listed = LIST.read_text()

    assert (ROOT / "LICENSE").read_text().strip().startswith("Apache License")
    for name in python_packages():
        assert f"| {name} |" in listed
    for name, _, licence in rows():
        assert licence, name
