"""A small data set in CelebA's layout: 16 training, 6 validation and 6 test images of 34×18 pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from meta_tasks.datasets.celeba import FIRST_TEN

ATTRIBUTES = (*FIRST_TEN, "Male", "Young")
SPLITS = (16, 6, 6)


def write_celeba(root: Path) -> None:
    """Files in <root>/celeba. Image i, from 1, is red 8·i and green 100 in its middle; it has attribute k where bit
    k mod 5 of i is set. The bars above and below the middle square are white."""
    images = root / "celeba" / "img_align_celeba"
    images.mkdir(parents=True)
    count = sum(SPLITS)
    lines, splits = [str(count), " ".join(ATTRIBUTES)], []
    for i in range(1, count + 1):
        name = f"{i:06d}.jpg"
        image = np.full((34, 18, 3), 255, np.uint8)
        image[8:26] = (8 * i, 100, 50)
        Image.fromarray(image).save(images / name, quality=100, subsampling=0)
        signs = [" 1" if i >> (k % 5) & 1 else "-1" for k in range(len(ATTRIBUTES))]
        lines.append(f"{name} {' '.join(signs)}")
        splits.append(f"{name} {0 if i <= 16 else 1 if i <= 22 else 2}")
    (root / "celeba" / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    (root / "celeba" / "list_eval_partition.txt").write_text("\n".join(splits) + "\n")
