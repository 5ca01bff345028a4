"""The help texts of the command lines: a field without a comment gets that of the field above it from tyro."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4] / "tools"
FILES = sorted(ROOT.rglob("*.py"))


def uncommented_fields(source):
    """Fields that borrow another one's help text, of the dataclasses that explain their fields by comments.

    A "#:" is for readers of the source, not of the command line; an ``Any`` stands for a class chosen later.
    """
    lines, found = source.splitlines(), []
    for node in ast.walk(ast.parse(source)):
        decorators = node.decorator_list if isinstance(node, ast.ClassDef) else ()
        if "dataclass" not in {ast.unparse(each).split("(")[0] for each in decorators}:
            continue
        fields = [
            each for each in node.body if isinstance(each, ast.AnnAssign) and ast.unparse(each.annotation) != "Any"
        ]
        bare = [
            each
            for each in fields
            if "  # " not in lines[each.end_lineno - 1] and not lines[each.lineno - 2].strip().startswith("# ")
        ]
        if len(bare) < len(fields):
            found += [f"{node.name}.{each.target.id}" for each in bare]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_option_has_a_comment_of_its_own(path):
    source = path.read_text()
    assert uncommented_fields(source) == []


def test_a_borrowed_text_is_found():
    source = "@dataclass(frozen=True)\nclass Options:\n    # First seed.\n    seed: int = 0\n    seeds: int = 3\n"
    assert uncommented_fields(source) == ["Options.seeds"]
