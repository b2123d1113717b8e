"""The family of a layer, from its class name alone."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Sequence, Tuple

# The first match decides, so special names come before general ones.
_FAMILIES: Tuple[Tuple[str, str], ...] = (
    (
        "identity",
        r"^Identity$|^InputLayer$|^Reshape$|^Flatten$|^Unflatten$|^Permute$|^Rearrange$|^Lambda$|^Quant",
    ),
    ("drop_path", r"DropPath|StochasticDepth|DropBlock"),
    ("dropout", r"Dropout|^Drop$"),
    ("mha", r"^MultiheadAttention$|^MultiHeadAttention$"),
    ("rnn", r"^(?:LSTM|GRU|RNN)$"),
    ("rnn_cell", r"^(?:LSTM|GRU|RNN)Cell$"),
    ("embedding_bag", r"^EmbeddingBag$"),
    ("rotary", r"Rotary|RotEmb"),
    ("embedding", r"^Embedding$|WordEmbedding$|ScaledWordEmbedding$|(?:Positional|Position)Embedding$"),
    ("conv_transpose", r"^(?:Lazy)?ConvTranspose\dd$|^Conv\dDTranspose$"),
    ("linear", r"^(?:Lazy)?Linear$|QuantizableLinear$|^Conv1D$|^Dense$|^Bilinear$|^\w*LoraLinear$"),
    ("conv", r"^DepthwiseConv2D$|^SeparableConv2D$|^Conv3D(?:Simple|NoTemporal)$"),
    (
        "conv",
        r"^(?:Lazy|Scaled)?(?:Std|WS|Mixed|Cond)?Conv[123][dD](?:Same|Pad)?$|^StdConv\w*$|^Conv2dSame$|^ScaledStdConv\w*$",
    ),
    ("response_norm", r"GRN$|GlobalResponseNorm"),
    ("batch_norm_act", r"BatchNormAct\w*$|BatchNormReLU"),
    ("frozen_norm", r"FrozenBatchNorm"),
    ("batch_norm", r"BatchNorm\w*$"),
    ("instance_norm", r"InstanceNorm"),
    ("evo_norm", r"^EvoNorm2dS"),
    ("group_norm_act", r"GroupNormAct|GroupNorm1Act|EvoNorm|FilterResponseNorm"),
    ("group_norm", r"GroupNorm(?!Conv)"),
    ("rms_norm", r"RMSNorm|RmsNorm|T5LayerNorm|LayerNormSimple|SimpleNorm"),
    ("layer_norm", r"LayerNorm(?!Conv)\w*$|LocalResponseNorm"),
    ("layer_scale", r"^LayerScale|LayerScale2d$|^Scale$"),
    ("affine", r"^Affine$"),
    ("hard", r"^ReLU6$|^Hardswish$|^HardSwish\w*$|^Hardsigmoid$|^HardSigmoid\w*$|^Hardtanh$"),
    ("relu", r"^ReLU$|^LeakyReLU$|^Threshold$|^RReLU$|^ReLUActivation$|^Activation$"),
    (
        "composed_act",
        r"NewGELU|ErfGELU|StarReLU|FastGELU|^QuickGELU|AccurateGELU|ClippedGELU|ReLUSquared|GeluTanh$",
    ),
    ("softmax", r"^(?:Log)?Softmax(?:2d)?$"),
    ("output_act", r"^Tanh$|^Sigmoid$|^Softsign$|^ELU$|^CELU$|^SELU$|SigmoidActivation$|TanhActivation$"),
    (
        "input_act",
        r"GELU|Gelu|SiLU|Swish|Mish|PReLU|Softplus|ELU|LogSigmoid|Tanhshrink|Hardshrink|^GLU$|^(?:(?!Conv|Norm|Bn|BN)\w)*Act(?:ivation)?$",
    ),
    ("max_pool", r"MaxPool|^MaxPooling"),
    (
        "global_pool",
        r"GlobalAveragePool|GlobalAvgPool|SelectAdaptivePool|FastAdaptiveAvgPool|^AdaptiveAvgPool",
    ),
    ("avg_pool", r"AvgPool|AveragePool|LPPool|BlurPool"),
    (
        "upsample",
        r"Upsample|UpSampling|Upsampling|PixelShuffle|PixelUnshuffle|Pad\dd$|^ZeroPadding|^Fold$|^Unfold$|ChannelShuffle",
    ),
    ("merge_add", r"^Add$|^FloatFunctional$"),
    ("merge_cat", r"^Concatenate$"),
    ("merge_mul", r"^Multiply$"),
)
_COMPILED = tuple((family, re.compile(pattern)) for family, pattern in _FAMILIES)

_ATTENTION = re.compile(r"[Aa]ttention|[Aa]ttn|^MHA|MHSA")
_PLAIN = re.compile(
    r"^Sequential$|^ModuleList$|^ModuleDict$|Stage$|Encoder$|Decoder$|Model$|Embeddings?$|Transform$|^Conv\w*(?:Norm|BN|Bn)\w*$"
)
_BRANCHES = re.compile(r"^RepV(?!i[tT])|^RepConv|^RepDw|^Rep(?:Vgg|VGG)|MobileOne|ReparamLarge")
_GATE = re.compile(r"Squeeze|^SE|Excit|Effective|Eca|^GlobalContext")
_WRITTEN_OUT = re.compile(r"T5Attention|^BigBirdSelf|^Funnel|^XLNet|^Deberta|^DisentangledSelf")
# Encoders and others whose configuration has a dropout of one tenth by default.
_DROPPING = re.compile(
    r"^(?:Bert|Roberta|XLM|Camembert|Electra|DistilBert|GPT2|OPT|Bart|T5|Deberta|Ernie|MPNet|Marian|Pegasus"
    r"|LayoutLM|RoFormer|Luke|Tapas|MegatronBert|RemBert|Splinter|SqueezeBert|ConvBert|BigBird|Nystromformer|IBert"
    r"|Longformer|Lilt|MarkupLM|XLNet|Funnel|Vilt|VisualBert|Canine|Flaubert|Esm|Data2Vec|FSMT|LED|ProphetNet)"
)
# Models of transformers 5.17 that do not set `_supports_sdpa`: their attention is written out in Python.
_EAGER = re.compile(
    r"^(Align|BigBird|Blip(?!2)|Bloom|BridgeTower|Bros|Canine|CodeGen|ConvBert|Cvt|DecisionTransformer|Flaubert"
    r"|Flava|FSMT|Git|GLPN|GPTNeo(?!X)|GPTJ|GroupViT|Hiera|IBert|ImageGPT|Informer|LayoutLM(?:v[23])?|LED|Levit|Lilt"
    r"|LongT5|Luke|Lxmert|MarkupLM|MegatronBert|MPNet|Mpt|Mvp|NllbMoe|OpenAIGPT|PegasusX|Perceiver|ProphetNet"
    r"|RemBert|RoFormer|Speech2Text|SpeechT5|Splinter|SqueezeBert|SwitchTransformers|Tapas|TimeSeriesTransformer"
    r"|TrOCR|Vilt|VisualBert|VitDet|Vits|XGLM|XLM(?=Model|For|With)|Yoso)"
)
_POSITIONS = re.compile(r"^Deberta|^Disentangled")
_BUCKETS = 512
"""Both directions of DeBERTa-v2's position buckets."""
# Bart-like layers of transformers; their default probability is 0.1.
_FUNCTIONAL_DROPOUT = re.compile(
    r"^(?:M?Bart|Marian|Pegasus\w*|Blenderbot\w*|M2M100|LED|OPT|PLBart|FSMT|XGLM)(?:Encoder|Decoder)Layer$"
)
_LOGITS_BIAS = re.compile(
    r"^(?:M?Bart|Marian|Pegasus|Blenderbot|LED|PLBart)\w*(?:ForConditionalGeneration|MTModel)$"
)
# Classifiers over models that are made to generate text: they return the cache too.
_CACHING_CLASSIFIER = re.compile(
    r"^(?:Arcee|BioGpt|Bloom|Deepseek|DiffLlama|Doge|Exaone|Falcon|GPT2|GPTBigCode|GPTJ|GPTNeo|Gemma|Glm|GptOss|Helium"
    r"|HunYuan|Jamba|JetMoe|Llama|MiniCPM|MiniMax|Ministral|Mistral|Mixtral|Mpt|Nemotron|OPT|Olmo|Persimmon|Phi|Qwen"
    r"|SeedOss|SmolLM|StableLm|Starcoder)\w*For(?:Sequence|Token)Classification$"
)
_SCALES_BRANCH = re.compile(r"^CNBlock$|^ConvNeXtBlock$|^ConvNextLayer$|^XCABlock$")
_RESIDUAL = re.compile(
    r"Block|Bottleneck|Residual|Layer$|BasicLayer|MBConv|Unit$|Shortcut|Skip|^DepthwiseSeparableConv$"
)


