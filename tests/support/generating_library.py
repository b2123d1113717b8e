"""A stand-in for what of transformers generates: the interface that a trace meets, and a small model."""

from __future__ import annotations

LIBRARY = {
    "transformers/__init__.py": """
import torch
from torch import nn
from transformers.generation.utils import GenerationMixin
__version__ = "0"
class Config:
    def __init__(self, width=512): self.width = width
class Tiny(GenerationMixin, nn.Module):
    config_class = Config
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(1000, config.width); self.head = nn.Linear(config.width, 1000)
    def forward(self, ids, past_key_values=None):
        x = self.embed(ids); seen = past_key_values.update(x)
        return self.head(x + torch.softmax(x @ seen.mT, -1) @ seen)
""",
    "transformers/generation/__init__.py": "",
    # As the real ones: a list of criteria that is called, and a mixin with the loop.
    "transformers/generation/stopping_criteria.py": """
class StoppingCriteriaList(list):
    max_length = None
    def __call__(self, input_ids, scores):
        raise SystemExit("the end of a text was read from values")
""",
    "transformers/generation/utils.py": """
import torch
from transformers.generation.stopping_criteria import StoppingCriteriaList
class Cache:
    def __init__(self): self.keys = None
    def get_seq_length(self): return 0 if self.keys is None else self.keys.shape[1]
    def update(self, new):
        self.keys = new if self.keys is None else torch.cat([self.keys, new], dim=1)
        return self.keys
class GenerationMixin:
    def generate(self, input_ids, max_new_tokens=20, keep_scores=False, **others):
        criteria, cache, scores = StoppingCriteriaList(), Cache(), ()
        criteria.max_length = input_ids.shape[1] + max_new_tokens
        masks = []
        new, open_texts = input_ids, torch.ones(len(input_ids), dtype=torch.long, device=input_ids.device)
        while True:
            logits = self(new, past_key_values=cache)[:, -1]
            scores += (logits,) if keep_scores else ()
            masks = [*masks[-1:], torch.ones_like(input_ids)]  # held for two tokens
            new = logits.argmax(-1)[:, None]
            input_ids = torch.cat([input_ids, new], dim=1)
            open_texts = open_texts & ~criteria(input_ids, None)
            if open_texts.max() == 0:
                return input_ids
""",
}
