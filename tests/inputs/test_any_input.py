"""Whatever a parser is given, only the errors come out that it is known by.

Twenty thousand examples each.
"""

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given

from tests.inputs.parsers.table import PARSERS

# Queries look people up.
pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.django_db]
NUM_EXAMPLES = 20_000


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_a_parser_accepts_or_refuses_any_input(parser):
    num_tried = 0

    @hypothesis.settings(
        max_examples=NUM_EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(parser.inputs)
    def answers(given: object) -> None:
        nonlocal num_tried
        num_tried += 1
        parser.check(given)

    answers()

    assert num_tried >= 50, "the inputs are too few to say anything"
