"""What every parser returns and every estimator reads."""

# Annotations are evaluated here: of those that are strings, each NamedTuple compiles every one.

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Optional, Tuple

if TYPE_CHECKING:
    # Most texts have none, and its classes take a while.
    from slurm_gpumem.summaries.trace_types import Trace

Shape = Tuple[int, ...]
"""Sizes of one tensor, -1 where the summary leaves a size open ("-1", "None").

The batch is mostly the first size, but not always: a recurrent layer may write [time, batch, features],
windowed attention [batch · windows, tokens, features]. `ModelSummary.elements` counts correctly for all.
"""

UNKNOWN_BATCH = -1
UNKNOWN_KIND = "?"
"""The kind of a line inside a table that could not be understood; its text is in `Layer.attributes`."""
_FINGERPRINT_VERSION = "1"


class Shows(NamedTuple):
    """What the texts of a format can show; estimators ask for this, never for a format's name."""

    nesting: bool = True
    """Which block each layer belongs to. Otherwise a block's row comes after its layers' rows, and neither it
    nor they say so; parameters that belong to no layer are not counted."""
    leading_sizes: bool = True
    """The first size of every tensor. Otherwise it is replaced by -1, even where it is not the batch alone
    (batch times windows)."""
    total_outputs: bool = False
    """The totals count the outputs of all layers with parameters, those inside hidden blocks included."""


SHOWS_EVERYTHING = Shows()


class Layer(NamedTuple):
    """One row of a summary, in the order the summary shows.

    That is the forward order. torchinfo and print(model) show parents before their children;
    torchsummary shows a container after its children.
    """

    kind: str
    """Class name as written, without a trailing index: "Conv2d"."""
    outputs: Tuple[Shape, ...] = ()
    """Shapes of its outputs; empty when the summary does not say."""
    inputs: Tuple[Shape, ...] = ()
    params: int = 0
    """Parameters of this module itself, without its children's; 0 for a repeated (shared) one.

    A container may have some too (a class token, timm's BatchNormAct2d): count them over all rows.
    """
    trainable: bool = True
    depth: int = 0
    """Nesting: 0 for a top-level row."""
    name: str = ""
    """Attribute name ("layer1.0.conv1", "fc") where the summary gives one."""
    leaf: bool = True
    """False for a container whose children are rows of their own."""
    repeated: bool = False
    """True when the same module was already counted (torchinfo's "(recursive)"); it still makes outputs."""
    kernel: Optional[Shape] = None
    """Kernel size where the summary gives it."""
    attributes: Tuple[Tuple[str, str], ...] = ()
    """What the text says about it beyond shapes ("in_features" → "512"), in order."""
    line: int = 0
    """Line of the text, from 1; for messages."""
    hidden: bool = False
    """True for a block whose inner layers the summary does not show: a leaf here, its `params` are the
    whole block's, and the activations inside it are unknown."""
    called: bool = True
    """False when the summary shows that forward never called it (its parent may still use its weights)."""
    derived: Tuple[str, ...] = ()
    """Names of fields that are not in the summary but worked out from it ("inputs", "outputs", "params")."""
    params_known: bool = True
    """False when the text neither gives the parameters nor what is needed to compute them."""


class _Summary(NamedTuple):
    """The fields of ModelSummary, which keeps its fingerprint beside them."""

    format: str
    """Which of the formats in formats.py it was read from ("torchinfo"); only for people."""
    layers: Tuple[Layer, ...]
    name: str = ""
    """Class of the model or the file's stem; only for people."""
    batch: Optional[int] = None
    """Batch size the summary was made with; None when its shapes do not fix it."""
    input_shapes: Tuple[Shape, ...] = ()
    total_params: int = 0
    """As the summary's totals state them; the rows' sum where it states none."""
    trainable_params: int = 0
    warnings: Tuple[str, ...] = ()
    """What makes an estimate less sure than it could be, and what its user can do about it."""
    remarks: Tuple[str, ...] = ()
    """What was noticed or filled in and needs no action: details for the curious."""
    has_shapes: bool = True
    """False when no layer has an output shape: activations are unknown (print(model))."""
    complete: bool = True
    """False when the table is cut off or the text names more parameters than its rows have."""

    output_bytes: Optional[int] = None
    """Outputs of all layers that have parameters, at the summary's batch, those inside hidden blocks
    included: half of torchinfo's "Forward/backward pass size"; None where the text does not say."""
    input_bytes: Optional[int] = None
    """All inputs at the summary's batch, as torchinfo's "Input size" says (to 10 kB)."""
    trace: "Optional[Trace]" = None
    """Every allocation of the first training steps; only our own summaries have it."""
    shows: Shows = SHOWS_EVERYTHING
    """What its format can show."""
    digest: str = ""
    """Of the text that it was read from; empty where it was made otherwise."""


class ModelSummary(_Summary):
    """A model as its summary describes it; equal to the same one read from another text."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelSummary) and self[:-1] == other[:-1]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        # Steps are kept by their summary: hashing every row would take longer than finding one.
        return hash((self.format, self.name, self.batch, self.total_params, len(self.layers)))

    @property
    def leaves(self) -> Tuple[Layer, ...]:
        """The rows that compute: everything but containers."""
        return tuple(layer for layer in self.layers if layer.leaf)

    @property
    def hidden(self) -> Tuple[Layer, ...]:
        """The blocks whose inner layers the summary does not show."""
        return tuple(layer for layer in self.layers if layer.hidden)

    def elements(self, shape: Shape, batch_size: int) -> int:
        """Count a tensor's numbers at `batch_size`, from its shape in this summary."""
        count = 1
        for size in shape:
            if size != UNKNOWN_BATCH:
                count *= size
        if UNKNOWN_BATCH in shape:
            return count * batch_size
        if self.batch is None or not depends_on_batch(shape, self.batch):
            return count
        return count // self.batch * batch_size

    @cached_property
    def fingerprint(self) -> str:
        """A name for this architecture, the same for every batch size, column set and layout of the text.

        It hashes kind, parameters and per-sample output sizes of every leaf, in order.
        """
        import hashlib  # here, because loading it costs more than parsing most summaries

        digest = hashlib.sha256(_FINGERPRINT_VERSION.encode())
        for layer in self.leaves:
            sizes = ",".join(str(self.elements(shape, 1)) for shape in layer.outputs)
            row = f"{layer.kind}|{layer.params}|{int(layer.repeated)}|{sizes}\n"
            digest.update(row.encode("utf-8", "backslashreplace"))
        return digest.hexdigest()[:16]


def depends_on_batch(shape: Shape, batch: int) -> bool:
    """Whether a tensor of this shape grows with the batch, as far as its sizes show."""
    if not shape:
        return False
    return shape[0] % batch == 0 or batch in shape
