"""Runs coroutine tests under a deadline, selects tests by options and assigns them to rows of the compatibility table.

A test written `async def` runs in its own event loop under a deadline (`@pytest.mark.deadline(seconds)`, 180 by
default). When the deadline passes, the failure shows where each task of the loop was waiting. Async fixtures are
not supported: write `async with` inside the test.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import io
import logging
import os
import signal
from collections.abc import Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from allocator.testing.versions import NEWEST

if TYPE_CHECKING:
    from tests.constants import SetConstant

DEADLINE_S = 180.0
# prefix of a test's id (the longest counts) -> row in docs/compatibility.md, and the versions of tests that have no
# version parameter
FEATURES: dict[str, tuple[str, ...]] = {
    "client/test_kafka_servers.py": ("Finding the version, topics, leaders and ends of logs",),
    "zookeeper/": ("Connection to ZooKeeper",),
    "groups/": ("Groups through ZooKeeper",),
    "resources/": ("Resources of any kind, shared through ZooKeeper",),
    "consumer/": ("`Consumer`",),
    "client/test_slow_brokers.py": ("Slow and distant brokers",),
    "compat/": ("`SingleConsumer`",),
    "producer/": ("Producing",),
    "web/": ("Page of groups of Kafka's own protocols",),
    "fetch/": ("Reading",),
    "fetch/test_fetcher_brokers.py::test_all_that_was_produced": ("Reading every codec that the version supports",),
    "fetch/test_fetcher_brokers.py::test_a_seek_into_a_compressed": ("Reading every codec that the version supports",),
    "offsets/test_offsets_servers.py": ("Committed offsets",),
    "consumer/test_consumer_versions.py": ("Groups through ZooKeeper that kiel left",),
    "consumer/test_consumer_group_real.py": ("`ConsumerGroup`: generations",),
    "daemon/test_daemon_real.py": ("`allocator run`: dead letters",),
    "groups/test_kafka": ("Groups by Kafka's own protocol",),
    "groups/test_kafka_mixed.py": ("... shared with other clients",),
    "groups/test_kip848_servers.py": ("... the next generation of it (KIP-848)", NEWEST),
    "groups/test_kiel": ("Groups shared with kiel",),
    "groups/test_old": ("Groups shared with consumers of 0.8",),
    "migrate/test_mirror.py": ("Mirror", "0.9.0.1", "3.9.1"),
    "migrate/test_mirror_faults.py": ("Mirror", "0.9.0.1", "3.9.1"),
    "migrate/test_mirror_loss.py": ("Mirror",),
    "migrate/test_moves.py::test_a_topic": ("Mirror",),
    "migrate/test_moves.py::test_offsets": ("Offsets copied",),
    "migrate/test_cutover": ("Cutover",),
    "doctor/": ("`allocator doctor`",),
    "outside/test_java": ("... shared with Java's consumers of 0.10 to 4.4", "3.9.1"),
    "outside/test_other": ("... shared with clients in Go",),
    "outside/test_kiel": ("Groups shared with kiel",),
    "outside/test_tools": ("Kafka's own tools on allocator's groups",),
    "outside/test_records": ("Records of Java's producer, field by field",),
    "spark/": ("Spark source and sink",),
    "testing/": ("Servers for tests (`allocator.testing`)",),
    "testing/test_kafka_versions": ("Tests on several versions (`kafka_versions`)",),
}
# more versions of ZooKeeper for `--long`, and the tests that run on each: those of groups through ZooKeeper
KEEPERS = ("3.4.14", "3.9.5")
KEPT = ("zookeeper/", "groups/", "resources/", "consumer/")
NOT_KEPT = ("groups/test_kafka", "groups/test_kip848", "kafka", "fixed")
# fixtures that start or use servers
STARTERS = {"cluster_factory", "topic_factory", "spark"}
# a cache without jars: no server can start, also in processes that a test starts
NO_JARS = "/dev/null/mark-this-test-with-servers"
_UNWIND_S = 10.0

# the duration of an example depends on the load of the machine, and the first call imports modules
hypothesis.settings.register_profile(
    "long", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.register_profile("suite", hypothesis.settings.get_profile("long"), max_examples=40)


class EagerTasks(asyncio.DefaultEventLoopPolicy):
    """Creates event loops whose tasks run up to their first wait before `create_task` returns."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        loop = super().new_event_loop()
        loop.set_task_factory(asyncio.eager_task_factory)
        return loop


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests marked `long`")
    parser.addoption("--compatibility", metavar="FILE", help="write a table of tested features and versions into FILE")
    parser.addoption("--versioned", action="store_true", help="only tests that count in docs/compatibility.md")
    parser.addoption("--serverless", action="store_true", help="only tests without servers; one that starts any fails")
    parser.addoption("--uvloop", action="store_true", help="run coroutine tests on uvloop, which must be installed")
    parser.addoption("--eager", action="store_true", help="run coroutine tests with eager tasks; needs Python 3.12")
    parser.addoption("--jitter", metavar="SEED[:SECONDS]", help="delay responses at random (see tests/jitter.py)")
    parser.addoption("--stalls", metavar="SEED", help="stop processes for a while at random (see tests/stalls.py)")


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile("long" if config.getoption("--long") else "suite")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # a shell ignores SIGINT in background jobs, and programs that tests interrupt would inherit this
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--serverless"):
        os.environ["ALLOCATOR_CACHE"] = NO_JARS
    if config.getoption("--uvloop"):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    if config.getoption("--eager"):
        asyncio.set_event_loop_policy(EagerTasks())
    if config.getoption("--jitter") is not None:
        from tests import jitter  # not at the top: a copy of this file has no such module

        jitter.install(config.getoption("--jitter"))
    if config.getoption("--stalls") is not None:
        from tests.stalls import Stalls

        config.pluginmanager.register(Stalls(config.getoption("--stalls")))
    table = config.getoption("--compatibility")
    if table is not None:
        from tests.compatibility_table import CompatibilityTable

        config.pluginmanager.register(CompatibilityTable(config.invocation_params.dir / table))
    config.addinivalue_line(
        "markers", 'feature("name", "4.1.1", ...): row, and versions, in the table of --compatibility'
    )
    config.addinivalue_line("markers", "no_stalls(reason): `--stalls` does not stop this test")
    config.addinivalue_line("markers", "deadline(seconds): how long a coroutine test may take, 180 by default")


