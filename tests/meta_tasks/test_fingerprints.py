"""Fingerprints tell that results were made of other data, or by other code."""

import torch

from meta_tasks.fingerprints import code_fingerprint, fingerprint


def test_a_fingerprint_of_code_changes_with_sources_and_their_names_alone(tmp_path):
    def digest(**files):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in files.items():
            path = folder / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return code_fingerprint(folder)

    first = digest(a_dot_py="x = 1", b__c_dot_py="y = 2")
    assert first == digest(a_dot_py="x = 1", b__c_dot_py="y = 2", notes_dot_md="none of it")
    others = {
        digest(a_dot_py="x = 2", b__c_dot_py="y = 2"),
        digest(a_dot_py="x = 1", b__d_dot_py="y = 2"),
        digest(a_dot_py="x = 1"),
        digest(a_dot_py="x = 1", b__c_dot_py="y = 2", kernel_dot_cpp=""),
    }
    assert len(others | {first}) == 5


def test_a_fingerprint_of_data_changes_with_a_number():
    assert fingerprint([torch.zeros(3)]) != fingerprint([torch.tensor([0.0, 0.0, 1e-30])])
