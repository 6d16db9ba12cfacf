"""The handwritten digits of ../data, every fifth held out, as in ../train_digits."""
from pathlib import Path

import numpy as np

TABLE = Path(__file__).resolve().parents[1] / "data/digits.txt"


def load():
    """(images, labels) to learn from and (images, labels) held out; images are [n, 64] of 0 to 1."""
    rows = [line.split(" ") for line in TABLE.read_text().splitlines()]
    images = np.array([[int(pixel, 17) / 16 for pixel in pixels] for pixels, _ in rows], np.float32)
    labels = np.array([int(label) for _, label in rows], np.int32)
    held_out = np.arange(len(labels)) % 5 == 4
    return (images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])


def batches(count, size, epochs, seed):
    """Index arrays of `size`, shuffled anew for each epoch, the same for the same seed."""
    order = np.random.default_rng(seed)
    for _ in range(epochs):
        numbers = order.permutation(count)
        for at in range(0, count - size + 1, size):
            yield numbers[at:at + size]
