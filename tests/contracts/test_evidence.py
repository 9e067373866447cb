"""Merging laws and the serialised form."""

import json
import math
import random
from fractions import Fraction
from pathlib import Path

import mpmath as mp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from contracts.calibration import Calibrated, CalibrationSums
from contracts.evidence import (
    Cell,
    Count,
    Draws,
    Evidence,
    EvidenceMismatch,
    Extreme,
    Gauge,
    Moments,
    Outcomes,
    Position,
    Provenance,
    RecordsRef,
    Rewards,
    Sketch,
    Unmeasurable,
    UnreadableEvidence,
    Weights,
)
from contracts.intervals import sketch_quantile
from contracts.model import Phase

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
positive = st.floats(0, 1e9)
positions = st.builds(
    Position, draw=st.sampled_from("abcd"), index=st.integers(0, 9), phase=st.just(Phase.DECODE)
)
share = st.integers(1, 9).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def calibration(seed):
    rng = random.Random(seed)
    conf = [rng.random() for _ in range(4)]
    hits = [float(rng.random() < 0.5) for _ in range(4)]
    return CalibrationSums.of(Calibrated(conf, hits, conf[::-1], hits), 3).frozen()


accumulators = {
    "unmeasurable": st.lists(positions, max_size=30).map(
        lambda ps: Unmeasurable(count=len(ps)).merge(Unmeasurable(first=tuple(ps)))
    ),
    "draws": st.lists(share, max_size=8).map(Draws.of),
    "moments": st.lists(finite, max_size=8).map(Moments.of),
    "extreme": st.builds(Extreme, low=finite, low_at=positions, high=finite, high_at=positions),
    "calibration": st.integers(0, 99).map(calibration),
    "candidate": st.lists(positive, max_size=8).map(Sketch.of),
    "outcomes": st.lists(st.tuples(st.booleans(), st.booleans()), max_size=8).map(Outcomes.of),
    "rewards": st.lists(finite, max_size=8).map(
        lambda v: Rewards(form="paired", train=Moments.of(v), inference=Moments.of(v), gap=Moments.of(v))
    ),
    "weights": st.lists(st.tuples(st.integers(1, 9), positive, positive), max_size=8).map(Weights.of),
    "count": st.builds(Count, events=st.integers(0, 9), trials=st.integers(9, 20)),
    "gauge": st.builds(Gauge, low=finite, high=finite),
}


@st.composite
def shards(draw, size=3):
    provenance = Provenance(
        contract="c", checkpoint="k", train_build="t", inference_build="i", suite="s", stage="shadow"
    )
    out = []
    for name in "xyz"[:size]:
        cells = [
            Cell(clause=clause, slice="all", phase=Phase.DECODE, **{field: draw(accumulators[field])})
            for clause, field in zip("ABCDEFGHIJK", accumulators, strict=True)
            if draw(st.booleans())
        ]
        out.append(
            Evidence(
                provenance=provenance,
                shards=(name,),
                prompts=draw(st.integers(0, 9)),
                cells=tuple(sorted(cells, key=lambda c: c.key)),
                records=(RecordsRef(uri=f"r/{name}", digest="d", rows=1),),
            )
        )
    return out


@given(shards())
def test_merging_is_associative_and_commutative_to_the_byte(pieces):
    a, b, c = pieces
    left = a.merge(b).merge(c)
    assert left.canonical() == a.merge(b.merge(c)).canonical() == c.merge(a).merge(b).canonical()
    assert left.digest == b.merge(c).merge(a).digest
    assert left.prompts == a.prompts + b.prompts + c.prompts


@given(shards(size=1))
def test_the_serialised_form_reads_back_as_itself(pieces):
    again = Evidence.read(pieces[0].canonical())
    assert again == pieces[0]
    assert again.digest == pieces[0].digest


@given(shards(size=2))
def test_a_shard_is_never_counted_twice(pieces):
    merged = pieces[0].merge(pieces[1])
    with pytest.raises(EvidenceMismatch, match="counted twice: x"):
        merged.merge(pieces[0])


@given(shards(size=2))
def test_other_experiments_do_not_mix(pieces):
    other = pieces[1].model_copy(
        update={"provenance": pieces[1].provenance.model_copy(update={"attempt": "2"})}
    )
    with pytest.raises(EvidenceMismatch, match="provenance"):
        pieces[0].merge(other)


