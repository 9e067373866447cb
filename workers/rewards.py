"""Rewards of what both kernels generate for the same prompts [Q12, Q13].

Two ways. *Paired*: each kernel generates with the same seed, and both answers are graded. *Weighted*, the
cheaper one: only the serving kernel's answers are graded, and its reward is weighted by the importance
ratio of the whole answer, already measured decision by decision; its effective sample size [Q16] says what
that is worth. Which answers flip takes both kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from contracts.collect import Collector
from contracts.generations import Form
from contracts.model import Contract
from workers.draws import Draw, InvalidEvaluation
from workers.graders import Generation, Grader, grader_of, passed
from workers.kernels.protocol import Kernel, Request
from workers.paired import PairedPrompt
from workers.progress import Report

_GROUP = 32  # requests whose traces exist at once


@dataclass(frozen=True, slots=True)
class _Answer:
    draw: Draw
    reward: float
    log_weight: float


class Rewarding:
    """Grades the serving kernel's answers as they come, and the training kernel's afterwards.

    Args:
        form: `paired` or `weighted`.

    Raises InvalidEvaluation when the contract's grader or sampling does not allow it.
    """

    def __init__(self, contract: Contract, collector: Collector, tokenizer: Tokenizer, form: Form) -> None:
        self._contract, self._collector, self._tokenizer = contract, collector, tokenizer
        self._form: Form = form
        self._grader: Grader = grader_of(contract)
        self._answers: list[_Answer] = []
        if form == "weighted" and contract.sampling.truncated:
            raise InvalidEvaluation(
                "importance weights of truncated distributions are shifted by the kept mass [S8]: "
                "use paired rewards, or no truncation"
            )

    def add(self, prompt: PairedPrompt, draw: Draw) -> None:
        """Grade what the serving kernel generated; a prompt the grader has no task for is no draw."""
        output = prompt.token_ids[prompt.prompt_tokens :]
        if not output or not self._grader.applies(draw.task):
            return
        reward = self._graded(draw, output, finished=prompt.stopped)
        self._answers.append(_Answer(draw, reward, log_weight(prompt)))

    def finish(self, train: Kernel, progress: Report) -> None:
        """Add the rewards to the evidence; in the paired form the training kernel answers first.

        Raises what the kernel raises.
        """
        if self._form == "weighted":  # which answers flip is not known then: NO_DATA
            for one in self._answers if self._collector.needs_rewards else ():
                draw = one.draw
                self._collector.add_weighted_reward(
                    draw.request.id, draw.attributes, one.reward, one.log_weight
                )
            return
        for start in range(0, len(self._answers), _GROUP):
            group = self._answers[start : start + _GROUP]
            progress(1.0, f"training kernel answers {start + len(group)} of {len(self._answers)} tasks")
            self._pair(train, group)

    def _pair(self, train: Kernel, group: Sequence[_Answer]) -> None:
        asked = [
            Request(r.id, r.prompt_ids, None, r.max_new_tokens, r.seed)
            for r in (a.draw.request for a in group)
        ]
        for one, trace in zip(group, train.trace(asked, self._contract.sampling), strict=True):
            draw = one.draw
            output = tuple(trace.token_ids[trace.prompt_tokens :])
            reward = self._graded(draw, output, finished=trace.stopped)
            name, where = draw.request.id, draw.attributes
            if self._collector.needs_rewards:
                self._collector.add_rewards(name, where, reward, one.reward)
            if self._collector.needs_outcomes:
                both = (passed(self._contract, r) for r in (reward, one.reward))
                self._collector.add_outcome(name, where, *both)

    def _graded(self, draw: Draw, output: Sequence[int], *, finished: bool) -> float:
        prompt, text = (
            str(self._tokenizer.decode(list(ids), skip_special_tokens=True))
            for ids in (draw.request.prompt_ids, output)
        )
        return self._grader.grade(draw.task, Generation(prompt, text, finished))


def log_weight(prompt: PairedPrompt) -> float:
    """Log π_train(y|x) − log π_inf(y|x) of the generated tokens y, nats; NaN when a decision is none.

    The first of them is decided at the prompt's last position, which prefill computes; float64, summed
    with math.fsum.
    """
    first = prompt.prompt_tokens - 1
    ratios: list[float] = []
    for phase in prompt.phases.values():
        ratios += phase.values["log_ratio"][max(0, first - phase.offset) :].tolist()
    return math.fsum(ratios)
