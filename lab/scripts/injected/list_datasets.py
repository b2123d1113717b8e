"""A `datasets` made of lists, for machines without pyarrow: what training scripts ask of it, and no more.

`load_dataset` reads text, CSV, JSON lines and folders of images; another name is a folder of that name with
train.jsonl, validation.jsonl, ... in it (and in a folder of the configuration's name, where one is given).
"""

import csv
import glob
import json
import os
import random
import sys
import types

__version__ = "5.2.0"
_IMAGES = (".jpg", ".png")
_AUDIO_SECONDS = 2.0


class Value:
    """A plain column."""

    def __init__(self, dtype="string"):
        self.dtype = dtype


class ClassLabel:
    """A column of classes."""

    dtype = "int64"

    def __init__(self, num_classes=None, names=None):
        self.names = names or [str(number) for number in range(num_classes)]
        self.num_classes = len(self.names)

    def int2str(self, value):
        return self.names[value]

    def str2int(self, value):
        return self.names.index(value)


class Sequence:
    """A column of lists."""

    def __init__(self, feature=None):
        self.feature = feature


class Image:
    """A column of images: files that are opened when they are asked for."""

    def __init__(self, **others):
        pass


class Audio:
    """A column of sounds: noise of two seconds, whatever the file."""

    def __init__(self, sampling_rate=16000, **others):
        self.sampling_rate = sampling_rate


def _kind(values):
    one = next((value for value in values if value is not None), "")
    if isinstance(one, (list, tuple)):
        return Sequence(_kind(one))
    names = {bool: "bool", int: "int64", float: "float64"}
    return Value(names.get(type(one), "string"))


class IterableDataset:
    """Named by libraries; none is ever made."""


class IterableDatasetDict(dict):
    """Likewise."""


