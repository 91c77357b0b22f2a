"""Downloads pinned JavaScript packages from npm, and extracts files of them."""

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 600  # seconds


@dataclass(frozen=True)
class Package:
    """A package of a pinned version, and the files that are used.

    Args:
        name: its name in the registry.
        version: its version.
        sha512: the digest of its archive in base64, as in package-lock.json.
        files: paths of the files within the package.
    """

    name: str
    version: str
    sha512: str
    files: Sequence[str]

    @property
    def archive(self) -> str:
        """The file name that `npm pack` gives to the archive."""
        return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}.tgz"


def default_cache() -> Path:
    """The folder of downloaded archives of the current user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "random-transformer" / "npm"


def download(packages: Sequence[Package], folder: Path) -> None:
    """Download the archives that are not in a folder with `npm pack`, and check the digests of all.

    Raises:
        ValueError: an archive is missing and npm is not installed or fails, or an archive has another digest.
        OSError: the folder is not writable.
    """
    missing = [package for package in packages if not (folder / package.archive).exists()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        pack(missing, folder)
    for package in packages:
        digest = hashlib.sha512((folder / package.archive).read_bytes()).digest()
        if base64.b64encode(digest).decode() != package.sha512:
            raise ValueError(
                f"{folder / package.archive} must be the archive of {package.name} {package.version}, got a file with "
                "another digest: delete it to download it again."
            )


def pack(packages: Sequence[Package], folder: Path) -> None:
    """Call `npm pack`, which downloads the archives of packages without running any of their scripts."""
    npm = shutil.which("npm")
    names = [f"{package.name}@{package.version}" for package in packages]
    if npm is None:
        raise ValueError(
            f"npm must be installed to download {' and '.join(names)}, or npm_cache must be a folder with "
            f"{' and '.join(package.archive for package in packages)}, got {str(folder)!r}."
        )
    command = [npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", str(folder), *names]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"npm pack must finish within {TIMEOUT} seconds, but did not.") from error
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if line.startswith("npm error")] or error.stderr.split("\n")
        raise ValueError(f"npm must be able to download {' and '.join(names)}, but failed: {lines[0]}") from error


def extract(package: Package, cache: Path, folder: Path) -> None:
    """Extract the files of a package to a folder, without their own folders."""
    with tarfile.open(cache / package.archive) as archive:
        for name in package.files:
            content = archive.extractfile(f"package/{name}")
            assert content is not None  # the digest is that of an archive with these files
            (folder / Path(name).name).write_bytes(content.read())
