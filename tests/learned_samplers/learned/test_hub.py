"""Weights by the hub's conventions, offline: from a name, a file, a folder, and a repository that is a folder here."""

import shutil
from pathlib import Path

import pytest
import torch

from learned_samplers import L2E, KineticL2E, MetaSGMCMC
from learned_samplers.learned import weights
from learned_samplers.learned.hub import model_card
from tests.learned_samplers.learned.cases import parameter

SHIPPED = [(L2E, "l2e-gated"), (L2E, "l2e-paper"), (KineticL2E, "kinetic-l2e"), (MetaSGMCMC, "meta-sgmcmc-toy")]


def same(first, second):
    return all(torch.equal(x, y) for x, y in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize(("sampler", "name"), SHIPPED)
def test_a_folder_and_what_is_found_in_it_are_the_shipped_network(tmp_path, sampler, name):
    original = sampler.from_pretrained(name)
    original.save_pretrained(tmp_path / "folder")
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == [
        "README.md",
        "model.json",
        "model.safetensors",
    ]
    expected = sampler([parameter()], num_data=10, network=name)
    again = sampler.from_pretrained(tmp_path / "folder")
    for network in (original, again, again.path, tmp_path / "folder", str(tmp_path / "folder")):
        made = sampler([parameter()], num_data=10, network=network)
        assert made.fingerprint() == expected.fingerprint()
        assert made.card["sha256"] == expected.card["sha256"]
    assert same(sampler.from_pretrained(again.path).network, original.network)


def test_the_card_is_a_page_with_front_matter_that_is_kept(tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    original = L2E.from_pretrained("l2e-gated")
    original.save_pretrained(tmp_path)
    page = hub.ModelCard.load(tmp_path / "README.md")
    assert (page.data.library_name, page.data.license) == ("learned-samplers", "mit")
    assert "L2E" in page.data.tags
    for text in ("# l2e-gated", original.card["learned"], original.card["chosen"], "L2E.from_pretrained(", "biased"):
        assert text in page.text
    (tmp_path / "README.md").write_text("mine")
    original.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
    assert "Recommended**: nothing; give lr" in model_card({**original.card, "defaults": {}})
    assert "license: other" in model_card({**original.card, "licence": "ask"})
    assert "law**: not measured" in model_card({**original.card, "law": None})


def test_a_repository_is_pushed_and_found(tmp_path, monkeypatch):
    mixin = pytest.importorskip("huggingface_hub.hub_mixin")
    calls = []

    class Api:
        def __init__(self, token=None):
            calls.append(token)

        def create_repo(self, repo_id, private=None, exist_ok=True):
            self.repo_id = repo_id
            return self

        def upload_folder(self, *, repo_id, folder_path, commit_message, **options):
            calls.append((repo_id, commit_message))
            shutil.copytree(folder_path, tmp_path / repo_id)
            return "address of the commit"

    def download(repo_id, filename, revision=None, **options):
        if filename == "config.json":
            raise mixin.HfHubHTTPError("none", response=Response())
        calls.append((repo_id, filename, revision))
        return str(tmp_path / repo_id / filename)

    class Response:
        headers, request = {}, None

    monkeypatch.setattr(mixin, "HfApi", Api)
    monkeypatch.setattr(mixin, "hf_hub_download", download)
    monkeypatch.setattr("learned_samplers.learned.hub.hf_hub_download", download)
    original = KineticL2E.from_pretrained("kinetic-l2e")
    assert original.push_to_hub("me/kinetic", commit_message="weights", token="t") == "address of the commit"
    again = KineticL2E.from_pretrained("me/kinetic", revision="v1")
    assert same(again.network, original.network)
    assert calls == [
        "t",
        ("me/kinetic", "weights"),
        ("me/kinetic", "model.json", "v1"),
        ("me/kinetic", "model.safetensors", "v1"),
    ]
    with pytest.raises(ValueError, match="weights for sampler 'KineticL2E', asked for 'L2E'"):
        L2E.from_pretrained("me/kinetic")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("no-such", ValueError, "no shipped weights are named 'no-such'; there are .*l2e-gated"),
        ("kinetic-l2e", ValueError, "weights for sampler 'KineticL2E', asked for 'L2E'"),
        ("missing/no.safetensors", FileNotFoundError, r"no such weight file: missing/no\.safetensors"),
        ("./missing/folder", FileNotFoundError, "no such weight file: missing/folder"),
        (Path("missing"), FileNotFoundError, "no such weight file: missing"),
        (None, TypeError, "name must be a name, a path or a repository, got None of type NoneType"),
        (torch.nn.Linear(1, 1), TypeError, "name must be a name, .* of type Linear"),
    ],
)
def test_what_is_refused_by_name(name, error, message):
    with pytest.raises(error, match=message):
        L2E.from_pretrained(name)


def test_a_damaged_folder_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no such weight file: .*empty.model\.safetensors"):
        L2E([parameter()], num_data=10, network=tmp_path / "empty")
    L2E.from_pretrained("l2e").save_pretrained(tmp_path)
    file = tmp_path / weights.IN_FOLDER
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with pytest.raises(ValueError, match=r"model\.safetensors: truncated, changed"):
        L2E.from_pretrained(tmp_path)
