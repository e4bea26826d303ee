"""Each rule over the source text finds what it is for, and leaves its neighbours alone."""

import ast
import sys

import pytest

from tests.shape.source_rules import all_problems, impure_imports, seam_leaks, sql_text, unsafe_loading

STDLIB = frozenset(sys.stdlib_module_names)


@pytest.mark.parametrize(
    "source, name",
    [
        ("import time\ntime.time()", "time.time"),
        ("import time as t\nclock = t.monotonic", "time.monotonic"),
        ("from time import perf_counter as now\nnow()", "time.perf_counter"),
        ("from time import *", "time.*"),
        ("def f():\n    import random\n    return random.random()", "random.random"),
        ("import secrets\nsecrets.token_hex()", "secrets.token_hex"),
        ("import uuid\nuuid.uuid4()", "uuid.uuid4"),
        ("from uuid import uuid1\nuuid1()", "uuid.uuid1"),
        ("from datetime import datetime\ndatetime.now()", "datetime.datetime.now"),
        ("import datetime as dt\ndt.datetime.utcnow()", "datetime.datetime.utcnow"),
        ("from datetime import date\ndate.today()", "datetime.date.today"),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(1)", "asyncio.sleep"),
        ("from asyncio import create_task\ncreate_task(x())", "asyncio.create_task"),
        ("import os\nos.urandom(8)", "os.urandom"),
        ("import threading\nthreading.Thread(target=f)", "threading.Thread"),
        ("import threading\nclass T(threading.Thread): ...", "threading.Thread"),
        (
            "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor(2)",
            "concurrent.futures.ThreadPoolExecutor",
        ),
        (
            "import concurrent.futures\nconcurrent.futures.ProcessPoolExecutor()",
            "concurrent.futures.ProcessPoolExecutor",
        ),
        ("import subprocess\nsubprocess.run([])", "subprocess.run"),
        ("import multiprocessing.pool\nmultiprocessing.pool.Pool()", "multiprocessing.pool.Pool"),
        ("from functools import partial\nimport time\nf = partial(time.sleep, 1)", "time.sleep"),
        ("import time\ndef f(now=time.time()): ...", "time.time"),
    ],
)
def test_the_clock_chance_sleep_and_spawn_are_found_however_they_are_named(source, name):
    assert [found.name for found in seam_leaks(ast.parse(source))] == [name]


@pytest.mark.parametrize(
    "source",
    [
        "import datetime\ndatetime.timedelta(seconds=1)\nx = datetime.time(3)",
        "from datetime import UTC, datetime\ndatetime.fromtimestamp(0, UTC)",
        "import uuid\nuuid.uuid5(space, 'x')\nuuid.UUID(bytes=b)",
        "def f(time, random):\n    return time.time() + random.random()",
        "import asyncio\nasyncio.Event()",
        "import threading\nlock = threading.Lock()",
        "import threading\ndef f(t: threading.Thread) -> threading.Thread:\n    u: threading.Thread = t",
        "from tessera import seam\nseam.sleep(1)",
        "'time.time() in a text'",
    ],
)
def test_pure_names_locks_annotations_and_the_seam_itself_are_no_leaks(source):
    assert seam_leaks(ast.parse(source)) == []


@pytest.mark.parametrize(
    "source, line",
    [
        ("import pickle", 1),
        ("x = 1\nfrom pickle import loads", 2),
        ("import yaml", 1),
        ("from msgspec import yaml", 1),
        ("import msgspec\nmsgspec.yaml.decode(b'')", 2),
        ("import shelve as s", 1),
        ("import importlib\nimportlib.import_module('pickle')", 2),
        ("eval('1')", 1),
        ("f = exec", 1),
        ("__import__('os')", 1),
    ],
)
def test_loading_code_from_data_is_found(source, line):
    assert line in [found.line for found in unsafe_loading(ast.parse(source))]


def test_harmless_neighbours_of_unsafe_names_are_left_alone():
    source = "import re, ast, msgspec\nre.compile('x')\ndb.exec(ast.literal_eval(msgspec.json.decode(b'1')))"
    assert unsafe_loading(ast.parse(source)) == []


@pytest.mark.parametrize(
    "source",
    [
        "q = 'SELECT id FROM jobs'",
        "q = 'select id\\n  from jobs\\n where x = 1'",
        "q = f'SELECT {columns} FROM {table}'",
        "q = 'INSERT OR IGNORE INTO jobs VALUES (1)'",
        "q = 'update jobs set state = 1'",
        "q = f'UPDATE {table} SET x = 1'",
        "q = 'DELETE FROM jobs'",
        "q = 'WITH picked AS MATERIALIZED (x)'",
        "q = 'CREATE UNIQUE INDEX i ON t (x)'",
        "q = 'PRAGMA journal_mode = wal'",
        "q = 'BEGIN IMMEDIATE'",
        "run('savepoint one')",
        "q = '-- newest first\\nSELECT id FROM jobs'",
    ],
)
def test_sql_is_found_in_any_case_and_form(source):
    assert len(sql_text(ast.parse(source))) >= 1


@pytest.mark.parametrize(
    "source",
    [
        "'''SELECT id FROM jobs, said a docstring.'''",
        "def f():\n    '''Runs ``DELETE FROM x``.\n\n    SELECT 1 FROM y\n    '''",
        "help = 'Delete these jobs from the queue'",
        "help = 'Select the jobs to retry'",
        "help = 'Update the settings'",
        "help = 'Begin with the oldest'",
        "help = 'With a filter, as (many) as match'",
        "help = 'Create a schedule'",
    ],
)
def test_prose_about_jobs_is_not_taken_for_sql(source):
    assert sql_text(ast.parse(source)) == []


@pytest.mark.parametrize(
    "source, name",
    [
        ("import asyncio", "asyncio"),
        ("from tessera.engine import claiming", "tessera.engine"),
        ("from tessera import seam", "tessera"),
        ("from . import backoff", "."),
        ("import pydantic", "pydantic"),
        ("from os import path", "os"),
    ],
)
def test_a_rule_that_reaches_outside_is_found(source, name):
    assert [found.name for found in impure_imports(ast.parse(source), STDLIB)] == [name]


def test_a_rule_may_use_the_model_other_rules_msgspec_and_pure_modules():
    source = (
        "import math\nimport msgspec\nfrom tessera.model.job import Job\nfrom tessera.rules import backoff"
    )
    assert impure_imports(ast.parse(source), STDLIB) == []


@pytest.mark.parametrize(
    "source, word",
    [
        ("__all__ = ['b', 'a']", "sorted"),
        ("__all__ = ['a', 'a']", "twice"),
        ("__all__: list[str] = ['b', 'B']", "sorted"),
        ("__all__ = [*names]", "literal"),
    ],
)
def test_an_untidy_all_is_found(source, word):
    assert any(word in problem for problem in all_problems(ast.parse(source)))


@pytest.mark.parametrize(
    "source", ["__all__ = ['B', '__version__', 'a']", "x = 1", "__all__: list[str] = []"]
)
def test_a_sorted_or_absent_all_is_fine(source):
    assert all_problems(ast.parse(source)) == []
