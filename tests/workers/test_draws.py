import hashlib

import pytest

from app.services.specs import TrafficRequest
from app.services.suites import Suite, SuitePrompt
from contracts.slices import Attributes
from workers.draws import InvalidEvaluation, seed_of, suite_draws, traffic_draws
from workers.tokens import BadTokenizer


def suite(*prompts):
    return Suite(prompts=tuple(SuitePrompt(**prompt) for prompt in prompts))


def test_text_is_tokenised_and_described(tiny_checkpoint):
    given = suite(
        {"id": "a", "prompt": "def f", "tags": ("short", "safety"), "language": "python"},
        {"id": "b", "token_ids": (1, 5, 258)},
    )
    text, ids = suite_draws(given, tiny_checkpoint, new_tokens=3)
    assert text.attributes == Attributes(5, "python", frozenset({"short", "safety"}))
    assert ids.attributes == Attributes(3, None, frozenset())
    assert ids.request.prompt_ids == (1, 5, 258)
    assert ids.request.output_ids is None
    assert text.request.max_new_tokens == 3


def test_seeds_hang_on_the_prompts_own_id_only():
    digest = hashlib.sha256(b"a").hexdigest()
    assert seed_of("a") == int(digest[:16], 16) >> 1
    assert seed_of("a") != seed_of("b")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (
            {"token_ids": (1, 259)},
            "'x', position 1: token id 259 is outside the checkpoint's vocabulary of 259",
        ),
        ({"token_ids": (1,) * 505}, "has 505 tokens; the model's context leaves room for 504"),
    ],
)
def test_what_the_model_cannot_take_is_refused(tiny_checkpoint, prompt, message):
    with pytest.raises(InvalidEvaluation) as caught:
        suite_draws(suite({"id": "x", **prompt}), tiny_checkpoint, new_tokens=8)
    assert message in str(caught.value)


def test_a_broken_tokenizer_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadTokenizer, match=r"tokenizer\.json"):
        suite_draws(suite({"id": "x", "prompt": "y"}), tmp_path)


def served(name, **changes):
    values = {
        "id": name,
        "prompt_ids": (1, 2),
        "output_ids": (3, 4),
        "attributes": Attributes(2),
        "role": "candidate",
        "ok": True,
        "dual": True,
    }
    return TrafficRequest(**(values | changes))


def test_only_the_candidates_dual_answers_are_drawn():
    draws = traffic_draws(
        [
            served("a"),
            served("b", role="mirror"),
            served("b", role="baseline"),
            served("c", dual=False),
            served("d", ok=False, output_ids=()),
        ]
    )
    assert [draw.request.id for draw in draws] == ["a", "b"]
    assert draws[0].request.output_ids == (3, 4)


def test_a_request_counts_once():
    with pytest.raises(InvalidEvaluation, match="'a' was given twice"):
        traffic_draws([served("a"), served("a", role="mirror")])


def test_ids_beside_the_text_pin_it(tiny_checkpoint):
    pinned = {"id": "x", "prompt": "ab", "token_ids": [100, 101], "tokenizer_digest": "sha256:0"}
    (text,) = suite_draws(suite({"id": "x", "prompt": "ab"}), tiny_checkpoint)
    pinned["token_ids"] = list(text.request.prompt_ids)
    (draw,) = suite_draws(suite(pinned), tiny_checkpoint)
    assert draw.request == text.request
    pinned["token_ids"] = [1, *text.request.prompt_ids]
    with pytest.raises(InvalidEvaluation, match=r"prompt 'x', position 0: the tokenizer makes other ids"):
        suite_draws(suite(pinned), tiny_checkpoint)
    pinned["token_ids"] = list(text.request.prompt_ids)[:1]
    with pytest.raises(InvalidEvaluation, match="position the end"):
        suite_draws(suite(pinned), tiny_checkpoint)


def test_what_an_answer_is_graded_by(tiny_checkpoint):
    line = {"id": "x", "prompt": "ab", "reference": "42", "tests": "assert x", "max_new_tokens": 3}
    (draw,) = suite_draws(suite(line), tiny_checkpoint)
    assert (draw.task.reference, draw.task.tests, draw.request.max_new_tokens) == ("42", "assert x", 3)
