"""Requests for the tiny checkpoint: 259 tokens, `<eos>` being 2."""

from __future__ import annotations

import random

from workers.kernels.protocol import Request

VOCABULARY, EOS = 259, 2


def make_requests(
    count: int, *, seed: int = 0, outputs: int | None = 6, longest: int = 40, new: int = 8
) -> list[Request]:
    """Random prompts of 1 to `longest` tokens with up to `outputs` output tokens, or none given."""
    source = random.Random(seed)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(source.randrange(3, VOCABULARY) for _ in range(length))

    return [
        Request(
            id=f"r{i}",
            prompt_ids=ids(source.randint(1, longest)),
            output_ids=None if outputs is None else ids(source.randint(0, outputs)),
            max_new_tokens=new,
            seed=i,
        )
        for i in range(count)
    ]
