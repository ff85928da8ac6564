"""What an engine, a loader, a blob parser and a reader must do, as test classes to subclass.

Plain classes with ``test_…`` methods: pytest is needed to run them, not to import them. Each
docstring says what users stumble over when the line does not hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import io
import itertools
import json
import pickle
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath
from typing import Any, TypeVar

from PIL import Image

from mdiff_adapters.engines.base import Answer, Capabilities, Engine, Request
from mdiff_adapters.errors import EngineError, MDiffError
from mdiff_adapters.testing.documents import sample_pdf
from mdiff_adapters.testing.engine import ScriptedEngine, default_script

T = TypeVar("T")

MAX_LOOP_GAP_S = 0.05
NUM_LOOP_RUNS = 5
"""Longest time the event loop may be held up."""


class EngineContract:
    """What every engine does. Fill in :meth:`make_engine`; override the requests if needed."""

    def make_engine(self) -> Engine:
        """Return a new engine; the contract closes it."""
        raise NotImplementedError

    def make_request(self, request_id: str) -> Request:
        """Return a request that the engine can answer."""
        return Request(id=request_id, image=Image.new("RGB", (896, 28), "white"))

    def test_it_says_who_it_is_and_what_it_can(self) -> None:
        """The document layer chooses its segmenter by the capabilities."""
        with self.make_engine() as engine:
            assert isinstance(engine, Engine)
            assert engine.name
            assert isinstance(engine.capabilities, Capabilities)

    def test_every_request_is_answered_once_under_its_id(self) -> None:
        """Answers may come in any order, so the id is all that tells them apart."""
        ids = [f"r{n}" for n in range(7)]
        with self.make_engine() as engine:
            answers = list(engine.answer(self.make_request(i) for i in ids))
        assert all(isinstance(answer, Answer) for answer in answers)
        assert sorted(answer.id for answer in answers) == ids
        assert [answer.error for answer in answers] == [None] * len(ids)

    def test_no_requests_no_answers(self) -> None:
        """A blank page asks nothing."""
        with self.make_engine() as engine:
            assert list(engine.answer([])) == []

    def test_requests_are_pulled_as_they_are_needed(self) -> None:
        """The first answer must not wait for the last page to be rendered."""
        with self.make_engine() as engine:
            pulled: list[int] = []

            def endless() -> Iterator[Request]:
                for n in itertools.count():
                    pulled.append(n)
                    yield self.make_request(str(n))

            answers = engine.answer(endless())
            first = next(answers)
            assert first.error is None
            _close(answers)
            assert len(pulled) <= 1024

    def test_a_bad_request_is_an_answer_with_an_error(self) -> None:
        """One broken crop must not lose the page."""
        bad = Request(id="bad", image=Image.new("RGB", (8, 8)), task="no-such-task")  # type: ignore[arg-type]
        with self.make_engine() as engine:
            answers = {a.id: a for a in engine.answer([bad, self.make_request("good")])}
        assert isinstance(answers["bad"].error, Exception)
        assert answers["bad"].finish_reason in ("error", "timeout")
        assert answers["good"].error is None

    def test_an_error_of_the_callers_iterable_reaches_the_caller(self) -> None:
        """A page that cannot be rendered is the caller's error, not the engine's."""

        def broken() -> Iterator[Request]:
            yield self.make_request("a")
            raise LookupError("page lost")

        with self.make_engine() as engine:
            caught = _raised(LookupError, list, engine.answer(broken()))
            assert "page lost" in str(caught)
            assert len(list(engine.answer([self.make_request("b")]))) == 1

    def test_threads_share_it(self) -> None:
        """Loaders in a thread pool share one engine."""
        with self.make_engine() as engine, ThreadPoolExecutor(4) as pool:
            ids = [[f"{k}.{n}" for n in range(3)] for k in range(4)]
            calls = [pool.submit(self._ask, engine, mine) for mine in ids]
            for mine, call in zip(ids, calls, strict=True):
                assert sorted(call.result(60)) == mine

    def test_closed_is_closed(self) -> None:
        """Closing twice is fine; asking afterwards is an error and not a hang."""
        engine = self.make_engine()
        engine.close()
        engine.close()
        _raised(EngineError, self._ask, engine, ["a"])

    def _ask(self, engine: Engine, ids: list[str]) -> list[str]:
        return [answer.id for answer in engine.answer(self.make_request(i) for i in ids)]


class DocumentContract:
    """What loaders and readers have in common: a file in, documents out, page by page.

    Fill in :meth:`iterate`, :meth:`iterate_async`, :meth:`text_of` and :meth:`id_of`.
    """

    error_policies: tuple[str, ...] = ("record", "skip", "raise")
    """Values of the option ``on_error`` that are supported."""

    def iterate(self, source: Any, **options: Any) -> Iterator[Any]:
        """Return a lazy iterator over the documents of a file; options have ``engine``."""
        raise NotImplementedError

    async def iterate_async(self, source: Any, **options: Any) -> list[Any]:
        """Return the documents of a file, read off the event loop."""
        raise NotImplementedError

    def make_adapter(self, source: Any, **options: Any) -> Any:
        """Return the adapter object itself, for pickling."""
        raise NotImplementedError

    def documents_of(self, adapter: Any, source: Any) -> list[Any]:
        """Return the documents that an adapter object reads from a file."""
        raise NotImplementedError

    def text_of(self, document: Any) -> str:
        """Return the text of a document."""
        raise NotImplementedError

    def id_of(self, document: Any) -> str | None:
        """Return the id of a document."""
        raise NotImplementedError

    def is_error(self, document: Any) -> bool:
        """Whether a document says that its page failed."""
        return "mdiff_error" in document.metadata

    def make_engine(self, **options: Any) -> ScriptedEngine:
        """Return the scripted engine that reads ``Text of page 1`` and so on."""
        return ScriptedEngine(**options)

    def _file(self, folder: Path, num_pages: int = 3, name: str = "sample.pdf") -> Path:
        path = folder / name
        path.write_bytes(sample_pdf(num_pages, roman=2))
        return path

    def _all(self, source: Any, **options: Any) -> list[Any]:
        options.setdefault("engine", self.make_engine())
        return list(self.iterate(source, **options))

    def test_one_document_a_page_in_order(self, tmp_path: Path) -> None:
        """A lost or swapped page makes every citation wrong."""
        documents = self._all(self._file(tmp_path))
        assert [self.text_of(d) for d in documents] == [f"Text of page {n}" for n in (1, 2, 3)]
        assert [d.metadata["page_label"] for d in documents] == ["i", "ii", "1"]

    def test_metadata_is_flat_json_and_the_same_on_every_run(self, tmp_path: Path) -> None:
        """Stores refuse nested values, and indexes re-embed when anything changes."""
        path = self._file(tmp_path)
        first, second = self._all(path), self._all(path)
        for document in first:
            for name, value in document.metadata.items():
                assert isinstance(name, str)
                assert isinstance(value, (str, int, float, bool)), (name, value)
            json.dumps(document.metadata, sort_keys=True)
        assert [d.metadata for d in first] == [d.metadata for d in second]

    def test_ids_are_stable_and_do_not_depend_on_the_path(self, tmp_path: Path) -> None:
        """An index that is updated after a file was moved must find its documents."""
        here = self._file(tmp_path)
        there = self._file(tmp_path, name="moved.pdf")
        ids = [self.id_of(d) for d in self._all(here)]
        assert ids == [self.id_of(d) for d in self._all(there)]
        assert len(set(ids)) == 3
        assert all(ids)

    def test_str_and_path_give_the_same(self, tmp_path: Path) -> None:
        """A Path in the metadata cannot be hashed by an index."""
        path = self._file(tmp_path)
        a, b, c = self._all(str(path)), self._all(path), self._all(PurePath(path))
        assert [d.metadata for d in a] == [d.metadata for d in b] == [d.metadata for d in c]

    def test_the_first_page_arrives_before_the_last_is_read(self, tmp_path: Path) -> None:
        """Users wait for the first page, not for the file."""
        engine = self.make_engine()
        pages = self.iterate(self._file(tmp_path, num_pages=40), engine=engine)
        assert iter(pages) is pages, "a list was built before the first document"
        assert engine.asked == []
        next(pages)
        assert {asked.origin["page"] for asked in engine.asked} == {0}
        _close(pages)
        asked = len(engine.asked)
        time.sleep(0.05)
        assert len(engine.asked) == asked, "pages are read for nobody"

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        """And it is a FileNotFoundError, which callers already handle."""
        path = tmp_path / "absent.pdf"
        caught = _raised(FileNotFoundError, self._all, path)
        assert str(path) in str(caught)

    def test_broken_files_raise_and_are_named(self, tmp_path: Path) -> None:
        """A batch of a thousand files fails at one of them: which?"""
        contents = {
            "empty.pdf": b"",
            "page.pdf": b"<!doctype html><html><body>Not found</body></html>",
            "cut.pdf": sample_pdf(1)[:100],
        }
        for name, content in contents.items():
            path = tmp_path / name
            path.write_bytes(content)
            caught = _raised(MDiffError, self._all, path)
            assert name in str(caught), (name, caught)
            assert not isinstance(caught, ImportError)  # LlamaIndex aborts a folder on those

    def test_a_failed_page_is_not_an_ordinary_blank(self, tmp_path: Path) -> None:
        """Silent empty pages are found months later."""
        path = self._file(tmp_path)

        def script(request: Request) -> str | Answer:
            if request.origin.get("page") == 1:
                raise RuntimeError("device lost")
            return default_script(request)

        for policy in self.error_policies:
            engine = self.make_engine(script=script)
            if policy == "raise":
                caught = _raised(MDiffError, self._all, path, engine=engine, on_error=policy)
                assert "page 2" in str(caught) and "sample.pdf" in str(caught)
                continue
            documents = self._all(path, engine=engine, on_error=policy)
            if policy == "record":
                assert [self.is_error(d) for d in documents] == [False, True, False]
            else:
                labels = [d.metadata["page_label"] for d in documents]
                assert labels == ["i", "1"]

    def test_a_blank_page_is_no_error(self, tmp_path: Path) -> None:
        """Blank pages are common; one must not end or renumber the document."""
        engine = self.make_engine(
            script=lambda r: "" if r.origin.get("page") == 1 else default_script(r)
        )
        documents = self._all(self._file(tmp_path), engine=engine)
        assert [bool(self.text_of(d)) for d in documents] == [True, False, True]
        assert not any(self.is_error(d) for d in documents)

    def test_two_interleaved_iterations_do_not_block_each_other(self, tmp_path: Path) -> None:
        """A lock held across a yield is a deadlock in one thread."""
        path, engine = self._file(tmp_path), self.make_engine()

        def interleave() -> list[str]:
            pairs = zip(
                self.iterate(path, engine=engine), self.iterate(path, engine=engine), strict=True
            )
            return [self.text_of(d) for pair in pairs for d in pair]

        assert len(_within(30, interleave)) == 6

    def test_threads_read_the_same(self, tmp_path: Path) -> None:
        """Directory loaders read files in threads; PDF libraries are not thread-safe."""
        path, engine = self._file(tmp_path), self.make_engine()
        expected = [self.text_of(d) for d in self._all(path)]
        with ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(self._all, path, engine=engine) for _ in range(8)]
            for call in calls:
                assert [self.text_of(d) for d in call.result(60)] == expected

    def test_it_pickles_and_the_original_still_works(self, tmp_path: Path) -> None:
        """Worker pools pickle adapters; only the engine's name may travel."""
        path = self._file(tmp_path)
        adapter = self.make_adapter(path, engine="scripted:")
        before = [d.metadata for d in self.documents_of(adapter, path)]
        travelled = pickle.loads(pickle.dumps(adapter))
        for again in (travelled, copy.deepcopy(adapter), adapter):
            assert [d.metadata for d in self.documents_of(again, path)] == before

    def test_the_event_loop_is_not_held_up(self, tmp_path: Path) -> None:
        """One synchronous page stalls every user of a server."""
        path = self._file(tmp_path)
        engine = self.make_engine(delay_s=0.1)

        async def read() -> list[Any]:
            return await self.iterate_async(path, engine=engine)

        documents = _free_loop(read)
        assert [self.text_of(d) for d in documents] == [f"Text of page {n}" for n in (1, 2, 3)]

    def test_it_works_in_one_event_loop_after_another(self, tmp_path: Path) -> None:
        """A client bound to the first loop fails on the second: "Event loop is closed"."""
        path, engine = self._file(tmp_path), self.make_engine()
        for _ in range(2):
            documents = asyncio.run(self.iterate_async(path, engine=engine))
            assert len(documents) == 3

    def test_the_blocking_form_works_inside_a_running_loop(self, tmp_path: Path) -> None:
        """Notebooks always have a running loop."""
        path, engine = self._file(tmp_path), self.make_engine()

        async def run() -> int:
            return len(self._all(path, engine=engine))

        assert asyncio.run(run()) == 3

    def test_many_at_once_take_turns(self, tmp_path: Path) -> None:
        """Async directory readers start all files together."""
        path, engine = self._file(tmp_path), self.make_engine()

        async def run() -> list[list[Any]]:
            return await asyncio.gather(
                *(self.iterate_async(path, engine=engine) for _ in range(6))
            )

        results = asyncio.run(run())
        assert [len(documents) for documents in results] == [3] * 6

    def test_a_cancelled_load_waits_for_its_step_and_leaves_all_usable(
        self, tmp_path: Path
    ) -> None:
        """A document that is closed under a thread that reads it crashes the process."""
        path = self._file(tmp_path)
        engine = self.make_engine(delay_s=0.2)

        async def run() -> None:
            task = asyncio.ensure_future(self.iterate_async(path, engine=engine))
            await asyncio.sleep(0.1)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert task.cancelled()

        asyncio.run(run())
        asked = len(engine.asked)
        time.sleep(0.3)
        assert len(engine.asked) == asked, "the cancelled load goes on"
        assert len(self._all(path)) == 3


