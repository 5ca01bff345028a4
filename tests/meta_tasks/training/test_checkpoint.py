"""Checkpoints: whole or absent, the last few kept, a damaged one passed over, nothing unpickled."""

import io
import os
import pickle
import random
import warnings

import numpy as np
import pytest
import torch

from learned_samplers.base.files import sealed
from meta_tasks.training import checkpoint
from meta_tasks.training.checkpoint import Checkpoints


def filled(folder, count=5):
    checkpoints = Checkpoints(folder)
    for i in range(1, count + 1):
        checkpoints.save(i, {"weights": torch.full((100,), float(i))})
    return checkpoints


def test_the_last_three_are_kept_and_the_newest_is_read(tmp_path):
    (tmp_path / "new" / "folder").mkdir(parents=True)
    (tmp_path / "new" / "folder" / "checkpoint-best.pt").write_text("of others, which is left alone")
    checkpoints = filled(tmp_path / "new" / "folder")
    assert [path.name for path in checkpoints.paths()] == [f"checkpoint-{i:08d}.pt" for i in (3, 4, 5)]
    assert checkpoints.load()["weights"][0] == 5
    assert Checkpoints(tmp_path / "empty").load() is None


def test_numbers_of_numpy_are_read_back(tmp_path):
    payload = {"lrs": [np.float64(0.1)], "sizes": (np.int64(3), 4.0), np.int64(5): np.bool_(True)}
    Checkpoints(tmp_path).save(1, payload)
    read = Checkpoints(tmp_path).load()
    assert {name: read[name] for name in payload} == {"lrs": [0.1], "sizes": (3, 4.0), 5: True}


def test_no_flipped_byte_and_no_cut_end_makes_another_run(tmp_path):
    Checkpoints(tmp_path).save(1, {"weights": torch.zeros(3), "history": {"loss": [1.0]}})
    optimizer = {"state": {0: {"step": torch.tensor(2.0), "exp_avg": torch.randn(3)}}, "param_groups": [{"lr": 0.1}]}
    newest = Checkpoints(tmp_path).save(2, {"weights": torch.ones(3), "optimizer": optimizer, "history": {}})
    assert torch.load(newest, weights_only=True)["iteration"] == 2, "the checksum is not in torch's way"
    good, draw = newest.read_bytes(), random.Random(0)
    flips = [(draw.randrange(len(good)), 1 << draw.randrange(8)) for _ in range(300)]
    flips += [(len(good) - i, 1) for i in range(1, 70)]  # in the checksum itself
    damaged = [good[:i] + bytes([good[i] ^ bit]) + good[i + 1 :] for i, bit in flips]
    damaged += [good[: draw.randrange(len(good))] for _ in range(50)] + [good[:-i] for i in range(1, 70)]
    damaged += [b"", bytes(64) + good[64:]]
    for data in damaged:
        newest.write_bytes(data)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            assert Checkpoints(tmp_path).load()["iteration"] == 1
        assert len(said) == 1
        assert newest.name in str(said[0].message)


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_newest_file_does_not_outlive_the_checkpoint_that_the_run_goes_on_with(tmp_path, keep):
    for i in (50, 90, 100):
        Checkpoints(tmp_path).save(i, {"weights": torch.full((100,), float(i))})
    newest = tmp_path / "checkpoint-00000100.pt"
    newest.write_bytes(b"cut")
    checkpoints = Checkpoints(tmp_path, keep)
    with pytest.warns(UserWarning, match="checkpoint passed over"):
        assert checkpoints.load()["iteration"] == 90
    assert newest.exists()  # reading changes nothing
    message = r"goes on with .*00000095\.pt: checkpoint-00000100\.pt renamed to checkpoint-00000100\.pt\.damaged"
    with pytest.warns(UserWarning, match=message):
        written = checkpoints.save(95, {"weights": torch.full((100,), 95.0)})
    kept = [tmp_path / f"checkpoint-{i:08d}.pt" for i in (50, 90, 95)[-keep:]]
    assert checkpoints.paths() == kept
    assert kept[-1] == written
    assert checkpoints.load()["weights"][0] == 95
    assert (tmp_path / "checkpoint-00000100.pt.damaged").read_bytes() == b"cut"
    assert checkpoints.save(100, {}) == newest  # once the run is there again, without a word


def test_when_none_can_be_read_that_is_an_error_and_not_a_fresh_start(tmp_path):
    checkpoints = filled(tmp_path, 2)
    for path in checkpoints.paths():
        path.write_bytes(b"")
    message = r"none of the 2 checkpoints .* can be read"
    with pytest.warns(UserWarning, match="checkpoint passed over"), pytest.raises(ValueError, match=message):
        checkpoints.load()


class _Trap:
    def __reduce__(self):
        return (pytest.fail, ("a checkpoint was unpickled",))


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ({"format": "learned-samplers meta-training", "version": 3, "weights": _Trap()}, "cannot be read"),
        (_Trap(), "cannot be read"),
        ({"format": "learned-samplers meta-training", "version": 99}, "has version 99"),
        ({"weights": 1}, "is not a checkpoint"),
    ],
)
def test_nothing_is_unpickled_and_no_other_file_is_taken(tmp_path, payload, named):
    path = tmp_path / "checkpoint-00000001.pt"
    buffer = io.BytesIO()
    torch.save(payload, buffer)
    for content in (buffer.getvalue(), pickle.dumps(payload)):
        path.write_bytes(sealed(content))
        with pytest.raises(ValueError, match=f"{path.name} ({named}|cannot be read)"):
            Checkpoints.read(path)


def test_files_that_changed_their_names_are_told_from_damaged_ones_and_refused(tmp_path):
    """Newest first, the older of two swapped files would be resumed."""
    checkpoints = filled(tmp_path, 3)
    _, second, third = checkpoints.paths()
    second.rename(tmp_path / "aside")
    third.rename(second)
    (tmp_path / "aside").rename(third)
    with pytest.warns(UserWarning, match=r"0000000[23]\.pt holds iteration [23]: it has another checkpoint's") as told:
        assert checkpoints.load()["iteration"] == 1
    assert len(told) == 2
    assert Checkpoints.read(third.rename(tmp_path / "best.pt"))["iteration"] == 2  # a name that says nothing


def test_a_pipe_in_the_place_of_a_checkpoint_is_not_waited_for(tmp_path):
    checkpoints = filled(tmp_path, 1)
    os.mkfifo(tmp_path / "checkpoint-00000002.pt")
    with pytest.warns(UserWarning, match="no regular file"):
        assert checkpoints.load()["iteration"] == 1


def test_a_write_that_fails_leaves_the_old_ones(tmp_path, monkeypatch):
    checkpoints = filled(tmp_path)

    def full(path, data):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(checkpoint, "write_atomically", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(6, {})
    assert checkpoints.load()["weights"][0] == 5
    assert len(list(tmp_path.iterdir())) == 3
