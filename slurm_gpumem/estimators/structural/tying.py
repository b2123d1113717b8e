"""Whether a language model's output layer uses its embedding's weights again: no text shows it.

torchinfo counts such weights twice, with a row for each use. What a class of transformers does follows from
`tie_word_embeddings` in its configuration; the lists are those of transformers 5.17.
"""

from __future__ import annotations

import re
from typing import Tuple

_CAUSAL = "ForCausalLM"
# Causal models that tie by default. Most that came after 2023 do not; a class that is
# not known is taken for one of those.
_TIED_CAUSAL = re.compile(
    r"^(?:Bart|BigBird|BigBirdPegasus|BioGpt|Blenderbot|BlenderbotSmall|Bloom|Camembert|Cohere|Cohere2|Cohere2Moe"
    r"|CohereCompass|CpmAnt|Data2VecText|Electra|Ernie|Ernie4_5|Ernie4_5_Moe|Falcon|FalconMamba|GPTBigCode|GPTNeo"
    r"|GPTNeoXJapanese|(?:Vault|Recurrent)?Gemma\w*|GraniteSWA|JetMoe|Lfm2|Lfm2Moe|MBart|Mamba|Marian"
    r"|MegatronBert|MiniCPM3|ModernBertDecoder|Mpt|Mvp|OPT|PLBart|Pegasus|ProphetNet|RoCBert|RoFormer|Roberta"
    r"|RobertaPreLayerNorm|SmolLM3|Starcoder2|TrOCR|Whisper|XGLM|XLMRoberta|XLMRobertaXL|Xmod|Youtu|Zamba|Zamba2"
    r"|Zaya)ForCausalLM$"
)
# Other models with an output layer tie, except these.
_TIED = re.compile(r"LMHead|ForMaskedLM|ForConditionalGeneration|MTModel|DoubleHeads|ForPreTraining")
_TIED_DECODER = "BertGenerationDecoder"
_UNTIED = re.compile(
    r"^(?:Aria|AudioFlamingo3|Chameleon|Cohere(?:Asr|Compass)|Cosmos3|DeepseekOcr|Emu3|Esmc|EuroBert|Exaone|FSMT"
    r"|FastVlm|Glm(?:4|5|Ocr)|Granite4Vision|Idefics|Kyutai|Llama4|Llava|MiniCPM|MiniMax|Mllama|ModernVBert"
    r"|MoonshineStreaming|MuseGlimmer|MusicFlamingo|PPFormula|PerceptionLM|Pix2Struct|Qianfan|Qwen\d|Qwen2Audio"
    r"|Reformer|RemBert|SmolVLM|Step3|VibeVoice|VideoLla|VipLlava|Voxtral(?!Real))"
)
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
        return _CAUSAL in model or bool(_TIED.search(model))
    if model.endswith(_CAUSAL):
        return bool(_TIED_CAUSAL.match(model))
    return model == _TIED_DECODER or (bool(_TIED.search(model)) and not _UNTIED.search(model))
