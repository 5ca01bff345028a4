"""A folder has one writer: locks between processes and objects, locks of the dead, and what killed writers leave."""

import gc
import json
import os
import socket
import subprocess
import sys
import threading

import filelock
import pytest

from learned_samplers.base import files
from learned_samplers.base.files import LOCK, FolderLock, append, shared_lock, write_atomically

HOLD = """
import sys
from learned_samplers.base.files import FolderLock
lock = FolderLock(sys.argv[1])
print("held", flush=True)
sys.stdin.readline()
"""


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_second_writer_is_refused_until_the_first_has_ended(tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], **pipes)
    try:
        assert process.stdout.readline() == "held\n"
        for _ in range(2):
            with pytest.raises(RuntimeError, match=rf"by process {process.pid} on host {socket.gethostname()}: two"):
                FolderLock(tmp_path)
    finally:
        process.communicate("end\n")
    assert not (tmp_path / LOCK).exists()
    with FolderLock(tmp_path) as lock:
        assert lock.held
        assert [file.name for file in tmp_path.iterdir()] == [LOCK]
    assert not list(tmp_path.iterdir())


def test_two_objects_of_one_process(tmp_path):
    first = FolderLock(tmp_path)
    with pytest.raises(RuntimeError, match="by another object of this process"):
        FolderLock(tmp_path)
    first.release()
    second = FolderLock(tmp_path)
    first.release()
    assert second.held, "a released lock must not remove its successor"
    assert not first.held
    del second
    gc.collect()
    assert not list(tmp_path.iterdir()), "a lock that nobody has any more is gone"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_does_not_release_its_parents_lock(tmp_path):
    lock = FolderLock(tmp_path)
    child = os.fork()
    if not child:
        was_held = lock.held
        lock.release()
        del lock
        gc.collect()
        os._exit(was_held)
    assert os.waitpid(child, 0)[1] == 0
    assert lock.held
    with pytest.raises(RuntimeError, match="by another object of this process"):
        FolderLock(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "null", '{"pid": 4711, "host": "elsewhere", "token": "a"}'])
def test_whatever_a_file_that_nobody_locks_says_it_is_taken_over(content, tmp_path):
    """As after a power cut, or from a writer on another host that the file system knows to be gone."""
    (tmp_path / LOCK).write_text(content)
    with FolderLock(tmp_path) as lock:
        assert json.loads(lock.path.read_text())["pid"] == os.getpid()


def test_a_file_system_without_locks_has_the_file_itself_as_one(tmp_path, monkeypatch):
    class Unable(filelock.FileLock):
        def acquire(self, *_, **__):
            raise NotImplementedError("no flock here")

    monkeypatch.setattr(files.filelock, "FileLock", Unable)
    with FolderLock(tmp_path) as lock:
        assert lock.held
        with pytest.raises(RuntimeError, match=rf"another process: .*if it is gone, delete .*{LOCK}"):
            FolderLock(tmp_path)
        assert lock.held
    assert not (tmp_path / LOCK).exists()


def test_a_file_that_cannot_be_read_while_it_is_locked_is_a_lock_all_the_same(tmp_path, monkeypatch):
    """As on Windows."""
    open_file = open

    def refuse(path, *given):
        if str(path).endswith(LOCK):
            raise PermissionError(13, "locked")
        return open_file(path, *given)

    monkeypatch.setattr(files, "open", refuse, raising=False)
    with FolderLock(tmp_path) as lock:
        assert lock.held
        with pytest.raises(RuntimeError, match="by another process"):
            FolderLock(tmp_path)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # who runs the tests as root may write everywhere
    with pytest.raises(PermissionError, match=str(tmp_path)):
        FolderLock(tmp_path)


def test_a_lock_that_was_taken_away_is_noticed(tmp_path):
    lock = FolderLock(tmp_path)
    lock.require_held()
    (tmp_path / LOCK).unlink()
    with pytest.raises(RuntimeError, match="has been removed or replaced: nothing is written"):
        lock.require_held()
    successor = FolderLock(tmp_path)
    lock.release()
    with pytest.raises(RuntimeError, match="was released"):
        lock.require_held()
    assert successor.held


def test_of_several_that_come_and_go_never_two_hold_the_lock(tmp_path):
    """The file is removed with each release, while others may have it open already."""
    holders, most, taken = [], [], []

    def come_and_go():
        for _ in range(100):
            try:
                with FolderLock(tmp_path) as lock:
                    holders.append(lock)
                    most.append(len(holders))
                    lock.require_held()
                    taken.append(lock)
                    holders.remove(lock)
            except RuntimeError as error:
                assert "is being written by" in str(error)  # noqa: PT017

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert len(taken) > 10
    assert not list(tmp_path.iterdir())


def test_a_process_has_one_lock_on_a_folder_and_of_ranks_the_first(tmp_path, monkeypatch):
    first = shared_lock(tmp_path)
    assert shared_lock(tmp_path / "." / "") is first
    first.release()
    again = shared_lock(tmp_path)
    assert again is not first
    assert again.held
    monkeypatch.setenv("RANK", "1")
    assert shared_lock(tmp_path) is None


# -- what killed writers leave ----------------------------------------------------------------------------------------


def test_temporary_files_of_dead_processes_are_removed(tmp_path):
    host = socket.gethostname()
    dead = tmp_path / f".table.md.{host}.{dead_pid()}.tmp"
    living = tmp_path / f".table.md.{host}.{os.getppid()}.tmp"
    elsewhere = tmp_path / f".table.md.elsewhere.{2**40}.tmp"
    for file in (dead, living, elsewhere):
        file.write_text("half")
    write_atomically(tmp_path / "table.md", b"whole")
    assert {file.name for file in tmp_path.iterdir()} == {living.name, elsewhere.name, "table.md"}


def test_append_drops_what_was_torn_and_undoes_what_failed(tmp_path, monkeypatch):
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    append(path, 4, b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device \(while writing 6 bytes; nothing was changed\).*log"):
        append(path, 8, b"three\n")
    assert path.read_bytes() == b"one\ntwo\n"
