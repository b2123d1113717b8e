"""Beside a script that is traced or measured: data sets that need no download, and its memory on the GPU."""

import atexit
import importlib.machinery
import importlib.util
import json
import os
import sys
import types


class _After:
    """Calls a function when a module has been imported."""

    def __init__(self, actions):
        self.actions = actions
        self.looking = set()

    def find_spec(self, name, path=None, target=None):
        if name not in self.actions or name in self.looking:
            return None
        self.looking.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking.discard(name)
        if spec is None or spec.loader is None:
            return spec
        real = spec.loader.exec_module

        def execute(module):
            real(module)
            action = self.actions.pop(name, None)
            if action is not None:
                action(module)

        spec.loader.exec_module = execute
        return spec


def _cifar(module):
    """CIFAR-10 and CIFAR-100 without their files."""
    import numpy

    def init(self, root, train=True, transform=None, target_transform=None, download=False):
        super(module.cifar.CIFAR10, self).__init__(
            root, transform=transform, target_transform=target_transform
        )
        self.train = train
        count = 1280 if train else 320
        self.data = numpy.random.RandomState(0).randint(0, 256, (count, 32, 32, 3)).astype("uint8")
        self.targets = [index % 10 for index in range(count)]
        self.classes = [str(number) for number in range(10)]
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}

    module.cifar.CIFAR10.__init__ = init


def _old_numpy(numpy):
    """Names that numpy 2 took away and scripts of their time still use."""
    names = {"Inf": numpy.inf, "NaN": numpy.nan, "int": int, "float": float, "cumproduct": numpy.cumprod}
    names["asfarray"] = lambda values, dtype=float: numpy.asarray(values, dtype)
    for name, value in names.items():
        if not hasattr(numpy, name):
            setattr(numpy, name, value)
    parse = numpy.fromstring

    def from_string(text, dtype=float, count=-1, *, sep="", **others):
        if sep:
            return parse(text, dtype, count, sep=sep, **others)
        return numpy.frombuffer(text, dtype, count).copy()

    numpy.fromstring = from_string


def _old_pillow(image):
    """The same for Pillow."""
    if not hasattr(image, "ANTIALIAS"):
        image.ANTIALIAS = image.LANCZOS


def _measure(torch):
    """Write the peak of what PyTorch reserved and allocated, again and again until the end.

    Also how long after its start the command took its first optimizer step.
    """
    import threading
    import time

    from torch.optim.optimizer import register_optimizer_step_post_hook

    path = os.environ["GPUMEM_SCRIPTS_MEASURE"]
    started = float(os.environ.get("GPUMEM_SCRIPTS_STARTED", time.time()))
    first = []

    def stepped(*args):
        if not first:
            first.append(round(time.time() - started, 2))

    register_optimizer_step_post_hook(stepped)

    def write():
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            line = {
                "pid": os.getpid(),
                "reserved": torch.cuda.max_memory_reserved(),
                "allocated": torch.cuda.max_memory_allocated(),
                "first_step": first[0] if first else None,
            }
            with open(f"{path}.{os.getpid()}", "w") as file:
                json.dump(line, file)

    def again():
        while True:
            time.sleep(0.5)
            write()

    threading.Thread(target=again, daemon=True).start()
    atexit.register(write)


class Anything:
    """Every attribute and every call gives another."""

    def __getattr__(self, name):
        return Anything()

    def __call__(self, *args, **kwargs):
        return Anything()


def _anything(name):
    if name == "__version__":
        return "0.0.1"  # older than anything that asks accepts: pandas then does without pyarrow
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything()


def _metrics():
    """An `evaluate` whose metrics take everything and are zero: the real ones are downloaded."""

    class Metric:
        def add_batch(self, **values):
            pass

        def compute(self, *args, **values):
            names = ("accuracy", "f1", "rouge1", "wer", "exact_match", "mean_iou")
            overall = ("overall_precision", "overall_recall", "overall_f1", "overall_accuracy")
            return dict.fromkeys((*names, *overall), 0.0)

    module = types.ModuleType("evaluate")
    module.__spec__ = importlib.machinery.ModuleSpec("evaluate", None)
    module.load = lambda *args, **others: Metric()
    module.EvaluationModule = Metric
    sys.modules["evaluate"] = module


