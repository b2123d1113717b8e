"""Slurm for unit tests: answers from recorded text, and raises on every command it was not given."""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping, Sequence, Union

Answer = Union[str, Exception, Callable[[Sequence[str]], str]]
"""A command's stdout, the error it ends with, or who makes either from its words."""


class UnknownCommandError(AssertionError):
    """A test asked Slurm something that nobody recorded an answer for."""


class FakeSlurm:
    """A SlurmClient: answers by a command's words, given in their order ("squeue -t PENDING").

    Other words may stand between them; of several that fit, the one with the most words answers.
    """

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers: Dict[str, Answer] = dict(answers)
        self.asked: List[List[str]] = []
        """Every command, in order."""

    def run(self, argv: Sequence[str], *, timeout_s: float = 3.0) -> str:
        self.asked.append(list(argv))
        fitting = [words for words in self._answers if _fits(words.split(), argv)]
        if not fitting:
            raise UnknownCommandError(f"no answer is recorded for: {' '.join(argv)}")
        answer = self._answers[max(fitting, key=lambda words: len(words.split()))]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, str) else answer(argv)


def _fits(words: Sequence[str], argv: Sequence[str]) -> bool:
    rest = iter(argv)
    return bool(argv) and words[0] == argv[0] and all(word in rest for word in words)
