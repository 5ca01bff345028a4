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
    lines, names = source.splitlines(), []
    for node in ast.walk(ast.parse(source)):
        decorators = node.decorator_list if isinstance(node, ast.ClassDef) else ()
        if "dataclass" not in {ast.unparse(decorator).split("(")[0] for decorator in decorators}:
            continue
        fields = [
            item for item in node.body if isinstance(item, ast.AnnAssign) and ast.unparse(item.annotation) != "Any"
        ]
        bare = [
            field
            for field in fields
            if "  # " not in lines[field.end_lineno - 1] and not lines[field.lineno - 2].strip().startswith("# ")
        ]
        if len(bare) < len(fields):
            names += [f"{node.name}.{field.target.id}" for field in bare]
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_option_has_a_comment_of_its_own(path):
    source = path.read_text()
    assert uncommented_fields(source) == []


def test_a_borrowed_text_is_found():
    source = "@dataclass(frozen=True)\nclass Options:\n    # First seed.\n    seed: int = 0\n    seeds: int = 3\n"
    assert uncommented_fields(source) == ["Options.seeds"]
