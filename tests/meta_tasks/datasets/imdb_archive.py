"""Film reviews in the layout of Stanford's archive: 12 training and 4 test reviews, and some without a label."""

import io
import tarfile
from pathlib import Path

GOOD, BAD = "A good film, really good!<br /><br />I'd see it again", "A bad film: dull, and the plot isn't there"


def reviews() -> dict[str, str]:
    """Path below the archive's root → text."""
    files = {"README": "words about the data", "train/unsup/0_0.txt": "unsupervised unsupervised unsupervised"}
    for split, count in (("train", 6), ("test", 2)):
        for i in range(count):
            files[f"{split}/pos/{i}_9.txt"] = f"{GOOD} " + "fine " * i
            files[f"{split}/neg/{i}_2.txt"] = f"{BAD} " + "poor " * i
    files["test/pos/1_9.txt"] += " unheard"
    return files


def write_archive(root: Path, more: dict[str, bytes | None] | None = None) -> Path:
    """``more``: further files, or others in the place of those; None leaves one out."""
    path = root / "aclImdb_v1.tar.gz"
    files = {name: text.encode() for name, text in reviews().items()} | (more or {})
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            if content is not None:
                member = tarfile.TarInfo(f"aclImdb/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return path
