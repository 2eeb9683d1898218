"""Each architecture gets what its help page says, and exactly what transformers does.

`python -m tests.trainer.architectures NAME` prints the figures of one.
"""

import re

import pytest

from tests.trainer.architectures import kinds_on_page, measure
from tests.trainer.tiny_architectures import ARCHITECTURES


@pytest.mark.slow(20)
@pytest.mark.filterwarnings("ignore")  # transformers' own
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_is_exact_or_refused_with_a_reason(name, tmp_path):
    kinds = kinds_on_page()
    base = re.sub(r" \([^)]*\)$", "", name)

    outcome = measure(name, tmp_path)

    assert outcome.failures == []
    assert outcome.kind == kinds.get(name, kinds.get(base, ("", "")))
    assert outcome.form or outcome.reason


def test_the_page_names_no_other_architecture():
    assert len(ARCHITECTURES) >= 80
    assert kinds_on_page().keys() <= ARCHITECTURES.keys()
