"""Pages through jinja2: every value is escaped, whoever wrote it, and a name that is missing is an error."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_gpumem.errors import UsageError
from slurm_gpumem.text import clipped

if TYPE_CHECKING:
    from markupsafe import Markup

_ASSETS = Path(__file__).resolve().parent / "assets"
_LONGEST = 400
"""Characters of one value; what users name is cut much earlier, where it is known what it is."""


def need_jinja2() -> None:
    """UsageError where it is missing, before any work is done."""
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise UsageError(
            "an HTML page needs jinja2, which is not installed for this Python.\npip install jinja2"
        ) from None


def render(template: str, **values: Any) -> str:
    """The page that a template of `assets/` makes of the values."""
    need_jinja2()
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment.get_template(template).render(values)


def asset(*names: str) -> Markup:
    """Our own style sheets and scripts, as they are."""
    from markupsafe import Markup

    return Markup("\n").join(Markup((_ASSETS / name).read_text(encoding="utf-8")) for name in names)


def hashed(text: str) -> str:
    """How a content security policy names our own script or style, so that the page runs no other."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _harmless(value: Any) -> Any:
    """Escaping keeps markup out; control characters, direction marks and endless names are kept out here."""
    # Markup is a subclass of str: our own, already safe.
    return clipped(value, _LONGEST) if type(value) is str else value