def test_infinite_extremes_are_valid_json():
    at = Position(draw="a", index=0)
    provenance = Provenance(
        contract="c", checkpoint="k", train_build="t", inference_build="i", suite="s", stage="full"
    )
    cell = Cell(clause="A", slice="all", extreme=Extreme(low=-math.inf, low_at=at, high=math.inf, high_at=at))
    evidence = Evidence(provenance=provenance, shards=("x",), prompts=1, cells=(cell,))

    def refuse(constant):
        raise AssertionError(constant)

    json.loads(evidence.canonical(), parse_constant=refuse)
    assert Evidence.model_validate_json(evidence.canonical()) == evidence


def test_nan_is_no_reading():
    at = Position(draw="a", index=0)
    for make in (
        lambda: Gauge(low=math.nan, high=1.0),
        lambda: Extreme(low=0.0, low_at=at, high=math.nan, high_at=at),
        lambda: Moments.of([math.nan]),
        lambda: Moments.of([math.inf]),
        lambda: Sketch.of([math.nan]),
        lambda: Sketch.of([-1.0]),
        lambda: Draws.of_means([math.nan]),
        lambda: Draws.of_means([1.5]),
        lambda: Draws.of([(2, 1)]),
        lambda: Draws.of([(0, 0)]),
        lambda: Draws(shares=((-1, 2, 1),)),
        lambda: Draws(shares=((1, 2, 0),)),
        lambda: Sketch(buckets=((1, -1),)),
        lambda: Count(events=2, trials=1),
    ):
        with pytest.raises((ValueError, ValidationError, OverflowError)):
            make()


GOLDEN = Path(__file__).parent / "golden" / "evidence_v1.json"


def one_of_each():
    """Evidence with every accumulator set, of fixed values."""
    at = Position(draw="p1", index=3, phase=Phase.DECODE)
    moments = Moments.of([0.1, 0.25, -3.0])
    kwargs = {
        "unmeasurable": Unmeasurable(count=2, first=(at,)),
        "draws": Draws.of([(0, 7), (2, 9), (2, 9)]),
        "moments": moments,
        "extreme": Extreme(low=-math.inf, low_at=at, high=0.3, high_at=at),
        "calibration": CalibrationSums.of(Calibrated([0.1, 0.9], [0, 1], [0.2, 0.8], [1, 1]), 2).frozen(),
        "nll_train": moments,
        "nll_inference": moments,
        "nll_gap": moments,
        "candidate": Sketch.of([0.0, 0.5, 0.5, 2.0]),
        "baseline": Sketch.of([1.0]),
        "outcomes": Outcomes(both=5, train_only=2, inference_only=1, neither=4),
        "rewards": Rewards(form="weighted", train=moments, inference=moments, gap=moments),
        "weights": Weights.of([(3, 3.5, 4.25), (1, 0.5, 0.25)]),
        "count": Count(events=1, trials=9),
        "gauge": Gauge(low=1.5, high=2.5, readings=4),
    }
    # `upper` is absent where values are exact, so the bytes of such evidence are as they were before it.
    assert set(kwargs) == set(Cell.model_fields) - {"clause", "slice", "phase", "upper"}
    return Evidence(
        provenance=Provenance(
            contract="sha256:c", checkpoint="sha256:k", train_build="t", inference_build="i", suite="s",
            stage="canary", attempt="2",
        ),
        shards=("s1", "s2"),
        prompts=3,
        cells=(Cell(clause="C1", slice="all", phase=Phase.DECODE, **kwargs),),
        records=(RecordsRef(uri="file:r.parquet", digest="sha256:r", rows=16),),
    )  # fmt: skip


def test_the_bytes_of_version_1_never_change():
    """A change here needs a new SCHEMA_VERSION and a reader of the old one."""
    assert one_of_each().canonical() == GOLDEN.read_bytes().rstrip(b"\n")
    assert Evidence.read(GOLDEN.read_bytes()) == one_of_each()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(schema_version=2), "schema_version 2, and this version reads 1 only"),
        (lambda d: d.update(schema_version="1"), "schema_version '1'"),
        (lambda d: d.update(schema_version=True), "schema_version True"),
        (lambda d: d.pop("schema_version"), "schema_version None"),
        (lambda d: d.update(later="field"), "malformed at later"),
        (lambda d: d["cells"][0].update(entropy={}), "malformed at cells.0.entropy"),
        (
            lambda d: d["cells"][0]["moments"].update(total="1e999999999"),
            "cells.0.moments.total: .*not a rational",
        ),
        (lambda d: d["cells"][0]["moments"].update(total="1/0"), "cells.0.moments.total"),
        (lambda d: d["cells"][0]["moments"].update(total=math.inf), "cells.0.moments.total"),
    ],
)
def test_other_versions_and_forms_are_refused_by_name(change, words):
    plain = json.loads(one_of_each().canonical())
    change(plain)
    with pytest.raises(UnreadableEvidence, match=words):
        Evidence.read(json.dumps(plain).replace("Infinity", "1e999"))


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"{", b"\xff"])
def test_what_is_no_evidence_is_refused(text):
    with pytest.raises(UnreadableEvidence):
        Evidence.read(text)


