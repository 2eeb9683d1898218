"""Every parser of what Cohort did not write itself."""

from tests.inputs.parsers import from_files, from_models, from_people, from_servers

PARSERS = [
    *from_people.PARSERS,
    *from_files.PARSERS,
    *from_servers.PARSERS,
    *from_models.PARSERS,
]
