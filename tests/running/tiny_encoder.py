"""A BERT of random weights with a vocabulary of words and pieces, saved as the hub's are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

PIECES = ("br", "##ight", "du", "##ll", "wa", "##rm", "fun", "##ny")


def save_tiny_bert(folder: Path, words: Sequence[str] = (), layers: int = 3, size: int = 8) -> Path:
    """The folder, with model and tokeniser; words that are not among ``words`` are put together
    from letters.
    """
    import tokenizers
    import torch

    import transformers

    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words, *PIECES, ".", ",", "!", *letters]
    pieces = list(dict.fromkeys([*pieces, *(f"##{letter}" for letter in letters)]))
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({piece: k for k, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    config = transformers.BertConfig(
        vocab_size=len(pieces),
        hidden_size=size,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=size,
        max_position_embeddings=48,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.BertModel(config).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(
        folder
    )
    return folder
