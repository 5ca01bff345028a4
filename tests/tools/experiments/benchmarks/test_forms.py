"""tools/benchmark.py forms: every form has the same loss and gradient, to its precision, and the table names all."""

import pytest
import torch
from experiments.benchmarks import forms as _forms
from experiments.benchmarks.forms import Form, FormsBenchmark, benchmark_forms, forms

OPTIONS = FormsBenchmark(width=8, size=8, batch_size=4, rounds=2)


def test_every_form_has_the_same_loss_and_gradient():
    every = forms(OPTIONS)
    assert len(every) == 8
    plain = every["plain"]
    loss, gradient = plain(), plain.gradient()
    for name in ("channels last", "bfloat16 autocast", "channels last, bfloat16 autocast"):
        form, narrow = every[name], "bfloat16" in name
        torch.testing.assert_close(form(), loss, rtol=3e-2 if narrow else 1e-5, atol=0, check_dtype=False)
        assert (form.gradient() - gradient).norm() < (0.2 if narrow else 1e-4) * gradient.norm()
        assert all(p.dtype == torch.float32 for p in form.model.parameters())
    last = next(p for p in every["channels last"].model.parameters() if p.dim() == 4 and p.shape[2] > 1)
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert not next(plain.model.parameters()).is_contiguous(memory_format=torch.channels_last)


def test_a_compiled_form_calls_the_same_loss(monkeypatch):
    """torch.compile itself takes half a minute here; that it is asked for is what counts."""
    asked = []
    monkeypatch.setattr(torch, "compile", lambda f, **_: asked.append(f) or f)
    every = forms(OPTIONS)
    assert len(asked) == 4
    torch.testing.assert_close(every["compiled"](), every["plain"]())


def test_the_table_names_every_form_and_its_differences(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch, "compile", lambda f, **_: f)
    wrong = Form.__call__

    def planted(self):
        return wrong(self) + (0.5 if self.narrow else 0.0)

    monkeypatch.setattr(_forms.Form, "__call__", planted)
    benchmark_forms(FormsBenchmark(width=8, size=8, batch_size=4, rounds=2, out=tmp_path / "forms.md"))
    text = (tmp_path / "forms.md").read_text()
    assert text.startswith("`python tools/benchmark.py forms`: torch ")
    assert "| compiled, channels last " in capsys.readouterr().out
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    rows = {name: float(loss) for name, _, loss, _ in cells[1:]}
    assert len(rows) == 8
    assert abs(rows["bfloat16 autocast"] - 0.5) < 0.05
    assert abs(rows["channels last"]) < 1e-5


@pytest.mark.parametrize(
    ("name", "value"), [("width", 7), ("size", -1), ("batch_size", 0), ("threads", 0), ("rounds", 1)]
)
def test_bad_options(name, value):
    with pytest.raises(ValueError, match=f"{name} must be at least .*, got {value}"):
        FormsBenchmark(**{name: value})
