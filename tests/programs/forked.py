"""Start a program's processes by forking it after its imports, which take most of the time."""

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable


def run_forked(count: int, main: Callable[..., None], *arguments: object) -> None:
    """Call ``main`` in ``count`` processes that have torchrun's environment, and exit with 1 if one of them fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_rank, args=(rank, count, port, main, arguments)) for rank in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit(1)


def _rank(rank: int, count: int, port: int, main: Callable[..., None], arguments: tuple[object, ...]) -> None:
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count),
        RANK=str(rank), LOCAL_RANK=str(rank),
    )  # fmt: skip
    main(*arguments)
