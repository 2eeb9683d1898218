"""Every parser of what Cohort did not write itself."""

from __future__ import annotations

from tests.inputs.parsers import from_people, from_programs

PARSERS = [*from_people.PARSERS, *from_programs.PARSERS]
