"""Data sets as tensors: images, texts, and arrays of a user's own, read from files or downloaded.

- `load(name)` gives an `ImageData`: images in [0, 1] and integer labels of the training, validation and test split.
  `names()` lists the data sets; "digits" and "photos" need no file.
- `match` and `keep_labels` change an `ImageData`: to another image shape, to some classes.
  `out_of_distribution(name)` names a data set of unlike images.
- `load_text(name)` gives a `TokenData`: texts as indices of words, padded, and their vocabulary. `text_names()` lists
  them.
- `load_overlaid` (Multi-MNIST and its like) gives a `MultiTaskData`: several labels an image.

Files are looked for in the folder given as ``root``, else in the one named by the environment variable
LEARNED_SAMPLERS_DATA, else in ~/.cache/learned_samplers. torchvision and medmnist download what is missing; they,
scikit-learn and Pillow are imported when a data set needs them.
"""

from meta_tasks.datasets.arrays import ArrayData, array_data
from meta_tasks.datasets.files import data_root
from meta_tasks.datasets.images import ImageData, MultiTaskData, keep_labels, match, scaled
from meta_tasks.datasets.loading import check_name, fingerprint_of, load, names, out_of_distribution
from meta_tasks.datasets.overlaid import load_overlaid
from meta_tasks.datasets.texts import TokenData, load_text, mask_of, pad, text_names

__all__ = [
    "ArrayData",
    "ImageData",
    "MultiTaskData",
    "TokenData",
    "array_data",
    "check_name",
    "data_root",
    "fingerprint_of",
    "keep_labels",
    "load",
    "load_overlaid",
    "load_text",
    "mask_of",
    "match",
    "names",
    "out_of_distribution",
    "pad",
    "scaled",
    "text_names",
]
