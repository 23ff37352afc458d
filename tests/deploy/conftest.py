"""The Debian in which images are made."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def _pip_settings() -> dict[str, str]:
    """Returns how this machine's pip finds packages, as variables. Without pip there are none."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
    settings = re.findall(r"^(?:global|:env:)\.([\w-]+)='([^']*)'$", listed.stdout, re.MULTILINE)
    # A file of constraints lies on this machine alone.
    return {f"PIP_{name.upper().replace('-', '_')}": value for name, value in settings if name != "constraint"}


PIP = _pip_settings()
# Folders with packages, which the steps see too. The files of an index lie beside its pages.
SHARED = [
    path.removesuffix("/simple")
    for value in PIP.values()
    for path in re.findall(r"(?:file://)?(/\S+)", value)
    if Path(path).is_dir()
]


@pytest.fixture(scope="session")
def debian(tmp_path_factory):
    """A fresh Debian 12, in which apt-get and pip find packages as on this machine."""
    folder = tmp_path_factory.mktemp("debian") / "root"
    subprocess.run(["debootstrap", "--variant=minbase", "bookworm", folder], check=True, stdout=subprocess.DEVNULL)
    for file in ("/etc/resolv.conf", "/etc/apt/sources.list.d/debian.sources"):
        if Path(file).exists():
            shutil.copy(file, f"{folder}{file}")
    for file in Path("/etc/apt/apt.conf.d").iterdir():
        shutil.copy(file, folder / "etc/apt/apt.conf.d")
    if "PIP_CERT" in PIP:
        shutil.copy(PIP["PIP_CERT"], folder / "root/certificates.crt")
        PIP["PIP_CERT"] = "/root/certificates.crt"
        (folder / "etc/pip.conf").write_text("[global]\ncert = /root/certificates.crt\n")
    if (folder / "etc/apt/sources.list.d/debian.sources").exists():
        (folder / "etc/apt/sources.list").unlink(missing_ok=True)
    return folder