@lru_cache(maxsize=4096)
def family_of(kind: str) -> str:
    """The family whose rule applies to this class; "" if the name does not show it."""
    for family, pattern in _COMPILED:
        if pattern.search(kind):
            return family
    return ""


@lru_cache(maxsize=4096)
def is_attention(kind: str) -> bool:
    """Whether a container of this class computes attention between its projections."""
    return bool(_ATTENTION.search(kind)) and not kind.endswith("Projection")


@lru_cache(maxsize=4096)
def computes_matrix(kind: str) -> bool:
    """Whether attention of this class materializes its matrix although no row shows it."""
    return bool(_WRITTEN_OUT.search(kind)) or (bool(_EAGER.search(kind)) and is_attention(kind))


@lru_cache(maxsize=4096)
def drops_by_default(name: str) -> bool:
    """Whether a model (or a module) of this class uses dropout by default."""
    return bool(_DROPPING.search(name))


@lru_cache(maxsize=4096)
def drops_eagerly(kind: str) -> bool:
    """Whether attention of this class applies dropout to its matrix as a function, which has no row."""
    return bool(_EAGER.search(kind)) and drops_by_default(kind)


def eager_model(model: str) -> str:
    """The prefix of its class names if a model of transformers materializes its attention; otherwise ""."""
    found = _EAGER.search(model)
    return found.group(1) if found else ""


