"""The memory of a prediction: the answer, and one batch times one chunk of samples."""

import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from learned_samplers.posterior import running
from tests.learned_samplers.posterior.common import collection, ensemble

X = torch.linspace(-2, 2, 32 * 3 * 256).view(32, 3, 16, 16)
CLASSES, SAMPLES, CHUNK = 20, 8, 4
PIECE = CHUNK * CLASSES * 256 * 4  # bytes of the predictions of one image by one chunk


class Allocated(TorchDispatchMode):
    """Counts the bytes of the tensors that are made within it and still alive, and their largest number."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.known |= {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage._cdata not in self.known:
                self.known.add(storage._cdata)
                self.now += storage.nbytes()
                weakref.finalize(storage, self.freed, storage._cdata, storage.nbytes())
                self.peak = max(self.peak, self.now)
        return result

    def freed(self, key, size):
        self.known.discard(key)
        self.now -= size


def use(name, **options):
    def run(samples, **how):
        return getattr(samples, name)(X, **options, **how)

    return run


LOG_VARIANCE = {"output": "regression", "noise": "log_variance"}
USES = {
    "predict": use("predict", class_axis=1),
    "cumulative": use("predict", class_axis=1, cumulative=True),
    "predict_samples": use("predict_samples", class_axis=1),
    "draws": use("draws", class_axis=1),
    "uncertainty": use("uncertainty", class_axis=1),
    "mean": use("predict", output="regression"),
    "mixture": use("uncertainty", **LOG_VARIANCE),
    "targets": use("draws", **LOG_VARIANCE),
}


@pytest.mark.parametrize("vectorize", [True, False])
@pytest.mark.parametrize("name", USES)
def test_the_peak_is_the_answer_and_a_few_pieces(name, vectorize, monkeypatch):
    monkeypatch.setattr(running, "HELD", 0)
    samples = collection(ensemble(lambda: nn.Conv2d(3, CLASSES, 1), SAMPLES))
    with Allocated() as allocated:
        outputs = USES[name](samples, batch_size=1, sample_chunk=CHUNK, vectorize=vectorize)
    answer = sum(tensor.nbytes for tensor in (outputs if isinstance(outputs, tuple) else (outputs,)))
    assert answer <= allocated.peak <= answer + 6 * PIECE


@pytest.mark.parametrize("held", [0, 2**25])
def test_an_iteration_holds_one_batch_and_reads_one_of_a_loader(held, monkeypatch):
    monkeypatch.setattr(running, "HELD", held)
    samples = collection(ensemble(lambda: nn.Conv2d(3, CLASSES, 1), SAMPLES))
    options, read = {"class_axis": 1, "sample_chunk": CHUNK}, []

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return len(X)

        def __getitem__(self, index):
            read.append(index)
            return X[index]

    expected, parts = samples.predict_samples(X, batch_size=5, **options), []
    for part in samples.predict_batches(DataLoader(Images(), batch_size=5), **options):
        parts.append(part)
        assert len(read) == min(5 * len(parts), len(X))
        assert torch.is_grad_enabled()
        assert samples.model.training
    assert torch.equal(torch.cat(parts, 1), expected)
    many, one = (samples.uncertainty(X, batch_size=size, **options) for size in (32, 3))
    torch.testing.assert_close(tuple(one), tuple(many))


#: Images whose inputs are large beside what is predicted of them.
WIDE = torch.linspace(-2, 2, 64 * 3 * 1024).view(64, 3, 32, 32)


class Stream(torch.utils.data.IterableDataset):
    """Examples whose number nobody knows."""

    def __iter__(self):
        return iter(WIDE)


class Repeated(torch.utils.data.Dataset):
    """More examples than a loader's sampler has numbers: each item is two."""

    def __len__(self):
        return len(WIDE) // 2

    def __getitem__(self, index):
        return WIDE[2 * index : 2 * index + 2]


LOADERS = {
    "usual": lambda: DataLoader(WIDE, batch_size=4),
    "last": lambda: DataLoader(torch.cat([WIDE, WIDE[:1]]), batch_size=4, drop_last=True),
    "stream": lambda: DataLoader(Stream(), batch_size=4),
    "each": lambda: DataLoader(Repeated(), batch_size=None),
    "pairs": lambda: DataLoader(Repeated(), batch_size=2, collate_fn=torch.cat),
}


@pytest.mark.parametrize("name", ["uncertainty", "predict_samples"])
@pytest.mark.parametrize("source", LOADERS)
@pytest.mark.parametrize("held", [0, 2**25])
def test_a_loaders_inputs_are_held_a_batch_at_a_time(source, name, held, monkeypatch):
    monkeypatch.setattr(running, "HELD", held)
    samples = collection(ensemble(lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 1024, 2)), 2 * CHUNK))
    predicted, loader = getattr(samples, name), LOADERS[source]()
    expected = predicted(WIDE, batch_size=4, sample_chunk=CHUNK)
    with Allocated() as allocated:
        prediction = predicted(loader, sample_chunk=CHUNK)
    torch.testing.assert_close(prediction, expected)
    weights = 2 * CHUNK * 3 * 1024 * 2 * 4
    together = WIDE.nbytes if held else 3 * 4 * WIDE[0].nbytes
    assert allocated.peak <= weights + together + WIDE.nbytes // 8
    assert held or together < WIDE.nbytes / 4