class LoaderContract(DocumentContract):
    """A LangChain document loader. Fill in :meth:`make_adapter`."""

    def iterate(self, source: Any, **options: Any) -> Iterator[Any]:
        """Return ``lazy_load()`` of a new loader."""
        documents: Iterator[Any] = self.make_adapter(source, **options).lazy_load()
        return documents

    async def iterate_async(self, source: Any, **options: Any) -> list[Any]:
        """Return the documents of ``alazy_load()``."""
        documents: AsyncIterator[Any] = self.make_adapter(source, **options).alazy_load()
        return [document async for document in documents]

    def documents_of(self, adapter: Any, source: Any) -> list[Any]:
        """Return ``load()``."""
        documents: list[Any] = adapter.load()
        return documents

    def text_of(self, document: Any) -> str:
        """Return ``page_content``."""
        text: str = document.page_content
        return text

    def id_of(self, document: Any) -> str | None:
        """Return ``id``."""
        identity: str | None = document.id
        return identity

    def test_load_is_the_list_of_lazy_load_and_can_be_repeated(self, tmp_path: Path) -> None:
        """A loader that is empty on its second run loses documents without a word."""
        loader = self.make_adapter(self._file(tmp_path), engine=self.make_engine())
        assert loader.load() == list(loader.lazy_load()) == loader.load()
        assert "load" not in vars(type(loader)), "implement lazy_load, not load"

    def test_the_metadata_of_pdf_loaders_is_there(self, tmp_path: Path) -> None:
        """Retrievers and citations read these names; pages count from 0 in LangChain."""
        path = self._file(tmp_path)
        documents = self._all(path)
        for n, document in enumerate(documents):
            metadata = document.metadata
            assert metadata["source"] == str(path)
            assert (metadata["page"], metadata["total_pages"]) == (n, 3)
            assert {"producer", "creator", "creationdate"} <= set(metadata)

    def test_a_consumer_that_stops_early_stops_the_work(self, tmp_path: Path) -> None:
        """``break`` in an async loop must close the file, off the loop."""
        path = self._file(tmp_path, num_pages=30)
        engine = self.make_engine()

        async def first() -> Any:
            pages = self.make_adapter(path, engine=engine).alazy_load()
            async for document in pages:
                await pages.aclose()
                return document

        document = asyncio.run(first())
        assert document.metadata["page"] == 0
        assert {asked.origin["page"] for asked in engine.asked} == {0}


