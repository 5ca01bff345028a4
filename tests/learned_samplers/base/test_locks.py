"""A folder has one writer: locks between processes and objects, locks of the dead, and what killed writers leave."""

import gc
import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict

import pytest

from learned_samplers.base.files import append, write_atomically
from learned_samplers.base.locks import LOCK, FolderLock, Owner

HOLD = """
import sys, time
from learned_samplers.base.locks import FolderLock
lock = FolderLock(sys.argv[1])
print("held", flush=True)
if sys.argv[2] == "wait":
    time.sleep(60)
"""


def holder(folder, how):
    return subprocess.Popen([sys.executable, "-c", HOLD, str(folder), how], stdout=subprocess.PIPE, text=True)


def test_a_second_writer_is_refused_and_the_lock_of_a_killed_one_is_taken_over(tmp_path):
    process = holder(tmp_path, "wait")
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(RuntimeError, match=rf"is being written by process {process.pid} on host .*delete .*\.lock"):
            FolderLock(tmp_path)
    finally:
        process.kill()
        process.communicate()
    assert (tmp_path / LOCK).exists(), "a killed process cannot clean up"
    with FolderLock(tmp_path) as lock:
        assert lock.held
        assert [file.name for file in tmp_path.iterdir()] == [LOCK]
    assert not list(tmp_path.iterdir())


def test_the_lock_goes_with_its_process(tmp_path):
    process = holder(tmp_path, "end")
    process.communicate(timeout=120)
    assert process.returncode == 0
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
        lock.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert lock.held


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_whose_lock_is_stale(tmp_path):
    us = asdict(Owner.of_this_process())
    stale = [{**us, "pid": dead_pid()}]
    if us["started"]:  # where the system says more of a process than its number
        stale += [{**us, "started": "1"}, {**us, "boot": "another"}]
    for owner in stale:
        (tmp_path / LOCK).write_text(json.dumps(owner))
        FolderLock(tmp_path).release()
    for owner in ({**us, "host": "elsewhere", "pid": 2**40}, {**us, "namespace": "a container", "pid": 2**40}):
        (tmp_path / LOCK).write_text(json.dumps(owner))
        with pytest.raises(RuntimeError, match=r"process 1099511627776 on host .*if it is gone, delete .*\.lock"):
            FolderLock(tmp_path)
    for broken in ("", "[]", "{}", '{"host": 3, "pid": "x"}', "null"):
        (tmp_path / LOCK).write_text(broken)
        with pytest.raises(RuntimeError, match=r"\.lock is not a readable lock: delete it if"):
            FolderLock(tmp_path)


def test_a_lock_that_was_taken_away_is_noticed(tmp_path):
    lock = FolderLock(tmp_path)
    lock.require_held()
    (tmp_path / LOCK).unlink()
    with pytest.raises(RuntimeError, match="has been removed or replaced: nothing is written"):
        lock.require_held()
    lock.release()
    with pytest.raises(RuntimeError, match="was released"):
        lock.require_held()


RACE = """
import sys
from learned_samplers.base.locks import FolderLock
print("ready", flush=True)
sys.stdin.readline()
try:
    lock = FolderLock(sys.argv[1])
    print("held", flush=True)
except RuntimeError:
    print("refused", flush=True)
sys.stdin.readline()
"""


def test_of_several_that_find_a_dead_owner_one_gets_the_lock(tmp_path):
    (tmp_path / LOCK).write_text(json.dumps({**asdict(Owner.of_this_process()), "pid": dead_pid()}))
    command = [sys.executable, "-c", RACE, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(4)]
    assert {process.stdout.readline() for process in processes} == {"ready\n"}
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.stdout.readline().strip() for process in processes]
    for process in processes:
        process.communicate("end\n", timeout=60)
    assert sorted(said) == ["held", "refused", "refused", "refused"]


# -- what killed writers leave ----------------------------------------------------------------------------------------


def test_temporary_files_of_dead_processes_are_removed(tmp_path):
    host = socket.gethostname()
    dead = tmp_path / f".table.md.{host}.{dead_pid()}.tmp"
    living = tmp_path / f".table.md.{host}.{os.getppid()}.tmp"
    other = tmp_path / f".table.md.elsewhere.{2**40}.tmp"
    for file in (dead, living, other):
        file.write_text("half")
    write_atomically(tmp_path / "table.md", b"whole")
    assert {file.name for file in tmp_path.iterdir()} == {living.name, other.name, "table.md"}


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
