"""Language models of transformers: shared weights, experts, sinks, state spaces, norms in half precision."""

from __future__ import annotations

from collections import Counter
from typing import Counter as Counted

import pytest

from slurm_gpumem.estimators.structural.layers.class_names import keeps_cache, named
from slurm_gpumem.estimators.structural.layers.loss import ties_output
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import read_summary
from tests.support.kept_steps import simulated

RULE = "=" * 100 + "\n"
BATCH = 32
HALF, FLOAT = 2, 4


def _walk(rows: str, precision: str = "fp32") -> Walk:
    columns = "Input Shape               Output Shape             "
    text = f"{RULE}Layer (type:depth-idx)  {columns}  Param #\n{RULE}{rows}{RULE}"
    return simulated(read_summary(text), TrainingJob(BATCH, precision=precision))[0]


def _kept(rows: str, precision: str = "fp32") -> Counted[int]:
    """How many tensors of each number of bytes a sample the forward pass keeps."""
    tape = _walk(rows, precision).tape
    stores = {store for op in tape.ops for store in (*op.saved, *op.kept)}
    return Counter(tape.sizes[store] // BATCH for store in stores)


@pytest.mark.parametrize(
    ("model", "width", "vocabulary", "tied"),
    [
        ("GPT2LMHeadModel", 768, 50257, True),
        ("LlamaForCausalLM", 4096, 128256, False),
        ("LlamaForCausalLM", 2048, 128256, True),
        ("LlamaForCausalLM", 2048, 32000, False),
        ("GPTNeoXForCausalLM", 512, 50304, False),
        ("GPTNeoXJapaneseForCausalLM", 512, 50304, True),
        ("GraniteForCausalLM", 512, 32000, False),
        ("GraniteSWAForCausalLM", 512, 32000, True),
        ("FalconForCausalLM", 512, 50304, True),
        ("FalconH1ForCausalLM", 512, 50304, False),
        ("Gemma3nForCausalLM", 512, 50304, True),
        ("NobodysNewForCausalLM", 512, 50304, False),
        ("T5ForConditionalGeneration", 512, 32128, True),
        ("Qwen2VLForConditionalGeneration", 1536, 32000, False),
        ("Qwen2VLForConditionalGeneration", 1536, 151936, True),
        ("BertForMaskedLM", 768, 30522, True),
        ("BertForSequenceClassification", 768, 30522, False),
    ],
)
def test_which_models_share_their_embedding_with_the_output_layer(
    model: str, width: int, vocabulary: int, tied: bool
) -> None:
    assert ties_output(model, width, vocabulary) is tied


def test_classifiers_over_generating_models_keep_the_cache_too() -> None:
    assert keeps_cache("LlamaForSequenceClassification")
    assert not named("generates", "LlamaForSequenceClassification")
    assert not keeps_cache("BertForSequenceClassification")


EXPERTS = """\
NewMoeForCausalLM            [2, 8, 64]             [2, 8, 64]             --
├─{}: 1-1           [16, 64]               [16, 64]               73,728
│    └─SiLU: 2-1             [32, 48]               [32, 48]               --
"""


def test_experts_keep_each_token_once_for_every_expert_that_it_has() -> None:
    kept = _kept(EXPERTS.format("NewMoeExperts"))
    pairs = 16  # tokens of a sample times two experts
    # The chosen tokens and the results that the router's weights scale; gate and values in one; the activated
    # gate and its product with the values.
    assert kept[pairs * 64 * FLOAT] == 2
    assert kept[pairs * 96 * FLOAT] == 1
    assert kept[pairs * 48 * FLOAT] == 2


def test_autocast_leaves_experts_in_full_precision() -> None:
    rows = EXPERTS.format("NewMoeExperts")
    assert _kept(rows, "amp-bf16") == _kept(rows)
    # A class with that name that has fewer weights than one expert is walked layer by layer.
    assert _kept(rows.replace("73,728", "96")) != _kept(rows)


SINKS = """\
GptOssForCausalLM            [2, 128, 64]           [2, 128, 64]           --
├─GptOssAttention: 1-1       [2, 128, 64]           [2, 128, 64]           {}
│    └─Linear: 2-1           [2, 128, 64]           [2, 128, 64]           4,096
│    └─Linear: 2-2           [2, 128, 64]           [2, 128, 32]           2,048
│    └─Linear: 2-3           [2, 128, 64]           [2, 128, 32]           2,048
│    └─Linear: 2-4           [2, 128, 64]           [2, 128, 64]           4,096
"""


def test_a_number_for_each_head_is_a_sink_so_the_matrix_is_written_out() -> None:
    matrix = 4 * 128 * 128
    assert _kept(SINKS.format("4"), "bf16")[matrix * FLOAT] == 1
    assert _kept(SINKS.format("4"), "bf16")[matrix * HALF] == 1
    assert _kept(SINKS.format("--"), "bf16")[matrix * FLOAT] == 0
    # Granite compares the sink with a sum over the scores, which keeps them.
    assert _kept(SINKS.format("4").replace("GptOss", "GraniteSWA"), "bf16")[matrix * FLOAT] == 2


CHUNKS = """\
Mamba2ForCausalLM            [2, 300, 64]           [2, 300, 64]           --
├─Mamba2Mixer: 1-1           [2, 300, 64]           [2, 300, 64]           {}
│    └─Linear: 2-1           [2, 300, 64]           [2, 300, 292]          18,688
│    └─MambaRMSNormGated: 2-2  [2, 300, 128]        [2, 300, 128]          128
│    └─Linear: 2-3           [2, 300, 128]          [2, 300, 64]           8,192
"""


def test_the_second_mamba_keeps_pairs_of_steps_of_whole_chunks() -> None:
    # 128 values, 16 states and 4 heads: 292 = 128 + (128 + 2 · 16) + 4; 5 · 160 + 3 · 4 = 812 parameters.
    walk = _walk(CHUNKS.format("812"))
    steps = 512  # 300 filled up to two chunks of 256
    assert _kept(CHUNKS.format("812"))[steps * 256 * 4 * FLOAT] == 3
    product = steps * 4 * 256 * 32 * FLOAT
    assert max(size // BATCH for op in walk.tape.ops for size in op.work) == product
    # Other parameters do not fit the formula: somebody else's mixer.
    assert _kept(CHUNKS.format("900"))[steps * 256 * 4 * FLOAT] == 0


NORM = """\
Net                          [2, 16, 64]            [2, 16, 64]            --
├─Linear: 1-1                [2, 16, 64]            [2, 16, 64]            4,096
├─{}: 1-2            [2, 16, 64]            [2, 16, 64]            64
├─Linear: 1-3                [2, 16, 64]            [2, 16, 64]            4,096
"""


def test_norms_written_in_python_keep_a_wide_copy_in_half_precision() -> None:
    tokens = 16 * 64
    llama = _kept(NORM.format("LlamaRMSNorm"), "bf16")
    assert llama[tokens * FLOAT] == 1
    # T5's scales its input as it came, so that both are kept.
    assert _kept(NORM.format("T5LayerNorm"), "bf16")[tokens * HALF] == llama[tokens * HALF] + 1
    assert _kept(NORM.format("T5LayerNorm")) == _kept(NORM.format("LlamaRMSNorm"))


def test_the_norm_of_convnexts_second_version_takes_what_it_makes() -> None:
    rows = """\
ConvNextV2Layer              [2, 14, 14, 96]           --
├─Linear: 1-1                [2, 14, 14, 1536]         148,992
├─ConvNextV2GRN: 1-2         [2, 14, 14, 1536]         3,072
├─Linear: 1-3                [2, 14, 14, 96]           147,552
"""
    text = f"{RULE}Layer (type:depth-idx)       Output Shape              Param #\n{RULE}{rows}{RULE}"
    norm = read_summary(text).layers[2]
    assert norm.kind == "ConvNextV2GRN"
    assert norm.inputs == ((2, 14, 14, 1536),)