class ReaderContract(DocumentContract):
    """A LlamaIndex reader. Fill in :meth:`make_adapter`, which ignores the file."""

    def iterate(self, source: Any, **options: Any) -> Iterator[Any]:
        """Return ``lazy_load_data(file)`` of a new reader."""
        documents: Iterator[Any] = self.make_adapter(source, **options).lazy_load_data(source)
        return documents

    async def iterate_async(self, source: Any, **options: Any) -> list[Any]:
        """Return ``aload_data(file)``."""
        documents: list[Any] = await self.make_adapter(source, **options).aload_data(source)
        return documents

    def documents_of(self, adapter: Any, source: Any) -> list[Any]:
        """Return ``load_data(file)``."""
        documents: list[Any] = adapter.load_data(source)
        return documents

    def text_of(self, document: Any) -> str:
        """Return ``text``."""
        text: str = document.text
        return text

    def id_of(self, document: Any) -> str | None:
        """Return ``id_``."""
        identity: str | None = document.id_
        return identity

    def test_extra_info_wins_and_is_not_changed(self, tmp_path: Path) -> None:
        """Directory readers hand the same kind of mapping to every file."""
        path = self._file(tmp_path)
        reader = self.make_adapter(path, engine=self.make_engine())
        info = {"file_name": "shown.pdf", "team": "a"}
        documents = reader.load_data(path, extra_info=info)
        assert info == {"file_name": "shown.pdf", "team": "a"}
        for document in documents:
            assert document.metadata["file_name"] == "shown.pdf"
            assert document.metadata["team"] == "a"
            assert document.metadata is not info

    def test_bytes_are_read_as_well(self, tmp_path: Path) -> None:
        """Uploads never touch a disk."""
        path = self._file(tmp_path)
        content = path.read_bytes()
        reader = self.make_adapter(path, engine=self.make_engine())
        expected = [(d.id_, d.text) for d in reader.load_data(path)]
        for form in (content, io.BytesIO(content)):
            assert [(d.id_, d.text) for d in reader.load_data(form)] == expected

    def test_settings_survive_a_dictionary(self, tmp_path: Path) -> None:
        """Ingestion pipelines are stored as JSON."""
        path = self._file(tmp_path)
        reader = self.make_adapter(path, engine="scripted:")
        stored = json.loads(json.dumps(reader.to_dict()))
        assert stored["class_name"] == type(reader).__name__
        again = type(reader).from_dict(stored)
        assert [d.id_ for d in again.load_data(path)] == [d.id_ for d in reader.load_data(path)]

    def test_the_lazy_async_form_does_not_run_on_the_loop(self, tmp_path: Path) -> None:
        """The default returns a generator that then blocks the loop."""
        path = self._file(tmp_path)
        engine = self.make_engine(delay_s=0.1)
        reader = self.make_adapter(path, engine=engine)

        async def read() -> int:
            count = 0
            for _ in await reader.alazy_load_data(path):
                count += 1
                await asyncio.sleep(0)
            return count

        assert _free_loop(read) == 3


