"""A checkpoint small enough to make afresh: a random Llama with a byte-level tokenizer."""

import json
from pathlib import Path

import pytest

VOCAB = 320
SPECIAL = {"<unk>": 0, "<bos>": 1, "<eos>": 2}


def write_tokenizer(directory: Path) -> None:
    """A byte-level tokenizer of 259 tokens: three special ones, then one a byte."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = SPECIAL | {char: index for index, char in enumerate(alphabet, start=len(SPECIAL))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def write_checkpoint(directory: Path, seed: int = 0) -> Path:
    """Two layers, 32 channels, four heads on two key-value heads, 320 tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        # Large enough that the distributions are far from uniform.
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(directory)
    write_tokenizer(directory)
    return directory


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory) -> Path:
    """Directory of a complete checkpoint; read only."""
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "tiny")
