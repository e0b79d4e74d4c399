"""The store on Postgres when connections, servers and networks fail."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from perdure.core.changes import Change, CommitOutcome
from perdure.core.limits import RECOVERIES_MAX
from perdure.core.records import RunState
from perdure.errors import NotSerializable, SchemaAhead, SchemaOutdated, StoreError, StoreUnavailable
from perdure.store.postgres import PostgresStore, attendance, listener
from perdure.store.postgres.address import parse
from perdure.store.postgres.lines import connect, drop
from perdure.store.protocol import Hint, Store
from perdure.testing.conformance import Bench
from perdure.testing.conformance.harness import Harness, attempt, end, hints, requeue, step
from perdure.testing.proxy import Proxy, proxy
from tests.support import postgres

pytestmark = pytest.mark.postgres

LEASE_US = 30_000_000


class Plain(Harness):
    """Enough of a harness for a bench."""

    async def crash(self, store: Store) -> None:
        await store.close()


def on_loop(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Bench]:
    store = PostgresStore(url)
    await store.open()
    bench = Bench(Plain(), store)
    try:
        yield bench
    finally:
        await bench.close()


@asynccontextmanager
async def admin(url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(url.rpartition("&")[0])
    try:
        yield connection
    finally:
        await connection.close()


def through(passing: Proxy, url: str) -> str:
    """The same schema by way of the proxy."""
    return f"postgresql://postgres@127.0.0.1:{passing.port}/postgres?sslmode=disable&schema={parse(url).schema}"


def socket_of(server: postgres.Server) -> Any:
    return server.directory / f".s.PGSQL.{server.port}"


def test_a_connection_that_is_given_up_while_it_is_made_says_nothing() -> None:
    """Not even at the moment when the driver has asked for encryption and looks for the answer."""

    async def body() -> None:
        server, told = postgres.shared(), []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        async with proxy(socket_of(server)) as passing:
            address = parse(through(passing, server.fresh_url()).replace("sslmode=disable&", ""))
            for turns in range(20):
                connecting = asyncio.create_task(connect(address))
                for _ in range(turns):
                    await asyncio.sleep(0)
                connecting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    (await connecting).terminate()
            await passing_over()
        gc.collect()
        assert told == []

    on_loop(body)


async def passing_over() -> None:
    """Until no connection is being made."""
    while others := [task for task in asyncio.all_tasks() if task.get_name() == "perdure-postgres-connect"]:
        await asyncio.wait(others)


# -- the schema ----------------------------------------------------------------------------------------------


def test_many_may_open_an_empty_database_at_once() -> None:
    async def main() -> None:
        url = postgres.shared().fresh_url()
        stores = [PostgresStore(url) for _ in range(8)]
        await asyncio.gather(*(store.open() for store in stores))
        ids = await asyncio.gather(*(store.reserve_ids(10) for store in stores))
        assert sorted(ids) == list(range(1, 81, 10))
        for store in stores:
            await store.close()

    on_loop(main)


@pytest.mark.parametrize(("found", "error"), [(999, SchemaAhead), (-1, SchemaOutdated)])
def test_another_schema_is_refused(found: int, error: type[StoreError]) -> None:
    async def main() -> None:
        url = postgres.shared().fresh_url()
        async with opened(url), admin(url) as connection:
            # No schema is older than the first: an older one is played by its number alone.
            await connection.execute(f"update {parse(url).schema}.meta set version = {found}")

            with pytest.raises(error):
                await PostgresStore(url).open()

    on_loop(main)


def test_a_schema_may_need_quoting() -> None:
    async def main() -> None:
        async with opened(postgres.shared().url("User")) as bench:
            worker, claimed = await bench.begin()
            async with hints(bench.store) as hinted:
                await bench.store.watch([claimed.run])
                await bench.commit(worker, end(claimed))
                await hinted(Hint.ENDED)

    on_loop(main)


# -- values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"key": "a\0b"}, {"key": "\ud800"}, {"seq": 2**40}, {"digest": 2**70}])
def test_c17_a_value_that_postgres_does_not_take_is_refused_alone(fields: dict[str, Any]) -> None:
    async def main() -> None:
        async with opened(postgres.shared().fresh_url()) as bench:
            worker = await bench.worker()
            await bench.start_many(100)
            runs = await bench.claim(worker)
            bad = runs[37]

            outcome = await bench.store.commit(
                worker, [step(run, **({"key": "a"} | (fields if run is bad else {}))) for run in runs]
            )

            assert outcome.alive and not outcome.lost and list(outcome.refused) == [bad.run]
            assert [len(await bench.log(run.run)) for run in runs] == [1 if run is bad else 2 for run in runs]

    on_loop(main)


def test_c16_a_start_that_postgres_does_not_take_is_a_typed_error() -> None:
    async def main() -> None:
        async with opened(postgres.shared().fresh_url()) as bench:
            for fields in ({"tags": ("a\0",)}, {"tenant": "\0"}, {"key": "\ud800"}):
                with pytest.raises(NotSerializable):
                    await bench.start("t", **fields)
            assert await bench.store.get_thread("t") is None

    on_loop(main)


# -- lost connections ----------------------------------------------------------------------------------------


def test_c12_a_commit_whose_answer_was_lost_is_recognised_when_sent_again() -> None:
    async def main() -> None:
        server = postgres.shared()
        url = server.fresh_url()
        async with opened(url) as bench, proxy(socket_of(server)) as passing, opened(through(passing, url)) as far:
            worker, claimed = await bench.begin("t")
            await bench.start("t")
            batch: list[Change] = [step(claimed, "a"), end(claimed, state=b"state")]
            await far.commit(worker, attempt(claimed, "prepares the statement"))
            passing.lose_answers()
            sent = asyncio.ensure_future(far.store.commit(worker, batch))
            await passing.answer_lost.wait()
            passing.cut()

            with pytest.raises(StoreUnavailable):
                await sent
            assert (await bench.run(claimed.run)).state is RunState.COMPLETED

            assert await far.store.commit(worker, batch) == CommitOutcome()
            assert (await bench.thread("t")).depth == 1

    on_loop(main)


def test_a_start_whose_answer_was_lost_is_recognised_when_sent_again() -> None:
    async def main() -> None:
        server = postgres.shared()
        url = server.fresh_url()
        async with opened(url) as bench, proxy(socket_of(server)) as passing, opened(through(passing, url)) as far:
            asked = [await bench.ask("t", key="k"), await bench.ask("t")]
            await far.start("prepares the statement")
            passing.lose_answers()
            sent = asyncio.ensure_future(far.store.start(asked))
            await passing.answer_lost.wait()
            passing.cut()
            with pytest.raises(StoreUnavailable):
                await sent

            assert all(outcome.created for outcome in await far.store.start(asked))  # type: ignore[union-attr]
            assert (await bench.thread("t")).depth == 2

    on_loop(main)


def test_a_store_outlives_the_immediate_stop_of_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendance, "RESTART_GRACE_S", 3600.0)

    async def main() -> None:
        with postgres.own_server() as server:
            async with opened(server.url()) as bench:
                worker, claimed = await bench.begin("t")
                assert await bench.store.attend(worker)
                await bench.commit(worker, step(claimed, "a"))
                async with hints(bench.store) as hinted:
                    await hinted(Hint.WORK)
                    await asyncio.to_thread(server.stop, "immediate")
                    for call in (
                        bench.store.commit(worker, [step(claimed, "b")]),
                        bench.store.renew(worker, LEASE_US),
                        bench.store.now_us(),
                    ):
                        with pytest.raises(StoreUnavailable):
                            await call
                    await asyncio.to_thread(server.start)

                    await hinted(Hint.WORK)
                    await hinted(Hint.ENDED)
                assert await bench.store.silent_workers() == []
                assert await bench.store.renew(worker, LEASE_US)
                await bench.commit(worker, step(claimed, "b", seq=2), end(claimed))
                assert set(await bench.steps(claimed.run)) == {"a", "b"}

    on_loop(main)


def test_sessions_that_are_ended_under_load_only_make_a_store_unavailable_for_a_moment() -> None:
    url = postgres.shared().fresh_url()

    @on_loop
    async def _() -> None:
        async with opened(url) as bench, admin(url) as other:
            ended = 0

            async def use() -> None:
                while ended < 20:
                    with contextlib.suppress(StoreUnavailable):  # and nothing else, whatever the driver makes of it
                        await bench.store.reserve_ids(1)

            users = [asyncio.create_task(use()) for _ in range(6)]
            while ended < 20:
                ended += await other.fetchval(
                    "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'perdure'"
                )
            await asyncio.gather(*users)


def test_a_lock_that_is_not_to_be_had_makes_the_store_unavailable() -> None:
    url = postgres.shared().fresh_url()

    @on_loop
    async def _() -> None:
        async with opened(url) as bench, admin(url) as other, admin(url) as third:
            role, database = await other.fetchrow("select current_user, current_database()")
            setting = f'alter role "{role}" in database "{database}"'
            await third.execute(f"{setting} set lock_timeout = '1ms'")
            try:
                schema = parse(url).schema
                async with other.transaction():
                    await other.execute(f'lock table "{schema}".workers in access exclusive mode')
                    store = bench.store.clone()
                    with pytest.raises(StoreUnavailable, match="lock timeout"):
                        await store.renew(1, LEASE_US)
                    await store.close()
            finally:
                await third.execute(f"{setting} reset lock_timeout")


def test_a_worker_that_lost_its_session_lock_attends_again_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendance, "RESTART_GRACE_S", 0.0)

    async def main() -> None:
        url = postgres.shared().fresh_url()
        async with opened(url) as bench, admin(url) as connection:
            worker = await bench.worker()
            assert await bench.store.attend(worker)
            assert await bench.store.silent_workers() == []

            await connection.execute(
                "select pg_terminate_backend(l.pid, 5000) from pg_locks l where l.locktype = 'advisory'"
            )
            held = "select count(*) from pg_locks l where l.locktype = 'advisory'"
            async with asyncio.timeout(20):
                while await connection.fetchval(held) == 0:
                    pass
            assert await bench.store.silent_workers() == []
            assert await bench.store.renew(worker, LEASE_US)

    on_loop(main)


def test_c07_a_listener_that_hears_nothing_any_more_notices_and_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HEARTBEAT_S", 0.2)

    async def main() -> None:
        server = postgres.shared()
        url = server.fresh_url()
        async with opened(url) as bench, proxy(socket_of(server)) as passing, opened(through(passing, url)) as far:
            async with hints(far.store) as hinted:
                await hinted(Hint.WORK)
                await hinted(Hint.ENDED)
                passing.swallow()
                await bench.start()

                await hinted(Hint.WORK)

                await bench.store.set_idle(await bench.worker(), True)
                await hinted(Hint.ENDED)
                await bench.start("u")
                await hinted(Hint.WORK)

    on_loop(main)


def test_a_claim_that_passes_over_a_run_which_is_just_being_watched_is_told_to_look_again() -> None:
    async def main() -> None:
        url = postgres.shared().fresh_url()
        async with opened(url) as bench, admin(url) as connection, hints(bench.store) as hinted:
            await hinted(Hint.WORK)
            worker = await bench.worker()
            await bench.store.set_idle(worker, True)
            run = await bench.start()
            await hinted(Hint.WORK)
            async with connection.transaction():
                await connection.execute(f"select {parse(url).schema}.watch(array[{run}]::bigint[])")
                assert await bench.claim(worker) == []

            await hinted(Hint.WORK)
            assert [claimed.run for claimed in await bench.claim(worker)] == [run]

    on_loop(main)


# -- behind a transaction pooler -----------------------------------------------------------------------------


def test_c29_behind_a_transaction_pooler_everything_works_but_hints_and_attendance() -> None:
    async def main() -> None:
        async with opened(postgres.shared().fresh_url() + "&pooler=transaction") as bench:
            worker, claimed = await bench.begin("t", tags=("a",))
            assert not await bench.store.attend(worker)
            heard: list[Hint] = []
            stop = bench.store.listen(heard.append)
            await bench.store.watch([claimed.run])
            await bench.commit(worker, step(claimed, "a"), requeue(claimed))
            second = await bench.claim_one(worker)
            await bench.commit(worker, end(second))
            stop()
            assert [row.key for row in second.records] == ["a"] and heard == []
            assert await bench.store.take_over([worker], recoveries_max=RECOVERIES_MAX)

    on_loop(main)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="a certificate is made by openssl")
def test_the_server_sees_the_end_of_an_encrypted_connection_whose_loop_has_closed(tmp_path: Path) -> None:
    certificate, key = str(tmp_path / "certificate"), str(tmp_path / "key")
    subject = ["-subj", "/CN=localhost", "-keyout", key, "-out", certificate]
    make = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", *subject]
    subprocess.run(make, check=True, capture_output=True)
    ours, theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    ours.load_cert_chain(certificate, key)
    theirs.check_hostname, theirs.verify_mode = False, ssl.CERT_NONE

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:

        def serve() -> None:
            with ours.wrap_socket(server.accept()[0], server_side=True) as heard:
                heard.settimeout(10)
                heard.recv(1)
                with contextlib.suppress(ssl.SSLError, ConnectionError):
                    heard.recv(1)

        async def connect() -> Any:
            loop = asyncio.get_running_loop()
            port = server.getsockname()[1]
            transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port, ssl=theirs)
            transport.write(b"x")
            return SimpleNamespace(_transport=transport, _loop=loop, terminate=transport.abort)

        served = threads.submit(serve)
        connection = asyncio.run(connect())
        drop(connection)
        served.result(timeout=20)
