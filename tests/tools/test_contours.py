"""tools/contours.py: figures of the networks of learned samplers."""

import contours
import pytest
import torch

from learned_samplers.learned import weights


@pytest.mark.parametrize(
    ("network", "more"),
    [
        ("meta_sgmcmc_network", ["--energy", "2", "--gradient", "1"]),
        ("l2e_network", ["--gradient", "2"]),
        ("l2e_paper_network", []),
    ],
)
def test_the_contours_are_drawn(network, more, tmp_path, learned_weights, capsys):
    out = tmp_path / "c.png"
    contours.main([learned_weights[network], *more, "--out", str(out)])
    assert out.read_bytes().startswith(b"\x89PNG")
    assert str(out) in capsys.readouterr().out


def test_the_contours_of_l2e_are_those_of_its_card(tmp_path, learned_weights):
    network, card = weights.load(learned_weights["l2e_network"])
    with torch.no_grad():
        network[-1].bias[1] += 100.0
    for bound in (None, 0.5):
        path = tmp_path / "w.safetensors"
        weights.save(path, network, {**card, "scales": {} if bound is None else {"output_bound": bound}})
        figure = contours.draw(contours.Options(str(path), gradient=2.0))
        beta = figure.axes[3]
        assert beta.get_title() == "|β| at parameter −1"
        assert beta.get_xlim() == beta.get_ylim() == (-2.0, 2.0)
        assert (beta.collections[0].levels.max() > 90) == (bound is None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["meta-sgmcmc-toy", "--energy", "0"], "energy must be positive, got 0.0"),
        (["no-such-weights"], "no-such-weights"),
        (["kinetic-l2e"], "is of KineticL2E, not of L2E, PrecondL2E or MetaSGMCMC"),
        (["l2e", "--energy", "3"], "energy=3.0: the network of L2E does not see the energy"),
        (["l2e", "--gradient", "-1"], "gradient must be positive, got -1.0"),
    ],
)
def test_wrong_options_are_explained(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        contours.main([*arguments, "--out", str(tmp_path / "out")])
    said = " ".join(f"{caught.value.code} {capsys.readouterr().err}".replace("│", " ").split())
    assert message in said
    assert not list(tmp_path.iterdir())
