"""Signatures of the manifests of op libraries: who has made the libraries that a manifest lists.

A manifest has the SHA-256 of each library, so its signature is one of the libraries too. Keys are those of Ed25519 (RFC
8032) in PEM, as `openssl genpkey -algorithm ed25519` writes them. The package cryptography computes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

#: The file with the signature lies beside the manifest.
MANIFEST, SIGNATURE = "manifest.json", "manifest.json.sig"
# What is signed begins with this, so that a signature stands for nothing else.
_PURPOSE = b"opgate manifest 1\n"


class SigningError(Exception):
    """A manifest has no good signature of a signer, or a key can't be read. The text names the file."""


def _require() -> None:
    """Raises SigningError without the package that computes."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise SigningError("signatures need the package cryptography: pip install 'opgate[signing]'") from None


def sign(manifest: bytes, key: Path) -> bytes:
    """Returns the contents of the signature file of a manifest's contents. `key` is a file with a private key.

    Raises SigningError if it is none, and OSError.
    """
    _require()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(key.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SigningError(f"{key}: expected a private key in PEM without a password: {error}") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise SigningError(f"{key}: expected a key of Ed25519, got {type(private).__name__}")
    signature = base64.b64encode(private.sign(_PURPOSE + manifest)).decode()
    return json.dumps({"key": fingerprint(private.public_key()), "signature": signature}).encode() + b"\n"


def fingerprint(key: Ed25519PublicKey) -> str:
    """Returns what a public key is known by: the SHA-256 of its 32 bytes, in hexadecimal."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def read_signers(folder: Path) -> dict[str, Ed25519PublicKey]:
    """Returns the public keys in a folder's files *.pem by the names of the files. Raises SigningError if there is none
    or one can't be read."""
    _require()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    found: dict[str, Ed25519PublicKey] = {}
    for file in sorted(folder.glob("*.pem")):
        try:
            key = load_pem_public_key(file.read_bytes())
        except (ValueError, UnsupportedAlgorithm, OSError) as error:
            raise SigningError(f"{file}: expected a public key in PEM: {error}") from None
        if not isinstance(key, Ed25519PublicKey):
            raise SigningError(f"{file}: expected a key of Ed25519, got {type(key).__name__}")
        found[file.stem] = key
    if not found:
        raise SigningError(f"{folder}: expected a folder with public keys in files *.pem, found none")
    return found


def check(folder: Path, signers: Mapping[str, Ed25519PublicKey]) -> bytes:
    """Returns the contents of the manifest of a folder, which one of the signers has signed.

    Raises SigningError if there is no signature, another key's, or one of another text.
    """
    from cryptography.exceptions import InvalidSignature

    manifest, file = folder / MANIFEST, folder / SIGNATURE
    known = ", ".join(signers)
    try:
        content = manifest.read_bytes()
        stated = json.loads(file.read_bytes())
        of, signature = str(stated["key"]), base64.b64decode(stated["signature"], validate=True)
    except FileNotFoundError as error:
        raise SigningError(f"{error.filename} is missing: expected a manifest that one of {known} has signed") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SigningError(f"{file} can't be read: {error!r}") from None
    for name, key in signers.items():
        if fingerprint(key) == of:
            try:
                key.verify(signature, _PURPOSE + content)
            except InvalidSignature:
                raise SigningError(f"{manifest} is not what {name} has signed: it or {file.name} has changed") from None
            return content
    raise SigningError(f"{manifest} is signed with the key {of[:64]}, which is that of none of {known}")