class Dataset:
    """Columns of equal length."""

    builder_name = config_name = split = "lists"  # for the cards of models
    format = {"type": None, "columns": None}  # noqa: RUF012

    def __init__(self, columns, features=None, transform=None):
        self.columns = columns
        self.features = {
            name: (features or {}).get(name) or _kind(values) for name, values in columns.items()
        }
        self.transform = transform
        self.cache_files = []
        self._fingerprint = str(id(self))

    @classmethod
    def from_list(cls, rows):
        return cls({name: [row[name] for row in rows] for name in (rows[0] if rows else {})})

    @classmethod
    def from_dict(cls, columns):
        return cls(dict(columns))

    @property
    def column_names(self):
        return list(self.columns)

    @property
    def num_rows(self):
        return len(self)

    def __len__(self):
        return len(next(iter(self.columns.values()), []))

    def _value(self, name, value):
        kind = self.features[name]
        if isinstance(kind, Image) and isinstance(value, str):
            from PIL import Image as files

            return files.open(value)
        if isinstance(kind, Audio):
            import numpy

            count = int(_AUDIO_SECONDS * kind.sampling_rate)
            return {"array": numpy.random.RandomState(0).randn(count), "sampling_rate": kind.sampling_rate}
        return value

    def __getitem__(self, key):
        if isinstance(key, str):
            return [self._value(key, value) for value in self.columns[key]]
        if isinstance(key, slice):
            key = range(*key.indices(len(self)))
        if hasattr(key, "__iter__"):
            batch = {
                name: [self._value(name, values[index]) for index in key]
                for name, values in self.columns.items()
            }
            return self.transform(batch) if self.transform else batch
        if self.transform:
            return {name: values[0] for name, values in self[[int(key)]].items()}
        return {name: self._value(name, values[int(key)]) for name, values in self.columns.items()}

    def __getitems__(self, keys):
        return [self[key] for key in keys]

    def __iter__(self):
        return (self[index] for index in range(len(self)))

    def _take(self, keys):
        return Dataset(
            {name: [values[key] for key in keys] for name, values in self.columns.items()},
            self.features,
            self.transform,
        )

    def select(self, keys, **others):
        return self._take(list(keys))

    def shuffle(self, seed=0, **others):
        keys = list(range(len(self)))
        random.Random(seed or 0).shuffle(keys)
        return self._take(keys)

    def shard(self, num_shards, index, **others):
        return self._take(list(range(index, len(self), num_shards)))

    def unique(self, name):
        return list(dict.fromkeys(self.columns[name]))

    def train_test_split(self, test_size=0.25, **others):
        count = test_size if isinstance(test_size, int) else max(1, int(test_size * len(self)))
        rest = len(self) - count
        return DatasetDict(train=self.select(range(rest)), test=self.select(range(rest, len(self))))

    def select_columns(self, names):
        return Dataset({name: self.columns[name] for name in names}, self.features, self.transform)

    def remove_columns(self, names):
        names = [names] if isinstance(names, str) else names
        return self.select_columns([name for name in self.columns if name not in names])

    def rename_column(self, old, new):
        columns = {new if name == old else name: values for name, values in self.columns.items()}
        features = {new if name == old else name: kind for name, kind in self.features.items()}
        return Dataset(columns, features, self.transform)

    def rename_columns(self, names):
        found = self
        for old, new in names.items():
            found = found.rename_column(old, new)
        return found

    def add_column(self, name, column, **others):
        return Dataset({**self.columns, name: list(column)}, self.features, self.transform)

    def cast_column(self, name, kind):
        return Dataset(self.columns, {**self.features, name: kind}, self.transform)

    def set_transform(self, transform, **others):
        self.transform = transform

    def with_transform(self, transform, **others):
        return Dataset(self.columns, self.features, transform)

    def set_format(self, *args, **others):
        pass

    def with_format(self, *args, **others):
        return self

    def filter(self, function, input_columns=None, **others):
        names = [input_columns] if isinstance(input_columns, str) else input_columns

        def kept(row):
            return function(*(row[name] for name in names)) if names else function(row)

        return self._take([index for index, row in enumerate(self) if kept(row)])

    def map(
        self,
        function,
        batched=False,
        batch_size=1000,
        remove_columns=None,
        with_indices=False,
        fn_kwargs=None,
        input_columns=None,
        **others,
    ):
        gone = [remove_columns] if isinstance(remove_columns, str) else remove_columns or []
        names = [input_columns] if isinstance(input_columns, str) else input_columns
        rows = {}
        kept = [name for name in self.columns if name not in gone]
        step = (batch_size or len(self) or 1) if batched else 1
        for start in range(0, len(self), step):
            keys = list(range(start, min(start + step, len(self))))
            given = self[keys] if batched else self[start]
            args = [given[name] for name in names] if names else [given]
            args += [keys if batched else start] if with_indices else []
            before = dict(given)
            answer = function(*args, **(fn_kwargs or {})) or {}
            # A row that is handed back counts for what was changed in it.
            same = before if answer is given else {}
            made = {name: value for name, value in answer.items() if value is not same.get(name, _MISSING)}
            made = made if batched else {name: [value] for name, value in made.items()}
            count = len(next(iter(made.values()), keys))
            for name in kept:
                if name not in made and count == len(keys):
                    made[name] = [self.columns[name][key] for key in keys]
            for name, values in made.items():
                rows.setdefault(name, []).extend(_plain(value) for value in values)
        return Dataset(rows, {name: kind for name, kind in self.features.items() if name in kept})


def _plain(value):
    """Arrow hands back lists, whatever it was given."""
    return value.tolist() if hasattr(value, "tolist") and hasattr(value, "shape") else value


class DatasetDict(dict):
    """Datasets by the name of their split; a dataset's methods are those of each."""

    def __getattr__(self, name):
        if name.startswith("__") or not callable(getattr(Dataset, name, None)):
            raise AttributeError(name)

        def each(*args, **others):
            return DatasetDict({key: getattr(one, name)(*args, **others) for key, one in self.items()})

        return each

    @property
    def column_names(self):
        return {key: one.column_names for key, one in self.items()}


def concatenate_datasets(parts, **others):
    """The rows of the first, then those of the next."""
    columns = {name: [value for one in parts for value in one.columns[name]] for name in parts[0].columns}
    return Dataset(columns, parts[0].features)


def _read(path):
    if path.endswith(".csv"):
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return [{name: int(text) if text.isdigit() else text for name, text in row.items()} for row in rows]
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    if path.endswith((".json", ".jsonl")):
        return [json.loads(line) for line in lines]
    return [{"text": line} for line in lines]