def _sounds():
    """A `librosa` that knows the filters of a spectrogram by their shape and reads WAV files."""
    import wave

    import numpy

    module = types.ModuleType("librosa")
    module.__spec__ = importlib.machinery.ModuleSpec("librosa", None)
    module.__path__ = []
    module.__getattr__ = _anything
    module.util = types.ModuleType("librosa.util")
    module.util.normalize = lambda sound, **others: sound / max(1e-9, numpy.abs(sound).max())
    module.filters = types.ModuleType("librosa.filters")

    def mel(sr=22050, n_fft=2048, n_mels=128, **others):
        return numpy.random.RandomState(0).rand(n_mels, 1 + n_fft // 2).astype("float32")

    def load(path, sr=22050, **others):
        with wave.open(str(path)) as file:
            samples = numpy.frombuffer(file.readframes(file.getnframes()), "<i2")
        return samples.astype("float32") / 32768, sr

    module.load = load
    module.filters.mel = mel
    sys.modules.update({"librosa": module, "librosa.util": module.util, "librosa.filters": module.filters})


def _sentences():
    """An `nltk` that takes a text for one sentence: the real one downloads its rules."""
    module = types.ModuleType("nltk")
    module.__spec__ = importlib.machinery.ModuleSpec("nltk", None)
    module.data = module.download = Anything()
    module.sent_tokenize = lambda text: [text]
    sys.modules["nltk"] = module


def _tokens():
    """A `tiktoken` that knows no encoding: the real one downloads them."""
    module = types.ModuleType("tiktoken")
    module.__spec__ = importlib.machinery.ModuleSpec("tiktoken", None)
    module.__getattr__ = _anything
    sys.modules["tiktoken"] = module


def _lists():
    import list_datasets

    list_datasets.install()


_SPECIAL = {
    "datasets": _lists,
    "evaluate": _metrics,
    "librosa": _sounds,
    "nltk": _sentences,
    "tiktoken": _tokens,
}
"""Stand-ins that do something, also where the real ones are: traces and runs then read the same."""


def _stand_in(name):
    """A package of a logger or a plotter that does nothing, where it is not installed."""
    if name in _SPECIAL:
        _SPECIAL[name]()
        return
    if importlib.util.find_spec(name) is not None:
        return
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__path__ = []
    module.__getattr__ = _anything
    sys.modules[name] = module
    if name == "matplotlib":
        _stand_in("matplotlib.pyplot")
        module.pyplot = sys.modules["matplotlib.pyplot"]


def _no_wandb():
    """A wandb that does nothing, where it is not installed."""
    if importlib.util.find_spec("wandb") is not None:
        return
    module = types.ModuleType("wandb")
    module.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
    module.__getattr__ = _anything
    sys.modules["wandb"] = module


def _no_tensorboard():
    """A SummaryWriter that writes nothing, where tensorboard is not installed."""
    if importlib.util.find_spec("tensorboard") is not None:
        return
    module = types.ModuleType("torch.utils.tensorboard")

    class SummaryWriter:
        def __init__(self, log_dir="runs", *args, **kwargs):
            self.log_dir = str(log_dir)
            os.makedirs(self.log_dir, exist_ok=True)

        def __getattr__(self, name):
            return lambda *args, **kwargs: None

    module.SummaryWriter = SummaryWriter
    sys.modules["torch.utils.tensorboard"] = module


_actions = {"torchvision.datasets": _cifar, "numpy": _old_numpy, "PIL.Image": _old_pillow}
if os.environ.get("GPUMEM_SCRIPTS_MEASURE"):
    _actions["torch"] = _measure
sys.meta_path.insert(0, _After(_actions))
_no_tensorboard()
_no_wandb()
for _name in os.environ.get("GPUMEM_SCRIPTS_STAND_INS", "").split():
    _stand_in(_name)