@lru_cache(maxsize=4096)
def position_scores(kind: str) -> int:
    """Relative positions whose scores attention of this class keeps: -1 for all distances, 0 for none."""
    if not _POSITIONS.search(kind):
        return 0
    return _BUCKETS if "V2" in kind else -1


@lru_cache(maxsize=4096)
def keeps_scores(kind: str) -> bool:
    """Whether attention of this class compares its sink with a sum over the scores, which keeps them."""
    return bool(re.match(r"^Granite\w*SWA", kind))


@lru_cache(maxsize=4096)
def has_branches(kind: str) -> bool:
    """Whether this is a re-parametrized block: parallel convolutions whose results are added."""
    return bool(_BRANCHES.search(kind))


@lru_cache(maxsize=4096)
def is_gate(kind: str) -> bool:
    """Whether a container of this class scales its input by channel (squeeze and excitation)."""
    return bool(_GATE.search(kind))


@lru_cache(maxsize=4096)
def may_add_input(kind: str) -> bool:
    """Whether a container of this class may add its input to its output."""
    return bool(_RESIDUAL.search(kind)) and not _PLAIN.search(kind)


@lru_cache(maxsize=4096)
def drops_branches(kind: str) -> bool:
    """Whether a layer of this class calls dropout as a function, which has no row, on each branch."""
    return bool(_FUNCTIONAL_DROPOUT.search(kind))


@lru_cache(maxsize=4096)
def scales_branch(kind: str) -> bool:
    """Whether a block of this class multiplies its branch by a learned scale that is a bare parameter."""
    return bool(_SCALES_BRANCH.search(kind))


@lru_cache(maxsize=4096)
def scales_activation(kind: str) -> bool:
    """Whether a block of this class multiplies its activated input by a number (networks without norms)."""
    return kind == "NormFreeBlock"


def adds_logits_bias(model: str) -> bool:
    """Whether a model of this class adds a bias in full precision to its logits."""
    return bool(_LOGITS_BIAS.search(model))


def takes_loss(model: str) -> bool:
    """Whether a model of this class computes its loss itself, like those of transformers."""
    return bool(re.search(r"For[A-Z]\w+$|LMHead|DoubleHeads", model))


def generates(model: str) -> bool:
    """Whether a model of this class predicts the next token; it widens its logits for the loss."""
    return bool(re.search(r"LMHead|ForCausalLM", model))


def keeps_cache(model: str) -> bool:
    """Whether a model of this class returns the keys and values of every layer, also during training."""
    return generates(model) or bool(_CACHING_CLASSIFIER.search(model))


def has_decoder(model: str) -> bool:
    """Whether its decoder does."""
    return "ForConditionalGeneration" in model or model.endswith("MTModel")


def upsamples_logits(model: str) -> bool:
    """Whether a model of this class resizes its logits to the input's size before computing the loss."""
    return "ForSemanticSegmentation" in model


@lru_cache(maxsize=4096)
def hidden_activation(kind: str) -> str:
    """The activation that a container of this class calls as a function after its only layer; "": none."""
    if not kind.endswith("Intermediate"):
        return ""
    return "ErfGELU" if kind.startswith("Esm") else "GELU"


# Vision transformers of every library, and language models since Llama, have dropout rows with p = 0.
_NO_DROPOUT = re.compile(
    r"ViT|DeiT|Beit|BEiT|Swin|ConvNext|Dino|Segformer|PVT|Pvt|VisionTransformer|^Block$|^Attention$|^Mlp$|^MLPBlock$"
    r"|^EncoderBlock$|WindowAttention|Llama|Mistral|Qwen|Gemma|Phi|CLIP|Siglip|GPTNeoX|Falcon|Bloom|Mamba|Levit|Poolformer"
    r"|(?<!TS)Mixer|NormMlp|ConvMlp|ClassifierHead|EfficientNet|ResNet|MobileNet|RegNet"
    # Further classes of timm, all of whose models drop nothing by default.
    r"|TalkingHeadAttn|XCA|Xcit|AttentionCl|SpatialGatingBlock|FocalModulation|TransformerBlock2d|EvaBlock|^Eva$"
    r"|^CrossVit|CrossAttentionBlock|FactorAttn|RelPosAttention|MultiQueryAttention2d|LinearTransformerBlock|Outlook"
    r"|CrossCovarianceAttn|ClassAttn|ClassBlock|^VOLO$|^CoaT$|ConVit|GPSA|MHSA|^TNT$|^Twins$|MetaFormer"
    r"|EfficientFormer|^Nest$|RepVit|SwiftFormer|NextTransformerBlock|NaFlex|^Cait$|MultiScaleVit|^SelecSls$"
    r"|^HighResolutionNet$|^DLA$|^Visformer$"
)


def drops(around: Sequence[str]) -> bool:
    """Whether a dropout inside containers of these classes is likely to have p > 0."""
    return not any(_NO_DROPOUT.search(kind) for kind in around[-3:])