@given(st.lists(finite, min_size=2, max_size=20))
def test_moments_are_exact(values):
    moments = Moments.of(values)
    exact = [Fraction(v) for v in values]
    mean = sum(exact) / len(exact)
    assert moments.mean == float(mean)
    assert moments.variance == float(sum((v - mean) ** 2 for v in exact) / (len(exact) - 1))
    assert Moments.of(values[:1]).variance == 0.0
    tripled = Moments.of(values * 3)
    assert Moments.of(values).times(Fraction(3)) == tripled
    second = sum((v - mean) ** 2 for v in exact) / len(exact)
    third = sum((v - mean) ** 3 for v in exact) / len(exact)
    if second == 0 or len(values) < 3:
        assert Moments.of(values).skewness == 0.0
    else:
        skewness = mp.mpf(third.numerator) / third.denominator
        skewness /= (mp.mpf(second.numerator) / second.denominator) ** 1.5
        assert Moments.of(values).skewness == pytest.approx(float(skewness), rel=1e-9, abs=1e-12)


@given(st.lists(positive, min_size=1, max_size=30))
def test_sketch_buckets_hold_their_values(values):
    for value in values:
        ((bucket, count),) = Sketch.of([value]).buckets
        low, high = Sketch.edges(bucket)
        assert count == 1
        assert low * (1 - 1e-12) <= value <= high * (1 + 1e-12)


@given(st.lists(st.floats(1e-9, 1e9, exclude_min=True), min_size=1, max_size=40), st.floats(0.01, 0.99))
def test_a_sketch_gives_every_rank_within_its_stated_error(values, q):
    low, high = sketch_quantile(Sketch.of(values), q)
    exact = sorted(values)[max(math.ceil(q * len(values)), 1) - 1]
    middle = (low + high) / 2
    assert abs(exact - middle) <= Sketch.ERROR * middle * (1 + 1e-9)
    assert Sketch.ERROR < 0.005


def test_paired_and_weighted_rewards_do_not_mix():
    with pytest.raises(EvidenceMismatch, match="paired and importance-weighted"):
        Rewards(form="paired").merge(Rewards(form="weighted"))


def test_weights_that_are_no_number_are_refused():
    for bad in (math.nan, math.inf):
        with pytest.raises((ValueError, OverflowError)):
            Weights.of([(1, bad, 1.0)])


def test_positions_kept_are_the_smallest_of_all():
    many = [Position(draw="d", index=i) for i in range(40)]
    halves = [
        Unmeasurable(count=20).merge(Unmeasurable(first=tuple(part))) for part in (many[20:], many[:20])
    ]
    merged = halves[0].merge(halves[1])
    assert merged.count == 40
    assert [p.index for p in merged.first] == list(range(16))


def test_shares_are_means_of_prompts_not_of_tokens():
    draws = Draws.of([(1, 2), (0, 100)])
    assert draws.mean == 0.25
    assert (draws.n, draws.decisions, draws.exceeding) == (2, 102, 1)


@pytest.mark.parametrize("number", [None, "x", 1.5, [1], 10**30, -(10**30)])
def test_rows_that_are_no_whole_numbers_are_unreadable(number: object) -> None:
    cell = Cell(clause="S1", slice="all", draws=Draws.of([(1, 3)]))
    provenance = Provenance(
        contract="c", checkpoint="k", train_build="t", inference_build="i", suite="s", stage="shadow"
    )
    evidence = Evidence(provenance=provenance, shards=("a",), prompts=1, cells=(cell,))
    plain = json.loads(evidence.canonical())
    plain["cells"][0]["draws"]["shares"][0][2] = number
    with pytest.raises(UnreadableEvidence, match="malformed"):
        Evidence.read(json.dumps(plain))
