"""What the command line says when it cannot go on: one line and an exit code."""

from __future__ import annotations

REFUSED, USAGE, INCONCLUSIVE, NOT_MEASURED = 1, 2, 3, 4  # exit statuses


class CliError(Exception):
    """Ends the command with its message on stderr and no traceback.

    Attributes:
        code: exit status.
    """

    def __init__(self, message: str, code: int = REFUSED) -> None:
        super().__init__(message)
        self.code = code
