"""Which class names are layers that compute themselves, and which are blocks of other layers.

A table without nesting (torchsummary) or one cut at a depth (torchinfo) does not say it, so the name must.
"""

from __future__ import annotations

import re

# Patterns stay text here: compiling them costs more than most summaries need them for.

_LEAVES = frozenset(
    # torch.nn modules whose names do not end like one of _LEAF_NAME.
    [
        "AlphaDropout",
        "Bilinear",
        "CELU",
        "CircularPad1d",
        "CircularPad2d",
        "CircularPad3d",
        "ChannelShuffle",
        "ConstantPad1d",
        "ConstantPad2d",
        "ConstantPad3d",
        "CosineSimilarity",
        "CrossEntropyLoss",
        "ELU",
        "EmbeddingBag",
        "Flatten",
        "Fold",
        "GLU",
        "GRU",
        "GRUCell",
        "Hardshrink",
        "Hardsigmoid",
        "Hardswish",
        "Hardtanh",
        "HardSwish",
        "HardSigmoid",
        "Identity",
        "LSTM",
        "LSTMCell",
        "LogSigmoid",
        "LogSoftmax",
        "LPPool1d",
        "LPPool2d",
        "LPPool3d",
        "MaxUnpool1d",
        "MaxUnpool2d",
        "MaxUnpool3d",
        "Mish",
        "MultiheadAttention",
        "PairwiseDistance",
        "PixelShuffle",
        "PixelUnshuffle",
        "PReLU",
        "RNN",
        "RNNBase",
        "RNNCell",
        "RReLU",
        "ReflectionPad1d",
        "ReflectionPad2d",
        "ReflectionPad3d",
        "ReplicationPad1d",
        "ReplicationPad2d",
        "ReplicationPad3d",
        "SELU",
        "SiLU",
        "Sigmoid",
        "Softmax",
        "Softmax2d",
        "Softmin",
        "Softplus",
        "Softshrink",
        "Softsign",
        "Swish",
        "SwiGLU",
        "Tanh",
        "Tanhshrink",
        "Threshold",
        "Unflatten",
        "Unfold",
        "Upsample",
        "UpsamplingBilinear2d",
        "UpsamplingNearest2d",
        "ZeroPad1d",
        "ZeroPad2d",
        "ZeroPad3d",
        "ParametrizedLinear",
        "MeanPool",
        "LayerScale",
        "LayerScale2d",
        "DropPath",
        "StochasticDepth",
        "DropBlock2d",
        "Permute",
        "Reshape",
        "View",
        "Lambda",
        "BlurPool2d",
        "Dense",
        "Activation",
        "Add",
        "Concatenate",
        "Multiply",
        "Subtract",
        "Average",
        "Maximum",
        "Minimum",
        "Dot",
        "Normalization",
        "MultiHeadAttention",
        "Conv1D",
    ]
)

# Names that end like this are layers in torch.nn, timm and transformers alike
# (StdConv2d, LlamaRMSNorm, NewGELUActivation, NonDynamicallyQuantizableLinear ...).
_LEAF_NAME = (
    r"(?:Conv(?:Transpose)?[123][dD](?:Transpose|Same|Pad|Tf)?|Norm(?:alization)?(?:[123][dD])?|Linear"
    r"|ReLU6?|GELU|SiLU|Activation|Sigmoid|Softmax|Tanh|Swish|Mish|Dropout(?:[123][dD])?"
    r"|(?:Max|Avg|Average|Adaptive|Fractional\w{0,12})Pool(?:ing)?(?:[123][dD])?"
    r"|(?<!Patch)(?<!Timestep)(?<!Text)Embedding|Identity)$"
)

# Blocks by name although they end like a layer.
_BLOCKS = frozenset(
    [
        "SelectAdaptivePool2d",
        "ConvNormAct",
        "ConvBnAct",
        "BnActConv2d",
        "Sequential",
        "ModuleList",
        "ModuleDict",
        "Functional",
    ]
)


def is_leaf_kind(kind: str) -> bool:
    """Whether a class of this name computes itself, rather than through children."""
    return kind in _LEAVES or (kind not in _BLOCKS and re.search(_LEAF_NAME, kind) is not None)


# Layers of torch.nn, timm and transformers that never have parameters.
_NO_PARAMS = (
    r"(?:ReLU6?|[CEGS]?ELU|SiLU|GLU|Sigmoid|sigmoid|Swish|swish|Mish|Tanh|tanh|Shrink|shrink|Soft\w{1,8}|softmax"
    r"|Activation|Drop\w{0,12}|Dropout[123]?d?|StochasticDepth|Pool(?:ing)?(?:[123][dD])?|Unpool[123]d|Identity"
    r"|Pad[123]d|Flatten|Unflatten|Fold|Unfold|Upsample|Upsampling\w{1,12}|Shuffle|Unshuffle|Loss|Threshold"
    r"|CosineSimilarity|PairwiseDistance|RotaryEmbedding|SinusoidalPositionEmbeddings?|Permute|Rearrange|Reshape"
    r"|LocalResponseNorm|ModuleList|ModuleDict|Sequential)$"
)


def has_no_params(kind: str) -> bool:
    """Whether a class of this name certainly has no parameters of its own."""
    return kind != "PReLU" and re.search(_NO_PARAMS, kind) is not None
