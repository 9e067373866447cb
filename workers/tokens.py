"""Text to token ids, with the checkpoint's own tokenizer and nothing else."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer


class BadTokenizer(ValueError):
    """The file is no tokenizer."""


def load_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`, without truncation or padding. Raises BadTokenizer."""
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - tokenizers raises the base class
        raise BadTokenizer(f"{file}: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
