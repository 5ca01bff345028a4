"""The texts of the rivals on an adapter, from a tiny package and tiny reviews."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from experiments.adapters import corpus as module
from experiments.adapters.corpus import corpus, docstrings, documentation, last_words

from meta_tasks.datasets.texts import SPECIAL, TokenData

FILE = '"""{words}"""\n\ndef f():\n    """Too short."""\n'


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Two packages, of which each file has one docstring that is long enough."""
    for package, word in (("apples", "apple"), ("pears", "pear")):
        (tmp_path / package / "tests").mkdir(parents=True)
        (tmp_path / package / "__init__.py").write_text("")
        (tmp_path / package / "broken.py").write_text("def")
        (tmp_path / package / "tests" / "more.py").write_text(FILE.format(words=f"{word} " * 30))
        for number in range(20):
            words = f"{package} {word} {number} " * 10
            (tmp_path / package / f"file{number}.py").write_text(FILE.format(words=words))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(module, "PACKAGES", {"apples": ("apples",), "pears": ("pears",)})
    return tmp_path


def test_docstrings_are_those_of_readable_files_outside_tests(packages):
    texts = dict(docstrings("apples"))
    assert sorted(texts) == sorted(f"apples/file{number}.py" for number in range(20))
    assert texts["apples/file7.py"][:4] == ("apples", "apple", "7", "apples")
    assert all(file.startswith("python/") for file, _ in islice(docstrings("python"), 5))
    with pytest.raises(ValueError, match=r"documentation of no_such_package .* not installed"):
        list(docstrings("no_such_package"))


def test_documentation_hides_the_names_and_is_read_once(packages):
    path = packages / "out" / "documentation.json"
    parts = documentation(path)
    texts = [text for pairs in parts.values() for text, _ in pairs]
    assert len(texts) == len(set(texts)) == 40
    assert all(text[0] == SPECIAL[1] and {"apples", "pears"}.isdisjoint(text) for text in texts)
    assert all(number == (text[1] == "pear") for pairs in parts.values() for text, number in pairs)
    for file in packages.glob("*/file*.py"):
        file.unlink()
    assert documentation(path) == parts


def test_last_words():
    x = torch.tensor([[5, 6, 7, 8], [5, 6, 0, 0], [5, 0, 0, 0]])
    assert last_words(x, 2).tolist() == [[7, 8], [5, 6], [5, 0]]
    assert last_words(x, 3).tolist() == [[6, 7, 8], [5, 6, 0], [5, 0, 0]]


def test_both_tasks_have_one_vocabulary(packages, monkeypatch):
    def reviews(name, root, **sizes):
        words = torch.tensor([[2, 3, 4, 2], [2, 3, 0, 0]])
        y = torch.tensor([0, 1])
        return TokenData(name, 2, words, y, words, y, words, y, vocabulary=(*SPECIAL, "film", "apple", "rare"))

    monkeypatch.setattr(module, "load_text", reviews)
    texts = corpus(None, 8, 3, packages / "out")
    tasks = texts.tasks
    assert tasks["reviews"].vocabulary == tasks["packages"].vocabulary
    assert len(tasks["reviews"].vocabulary) == 8
    assert set(tasks["reviews"].vocabulary[:4]) == {*SPECIAL, "apple", "pear"}  # the frequent ones
    assert all(task.train_x.shape[1] == 3 for task in tasks.values())
    assert tasks["packages"].num_classes == 2
    held_out = sum(len(tasks["packages"].split(part)[0]) for part in ("val", "test"))
    assert len(texts.unlabelled) == 2 + 40 - held_out
    assert tasks["reviews"].text(tasks["reviews"].test_x[0]).split()[1] == "<unknown>"  # the rare word
