import hashlib
import json
import struct

import pytest

from app.services.checkpoints import (
    BrokenFile,
    ForeignTokenizer,
    InvalidCheckpoint,
    MissingFile,
    PickledWeights,
    checkpoint_digests,
)


def safetensors(names, payload=b"\0" * 8):
    header = {
        name: {"dtype": "F32", "shape": [2], "data_offsets": [i * 8, i * 8 + 8]}
        for i, name in enumerate(names)
    }
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + payload * len(names)


@pytest.fixture
def checkpoint(tmp_path):
    root = tmp_path / "model"
    root.mkdir()
    write(root, "config.json", {"vocab_size": 8, "bos_token_id": 1, "eos_token_id": [2]})
    write(
        root,
        "tokenizer.json",
        {
            "model": {"vocab": {"a": 0, "b": 3}},
            "added_tokens": [{"id": 1, "content": "<s>"}, {"id": 2, "content": "</s>"}],
        },
    )
    write(root, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": {"content": "</s>"}})
    (root / "model.safetensors").write_bytes(safetensors(["w"]))
    return root


def write(root, name, value):
    (root / name).write_text(json.dumps(value))


def shard(root, weight_map):
    (root / "model.safetensors").unlink()
    write(root, "model.safetensors.index.json", {"weight_map": weight_map})


def test_digests_name_the_content_and_not_the_place(checkpoint, tmp_path):
    digests = checkpoint_digests(checkpoint)
    moved = checkpoint.rename(tmp_path / "elsewhere")
    assert checkpoint_digests(moved) == digests
    assert digests.vocab_size == 8
    assert digests.digest.startswith("sha256:")
    assert digests.chat_template == "sha256:" + hashlib.sha256(b"").hexdigest()


def test_weights_digest_is_over_the_file_digests(checkpoint):
    file = hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()
    canonical = json.dumps({"model.safetensors": file}, separators=(",", ":")).encode()
    assert checkpoint_digests(checkpoint).weights == "sha256:" + hashlib.sha256(canonical).hexdigest()


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("weights", lambda root: (root / "model.safetensors").write_bytes(safetensors(["w"], b"\1" * 8))),
        ("tokenizer", lambda root: write(root, "special_tokens_map.json", {"pad": "a"})),
        ("chat_template", lambda root: (root / "chat_template.jinja").write_text("{{ messages }}")),
        ("config", lambda root: write(root, "config.json", {"vocab_size": 9})),
    ],
)
def test_each_part_has_its_own_digest(checkpoint, part, change):
    before = checkpoint_digests(checkpoint)
    change(checkpoint)
    after = checkpoint_digests(checkpoint)
    parts = ("weights", "tokenizer", "chat_template", "config")
    assert [name for name in parts if getattr(before, name) != getattr(after, name)] == [part]
    assert before.digest != after.digest


def test_order_and_spacing_of_the_config_are_not_its_meaning(checkpoint):
    before = checkpoint_digests(checkpoint)
    (checkpoint / "config.json").write_text('{"eos_token_id": [2],\n "bos_token_id": 1, "vocab_size": 8}\n')
    assert checkpoint_digests(checkpoint) == before


def test_missing_directory(tmp_path):
    with pytest.raises(MissingFile, match="no such checkpoint directory"):
        checkpoint_digests(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
)
def test_missing_files_are_named(checkpoint, name):
    (checkpoint / name).unlink()
    with pytest.raises(MissingFile) as caught:
        checkpoint_digests(checkpoint)
    assert caught.value.file == checkpoint / name


def test_pickled_weights_are_refused(checkpoint):
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    with pytest.raises(PickledWeights, match=r"pytorch_model\.bin: pickled"):
        checkpoint_digests(checkpoint)


def test_shards_are_read_through_their_index(checkpoint):
    shard(checkpoint, {"a": "one.safetensors", "b": "two.safetensors"})
    (checkpoint / "one.safetensors").write_bytes(safetensors(["a"]))
    (checkpoint / "two.safetensors").write_bytes(safetensors(["b"]))
    before = checkpoint_digests(checkpoint)
    (checkpoint / "unrelated.safetensors").write_bytes(b"junk")
    assert checkpoint_digests(checkpoint) == before


