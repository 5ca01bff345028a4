"""What of a law may be asked for by the options of tools/ship.py, and of which sampler."""

import pytest
import ship
from experiments.meta_training import law

import pretrained


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("l2e", "--energy"),
        ("kinetic-l2e", "--law-lr"),
        ("meta-sgmcmc-toy", "--law-temperatures"),
        ("scale-adapted-l2e", "--energy"),
    ],
)
def test_what_belongs_to_the_law_of_another_sampler_is_refused(tmp_path, name, option):
    """Nothing is measured, and no folder is made; also where the value is what that sampler has by default."""
    owner = "MetaSGMCMC" if option == "--energy" else "ScaleAdaptedL2E"
    said = f"{option[2:].replace('-', '_')}=.* is for the law of {owner}, these weights are of"
    for value in ("0", "2") if option == "--energy" else ("2",):
        with pytest.raises(SystemExit, match=said):
            ship.main([str(pretrained.path(name)), "new", option, value, "--out", str(tmp_path / "new")])
    with pytest.raises(ValueError, match=said):
        law.law_of(pretrained.path(name), **{option[2:].replace("-", "_"): (2.0,)})
    assert not (tmp_path / "new").exists()


def test_the_law_of_scale_adapted_l2e_is_measured_where_it_was_asked_for(tmp_path, monkeypatch):
    asked = []

    def planted(source, lr, temperatures, **_):
        asked.append((lr, temperatures))
        raise ValueError("enough")

    monkeypatch.setattr(law, "scale_adapted_law", planted)
    arguments = [str(pretrained.path("scale-adapted-l2e")), "new", "--lr", "0.5", "--out", str(tmp_path)]
    for more in ([], ["--law-lr", "5"], ["--law-temperatures", "3", "1"]):
        with pytest.raises(SystemExit, match="enough"):
            ship.main([*arguments, *more])
    assert asked == [(4.0, law.TEMPERATURES), (5.0, law.TEMPERATURES), (4.0, (3.0, 1.0))]
