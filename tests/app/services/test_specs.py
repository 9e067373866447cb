import pytest
from pydantic import ValidationError

from app.services.specs import EvaluationSpec, TrafficRequest
from contracts.model import Stage
from contracts.slices import Attributes

DIGEST = "sha256:" + "0" * 64
COMMON = {
    "contract": "apiVersion: kernel-contracts/v1",
    "contract_digest": DIGEST,
    "promotion": "p-1",
    "checkpoint": "model",
    "checkpoint_digest": DIGEST,
    "train": "torch:dtype=float32",
    "train_build": DIGEST,
    "inference": "torch-serving:dtype=bfloat16",
    "inference_build": DIGEST,
    "suite_digest": DIGEST,
}


def request(**changes):
    values = {
        "id": "r1",
        "prompt_ids": (1, 2),
        "output_ids": (3,),
        "attributes": Attributes(2, "python", frozenset({"short", "safety"})),
        "role": "candidate",
        "latency_s": 0.5,
        "ok": True,
    }
    return TrafficRequest(**(values | changes))


def test_json_round_trip():
    spec = EvaluationSpec(**COMMON, stage=Stage.SHADOW, requests=(request(),))
    again = EvaluationSpec.model_validate_json(spec.model_dump_json())
    assert again == spec
    assert again.requests[0].attributes.tags == {"short", "safety"}


def test_shards_of_one_attempt_share_their_provenance():
    one = EvaluationSpec(**COMMON, stage=Stage.CANARY, step=1, attempt=3, requests=(request(),))
    two = one.model_copy(update={"requests": (request(id="r2"),)})
    assert one.provenance == two.provenance
    assert one.provenance != one.model_copy(update={"attempt": 4}).provenance
    assert one.provenance != one.model_copy(update={"step": 2}).provenance


@pytest.mark.parametrize(
    "given",
    [
        {"stage": "offline_ci"},
        {"stage": "shadow"},
        {"stage": "offline_ci", "requests": ()},
        {"stage": "shadow", "suite": "s.jsonl"},
        {"stage": "offline_ci", "suite": "s.jsonl", "requests": ()},
    ],
)
def test_a_suite_offline_and_requests_live(given):
    with pytest.raises(ValidationError):
        EvaluationSpec(**COMMON, **given)


@pytest.mark.parametrize(
    "change",
    [{"prompt_ids": ()}, {"prompt_ids": (-1,)}, {"latency_s": float("nan")}, {"ttft_s": -1.0}, {"role": "x"}],
)
def test_impossible_requests(change):
    with pytest.raises(ValidationError):
        request(**change)
