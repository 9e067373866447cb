"""One evaluation: two kernels, the same tokens, evidence. `kc evaluate` and the task both come here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from app.services.checkpoints import TOKENIZER
from app.services.specs import TrafficRequest
from contracts.builds import BuildSpec
from contracts.calibration import Calibrated
from contracts.collect import Collector, Role
from contracts.evidence import Evidence, Provenance
from contracts.generations import Form
from contracts.model import Contract, Stage
from contracts.slices import Attributes
from workers.certificates import EXACT, ends_names
from workers.draws import Draw
from workers.kept import Opener, fresh
from workers.kernels.protocol import Kernel, Request
from workers.pair import refuse_other_builds, refuse_other_kernels, refuse_truncated_ratios
from workers.paired import PairedPrompt, paired
from workers.partial import ENGINE, Connector, listed, refuse_unmeasurable, served_pair
from workers.progress import Report, silent
from workers.records import RecordsWriter, RequestsWriter, requests_file, schema
from workers.rewards import Rewarding
from workers.tokens import load_tokenizer

_TOP_K = "topk_agreement@"
_GROUP = 32  # requests of a baseline whose traces exist at once


def evaluate(
    contract: Contract,
    provenance: Provenance,
    checkpoint: Path,
    train: BuildSpec,
    inference: BuildSpec,
    draws: Sequence[Draw],
    *,
    served: Sequence[TrafficRequest] = (),
    baseline: BuildSpec | None = None,
    shard: str,
    records: Path | None = None,
    rewards: Form | None = None,
    progress: Report = silent,
    opened: Opener = fresh,
    connect: Connector = listed,
) -> Evidence:
    """Run every draw through both kernels and gather what the contract's clauses need.

    Args:
        provenance: content digests of all that goes in, and the stage; the evidence carries it.
        draws: what both kernels run; without output ids the inference kernel generates.
        served: requests of live traffic, for runtime and observability clauses. In offline CI
            each draw is a request of its own.
        baseline: in offline CI, the kernel that clauses relative to the baseline compare with;
            it runs the draws too, on its own.
        shard: name of this disjoint part of the stage's prompts.
        records: Parquet file to write, one row a decision; replaced whole, or not at all.
        rewards: how clauses on rewards are measured; by default paired in offline CI, where both
            kernels can be asked, and weighted on answers users had.
        progress: called with the share done and words; what it raises ends the evaluation.
        opened: how kernels are had; by default each is loaded for this evaluation alone.
        connect: how the server of an inference build of engine `openai` is had.

    Raises:
        UnmeasurableServer: the contract asks what an inference kernel behind a server cannot show, or
            the server may not be asked.
        PairMismatch: a fingerprint is not what the contract asks, found before weights are
            loaded where the build alone says so.
        TruncatedRatio: the contract wants ratio metrics under truncated sampling.
        KernelError, PairingError: a kernel cannot be loaded or run, or the two do not match.
    """
    refuse_truncated_ratios(contract, provenance.stage)
    refuse_other_builds(contract, train, inference)
    refuse_unmeasurable(contract, train, inference)
    collector = Collector(contract, provenance, shard)
    with RequestsWriter(requests_file(records)) if records else nullcontext() as log:
        requests = Requests(collector, log)
        for request in served:
            _add_served(requests, request)
        if not draws:
            return collector.evidence()
        ks = tuple(sorted(int(key.removeprefix(_TOP_K)) for key in collector.needs if key.startswith(_TOP_K)))
        remote = inference.engine == ENGINE
        columns = schema(ks, ends_names(ks), EXACT) if remote else None
        writer = RecordsWriter(records, ks=ks, columns=columns) if records else None
        offline = provenance.stage is Stage.OFFLINE_CI
        rewarding = _rewarding(
            contract, collector, checkpoint, rewards or ("paired" if offline else "weighted")
        )
        progress(0.0, "loading kernels")
        asked = requests if offline else None  # a served request was timed where it was served
        pair = (
            served_pair(contract, collector, inference, draws, ks, connect, progress)
            if remote
            else _loaded_pair(contract, opened(inference, checkpoint, provenance.checkpoint), draws, ks)
        )
        with pair as prompts_of, opened(train, checkpoint, provenance.checkpoint) as k_train:
            with writer or nullcontext():
                _run(collector, prompts_of(k_train), draws, writer, asked, rewarding, progress)
            if rewarding is not None:
                rewarding.finish(k_train, progress)
        if offline and baseline and _wants_baseline(contract, provenance.stage):
            progress(1.0, "running the baseline")
            with opened(baseline, checkpoint, provenance.checkpoint) as kernel:
                _run_baseline(contract, requests, kernel, draws, progress)
        return collector.evidence([writer.ref] if writer else [])


def _rewarding(contract: Contract, collector: Collector, checkpoint: Path, form: Form) -> Rewarding | None:
    if not (collector.needs_rewards or collector.needs_outcomes):
        return None
    return Rewarding(contract, collector, load_tokenizer(checkpoint / TOKENIZER), form)


@contextmanager
def _loaded_pair(
    contract: Contract, opened: AbstractContextManager[Kernel], draws: Sequence[Draw], ks: Sequence[int]
) -> Iterator[Callable[[Kernel], Iterator[PairedPrompt]]]:
    with opened as k_inf:

        def prompts(train: Kernel) -> Iterator[PairedPrompt]:
            refuse_other_kernels(contract, train.fingerprint(), k_inf.fingerprint())
            return paired(train, k_inf, [draw.request for draw in draws], contract.sampling, ks=ks)

        yield prompts


def _run(
    collector: Collector,
    prompts: Iterator[PairedPrompt],
    draws: Sequence[Draw],
    writer: RecordsWriter | None,
    requests: Requests | None,
    rewarding: Rewarding | None,
    progress: Report,
) -> None:
    attributes = {draw.request.id: draw.attributes for draw in draws}
    decisions = 0
    for done, prompt in enumerate(prompts, start=1):
        where = attributes[prompt.request.id]
        _add_prompt(collector, prompt, draws[done - 1])
        if rewarding is not None:
            rewarding.add(prompt, draws[done - 1])
        if writer is not None:
            writer.add(prompt, where)
        if requests is not None:
            generated = len(prompt.token_ids) - prompt.prompt_tokens
            times = _times(prompt.latency_s, prompt.ttft_s, generated)
            requests.add(prompt.request.id, where, role="candidate", ok=True, **times)
        decisions += prompt.decisions
        progress(done / len(draws), f"{done} of {len(draws)} prompts, {decisions:,} decisions")


def _add_prompt(collector: Collector, prompt: PairedPrompt, draw: Draw) -> None:
    wanted = collector.needs | {"unmeasurable"}
    for phase, found in prompt.phases.items():
        side = found.sides
        calibration = Calibrated(
            side["confidence_train"], side["hit_train"], side["confidence_inference"], side["hit_inference"]
        )
        collector.add_prompt(
            prompt.request.id,
            draw.attributes,
            phase,
            {key: values for key, values in found.values.items() if key in wanted},
            calibration=calibration if collector.needs_calibration else None,
            nll=(side["nll_train"], side["nll_inference"]) if collector.needs_nll else None,
            offset=found.offset,
            upper={key: values for key, values in found.upper.items() if key in wanted},
        )


class Requests:
    """Requests as evidence and, where records are kept, as records."""

    def __init__(self, collector: Collector, log: RequestsWriter | None) -> None:
        self._collector, self._log = collector, log

    def add(
        self,
        draw: str,
        attributes: Attributes,
        *,
        role: Role,
        ok: bool,
        dual: bool = False,
        **times: float | None,
    ) -> None:
        """Add one request; times as :func:`contracts.collect.Collector.add_request` takes them."""
        self._collector.add_request(attributes, role=role, ok=ok, dual=dual, **times)
        if self._log is not None:
            self._log.add(draw, attributes, role=role, ok=ok, dual=dual, **times)


def _add_served(requests: Requests, request: TrafficRequest) -> None:
    times = _times(request.latency_s, request.ttft_s, len(request.output_ids))
    requests.add(request.id, request.attributes, role=request.role, ok=request.ok, dual=request.dual, **times)


def _times(latency_s: float | None, ttft_s: float | None, tokens: int) -> dict[str, float | None]:
    """Runtime of one request [Q17]: seconds, and generated tokens a second."""
    itl = None
    if latency_s is not None and ttft_s is not None and tokens > 1:
        itl = max(0.0, latency_s - ttft_s) / (tokens - 1)
    throughput = tokens / latency_s if latency_s and tokens else None
    return {"latency_s": latency_s, "ttft_s": ttft_s, "itl_s": itl, "throughput": throughput}


def _wants_baseline(contract: Contract, stage: Stage) -> bool:
    return any(clause.relative_to == "baseline" for clause in contract.clauses_at(stage))


def _run_baseline(
    contract: Contract, requests: Requests, kernel: Kernel, draws: Sequence[Draw], progress: Report
) -> None:
    for start in range(0, len(draws), _GROUP):
        group = draws[start : start + _GROUP]
        asked: list[Request] = [draw.request for draw in group]
        for draw, trace in zip(group, kernel.trace(asked, contract.sampling), strict=True):
            times = _times(trace.latency_s, trace.ttft_s, len(trace.token_ids) - trace.prompt_tokens)
            requests.add(draw.request.id, draw.attributes, role="baseline", ok=True, **times)
        progress(1.0, f"baseline, {start + len(group)} of {len(draws)} prompts")