def may_start_servers(item: pytest.Item) -> bool:
    return bool(item.get_closest_marker("servers") or STARTERS & set(getattr(item, "fixturenames", ())))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.definition.nodeid.partition("tests/")[2]
    if not metafunc.config.getoption("--long") or "zookeeper_version" not in metafunc.fixturenames:
        return
    if name.startswith(KEPT) and not name.startswith(NOT_KEPT):
        usual = pytest.param(None, id=pytest.HIDDEN_PARAM)
        metafunc.parametrize("zookeeper_version", [usual, *KEEPERS], indirect=True, scope="session")


def is_for_another_zookeeper(item: pytest.Item) -> bool:
    """Returns whether the test repeats a long test, or a test without ZooKeeper, on another version of ZooKeeper."""
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    elsewhere = any(value in NOT_KEPT for value in params.values() if isinstance(value, str))
    return bool(params.get("zookeeper_version")) and (elsewhere or item.get_closest_marker("long") is not None)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Makes a test that starts servers without the mark fail in each run, not only with `--serverless`."""
    before = os.environ.get("ALLOCATOR_CACHE")
    if not may_start_servers(item):
        os.environ["ALLOCATOR_CACHE"] = NO_JARS
    yield
    if before is None:
        os.environ.pop("ALLOCATOR_CACHE", None)
    else:
        os.environ["ALLOCATOR_CACHE"] = before


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        name = item.nodeid.partition("tests/")[2]
        prefix = max(filter(name.startswith, FEATURES), key=len, default=None)
        if prefix is not None:
            item.add_marker(pytest.mark.feature(*FEATURES[prefix]))
    long, versioned = config.getoption("--long"), config.getoption("--versioned")
    serverless = config.getoption("--serverless")
    if versioned:
        from tests.compatibility_table import versions_of

    def wanted(item: pytest.Item) -> bool:
        if (serverless and may_start_servers(item)) or is_for_another_zookeeper(item):
            return False
        return (long or not item.get_closest_marker("long")) and (not versioned or bool(versions_of(item)))

    left_out = [item for item in items if not wanted(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if wanted(item)]


def pytest_collection() -> None:
    gc.disable()  # the modules of all tests stay, so each collection of garbage during their import is in vain


def pytest_collection_finish() -> None:
    gc.freeze()  # otherwise each full collection takes half a second, because the modules of all tests are loaded
    gc.enable()


@pytest.fixture
def set_constant(monkeypatch: pytest.MonkeyPatch) -> SetConstant:
    """`set_constant(module, NAME=value)` until the test ends."""
    from tests.constants import SetConstant  # not at the top: a copy of this file has no such module

    return SetConstant(monkeypatch)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.scheduling import NearServers  # not at the top: only `-n` needs xdist

    return NearServers(config, log)


@pytest.fixture(autouse=True)
def levels_of_loggers() -> Iterator[None]:
    """Restores the levels of loggers, which a command in this process changes."""

    def levels() -> dict[logging.Logger, int]:
        return {logger: logger.level for logger in _loggers()}

    before = levels()
    yield
    for logger, level in levels().items():
        if level != before.get(logger, logging.NOTSET):
            logger.setLevel(before.get(logger, logging.NOTSET))


def _loggers() -> list[logging.Logger]:
    known = [*logging.root.manager.loggerDict.values(), logging.root]
    return [logger for logger in known if isinstance(logger, logging.Logger)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Lets loggers propagate again that a test silenced.

    Otherwise, pytest attaches its handler to them at teardown, and PySpark's loggers replace the formatter of each
    handler.
    """
    silent = {logger for logger in _loggers() if not logger.propagate}
    try:
        return (yield)
    finally:
        for logger in _loggers():
            logger.propagate = logger not in silent


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints what skipped tests leave unproven, before pytest's own last line."""
    try:
        from tests.lacking import summary  # not at the top: a copy of this file has no such module
    except ImportError:
        return
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    if skipped:
        terminalreporter.write_sep("=", "not proven in this run, and what would bring it")
        reasons = [str(each[2] if isinstance(each, (list, tuple)) else each) for each in skipped]
        for line in summary(reason.removeprefix("Skipped: ") for reason in reasons):
            terminalreporter.write_line(line)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    marker = pyfuncitem.get_closest_marker("deadline")
    seconds = float(marker.args[0]) if marker else DEADLINE_S
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(_within(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}), seconds))
    return True


async def _within(test: Coroutine[Any, Any, None], seconds: float) -> None:
    task = asyncio.ensure_future(test)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    if done:
        task.result()
        return
    stacks = io.StringIO()
    for other in asyncio.all_tasks():
        if other is not asyncio.current_task():
            other.print_stack(file=stacks)
    task.cancel()
    await asyncio.wait({task}, timeout=_UNWIND_S)  # its `finally` blocks may stop servers
    pytest.fail(f"not done within {seconds:g} s; its tasks were at:\n{stacks.getvalue()}", pytrace=False)
