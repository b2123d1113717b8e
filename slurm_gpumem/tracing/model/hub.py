"""Models of timm and transformers by name, from the installed packages: nothing is ever downloaded."""

from __future__ import annotations

import difflib
import importlib
import json
import os
from typing import Any, Dict, List, Mapping, Tuple

from slurm_gpumem.errors import TargetError
from slurm_gpumem.tracing.user_line import own_words

_HEADS = (
    # (name for --head, transformers' table), tried in this order if no head is given.
    ("seq2seq-lm", "SEQ_TO_SEQ_CAUSAL_LM"),
    ("speech-seq2seq", "SPEECH_SEQ_2_SEQ"),
    ("sequence-classification", "SEQUENCE_CLASSIFICATION"),
    ("masked-lm", "MASKED_LM"),
    ("causal-lm", "CAUSAL_LM"),
    ("image-classification", "IMAGE_CLASSIFICATION"),
    ("audio-classification", "AUDIO_CLASSIFICATION"),
    ("video-classification", "VIDEO_CLASSIFICATION"),
    ("semantic-segmentation", "SEMANTIC_SEGMENTATION"),
    ("token-classification", "TOKEN_CLASSIFICATION"),
    ("question-answering", "QUESTION_ANSWERING"),
    ("ctc", "CTC"),
    ("pretraining", "PRETRAINING"),
    ("base", ""),
)


def build_timm(name: str, arguments: Mapping[str, Any]) -> Any:
    """A timm model with fresh weights."""
    timm = _library("timm", f"timm:{name}")
    plain = name.split("/")[-1]
    if plain.split(".")[0] not in timm.list_models():
        near = difflib.get_close_matches(plain, timm.list_models(), n=3, cutoff=0.5)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise TargetError(f"timm {timm.__version__} has no model {plain!r}{hint}")
    return timm.create_model(plain, pretrained=False, **arguments)


def timm_input(model: Any) -> Tuple[int, ...]:
    """The shape of one sample that the model was made for; empty if timm does not say."""
    settings = getattr(model, "pretrained_cfg", None) or {}
    size = settings.get("input_size") or ()
    image = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if image and size:
        return (size[0], *image)
    return tuple(size)


def build_hugging_face(place: str, arguments: Mapping[str, Any], head: str) -> Tuple[Any, str]:
    """A transformers model with fresh weights, and how it was chosen ("" if it was named)."""
    transformers = _library("transformers", f"hf:{place}")
    named = getattr(transformers, place, None) if place.isidentifier() else None
    if named is not None and hasattr(named, "config_class") and named.config_class is not None:
        config = _configured(lambda: named.config_class(**arguments), place)
        return named(_startable(config)), ""
    if named is not None and hasattr(named, "model_type"):
        config = _configured(lambda: named(**arguments), place)
        architectures: List[str] = []
    elif place.endswith(".json"):
        config, architectures = _from_file(place, arguments)
    else:
        config, architectures = _by_name(transformers, place, arguments)
    kind, said = _architecture(transformers, config, architectures, head)
    return kind(_startable(config)), said


def _startable(config: Any) -> Any:
    """Which token a decoder starts with does not affect memory, but it must be set."""
    if getattr(config, "is_encoder_decoder", False):
        for name in ("decoder_start_token_id", "pad_token_id"):
            if getattr(config, name, None) is None:
                setattr(config, name, 0)
    return config


def _configured(make: Any, place: str) -> Any:
    try:
        return make()
    except (TypeError, ValueError, KeyError) as error:
        raise TargetError(f"hf:{place}: its configuration refuses --set: {own_words(error)}") from None


