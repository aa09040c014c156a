"""Image files → one memory-mapped array of pixels, by several processes.

Worker processes import this module alone: numpy and Pillow, no torch.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wardround.errors import DataError, require

__all__ = ["IMAGES", "MOMENTS", "Job", "decode", "decode_all"]

IMAGES, MOMENTS, JOURNAL = "images.npy", "moments.npy", "decoded.jsonl"
BLOCK = 64
"""Images a task; also what is done again at most after an interruption."""
WORTH_PROCESSES = 4 * BLOCK
"""Fewer images than this are decoded faster here than it takes to start other processes."""


@dataclass(frozen=True)
class Job:
    """Where pixels go and what shape they get: n × channels × size × size."""

    folder: Path
    size: int
    channels: int


def decode(path: Path, size: int, channels: int) -> np.ndarray:
    """channels × size × size, uint8: the whole picture, scaled to a square."""
    image_module = require("PIL.Image", "imaging")
    with image_module.open(path) as image:
        mode = "L" if channels == 1 else "RGB"
        # JPEG can decode at a half, a quarter or an eighth: never below twice what is wanted.
        image.draft(mode, (2 * size, 2 * size))
        if image.mode.startswith("I"):  # 16 bits a pixel: keep the upper 8, where Pillow would cut off at 255
            image = image_module.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
        image = image.convert(mode).resize((size, size), image_module.Resampling.BILINEAR)
        pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def decode_all(paths: Sequence[Path], job: Job, workers: int) -> Iterator[tuple[int, dict[int, str]]]:
    """Decode into `images.npy` and `moments.npy` of the job's folder.

    Yields, block by block, how many images are done in all and why some of the block's are unreadable.
    Blocks that an earlier, interrupted call finished are taken over.
    """
    require("PIL.Image", "imaging")  # missing, it must not make every image pass for unreadable
    _allocate(job.folder / IMAGES, (len(paths), job.channels, job.size, job.size), np.uint8)
    _allocate(job.folder / MOMENTS, (len(paths), 2, job.channels), np.float32)
    journal = job.folder / JOURNAL
    finished = _finished(journal)
    done = 0
    for start, unreadable in finished.items():
        done += len(paths[start : start + BLOCK])
        yield done, unreadable
    waiting = [start for start in range(0, len(paths), BLOCK) if start not in finished]
    try:
        with journal.open("a") as log:
            for start, unreadable in _blocks(paths, waiting, job, workers):
                log.write(json.dumps([start, unreadable]) + "\n")
                log.flush()
                done += len(paths[start : start + BLOCK])
                yield done, unreadable
    except BaseException:
        if not done:  # stopped before the first block: there is nothing to resume from
            for file in (IMAGES, MOMENTS, JOURNAL):
                (job.folder / file).unlink(missing_ok=True)
        raise
    journal.unlink()


def _allocate(path: Path, shape: tuple[int, ...], kind: type) -> None:
    """An array of zeros on disk, its space reserved: a full disk shows now, not as a crash later."""
    if path.exists():
        return
    try:
        array = np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=shape)
        del array
        if hasattr(os, "posix_fallocate"):
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError as error:
        path.unlink(missing_ok=True)
        size = np.prod(shape) * np.dtype(kind).itemsize / 1e9
        raise DataError(f"cannot write {size:.1f} GB to {path}: {error.strerror}") from None


def _finished(journal: Path) -> dict[int, dict[int, str]]:
    """Start of each finished block → its unreadable images. A line cut short by a crash does not count."""
    unreadable_of_block: dict[int, dict[int, str]] = {}
    for line in journal.read_text().splitlines() if journal.exists() else []:
        try:
            start, unreadable = json.loads(line)
        except ValueError:
            continue
        unreadable_of_block[start] = {int(row): reason for row, reason in unreadable.items()}
    return unreadable_of_block


def _blocks(
    paths: Sequence[Path], starts: Sequence[int], job: Job, workers: int
) -> Iterator[tuple[int, dict[int, str]]]:
    """Decode the blocks that begin at `starts`, in any order."""
    if workers == 1 or len(starts) * BLOCK <= WORTH_PROCESSES:
        for start in starts:
            yield _decode_block(start, paths[start : start + BLOCK], job)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_leave_interrupts_to_parent)
    try:
        tasks: list[Future[tuple[int, dict[int, str]]]] = [
            pool.submit(_decode_block, start, paths[start : start + BLOCK], job) for start in starts
        ]
        for task in as_completed(tasks):
            yield task.result()
    except BrokenProcessPool:
        raise DataError(
            "a process that decodes images was ended from outside (out of memory?); run the same command "
            "again, with fewer --workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_interrupts_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _decode_block(start: int, paths: Sequence[Path], job: Job) -> tuple[int, dict[int, str]]:
    images = np.load(job.folder / IMAGES, mmap_mode="r+")
    moments = np.load(job.folder / MOMENTS, mmap_mode="r+")
    unreadable: dict[int, str] = {}
    for row, path in enumerate(paths, start):
        try:
            pixels = decode(path, job.size, job.channels)
        except Exception as error:  # Pillow's decoders raise whatever they like on a damaged file
            unreadable[row] = _reason(error)
            continue
        images[row] = pixels
        shades = pixels.reshape(job.channels, -1) / 255.0
        moments[row] = shades.mean(1), (shades**2).mean(1)
    images.flush()
    moments.flush()
    return start, unreadable


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    return (str(error).split("\n")[0] or type(error).__name__)[:120]
