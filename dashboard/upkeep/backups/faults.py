from __future__ import annotations


class BackupFault(Exception):
    """Why nothing was backed up or restored, and what to do."""
