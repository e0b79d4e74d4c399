"""The recorder: a process that writes down what others tell it, and says so when it is on disk.

Whoever has something to tell sends a line and waits for one byte. Lines that come while the last ones are being synced
share the next sync. Nothing is interpreted here, so there is little that can go wrong; what does, ends the process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

from perdure.testing.chaos.telling import end_with_the_director

ON_DISK: Final = b"."
LINE_BYTES_MAX: Final = 1 << 20


class Recorder:
    """The file, and who waits for it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._waiting: list[tuple[bytes, asyncio.StreamWriter]] = []
        self._told = asyncio.Event()

    async def listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hear one process out."""
        try:
            while (line := await reader.readline()).endswith(b"\n"):
                self._waiting.append((line, writer))
                self._told.set()
        except ConnectionError:
            pass  # it was killed; what it had told is kept
        finally:
            writer.close()

    async def write(self) -> None:
        """Write, sync, answer; for ever."""
        while True:
            await self._told.wait()
            self._told.clear()
            waiting, self._waiting = self._waiting, []
            await asyncio.to_thread(self._sync, b"".join(line for line, _ in waiting))
            for _, writer in waiting:
                if not writer.is_closing():
                    writer.write(ON_DISK)

    def _sync(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)


async def record(path: Path) -> None:
    """Listen on a free port of the loopback, and print it."""
    recorder = Recorder(path)
    server = await asyncio.start_server(recorder.listen, "127.0.0.1", 0, limit=LINE_BYTES_MAX)
    print(server.sockets[0].getsockname()[1], flush=True)
    await recorder.write()


if __name__ == "__main__":
    end_with_the_director()
    asyncio.run(record(Path(sys.argv[1])))