class ParserContract:
    """A LangChain blob parser. Fill in :meth:`make_parser` and :meth:`make_blob`."""

    def make_parser(self, **options: Any) -> Any:
        """Return a new parser; options have ``engine``."""
        raise NotImplementedError

    def make_blob(self, data: bytes, mime_type: str, **metadata: Any) -> Any:
        """Return a blob of bytes in memory."""
        raise NotImplementedError

    def test_a_blob_in_memory_is_parsed_lazily(self) -> None:
        """Object stores have no paths."""
        engine = ScriptedEngine()
        blob = self.make_blob(sample_pdf(20), "application/pdf", source="s3://bucket/a.pdf")
        documents = self.make_parser(engine=engine).lazy_parse(blob)
        assert next(documents).page_content == "Text of page 1"
        assert {asked.origin["page"] for asked in engine.asked} == {0}
        _close(documents)

    def test_the_metadata_of_the_blob_is_merged_and_its_source_kept(self) -> None:
        """Cloud loaders put the address there; the blob's path is a temporary file."""
        blob = self.make_blob(
            sample_pdf(2), "application/pdf", source="https://host/a.pdf", team="a", page_label="x"
        )
        documents = self.make_parser(engine=ScriptedEngine()).parse(blob)
        for document in documents:
            assert document.metadata["source"] == "https://host/a.pdf"
            assert document.metadata["team"] == "a"
            json.dumps(document.metadata, sort_keys=True)
        assert dict(blob.metadata) == {
            "source": "https://host/a.pdf", "team": "a", "page_label": "x",
        }  # fmt: skip

    def test_images_are_parsed_as_well(self) -> None:
        """Scans come as often as pictures as they come as PDFs."""
        scan = Image.new("L", (200, 100), 255)
        scan.paste(0, (40, 40, 160, 60))  # something to read: a blank page asks nothing
        buffer = io.BytesIO()
        scan.save(buffer, "PNG")
        blob = self.make_blob(buffer.getvalue(), "image/png", source="scan.png")
        documents = self.make_parser(engine=ScriptedEngine()).parse(blob)
        assert [d.page_content for d in documents] == ["Text of page 1"]

    def test_a_broken_blob_names_its_source(self) -> None:
        """A thousand blobs, one broken: which?"""
        blob = self.make_blob(b"%PDF-1.7 nothing else", "application/pdf", source="s3://b/bad.pdf")
        parser = self.make_parser(engine=ScriptedEngine())
        caught = _raised(MDiffError, parser.parse, blob)
        assert "s3://b/bad.pdf" in str(caught)


