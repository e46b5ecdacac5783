"""Classify images with an exported model. Needs onnxruntime, numpy and pillow, nothing else.

metavib export MODEL --format onnx -o exported
python examples/onnx_predict.py exported one.jpg two.jpg
"""

import argparse
import json
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", type=Path, help="what metavib export wrote")
    arguments.add_argument("images", nargs="+")
    arguments.add_argument("--sampled", action="store_true", help="the variant with draws")
    arguments.add_argument("--draws", type=int, default=10, help="of classifiers and of latent codes (10)")
    arguments.add_argument("--seed", type=int, default=0, help="of the draws (0)")
    arguments.add_argument("--coverage", type=float, default=0.9, help="what counts as unsure (0.9)")
    asked = arguments.parse_args()

    facts = json.loads((asked.folder / "onnx.json").read_text())
    name = "sampled" if asked.sampled and "sampled" in facts["variants"] else facts["default_variant"]
    variant = facts["variants"][name]
    session = onnxruntime.InferenceSession(asked.folder / variant["file"], providers=["CPUExecutionProvider"])
    inputs = {"images": np.stack([pixels(image, facts["image"]) for image in asked.images])}
    random = np.random.default_rng(asked.seed)
    for noise, described in variant["inputs"].items():
        if noise != "images":
            shape = (asked.draws, *described["shape"][1:])
            inputs[noise] = random.standard_normal(shape).astype(np.float32)
    answers = dict(zip(variant["outputs"], session.run(variant["outputs"], inputs), strict=True))

    quantiles = facts["entropy_quantiles"]  # None where the model was trained without validation images
    threshold = np.quantile(quantiles[name], asked.coverage) if quantiles else np.inf
    for image, probabilities, entropy in zip(
        asked.images, answers["probabilities"], answers["entropy"], strict=True
    ):
        label = facts["classes"][int(probabilities.argmax())]
        unsure = "  unsure" if entropy > threshold else ""
        print(f"{image}  {label}  {probabilities.max():.4f}  entropy {entropy:.4f}{unsure}")


def pixels(path, wanted):
    """The image as the model takes it: uint8 [channels, size, size]."""
    with Image.open(path) as image:
        upright = in_bytes(ImageOps.exif_transpose(image), wanted["pixel_range"], path)
        if upright.has_transparency_data:
            layer = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
        how = Image.Resampling[wanted.get("interpolation", "bilinear").upper()]
        squashed = upright.convert("RGB").resize((wanted["size"],) * 2, how)
    values = np.asarray(squashed).transpose(2, 0, 1)
    if wanted["channels"] == 1:
        grey = np.tensordot(np.float32(wanted["grey_weights"]), values, axes=1)
        values = np.rint(grey).astype(np.uint8)[None]
    return values


def in_bytes(image, scaled_by, path):
    """Grey values of 16 or 32 bits, or floats, scaled by the range that the model was trained with."""
    if (image.mode[0] in "IF") != (scaled_by["depth"] != "8-bit"):
        raise SystemExit(f"{path}: the model was trained on {scaled_by['depth']} images")
    if scaled_by["depth"] == "8-bit":
        return image
    low, high = scaled_by["low"], scaled_by["high"]
    values = np.asarray(image).astype(np.float64).clip(low, high)
    return Image.fromarray(np.rint((values - low) * (255 / (high - low))).astype(np.uint8))


if __name__ == "__main__":
    main()
