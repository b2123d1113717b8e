"""What the commands understand, read from the parsers and texts behind their --help."""

from __future__ import annotations

import argparse
import importlib
import os
import re
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.cli import gpumem, gpusbatch
from slurm_gpumem.slurm.options import NO_VALUE, OptionTable, salloc_table, sbatch_table, srun_table


class Option(NamedTuple):
    """One option of a command."""

    flags: Tuple[str, ...]
    value: str
    """What stands for its value ("FILE"); empty where it takes none."""
    help: str
    choices: Tuple[str, ...] = ()
    group: str = ""
    """The heading that it stands under in --help; empty for the first one."""
    value_is_optional: bool = False


class Argument(NamedTuple):
    """A word that a command expects without an option."""

    name: str
    help: str


class Command(NamedTuple):
    """One command with what it understands."""

    words: Tuple[str, ...]
    what: str
    """In a few words, for lists."""
    usage: str
    description: str
    epilog: str
    options: Tuple[Option, ...]
    arguments: Tuple[Argument, ...] = ()
    commands: Tuple[Command, ...] = ()
    passed_on: Tuple[Option, ...] = ()
    """Options that it hands to a program of Slurm; that program's own manual explains them."""

    @property
    def name(self) -> str:
        """The name of its man page."""
        return "-".join(self.words)


def all_programs() -> List[Command]:
    """gpusbatch, gpusrun, gpusalloc and gpumem."""
    ours, usage = gpusbatch.OUR_OPTIONS, gpusbatch.USAGE_INTERACTIVE
    gpumem_command = _gpumem()
    # Its --help names some options without a word: they are those of gpumem estimate.
    estimate = next(each for each in gpumem_command.commands if each.words[-1] == "estimate")
    batch = _of_usage(gpusbatch.USAGE, sbatch_table(ours), estimate.options)
    known = (*batch.options, *estimate.options)
    run = _of_usage(usage.format(program="srun"), srun_table(ours), known)
    allocate = _of_usage(usage.format(program="salloc"), salloc_table(ours), known)
    return [batch, run, allocate, gpumem_command]


def _gpumem() -> Command:
    commands = []
    for name, (module, what, *_) in gpumem.COMMANDS.items():
        parser: argparse.ArgumentParser = importlib.import_module(module)._parser()
        commands.append(_of_parser(parser, ("gpumem", name), what))
    description = "Estimate the GPU memory of training jobs, and share GPUs by it on a Slurm cluster."
    options = (
        Option(("-h", "--help"), "", "show the list of commands and exit"),
        Option(("--version",), "", "show the version and exit"),
    )
    usage = "gpumem COMMAND [options]"
    what = "GPU memory of training jobs on Slurm"
    return Command(("gpumem",), what, usage, description, "", options, (), tuple(commands))


def _of_parser(parser: argparse.ArgumentParser, words: Tuple[str, ...], what: str) -> Command:
    options: List[Option] = []
    arguments: List[Argument] = []
    commands: List[Command] = []
    for position, group in enumerate(parser._action_groups):
        # argparse's own two groups come first; the titles of the others are ours.
        title = group.title or "" if position > 1 else ""
        for action in group._group_actions:
            if action.help == argparse.SUPPRESS:
                continue
            if isinstance(action, argparse._SubParsersAction):
                commands.extend(_below(action, words))
            elif action.option_strings:
                options.append(_option(action, parser, title))
            else:
                arguments.append(Argument(_metavar(action), _help(action, parser)))
    usage = " ".join(parser.format_usage().partition(":")[2].split())
    return Command(
        words,
        what,
        usage,
        _without_name(parser.description or what),
        parser.epilog or "",
        tuple(options),
        tuple(arguments),
        tuple(commands),
    )


def _below(
    action: argparse._SubParsersAction[argparse.ArgumentParser], words: Tuple[str, ...]
) -> Iterator[Command]:
    helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
    for name, parser in action.choices.items():
        yield _of_parser(parser, (*words, name), helps.get(name, ""))


