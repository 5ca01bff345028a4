"""The rooms are described in their order."""

from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "meta_tasks"
#: From the ground up; `meta_tasks.__init__` says the same.
ROOMS = (
    *("random_streams", "datasets", "networks", "rules", "tasks"),
    *("objectives", "inner_loop", "estimators", "training"),
)


def test_every_room_is_described_in_order():
    places = [(PACKAGE / "__init__.py").read_text().index(f"- `{room}`:") for room in ROOMS]
    assert places == sorted(places)
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms - {"__init__"} >= set(ROOMS)
