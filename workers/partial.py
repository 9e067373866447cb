"""Paired evaluation with K_inf behind a server: it says the top-K log-probs, K_train has full logits.

The server goes first, several requests at a time, and decides the tokens; the training kernel is run on
exactly those. What the server does not show leaves each decision's drift between two ends [C1]. Only
prompts on which a clause could still go either way are asked again, with more log-probs, until it cannot or
the most is reached.

Temperature must be 1 and sampling untruncated. Servers report prompts' log-probs at temperature 1 whatever
is asked, and a top-K at one temperature says nothing exact at another without the tail: q^(1/T) sums over
every token. What they report of sampled tokens under truncation may be normalised over the kept ones [S8].
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import numpy as np
import torch

from contracts.builds import BuildSpec
from contracts.collect import Collector
from contracts.model import Contract, Phase, Sampling
from workers.certificates import Certified, certify
from workers.draws import Draw, InvalidEvaluation
from workers.drift import DriftInputError
from workers.kernels.openai_answers import Answer
from workers.kernels.openai_api import TIMEOUT_S, OpenAIServer, ServerRefused
from workers.kernels.protocol import Kernel, Trace, trace_tokens
from workers.pair import refuse_other_kernels
from workers.paired import PairedPrompt, PhaseDrift, VocabulariesDiffer, check_same, groups
from workers.progress import Report

log = logging.getLogger(__name__)

ENGINE, SERVERS = "openai", "KC_OPENAI_SERVERS"
TOP_LOGPROBS, MAX_TOP_LOGPROBS = 20, 1280
_GROWTH = 4  # more log-probs each time: five rounds at most from 20 to 1280
_AT_ONCE = 8  # requests under way
_BLOCK = 128  # positions whose logits exist at once
_DETECTED = 8  # tokens of the first request, to find out what the server can do

Connector = Callable[[BuildSpec], OpenAIServer]


class UnmeasurableServer(InvalidEvaluation):
    """What the contract asks cannot be had from a server, or this server may not be asked."""


def refuse_unmeasurable(contract: Contract, train: BuildSpec, inference: BuildSpec) -> None:
    """Raise UnmeasurableServer for what no server can give."""
    if train.engine == ENGINE:
        raise UnmeasurableServer("a server gives no full logits: it can be the inference kernel only")
    if inference.engine != ENGINE:
        return
    sampling = contract.sampling
    if sampling.temperature != 1.0:
        raise UnmeasurableServer(
            f"the contract samples at temperature {sampling.temperature:g}, and a server's log-probabilities "
            "are of temperature 1; they cannot be rescaled without the tail. Use engine vllm, or measure at 1"
        )
    if sampling.truncated:
        raise UnmeasurableServer(
            "under top_p, top_k or min_p a server's log-probabilities may be normalised over the kept "
            "tokens; measure without truncation"
        )


def listed(build: BuildSpec) -> OpenAIServer:
    """A client of a server that whoever runs this machine lets evaluations ask.

    Those on loopback, and those of `KC_OPENAI_SERVERS`: base addresses separated by commas. Raises as
    :func:`anywhere`, and UnmeasurableServer for any other.
    """
    url = _address(build)
    allowed = {one.strip().rstrip("/").removesuffix("/v1") for one in os.environ.get(SERVERS, "").split(",")}
    if urlsplit(url).hostname not in ("127.0.0.1", "::1", "localhost") and url not in allowed:
        raise UnmeasurableServer(f"{url} is not among the servers this machine may ask: list it in {SERVERS}")
    return anywhere(build)


def anywhere(build: BuildSpec) -> OpenAIServer:
    """A client of the server a build names, wherever it is.

    Raises UnmeasurableServer without an address or the key it names, and what OpenAIServer raises.
    """
    url, options = _address(build), build.options
    key = None
    if name := options.get("api_key"):
        key = os.environ.get(str(name))
        if not key:
            raise UnmeasurableServer(f"the environment has no {name}, which {url} is to be asked with")
    model = options.get("model")
    return OpenAIServer(
        url,
        model=None if model is None else str(model),
        api_key=key,
        timeout_s=float(options.get("timeout", TIMEOUT_S)),
    )


def _address(build: BuildSpec) -> str:
    url = build.options.get("url")
    if url is None:
        raise UnmeasurableServer("engine openai needs the server's address: openai:url=http://HOST:PORT")
    return str(url)


@dataclass(slots=True)
class Asked:
    """How a server was asked.

    Attributes:
        prompts: requests made once.
        again: prompts asked once more, or more often.
        requests: repeated requests, over all prompts.
        largest: log-probs asked for at most.
        undecided: prompts on which a clause could go either way at the end.
        changed: repeated requests that sampled other tokens; those tokens were not taken.
        most: what the server was found to give at most; None when that was never met.
    """

    prompts: int = 0
    again: int = 0
    requests: int = 0
    largest: int = 0
    undecided: int = 0
    changed: int = 0
    most: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.again} of {self.prompts} prompts asked again, up to {self.largest} log-probabilities; "
            f"{self.undecided} between the ends of a clause"
        )


@dataclass(slots=True)
class _Case:
    draw: Draw
    answer: Answer
    trace: Trace
    found: dict[Phase, PhaseDrift]
    again: bool = False


@contextmanager
def served_pair(
    contract: Contract, collector: Collector, build: BuildSpec, draws: Sequence[Draw], ks: Sequence[int],
    connect: Connector, progress: Report,
) -> Iterator[Callable[[Kernel], Iterator[PairedPrompt]]]:  # fmt: skip
    """What pairs a training kernel with the server of `build`; says at the end how that was asked."""
    partial = Partial(build, collector, ks)
    with connect(build) as server:

        def prompts(train: Kernel) -> Iterator[PairedPrompt]:
            refuse_other_kernels(contract, train.fingerprint(), server.fingerprint())
            return partial.paired(train, server, draws)

        yield prompts
    log.info("%s", partial.asked)
    progress(1.0, str(partial.asked))


class Partial:
    """Pairs a training kernel with a server.

    Args:
        build: the server's; `top_logprobs` are asked for first, `max_top_logprobs` at most.
        collector: says which metrics are wanted, and which decisions are undecided.
        ks: of `topk_agreement@k`.
    """

    def __init__(self, build: BuildSpec, collector: Collector, ks: Sequence[int]) -> None:
        self._collector, self._ks = collector, tuple(ks)
        self._least = int(build.options.get("top_logprobs", TOP_LOGPROBS))
        self._most = max(self._least, int(build.options.get("max_top_logprobs", MAX_TOP_LOGPROBS)))
        self._prompt = Phase.PREFILL in collector.phases
        self.asked = Asked()

    def paired(self, train: Kernel, server: OpenAIServer, draws: Sequence[Draw]) -> Iterator[PairedPrompt]:
        """Evaluate every draw on both; one PairedPrompt each, in order, `upper` set.

        Raises what the server's client raises, TokensDiffer when the training kernel ran other tokens, and
        VocabulariesDiffer when the server names an id the training kernel does not know.
        """
        if self._prompt and draws:
            ids = next((d.request.prompt_ids for d in draws if len(d.request.prompt_ids) > 1), None)
            server.detect(ids[:_DETECTED] if ids else draws[0].request.prompt_ids * 2, self._least)
        by_request = {id(draw.request): draw for draw in draws}
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="ask") as pool:
            try:
                for group in groups([draw.request for draw in draws], trace_tokens(train)):
                    mine = [by_request[id(request)] for request in group]
                    cases = self._first(train, server, mine, pool)
                    self._decide(train, server, cases, pool)
                    yield from (_prompt(case) for case in cases)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        if self.asked.undecided and self.asked.most is not None:
            log.warning(
                "the server gives %d log-probabilities at most, and %d prompts stay between the ends of a "
                "clause; let it give more (vLLM: --max-logprobs)", self.asked.most, self.asked.undecided,
            )  # fmt: skip

    def _first(
        self, train: Kernel, server: OpenAIServer, draws: Sequence[Draw], pool: ThreadPoolExecutor
    ) -> list[_Case]:
        answers = list(
            pool.map(lambda draw: server.ask(draw.request, self._least, prompt=self._prompt), draws)
        )
        replay = [
            replace(draw.request, output_ids=tuple(answer.token_ids[answer.prompt_tokens :]))
            for draw, answer in zip(draws, answers, strict=True)
        ]
        cases = []
        traces = train.trace(replay, Sampling())
        for draw, answer, trace in zip(draws, answers, traces, strict=True):
            check_same(trace, answer.token_ids, answer.prompt_tokens)
            cases.append(_Case(draw, answer, trace, self._certified(train, trace, answer)))
        self.asked.prompts += len(cases)
        self.asked.largest = max(self.asked.largest, self._least)
        return cases

    def _decide(
        self, train: Kernel, server: OpenAIServer, cases: Sequence[_Case], pool: ThreadPoolExecutor
    ) -> None:
        """Ask again about what is undecided, with more log-probs each time."""
        k = self._least
        open_ones = [case for case in cases if self._straddles(case)]
        while open_ones and k < self._most:
            k = min(k * _GROWTH, self._most)
            try:
                answers = list(
                    pool.map(lambda c, k=k: server.ask(c.draw.request, k, prompt=self._prompt), open_ones)
                )
            except ServerRefused as error:
                if error.status not in (400, 413, 422):
                    raise
                self._most = self.asked.most = k // _GROWTH  # it gives no more than before
                break
            for case, answer in zip(open_ones, answers, strict=True):
                self._take(train, case, answer)
            self.asked.largest = max(self.asked.largest, k)
            open_ones = [case for case in open_ones if self._straddles(case)]
        self.asked.undecided += len(open_ones)

    def _take(self, train: Kernel, case: _Case, answer: Answer) -> None:
        self.asked.requests += 1
        self.asked.again += not case.again
        case.again = True
        if answer.token_ids != case.answer.token_ids:
            # Which sample counts was decided by the first request; the prompt's decisions are the same.
            self.asked.changed += 1
            kept = max(0, case.answer.prompt_tokens - 1 - case.answer.first)
            rows = [*answer.rows[:kept], *case.answer.rows[kept:]]
            answer = replace(case.answer, rows=rows)
        case.answer = answer
        case.found = self._certified(train, case.trace, answer)

    def _straddles(self, case: _Case) -> bool:
        wanted = self._collector.needs
        return any(
            self._collector.straddles(
                case.draw.request.id,
                case.draw.attributes,
                phase,
                {key: v for key, v in drift.values.items() if key in wanted or key == "unmeasurable"},
                {key: v for key, v in drift.upper.items() if key in wanted},
            )
            for phase, drift in case.found.items()
        )

    @torch.inference_mode()
    def _certified(self, train: Kernel, trace: Trace, answer: Answer) -> dict[Phase, PhaseDrift]:
        tokens, first = answer.token_ids[1:], answer.first
        blocks: list[Certified] = []
        for start in range(0, len(answer.rows), _BLOCK):
            at = first + start
            rows = answer.rows[start : start + _BLOCK]
            logits = torch.as_tensor(train.logits(trace.states[at : at + len(rows)]))
            here = tokens[at : at + len(rows)]
            try:
                blocks.append(certify(logits, rows, here, vocab_size=train.vocab_size, ks=self._ks))
            except DriftInputError as error:
                raise VocabulariesDiffer(
                    answer.request, f"the server and the training kernel differ: {error}", at
                ) from None
        found = {}
        for phase in dict.fromkeys(answer.phases):
            start, count = answer.phases.index(phase), answer.phases.count(phase)
            mine = slice(start, start + count)
            found[phase] = PhaseDrift(
                offset=first + start,
                values=_joined([block.values for block in blocks], mine),
                sides=_joined([block.sides for block in blocks], mine),
                upper=_joined([block.upper for block in blocks], mine),
            )
        return found


def _joined(blocks: Sequence[Mapping[str, np.ndarray]], part: slice) -> dict[str, np.ndarray]:
    return {name: np.concatenate([block[name] for block in blocks])[part] for name in blocks[0]}


def _prompt(case: _Case) -> PairedPrompt:
    given = case.draw.request.output_ids is not None
    return PairedPrompt(
        request=case.draw.request,
        token_ids=tuple(case.answer.token_ids),
        prompt_tokens=case.answer.prompt_tokens,
        phases=case.found,
        latency_s=case.answer.latency_s,
        ttft_s=None,
        stopped=case.answer.stopped and not given,
    )
