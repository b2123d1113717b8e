"""Whether a language model's output layer uses its embedding's weights again: no text shows it.

torchinfo counts such weights twice, with a row for each use. What a class of transformers does follows from
`tie_word_embeddings` in its configuration; the lists are those of transformers 5.17.
"""

from __future__ import annotations

from typing import Tuple

from slurm_gpumem.estimators.structural.layers.kinds import named

_CAUSAL = "ForCausalLM"
_TIED_DECODER = "BertGenerationDecoder"
# Published models whose configuration differs from their class's default, by class and vocabulary: small
# ones, whose embedding would be a large part of the model (Llama 3.2, SmolLM, Qwen 1.5 to 3, Granite 3).
_PUBLISHED: Tuple[Tuple[str, Tuple[int, ...]], ...] = (
    ("Llama", (128_256, 49_152)),
    ("Qwen", (151_936,)),
    ("Granite", (49_155, 49_156, 49_159)),
)
_SMALL_WIDTH = 3072


def ties_output(model: str, width: int, vocabulary: int) -> bool:
    """Whether a model of this class and size uses its embedding's weights again as its output layer."""
    if width <= _SMALL_WIDTH and any(
        model.startswith(start) and vocabulary in sizes for start, sizes in _PUBLISHED
    ):
        return _CAUSAL in model or named("tied", model)
    if model.endswith(_CAUSAL):
        return named("tied-causal", model)
    return model == _TIED_DECODER or (named("tied", model) and not named("untied", model))