def _image_folder(paths):
    files = sorted(path for path in paths if path.endswith(_IMAGES))
    labels = [os.path.basename(os.path.dirname(path)) for path in files]
    listed = {}
    for path in paths:
        if path.endswith("metadata.jsonl"):
            folder = os.path.dirname(path)
            listed.update({os.path.join(folder, row.pop("file_name")): row for row in _read(path)})
    columns = {"image": files}
    features = {"image": Image()}
    if listed:
        for name in next(iter(listed.values())):
            columns[name] = [listed[path][name] for path in files]
            if str(columns[name][0]).endswith(_IMAGES):
                folder = os.path.dirname(files[0])
                columns[name] = [os.path.join(folder, value) for value in columns[name]]
                features[name] = Image()
    elif len(set(labels)) > 1:
        names = sorted(set(labels))
        columns["label"] = [names.index(label) for label in labels]
        features["label"] = ClassLabel(names=names)
    return Dataset(columns, features)


def _rows(paths):
    rows = [row for path in paths for row in _read(path)]
    made = Dataset.from_list(rows)
    if "audio" in made.columns:
        made.features["audio"] = Audio()
        made.features["label"] = ClassLabel(num_classes=1 + max(made.columns["label"]))
    return made


def load_dataset(path, name=None, data_files=None, data_dir=None, split=None, **others):
    """The splits that `data_files` names, or those that lie in a folder."""
    reader = _image_folder if path == "imagefolder" else _rows
    if isinstance(data_files, str):
        data_files = {"train": data_files}
    if isinstance(data_files, (list, tuple)):
        data_files = {"train": list(data_files)}
    if not data_files:
        folder = os.path.join(*filter(None, [data_dir or path, None if data_dir else name]))
        listed = os.path.exists(os.path.join(folder, "metadata.jsonl"))
        if path == "imagefolder" or listed or os.path.isdir(os.path.join(folder, "train")):
            reader = _image_folder
            parts = {one: os.path.join(folder, one, "**") for one in ("train", "validation", "test")}
            data_files = {one: place for one, place in parts.items() if os.path.isdir(place[:-3])}
            data_files = data_files or {"train": os.path.join(folder, "**")}
        else:
            files = sorted(glob.glob(os.path.join(folder, "*.jsonl")))
            if not files:
                raise FileNotFoundError(f"no data set in {folder}: no *.jsonl, no train/")
            data_files = {os.path.basename(file)[: -len(".jsonl")]: file for file in files}
    found = DatasetDict()
    for part, places in data_files.items():
        places = [places] if isinstance(places, str) else places
        found[part] = reader([one for place in places for one in sorted(glob.glob(place, recursive=True))])
    if split is None:
        return found
    part, _, share = split.partition("[")
    whole = found[part]
    if not share:
        return whole
    ends = [int(len(whole) * int(one[:-1]) / 100) if one else None for one in share.rstrip("]").split(":")]
    return whole.select(range(*slice(*ends).indices(len(whole))))


def install():
    """Make it `datasets`, whether the real one is there or not: traces and runs then read the same."""
    import importlib.machinery

    here = sys.modules[__name__]
    here.__spec__ = importlib.machinery.ModuleSpec("datasets", None)
    here.__path__ = []
    quiet = types.SimpleNamespace(
        set_verbosity=print_nothing, set_verbosity_warning=print_nothing, set_verbosity_error=print_nothing
    )
    here.utils = types.ModuleType("datasets.utils")
    here.utils.logging = quiet
    here.features = types.ModuleType("datasets.features")
    for kind in (Audio, Image, ClassLabel, Value, Sequence):
        setattr(here.features, kind.__name__, kind)
    here.fingerprint = types.ModuleType("datasets.fingerprint")
    here.fingerprint.Hasher = types.SimpleNamespace(hash=lambda value: str(hash(str(value))))
    here.Features = dict
    here.disable_progress_bar = here.disable_caching = print_nothing
    sys.modules["datasets"] = here
    for name in ("utils", "features", "fingerprint"):
        sys.modules[f"datasets.{name}"] = getattr(here, name)


_MISSING = object()


def print_nothing(*args, **others):
    """In the place of loggers' settings."""
