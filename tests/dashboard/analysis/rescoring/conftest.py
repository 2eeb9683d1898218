import pytest


@pytest.fixture(autouse=True)
def own_folder(data_folder) -> None:
    """Each test has its own COHORT_DATA."""
