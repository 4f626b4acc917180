"""Jobs on data of every format, against the same steps computed with numpy and against Pillow: the weights of a small network after a
step say what it was given."""

import csv
import json
import sys
import unittest

import numpy
from harness import Scenario

# Trained by steps of plain gradient descent.
SMALL = {"model": {"name": "mlp", "hidden_sizes": [8]}, "optimizer": {"momentum": 0, "learning_rate": 0.5}, "workers": 1, "epochs": 1,
          "evaluate": {"every_epochs": -1}, "deadline": {"step": "60 s"}}


def softmax(scores):
    scores = numpy.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


class DataFormats(Scenario):
    def layers(self, run):
        """The weights [outputs, inputs] and biases of the network's two layers."""
        tensors = {name: tensor.astype(numpy.float64) for name, tensor in self.weights(run).items()}
        return [tensors[f"{layer}.{kind}"] for layer in ("fc1", "output") for kind in ("weight", "bias")]

    def assert_one_step(self, features, classes, *flags, outputs=None):
        """A run whose only step takes all samples has the weights that numpy computes."""
        count = len(classes)
        common = (*flags, "--global-batch-size", count)
        self.train("before", *common, "--optimizer.learning-rate", 1e-30, "--overwrite")
        self.train("after", *common, "--overwrite")
        weight1, bias1, weight2, bias2 = self.layers("before")
        self.assertEqual(weight1.shape[1], features.shape[1])
        self.assertEqual(len(bias2), outputs or classes.max() + 1)
        hidden = numpy.maximum(features @ weight1.T + bias1, 0)
        gradient2 = softmax(hidden @ weight2.T + bias2)
        gradient2[numpy.arange(count), classes] -= 1
        gradient1 = gradient2 @ weight2 * (hidden > 0)
        steps = (gradient1.T @ features, gradient1.sum(axis=0), gradient2.T @ hidden, gradient2.sum(axis=0))
        for before, step, after in zip((weight1, bias1, weight2, bias2), steps, self.layers("after")):
            numpy.testing.assert_allclose(after, before - 0.5 * step / count, rtol=1e-4, atol=1e-5)

    def write_job(self, **data):
        self.job.write_text(json.dumps({**SMALL, "data": data}))

    def class_names(self, run):
        return json.loads((self.folder / run / "run.json").read_text())["class_names"]

    def test_channels_of_images_are_moved_first(self):
        random = numpy.random.default_rng(1)
        images = random.normal(size=(20, 5, 6, 3)).astype(numpy.float32)
        classes = numpy.arange(20) % 3
        self.write_job(name="npy", train="x.npy", train_targets="y.npy", normalise=False)
        numpy.save(self.folder / "y.npy", classes)
        moved = images.transpose(0, 3, 1, 2).reshape(20, -1).astype(numpy.float64)
        for array, flags in ((images, ()), (images.transpose(0, 3, 1, 2).copy(), ()), (numpy.asfortranarray(images), ()),
                             (images, ("--data.channels", "last"))):
            numpy.save(self.folder / "x.npy", array)
            self.assert_one_step(moved, classes, *flags)
        numpy.save(self.folder / "x.npy", images[:, :3])
        message = self.train("refused", expect=2)
        self.assertIn("data.channels: auto cannot tell", message)
        self.assertIn("(20, 3, 6, 3)", message)

    def test_classes_that_no_sample_has(self):
        features = numpy.random.default_rng(1).normal(size=(10, 4)).astype(numpy.float32)
        numpy.save(self.folder / "x.npy", features)
        numpy.save(self.folder / "y.npy", numpy.arange(10) % 2 + 1)
        self.write_job(name="npy", train="x.npy", train_targets="y.npy", normalise=False)
        message = self.train("refused", expect=2)
        self.assertIn("y.npy: classes are 1 to 2, but no sample has class 0; accepted: classes from 0 on that all occur", message)
        self.assert_one_step(features, numpy.arange(10) % 2, "--data.target-kind", "label")
        self.assertEqual(self.class_names("after"), ["1", "2"])
        self.assert_one_step(features, numpy.arange(10) % 2 + 1, "--data.num-classes", 4, outputs=4)

    def test_arrays_may_be_larger_than_the_memory(self):
        width, count = 1 << 19, 1 << 18  # 128 GiB, of which the disk has what is not 0
        with open(self.folder / "x.npy", "wb") as file:
            numpy.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (count, width)})
            file.truncate(file.tell() + count * width)
        numpy.save(self.folder / "y.npy", numpy.arange(count) % 2)
        self.write_job(name="npy", train="x.npy", train_targets="y.npy", normalise=False)
        self.train("run", "--global-batch-size", 8, "--steps", 3)
        steps = [line for line in self.lines("run") if "memory_bytes" in line]
        self.assertEqual(len(steps), 3)
        self.assertLess(max(steps[-1]["memory_bytes"]), 4e9)

    def write_table(self, name="t.csv"):
        """Numbers with gaps, a column of colours and labels; and the columns."""
        random = numpy.random.default_rng(5)
        numbers = random.normal(size=(30, 2)).round(3)
        colours = random.choice(["red", "blue", ""], size=30)
        labels = random.choice(["setosa", "virginica", "versicolor"], size=30)
        gaps = random.random(size=30) < 0.2
        with open(self.folder / name, "w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["length", "colour", "width", "species"])
            for (length, width), colour, gap, label in zip(numbers, colours, gaps, labels):
                rows.writerow(["NA" if gap else length, colour, width, label])
        return numbers, colours, gaps, labels

    def test_tables(self):
        numbers, colours, gaps, labels = self.write_table()
        self.assertTrue(gaps.any())
        names, classes = numpy.unique(labels, return_inverse=True)
        values = numpy.unique(colours)
        one_hot = (colours[:, None] == values).astype(float)
        self.write_job(name="csv", train="t.csv", target="species", one_hot_columns="colour", normalise=False)
        self.assertIn("column 'length' is missing ('NA')", self.train("refused", expect=2))
        for how, fill in (("mean", numbers[~gaps, 0].mean()), ("median", numpy.median(numbers[~gaps, 0])), ("zero", 0)):
            filled = numbers.copy()
            filled[gaps, 0] = fill
            self.assert_one_step(numpy.hstack([filled, one_hot]), classes, "--data.missing", how)
            self.assert_one_step(numpy.hstack([filled, one_hot, gaps[:, None].astype(float)]), classes, "--data.missing", how,
                                 "--data.missing-indicator", "true")
        self.assert_one_step(numpy.hstack([numbers, one_hot])[~gaps], classes[~gaps], "--data.missing", "drop")
        self.assertEqual(self.class_names("after"), list(names))
        filled[gaps, 0] = 0
        whole = numpy.hstack([filled, one_hot])
        deviation = whole.std(axis=0)
        self.assert_one_step((whole - whole.mean(axis=0)) / deviation, classes, "--data.missing", "zero", "--data.normalise", "true")

    def test_the_test_set_is_read_as_the_training_set(self):
        self.write_table()
        (self.folder / "test.csv").write_text("length,colour,width,species\n,red,1,virginica\n2,green,0.5,setosa\n")
        self.write_job(name="csv", train="t.csv", test="test.csv", target="species", one_hot_columns="colour", missing="median")
        self.train("run", "--global-batch-size", 30, "--evaluate.every-epochs", 1)
        self.assertTrue([line for line in self.lines("run") if "evaluation" in line])
        (self.folder / "test.csv").write_text("width,colour,length,species\n,red,1,virginica\n")
        self.assertIn("its columns of numbers are width, length", self.train("refused", expect=2))

    def test_parquet_and_arrow_are_read_as_csv(self):
        try:
            import pyarrow
            import pyarrow.feather
            import pyarrow.parquet
        except ImportError:
            self.skipTest("no Python package pyarrow")
        numbers, colours, gaps, labels = self.write_table()
        table = pyarrow.table({"length": pyarrow.array(numbers[:, 0], mask=gaps), "colour": pyarrow.array(colours).dictionary_encode(),
                               "width": numbers[:, 1], "species": labels})
        pyarrow.parquet.write_table(table, self.folder / "t.parquet", row_group_size=7)
        pyarrow.feather.write_feather(table, self.folder / "t.feather")
        common = ("--global-batch-size", 10, "--data.missing", "mean")
        python = {"MOTLEY_PYTHON": sys.executable}
        self.write_job(name="csv", train="t.csv", target="species", one_hot_columns="colour")
        self.train("csv", *common)
        for name, file in (("parquet", "t.parquet"), ("arrow", "t.feather")):
            self.write_job(name=name, train=file, target="species", one_hot_columns="colour")
            self.train(name, *common, environment=python)
            self.assert_bitwise("csv", name)
            self.assertEqual(self.class_names(name), self.class_names("csv"))
        for name, file, write in (("parquet", "t.parquet", pyarrow.parquet.write_table),
                                  ("arrow", "t.feather", pyarrow.feather.write_feather)):
            write(table.slice(0, 0), self.folder / file)
            self.write_job(name=name, train=file, target="species", one_hot_columns="colour")
            self.assertIn(f"{file}: 0 samples of 2 features; at least one of each is needed",
                          self.train("refused", *common, environment=python, expect=2))
        (self.folder / "t.feather").write_bytes(b"something else")
        self.assertIn("t.feather: pyarrow cannot read it: neither a Parquet file nor an Arrow file",
                      self.train("refused", *common, environment=python, expect=2))
        self.assertIn("accepted: MOTLEY_PYTHON=a Python in which `import pyarrow` works",
                      self.train("refused", *common, environment={"MOTLEY_PYTHON": "/bin/false"}, expect=2))

    def save_image(self, path, pixels, **options):
        from PIL import Image
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, **options)

    def read_pixels(self, *flags):
        """What the network is given of the folder's only image: the gradient of a hidden value's weights is that of its bias times the
        pixels."""
        common = (*flags, "--global-batch-size", 1, "--model.outputs", 2)
        before = f"before-{len(flags)}"  # whatever the image, of which the size counts
        if not (self.folder / before).exists():
            self.train(before, *common, "--optimizer.learning-rate", 1e-30)
        self.train("after", *common, "--overwrite")
        (weight, bias, *_), (moved_weight, moved_bias, *_) = self.layers(before), self.layers("after")
        largest = numpy.abs(moved_bias - bias).argmax()
        return 255 * (moved_weight - weight)[largest] / (moved_bias - bias)[largest]

    def test_images_are_those_of_pillow(self):
        from PIL import Image
        random = numpy.random.default_rng(9)
        smooth = numpy.kron(random.integers(0, 256, size=(5, 6, 3)), numpy.ones((9, 7, 1))).astype(numpy.uint8)
        noise = random.integers(0, 256, size=(23, 31, 3), dtype=numpy.uint8)
        alpha = random.integers(0, 256, size=(12, 16, 4), dtype=numpy.uint8)
        self.write_job(name="image-folder", train="images", image_size=[17, 20], normalise=False)
        for name, pixels, options in (("a.png", noise, {}), ("b.jpg", smooth, {"quality": 90}), ("c.JPEG", noise, {"quality": 75, "progressive": True}),
                                      ("d.png", alpha, {}), ("e.png", noise[..., 0].copy(), {}), ("f.jpg", noise[..., 0].copy(), {})):
            with self.subTest(name):
                for old in (self.folder / "images").glob("*/*"):
                    old.unlink()
                path = self.folder / "images" / "only" / name
                self.save_image(path, pixels, **options)
                for mode, flags in (("RGB", ()), ("L", ("--data.grayscale", "true"))):
                    expected = numpy.asarray(Image.open(path).convert(mode).resize((20, 17), Image.Resampling.BILINEAR), dtype=float)
                    expected = expected[None] if mode == "L" else expected.transpose(2, 0, 1)
                    numpy.testing.assert_allclose(self.read_pixels(*flags), expected.ravel(), atol=2.1)

    def test_augmented_runs_replay_whoever_computes(self):
        random = numpy.random.default_rng(9)
        for number in range(24):
            shade = 60 * (number % 3) + random.integers(0, 60, size=(12, 12, 3))
            self.save_image(self.folder / "images" / f"class-{number % 3}" / f"{number}.png", shade.astype(numpy.uint8))
        self.write_job(name="image-folder", train="images", test="images", image_size=[8], crop_padding=2, horizontal_flip=True)
        network = ("--model.name", "cnn", "--model.hidden-sizes", "16", "--optimizer.learning-rate", 0.01, "--global-batch-size", 8, "--epochs", 3)
        self.train("one", *network)
        self.train("again", *network, "--data.threads", 3, "--data.prefetch", 0)
        self.assert_bitwise("one", "again")
        self.train("two", *network, "--workers", 2, "--batch-split.mode", "fixed", "--batch-split.fixed", "5,3")
        self.train("plain", *network, "--data.crop-padding", 0, "--data.horizontal-flip", "false")
        for step, loss in self.losses("one").items():
            self.assertAlmostEqual(self.losses("two")[step], loss, delta=1e-4 * loss)
        self.assertNotEqual(self.losses("plain"), self.losses("one"))
        self.assertEqual(self.class_names("one"), ["class-0", "class-1", "class-2"])
        broken = self.folder / "images/class-1/4.png"
        broken.write_bytes(broken.read_bytes()[:60])
        self.assertIn("images/class-1/4.png: a damaged PNG image", self.train("refused", *network, expect=2))

    def test_transformers_train_on_tokens(self):
        random = numpy.random.default_rng(2)
        stream = (numpy.arange(2001) * 7 % 300 + (random.random(2001) < 0.01)).astype(numpy.uint16)
        stream.tofile(self.folder / "train.bin")
        network = ("--model.name", "transformer", "--model.hidden-sizes", "[]", "--model.num-layers", 1, "--model.hidden-size", 32, "--optimizer.name", "adamw",
                   "--optimizer.learning-rate", 0.01, "--global-batch-size", 10, "--epochs", 4)
        self.write_job(name="tokens", train="train.bin", sequence_length=20)
        self.train("bin", *network, "--evaluate.every-epochs", 4)
        losses = list(self.losses("bin").values())
        self.assertLess(losses[-1], 0.7 * losses[0])
        self.assertEqual(self.weights("bin")["embedding.token.weight"].shape, (int(stream[:1800].max()) + 1, 32))
        for name, array, flags in (("u4.bin", stream.astype(numpy.uint32), ("--data.token-dtype", "uint32")), ("i8.npy", stream.astype(numpy.int64), ())):
            path = self.folder / name
            numpy.save(path, array) if name.endswith("npy") else array.tofile(path)
            self.train(f"run-{name}", *network, "--evaluate.every-epochs", 4, "--data.train", path, *flags)
            self.assert_bitwise("bin", f"run-{name}")
        self.train("padded", *network, "--data.vocab-size", 384, "--steps", 1)
        self.assertEqual(self.weights("padded")["embedding.token.weight"].shape, (384, 32))
        for words, flags in ((("train.bin: token", "data.vocab_size"), ("--data.vocab-size", 200)),
                             (("every other token is 0", "data.token_dtype: uint32"), ("--data.train", self.folder / "u4.bin")),
                             (("data.sequence_length",), ("--data.train", self.folder / "train.bin", "--data.sequence-length", 5000))):
            message = self.train("refused", *network, *flags, expect=2)
            for word in words:
                self.assertIn(word, message)

    def test_keys_of_other_formats_are_refused(self):
        self.write_job(name="npy", train="train.npy", train_targets="train_targets.npy")
        for key, value, formats in (("missing", "mean", "csv, parquet, arrow"), ("vocab-size", 9, "tokens"), ("grayscale", "true", "image-folder"),
                                    ("one-hot-columns", "a", "csv, parquet, arrow")):
            self.assertIn(f"data.{key.replace('-', '_')}: accepted with data.name {formats}, not npy",
                          self.train("refused", f"--data.{key}", value, expect=2))
        self.assertIn("data.horizontal_flip: samples have the shape [12]; accepted with images",
                      self.train("refused", "--data.horizontal-flip", "true", expect=2))


if __name__ == "__main__":
    unittest.main()
