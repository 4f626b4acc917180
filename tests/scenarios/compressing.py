"""Types on the wire to a parameter server over TCP: what they do to training, what auto says, and what is refused."""

import gzip
import pathlib
import unittest

import numpy

from harness import Scenario, relative_difference

FASHION_MNIST = pathlib.Path("/usr/share/datasets/fashion-mnist")


class Compressing(Scenario):
    def accuracy(self, run):
        return [line["evaluation"]["accuracy"] for line in self.lines(run) if "evaluation" in line][-1]

    @unittest.skipUnless(FASHION_MNIST.exists(), "the package dataset-fashion-mnist is not installed")
    def test_every_type_learns_fashion_mnist(self):
        for name, part, count in (("train", "train", 6000), ("test", "t10k", 2000)):
            images = gzip.decompress((FASHION_MNIST / f"{part}-images-idx3-ubyte.gz").read_bytes())
            labels = gzip.decompress((FASHION_MNIST / f"{part}-labels-idx1-ubyte.gz").read_bytes())
            pixels = numpy.frombuffer(images, numpy.uint8, offset=16).reshape(-1, 784)[:count]
            numpy.save(self.folder / f"{name}.npy", (pixels / 255 - 0.3).astype(numpy.float32))
            numpy.save(self.folder / f"{name}_targets.npy",
                       numpy.frombuffer(labels, numpy.uint8, offset=8)[:count].astype(numpy.int64))
        flags = (*self.start_servers(2)[1], "--workers", 2, "--batch-split.mode", "equal", "--global-batch-size", 40, "--epochs", 6,
                 "--model.hidden-sizes", "64", "--lr-scheduler.name", "cosine")
        momentum = ("--optimizer.momentum", 0.9, "--optimizer.learning-rate", 0.02)
        plain = ("--optimizer.momentum", 0, "--optimizer.learning-rate", 0.2)
        for optimizer, wires in ((momentum, (("bfloat16",), ("int8",), ("top-k", "--gradient-sync.top-k", 0.1))),
                                 (plain, (("int8",), ("top-k", "--gradient-sync.top-k", 0.02)))):
            reference = f"float32-{optimizer[1]}"
            self.train(reference, *flags, *optimizer)
            expected = self.accuracy(reference)
            self.assertGreater(expected, 0.8)
            for wire in wires:
                with self.subTest(optimizer=optimizer, wire=wire):
                    run = f"{wire[0]}-{optimizer[1]}"
                    self.train(run, *flags, *optimizer, "--gradient-sync.comm-dtype", *wire)
                    self.assertGreater(self.accuracy(run), expected - 0.01)
                    # What was lost shows: the weights are others than float32's.
                    self.assertGreater(relative_difference(self.weights(reference), self.weights(run)), 1e-5)

    def test_a_run_goes_on_with_another_type(self):
        flags = (*self.start_servers(2)[1], "--workers", 2, "--batch-split.mode", "equal")
        self.train("run", *flags, "--gradient-sync.comm-dtype", "top-k", "--gradient-sync.top-k", 0.1, "--steps", 7)
        self.train("run", *flags, "--gradient-sync.comm-dtype", "int8", "--max-grad-norm", 0.5, "--steps", 13, "--resume")
        self.train("run", *flags, "--gradient-sync.comm-dtype", "float32", "--max-grad-norm", 0, "--steps", 0, "--resume")
        self.assertEqual(self.not_used_once("run"), 0)
        self.assertEqual(sorted(self.losses("run")), list(range(1, 21)))

    def test_auto_says_what_it_chose_and_why(self):
        flags = ("--workers", 2, "--batch-split.mode", "equal", "--gradient-sync.comm-dtype", "auto")
        output = self.train("apart", *self.start_servers(2)[1], *flags)
        self.assertRegex(output, r"gradient_sync.comm_dtype: auto chose (float32|bfloat16|int8): a round of .* takes float32 .*, "
                                 r"bfloat16 .*, int8 ")
        output = self.train("memory", "--gradient-sync.method", "parameter-server", *flags)
        self.assertIn("gradient_sync.comm_dtype: auto: the server and all ranks share memory", output)

    def test_shared_memory_says_that_nothing_is_sent(self):
        flags = ("--workers", 2, "--batch-split.mode", "equal", "--gradient-sync.method", "parameter-server")
        output = self.train("int8", *flags, "--gradient-sync.comm-dtype", "int8")
        self.assertIn("gradient_sync.comm_dtype: int8 is not used", output)
        self.train("float32", *flags)
        self.assertEqual(relative_difference(self.weights("float32"), self.weights("int8")), 0)

    def test_what_does_not_fit_is_refused(self):
        ps = ("--gradient-sync.method", "parameter-server")
        for flags in (("--gradient-sync.comm-dtype", "int8"),
                      ("--gradient-sync.comm-dtype", "auto", "--gradient-sync.method", "tcp-ring"),
                      (*ps, "--gradient-sync.comm-dtype", "top-k", "--gradient-sync.consistency", "async"),
                      (*ps, "--gradient-sync.comm-dtype", "int4")):
            with self.subTest(flags=flags):
                self.assertIn("gradient_sync.comm_dtype", self.train("refused", *flags, expect=2).replace("-", "_"))
        for density in (0, 0.6):
            output = self.train("refused", *ps, "--gradient-sync.comm-dtype", "top-k", "--gradient-sync.top-k", density, expect=2)
            self.assertIn("--gradient-sync.top-k", output)


if __name__ == "__main__":
    unittest.main()
