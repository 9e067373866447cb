"""Each fault: the clause, slice and phase that catch it, and a named check that is blind to it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contracts.builds import InvalidBuild, parse_build
from contracts.model import Sampling, Stage
from tests.workers.kernels.fault_kit import (
    SERVING,
    TRAIN,
    broken,
    clean,
    drifts,
    outcomes,
    requests,
    values,
    verdicts,
    write_model,
)  # fmt: skip
from workers.calibrate import Reordered
from workers.kernels.faults import FAULTS, FaultNotApplicable, inject, parse_faults
from workers.kernels.faults.faulty import TOP_P, chosen, kept
from workers.kernels.loading import load
from workers.kernels.protocol import Request
from workers.paired import PairedPrompt, TokensDiffer

SHORT = [10, 30, 50, 40, 20] * 4
LONG = [600, 700]


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("zoo") / "llama", "llama")


def hard(metric: str, limit: str, slices: str = "all", more: str = "", name: str = "C") -> str:
    family = (
        "numerical"
        if metric in ("logit_osc", "logit_l2", "log_ratio", "abs_log_ratio", "unmeasurable")
        else "statistical"
    )
    return (
        f"  - {{id: {name}, family: {family}, metric: {metric}, limit: {limit}, kind: hard, "
        f"slices: [{slices}], level: L2{more}}}"
    )


MEAN = ", statistic: mean"


# The table


def test_the_table_is_whole() -> None:
    assert list(FAULTS) == [f"F{i}" for i in range(1, 19)]
    for fault in FAULTS.values():
        assert all(
            (fault.name, fault.story, fault.reports, fault.metric, fault.slice, fault.phase, fault.blind)
        )
        assert fault.family in ("numerical", "statistical")


def test_faults_are_parsed_in_one_order() -> None:
    assert parse_faults("f13+F9+F9") == ("F9", "F13")
    assert parse_build("torch:fault=F13+F9").digest == parse_build("torch:fault=f9+F13").digest
    with pytest.raises(InvalidBuild, match="F1 to F18"):
        parse_faults("F19")
    for text in ("torch:fault=F0", "torch:fault=F19", "torch:fault=F9+", "vllm:fault=F9"):
        with pytest.raises(InvalidBuild, match="fault"):
            parse_build(text)


@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in ("F10", "F16")])
def test_the_fingerprint_says_so(llama: Path, fault: str) -> None:
    kernel, sound = broken(llama, fault), clean(llama)
    assert kernel.fingerprint().flags["fault"] == fault
    assert parse_build(f"{SERVING},fault={fault}").stated.flags["fault"] == fault
    assert kernel.fingerprint().digest != sound.fingerprint().digest


def test_faults_combine(llama: Path) -> None:
    found = drifts(clean(llama), broken(llama, "F13+F9"), requests([30, 600]))
    assert sum(values(found, "unmeasurable")) == 1
    assert max(values(found[1:], "kl")) > 0.1
    assert broken(llama, "F13+F9").fingerprint().flags["fault"] == "F9+F13"


@pytest.mark.parametrize(
    ("fault", "build", "needs"),
    [
        ("F10", SERVING, "soft-cap|caps attention"),
        ("F16", SERVING, "routed experts"),
        ("F1", TRAIN, "KV cache"),
        ("F8", TRAIN, "KV cache"),
        ("F11", TRAIN, "KV cache"),
    ],
)
def test_not_applicable(llama: Path, fault: str, build: str, needs: str) -> None:
    with pytest.raises(FaultNotApplicable, match=f"{fault} needs .*({needs})"):
        broken(llama, fault, build)


def test_only_torch_kernels_can_be_broken() -> None:
    with pytest.raises(FaultNotApplicable, match="torch kernels"):
        inject(object(), ["F13"])


# Negative controls


def test_attention_implementations_pass(llama: Path) -> None:
    clauses = hard("abs_log_ratio", "{lte: 0.001}") + "\n" + hard("kl", "{lte: 1.0e-6}", name="K")
    found = verdicts(clauses, clean(llama), clean(llama, f"{SERVING},attn=eager"), requests([*SHORT, *LONG]))
    assert set(outcomes(found).values()) == {"HOLDS"}


def test_another_batch_order_passes(llama: Path) -> None:
    clauses = hard("abs_log_ratio", "{lte: 0.001}") + "\n" + hard("kl", "{lte: 1.0e-6}", name="K")
    kernel = clean(llama)
    found = verdicts(clauses, kernel, Reordered(kernel, "reversed"), requests(SHORT))
    assert set(outcomes(found).values()) == {"HOLDS"}


# One by one


def test_f1_decode_alone(llama: Path) -> None:
    # 65 tokens: the last chunk of the prompt is one position wide, as a decode step is.
    pair = clean(llama), broken(llama, "F1")
    wanted = requests([*SHORT, 65])
    found = verdicts(hard("abs_log_ratio", "{lte: 0.18}", more=MEAN), *pair, wanted)
    assert outcomes(found) == {("C", "all", "prefill"): "HOLDS", ("C", "all", "decode"): "VIOLATED"}
    assert found["C", "all", "prefill"].observed == 0.0


def test_f2_is_seen_by_prompt_and_not_in_the_mean(llama: Path) -> None:
    wanted = requests([40] * 60, new=3)
    share = sum(map(chosen, wanted)) / len(wanted)
    assert 0.08 < share < 0.25
    clauses = hard("kl", "{lte: 0.01}", more=MEAN, name="Mean") + (
        "\n  - {id: Worst, family: statistical, metric: kl, limit: {lte: 0.1}, kind: soft, exceedance: 0.05, "
        "per: prompt, aggregate: max, slices: [all], level: L2}"
    )
    found = verdicts(clauses, clean(llama), broken(llama, "F2"), wanted)
    assert found["Mean", "all", "prefill"].verdict == "HOLDS"
    worst = found["Worst", "all", "prefill"]
    assert worst.verdict == "VIOLATED"
    assert worst.observed == pytest.approx(share, abs=0.04)


def test_f2_breaks_the_same_ones_again(llama: Path) -> None:
    wanted = requests([40] * 30, given=True)
    first, again = (drifts(clean(llama), broken(llama, "F2"), wanted[::step]) for step in (1, -1))
    broken_ones = [{p.request.id for p in found if max(values([p], "kl")) > 0.01} for found in (first, again)]
    assert broken_ones[0] == broken_ones[1] == {r.id for r in wanted if chosen(r)}


def test_f3_at_another_temperature_only(llama: Path) -> None:
    wanted = requests(SHORT, new=16)
    clause = hard("log_ratio", "{abs_lte: 0.05}", more=MEAN + ", phase: decode")
    hot = verdicts(clause, clean(llama), broken(llama, "F3"), wanted, temperature=0.6)
    assert hot["C", "all", "decode"].verdict == "VIOLATED"
    # Tokens sampled from p at T: the mean of log p − log q is KL(p‖q), positive.
    assert hot["C", "all", "decode"].observed > 0.1
    assert not any(values(drifts(clean(llama), broken(llama, "F3"), wanted), "abs_log_ratio"))


def test_f3_reports_what_it_says(llama: Path) -> None:
    """Log-probs of sampled tokens are those at T = 1 of tokens sampled at T."""
    wanted, sampling = requests([20]), Sampling(temperature=0.6)
    (right,), (wrong,) = (k.trace(wanted, sampling) for k in (clean(llama), broken(llama, "F3")))
    assert right.token_ids == wrong.token_ids
    kernel = clean(llama)
    scores = kernel.logits(right.states[19:])[:, : kernel.vocab_size].log_softmax(-1)
    at_one = [float(row[token]) for row, token in zip(scores, right.token_ids[20:], strict=True)]
    assert wrong.logprobs == pytest.approx(at_one, abs=1e-5)
    assert right.logprobs != pytest.approx(at_one, abs=1e-2)


def test_f4_ratio_is_the_kept_mass(llama: Path) -> None:
    wanted = requests(SHORT, new=16)
    kernel = broken(llama, "F4")
    found = verdicts(
        hard("log_ratio", "{abs_lte: 0.05}", more=MEAN), clean(llama), kernel, wanted
    )  # fmt: skip
    assert found["C", "all", "decode"].verdict == "VIOLATED"
    prompts = drifts(clean(llama), kernel, wanted)
    plain, masses = clean(llama), []
    for prompt in prompts:
        trace = plain.trace([_given(prompt)], Sampling())[0]
        p = plain.logits(trace.states[prompt.prompt_tokens :])[:, : plain.vocab_size].softmax(-1)
        masses += (p * kept(p.log(), TOP_P)).sum(-1).tolist()
    assert np.exp(values(prompts, "log_ratio", "decode")) == pytest.approx(masses, abs=1e-4)
    assert TOP_P <= np.mean(masses) < 1.0
    # Blind: the most likely token is never cut.
    assert not any(values(prompts, "top1_flip"))


def _given(prompt: PairedPrompt) -> Request:
    return replace(prompt.request, output_ids=prompt.token_ids[prompt.prompt_tokens :])


def test_f5_after_the_sync(llama: Path) -> None:
    stale, sound = broken(llama, "F5"), clean(llama)
    clause = hard("abs_log_ratio", "{lte: 0.18}")
    assert "VIOLATED" in outcomes(verdicts(clause, sound, stale, requests(SHORT))).values()
    # Blind: what is known of the program is the same.
    left, right = stale.fingerprint(), sound.fingerprint()
    assert left.model_copy(update={"flags": right.flags}) == right


def test_f6_stays_under_a_sane_contract(llama: Path) -> None:
    build = SERVING.replace("float32", "bfloat16")
    fused = broken(llama, "F6", build)
    found = drifts(clean(llama, build), fused, requests(SHORT))
    assert max(values(found, "logit_osc")) > 0.0  # it is there
    clauses = hard("kl", "{lte: 0.01}", more=MEAN) + "\n" + hard("logit_osc", "{lte: 4.0}", name="N")
    judged = verdicts(clauses, clean(llama), fused, requests(SHORT))
    assert set(outcomes(judged).values()) == {"HOLDS"}
    assert fused.fingerprint().compile_mode != clean(llama, build).fingerprint().compile_mode


def test_f7_is_a_matter_of_the_batch(llama: Path) -> None:
    kernel, wanted = broken(llama, "F7"), requests(SHORT, given=True)
    alone = drifts(kernel, Reordered(kernel, "alone"), wanted)
    fixed = drifts(kernel, kernel, wanted)
    sound = drifts(clean(llama), Reordered(clean(llama), "alone"), wanted)
    assert max(values(alone, "abs_log_ratio")) > 100 * max(values(sound, "abs_log_ratio"))
    assert not any(values(fixed, "abs_log_ratio"))


def test_f8_where_the_cache_is_read(llama: Path) -> None:
    clause = hard("kl", "{lte: 1.0e-4}", "long, one_chunk", more=MEAN)
    found = verdicts(clause, clean(llama), broken(llama, "F8"), requests([*SHORT, *LONG]))
    assert found["C", "long", "prefill"].verdict == "VIOLATED"
    assert found["C", "one_chunk", "prefill"].observed == 0.0


def test_f9_beyond_the_window(llama: Path) -> None:
    clause = hard("kl", "{lte: 0.001}", "long, short", more=MEAN)
    found = verdicts(clause, clean(llama), broken(llama, "F9"), requests([*SHORT, 500, *LONG]))
    for phase in ("prefill", "decode"):
        assert found["C", "long", phase].verdict == "VIOLATED"
        assert found["C", "short", phase].observed == 0.0
    prompt = drifts(clean(llama), broken(llama, "F9"), requests([700]))
    at = np.array(values(prompt, "kl"))
    assert not at[:512].any()
    assert (at[512:] > 0).all()


def test_f10_a_soft_cap_is_dropped(tmp_path: Path) -> None:
    gemma, build = write_model(tmp_path, "gemma2"), "torch:dtype=float32,attn=eager"
    found = verdicts(
        hard("logit_osc", "{lte: 0.5}"), clean(gemma, build), broken(gemma, "F10", build), requests(SHORT)
    )
    assert "VIOLATED" in outcomes(found).values()
    with pytest.raises(FaultNotApplicable, match="attn=eager"):
        broken(gemma, "F10", TRAIN)
    # After another fault of attention, which stands before the implementation.
    assert broken(gemma, "F9+F10", build).fingerprint().flags["fault"] == "F9+F10"


def test_f11_past_the_chunk(llama: Path) -> None:
    build = SERVING.replace("batch=4", "batch=1")  # a padded batch is cut where its longest prompt is
    clause = hard("kl", "{lte: 0.005}", "chunked, one_chunk")
    found = verdicts(
        clause, clean(llama, build), broken(llama, "F11", build), requests([*SHORT, 64, 65, 200, 300])
    )
    assert found["C", "chunked", "prefill"].verdict == "VIOLATED"
    assert found["C", "one_chunk", "prefill"].observed == 0.0
    at = np.array(values(drifts(clean(llama, build), broken(llama, "F11", build), requests([200])), "kl"))
    assert not at[:64].any()
    assert at[64:128].any()


def test_f12_the_head_and_not_the_states(llama: Path) -> None:
    stale, wanted = broken(llama, "F12"), requests(SHORT, given=True)
    clauses = hard("logit_l2", "{lte: 0.1}") + "\n" + hard("top1_flip", "{lte: 0.001}", more=MEAN, name="T")
    found = outcomes(verdicts(clauses, clean(llama), stale, wanted))
    assert found["C", "all", "prefill"] == found["T", "all", "prefill"] == "VIOLATED"
    traces = (k.trace(wanted, Sampling()) for k in (clean(llama), broken(llama, "F12")))
    assert all(bool((a.states == b.states).all()) for a, b in zip(*traces, strict=True))


def test_f13_names_the_position(llama: Path) -> None:
    wanted = requests(SHORT)
    found = verdicts(hard("unmeasurable", "{lte: 0}"), clean(llama), broken(llama, "F13"), wanted)
    verdict = found["C", "all", "prefill"]
    assert verdict.verdict == "VIOLATED"
    middle = (len(wanted[0].prompt_ids) + 6 - 1) // 2
    assert "r0" in verdict.reason
    assert str(middle) in verdict.reason
    # Blind: an average that drops what is no number.
    kl = np.array(values(drifts(clean(llama), broken(llama, "F13"), wanted), "kl"))
    assert np.isnan(kl).sum() == 1
    assert np.nanmean(kl) < 1e-9


def test_f14_answers_change_and_perplexity_does_not(llama: Path) -> None:
    wanted = requests(SHORT, new=16)
    clauses = hard("kl", "{lte: 1.0e-4}", more=MEAN) + "\n" + hard("ppl_ratio", "{lte: 1.01}", name="P")
    found = outcomes(verdicts(clauses, clean(llama), broken(llama, "F14"), wanted))
    assert found["C", "all", "prefill"] == found["C", "all", "decode"] == "VIOLATED"
    assert found["P", "all", "prefill"] == "HOLDS"
    flips = values(drifts(clean(llama), broken(llama, "F14"), wanted), "top1_flip")
    assert 0.0 < sum(flips) / len(flips) < 0.5


def test_f15_in_a_stream_and_not_at_its_start(llama: Path) -> None:
    clause = (
        "  - {id: C, family: numerical, metric: logit_osc, limit: {lte: 1.2}, kind: soft, exceedance: 0.05, "
        "slices: [all], level: L2, phase: prefill, stages: [offline_ci, shadow]}"
    )
    wanted = requests([20] * 240, new=2)
    first = verdicts(clause, clean(llama), broken(llama, "F15"), wanted[:80], census=False)
    assert first["C", "all", "prefill"].verdict == "HOLDS"
    stream = verdicts(clause, clean(llama), broken(llama, "F15"), wanted, stage=Stage.SHADOW)
    assert stream["C", "all", "prefill"].verdict == "VIOLATED"


def test_f16_routing(tmp_path: Path) -> None:
    mixtral = write_model(tmp_path, "mixtral")
    wanted = requests([60] * 20)
    clauses = (
        hard("kl", "{lte: 0.01}", name="Tail")
        + "\n" + hard("logit_osc", "{lte: 0.1}", more=MEAN, name="Mean")
        + "\n" + hard("top1_flip", "{lte: 0.0001}", more=MEAN, name="Flips")
    )  # fmt: skip
    found = outcomes(verdicts(clauses, clean(mixtral, TRAIN), broken(mixtral, "F16", TRAIN), wanted))
    assert found["Tail", "all", "prefill"] == found["Flips", "all", "prefill"] == "VIOLATED"
    assert found["Mean", "all", "prefill"] == "HOLDS"


def test_f17_is_refused_before_any_ratio(llama: Path) -> None:
    with pytest.raises(TokensDiffer, match="position 0") as error:
        verdicts(hard("kl", "{lte: 100}"), clean(llama), broken(llama, "F17"), requests(SHORT))
    assert error.value.request == "r0"


def test_f18_grows_with_position(llama: Path) -> None:
    wanted = requests([200] * 6)
    clauses = "\n".join(
        [
            hard("kl", "{lte: 0.02}", more=MEAN),
            hard("logit_osc", "{lte: 2.0}", name="N"),
            hard("abs_log_ratio", "{lte: 0.5}", name="R"),
        ]
    )
    found = outcomes(verdicts(clauses, clean(llama), broken(llama, "F18"), wanted))
    assert {found[name, "all", "prefill"] for name in "CNR"} == {"VIOLATED"}
    at = np.array([values([p], "kl", "prefill") for p in drifts(clean(llama), broken(llama, "F18"), wanted)])
    # Position 0 is not rotated: nothing but how exp rounds.
    assert at[:, 0].max() == 0.0
    assert at[:, 100:].mean() > 2 * at[:, 1:20].mean()


def test_a_fault_leaves_other_kernels_alone(llama: Path) -> None:
    broken(llama, "F1+F9+F11")
    found = drifts(load(parse_build(TRAIN), llama), clean(llama), requests([600, 20]))
    assert math.isfinite(sum(values(found, "kl")))
    assert max(values(found, "kl")) < 1e-9


def test_the_page_has_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "fault-zoo.md").read_text(encoding="utf-8")
    for fault in FAULTS.values():
        row = (
            f"| {fault.id} | {fault.story} ({fault.reports}) | {fault.metric}; {fault.slice}; {fault.phase} |"
        )
        assert f"{row} {fault.blind} |" in page