def _from_file(path: str, arguments: Mapping[str, Any]) -> Tuple[Any, List[str]]:
    name = os.path.basename(path)
    try:
        with open(path, encoding="utf-8") as file:
            content: Dict[str, Any] = json.load(file)
        kind = content["model_type"]
    except (OSError, ValueError) as error:
        raise TargetError(f"{name}: cannot be read as JSON: {error}") from None
    except (KeyError, TypeError):
        raise TargetError(
            f"{name}: is not a Hugging Face configuration: it has no model_type.\n"
            "A summary (gpumem summarize ... -o) is read by gpumem fit, why and estimate."
        ) from None
    mapping = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    if kind not in mapping:
        raise TargetError(
            f"{name}: model_type {kind!r} is not in the installed transformers; "
            "a newer one may have it, and code of its own (auto_map) is not run"
        )
    config = _configured(lambda: mapping[kind].from_dict({**content, **arguments}), name)
    return config, [str(one) for one in content.get("architectures") or []]


def _by_name(transformers: Any, place: str, arguments: Mapping[str, Any]) -> Tuple[Any, List[str]]:
    """A model type ("bert"), or a name on the hub whose configuration is in the local cache."""
    auto = importlib.import_module("transformers.models.auto.configuration_auto")
    kind = place.lower().replace("_", "-")
    types = {name.replace("_", "-"): name for name in auto.CONFIG_MAPPING_NAMES}
    if kind in types:
        return _configured(lambda: auto.CONFIG_MAPPING[types[kind]](**arguments), place), []
    try:
        config = transformers.AutoConfig.from_pretrained(place, local_files_only=True, **arguments)
    except (OSError, ValueError, KeyError):
        raise TargetError(_unknown(transformers, place, list(types))) from None
    return config, list(config.architectures or [])


def _unknown(transformers: Any, place: str, types: List[str]) -> str:
    plain = place.split("/")[-1].lower()
    holders = [t for t in types if len(t) > 2 and plain.startswith(t)]
    near = [max(holders, key=len)] if holders else difflib.get_close_matches(plain, types, n=3, cutoff=0.6)
    classes = difflib.get_close_matches(place, dir(transformers), n=2, cutoff=0.7)
    offer = ", ".join(f"hf:{name}" for name in [*classes, *near])
    return (
        f"hf:{place}: not in the local Hugging Face cache, and nothing is downloaded.\n"
        + (f"From the installed transformers {transformers.__version__}: {offer} (default sizes; others with "
           "--set hidden_size=1024 ...),\n" if offer else "")
        + "or give its config.json: gpumem summarize path/to/config.json"
    )  # fmt: skip


def _architecture(transformers: Any, config: Any, named: List[str], head: str) -> Tuple[Any, str]:
    """The model class for a configuration: as requested, as its file says, or the usual one."""
    tables = importlib.import_module("transformers.models.auto.modeling_auto")
    known = dict(_HEADS)
    if head and head not in known:
        raise TargetError(f"--head {head}: known are {', '.join(known)}")
    if not head:
        for name in named:
            if hasattr(transformers, name):
                return getattr(transformers, name), ""
    available = {}
    for title, table in _HEADS:
        names = getattr(tables, f"MODEL_FOR_{table}_MAPPING_NAMES" if table else "MODEL_MAPPING_NAMES", {})
        found = names.get(config.model_type)
        found = found[0] if isinstance(found, (tuple, list)) and found else found
        if found and hasattr(transformers, found):
            available[title] = found
    if head and head not in available:
        raise TargetError(
            f"{config.model_type} has no head {head!r}; it has: {', '.join(available) or 'none'}"
        )
    if not available:
        raise TargetError(
            f"transformers has no model for {config.model_type!r}; name its class, as hf:BertModel"
        )
    # Encoders are mostly fine-tuned, decoders mostly trained on the next token.
    others = ("masked-lm", "seq2seq-lm", "speech-seq2seq", "image-classification")
    decoder = "causal-lm" in available and not any(title in available for title in others)
    chosen = head or ("causal-lm" if decoder else next(iter(available)))
    rest = ", ".join(title for title in available if title != chosen)
    said = (
        ""
        if head
        else f"head {chosen} ({available[chosen]}) was chosen"
        + (f"; others by --head: {rest}" if rest else "")
    )
    return getattr(transformers, available[chosen]), said


def _library(name: str, label: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name == name:
            raise TargetError(f"{label}: {name} is not installed here; pip install {name}") from None
        raise TargetError(f"{label}: {name} cannot be imported: {own_words(error)}") from None
