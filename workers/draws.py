"""What an evaluation runs: prompts of a suite, or served requests, as token ids with attributes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from app.services.checkpoints import CONFIG, TOKENIZER
from app.services.specs import TrafficRequest
from app.services.suites import Suite, SuitePrompt
from contracts.slices import Attributes
from workers.kernels.protocol import Request
from workers.tokens import load_tokenizer

NEW_TOKENS = 8  # generated for each prompt of a suite


class InvalidEvaluation(ValueError):
    """What was asked for cannot be evaluated; says what, where, and what to do."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a prompt asks for, as its suite line says.

    Attributes:
        reference: the one right answer, for grader `exact-match`.
        tests: Python that raises unless the answer is right, for grader `unit-tests`.
    """

    reference: str | None = None
    tests: str | None = None


@dataclass(frozen=True, slots=True)
class Draw:
    """One prompt to evaluate: what the kernels are given, its slices, and what its answer is graded by."""

    request: Request
    attributes: Attributes
    task: Task = Task()


def suite_draws(suite: Suite, checkpoint: Path, new_tokens: int = NEW_TOKENS) -> list[Draw]:
    """The prompts of a suite, tokenised with the checkpoint's tokenizer, special tokens included.

    Each is seeded by its own id, so that no other prompt changes what is generated for it.

    Raises:
        InvalidEvaluation: a token id is outside the vocabulary, a prompt has no token, or is
            longer than the model's context allows.
        BadTokenizer: the checkpoint's tokenizer cannot be read.
    """
    tokenizer = load_tokenizer(checkpoint / TOKENIZER)
    config = json.loads((checkpoint / CONFIG).read_bytes())
    known = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    vocabulary = min(known, int(config.get("vocab_size", known)))
    context = int(config.get("max_position_embeddings") or 2**31)
    draws = []
    for prompt in suite.prompts:
        ids = _ids(prompt, tokenizer)
        most = prompt.max_new_tokens or new_tokens
        _check(prompt, ids, vocabulary, context - most)
        request = Request(prompt.id, ids, None, most, seed_of(prompt.id))
        attributes = Attributes(len(request.prompt_ids), prompt.language or None, frozenset(prompt.tags))
        draws.append(Draw(request, attributes, Task(prompt.reference, prompt.tests)))
    return draws


def _ids(prompt: SuitePrompt, tokenizer: Tokenizer) -> tuple[int, ...]:
    if prompt.prompt is None:
        return prompt.token_ids or ()
    ids = tuple(tokenizer.encode(prompt.prompt).ids)
    if prompt.token_ids is not None and ids != prompt.token_ids:
        at = next(
            (i for i, (a, b) in enumerate(zip(ids, prompt.token_ids, strict=False)) if a != b), "the end"
        )
        raise InvalidEvaluation(
            f"prompt {prompt.id!r}, position {at}: the tokenizer makes other ids of the text than the suite "
            "stores beside it (BOS, chat template or version); the ids are what was agreed on"
        )
    return ids


def traffic_draws(requests: Sequence[TrafficRequest]) -> list[Draw]:
    """The dual-evaluated requests among those the candidate answered.

    Raises InvalidEvaluation when one id names two of them.
    """
    draws: dict[str, Draw] = {}
    for served in _candidates(requests):
        if not (served.dual and served.ok):
            continue
        if served.id in draws:
            raise InvalidEvaluation(f"request {served.id!r} was given twice; a draw counts once")
        request = Request(served.id, served.prompt_ids, served.output_ids)
        draws[served.id] = Draw(request, served.attributes)
    return list(draws.values())


def seed_of(prompt_id: str) -> int:
    """63 bits of the id's SHA-256."""
    return int.from_bytes(hashlib.sha256(prompt_id.encode()).digest()[:8], "big") >> 1


def _candidates(requests: Sequence[TrafficRequest]) -> Iterable[TrafficRequest]:
    return (request for request in requests if request.role != "baseline")


def _check(prompt: SuitePrompt, ids: tuple[int, ...], vocabulary: int, most: int) -> None:
    if not ids:
        raise InvalidEvaluation(f"prompt {prompt.id!r} has no token")
    for position, token in enumerate(ids):
        if token >= vocabulary:
            raise InvalidEvaluation(
                f"prompt {prompt.id!r}, position {position}: token id {token} is outside the checkpoint's "
                f"vocabulary of {vocabulary}; the suite was made with another tokenizer"
            )
    if len(ids) > most:
        raise InvalidEvaluation(
            f"prompt {prompt.id!r} has {len(ids)} tokens; the model's context leaves room for {most}"
        )
