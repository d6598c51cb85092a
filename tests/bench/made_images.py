"""Images like photographs, for measurements. This is a module, not a program. Needs numpy and Pillow."""
import numpy
from PIL import Image


def make_images(folder, count):
    random = numpy.random.default_rng(1)
    for i in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=numpy.uint8)).resize((500, 375), Image.BICUBIC)
        noisy = numpy.asarray(coarse).astype(numpy.float32) + random.normal(0, 8, (375, 500, 3))
        path = folder / f"class{i % 10}" / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(noisy.clip(0, 255).astype(numpy.uint8)).save(path, quality=90)
