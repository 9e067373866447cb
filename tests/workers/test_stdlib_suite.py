import ast

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from workers import stdlib_suite
from workers.stdlib_suite import LONG, LONG_MOST, SAFETY, Counts, NotEnoughText, build_suite

FEW = Counts(function=6, docstring=3, safety=3, long=2)


WHOLE = stdlib_suite._sources


@pytest.fixture(scope="module", autouse=True)
def part_of_the_library():
    """Enough for these tests, and a tenth of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stdlib_suite, "_sources", lambda: WHOLE()[:150])
        yield


@pytest.fixture(scope="module")
def tokenizer():
    """A token a word or a run of punctuation: lengths as real tokenizers have them."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


@pytest.fixture(scope="module")
def suite(tokenizer, tmp_path_factory):
    return build_suite(tokenizer, tmp_path_factory.mktemp("suite") / "suite.jsonl", FEW)


def tagged(suite, tag):
    return [p for p in suite.prompts if tag in p.tags]


def test_shape(suite, tokenizer):
    assert len(suite.prompts) == 14
    assert {p.language for p in suite.prompts} == {"python"}
    assert len(tagged(suite, "long")) == 2
    assert len(tagged(suite, "short")) == 12
    assert len(tagged(suite, "docstring")) == 3
    assert len(tagged(suite, "safety")) >= 3
    for prompt in suite.prompts:
        n = len(tokenizer.encode(prompt.prompt).ids)
        assert LONG <= n <= LONG_MOST if "long" in prompt.tags else 24 <= n <= 64


def test_tags_say_what_the_text_shows(suite):
    for prompt in suite.prompts:
        assert ("safety" in prompt.tags) == bool(SAFETY.search(prompt.prompt))
    for prompt in tagged(suite, "docstring"):
        head, _, _ = prompt.prompt.partition(":")
        assert "def " in head


def test_the_same_library_gives_the_same_bytes(tokenizer, tmp_path):
    one = build_suite(tokenizer, tmp_path / "one.jsonl", FEW)
    two = build_suite(tokenizer, tmp_path / "two.jsonl", FEW)
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    assert one.digest == two.digest
    assert sorted(file.name for file in tmp_path.iterdir()) == ["one.jsonl", "two.jsonl"]


def test_traffic_shares_no_prompt_with_any_suite(tokenizer, tmp_path):
    many = Counts(function=30, docstring=15, safety=3, long=5)
    suite = build_suite(tokenizer, tmp_path / "suite.jsonl", many)
    traffic = build_suite(tokenizer, tmp_path / "traffic.jsonl", many, pool="traffic")
    assert not {p.prompt for p in suite.prompts} & {p.prompt for p in traffic.prompts}
    assert not {p.id for p in suite.prompts} & {p.id for p in traffic.prompts}


def test_a_smaller_suite_is_part_of_a_larger_one(tokenizer, suite, tmp_path):
    larger = build_suite(tokenizer, tmp_path / "larger.jsonl", Counts(12, 6, 4, 4))
    assert {p.id for p in suite.prompts} < {p.id for p in larger.prompts}


def test_progress_reaches_the_end(tokenizer, tmp_path):
    seen = []
    build_suite(tokenizer, tmp_path / "s.jsonl", FEW, progress=lambda share, what: seen.append(share))
    assert seen == [(i + 1) / 14 for i in range(14)]


def test_too_few_prompts_leave_no_file(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(stdlib_suite, "_sources", lambda: ["def f():\n    return 1\n"])
    with pytest.raises(NotEnoughText, match="'long': 2"):
        build_suite(tokenizer, tmp_path / "s.jsonl", FEW)
    assert list(tmp_path.iterdir()) == []


def test_sources_are_the_librarys_own():
    sources = WHOLE()
    assert len(sources) > 200
    assert len(set(sources)) == len(sources)
    assert all(source.isascii() for source in sources)
    ast.parse(sources[0])
