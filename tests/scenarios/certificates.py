"""Certificates for scenarios, made by the openssl program."""

import pathlib
import subprocess

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "make-certificate"


class Made:
    """Those in one folder."""

    def __init__(self, folder):
        self.folder = folder

    def make(self, name, alternative_names, ca="ca", *validity):
        """Files of a certificate, its key and its CA's certificate, which is made with the first one."""
        subprocess.run([SCRIPT, self.folder, ca, name, alternative_names, *validity], check=True, timeout=60)
        return self.folder / f"{name}.pem", self.folder / f"{name}.key", self.folder / f"{ca}.pem"


EXPIRED = ("20200101000000Z", "20200102000000Z")


def flags(files, prefix="--"):
    """As flags name them; a CA that is None is left out."""
    words = []
    for name, file in zip(("tls-certificate", "tls-key", "tls-ca"), files, strict=False):
        if file is not None:
            words += [prefix + name, str(file)]
    return words
