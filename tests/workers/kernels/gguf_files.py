"""The tiny checkpoint as a GGUF file, with the padding rows its converters would mark."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

VOCABULARY = 259  # tokens of the tiny tokenizer; the matrix has more rows

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(checkpoint: Path, path: Path, kind: str = "F32") -> Path:
    """Write the checkpoint's weights as F32, F16 or Q8_0; norms are always F32."""
    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(
        {"F32": gguf.LlamaFileType.ALL_F32, "F16": gguf.LlamaFileType.MOSTLY_F16,
         "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}[kind]
    )  # fmt: skip
    _add_tokenizer(writer, checkpoint, config["vocab_size"])
    for name, array in load_file(checkpoint / "model.safetensors").items():
        target, values = _tensor(name, array, config)
        plain = values.ndim == 1 or kind == "F32"
        quantised = gguf.GGMLQuantizationType[("F32" if plain else kind)]
        data = values.astype(np.float32) if plain else gguf.quants.quantize(values, quantised)
        writer.add_tensor(target, data, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, checkpoint: Path, rows: int) -> None:
    known = json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"]
    names = {index: name for name, index in known.items()}
    kinds = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (VOCABULARY - 3)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([names.get(i, f"[PAD{i}]") for i in range(rows)])
    writer.add_token_types([*kinds, *[gguf.TokenType.UNUSED] * (rows - VOCABULARY)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _tensor(name: str, array: np.ndarray, config: dict) -> tuple[str, np.ndarray]:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight", array
    if name == "model.norm.weight":
        return "output_norm.weight", array
    _, _, layer, rest = name.split(".", 3)
    part = _NAMES[rest.removesuffix(".weight")]
    if part in ("attn_q", "attn_k"):
        # Rotary pairs lie side by side in a GGUF, and half a head apart in a checkpoint.
        heads = config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"]
        halves = array.reshape(heads, 2, array.shape[0] // heads // 2, array.shape[1])
        array = halves.swapaxes(1, 2).reshape(array.shape)
    return f"blk.{layer}.{part}.weight", array
