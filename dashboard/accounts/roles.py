"""What each role may do. The pages show this table; `access.py` holds to it."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.accounts.models import Role

ASCENDING = (Role.VIEWER, Role.MEMBER, Role.ADMIN, Role.OWNER)


@dataclass(frozen=True, slots=True)
class Right:
    text: str
    least: Role

    @property
    def held(self) -> list[tuple[Role, bool]]:
        """Each role, with whether it has this right."""
        return [(role, is_at_least(role, self.least)) for role in ASCENDING]


def is_at_least(role: str, least: Role) -> bool:
    return ASCENDING.index(Role(role)) >= ASCENDING.index(least)


RIGHTS = (
    Right("Look at, search and download everything of the team", Role.VIEWER),
    Right("Keep own views of the run list and own chart settings", Role.VIEWER),
    Right("Leave the team", Role.VIEWER),
    Right(
        "Upload and change datasets, recipes and reports; judge and comment",
        Role.MEMBER,
    ),
    Right("Launch, stop, change and delete runs; publish models", Role.MEMBER),
    Right("Set up alerts and where they are sent", Role.MEMBER),
    Right("Invite people as viewer, member or admin", Role.ADMIN),
    Right("Change roles up to admin; remove people who are no owners", Role.ADMIN),
    Right("Drain workers, which other teams use too", Role.ADMIN),
    Right("Make another team", Role.ADMIN),
    Right("Make and unmake owners; transfer the ownership", Role.OWNER),
    Right("Deactivate a person", Role.OWNER),
)


def roles_given_by(role: str) -> list[Role]:
    """The roles that somebody of this one may give to others."""
    if role == Role.OWNER:
        return list(ASCENDING)
    return [Role.VIEWER, Role.MEMBER, Role.ADMIN] if role == Role.ADMIN else []