def test_missing_shard_is_named(checkpoint):
    shard(checkpoint, {"a": "one.safetensors", "b": "two.safetensors"})
    (checkpoint / "one.safetensors").write_bytes(safetensors(["a"]))
    with pytest.raises(MissingFile) as caught:
        checkpoint_digests(checkpoint)
    assert caught.value.file == checkpoint / "two.safetensors"


def test_shard_without_a_tensor_it_should_hold(checkpoint):
    shard(checkpoint, {"a": "one.safetensors", "b": "one.safetensors"})
    (checkpoint / "one.safetensors").write_bytes(safetensors(["a"]))
    with pytest.raises(BrokenFile, match="lacks tensor 'b'"):
        checkpoint_digests(checkpoint)


@pytest.mark.parametrize("name", ["../model.safetensors", "one.bin", 7])
def test_an_index_names_safetensors_beside_it_only(checkpoint, name):
    shard(checkpoint, {"a": name})
    with pytest.raises(BrokenFile, match="not a safetensors file beside it"):
        checkpoint_digests(checkpoint)


@pytest.mark.parametrize("keep", [0, 4, 20, -1])
def test_truncated_weights(checkpoint, keep):
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(BrokenFile) as caught:
        checkpoint_digests(checkpoint)
    assert caught.value.file == file


@pytest.mark.parametrize(
    "content", [b"\xff" * 64, struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 3) + b"[1]"]
)
def test_weights_that_are_not_safetensors(checkpoint, content):
    (checkpoint / "model.safetensors").write_bytes(content)
    with pytest.raises(BrokenFile):
        checkpoint_digests(checkpoint)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe"])
def test_broken_json(checkpoint, name, content):
    (checkpoint / name).write_bytes(content)
    with pytest.raises(BrokenFile) as caught:
        checkpoint_digests(checkpoint)
    assert caught.value.file == checkpoint / name


@pytest.mark.parametrize("size", [None, 0, -1, "8", True])
def test_vocabulary_size_must_be_given(checkpoint, size):
    write(checkpoint, "config.json", {"vocab_size": size})
    with pytest.raises(BrokenFile, match="vocab_size must be"):
        checkpoint_digests(checkpoint)


def test_nested_text_config(checkpoint):
    write(checkpoint, "config.json", {"text_config": {"vocab_size": 8}})
    assert checkpoint_digests(checkpoint).vocab_size == 8


def test_tokenizer_with_ids_beyond_the_vocabulary(checkpoint):
    write(checkpoint, "config.json", {"vocab_size": 3})
    with pytest.raises(ForeignTokenizer, match="token 'b' has id 3, but config"):
        checkpoint_digests(checkpoint)


@pytest.mark.parametrize("special", [{"bos_token_id": 2}, {"eos_token_id": [0, 3]}])
def test_tokenizer_with_other_special_tokens(checkpoint, special):
    write(checkpoint, "config.json", {"vocab_size": 8, "bos_token_id": 1, "eos_token_id": 2} | special)
    with pytest.raises(ForeignTokenizer, match="not the checkpoint's tokenizer"):
        checkpoint_digests(checkpoint)


def test_generation_config_may_add_end_tokens(checkpoint):
    write(checkpoint, "config.json", {"vocab_size": 8, "eos_token_id": 3})
    write(checkpoint, "generation_config.json", {"eos_token_id": [2, 3]})
    assert checkpoint_digests(checkpoint)


def test_unigram_vocabulary(checkpoint):
    write(checkpoint, "tokenizer.json", {"model": {"vocab": [["a", 0.0], ["<s>", 0.0], ["</s>", -1.0]]}})
    assert checkpoint_digests(checkpoint)


@pytest.mark.parametrize(
    "tokenizer", [{}, {"model": {"vocab": {}}}, {"model": {"vocab": {"a": "0"}}}, {"model": {"vocab": [3]}}]
)
def test_unreadable_vocabulary(checkpoint, tokenizer):
    write(checkpoint, "tokenizer.json", tokenizer)
    with pytest.raises(InvalidCheckpoint) as caught:
        checkpoint_digests(checkpoint)
    assert caught.value.file == checkpoint / "tokenizer.json"
