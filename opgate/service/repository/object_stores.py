"""Model repositories in object stores: copies them to a folder, and checks the copies.

The stores are those of fsspec: https://filesystem-spec.readthedocs.io. The addresses are Triton's: s3://, gs:// and as://.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from opgate.service.repository.config import ConfigError

logger = logging.getLogger("opgate.repository")

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")
# Triton's name of a scheme, and fsspec's, with the package that brings it.
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
_S3_WITH_ENDPOINT = re.compile(r"s3://(https?://[^/]+)/(.+)")
_AZURE = re.compile(r"as://([^/]+)/(.+)")
_MD5 = re.compile(r"\"?([0-9a-f]{32})\"?")
_PIECE = 1 << 20

# Azure's library logs each request of its own.
logging.getLogger("azure").setLevel(logging.WARNING)


def is_address(location: str) -> bool:
    """Returns whether a location is the address of a store, and no folder."""
    return _SCHEME.match(location) is not None


@dataclass(slots=True, weakref_slot=True, eq=False)
class StoredRepository:
    """A repository in a store, and the folder that has the copy."""

    address: str
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="opgate-repository-")))
    _have: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # by object, what tells it from a changed one

    def __post_init__(self) -> None:
        weakref.finalize(self, shutil.rmtree, self.folder, True)

    def refresh(self) -> None:
        """Copies what is new or has changed, and removes what is gone. A file is replaced as a whole.

        Raises ConfigError if the store can't be read, or if a copy isn't what the store says. Then the files that serve
        stay as they are.
        """
        try:
            store, root = _open(self.address)
            found = _objects(store, root)
            changed = {name: info for name, info in found.items() if self._have.get(name) != _stamp(info)}
            for name, info in changed.items():
                self._copy(store, name, info)
                self._have[name] = _stamp(info)
        except ConfigError:
            raise
        except Exception as error:  # each store has exceptions of its own
            raise ConfigError(
                f"model repository {self.address} can't be read: {type(error).__name__}: {error}"
            ) from error
        for name in self._have.keys() - found.keys():
            del self._have[name]
            (self.folder / name).unlink(missing_ok=True)
        for folder in sorted(self.folder.rglob("*"), reverse=True):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        if changed:
            logger.info("copied %d files of model repository %s", len(changed), self.address)

    def _copy(self, store: Any, name: str, info: Mapping[str, Any]) -> None:
        target = self.folder / name
        if not target.resolve().is_relative_to(self.folder.resolve()):
            raise ConfigError(f"model repository {self.address}: object '{name}' has no name of a file")
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        digest, size = hashlib.md5(usedforsecurity=False), 0
        try:
            with store.open(info["name"], "rb") as source, part.open("wb") as out:
                while piece := source.read(_PIECE):
                    out.write(piece)
                    digest.update(piece)
                    size += len(piece)
            if size != info["size"]:
                raise ConfigError(f"{self.address}: '{name}': expected {info['size']} bytes, got {size}")
            known = _md5(info)
            if known and known != digest.hexdigest() and not _is_encrypted(store, info):
                raise ConfigError(f"{self.address}: '{name}': expected MD5 {known}, got {digest.hexdigest()}")
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


def _open(address: str) -> tuple[Any, str]:
    """Returns the file system and the path of an address. Raises ConfigError if a package is missing."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise ConfigError(f"{address} needs fsspec: pip install 'opgate[stores]'") from None
    options: dict[str, Any] = {"use_listings_cache": False}
    if match := _S3_WITH_ENDPOINT.fullmatch(address):
        address = f"s3://{match[2]}"
        options["client_kwargs"] = {"endpoint_url": match[1]}
    elif match := _AZURE.fullmatch(address):
        address = f"abfs://{match[2]}"
        options["account_name"] = match[1]
    try:
        store, path = url_to_fs(address, **options)
    except ImportError as error:
        scheme = address.partition("://")[0]
        raise ConfigError(f"{address} needs {_PACKAGES.get(scheme, 'a package')}: {error}") from None
    except ValueError as error:
        raise ConfigError(f"{address}: {error}") from None
    return store, path


def _objects(store: Any, root: str) -> dict[str, Mapping[str, Any]]:
    """Returns the files below a path, by their path from there. Raises ConfigError if there is none."""
    found = {
        str(PurePosixPath(path).relative_to(root)): info
        for path, info in store.find(root, detail=True).items()
        if info.get("type") == "file"
    }
    if not found and not store.exists(root):
        raise ConfigError(f"model repository {store.unstrip_protocol(root)} does not exist")
    return found


def _md5(info: Mapping[str, Any]) -> str:
    """Returns the MD5 of an object that its store knows, "" if it knows none. S3 knows it of a file that came in one
    part, Google and Azure of most."""
    if etag := _MD5.fullmatch(str(info.get("ETag", ""))):
        return etag[1]
    if "md5Hash" in info:
        return base64.b64decode(info["md5Hash"]).hex()
    content = (info.get("content_settings") or {}).get("content_md5")
    return bytes(content).hex() if content else ""


def _is_encrypted(store: Any, info: Mapping[str, Any]) -> bool:
    """Returns whether S3 encrypts an object with a key that isn't S3's own. Then its ETag only looks like an MD5.

    https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html
    """
    if not hasattr(store, "call_s3"):
        return False
    bucket, key, _ = store.split_path(info["name"])
    found = store.call_s3("head_object", Bucket=bucket, Key=key)
    return str(found.get("ServerSideEncryption", "")).startswith("aws:kms") or "SSECustomerAlgorithm" in found


def _stamp(info: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns what differs if an object has changed: its size, and what the store says of its content or its time."""
    keys = ("ETag", "etag", "md5Hash", "generation", "LastModified", "last_modified", "mtime", "created")
    return (info.get("size"), *(str(info.get(key)) for key in keys if key in info))