def _option(action: argparse.Action, parser: argparse.ArgumentParser, group: str) -> Option:
    return Option(
        tuple(action.option_strings),
        "" if action.nargs == 0 else _metavar(action),
        _help(action, parser),
        tuple(str(choice) for choice in action.choices or ()),
        group,
        action.nargs == "?",
    )


def _metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.metavar:
        return action.metavar
    if action.choices:
        return "|".join(str(choice) for choice in action.choices)
    return action.dest.upper()


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    text = (action.help or "") % {**vars(action), "prog": parser.prog}
    return of_anybody(text)


def of_anybody(text: str) -> str:
    """A default below the home directory of whoever writes the pages is everybody's."""
    home = os.path.expanduser("~")
    return text if home == "/" else re.sub(rf"{re.escape(home)}(?=/)", "~", text)


def _without_name(description: str) -> str:
    """A module's first line begins with the command's name, which stands above it already."""
    text = re.sub(r"^`[^`]*`: ", "", description)
    return text[:1].upper() + text[1:]


_ROW = re.compile(r"  (-\S.*)")
_FLAG = re.compile(r"(--[a-z][a-z-]*)(?: ([A-Z]+))?")


def _of_usage(text: str, table: OptionTable, known: Sequence[Option]) -> Command:
    """A command whose --help is written by hand, since sbatch's rules for options are not argparse's.

    Options that it names without saying what they do are explained as in `known`.
    """
    usage, _, rest = text.partition("\n\n")
    usage = " ".join(usage.partition(":")[2].split())
    program = usage.split()[0]
    paragraphs = rest.rstrip("\n").split("\n\n")
    texts = [paragraph for paragraph in paragraphs if not _ROW.match(paragraph)]
    rows = (option for paragraph in paragraphs if _ROW.match(paragraph) for option in _rows(paragraph))
    options = {option.flags[-1]: option for option in rows}
    others = []
    for spec in table.specs():
        flag = f"--{spec.name}"
        if not spec.ours:
            flags = (f"-{spec.short}", flag) if spec.short else (flag,)
            others.append(Option(flags, "" if spec.kind == NO_VALUE else "VALUE", ""))
        elif flag not in options or not options[flag].help:
            options[flag] = next(option for option in known if flag in option.flags)._replace(group="")
    what = f"{program[3:]} that asks for as much of a GPU as the work needs"
    ours, epilog = tuple(options.values()), "\n\n".join(texts[1:])
    return Command((program,), what, usage, texts[0], epilog, ours, (), (), tuple(others))


def _rows(paragraph: str) -> Iterator[Option]:
    """Options of a list: name, value and help on a line each; several that share a line share its help."""
    for line in paragraph.splitlines():
        head, _, what = line.strip().partition("  ")
        for flag, value in _FLAG.findall(head):
            yield Option((flag,), value, what.strip())


def values_by_flag() -> Dict[str, Tuple[str, ...]]:
    """Values of options that are names out of a table, for completion."""
    from slurm_gpumem.estimators import gpus, registry, types
    from slurm_gpumem.submission.settings import ON_OOM, TRACE_OR

    return {
        "--optimizer": types.OPTIMIZERS,
        "--precision": types.PRECISIONS,
        "--loss": types.LOSSES,
        "--input-dtype": types.INPUT_DTYPES,
        "--module-loading": types.MODULE_LOADING,
        "--estimator": tuple(registry.estimator_names()),
        # Those that every site has, not those of the machine that writes the file.
        "--gpu": tuple(gpus.gpu_table(Path(os.devnull))),
        "--on-oom": ON_OOM,
        "--trace-or": TRACE_OR,
    }


def takes_a_file(option: Option) -> bool:
    """Whether its value is the name of a file or folder."""
    return bool(re.search(r"FILE|DIR|PATH|SCRIPT|JOB\.SH", option.value))


def choices_of(option: Option, values: Dict[str, Tuple[str, ...]]) -> Tuple[str, ...]:
    """The values that an option can have, as far as they are known."""
    if option.choices or not option.value:
        return option.choices
    found: Optional[Tuple[str, ...]] = next((values[f] for f in option.flags if f in values), None)
    return found or ()