# -- helpers ------------------------------------------------------------------------------------


def _raised(
    kind: type[BaseException], call: Callable[..., Any], *args: Any, **options: Any
) -> BaseException:
    try:
        call(*args, **options)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def _close(iterator: Any) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """Run ``call`` in a thread and fail, rather than hang, if it does not come back."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"no answer within {seconds} s: a deadlock"
    assert result, "the call raised"
    return result[0]


def _free_loop(work: Callable[[], Awaitable[T]]) -> T:
    """Run ``work`` on a new loop and return its result; fail if it holds the loop up.

    A busy machine stops any process for a while now and then, an adapter that works on the loop
    holds it up every time: the best of a few runs tells the two apart.
    """

    async def run() -> tuple[T, float]:
        async with _ticker() as gaps:
            result = await work()
        return result, max(gaps)

    gap = 0.0
    for _ in range(NUM_LOOP_RUNS):
        result, gap = asyncio.run(run())
        if gap < MAX_LOOP_GAP_S:
            return result
    raise AssertionError(f"the loop stood still for {gap * 1000:.0f} ms")


@contextlib.asynccontextmanager
async def _ticker() -> AsyncIterator[list[float]]:
    """Measure how long the loop was held up while the block ran, in seconds."""
    gaps = [0.0]

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.002)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    task = asyncio.ensure_future(tick())
    try:
        yield gaps
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
