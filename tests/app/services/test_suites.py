import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.services.suites import InvalidSuite, read_suite

A = "sha256:" + "a" * 64
B = "sha256:" + "b" * 64


def problems(tmp_path, content, **kwargs):
    file = tmp_path / "suite.jsonl"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidSuite) as caught:
        read_suite(file, **kwargs)
    assert all(str(p).startswith(str(file)) for p in caught.value.problems)
    return [(p.line, p.message) for p in caught.value.problems]


def lines(*values):
    return "".join(json.dumps(value) + "\n" for value in values)


def test_reads_text_and_token_ids(tmp_path):
    file = tmp_path / "suite.jsonl"
    file.write_text(
        lines(
            {"id": "a", "prompt": "def f():", "tags": ["short"], "language": "python"},
            {"id": "b", "token_ids": [0, 5], "tokenizer_digest": A},
        )
        + "\n"
    )
    suite = read_suite(file, A)
    assert [p.id for p in suite.prompts] == ["a", "b"]
    assert suite.prompts[0].tags == ("short",)
    assert suite.prompts[1].token_ids == (0, 5)
    assert suite.tokenizer_digest == A


def test_digest_is_of_the_meaning(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text('{"id": "a", "prompt": "x", "tags": []}\n{"id":"b","prompt":"y"}')
    two.write_bytes(
        b'\xef\xbb\xbf{"prompt":"x","id":"a"}\r\n\n{"prompt" : "y", "id":"b", "language": ""}\r\n'
    )
    assert read_suite(one).digest == read_suite(two).digest
    two.write_text('{"id":"b","prompt":"y"}\n{"id":"a","prompt":"x"}\n')
    assert read_suite(one).digest != read_suite(two).digest


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5, unique=True))
def test_every_text_survives(tmp_path_factory, texts):
    file = tmp_path_factory.mktemp("suite") / "s.jsonl"
    texts = [text for text in texts if text.isprintable()] or ["x"]
    file.write_text(lines(*({"id": f"p{i}", "prompt": text} for i, text in enumerate(texts))))
    assert [p.prompt for p in read_suite(file).prompts] == texts


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"id": "a", "id": "b", "prompt": "x"}', "key 'id' is given twice"),
        ('{"prompt": "x"}', "id: Field required"),
        ('{"id": "", "prompt": "x"}', "id: String should have at least 1 character"),
        ('{"id": 7, "prompt": "x"}', "id: Input should be a valid string"),
        ('{"id": "a"}', "has prompt, token_ids or both"),
        ('{"id": "a", "prompt": "x", "token_ids": [1]}', "need tokenizer_digest"),
        ('{"id": "a", "prompt": ""}', "prompt: String should have at least 1 character"),
        ('{"id": "a", "prompt": 3}', "prompt: Input should be a valid string"),
        ('{"id": "a", "prompt": "\\ud800"}', "prompt: Input should be a valid string"),
        ('{"id": "a", "token_ids": []}', "token_ids: Tuple should have at least 1 item"),
        ('{"id": "a", "token_ids": [-1]}', "token_ids.0: Input should be greater than or equal to 0"),
        ('{"id": "a", "token_ids": [1.0]}', "token_ids.0: Input should be a valid integer"),
        ('{"id": "a", "token_ids": [true]}', "token_ids.0: Input should be a valid integer"),
        ('{"id": "a", "prompt": "x", "tags": "short"}', "tags: Input should be a valid tuple"),
        ('{"id": "a", "prompt": "x", "tags": [1]}', "tags.0: Input should be a valid string"),
        ('{"id": "a", "prompt": "x", "tag": ["s"]}', "unknown key 'tag'; did you mean 'tags'?"),
        ('{"id": "a", "prompt": "x", "tokenizer_digest": "sha256:0"}', "belongs to token_ids"),
    ],
)
def test_bad_lines_are_refused_with_their_number(tmp_path, line, message):
    ((number, text),) = problems(tmp_path, '{"id": "ok", "prompt": "x"}\n\n' + line)
    assert number == 3
    assert message in text


def test_all_problems_at_once(tmp_path):
    twice = lines({"id": "a", "prompt": "x"}, {"id": "a", "prompt": "y"})
    found = problems(tmp_path, "{\n" + twice + "nonsense\n")
    assert [number for number, _ in found] == [1, 3, 4]
    assert found[1][1] == "id 'a' is already used on line 2"


def test_long_lists_of_problems_are_counted(tmp_path):
    file = tmp_path / "suite.jsonl"
    file.write_text("{\n" * 30)
    with pytest.raises(InvalidSuite, match="and 10 more"):
        read_suite(file)


def test_bytes_that_are_not_utf8(tmp_path):
    assert problems(tmp_path, b'{"id": "\xff", "prompt": "x"}\n') == [(1, "not UTF-8 at byte 8")]


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_suite_is_refused(tmp_path, content):
    assert problems(tmp_path, content) == [(0, "the suite is empty: it has no prompt")]


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidSuite, match="cannot be read: No such file"):
        read_suite(tmp_path / "none.jsonl")


def test_token_ids_of_another_tokenizer(tmp_path):
    line = lines({"id": "a", "token_ids": [1], "tokenizer_digest": A})
    assert problems(tmp_path, line, tokenizer_digest=B) == [(1, f"token ids of tokenizer {A}, expected {B}")]


def test_one_suite_has_one_tokenizer(tmp_path):
    both = lines(*({"id": d[-1], "token_ids": [1], "tokenizer_digest": d} for d in (A, B)))
    assert problems(tmp_path, both) == [(2, f"token ids of tokenizer {B}, expected {A}")]
