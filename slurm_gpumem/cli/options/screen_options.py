"""Options of commands that print tables: colours and units."""

from __future__ import annotations

import argparse

from slurm_gpumem.terminal.colour import CHOICES
from slurm_gpumem.units import UNITS


def add_color(parser: argparse._ActionsContainer) -> None:
    """`--color`; without it terminals get colours, unless NO_COLOR is set."""
    parser.add_argument("--color", choices=CHOICES, default="auto", help="colours (default: on a terminal)")


def add_units(parser: argparse._ActionsContainer) -> None:
    """`--units`; without it sizes are in GiB, small ones in MiB."""
    parser.add_argument("--units", choices=list(UNITS), help="write all sizes in this unit")
