"""What a class name says about a layer: its family, by name alone."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Sequence, Tuple

# The first pattern that is found decides; so special names stand before the general ones.
_FAMILIES: Tuple[Tuple[str, str], ...] = (
    ("identity", r"^Identity$|^Flatten$|^Unflatten$|^Permute$|^Rearrange$|^Lambda$|^ModuleList$|^Quant"),
    ("zero_dropout", r"^$"),
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
    ("depthwise", r"^DepthwiseConv2D$"),
    (
        "conv",
        r"^(?:Lazy|Scaled)?(?:Std|WS|Mixed|Cond)?Conv[123][dD](?:Same|Pad)?$|^StdConv\w*$|^Conv2dSame$|^ScaledStdConv\w*$",
    ),
    ("batch_norm_act", r"BatchNormAct\w*$|BatchNormReLU"),
    ("frozen_norm", r"FrozenBatchNorm"),
    ("batch_norm", r"BatchNorm\w*$"),
    ("instance_norm", r"InstanceNorm"),
    ("group_norm_act", r"GroupNormAct|GroupNorm1Act|EvoNorm|FilterResponseNorm"),
    ("group_norm", r"GroupNorm"),
    ("rms_norm", r"RMSNorm|RmsNorm|T5LayerNorm|LayerNormSimple|SimpleNorm"),
    ("layer_norm", r"LayerNorm\w*$|LocalResponseNorm"),
    ("layer_scale", r"^LayerScale|LayerScale2d$|^Affine$|^Scale$"),
    ("hard", r"^Hardswish$|^HardSwish\w*$|^Hardsigmoid$|^HardSigmoid\w*$|^Hardtanh$"),
    ("relu", r"^ReLU6?$|^LeakyReLU$|^Threshold$|^RReLU$|^ReLUActivation$"),
    ("composed_act", r"NewGELU|FastGELU|^QuickGELU|AccurateGELU|ClippedGELU|ReLUSquared|GeluTanh$"),
    ("softmax", r"^(?:Log)?Softmax(?:2d)?$"),
    ("output_act", r"^Tanh$|^Sigmoid$|^Softsign$|^ELU$|^CELU$|^SELU$|SigmoidActivation$|TanhActivation$"),
    (
        "input_act",
        r"GELU|Gelu|SiLU|Swish|Mish|PReLU|Softplus|ELU|LogSigmoid|Tanhshrink|Hardshrink|^GLU$|Activation",
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
    ("input", r"^InputLayer$"),
)
_COMPILED = tuple((family, re.compile(pattern)) for family, pattern in _FAMILIES)

_ATTENTION = re.compile(r"[Aa]ttention|[Aa]ttn|^MHA|MHSA")
_PLAIN = re.compile(
    r"^Sequential$|^ModuleList$|^ModuleDict$|Stage$|Encoder$|Decoder$|Model$|Embeddings?$|^Conv\w*(?:Norm|BN|Bn)\w*$"
)
_RESIDUAL = re.compile(r"Block|Bottleneck|Residual|Layer$|BasicLayer|MBConv|Unit$|Shortcut|Skip")


@lru_cache(maxsize=4096)
def family_of(kind: str) -> str:
    """The family whose rule applies to this class; "" when the name says nothing."""
    for family, pattern in _COMPILED:
        if pattern.search(kind):
            return family
    return ""


@lru_cache(maxsize=4096)
def is_attention(kind: str) -> bool:
    """Whether a container of this class computes attention between its projections."""
    return bool(_ATTENTION.search(kind))


@lru_cache(maxsize=4096)
def may_add_input(kind: str) -> bool:
    """Whether a container of this class may add its input to its output."""
    return bool(_RESIDUAL.search(kind)) and not _PLAIN.search(kind)


# Vision transformers of every library, and language models since Llama, have dropout rows with p = 0.
_NO_DROPOUT = re.compile(
    r"ViT|DeiT|Beit|BEiT|Swin|ConvNext|Dino|Segformer|PVT|Pvt|VisionTransformer|^Block$|^Attention$|^Mlp$|^MLPBlock$"
    r"|^EncoderBlock$|WindowAttention|Llama|Mistral|Qwen|Gemma|Phi|CLIP|Siglip|GPTNeoX|Falcon|Bloom|Mamba|Levit|Poolformer"
    r"|Mixer|NormMlp|ConvMlp|ClassifierHead|EfficientNet|ResNet|MobileNet|RegNet"
)


def drops(around: Sequence[str]) -> bool:
    """Whether a dropout inside containers of these classes is likely to have p > 0."""
    return not any(_NO_DROPOUT.search(kind) for kind in around[-3:])
