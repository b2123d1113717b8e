"""Folders of models with random weights, as Hugging Face's libraries save them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any, Callable, Dict, List

WORDS = 4000
"""Words that the tokenizer knows: w0 to w3999."""
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>"]
_CHAT = (
    "{% for message in messages %}<s> {{ message['role'] }} {{ message['content'] }} </s>{% endfor %}"
    "{% if add_generation_prompt %}<s> assistant {% endif %}"
)


def _tokenizer(folder: Path, length: int = 1024) -> None:
    """A word is a token: w0 to w3999, the letters, the roles of a talk."""
    tokenizers: Any = importlib.import_module("tokenizers")
    transformers: Any = importlib.import_module("transformers")
    others = [*"abcdefghijklmnopqrstuvwxyz", "|", "user", "assistant", "system"]
    names = [*_SPECIAL, *others, *(f"w{number}" for number in range(WORDS))]
    vocabulary = {name: number for number, name in enumerate(names)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=length,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        bos_token="<s>",
        eos_token="</s>",
    )
    fast.chat_template = _CHAT
    fast.save_pretrained(str(folder))


def _model(name: str, config: str, sizes: Dict[str, Any]) -> Callable[[Path], None]:
    """A recipe: a folder with a model of random weights, its configuration and its tokenizer."""

    def make(folder: Path) -> None:
        transformers: Any = importlib.import_module("transformers")
        torch: Any = importlib.import_module("torch")
        torch.manual_seed(0)
        made = getattr(transformers, config)(**sizes)
        getattr(transformers, name)(made).save_pretrained(str(folder))
        _tokenizer(folder)

    return make


def _with_processor(base: Callable[[Path], None], name: str, **sizes: Any) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        base(folder)
        transformers: Any = importlib.import_module("transformers")
        getattr(transformers, name)(**sizes).save_pretrained(str(folder))

    return make


def stable_diffusion(folder: Path) -> None:
    """A small Stable Diffusion: unet, vae, text_encoder, tokenizer, scheduler, each with random weights."""
    diffusers: Any = importlib.import_module("diffusers")
    transformers: Any = importlib.import_module("transformers")
    wide: List[int] = [128, 256, 512, 512]
    down = ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"]
    up = ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3
    unet = diffusers.UNet2DConditionModel(
        sample_size=32,
        block_out_channels=wide,
        down_block_types=down,
        up_block_types=up,
        cross_attention_dim=512,
    )
    kinds = {"down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}
    vae = diffusers.AutoencoderKL(block_out_channels=[64, 128, 256, 256], latent_channels=4, **kinds)
    text = transformers.CLIPTextModel(
        transformers.CLIPTextConfig(
            vocab_size=49408,
            hidden_size=512,
            intermediate_size=2048,
            num_hidden_layers=6,
            num_attention_heads=8,
        )
    )
    for part, made in (("unet", unet), ("vae", vae), ("text_encoder", text)):
        made.save_pretrained(str(folder / part))
    diffusers.DDPMScheduler(beta_schedule="scaled_linear").save_pretrained(str(folder / "scheduler"))
    _clip_tokenizer(folder / "tokenizer")
    classes = {
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "scheduler": ["diffusers", "DDPMScheduler"],
        "safety_checker": [None, None],
        "feature_extractor": [None, None],
    }
    index = {"_class_name": "StableDiffusionPipeline", "requires_safety_checker": False, **classes}
    (folder / "model_index.json").write_text(json.dumps(index))


def _clip_tokenizer(folder: Path) -> None:
    """CLIP's files with letters for tokens and no merges."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789"]
    names = [*letters, *(f"{one}</w>" for one in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "pad_token": "<|endoftext|>"}
    ends = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **ends}))


_IMAGE = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 6}
_TEXT = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 8}
_LLAMA = {**_TEXT, "num_hidden_layers": 8, "num_key_value_heads": 4, "vocab_size": 32000, "pad_token_id": 0}
_T5 = {"d_model": 512, "d_ff": 1024, "d_kv": 64, "num_layers": 4, "num_heads": 8, "vocab_size": 32128}
_SPEECH = {
    "d_model": 384,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
    "vocab_size": 8192,
    "max_source_positions": 1500,
    "pad_token_id": 0,
    "bos_token_id": 5,
    "eos_token_id": 6,
    "decoder_start_token_id": 5,
}

MODEL_RECIPES: Dict[str, Callable[[Path], None]] = {
    "gpt2-folder": _model("GPT2LMHeadModel", "GPT2Config", {"n_embd": 512, "n_layer": 8, "n_head": 8}),
    "llama-folder": _model("LlamaForCausalLM", "LlamaConfig", _LLAMA),
    "reward-folder": _model("LlamaForSequenceClassification", "LlamaConfig", {**_LLAMA, "num_labels": 1}),
    "bert-folder": _model("BertForMaskedLM", "BertConfig", {**_TEXT, "vocab_size": 30522}),
    "t5-folder": _model("T5ForConditionalGeneration", "T5Config", {**_T5, "decoder_start_token_id": 0}),
    "vit-folder": _with_processor(_model("ViTModel", "ViTConfig", _IMAGE), "ViTImageProcessor"),
    "wav2vec2-folder": _with_processor(
        _model(
            "Wav2Vec2ForPreTraining",
            "Wav2Vec2Config",
            {**_IMAGE, "do_stable_layer_norm": True, "feat_extract_norm": "layer"},
        ),
        "Wav2Vec2FeatureExtractor",
        return_attention_mask=True,
    ),
    "whisper-folder": _with_processor(
        _model("WhisperForConditionalGeneration", "WhisperConfig", _SPEECH), "WhisperFeatureExtractor"
    ),
    "stable-diffusion": stable_diffusion,
}
