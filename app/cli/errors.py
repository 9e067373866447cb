"""What the command line says when it cannot go on: one line and an exit code."""

from __future__ import annotations


class CliError(Exception):
    """Ends the command with its message on stderr and no traceback.

    Attributes:
        code: exit status; 1 refused or failed, 2 bad usage or contract, 4 could not be measured.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code
